"""The licences of what Velox needs at run time, as the installed packages say them.

Knows: fields of package metadata, files of licences. Does not know: which packages those are (lock.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final

from packaging.markers import Marker

from deploy.release.lock import Locked

__all__ = ["Licence", "LicenceError", "licence_of", "licences_page"]

_FILE: Final = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)", re.IGNORECASE)
# What classifiers of packages without an SPDX expression say.
_SPDX: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


class LicenceError(Exception):
    """The licence of a package can't be found."""


@dataclass(frozen=True, slots=True)
class Licence:
    """What a package says. expression: SPDX, or a name; texts: its files, by name."""

    expression: str
    texts: tuple[tuple[str, str], ...]


def licence_of(package: Locked) -> Licence | None:
    """Return the licence of a package, None if the lock has it for other versions of Python only.

    Raises LicenceError for one that is not installed in the version of the lock, or has no licence.
    """
    try:
        found = distribution(package.name)
    except PackageNotFoundError:
        if package.marker and not Marker(package.marker).evaluate():
            return None
        raise LicenceError(f"{package.name} is not installed: run `make run` or `make check` first") from None
    if found.version != package.version:
        raise LicenceError(f"{package.name} {found.version} is installed, the lock has {package.version}")
    texts = tuple(
        (str(path), path.read_text("utf-8"))
        for path in sorted(found.files or [])
        if _FILE.search(path.name) and ".dist-info" in str(path)
    )
    expression = _expression(found)
    if not texts or not expression:
        raise LicenceError(f"{package.name} {package.version} has no licence in its metadata, or no file of it")
    return Licence(expression, texts)


def _expression(found: Distribution) -> str:
    """Return what the metadata says: the SPDX expression, else the classifiers, else the old field, if it is short."""
    given = found.metadata.get("License-Expression", "")
    classifiers = found.metadata.get_all("Classifier") or []
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    old = found.metadata.get("License", "").strip()
    if given or not (named or old):
        return given or _by_text(found)
    if len(named) > 1 or old not in _SPDX.values():
        return " OR ".join(sorted(_SPDX.get(each, each) for each in named)) or old
    return old


def _by_text(found: Distribution) -> str:
    """Return the licence whose words its file has, "" if they are none of these."""
    words = {"Permission is hereby granted, free of charge": "MIT", "Apache License": "Apache-2.0"}
    texts = [path.read_text("utf-8") for path in found.files or [] if "LICENSE" in path.name.upper()]
    return next((name for begin, name in words.items() if any(begin in text for text in texts)), "")


def licences_page(packages: Iterable[Locked]) -> str:
    """Return all licences as one text, by package. Raises LicenceError."""
    lines = ["Licences of the packages that Velox needs at run time, extras included (requirements.lock).", ""]
    for each in packages:
        licence = licence_of(each)
        if licence is None:
            lines += [f"{each.name} {each.version}: only where {each.marker}", ""]
            continue
        lines += ["=" * 100, f"{each.name} {each.version}: {licence.expression}", "=" * 100, ""]
        for name, text in licence.texts:
            lines += [f"--- {name}", "", text.strip(), ""]
    return "\n".join(lines)
