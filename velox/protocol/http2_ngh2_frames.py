"""What ngh2 says of frames, and a frame that it does not make.

Knows: which events bring nothing, GOAWAY. Does not know: a connection.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, cast

from ngh2 import (
    ConnectionClosed,
    Event,
    InformationalResponseReceived,
    StreamClosed,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

from velox.protocol.http2 import LARGE_UPDATE

__all__ = ["goaway_frame", "is_idle"]

_GOAWAY: Final = Struct(">HBBBIII")
# Events that can't be had without end: each needs a stream, or ends the connection.
_BOUNDED: Final = frozenset(
    {
        StreamClosed,
        StreamReset,
        TrailersReceived,
        InformationalResponseReceived,
        ConnectionClosed,
    }
)


def goaway_frame(last_stream_id: int, error_code: int) -> bytes:
    """Return a GOAWAY frame (RFC 9113 §6.8)."""
    return _GOAWAY.pack(0, 8, 7, 0, 0, last_stream_id, error_code)


def is_idle(event: Event) -> bool:
    """True for a frame that brings nothing, of which a peer may send as many as it likes."""
    kind = type(event)
    if kind is WindowUpdated:
        return cast(WindowUpdated, event).increment < LARGE_UPDATE
    return kind not in _BOUNDED
