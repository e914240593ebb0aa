"""How a test watches processes: the lines they write, what /proc says of them, and waiting for either.

Knows: pipes and /proc. Does not know: what a line or a process means.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from tests.patience import PATIENCE_S

__all__ = ["LineLog", "socket_inodes", "start_time", "until"]


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for what gives no event (a metric, a file of /proc). Raises AssertionError naming `what` when it is late."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)


class LineLog:
    """The lines that a pipe has brought, gathered by a thread; wait() blocks until the wanted one is there."""

    def __init__(self, pipe: IO[bytes], name: str, copy: IO[bytes] | None = None) -> None:
        """copy: gets every byte too; it is closed at the end."""
        self._pipe: Final = pipe
        self._copy: Final = copy
        self._changed: Final = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._thread: Final = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """All lines so far."""
        with self._changed:
            return list(self._lines)

    def wait(self, wanted: Callable[[str], bool], timeout_s: float) -> str:
        """Return the first line, old or new, that is wanted. Raises AssertionError at time-out or end."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if wanted(line):
                        return line
                seen = len(self._lines)
                left_s = deadline - time.monotonic()
                assert left_s > 0, "the line did not come; what came:\n" + "\n".join(self._lines)
                assert not self._ended, "the output ended without the line:\n" + "\n".join(self._lines)
                self._changed.wait(left_s)

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Inside the block nobody reads the pipe, as when a log driver hangs."""
        with self._changed:
            yield

    def close(self) -> None:
        """Wait for the end of the output; all writers must be gone."""
        self._thread.join(10)
        self._pipe.close()

    def _read(self) -> None:
        for line in self._pipe:
            if self._copy is not None:
                self._copy.write(line)
            with self._changed:
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._changed.notify_all()
        if self._copy is not None:
            self._copy.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def socket_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process holds; none when it is gone."""
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    except OSError:
        pass  # it ended while we looked
    return found
