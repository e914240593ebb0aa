"""Velox's own answers: OpenAI's error shape, so that every SDK decodes them with its own classes.

Knows: the body, the headers and the wording of an error. Does not know: who asked, or over which HTTP.
"""

from __future__ import annotations

import math
import time
from typing import Final

import orjson

from velox.errors import Reason, VeloxError, error_type
from velox.protocol.http_date import http_date
from velox.types import Headers

__all__ = ["crash", "error_body", "error_reply"]

_JSON: Final = (b"content-type", b"application/json")


def error_body(error: VeloxError) -> bytes:
    """Return {"error": {"message", "type", "param", "code"}}."""
    fields = {
        "message": error.message,
        "type": error_type(error.status),
        "param": error.param,
        "code": error.reason.code,
    }
    return orjson.dumps({"error": fields})


def error_reply(
    error: VeloxError, request_id: bytes, *, may_have_begun: bool = False, client_id: bytes | None = None
) -> tuple[Headers, bytes]:
    """Return the headers and the body of the answer.

    client_id: the client's own id of the request, which it gets back.
    may_have_begun: an upstream may have worked on the request, so no SDK is asked to repeat it (R-RETRY-4).
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
    return headers, error_body(error)


def crash() -> VeloxError:
    """Return what a client is told of a bug."""
    return VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
