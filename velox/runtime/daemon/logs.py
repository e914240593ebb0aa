"""`velox logs`: the last lines of a gateway's logs, and those that come, for a person.

    LogReader    the lines of one file, over rotations
    Wanted       which lines are shown
    shown        a line as a person reads it

Knows: the form of both logs (docs/logs.md), and how a file is followed. Does not know: where the files are.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from velox.observe.access_log import AccessRecord
from velox.observe.access_text import text_line

__all__ = ["LogReader", "Wanted", "follow", "last_lines", "shown"]

_LOOK_S: Final = 0.2
_PIECE: Final = 1 << 20
# A line longer than this is none of ours.
_MOST_LINE: Final = 1 << 16
_MAX_TEXT: Final = 256
_BAD: Final = frozenset({"error", "critical"})
_NAMES: Final = tuple(field.name for field in fields(AccessRecord))
# What a line of the access log has for sure, and none of the operations log.
_OF_ACCESS: Final = ("time", "id", "status", "reason", "total_ms")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are shown: those that are all of it. None: whatever it is.

    errors: requests that did not end well, and what the gateway itself calls an error. slow_ms: requests that took so
    long. key: the name or id of a client's key. model: as the client named it.
    """

    errors: bool = False
    slow_ms: float | None = None
    key: str | None = None
    model: str | None = None

    def takes(self, line: Mapping[str, Any]) -> bool:
        """Tell whether a line is shown. line: its fields."""
        if not is_access(line):
            is_asked = (self.slow_ms, self.key, self.model) == (None, None, None)
            return is_asked and (not self.errors or line.get("level") in _BAD)
        return (
            (not self.errors or line["reason"] != "ok")
            and (self.slow_ms is None or line["total_ms"] >= self.slow_ms)
            and (self.key is None or self.key in (line.get("caller"), line.get("key_id")))
            and (self.model is None or self.model == line.get("model"))
        )

    @property
    def takes_all(self) -> bool:
        """True if nothing is left out."""
        return self == Wanted()


def is_access(line: Mapping[str, Any]) -> bool:
    """Tell whether a line is of the access log."""
    return all(name in line for name in _OF_ACCESS)


def shown(raw: bytes, wanted: Wanted, *, as_json: bool) -> str | None:
    """Return a line as it is printed; None: it is not wanted. What is no line of ours is shown where all is.

    as_json: as it stands in the file.
    """
    text = _plain(raw.decode("utf-8", "replace"))
    try:
        line = json.loads(raw)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        return text if wanted.takes_all else None
    try:
        if not wanted.takes(line):
            return None
        return text if as_json else _human(line)
    except (TypeError, ValueError, LookupError, AttributeError):  # fields of another kind than ours
        return text if wanted.takes_all else None


def _human(line: Mapping[str, Any]) -> str:
    if is_access(line):
        found: dict[str, Any] = {name: line.get(name) for name in _NAMES}
        record = AccessRecord(**found)
        return text_line(record, _MAX_TEXT).decode("ascii").rstrip()
    words = f"{str(line['time'])[11:19]} {line['level']!s:7} {_plain(str(line['message']))}"
    more = line.get("traceback")
    return f"{words}\n{_plain(str(more), keeps_lines=True)}" if more else words


def _plain(text: str, *, keeps_lines: bool = False) -> str:
    """Return a text without what moves a terminal's cursor or turns the direction of writing."""
    return "".join(each if each.isprintable() or (keeps_lines and each == "\n") else "?" for each in text.rstrip("\n"))


class LogReader:
    """The lines of a file, from a place on. The file may be made later, renamed, replaced and cut."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._file = -1
        self._rest = b""

    def __repr__(self) -> str:
        return f"<LogReader {self._path}>"

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that have come since the last time. Raises OSError for a file that can't be read."""
        if self._file < 0 and not self._open():
            return
        while True:
            # First: what is written to a file before it is renamed is in it by then.
            is_other = self._is_other()
            yield from self._new_lines()
            if not is_other:
                return
            self.close()
            self._rest = b""
            if not self._open():
                return

    def _open(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return self._file >= 0

    def _is_other(self) -> bool:
        """Tell whether another file is at the path."""
        own = os.fstat(self._file)
        if own.st_size < os.lseek(self._file, 0, os.SEEK_CUR):  # it was cut
            os.lseek(self._file, 0, os.SEEK_SET)
            self._rest = b""
        try:
            found = Path(self._path).stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)

    def _new_lines(self) -> Iterator[bytes]:
        while piece := os.read(self._file, _PIECE):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from lines
            if len(self._rest) > _MOST_LINE:
                self._rest = b""


def last_lines(readers: Sequence[LogReader], n: int, show: Callable[[bytes], str | None]) -> list[str]:
    """Read files to their end; return the last lines that are shown, in the order of their times."""
    kept: list[tuple[str, str]] = []
    for reader in readers:
        own: deque[tuple[str, str]] = deque(maxlen=n)
        for raw in reader.lines():
            text = show(raw)
            if text is not None:
                own.append((_time(raw), text))
        kept += own
    kept.sort(key=lambda each: each[0])
    return [text for _, text in kept[-n:]] if n else []


def _time(raw: bytes) -> str:
    """Return the time of a line, which sorts as text; "" if it has none."""
    try:
        return str(json.loads(raw)["time"])
    except (ValueError, LookupError, TypeError):
        return ""


def follow(
    readers: Sequence[LogReader],
    show: Callable[[bytes], str | None],
    write: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Write what comes, until write() or pause() raises."""
    while True:
        for reader in readers:
            for raw in reader.lines():
                text = show(raw)
                if text is not None:
                    write(text)
        pause(_LOOK_S)


def missing(paths: Sequence[str]) -> str:
    """Return what is said where none of the files is there; "" if one is."""
    if any(Path(path).exists() for path in paths):
        return ""
    return (
        f"there is no {' and no '.join(paths)}: name the file by --file, or by VELOX_LOG_FILE and "
        "VELOX_ACCESS_LOG_FILE as the gateway has them; below systemd `journalctl -u velox` has what it writes"
    )
