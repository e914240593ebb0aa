"""Reads whole answers and errors of OpenAI Responses, as models give them.

Knows: the answer's JSON. Does not know: HTTP, streams (read_stream.py), how a request is written (write_request.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    Request,
    StreamReader,
    Written,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text.decoding import decoded_reply, reply_text
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.openai_errors import read_error
from velox.dialects.responses import wire
from velox.dialects.responses.read_stream import ResponsesStreamReader
from velox.dialects.responses.words import answer_of
from velox.dialects.responses.write_request import ResponsesRequestWriter

__all__ = ["ResponsesModel"]

_REPLY: Final = msgspec.json.Decoder(wire.ResponsesReply)


class ResponsesModel:
    """One attempt at a model; see ModelSide.

    provider: whose signatures it takes back. lists_sources: it can be asked for the sources of a search of the web.
    """

    def __init__(
        self, facts: ModelFacts, dropped: DroppedFields, provider: str = "openai", *, lists_sources: bool = False
    ) -> None:
        self._provider: Final = provider
        self._writer: Final = ResponsesRequestWriter(facts, dropped, provider, lists_sources=lists_sources)

    def __repr__(self) -> str:
        return f"<ResponsesModel {self._provider}>"

    def write(self, request: Request, model: str) -> Written:
        """See ModelSide."""
        return self._writer.write(request, model)

    def answer(self, body: bytes) -> Answer:
        """See ModelSide."""
        return keeping_surrogates(self._answer, reply_text(body))

    def _answer(self, body: bytes) -> Answer:
        return answer_of(decoded_reply(_REPLY, body), self._provider)

    def stream(self) -> StreamReader:
        """See ModelSide."""
        return ResponsesStreamReader(self._provider)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """See ModelSide."""
        return read_error(status, body)
