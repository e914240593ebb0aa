"""Every reason for which Velox answers by itself or ends an exchange: one closed list.

Knows: reasons, their status, type, blame and whether a retry is safe. Does not know: how a reason was found,
or how it is written to a wire. The same code stands in the body, in `x-velox-reason`, in the log and in metrics.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeVar

__all__ = ["Blame", "Fact", "Reason", "VeloxError", "anthropic_type", "error_type", "google_status", "untraced"]

_Error = TypeVar("_Error", bound=BaseException)


class Blame(enum.Enum):
    """Who caused it; decides which breaker or alert may react."""

    CLIENT = "client"
    UPSTREAM = "upstream"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Fact:
    """What is always true of a reason.

    should_retry: the value of `x-should-retry`; True only where the upstream surely did no work, None leaves
    the decision to the client's SDK.
    """

    status: int
    blame: Blame
    should_retry: bool | None


_C, _U, _G = Blame.CLIENT, Blame.UPSTREAM, Blame.GATEWAY


class Reason(enum.Enum):
    """The closed list. The value is (code, status, blame, should_retry)."""

    BAD_FRAMING = ("bad_framing", 400, _C, False)
    BAD_REQUEST = ("bad_request", 400, _C, False)
    HEADER_TOO_LARGE = ("header_too_large", 431, _C, False)
    HEADER_TIMEOUT = ("header_timeout", 408, _C, None)
    BODY_TOO_LARGE = ("body_too_large", 413, _C, False)
    BODY_TIMEOUT = ("body_timeout", 408, _C, None)
    INVALID_JSON = ("invalid_json", 400, _C, False)
    DUPLICATE_KEY = ("duplicate_key", 400, _C, False)
    UNKNOWN_ROUTE = ("unknown_route", 404, _C, False)
    UNKNOWN_MODEL = ("unknown_model", 404, _C, False)
    PREVIOUS_NOT_FOUND = ("previous_response_not_found", 400, _C, False)
    UNKNOWN_OBJECT = ("unknown_object", 404, _C, False)
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, _C, False)
    UNSUPPORTED_MEDIA = ("unsupported_media", 415, _C, False)
    UNSUPPORTED_ENCODING = ("unsupported_encoding", 415, _C, False)
    AUTH_INVALID = ("auth_invalid", 401, _C, False)
    FORBIDDEN = ("forbidden", 403, _C, False)
    RATE_LIMITED = ("rate_limited", 429, _C, None)
    # A budget is used up: until its next window no retry helps.
    INSUFFICIENT_QUOTA = ("insufficient_quota", 429, _C, False)
    # A budget counts dollars, and the call has no price.
    UNPRICED_MODEL = ("unpriced_model", 403, _C, False)
    # RFC 9111 §5.2.1.7: only an answer that is kept was asked for.
    NOT_CACHED = ("not_cached", 504, _C, False)
    # An Idempotency-Key that another request has.
    IDEMPOTENCY_MISMATCH = ("idempotency_mismatch", 422, _C, False)
    CLIENT_CLOSED = ("client_closed", 499, _C, None)
    CLIENT_SLOW = ("client_slow", 499, _C, None)
    # Of a WebSocket that stood still, or has lasted as long as one may: it ends with a Close frame, never a reply.
    TUNNEL_TIMEOUT = ("tunnel_timeout", 408, _C, None)
    QUEUE_FULL = ("queue_full", 503, _G, True)
    QUEUE_TIMEOUT = ("queue_timeout", 503, _G, True)
    CONN_LIMIT = ("conn_limit", 503, _G, True)
    DRAINING = ("draining", 503, _G, True)
    OVERLOAD_MEMORY = ("overload_memory", 503, _G, True)
    LIMITS_UNAVAILABLE = ("limits_unavailable", 503, _G, True)
    ANSWERS_UNAVAILABLE = ("answers_unavailable", 503, _G, True)
    LEDGER_FULL = ("ledger_full", 503, _G, True)
    # An administrator did not want it to go on.
    ENDED_BY_ADMIN = ("ended_by_admin", 503, _G, False)
    INTERNAL = ("internal", 500, _G, False)
    UPSTREAM_DNS = ("upstream_dns", 502, _U, True)
    UPSTREAM_CONNECT = ("upstream_connect", 502, _U, True)
    UPSTREAM_TLS = ("upstream_tls", 502, _U, True)
    UPSTREAM_RESET = ("upstream_reset", 502, _U, False)
    UPSTREAM_PROTOCOL = ("upstream_protocol", 502, _U, False)
    UPSTREAM_TTFB_TIMEOUT = ("upstream_ttfb_timeout", 504, _U, False)
    UPSTREAM_IDLE_TIMEOUT = ("upstream_idle_timeout", 504, _U, False)
    UPSTREAM_TOTAL_TIMEOUT = ("upstream_total_timeout", 504, _U, False)
    UPSTREAM_TRUNCATED = ("upstream_truncated", 502, _U, False)
    # No token or signature could be made for it (AWS, Google, Entra): nothing was sent.
    UPSTREAM_CREDENTIALS = ("upstream_credentials", 502, _U, False)
    UPSTREAM_REDIRECT = ("upstream_redirect", 502, _U, False)
    # An upstream's own 4xx or 5xx, passed on unchanged: never a reply of Velox's, only a label.
    UPSTREAM_STATUS = ("upstream_status", 502, _U, None)

    def __init__(self, code: str, status: int, blame: Blame, should_retry: bool | None) -> None:
        self.code: Final = code
        self.fact: Final = Fact(status, blame, should_retry)


_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "server_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
    505: "server_error",
}


# As Anthropic and Google call them.
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GOOGLE_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_SERVER_ERRORS_FROM: Final = 500


def anthropic_type(status: int) -> str:
    """Return Anthropic's `error.type` for an HTTP status."""
    usual = "api_error" if status >= _SERVER_ERRORS_FROM else "invalid_request_error"
    return _ANTHROPIC_TYPES.get(status, usual)


