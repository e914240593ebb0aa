"""The folder that the ledger's process (ledger_process.py) shares with the workers.

Knows: which files there are, and that they are one gateway's. Does not know: who reads or writes what is in them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from velox.settings import Settings
from velox.shm.record_ring import RECORD_BYTES, RecordRing, RingError

__all__ = ["LedgerFolder", "folder_problem"]


class LedgerFolder:
    """The rings of one gateway, in its folder or in one of their own. Raises RingError where they can't be had.

    rings: where they are. handed: returns the lock of a folder that the version before has had, -1: it had none. Then
    its processes write and read these rings still.
    """

    def __init__(
        self,
        path: Path,
        blocks: int,
        n_records: int,
        rings: Path | None = None,
        handed: Callable[[str], int] = lambda _folder: -1,
    ) -> None:
        self.path: Final = path
        self.rings: Final = rings or path
        folders = list(dict.fromkeys((path, self.rings)))
        found = {str(each): handed(str(each)) for each in folders}
        self._locks: Final = {
            str(each): found[str(each)] if found[str(each)] >= 0 else _locked(each) for each in folders
        }
        in_use = {each for folder in folders if found[str(folder)] >= 0 for each in folder.glob("*.ring")}
        files = [folders[-1] / f"{block}.ring" for block in range(blocks)]
        self._rings: Final = [RecordRing(each, n_records) for each in files]
        # Of a time with more workers, or before the rings had a folder of their own: what is in them is not lost.
        others = [each for folder in folders for each in sorted(folder.glob("*.ring")) if each not in files]
        self._others: Final = [RecordRing(each, 1) for each in others]
        for file, ring in zip((*files, *others), self.all, strict=True):
            if file not in in_use:
                ring.start()
                ring.recover()

    def __repr__(self) -> str:
        return f"<LedgerFolder {self.path}, {len(self.all)} rings>"

    @classmethod
    def of(cls, settings: Settings, blocks: int, handed: Callable[[str], int] = lambda _folder: -1) -> Self | None:
        """Return the folder of a gateway; None: it records nothing. Raises RingError, which names the setting.

        handed: as for the folder.
        """
        if settings.ledger is None:
            return None
        rings = None if settings.ledger_rings is None else Path(settings.ledger_rings)
        names = "VELOX_LEDGER" if rings is None else "VELOX_LEDGER, or VELOX_LEDGER_RINGS,"
        try:
            return cls(Path(settings.ledger), blocks, settings.ledger_ring_bytes // RECORD_BYTES, rings, handed)
        except RingError as exc:
            raise RingError(f"{names} can't be used: {exc}") from exc

    @property
    def all(self) -> list[RecordRing]:
        """Return all rings, those that nobody writes any more among them."""
        return [*self._rings, *self._others]

    def __getitem__(self, block: int) -> RecordRing:
        return self._rings[block]

    @property
    def locks(self) -> Mapping[str, int]:
        """The locks by folder, to hand them over."""
        return self._locks

    def release(self) -> None:
        """Let another gateway have the folder, as soon as all processes that were forked are gone, too."""
        for lock in self._locks.values():
            os.close(lock)


def _locked(folder: Path) -> int:
    """Make a folder if it is not there, and keep other gateways out of it. Raises RingError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise RingError(f"{folder}: {exc.strerror}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(lock)
        raise RingError(f"{folder}: another gateway uses it; each needs a folder of its own") from exc
    return lock


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
