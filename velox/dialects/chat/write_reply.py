"""Writes whole answers and errors in Chat Completions for clients.

Knows: the answer's JSON. Does not know: HTTP, upstreams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.dialects.canonical.dropped_fields import SEARCHES, DroppedFields
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ClientCall,
    Image,
    JsonText,
    Refusal,
    Request,
    Search,
    StopReason,
    StreamWriter,
    Text,
    Thinking,
    ToolUse,
)
from velox.dialects.chat.read_request import ChatRequestReader
from velox.dialects.chat.reasoning import BETWEEN, id_with_thought, signature_detail, thinking_detail
from velox.dialects.chat.sources import annotation
from velox.dialects.chat.words import answer_id, finish_word, picture, usage_json
from velox.dialects.chat.write_stream import ChatStreamWriter
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted
from velox.dialects.openai_errors import error_json
from velox.dialects.streams.citations import spans_of
from velox.dialects.tools.arguments import custom_input, written_arguments
from velox.protocol.slices import concatenated

__all__ = ["ChatClient"]

_BETWEEN: Final = quoted(BETWEEN)[1:-1]
# Those that OpenAI has; others have more.
_TIERS: Final = frozenset({"auto", "default", "flex", "scale", "priority", "fast"})


class ChatClient:
    """One request of a client, and what it gets back; see ClientSide."""

    __slots__ = ("_call", "_dropped", "_model", "_reader")

    def __init__(self, call: ClientCall, dropped: DroppedFields) -> None:
        self._call: Final = call
        self._dropped: Final = dropped
        self._reader: Final = ChatRequestReader(dropped)
        self._model = call.model

    def __repr__(self) -> str:
        return f"<ChatClient {self._call.id}>"

    def read(self, body: bytes | bytearray) -> Request:
        """See ClientSide."""
        request = self._reader.read(body)
        self._model = request.model or self._model
        return request

    @property
    def takes_pictures(self) -> bool:
        """See ClientSide."""
        return True

    def own_path(self, path: str) -> str:
        """See ClientSide."""
        return path  # writers use its names

    def stream(self) -> StreamWriter:
        """See ClientSide."""
        return ChatStreamWriter(
            self._call,
            self._model,
            self._reader.custom,
            self._dropped,
            include_usage=self._reader.include_usage,
            is_old=self._reader.is_old,
        )

    def error(self, error: ApiError) -> bytes:
        """See ClientSide."""
        return error_json(error)

    def answer(self, answer: Answer) -> bytes:
        """See ClientSide."""
        blocks, stop = answer.blocks, answer.stop
        texts: list[JsonText] = []
        calls: list[ToolUse] = []
        refusals: list[JsonText] = []
        has_thoughts = has_more = False  # or signatures; or what stands beside the text
        for block in blocks:
            if isinstance(block, Text):
                texts.append(block.text)
                has_thoughts = has_thoughts or block.signature is not None
                has_more = has_more or bool(block.cited)
            elif isinstance(block, ToolUse):
                calls.append(block)
                has_thoughts = has_thoughts or block.signature is not None
            elif isinstance(block, Refusal):
                refusals.append(block.text)
            elif isinstance(block, Thinking):
                has_thoughts = True
            else:
                has_more = True
        if stop.reason is StopReason.FILTER and stop.explanation is not None and stop.explanation != EMPTY:
            refusals.append(stop.explanation)
        content = b"null" if calls and texts.count(EMPTY) == len(texts) else joined(texts, b"")
        if refusals and not texts:
            content = b"null"
        fields = [
            b'{"role":"assistant","content":',
            content,
            b',"refusal":',
            joined(refusals, b"") if refusals else b"null",
            *(self._beside_text(blocks) if has_more else ()),
            *(self._reasoning(blocks) if has_thoughts else ()),
            *self._calls(calls),
            b"}",
        ]
        tier = b',"service_tier":' + quoted(answer.tier) if answer.tier in _TIERS else b""
        head = b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":[{"index":0,"message":' % (
            quoted(answer_id(answer.id, self._call)),
            self._call.now_s,
            quoted(answer.model or self._model),
        )
        end = b',"logprobs":null,"finish_reason":"%b"}],"usage":%b%b}' % (
            finish_word(stop, is_old=self._reader.is_old),
            usage_json(answer.usage),
            tier,
        )
        return concatenated([head, *fields, end])

    def _beside_text(self, blocks: Sequence[AnswerBlock]) -> list[bytes]:
        return [*self._annotations(blocks), *_images(blocks)]

    def _annotations(self, blocks: Sequence[AnswerBlock]) -> list[bytes]:
        """Write the pages that the texts name; searches themselves have no place here."""
        if any(isinstance(block, Search) for block in blocks):
            self._dropped.lose(SEARCHES)
        cited = [
            annotation(each, span)
            for block, spans in zip(blocks, spans_of(blocks), strict=True)
            if isinstance(block, Text)
            for each, span in zip(block.cited, spans, strict=True)
        ]
        return [b',"annotations":[', b",".join(cited), b"]"] if cited else []

    def _reasoning(self, blocks: Sequence[AnswerBlock]) -> list[bytes]:
        thoughts = [block.text for block in blocks if isinstance(block, Thinking) and not block.is_redacted]
        fields = []
        texts: list[JsonText] = [text for text in thoughts if text != EMPTY]
        if texts:
            fields += [b',"reasoning_content":', joined(texts, _BETWEEN)]
        details = self._details(blocks)
        if details:
            fields += [b',"reasoning_details":[', b",".join(details), b"]"]
        return fields

    def _details(self, blocks: Sequence[AnswerBlock]) -> list[bytes]:
        """Return the entries for the signatures, in the order of the blocks."""
        details: list[bytes] = []
        n_calls = 0
        for block in blocks:
            index = len(details)
            if isinstance(block, Thinking) and block.signature is not None:
                n_characters = None if block.is_redacted else len(decoded(block.text))
                details.append(thinking_detail(block.signature, index, n_characters=n_characters))
            elif isinstance(block, Text) and block.signature is not None:
                details.append(signature_detail(block.signature, index, None))
            elif isinstance(block, ToolUse):
                if block.signature is not None:
                    details.append(signature_detail(block.signature, index, self._call_id(block, n_calls)))
                n_calls += 1
        return details

    def _call_id(self, call: ToolUse, index: int) -> str:
        return call.id or f"call_{self._call.id}{index}"

    def _calls(self, calls: Sequence[ToolUse]) -> list[bytes]:
        if not calls:
            return []
        if self._reader.is_old:
            call = calls[0]  # there is one: no more were asked for
            form = b',"function_call":{"name":%b,"arguments":%b}'
            return [form % (quoted(call.name), quoted(call.arguments.decode("utf-8", "replace")))]
        written = []
        for index, call in enumerate(calls):
            call_id = quoted(id_with_thought(self._call_id(call, index), call.signature))
            name = quoted(call.name)
            if call.name in self._reader.custom:
                form = b'{"id":%b,"type":"custom","custom":{"name":%b,"input":%b}}'
                written.append(form % (call_id, name, custom_input(call.arguments)))
            else:
                form = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}'
                written.append(form % (call_id, name, written_arguments(call.arguments)))
        return [b',"tool_calls":[', b",".join(written), b"]"]


def _images(blocks: Sequence[AnswerBlock]) -> list[bytes]:
    images = [block for block in blocks if isinstance(block, Image)]
    return [b',"images":[', b",".join([picture(image, n) for n, image in enumerate(images)]), b"]"] if images else []
