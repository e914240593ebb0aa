"""`velox usage --to`: lines into a file, whole or not at all.

Knows: what is written where, and how far it is. Does not know: what the lines say (usage.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["ExportError", "TargetError", "export"]

_CHUNK_CHARS: Final = 256 * 1024
_PROGRESS_S: Final = 2.0
_GZIP_BITS: Final = (
    31  # zlib's word for a gzip header: without a name or time, so that the same lines are the same bytes
)
_SIGNALLED: Final = 128  # and the number of the signal: the exit code, as shells have it
_GZIP: Final = ".gz"


class TargetError(Exception):
    """What --to names can't be used. The message says what was expected."""


class ExportError(Exception):
    """The lines could not be written. What was there before is there still."""


def export(
    lines: Iterable[str],
    to: str,
    tell: Callable[[str], None],
    clock_s: Callable[[], float] = time.monotonic,
) -> int:
    """Write lines; return how many. Compressed if the name ends with `.gz`.

    tell: gets how many are written, every two seconds. Raises TargetError before the first line, ExportError, and what
    the lines raise, or SystemExit where SIGTERM ends it; then nothing is left of it.
    """
    with _ending_by_signal():
        return _export(lines, to, tell, clock_s)


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Have SIGTERM raise as SIGINT does. Else it ends the process at once, and what was written stays somewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nobody else may do so
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _export(
    lines: Iterable[str],
    to: str,
    tell: Callable[[str], None],
    clock_s: Callable[[], float],
) -> int:
    target = _File(Path(to))
    packer = zlib.compressobj(wbits=_GZIP_BITS) if to.endswith(_GZIP) else None
    n, n_chars, held, told_s = 0, 0, list[str](), clock_s()

    def flush() -> None:
        data = "".join(held).encode("utf-8", "replace")
        held.clear()
        target.write(data if packer is None else packer.compress(data))

    try:
        for line in lines:
            held.append(f"{line}\n")
            n, n_chars = n + 1, n_chars + len(line)
            if n_chars >= _CHUNK_CHARS:
                flush()
                n_chars = 0
                now_s = clock_s()
                if now_s - told_s >= _PROGRESS_S:
                    tell(f"{n:,} lines")
                    told_s = now_s
        flush()
        if packer is not None:
            target.write(packer.flush())
        target.close()
    except BaseException:
        target.abandon()
        raise
    return n


class _File:
    """A file that has its name when it is whole, and is on the disk then. Only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        if path.exists() and not path.is_file():
            raise TargetError("expected a file: lines go elsewhere by a pipe")
        try:
            number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as exc:
            raise TargetError(f"no file can be made there ({exc.strerror})") from None
        self._unnamed: Final = Path(name)
        self._file: Final = os.fdopen(number, "wb")

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as exc:
            raise self._error(exc) from exc

    def close(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._unnamed.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            raise self._error(exc) from exc

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # a full disk says so once more
            self._file.close()
        self._unnamed.unlink(missing_ok=True)

    def _error(self, exc: OSError) -> ExportError:
        return ExportError(f"{self._path} can't be written ({exc.strerror})")
