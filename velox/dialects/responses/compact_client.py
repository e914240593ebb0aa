"""`POST /responses/compact` as clients send it: the answer is the conversation that is gone on with.

Knows: that answer. Does not know: how a summary is asked for (compaction.py), HTTP, upstreams.
Source: openai 3.54 (types/responses/compacted_response).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Answer, ClientCall
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import quoted
from velox.dialects.responses.compaction import PREFIX, compaction_item, summary_of
from velox.dialects.responses.words import answer_id, usage_json
from velox.dialects.responses.write_reply import ResponsesClient

__all__ = ["CompactClient"]

# Of what the user said: the latest; all of it is in the summary, too.
_MOST_SAID_BYTES: Final = 256 * 1024


class _Given(msgspec.Struct):
    input: list[dict[str, Raw]] | str | None = None


_GIVEN: Final = msgspec.json.Decoder(_Given)
_USER: Final = b'"user"'
_MESSAGE: Final = b'"message"'


class CompactClient(ResponsesClient):
    """One request, and what its client gets back; see ClientSide."""

    def __init__(self, call: ClientCall, dropped: DroppedFields) -> None:
        super().__init__(call, dropped, compacts=True)

    def answer(self, answer: Answer) -> bytes:
        """See ClientSide. Raises BrokenReplyError: the model wrote no summary."""
        item_id = quoted(f"{PREFIX}{self.call.id}0")
        said = keeping_surrogates(_said, self.reader.body)
        items = [*said, b'{"id":%b,%b' % (item_id, compaction_item(summary_of(answer.blocks)))]
        return b'{"id":%b,"object":"response.compaction","created_at":%d,"output":[%b],"usage":%b}' % (
            quoted(answer_id(answer.id, self.call)),
            self.call.now_s,
            b",".join(items),
            usage_json(answer.usage),
        )


def _said(body: bytes) -> list[bytes]:
    """Return the latest messages of the user, as they came."""
    items = _GIVEN.decode(body).input
    if items is None:
        return []
    if isinstance(items, str):
        items = [{"role": Raw(_USER), "content": Raw(quoted(items))}]
    found: list[bytes] = []
    room = _MOST_SAID_BYTES
    for item in reversed(items):
        if bytes(item.get("type", Raw(_MESSAGE))) == _MESSAGE and bytes(item.get("role", b"")) == _USER:
            text = msgspec.json.encode({**item, "type": Raw(_MESSAGE)})
            room -= len(text)
            if room < 0:
                break
            found.append(text)
    return found[::-1]
