"""One reading of the configuration, in a process of its own: 10,000 routes take seconds, and the supervisor has none.

Knows: how what was found comes back. Does not know: when one is due, or what follows from it (reload.py).

It holds keys of upstreams: it comes back through a memfd, which is in no file system.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from velox.observe.oplog import crash_text, operations_logger
from velox.runtime.config_board import MOST_BYTES
from velox.runtime.config_pieces import ConfigPieces, packed, pieces, unpacked
from velox.settings import Settings, SettingsError
from velox.settings.key_files import key_files, key_files_of_bad
from velox.settings.live import changes, taken
from velox.types import KeyEntry

__all__ = ["ConfigSource", "Found", "Paper", "read"]

# It takes what workers leave of the processors, and goes first where memory is short.
_NICENESS: Final = 5
_FIRST_TO_GO: Final = "1000"


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the settings come from.

    load: reads them, as at the start; raises SettingsError. began_ns: when that was, in the system's time.
    """

    load: Callable[[], Settings]
    began_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a reading found. parts: of what is live, if anything of it is other than before. keys: all clients' keys.

    changes, summary, restart: as in settings/live.py. problems: why it can't be used. files: where upstreams' keys are.
    """

    files: frozenset[str]
    parts: ConfigPieces | None = None
    keys: tuple[KeyEntry, ...] = ()
    changes: tuple[str, ...] = ()
    summary: str = ""
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Paper:
    """What a reading writes on, and the supervisor reads when it has left. One for a gateway's life."""

    def __init__(self) -> None:
        self._fd: Final = os.memfd_create("velox-reading", os.MFD_CLOEXEC)

    def write(self, found: Found) -> None:
        """Write what was found in the place of all before."""
        with open(self._fd, "wb", closefd=False) as file:
            file.seek(0)
            file.truncate()
            file.write(packed(found))

    def take(self) -> Found:
        """Return what was written, and leave nothing. For a reading that has ended well."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            found: Found = unpacked(file.read())
        self.clear()
        return found

    def clear(self) -> None:
        """Leave nothing."""
        os.ftruncate(self._fd, 0)


def read(source: ConfigSource, running: Settings, paper: Paper) -> int:
    """Read the settings, hold them against those that run, write down what was found; return the exit code."""
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    try:
        paper.write(found_in(source.load, running))
    except Exception as exc:
        operations_logger(sys.stderr).error("reading the configuration: %s", crash_text(exc))
        return 1
    return 0


def found_in(load: Callable[[], Settings], running: Settings) -> Found:
    """Read the settings, and hold them against those that run."""
    try:
        settings = load()
    except SettingsError as exc:
        files = frozenset[str]() if running.config_file is None else key_files_of_bad(running.config_file)
        return Found(files, problems=tuple(map(str, exc.problems)))
    differs = changes(running, settings)
    after = taken(running, settings)
    parts = pieces(after) if differs.live else None
    if parts is not None and parts.n_bytes > MOST_BYTES:
        problem = f"upstreams and routes take {parts.n_bytes} bytes; expected at most {MOST_BYTES}"
        return Found(key_files(settings), problems=(problem,))
    return Found(key_files(settings), parts, after.api_keys, differs.live, differs.summary, differs.restart)
