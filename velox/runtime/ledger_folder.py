"""The folder that the ledger's process (ledger.py) shares with the workers.

Knows: which files there are, and that they are one gateway's. Does not know: who reads or writes what is in them.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from velox.settings import Settings
from velox.shm.record_ring import RECORD_BYTES, RecordRing, RingError

__all__ = ["LedgerFolder", "folder_problem"]


class LedgerFolder:
    """The rings of one gateway, in its folder. Raises RingError where they can't be had."""

    def __init__(self, path: Path, blocks: int, n_records: int) -> None:
        self.path: Final = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: Final = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise RingError(f"{path}: {exc.strerror}") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise RingError(f"{path}: another gateway uses it; each needs a folder of its own") from exc
        self._rings: Final = [RecordRing(path / f"{block}.ring", n_records) for block in range(blocks)]
        # Of a time with more workers: what is in them is not lost.
        names = {f"{block}.ring" for block in range(blocks)}
        self._others: Final = [RecordRing(each, 1) for each in sorted(path.glob("*.ring")) if each.name not in names]
        for ring in self.all:
            ring.start()
            ring.recover()

    def __repr__(self) -> str:
        return f"<LedgerFolder {self.path}, {len(self.all)} rings>"

    @classmethod
    def of(cls, settings: Settings, blocks: int) -> Self | None:
        """Return the folder of a gateway; None: it records nothing. Raises RingError, which names the setting."""
        if settings.ledger is None:
            return None
        try:
            return cls(Path(settings.ledger), blocks, settings.ledger_ring_bytes // RECORD_BYTES)
        except RingError as exc:
            raise RingError(f"VELOX_LEDGER can't be used: {exc}") from exc

    @property
    def all(self) -> list[RecordRing]:
        """Return all rings, those that nobody writes any more among them."""
        return [*self._rings, *self._others]

    def __getitem__(self, block: int) -> RecordRing:
        return self._rings[block]

    def release(self) -> None:
        """Let another gateway have the folder, as soon as all processes that were forked are gone, too."""
        os.close(self._lock)


def folder_problem(path: str) -> str:
    """Return why this user could not keep a ledger's folder there, "" if nothing is against it. Makes nothing."""
    place = Path(path).absolute()
    while not os.path.lexists(place):
        place = place.parent
    try:
        is_folder = place.is_dir()
    except PermissionError:  # a link, as systemd makes one into a folder of its own
        return f"{place} leads where this user may not look"
    if not is_folder:
        return f"{place} is no folder"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} may not be written to"
