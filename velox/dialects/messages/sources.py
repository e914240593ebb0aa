"""What a search of another provider has found, as Anthropic's clients read it: blocks, and citations of texts.

    server_tool_use, web_search_tool_result     a search and its results
    web_search_result_location                  a citation of a text: of all of its block

Clients send both back in their history, with `encrypted_content` and `encrypted_index`, which Anthropic alone makes and
reads. Those that are written here are tagged as signatures of nobody, and the ids of searches are ours: the next
request loses them again, whoever gets it (read_request.py, as_sent/foreign_history.py).

Knows: the JSON of these. Does not know: when they are written.
Source: https://docs.claude.com/en/docs/agents-and-tools/tool-use/web-search-tool
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.model import Citation, Search, Signature, Source, Text
from velox.dialects.canonical.signatures import NOBODY, tagged
from velox.dialects.json_text.text import EMPTY, decoded, quoted
from velox.dialects.messages.words import SEARCH
from velox.dialects.streams.citations import cited_pieces

__all__ = ["OWN_SEARCH", "SEALED", "citation", "search_blocks", "text_blocks"]

_PREFIX: Final = "srvtoolu_"
# How the ids of searches begin that are written here: ours of requests begin so, and Anthropic's with "01".
OWN_SEARCH: Final = f"{_PREFIX}vx"
# In place of what Anthropic alone makes, as JSON.
SEALED: Final = quoted(tagged(Signature(NOBODY, "")))


def citation(cited: Citation) -> bytes:
    """Write a citation. Its quote is of the page: other providers give none."""
    return b'{"type":"web_search_result_location","cited_text":%b,"url":%b,"title":%b,"encrypted_index":%b}' % (
        cited.quote or EMPTY,
        quoted(cited.source.url),
        _title(cited.source),
        SEALED,
    )


def text_blocks(text: Text) -> list[bytes]:
    """Write a text: as one block, or cut where its citations begin and end."""
    if not text.cited:
        return [b'{"type":"text","text":%b}' % text.text]
    blocks = []
    for words, cited in cited_pieces(decoded(text.text), text.cited):
        more = b',"citations":[%b]' % b",".join(map(citation, cited)) if cited else b""
        blocks.append(b'{"type":"text","text":%b%b}' % (quoted(words), more))
    return blocks


def search_blocks(search: Search, call_id: str, n: int) -> tuple[bytes, bytes, bytes]:
    """Write a search: the block of its call without an input, that input, and the block of its results.

    call_id: of the client's request; n: of the search, in the answer.
    """
    own_id = quoted(f"{_PREFIX}{call_id}{n}")
    pages = [
        b'{"type":"web_search_result","url":%b,"title":%b,"encrypted_content":%b,"page_age":null}'
        % (quoted(source.url), _title(source), SEALED)
        for source in search.sources
    ]
    call = b'{"type":"server_tool_use","id":%b,"name":"%b","input":{}}' % (own_id, SEARCH.encode())
    found = b'{"type":"web_search_tool_result","tool_use_id":%b,"content":[%b]}' % (own_id, b",".join(pages))
    return call, b'{"query":%b}' % quoted("; ".join(search.queries)), found


def _title(source: Source) -> bytes:
    return quoted(source.title or source.url)
