"""The errors of a request that does not come in time, or for which there is no room.

Knows: their reasons and texts. Does not know: when one is due (http1.py, http2.py), or how it is sent.
"""

from __future__ import annotations

from velox.errors import Reason, VeloxError

__all__ = ["body_too_late", "body_too_slow", "foreign_host", "head_too_late", "no_room", "no_room_in_time"]


def head_too_late(header_s: float) -> VeloxError:
    """The head was not whole in time."""
    message = f"the request's head was not complete after {header_s:g} s"
    return VeloxError(Reason.HEADER_TIMEOUT, message, close=True)


def foreign_host() -> VeloxError:
    """The name that was asked for may be a web page's own."""
    message = (
        "this request of a browser may be for a web page from elsewhere: without keys, on loopback, its Host must be an"
        " IP address, localhost or a name of this gateway (VELOX_HOSTS)"
    )
    return VeloxError(Reason.FORBIDDEN, message)


def body_too_late(body_s: float) -> VeloxError:
    """Nothing came of the body."""
    message = f"no byte of the request's body came for {body_s:g} s"
    return VeloxError(Reason.BODY_TIMEOUT, message, close=True)


def body_too_slow(rate: int) -> VeloxError:
    """Something came, and too little. rate: bytes a second that should."""
    message = f"the request's body came slower than {rate} bytes a second (VELOX_CLIENT_MIN_RATE)"
    return VeloxError(Reason.BODY_TIMEOUT, message, close=True)


def no_room(*, close: bool) -> VeloxError:
    """A body of unannounced length does not fit, and can't wait. close: nothing can follow on this connection."""
    message = "no memory for this request's body (VELOX_BODY_BUDGET)"
    return VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0, close=close)


def no_room_in_time() -> VeloxError:
    """The body waited as long as a request may."""
    message = "no memory for this request's body came free in time (VELOX_BODY_BUDGET)"
    return VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0)
