"""What a lock file says of each package: its version, the hashes of its files, and who asks for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Locked", "read_lock"]

_PIN: Final = re.compile(r"([a-z0-9.-]+)==(\S+?)(?: ; (.*?))?(?: \\)?")
_PROJECT: Final = "velox-gateway (pyproject.toml)"


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of a lock. marker: where it is installed, "" for everywhere. asked_by: packages, "" is Velox itself."""

    name: str
    version: str
    marker: str
    sha256: tuple[str, ...]
    asked_by: tuple[str, ...]


def read_lock(text: str) -> list[Locked]:
    """Return the packages of a lock that `uv pip compile` wrote. Raises ValueError for what is none of its lines."""
    found = []
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        first, *rest = entry.splitlines()
        pin = _PIN.fullmatch(first)
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        if pin is None or not hashes:
            raise ValueError(f"no package with a version and hashes: {first!r}")
        comments = [line.strip().lstrip("#").strip().removeprefix("via").strip() for line in rest if "#" in line]
        asked = ["" if each == _PROJECT else each for each in comments if each and not each.startswith("-c ")]
        found.append(Locked(pin[1], pin[2], pin[3] or "", tuple(hashes), tuple(asked)))
    return found
