"""What one exchange took of its model, as far as its reply tells.

Knows: which replies can be read, and what is counted where they say nothing. Does not know: limits, or who is charged.
An exchange whose tokens nobody counts has no meter, and its reply is looked at no more than without one.
"""

from __future__ import annotations

from typing import Final

from velox.gateway.filters import ReplyFilter
from velox.protocol.body_edit import ask_for_usage
from velox.protocol.usage import DataLines, Usage, UsageScanner, UsageStrip
from velox.types import BodyFields, Endpoint, ReplyHead

__all__ = ["Meter", "Usage", "UsageFilter", "metered"]

# The usage of their streams is sent only if it is asked for. The streams of others always end with it.
_ASKED: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_ERRORS_FROM: Final = 400
_NOTHING: Final = Usage(None, None, False)
_NO_EVENT: Final = Usage(None, 0, False)
_FAILED: Final = Usage(0, 0, False)


class Meter(ReplyFilter):
    """Reads the usage of one reply. is_stream: the client asked for a stream."""

    __slots__ = ("_has_begun", "_is_failed", "_is_stream", "_lines", "_scanner")

    def __init__(self, *, is_stream: bool = False) -> None:
        super().__init__()
        self._is_stream: Final = is_stream
        self._has_begun = False
        self._is_failed = False
        self._scanner: UsageScanner | None = None
        self._lines: DataLines | None = None  # of an event stream

    def __repr__(self) -> str:
        return f"<Meter {self._scanner!r}>"

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Note the head that the client gets."""
        self._has_begun = True
        self._is_failed = head.status >= _ERRORS_FROM
        self._scanner = None if self._is_failed or not is_plain else UsageScanner()
        self._lines = DataLines() if is_sse else None
        self.reads_body = self._scanner is not None
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Read what came of the body."""
        if data and self._scanner is not None:
            self._scanner.feed(data)
            if self._lines is not None:
                self._lines.feed(data)
        return data

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


class UsageFilter(ReplyFilter):
    """Takes out of a stream the usage that only Velox asked for."""

    __slots__ = ("_strip",)

    def __init__(self) -> None:
        super().__init__()
        self._strip = UsageStrip()

    @property
    def holds(self) -> bool:
        return self._strip.holds

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Take nothing out of errors, and of a body whose length was announced."""
        self._strip = UsageStrip()  # of this attempt's reply
        self.reads_body = is_sse and head.status < _ERRORS_FROM and head.content_length is None
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return what the client gets, whole events only."""
        return self._strip.feed(data, end)


def metered(
    body: bytes | bytearray | None, fields: BodyFields, endpoint: Endpoint
) -> tuple[Meter, tuple[ReplyFilter, ...], bytes | bytearray | None]:
    """Return the meter of an exchange, the filters of its reply, and the body to send: one that asks for the usage.

    Once for an exchange, before its first attempt: a bytearray is changed in place.
    """
    meter = Meter(is_stream=fields.stream)
    asking = ask_for_usage(body, fields) if body and fields.stream and endpoint in _ASKED else None
    return (meter, (meter,), body) if asking is None else (meter, (meter, UsageFilter()), asking)
