"""`background: true`: an answer that is asked for now and read later, for models whose provider has no such thing.

    queued, in_progress -> completed | incomplete | failed | cancelled

Knows: what the client is told of such an answer. Does not know: who makes it, or where it is kept (gateway/background).
Source: openai 3.54 (types/responses/response); platform.openai.com/docs/guides/background.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ApiError, ClientCall
from velox.dialects.json_text.decoding import decoded_request
from velox.dialects.json_text.text import quoted
from velox.dialects.openai_errors import read_error
from velox.dialects.responses import wire
from velox.dialects.responses.kept import is_answer
from velox.dialects.responses.words import ResponseObject, error_value

__all__ = ["BackgroundAnswer", "is_background", "runs_in_background", "with_status"]

_MARK: Final = b'"background"'
_REQUEST: Final = msgspec.json.Decoder(wire.LenientRequest)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_TRUE, _FALSE, _NULL = Raw(b"true"), Raw(b"false"), Raw(b"null")


class _Asked(msgspec.Struct):
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None


_ASKED: Final = msgspec.json.Decoder(_Asked)


def runs_in_background(body: bytes | bytearray) -> bool:
    """Say whether a request asks for that. Raises BadRequestError: in a way that can't be had."""
    if _MARK not in body:
        return False
    given = decoded_request(_ASKED, bytes(body))
    if not given.background:
        return False
    if given.store is False:
        raise BadRequestError("an answer in the background is kept until it is read; leave store out", "store")
    if given.stream:
        message = "the model of this route streams no answer in the background; leave stream or background out"
        raise BadRequestError(message, "stream")
    return True


class BackgroundAnswer:
    """One answer. answer_id: its own. body: the request. previous, conversation: what it goes on from."""

    def __init__(
        self, answer_id: str, now_s: int, body: bytes | bytearray, previous: str | None, conversation: str | None
    ) -> None:
        """Raises BadRequestError."""
        self._conversation: Final = conversation
        self.id: Final = answer_id
        self.previous: Final = previous
        text = bytes(body)
        self._given: Final[dict[str, Raw]] = decoded_request(_FIELDS, text)
        given = decoded_request(_REQUEST, text)
        self._object: Final = ResponseObject(answer_id, given.model, ClientCall("", now_s), given, text)

    def __repr__(self) -> str:
        return f"<BackgroundAnswer {self.id}>"

    def request(self) -> bytes:
        """Return the request as it is made: by itself it is one like any other."""
        fields = {**self._given, "stream": _FALSE, "store": _FALSE}
        for name in ("background", "previous_response_id"):
            fields.pop(name, None)
        return msgspec.json.encode(fields)

    def begun(self, status: str) -> bytes:
        """Return the answer before it is made: queued, in_progress."""
        return self._own(_FIELDS.decode(self._object.in_progress()), status)

    def ended(self, http_status: int, body: bytes) -> bytes:
        """Return the answer from the reply to the request."""
        if http_status < 400 and is_answer(body):
            return self._own(_FIELDS.decode(body), None)
        return self.failed(read_error(http_status if http_status >= 400 else 502, body))

    def failed(self, error: ApiError) -> bytes:
        """Return the answer that came to nothing."""
        return self._own(_FIELDS.decode(self._object.failed(error, b"")), None)

    def _own(self, fields: dict[str, Raw], status: str | None) -> bytes:
        fields |= {"id": Raw(quoted(self.id)), "background": _TRUE, "store": _TRUE}
        fields["previous_response_id"] = _NULL if self.previous is None else Raw(quoted(self.previous))
        if self._conversation is not None:
            fields["conversation"] = Raw(b'{"id":%b}' % quoted(self._conversation))
        if "metadata" in self._given:
            fields["metadata"] = self._given["metadata"]
        if status is not None:
            fields["status"] = Raw(quoted(status))
        return msgspec.json.encode(fields)


def is_background(response: bytes) -> bool:
    """Say whether an answer was made in the background."""
    return _ASKED.decode(response).background is True


def with_status(response: bytes, status: str, error: ApiError | None = None) -> bytes:
    """Return an answer that was not made, with how that ended."""
    fields = {**_FIELDS.decode(response), "status": Raw(quoted(status))}
    if error is not None:
        fields["error"] = Raw(error_value(error))
    return msgspec.json.encode(fields)
