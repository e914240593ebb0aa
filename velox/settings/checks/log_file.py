"""Whether a log's file can be written where it is to be.

Knows: files and folders. Does not know: what is logged (velox.observe).
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["log_file_problem"]


def log_file_problem(path: str) -> str:
    """Return what is expected of a log's file that can't be opened, "" where it can. Makes nothing."""
    place = Path(path).absolute()
    if place.is_dir():
        return "expected a file, not a folder"
    if os.path.lexists(place):
        return "" if os.access(place, os.W_OK) else "expected a file that may be written to"
    if not place.parent.is_dir():
        return f"expected a file in a folder that is there: {place.parent} is none"
    return "" if os.access(place.parent, os.W_OK | os.X_OK) else "expected a file in a folder that may be written to"
