"""What one exchange took of its model, as far as its reply tells.

Knows: which replies can be read, and what is counted where they say nothing. Does not know: limits, or who is charged.
An exchange whose tokens nobody counts has no meter, and its reply is looked at no more than without one.
"""

from __future__ import annotations

from typing import Final

from velox.protocol.usage import DataLines, Usage, UsageScanner, ask_for_usage
from velox.protocol.usage_strip import UsageStrip
from velox.types import BodyFields, Endpoint

__all__ = ["Meter", "Usage", "metered"]

# The usage of their streams is sent only if it is asked for. The streams of others always end with it.
_ASKED: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_ERRORS_FROM: Final = 400
_NOTHING: Final = Usage(None, None, False)
_NO_EVENT: Final = Usage(None, 0, False)
_FAILED: Final = Usage(0, 0, False)


class Meter:
    """Reads one reply on its way to the client (reply.py), from its head on."""

    __slots__ = ("_has_begun", "_is_failed", "_is_stream", "_lines", "_scanner", "_strip", "_strips")

    def __init__(self, *, is_stream: bool = False, strips: bool = False) -> None:
        """is_stream: the client asked for one. strips: Velox asked for the usage, and the client did not."""
        self._is_stream: Final = is_stream
        self._strips: Final = strips
        self._has_begun = False
        self._is_failed = False
        self._scanner: UsageScanner | None = None
        self._lines: DataLines | None = None  # of an event stream
        self._strip: UsageStrip | None = None

    def __repr__(self) -> str:
        return f"<Meter {self._scanner!r} {self._strip!r}>"

    def begin(self, status: int, *, is_sse: bool, is_plain: bool, has_length: bool) -> None:
        """Note the head that the client gets. is_plain: the body is not compressed.

        has_length: it was announced how long the body is, so that nothing may be taken out of it.
        """
        self._has_begun = True
        self._is_failed = status >= _ERRORS_FROM
        self._scanner = None if self._is_failed or not is_plain else UsageScanner()
        self._lines = DataLines() if is_sse else None
        self._strip = UsageStrip() if is_sse and self._strips and not self._is_failed and not has_length else None

    def feed(self, data: bytes, end: bool) -> bytes:
        """Read what came of the body; return what of it the client gets, and nothing else."""
        if data and self._scanner is not None:
            self._scanner.feed(data)
            if self._lines is not None:
                self._lines.feed(data)
        return data if self._strip is None else self._strip.feed(data, end)

    @property
    def holds(self) -> bool:
        """True when the client has been given whole events only, though the upstream is inside one."""
        return self._strip is not None and self._strip.holds

    def usage(self, *, is_whole: bool) -> Usage:
        """Return what was used. is_whole: the reply came to its end.

        None where nothing is known, and the estimate is all there is: no reply came, or one that can't be read, or says
        nothing. Of a stream that was cut, or never tells, each event so far counts as a token of the answer.
        """
        if self._is_failed:
            return _FAILED  # an upstream's error: no work was done
        scanner = self._scanner
        if scanner is None:
            return _NO_EVENT if self._is_stream and not self._has_begun else _NOTHING
        output = scanner.output
        if self._lines is not None and (output is None or not is_whole):
            return Usage(scanner.input, max(output or 0, self._lines.n), False)
        return Usage(scanner.input, output, is_whole and scanner.input is not None and output is not None)


def metered(
    body: bytes | bytearray | None, peek: BodyFields, route: Endpoint
) -> tuple[Meter, bytes | bytearray | None]:
    """Return the meter of an exchange, and the body to send: `body`, asking for the usage where it did not.

    Once for an exchange, before its first attempt: a bytearray is changed in place.
    """
    asking = ask_for_usage(body, peek) if body and peek.stream and route in _ASKED else None
    if asking is None:
        return Meter(is_stream=peek.stream), body
    return Meter(is_stream=True, strips=True), asking
