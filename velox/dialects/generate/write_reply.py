"""Writes whole answers and errors for Gemini's clients.

Knows: Google's words for why an answer ended and what it used. Does not know: models, or how streams are cut.
Source: REST reference of v1beta; google-genai 3.4 reads what is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Answer, ApiError, ClientCall, Refusal, Request, Search, Text, ToolUse
from velox.dialects.canonical.own_paths import GENERATE_NAMES, own_path
from velox.dialects.generate.read_request import GenerateRequestReader
from velox.dialects.generate.sources import grounding_field, part_place
from velox.dialects.generate.words import EMPTY_PART, ending, error_body, part, usage_metadata
from velox.dialects.generate.write_stream import GenerateArrayWriter, GenerateStreamWriter
from velox.dialects.json_text.text import decoded, joined, quoted
from velox.dialects.streams.citations import spans_of

__all__ = ["GenerateClient"]


class GenerateClient:
    """One request of a client."""

    __slots__ = ("_call", "_dropped")

    def __init__(self, call: ClientCall, dropped: DroppedFields) -> None:
        self._call: Final = call
        self._dropped: Final = dropped

    def read(self, body: bytes | bytearray) -> Request:
        """Read the request. Raises BadRequestError."""
        return GenerateRequestReader(self._dropped).read(body, self._call.model, self._call.stream)

    @property
    def takes_pictures(self) -> bool:
        """See ClientSide."""
        return True

    def own_path(self, path: str) -> str:
        """See ClientSide."""
        return own_path(path, GENERATE_NAMES)  # several contents may become one message

    def answer(self, answer: Answer) -> bytes:
        """Return the body of a plain answer."""
        parts: list[bytes] = []
        texts: list[tuple[Text, int]] = []  # with the numbers of their parts
        has_calls = False
        for n, block in enumerate(answer.blocks):
            written = part(block, f"call_{self._call.id}{n}", is_first=not has_calls)
            has_calls = has_calls or isinstance(block, ToolUse)
            if written is not None:
                if isinstance(block, Text):
                    texts.append((block, len(parts)))
                parts.append(written)
        refusals = [block.text for block in answer.blocks if isinstance(block, Refusal)]
        return (
            b'{"candidates":[{"content":{"parts":[%b],"role":"model"},%b,"index":0%b}],'
            b'"usageMetadata":%b,"modelVersion":%b,"responseId":%b}'
        ) % (
            b",".join(parts) or EMPTY_PART,
            ending(answer.stop, joined(refusals, b"") if refusals else None),
            _grounding(answer, texts),
            usage_metadata(answer.usage),
            quoted(answer.model or self._call.model),
            quoted(answer.id or self._call.id),
        )

    def stream(self) -> GenerateStreamWriter:
        """Return what writes a streamed answer."""
        return GenerateArrayWriter(self._call) if self._call.is_array else GenerateStreamWriter(self._call)

    def error(self, error: ApiError) -> bytes:
        """Return the body of an error."""
        return error_body(error)


def _grounding(answer: Answer, texts: Sequence[tuple[Text, int]]) -> bytes:
    searches = [block for block in answer.blocks if isinstance(block, Search)]
    places = []
    for text, number in texts:
        if text.cited:
            said = decoded(text.text)
            spans = spans_of([text])[0]
            places += [
                part_place(said, span.start, span.end, each.source, number)
                for each, span in zip(text.cited, spans, strict=True)
            ]
    return grounding_field(searches, places)
