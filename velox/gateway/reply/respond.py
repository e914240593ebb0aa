"""Velox's own answers: errors in the shape of the client's dialect, which its SDK decodes with its own classes.

Knows: the body, the headers and the wording of an error. Does not know: who asked, or over which HTTP.
"""

from __future__ import annotations

import math
import time
from typing import Final

import orjson

from velox.errors import Reason, VeloxError, anthropic_type, error_type, google_status
from velox.heads import Headers
from velox.protocol.heads.date import http_date
from velox.types import Dialect

__all__ = ["crash", "error_body", "error_reply"]

_JSON: Final = (b"content-type", b"application/json")
_RPC: Final = "type.googleapis.com/google.rpc."


def error_body(error: VeloxError, dialect: Dialect = Dialect.OPENAI, request_id: bytes = b"") -> bytes:
    """Return the error in the shape that clients of a dialect decode.

    OpenAI: {"error": {"message", "type", "param", "code"}}; Anthropic: {"type": "error", "error": {"type", "message"},
    "request_id"}; Google: {"error": {"code", "message", "status"}}. The last two have our own code in them, too.
    """
    status, code = error.status, error.reason.code
    if dialect is Dialect.ANTHROPIC:
        inner: dict[str, object] = {"type": anthropic_type(status), "message": error.message}
        inner |= {"code": code, "param": error.param}
        if error.details:
            inner["details"] = orjson.Fragment(error.details)
        return orjson.dumps({"type": "error", "error": inner, "request_id": request_id.decode("ascii")})
    if dialect is Dialect.GOOGLE:
        return orjson.dumps(
            {
                "error": {
                    "code": status,
                    "message": error.message,
                    "status": google_status(status),
                    "details": _google_details(error),
                }
            }
        )
    fields = {"message": error.message, "type": error_type(status), "param": error.param, "code": code}
    return orjson.dumps({"error": fields})


def _google_details(error: VeloxError) -> list[dict[str, object]]:
    """Return what has a field of its own in other shapes: our code, the field that is wrong, the wait."""
    found: list[dict[str, object]] = [
        {"@type": f"{_RPC}ErrorInfo", "reason": error.reason.code.upper(), "domain": "velox"}
    ]
    if error.param is not None:
        violation = {"field": error.param, "description": error.message}
        found.append({"@type": f"{_RPC}BadRequest", "fieldViolations": [violation]})
    if error.retry_after_s is not None:
        found.append({"@type": f"{_RPC}RetryInfo", "retryDelay": f"{max(0.001, error.retry_after_s):.3f}s"})
    return found


def error_reply(
    error: VeloxError,
    request_id: bytes,
    *,
    may_have_begun: bool = False,
    client_id: bytes | None = None,
    dialect: Dialect = Dialect.OPENAI,
) -> tuple[Headers, bytes]:
    """Return the headers and the body of the answer.

    dialect: of the client. client_id: the client's own id of the request, which it gets back.
    may_have_begun: an upstream may have worked on the request, so no SDK is asked to repeat it.
    """
    headers: Headers = [
        _JSON,
        (b"x-velox-reason", error.reason.code.encode()),
        (b"x-velox-request-id", request_id),
        (b"x-request-id", client_id or request_id),
        (b"date", http_date(int(time.time()))),
    ]
    should_retry = error.should_retry and not may_have_begun
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1000))))
    headers.extend(error.headers)
    return headers, error_body(error, dialect, request_id)


def crash() -> VeloxError:
    """Return what a client is told of a bug."""
    return VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
