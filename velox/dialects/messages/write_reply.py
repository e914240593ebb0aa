"""Writes whole answers and errors in Anthropic's Messages for clients.

Knows: the blocks of an answer. Does not know: HTTP, streams (write_stream.py), or who answers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ClientCall,
    Refusal,
    Request,
    Search,
    Signature,
    StreamWriter,
    Text,
    Thinking,
    ToolUse,
)
from velox.dialects.canonical.own_paths import MESSAGES_NAMES, own_path
from velox.dialects.canonical.signatures import tagged
from velox.dialects.json_text.decoding import decoded_request
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, quoted
from velox.dialects.messages.read_request import read_request
from velox.dialects.messages.sources import search_blocks, text_blocks
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.messages.words import served_tier, shown_id, written_usage
from velox.dialects.messages.write_stream import MessagesStreamWriter, error_body, signed, stop_fields

__all__ = ["MessagesClient"]

_TOO_LONG: Final = "prompt is too long"
_SAID: Final = (b'{"type":"text",', b'{"type":"tool_use",')
_SIGNATURES_ONLY: Final = (b'{"type":"thinking","thinking":"",', b'{"type":"redacted_thinking",')


class _Listed(msgspec.Struct):
    messages: list[msgspec.Raw] = []


_LISTED: Final = msgspec.json.Decoder(_Listed)


class MessagesClient:
    """One request."""

    __slots__ = ("_body", "_call", "_dropped", "_model", "_n_read")

    def __init__(self, call: ClientCall, dropped: DroppedFields) -> None:
        self._call: Final = call
        self._dropped: Final = dropped
        self._model = call.model
        self._body: bytes | bytearray = b""
        self._n_read = 0  # messages of the request, with those of `system`

    def read(self, body: bytes | bytearray) -> Request:
        """Read the request. Raises BadRequestError."""
        request = read_request(body, self._dropped)
        self._model = request.model
        self._body, self._n_read = body, len(request.messages)
        return request

    @property
    def takes_pictures(self) -> bool:
        """See ClientSide."""
        return False

    def own_path(self, path: str) -> str:
        """Return a writer's path of a field as Anthropic calls it."""
        listed = keeping_surrogates(lambda text: decoded_request(_LISTED, text), bytes(self._body))
        return own_path(path, MESSAGES_NAMES, n_system=self._n_read - len(listed.messages))

    def answer(self, answer: Answer) -> bytes:
        """Write a plain answer."""
        blocks: list[bytes] = []
        for n, block in enumerate(answer.blocks):
            self._write(n, block, blocks)
        answer_id = answer.id if answer.id.startswith("msg_") else f"msg_{self._call.id}"
        usage = written_usage(answer.usage)
        tier = served_tier(answer.tier)
        if tier is not None:
            usage = usage[:-1] + b',"service_tier":"%b"}' % tier
        return b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[%b],%b,"usage":%b}' % (
            quoted(answer_id),
            quoted(answer.model or self._model),
            b",".join(_without_late_signatures(blocks)),
            stop_fields(answer.stop, has_refused=Refusal in map(type, answer.blocks)),
            usage,
        )

    def _write(self, n: int, block: AnswerBlock, blocks: list[bytes]) -> None:
        match block:
            case Text():
                if block.text != EMPTY:
                    blocks += text_blocks(block)
                if block.signature is not None:
                    blocks.append(_thinking(EMPTY, block.signature))
            case Search():
                call, given, found = search_blocks(block, self._call.id, n)
                blocks += [call.replace(b'"input":{}', b'"input":' + given), found]
            case Refusal(text):
                blocks.append(b'{"type":"text","text":%b}' % text)
            case Thinking(text, signature, is_redacted):
                if not is_redacted:
                    blocks.append(_thinking(text, signature))
                elif signature is not None:
                    is_own = signature.provider == PROVIDER
                    data = signature.value if is_own else tagged(signature, is_redacted=True)
                    blocks.append(b'{"type":"redacted_thinking","data":%b}' % quoted(data))
            case ToolUse():
                tool_id = block.id or f"toolu_{self._call.id}{n}"
                if block.signature is not None:
                    bound = Signature(block.signature.provider, block.signature.value, tool_id)
                    blocks.append(_thinking(EMPTY, bound))
                blocks.append(
                    b'{"type":"tool_use","id":%b,"name":%b,"input":%b}'
                    % (quoted(shown_id(tool_id, self._call.id)), quoted(block.name), block.arguments or b"{}")
                )
            case _:
                pass  # a model says nothing else

    def stream(self) -> StreamWriter:
        """Return what writes a streamed answer."""
        return MessagesStreamWriter(self._call, self._model)

    def error(self, error: ApiError) -> bytes:
        """Write an error. Agents know Anthropic's words for a conversation that is too long, which has no code here."""
        message = error.message
        if error.code == "context_length_exceeded" and _TOO_LONG not in message:
            message = f"{_TOO_LONG}: {message}"
        return error_body(error.kind, message)


def _without_late_signatures(blocks: list[bytes]) -> list[bytes]:
    """Return the blocks without those at the end that are a signature only: see write_stream.py."""
    if not blocks or not blocks[-1].startswith(_SIGNATURES_ONLY):
        return blocks
    n = len(blocks) - 1
    while n and blocks[n - 1].startswith(_SIGNATURES_ONLY):
        n -= 1
    return blocks[:n] if n and blocks[n - 1].startswith(_SAID) else blocks


def _thinking(text: bytes, signature: Signature | None) -> bytes:
    value = "" if signature is None else signed(signature)
    return b'{"type":"thinking","thinking":%b,"signature":%b}' % (text, quoted(value))
