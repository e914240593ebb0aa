"""Make the wheel without compiled modules, for any Python that Velox runs on, and the source distribution.

    python -m deploy.packages FOLDER

The same sources make the same bytes: their times are SOURCE_DATE_EPOCH, or the time of the last commit. It needs the
setuptools of `make`'s .venv, and no network. Nothing is changed but FOLDER. deploy/compile.py makes the compiled wheel.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.sources import copy_sources, source_date

__all__ = ["build", "main"]

# The hooks of PEP 517, in a process of their own: setuptools changes its working folder and its process's umask counts.
_BUILD: Final = """
import os, sys
os.umask(0o022)
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0."""
    parser = argparse.ArgumentParser(prog="python -m deploy.packages", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    for path in build(options.folder.resolve(), source_date(os.environ)):
        print(path)  # noqa: T201
    return 0


def build(folder: Path, date: int) -> list[Path]:
    """Build the wheel and the source distribution with files of that date; return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for hook, pattern in (("build_wheel", "*.whl"), ("build_sdist", "*.tar.gz")):
        # A tree for each: what one build leaves behind is no source of the other.
        with tempfile.TemporaryDirectory(prefix="velox-package-") as temporary:
            tree = Path(temporary, "tree")
            tree.mkdir()
            copy_sources(tree, date)
            environment = {**os.environ, "SOURCE_DATE_EPOCH": str(date), "PYTHONHASHSEED": "0"}
            command = [sys.executable, "-c", _BUILD, hook, temporary]
            subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: S603
            (built,) = Path(temporary).glob(pattern)
            target = folder / built.name
            if hook == "build_sdist":
                _repack(built, target, date)
            else:
                target.write_bytes(built.read_bytes())
            made.append(target)
    return made


def _repack(archive: Path, target: Path, date: int) -> None:
    """Write a tar archive anew with nothing of the machine in it: setuptools keeps times, owners and names of users."""
    with (
        tarfile.open(archive) as given,
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(given.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, given.extractfile(member) if member.isfile() else None)


if __name__ == "__main__":
    sys.exit(main())
