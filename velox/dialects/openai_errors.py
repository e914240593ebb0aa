"""The errors of OpenAI's API, which all servers that are compatible with it have, more or less: read and written.

Knows: the shape of an error, in Chat Completions and in Responses. Does not know: any other dialect's.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.model import ApiError, ErrorKind
from velox.dialects.json_text.text import quoted

__all__ = ["api_error", "error_json", "kind_of", "read_error"]

_MOST_MESSAGE: Final = 4096
_ANY: Final = msgspec.json.Decoder()

_KINDS: Final = {kind.value: kind for kind in ErrorKind} | {
    408: ErrorKind.TIMEOUT,
    422: ErrorKind.INVALID,
    424: ErrorKind.API,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
    524: ErrorKind.TIMEOUT,
}
# Types and codes of errors in a stream, which has no status of its own.
_WORDS: Final = {
    "invalid_request_error": ErrorKind.INVALID,
    "tool_use_failed": ErrorKind.INVALID,
    "context_length_exceeded": ErrorKind.INVALID,
    "exceed_context_size_error": ErrorKind.INVALID,
    "content_filter": ErrorKind.INVALID,
    "authentication_error": ErrorKind.AUTHENTICATION,
    "invalid_api_key": ErrorKind.AUTHENTICATION,
    "insufficient_quota": ErrorKind.RATE_LIMIT,
    "permission_error": ErrorKind.PERMISSION,
    "not_found_error": ErrorKind.NOT_FOUND,
    "model_not_found": ErrorKind.NOT_FOUND,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "rate_limit_exceeded": ErrorKind.RATE_LIMIT,
    "too_many_requests": ErrorKind.RATE_LIMIT,
    "timeout_error": ErrorKind.TIMEOUT,
    "service_unavailable": ErrorKind.UNAVAILABLE,
    "overloaded_error": ErrorKind.OVERLOADED,
    "overloaded": ErrorKind.OVERLOADED,
    "server_is_overloaded": ErrorKind.OVERLOADED,
    "slow_down": ErrorKind.OVERLOADED,
    "billing_error": ErrorKind.BILLING,
    "request_too_large": ErrorKind.TOO_LARGE,
    "conflict_error": ErrorKind.CONFLICT,
    "server_overloaded": ErrorKind.OVERLOADED,
}
# What servers call by a name of their own, as OpenAI calls it: agents shorten their conversation because of it.
_CODES: Final = {"exceed_context_size_error": "context_length_exceeded"}  # llama.cpp
_ERROR_TYPES: Final = {
    ErrorKind.INVALID: "invalid_request_error",
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.BILLING: "insufficient_quota",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "invalid_request_error",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
    ErrorKind.RATE_LIMIT: "rate_limit_error",
    ErrorKind.API: "server_error",
    ErrorKind.UNAVAILABLE: "server_error",
    ErrorKind.TIMEOUT: "timeout_error",
    ErrorKind.OVERLOADED: "server_error",
}


def kind_of(status: int) -> ErrorKind:
    """Return what an error of this status is about."""
    return _KINDS.get(status) or (ErrorKind.API if status >= 500 or status < 400 else ErrorKind.INVALID)


def api_error(raw: Raw | bytes, status: int | None = None) -> ApiError:
    """Read an error object, or whatever stands there. status: of the reply; None: it is in a reply of 2xx."""
    value: object = None
    try:
        value = _ANY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    fields: dict[str, object] = value if isinstance(value, dict) else {"message": value}
    message = _message(fields)
    code, word = fields.get("code"), fields.get("type")
    if status is None:
        status = _status(fields)
    kind = kind_of(status)
    name = code if isinstance(code, str) and code else word if isinstance(word, str) and word in _WORDS else None
    return ApiError(
        kind,
        status,
        message or f"the upstream answered with an error (status {status}) and said nothing about it",
        None if name is None else _CODES.get(name, name),
        param if isinstance(param := fields.get("param"), str) else None,
    )


def _message(fields: dict[str, object]) -> str:
    for name in ("message", "detail", "error", "msg"):
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value[:_MOST_MESSAGE]
        if value and not isinstance(value, str):
            return msgspec.json.encode(value).decode("utf-8", "replace")[:_MOST_MESSAGE]
    return ""


def _status(fields: dict[str, object]) -> int:
    """Return the status that an error in a reply of 2xx would have had."""
    for name in ("code", "status_code", "status"):
        value = fields.get(name)
        if isinstance(value, str) and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    for name in ("code", "type"):
        kind = _WORDS.get(str(fields.get(name)))
        if kind is not None:
            return kind.value
    return ErrorKind.API.value


def read_error(status: int, body: bytes) -> ApiError:
    """Read the body of an error reply, which may be anything."""
    text = body.strip()
    if text[:1] in (b"{", b"["):
        return api_error(text, status)
    shown = text[:_MOST_MESSAGE].decode("utf-8", "replace")
    message = shown or f"the upstream answered with status {status} and an empty body"
    return ApiError(kind_of(status), status, message)


def error_json(error: ApiError) -> bytes:
    """Write an error as a body, or as the data of an event."""
    fields = {
        "message": error.message,
        "type": _ERROR_TYPES[error.kind],
        "param": error.param,
        "code": error.code,
    }
    return b'{"error":{%b}}' % b",".join(
        quoted(name) + b":" + (b"null" if value is None else quoted(value)) for name, value in fields.items()
    )
