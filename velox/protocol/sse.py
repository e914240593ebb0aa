"""Server-sent events, as far as a gateway that passes them on unchanged needs them.

Knows: where an event ends (a blank line; lines end with LF, CR or CRLF, nothing else), and the event that
tells of an error. Does not know: what events mean. Source: WHATWG HTML, "Interpreting an event stream".
"""

from __future__ import annotations

from typing import Final

import orjson

from velox.errors import Reason, error_type

__all__ = ["EventBoundary", "error_event"]

# The longest end of an event whose last byte decides is 3: LF (of a line before), CR, LF.
_TAIL_BYTES: Final = 3


def error_event(reason: Reason, message: str) -> bytes:
    """Return the event that ends a broken stream; never followed by `[DONE]` (R-STREAM-1).

    openai-python and openai-node raise an APIError on `data.error`. message: as for VeloxError.
    """
    error = {"message": message, "type": error_type(reason.fact.status), "param": None, "code": reason.code}
    return b"data: %b\n\n" % orjson.dumps({"error": error})


class EventBoundary:
    """Follows a stream and tells whether it stands between two events; keeps 3 bytes, looks when asked."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b"\n\n"  # the beginning is a boundary

    def feed(self, data: bytes) -> None:
        """Note bytes that were passed on."""
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]

    @property
    def between(self) -> bool:
        """True when an event may be written here without touching another one."""
        return self._tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n").endswith(b"\n\n")
