"""Whether a file has changed since it was looked at last.

Knows: what the file system says of a file. Does not know: what is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

__all__ = ["FileState", "file_state"]

FileState: TypeAlias = tuple[int, ...] | str


def file_state(path: str) -> FileState:
    """Return what differs when a file has changed; the last is the later of its two times, in nanoseconds."""
    try:
        found = Path(path).stat()
    except OSError as exc:
        return exc.strerror or "gone"
    # The time of the last change of the inode can't be set back, unlike that of the content.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
