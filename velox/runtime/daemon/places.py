"""Where a daemon has its pid file and its logs.

Knows: the settings that say so, and the places where each system has such files by default. Does not know: what is in
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from velox.settings.loading import given_texts

__all__ = ["Places", "make_folder", "places_of"]

_FOLDER_MODE: Final = 0o755
_NAMES: Final = ("VELOX_PID_FILE", "VELOX_LOG_FILE", "VELOX_ACCESS_LOG_FILE")


class Places(NamedTuple):
    """Absolute paths. access_log_file: of its own; "": the access log is in the log file."""

    pid_file: str
    log_file: str
    access_log_file: str


def places_of(environ: Mapping[str, str], overrides: Mapping[str, str], uid: int | None = None) -> Places:
    """Return those of a daemon that is started with these settings. uid: of its user; None: this process's.

    By default root's are in /run/velox and /var/log/velox, others' where the XDG base directories say: $XDG_RUNTIME_DIR
    (in the state's folder without it) and $XDG_STATE_HOME (~/.local/state), in a folder `velox`.
    """
    given = given_texts(environ, overrides, _NAMES)
    if (os.getuid() if uid is None else uid) == 0:
        run, state = Path("/run"), Path("/var/log")
    else:
        home = environ.get("HOME") or "/"
        state = Path(environ.get("XDG_STATE_HOME") or f"{home}/.local/state")
        run = Path(environ.get("XDG_RUNTIME_DIR") or state)
    pid_file = given.get("VELOX_PID_FILE") or str(run / "velox/velox.pid")
    log_file = given.get("VELOX_LOG_FILE") or str(state / "velox/velox.log")
    access = given.get("VELOX_ACCESS_LOG_FILE", "")
    return Places(*(path and str(Path(path).absolute()) for path in (pid_file, log_file, access)))


def make_folder(path: str) -> None:
    """Make the folder of a file, with all above it. Raises OSError."""
    Path(path).parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