def google_status(status: int) -> str:
    """Return Google's `error.status` for an HTTP status (google.rpc.Code)."""
    usual = "INTERNAL" if status >= _SERVER_ERRORS_FROM else "INVALID_ARGUMENT"
    return _GOOGLE_STATUSES.get(status, usual)


def error_type(status: int) -> str:
    """Return the `error.type` that goes with an HTTP status."""
    return _TYPES.get(status, "invalid_request_error")


class VeloxError(Exception):
    """One refusal or failure, with what a client may see.

    status: differs from the reason's usual one where HTTP has a narrower code (414, 417, 501, 505).
    message: lower-case start, what was wrong, which limit, what to do; no secret and nothing of the input.
    retry_after_s: seconds after which a retry would pass, where that is known.
    headers: more reply headers, for example the x-ratelimit-* of a 429.
    close: True when the client's connection can't carry another request after this.
    should_retry: as for the reason, unless more is known of this one failure.
    details: JSON, for clients of Anthropic's API: what their SDK knows how to go on from; b"" for none.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        close: bool = False,
        details: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.reason: Final = reason
        self.details: Final = details
        self.message: Final = message
        self.status: Final = reason.fact.status if status is None else status
        self.param: Final = param
        self.retry_after_s: Final = retry_after_s
        self.headers: Final = headers
        self.close: Final = close
        self.should_retry = reason.fact.should_retry

    def __repr__(self) -> str:
        return f"VeloxError({self.reason.code}: {self.message})"


def untraced(error: _Error) -> _Error:
    """Return an error that has forgotten where it was raised, and of which other one it came.

    An error that is kept, by a future or by whoever judges it, must be such a one. A traceback leads to frames, and a
    frame to all that its function had: to the reader of a reply with what it has read, and most often back to who keeps
    the error. That is a reference cycle, which stays until the garbage collector comes by.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
