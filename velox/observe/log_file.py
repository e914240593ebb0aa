"""The file of the operations log: a stream that follows its path, so that the file can be rotated.

All processes of a gateway have it open, most of them by a fork. Each looks before a line whether the path still leads
to its file: no signal has to reach them all. There are few lines.

Knows: the path. Does not know: what a line says (oplog.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from velox.observe.log_output import LogStream, open_log

__all__ = ["LogFile"]


class LogFile(LogStream):
    """A LogStream of a file, which is made if need be. Raises OSError."""

    def __init__(self, path: str) -> None:
        super().__init__(open_log(path))
        self.path: Final = path

    def write(self, text: str) -> int:
        """Write whole lines to the file that is there now, or drop them."""
        self.follow()
        return super().write(text)

    def follow(self) -> None:
        """Open the file anew if another one is at its path, or none. Where that can't be, the one before is used."""
        own = os.fstat(self.fileno())
        try:
            found = Path(self.path).stat()
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return
        except OSError:
            pass  # removed, or renamed
        try:
            opened = open_log(self.path)
        except OSError:
            return
        self.flush()
        os.dup2(opened, self.fileno(), inheritable=False)
        os.close(opened)
