"""The events of an upstream's stream, one after the other, however its bytes are cut.

Dialects, the usage of a stream, errors and kept answers read whole events by this. What passes bytes on while an event
is open has its own eye for line ends: EventWatch (sse.py), the first event (first_event.py), the removal of the usage
(usage_strip.py) and the ids that ownership notes before a client can know them.

Knows: lines, fields and comments of server-sent events. Does not know: what an event means.
Source: WHATWG HTML, "Interpreting an event stream". Only `event` and `data` are kept. An event whose data is empty is
none here: no dialect has one, and some servers keep a connection open so. Lines that are no field at all can be looked
at: Google's servers end a broken stream with an error outside of any event.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from velox.protocol.json.outline import Outline
from velox.protocol.json.value_count import MOST_VALUES, has_over
from velox.protocol.reply_body import BOM, BrokenReplyError
from velox.protocol.slices import SLICE_BYTES, drained

__all__ = ["MOST_REPLY_BYTES", "SseEvents"]

# Of a plain reply, or of one event of a stream: pictures and sounds come in one event, and calls of some servers.
MOST_REPLY_BYTES: Final = 64 * 1024 * 1024
_LINE_END: Final = re.compile(rb"\n|\r")
_BLANK_LINE: Final = b"\r\n\r\n"
# To look for a number in bytes takes a tenth of the time that a piece of one byte takes.
_LF: Final = ord("\n")
_CR: Final = ord("\r")
_DATA: Final = b"data: "
_MOST_STRAY_BYTES: Final = 64 * 1024
_IGNORED: Final = (b"", b"id", b"retry")  # the first is a comment's
_FIELD_BYTES: Final = 16  # of a line that is too long: more than any name of a field


class SseEvents:
    """Of one stream. most_bytes: of one event. outline: makes what reads a longer one as it comes; None: it is refused.

    The data of an event that is read so are its outline. is_whole: the data that came last was whole events, usually
    one. n_data: lines with data so far, one an event mostly.
    """

    __slots__ = (
        "_data",
        "_has_begun",
        "_held",
        "_held_bytes",
        "_make_outline",
        "_most_bytes",
        "_n_bytes",
        "_name",
        "_outline",
        "_stray",
        "_stray_bytes",
        "is_whole",
        "n_data",
    )

    def __init__(self, most_bytes: int = MOST_REPLY_BYTES, *, outline: Callable[[], Outline] | None = None) -> None:
        self._most_bytes: Final = most_bytes
        self._make_outline: Final = outline
        self._outline: Outline | None = None  # of the event that is open, if it is too long to be held
        self.n_data = 0
        self._has_begun = False
        self._held: list[bytes] = []  # of the last line, which has no end yet
        self._held_bytes = 0
        self._name = b""
        self._data: list[bytes] = []
        self._n_bytes = 0  # of the data
        self._stray: list[bytes] = []
        self._stray_bytes = 0
        self.is_whole = False

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Take what came; return the events that are whole: name (b"" for none) and data.

        Raises BrokenReplyError: one is over the bound, or has too many values.
        """
        if not self._has_begun and data:
            data = self._begun(data)
        if not self._held and not self._data and not self._name and len(data) <= self._most_bytes:
            if data.endswith(b"\n\n"):
                if _CR not in data:
                    self.is_whole = True
                    text = data[6:-2]
                    if _LF not in text and data.startswith(b"data: "):
                        self.n_data += 1
                        return [(b"", text)] if text else []  # one event, as most servers send them
                    return self._whole(data)
            elif data.endswith(_BLANK_LINE) and data.startswith(b"data: "):
                text = data[6:-4]
                if _CR not in text and _LF not in text:
                    self.is_whole = True
                    self.n_data += 1
                    return [(b"", text)] if text else []  # one event, as Google sends them
        self.is_whole = False
        if not data:
            return []
        if _LF not in data and _CR not in data and not self._ends_with_cr:
            self._hold(data)
            return []
        if self._ends_with_cr:  # the end of a line, whatever comes
            self._held[-1] = self._held[-1][:-1]
            data = b"\n" + data.removeprefix(b"\n")
        # A CR at the end may be half of a CRLF.
        cr = b"\r" if data.endswith(b"\r") else b""
        # Tens of times faster than a pattern, and a read may have megabytes.
        text = data[: len(data) - len(cr)].replace(b"\r\n", b"\n")
        lines = text.split(b"\n") if _CR not in text else _LINE_END.split(text)
        rest = lines.pop() + cr
        if lines and self._held:
            self._end_held(lines)
        found = self._lines(lines)
        if rest:
            self._hold(rest)
        return found

    def _end_held(self, lines: list[bytes]) -> None:
        """Read the line that is held, of which the first of these is the end."""
        held, self._held, self._held_bytes = self._held, [], 0
        held.append(lines[0])
        if sum(map(len, held)) <= SLICE_BYTES or not held[0].startswith(_DATA):
            lines[0] = b"".join(held)
            return
        held[0] = held[0][len(_DATA) :]
        del lines[0]
        self._add(drained(held), len(_DATA))

    def _begun(self, data: bytes) -> bytes:
        """Skip a byte order mark at the start, which may come in pieces."""
        data = b"".join((*self._held, data))
        self._held, self._held_bytes = [], 0
        if len(data) < len(BOM) and BOM.startswith(data):
            self._hold(data)
            return b""
        self._has_begun = True
        return data.removeprefix(BOM)

    def _whole(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Read what is whole events, as most reads are."""
        found: list[tuple[bytes, bytes]] = []
        for text in data.split(b"\n\n"):
            if _LF not in text and text.startswith(b"data: "):
                self.n_data += 1
                if len(text) > 6:
                    found.append((b"", text[6:]))
                continue
            name, _, rest = text.partition(b"\n")
            if name.startswith(b"event: ") and rest.startswith(b"data: ") and _LF not in rest:
                self.n_data += 1
                if len(rest) > 6:
                    found.append((name[7:], rest[6:]))  # as OpenAI's Responses and Anthropic send them
            elif text:
                found += self._lines([*text.split(b"\n"), b""])
        return found

    @property
    def _ends_with_cr(self) -> bool:
        return bool(self._held) and self._held[-1].endswith(b"\r")

    @property
    def is_between(self) -> bool:
        """True between two events, as at the beginning."""
        return self._has_begun and not self._held and not self._data and not self._name

    @property
    def n_held(self) -> int:
        """Bytes of an event that is not whole yet."""
        return self._held_bytes + self._n_bytes

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._n_bytes + self._held_bytes > self._most_bytes:
            self._spill()

    def end(self) -> list[tuple[bytes, bytes]]:
        """Nothing more comes; an event without its blank line counts, as some servers leave the last one out."""
        rest = drained(self._held)
        return self._lines([rest.removesuffix(b"\r"), b""])

    @property
    def rest(self) -> bytes:
        """What came of the last line, which has no end yet."""
        return b"".join(self._held)

    @property
    def stray(self) -> bytes:
        """The lines that are no field of an event, as far as they are not over a bound."""
        return b"\n".join(self._stray)

    def _lines(self, lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        found = []
        for line in lines:
            if self._n_bytes + len(line) > self._most_bytes and self._make_outline is None:
                raise self._too_long()
            if not line:
                if self._data:
                    data = self._event()
                    if data:
                        found.append((self._name, data))
                    self._data = []
                self._name = b""
                self._n_bytes = 0
                continue
            if line.startswith(_DATA):
                self._add(line[len(_DATA) :], len(_DATA))
                continue
            name, colon, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._add(value, len(line) - len(value), n_lines=len(colon))
            elif name == b"event":
                self._name = value
            elif name not in _IGNORED and self._stray_bytes < _MOST_STRAY_BYTES:
                self._stray.append(line)
                self._stray_bytes += len(line)
        return found

    def _add(self, value: bytes, n_more: int, n_lines: int = 1) -> None:
        """Take a line of data. n_more: bytes of the line beside its value. n_lines: for n_data."""
        self._data.append(value)
        self._n_bytes += len(value) + n_more
        self.n_data += n_lines
        if self._n_bytes > self._most_bytes:
            self._spill()

    def _event(self) -> bytes:
        """Return the data of the event that is whole now."""
        outline, self._outline = self._outline, None
        if outline is not None:
            for each in self._data:
                outline.feed(each)
            return outline.text() or b""
        data = b"\n".join(self._data)
        # What is read at one go and without a look at its lines is too short for so many.
        if has_over(data, MOST_VALUES):
            raise BrokenReplyError(f"an event of the upstream's stream has over {MOST_VALUES:,} values")
        return data

    def _spill(self) -> None:
        """Give what is held of an event that is too long to its outline. Raises BrokenReplyError: it has none."""
        if self._make_outline is None:
            raise self._too_long()
        outline = self._outline = self._outline or self._make_outline()
        for each in self._data:
            outline.feed(each)
        self._data, self._n_bytes = [b""], 0  # there are some
        line = b"".join(self._held)
        end = b"\r" if line.endswith(b"\r") else b""  # it may be half of a CRLF
        name, _, value = line.removesuffix(end).partition(b":")
        if name == b"data":
            outline.feed(value.removeprefix(b" "))
        # What follows of the line is read as if it began here.
        line = (_DATA if name == b"data" else line[:_FIELD_BYTES]) + end
        self._held, self._held_bytes = [line] if line else [], len(line)

    def _too_long(self) -> BrokenReplyError:
        return BrokenReplyError(f"an event of the upstream's stream is over {self._most_bytes} bytes")
