"""How this Velox was built: plain, or with the modules of the usual request compiled (deploy/compile.py)."""

from __future__ import annotations

import sys
from typing import Final, Literal

from velox import __version__, memo

__all__ = ["BUILD", "DESCRIPTION", "PYTHON", "UNSEEN_BY_PROFILES", "VERSION"]

_IS_COMPILED: Final = not (memo.__file__ or "").endswith(".py")
BUILD: Final[Literal["compiled", "plain"]] = "compiled" if _IS_COMPILED else "plain"
# As people are shown it.
VERSION: Final = f"{__version__} (compiled)" if _IS_COMPILED else __version__
PYTHON: Final = ".".join(map(str, sys.version_info[:3]))
# What runs here, in full: `velox --version`, the index of the admin listener.
DESCRIPTION: Final = f"{__version__} ({BUILD}, Python {PYTHON})"
# What samples of Python's frames can't show. Empty: nothing.
UNSEEN_BY_PROFILES: Final = "compiled functions are not seen, their time is their callers'" if _IS_COMPILED else ""
