"""What TLS has received and not handed over when its connection ends.

uvloop stops reading from the socket while bytes of TLS wait for a protocol that has paused. It does not count what
OpenSSL has decrypted already: up to a record, 16 KiB, of which a buffer took the first part. When the connection ends
without close_notify, as most servers end it, uvloop forgets that, and the last part of a reply is missing.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

__all__ = ["unread"]

_RECORD_BYTES: Final = 16_384  # the most of one record, RFC 8446 §5.1


def unread(transport: asyncio.Transport) -> bytes:
    """Return the decrypted bytes that the transport, whose connection is lost, has not given to its protocol.

    Empty for a transport without TLS. Bytes of a record that is not whole, or that is no good, are left.
    """
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if secured is None:
        return b""
    parts: list[bytes] = []
    try:
        while data := secured.read(_RECORD_BYTES):
            parts.append(data)
    except (ssl.SSLError, ValueError):
        pass  # SSLWantReadError: that was all; ValueError: the handshake was not even begun
    return b"".join(parts)
