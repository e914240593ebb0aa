"""Whether the files of keys say what the database says.

Knows: how both are compared, a part at a time. Does not know: when (the ledger's process), or what is done about it.

Both are read at one moment: the files in which all changes up to a number are written, and the accounts as they are
after the change of this number. So what differs was never written down, whoever is to blame: a change that was made in
the database by hand, a database that was restored, or a fault of Velox.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from velox.accounts.key_lines import KeyState
from velox.types import KeyEntry

__all__ = ["Differences", "SnapshotCheck"]

_PART: Final = 250  # some 5 ms


class Differences(NamedTuple):
    """An entry of each key. left: only in the files. missing: only in the database. changed: with other rights."""

    left: Sequence[KeyEntry]
    missing: Sequence[KeyEntry]
    changed: Sequence[KeyEntry]


class SnapshotCheck:
    """Of one moment. in_files, in_database: what they say of each key, once; None: of one that is said elsewhere."""

    def __init__(self, in_files: Iterator[KeyState | None], in_database: Iterator[KeyState]) -> None:
        self._in_files: Final = in_files
        self._in_database: Final = in_database
        # Of the files, those that are not compared yet, by id.
        self._left: Final[dict[bytes, tuple[KeyEntry, ...]]] = {}
        self._is_read = False
        self._missing: Final[list[KeyEntry]] = []
        self._changed: Final[list[KeyEntry]] = []

    def part(self) -> Differences | None:
        """Look at some keys; after the last ones return what differs. Raises SnapshotError, DecodeError of msgspec."""
        if not self._is_read:
            states = list(islice(self._in_files, _PART))
            self._left.update(state for state in states if state is not None and state.entries)
            self._is_read = len(states) < _PART
            return None
        found = list(islice(self._in_database, _PART))
        for state in found:
            self._compare(state)
        if len(found) == _PART:
            return None
        return Differences([entries[0] for entries in self._left.values()], self._missing, self._changed)

    def _compare(self, state: KeyState) -> None:
        if not state.entries:
            return  # if the files have it, it is left
        before = self._left.pop(state.id, None)
        if before is None:
            self._missing.append(state.entries[0])
        elif before != state.entries:
            self._changed.append(state.entries[0])
