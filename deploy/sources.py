"""Copy what Velox's packages are made of into a folder of its own, the same on every machine.

Knows: which files belong to a package, their modes and times. Does not know: how a package is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PACKAGES", "ROOT", "copy_sources", "source_date"]

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("velox", "velox_migrate", "velox_sim")
_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
# The oldest date that a ZIP archive, and so a wheel, can hold: 1980-01-01.
_OLDEST: Final = 315_532_800


def source_date(environ: Mapping[str, str]) -> int:
    """Return the time that built files get, in seconds since 1970.

    It is SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), else that of the last commit,
    else, outside a clone, 1980-01-01. Raises SystemExit for a SOURCE_DATE_EPOCH that is no number.
    """
    given = environ.get("SOURCE_DATE_EPOCH", "")
    if not given and (ROOT / ".git").exists() and shutil.which("git"):
        # safe.directory: a clone that belongs to somebody else is only read here.
        command = ["git", "-c", f"safe.directory={ROOT}", "log", "-1", "--format=%ct"]
        given = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    if given and not given.isdecimal():
        raise SystemExit(f"SOURCE_DATE_EPOCH={given!r}: expected seconds since 1970")
    return max(int(given), _OLDEST) if given else _OLDEST


def copy_sources(folder: Path, date: int) -> None:
    """Copy the sources into an empty folder: no compiled file, modes as in a fresh clone, all times `date`."""
    for name in _FILES:
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (date, date))
