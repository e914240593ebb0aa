"""Requests as bytes, and what a decoder makes of them: shared by the tests of HTTP/1.1 ingress."""

from __future__ import annotations

import pytest

from velox.errors import VeloxError
from velox.heads import RequestHead
from velox.protocol.http1.request import Http1Limits, RequestDecoder

LIMITS = Http1Limits(body_bytes=1000)
HOST = b"Host: a\r\n"


def decode(wire: bytes, limits: Http1Limits = LIMITS) -> RequestHead | None:
    """Feed a whole wire and read one head."""
    decoder = RequestDecoder(limits)
    decoder.feed(wire)
    return decoder.read_head()


def refusal(wire: bytes, limits: Http1Limits = LIMITS) -> VeloxError:
    """Return what a wire is refused with, given whole; byte by byte it must be the same."""
    with pytest.raises(VeloxError) as whole:
        decode(wire, limits)
    decoder = RequestDecoder(limits)
    with pytest.raises(VeloxError) as dripped:
        for i in range(len(wire)):
            decoder.feed(wire[i : i + 1])
            decoder.read_head()
            decoder.read_body()
    assert (whole.value.status, whole.value.reason) == (dripped.value.status, dripped.value.reason)
    return whole.value


def head(fields: bytes, line: bytes = b"POST /v1/chat/completions HTTP/1.1", host: bytes = HOST) -> bytes:
    """Build a head from a request line and more fields."""
    return line + b"\r\n" + host + fields + b"\r\n"
