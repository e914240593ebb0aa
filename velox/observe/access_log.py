"""The access log: one line per exchange, written when it has ended.

Knows: the fixed list of fields, and what to keep for a slow reader. Does not know: where a value came from.
Bodies, keys and queries are not among the fields, of headers the session and the address of a client only. Whatever a
client puts into a text, its line is one line of printable ASCII: what a terminal or a reader of logs could
take for more than text is escaped. A line that can't be written, and for which there is no room in memory, is dropped
and counted (F-60).
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from velox.observe.log_output import ATOMIC_BYTES, LogOutput

__all__ = ["AccessLog", "AccessRecord", "AccessRules", "LineForm", "json_line"]

_FLUSH_BYTES: Final = 64 * 1024
_MAX_BUFFERED: Final = 1024 * 1024
_MAX_TEXT: Final = 256
_DELETE: Final = b"\x7f"  # the one control character that JSON leaves as it is
# Where 256 characters of a text take too much room, each being 6 or 12 bytes once it is escaped.
_SHORT_TEXT: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRecord:
    """What is logged of one exchange. Times in milliseconds; caller is the key's name, or the start of
    its digest.

    upstream: of the last attempt. tried: those before it, and how each ended. cache: what that said of the request;
    None: its route has none. join: whose call gave the reply; None: its route joins none. key_id: of a managed key its
    id, of others the digest's begin. address: from which the client's connection came, forwarded_for: the client's as a
    trusted proxy says it. sent_status: that the client got, where its reply had begun before it failed; None: it got
    none. tokens and cost: None where nobody counts them. estimated: not all of these were told by the upstream.
    """

    time: str
    id: str
    caller: str
    key_id: str | None = None
    tags: str | None = None
    address: str | None = None
    forwarded_for: str | None = None
    session: str | None = None
    method: str
    path: str
    endpoint: str
    model: str | None
    stream: bool
    status: int
    reason: str
    sent_status: int | None = None
    phase: str
    ttfb_ms: float | None
    total_ms: float
    bytes_in: int
    bytes_out: int
    attempts: int
    close_code: int | None = None
    upstream: str | None = None
    tried: str | None = None
    cache: str | None = None
    join: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_written_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    estimated: bool | None = None


def json_line(record: AccessRecord, longest: int) -> bytes:
    """Return a line of JSON, in printable ASCII. longest: characters of each text."""
    fields = {name: _cut(getattr(record, name), longest) for name in record.__slots__}
    try:
        data = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate: JSON can tell of it, UTF-8 can't
        data = b"\xff"
    if data.isascii() and data.find(_DELETE) < 0:  # `not in` costs eight times as much
        return data
    # orjson writes UTF-8, in which U+2028, C1 controls and marks that turn the writing direction stand as they are.
    return json.dumps(fields, separators=(",", ":")).encode("ascii").replace(_DELETE, b"\\u007f") + b"\n"


def _cut(value: object, longest: int) -> object:
    return value[:longest] if isinstance(value, str) else value


# Makes the line of a record, whose texts have so many characters at most.
LineForm: TypeAlias = Callable[[AccessRecord, int], bytes]


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Which exchanges are logged. level: `errors` are those that did not end well.

    slow_ns, share: of those that ended well, only the ones that took so long, and only this share (0 to 1) of them.
    """

    level: Literal["off", "errors", "all"]
    slow_ns: int = 0
    share: float = 1.0


class AccessLog:
    """Lines gathered in memory and written to a descriptor. rules: of which exchanges; others after a reload.

    form: how a line is written. random: a number from 0 to 1, below 1, for each exchange that may be in the share.
    """

    def __init__(
        self,
        descriptor: int,
        rules: AccessRules,
        on_dropped: Callable[[int], None],
        form: LineForm = json_line,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._output = LogOutput(descriptor)
        self.rules = rules
        self._form: Final = form
        self._random: Final = random
        self._on_dropped: Final = on_dropped
        self._lines: deque[bytes] = deque()
        self._n_bytes = 0

    def wants(self, reason: str, took_ns: int = 0) -> bool:
        """True when an exchange that ended so is logged: building a record costs more than asking."""
        rules = self.rules
        if reason != "ok" or rules.level != "all":
            return reason != "ok" and rules.level != "off"
        return took_ns >= rules.slow_ns and (rules.share >= 1.0 or self._random() < rules.share)

    def move_to(self, descriptor: int) -> None:
        """Write to another descriptor from now on, as after a file was rotated; the one before is the caller's again.

        What the one before still takes goes there. A line that it has a part of, and takes no more of, is lost.
        """
        self.flush()
        if self._output.has_rest:
            self._on_dropped(1)
        self._output = LogOutput(descriptor)
        self.flush()

    def write(self, record: AccessRecord) -> None:
        """Add a line, of 4 KiB at most. Text of a request is cut to 256 characters, all but printable ASCII escaped."""
        data = self._form(record, _MAX_TEXT)
        if len(data) > ATOMIC_BYTES:
            data = self._form(record, _SHORT_TEXT)
        if self._n_bytes + len(data) > _MAX_BUFFERED:
            self._on_dropped(1)
            return
        self._lines.append(data)
        self._n_bytes += len(data)
        if self._n_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Write what is buffered, as far as the reader takes it. Called by a timer. Return True if nothing is left."""
        lines, batch = self._lines, b""
        try:
            # First what is left of a line, then lines.
            while self._output.write(batch):
                self._n_bytes -= len(batch)
                if not lines:
                    return True
                batch = lines.popleft()
                while lines and len(batch) + len(lines[0]) <= ATOMIC_BYTES:
                    batch += lines.popleft()
        except OSError:
            # The reader is gone, or the disk is full: there is nobody to tell.
            self._drop(batch)
            return True
        if batch:
            lines.appendleft(batch)
        return not lines

    def close(self) -> None:
        """Write what is buffered for the last time; what the reader does not take is dropped and counted."""
        if not self.flush():
            self._drop()

    def _drop(self, batch: bytes = b"") -> None:
        self._on_dropped(b"".join((batch, *self._lines)).count(b"\n"))
        self._lines.clear()
        self._n_bytes = 0
