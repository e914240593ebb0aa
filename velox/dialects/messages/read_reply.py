"""Reads whole answers and errors of Anthropic's Messages.

Knows: the blocks of an answer. Does not know: HTTP; whether Claude runs at Anthropic, on Vertex or on Bedrock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    Request,
    Search,
    Signature,
    StreamReader,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Written,
    settled,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text.decoding import decoded_reply, reply_text
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, quoted, raw_text
from velox.dialects.messages.read_stream import MessagesStreamReader
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.messages.wire import ANSWER, ERROR, BlockOut
from velox.dialects.messages.words import (
    RESULTS,
    SEARCH,
    cited_pages,
    error_of,
    lost,
    query_of,
    search_of,
    status_kind,
    stop_of,
    tier_of,
    usage_of,
)
from velox.dialects.messages.write_request import MessagesRequestWriter
from velox.dialects.tools.arguments import read_arguments
from velox.dialects.tools.hosted import without_pictures
from velox.dialects.tools.tool_fit import fit_tools
from velox.protocol.slices import let_go

__all__ = ["MessagesModel"]

_MOST_ERROR_CHARS: Final = 4096


class MessagesModel:
    """One attempt."""

    __slots__ = ("_dropped", "_facts", "_json_tool")

    def __init__(self, facts: ModelFacts, dropped: DroppedFields) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._json_tool: str | None = None

    def write(self, request: Request, model: str) -> Written:
        """Write the request. Raises BadRequestError."""
        without_pictures(request, self._dropped)
        keys = fit_tools(request, self._facts.schemas_refuse)
        writer = MessagesRequestWriter(self._facts, self._dropped, request)
        written = writer.write(model)
        written.keys = keys
        self._json_tool = writer.json_tool
        return written

    def answer(self, body: bytes) -> Answer:
        """Read a plain answer. Raises BrokenReplyError, ReplyError."""
        return keeping_surrogates(self._answer, reply_text(body))

    def _answer(self, body: bytes) -> Answer:
        found = decoded_reply(ANSWER, body)
        if found.error is not None:
            raise ReplyError(error_of(found.error))
        if found.content is None:
            raise BrokenReplyError("the upstream's answer has no content")
        blocks: list[AnswerBlock] = []
        has_calls = False  # those of the tool whose input is the text of the answer are none
        queries: dict[str, str] = {}  # of searches, by their ids
        names: list[str] = []  # of what is lost
        for each in found.content:
            block = self._block(each)
            if block is None:
                if each.type == RESULTS:
                    blocks.append(search_of(each, queries.pop(each.tool_use_id or "", "")))
                elif each.type == "server_tool_use" and each.name == SEARCH:
                    queries[each.id or ""] = query_of(bytes(each.input))
            else:
                blocks.append(block)
                if type(block) is ToolUse:
                    has_calls = True
                    continue
            if each.citations or block is None:
                name = lost(each)
                if name is not None:
                    names.append(name)
        if queries:  # whose results are not there yet
            blocks += [Search((query,)) for query in queries.values() if query]
        stop = settled(stop_of(found.stop_reason, found.stop_sequence, found.stop_details), has_calls=has_calls)
        used = found.usage
        usage, tier = (Usage(), None) if used is None else (usage_of(used), tier_of(used.service_tier))
        let_go(found.content)
        return Answer(found.id, found.model, blocks, stop, usage, tier, tuple(dict.fromkeys(names)) if names else ())

    def _block(self, block: BlockOut) -> AnswerBlock | None:
        """Read one block; None: it has no counterpart, as those of tools that Anthropic runs."""
        match block.type:
            case "text":
                return Text(raw_text(block.text) or EMPTY, cited=cited_pages(block))
            case "thinking":
                signature = Signature(PROVIDER, block.signature) if block.signature else None
                return Thinking(raw_text(block.thinking) or EMPTY, signature)
            case "redacted_thinking":
                return Thinking(EMPTY, Signature(PROVIDER, block.data or ""), is_redacted=True)
            case "tool_use":
                arguments = read_arguments(bytes(block.input))
                if self._json_tool is not None and block.name == self._json_tool:
                    return Text(quoted(arguments.decode("utf-8", "surrogatepass")))
                return ToolUse(block.id or "", block.name or "", arguments)
            case _:
                return None

    def stream(self) -> StreamReader:
        """Return what reads a streamed answer."""
        return MessagesStreamReader(self._json_tool)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """Read an error's body: Anthropic's; of the platforms that run Claude another one, or none. Never raises."""
        try:
            found = ERROR.decode(body).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if found is not None and found.message:
            return error_of(found, status)
        return ApiError(status_kind(status), status, _message_in(body) or f"the upstream answered with status {status}")


def _message_in(body: bytes) -> str:
    """Return what a body says that is no error of Anthropic's: its message, or its text."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:_MOST_ERROR_CHARS].decode("utf-8", "replace").strip()
    if isinstance(found, list) and found:
        found = found[0]
    for name in ("error", "message", "Message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
            if isinstance(found, dict):
                found = found.get("message", found)
            break
    text = found if isinstance(found, str) else body.decode("utf-8", "replace")
    return text[:_MOST_ERROR_CHARS]
