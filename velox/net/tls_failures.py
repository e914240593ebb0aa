"""Why a handshake with a client failed: OpenSSL's words, as one of a closed list.

Knows: what OpenSSL calls things, and what those get who speak no TLS at all. Does not know: connections.
"""

from __future__ import annotations

import re
import ssl
from typing import Final

from velox.outcomes import TlsFailure
from velox.protocol.http1 import write as http1_write

__all__ = ["PLAIN_HTTP_REPLY", "cause_of", "is_http"]

_METHOD: Final = re.compile(rb"[A-Z]{3,}(?: |$)|[A-Z]{8}")

# OpenSSL's reasons, by what an operator would do about them; the first that matches counts.
_CAUSES: Final = (
    (re.compile("ALERT"), TlsFailure.REFUSED),
    (
        re.compile("CERTIFICATE_VERIFY_FAILED|DID_NOT_RETURN_A_CERTIFICATE|NO_CERTIFICATE"),
        TlsFailure.CLIENT_CERTIFICATE,
    ),
    (re.compile("PROTOCOL|VERSION"), TlsFailure.VERSION),
    (re.compile("CIPHER|SIGNATURE_ALGORITHM|GROUP|CURVE|KEY_SHARE"), TlsFailure.CIPHER),
    (re.compile("HTTP_REQUEST"), TlsFailure.PLAIN_HTTP),
)

_BODY: Final = (
    b'{"error":{"message":"this port speaks TLS: write https:// instead of http://","type":"invalid_request_error",'
    b'"param":null,"code":"bad_framing"}}'
)
# Made once: nothing of the request is looked at, and it never reaches the gateway.
PLAIN_HTTP_REPLY: Final = (
    http1_write.reply_head(
        400,
        [
            (b"content-type", b"application/json"),
            (b"x-velox-reason", b"bad_framing"),
            (b"x-should-retry", b"false"),
        ],
        content_length=len(_BODY),
        chunked=False,
        close=True,
    )
    + _BODY
)


def is_http(first: bytes) -> bool:
    """Return True when a connection's first bytes look like a request in plain text."""
    return _METHOD.match(first) is not None


def cause_of(error: ssl.SSLError) -> TlsFailure:
    """Return the cause of a handshake that OpenSSL gave up."""
    reason = error.reason or ""
    return next((cause for pattern, cause in _CAUSES if pattern.search(reason)), TlsFailure.OTHER)
