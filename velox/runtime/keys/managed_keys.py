"""How the supervisor follows the keys that are made while the gateway runs, as the ledger's process writes them down.

Knows: when a file has changed, and what of it is new. Does not know: how a line is written (velox.accounts), or what
other keys there are (credentials.py).

A change costs as much as it is: only what was appended is read. A whole snapshot is read a part at a time, and what it
says is compared with what is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from velox.accounts.key_lines import KeyLines, KeyState
from velox.accounts.snapshot import (
    MOST_SNAPSHOT_BYTES,
    KeyFiles,
    SnapshotError,
    changes_begin,
    changes_in,
    changes_path,
    snapshot_path,
)
from velox.runtime.file_state import FileState, file_state
from velox.runtime.keys.corrections import COMPARE_S
from velox.settings.yaml.tree import read_regular_file
from velox.types import KeyEntry

__all__ = ["ChangedKey", "ManagedKeys"]

_LOOK_S: Final = 0.25
# Keys that are looked at in one turn: some 3 ms.
_PART: Final = 250
_CHANGES_BYTES: Final = 64 * 1024


class ChangedKey(NamedTuple):
    """What held for a key, and what holds now: an entry for each of its digests."""

    before: tuple[KeyEntry, ...]
    now: tuple[KeyEntry, ...]


class _Comparison:
    """Of what was read with the files as they were at one moment. whole: what they say of each key."""

    def __init__(self, whole: Iterator[KeyState | None]) -> None:
        self._whole: Final = whole
        self._seen: Final[set[bytes]] = set()  # ids of keys that need not be looked at any more

    def skip(self, states: Iterable[KeyState]) -> None:
        """Look no more at these: they have changed since."""
        self._seen.update(state.id for state in states)

    def part(self) -> tuple[list[KeyState], bool]:
        """Return what the files say of some keys; and whether these are the last. Raises SnapshotError."""
        looked_at = list(islice(self._whole, _PART))
        found = [state for state in looked_at if state is not None and state.id not in self._seen]
        self._seen.update(state.id for state in found)
        return found, len(looked_at) < _PART

    def beyond(self, ids: Iterable[bytes]) -> list[bytes]:
        """Return those that the files did not have."""
        return [id_ for id_ in ids if id_ not in self._seen]


class ManagedKeys:
    """Of one gateway, in its supervisor. known: those that settings were read with."""

    def __init__(self, folder: str, known: tuple[KeyEntry, ...], logger: logging.Logger) -> None:
        self._path: Final = snapshot_path(folder)
        self._changes_path: Final = changes_path(folder)
        self._logger: Final = logger
        self._lines: Final = KeyLines()
        self._due_s = 0.0
        self._problem = ""
        self._state: FileState | None = None
        self._whole: Iterator[KeyState | None] | None = None  # of a snapshot, as far as it is not looked at yet
        self._seen: set[bytes] = set()  # ids of keys in it
        self._head = b""
        self._changes_state: FileState | None = None
        self._broken: FileState | None = None  # what it was when a line could not be read
        self._changes_at = 0  # what is read of the changes; 0: nothing, or they belong to another snapshot
        self._has_more = False
        self._compare_s = 0.0
        self._comparison: _Comparison | None = None
        self._compared: tuple[FileState | None, FileState | None] = None, None  # what the files were at the last time
        self._by_id: Final[dict[bytes, tuple[KeyEntry, ...]]] = {}
        for entry in known:
            self._by_id[entry.id] = (*self._by_id.get(entry.id, ()), entry)

    def __repr__(self) -> str:
        return f"<ManagedKeys {self._path} {len(self._by_id)}>"

    @property
    def is_busy(self) -> bool:
        """True while there is more to look at."""
        return self._whole is not None or self._has_more

    def entries(self) -> Iterator[KeyEntry]:
        """Yield the entries of all keys, also those that have expired."""
        return (entry for entries in self._by_id.values() for entry in entries)

    def look(self, now_s: float) -> list[ChangedKey]:
        """Return keys of which something else holds now: some of them, if they are many. now_s: monotonic."""
        if self._whole is None and now_s >= self._due_s:
            self._due_s = now_s + _LOOK_S
            self._look_at_snapshot()
        if self._whole is not None:
            return self._part(self._whole)
        return self._look_at_changes()

    def compare(self, now_s: float) -> list[ChangedKey]:
        """Return keys of which something else was read than the files say: some of them, if they are many.

        Every COMPARE_S seconds, if anything was read since the last time. now_s: monotonic.
        """
        if self._comparison is None:
            if now_s < self._compare_s or self.is_busy:
                return []
            self._compare_s = now_s + COMPARE_S
            files = self._state, self._changes_state
            if files != self._compared:
                self._compared, self._comparison = files, self._begin()
            return []
        try:
            states, is_over = self._comparison.part()
        except SnapshotError:  # look() has said so, if it was there then
            self._comparison = None
            return []
        if is_over:
            states += [KeyState(id_, ()) for id_ in self._comparison.beyond(self._by_id)]
            self._comparison = None
        return self._changed(states)

    def _begin(self) -> _Comparison | None:
        """Read the files; None: look() has more to read first, or says that they can't be read."""
        try:
            found = self._read()
        except (OSError, ValueError):
            return None
        if found.head != self._head or found.changes_at > self._changes_at:
            return None
        self._changes_at = found.changes_at  # it may have become shorter
        return _Comparison(found.states(self._lines))

    def _read(self) -> KeyFiles:
        changes = self._read_changes()  # first
        return KeyFiles(changes, read_regular_file(self._path, MOST_SNAPSHOT_BYTES))

    def _look_at_snapshot(self) -> None:
        # It is replaced as a whole: it need not settle.
        state = file_state(self._path)
        if state == self._state:
            return
        try:
            found = self._read()
        except FileNotFoundError:
            return  # none was ever made: it is written in a moment
        except (OSError, ValueError) as exc:
            self._tell(str(exc))
            return
        self._state, self._problem, self._comparison = state, "", None
        self._whole, self._head, self._seen = found.states(self._lines), found.head, set()
        self._changes_state, self._changes_at = None, found.changes_at

    def _read_changes(self) -> bytes:
        try:
            return read_regular_file(self._changes_path, MOST_SNAPSHOT_BYTES)
        except FileNotFoundError:
            return b""

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._logger.error(
                "managed keys can't be read, they stay as they were: %(path)s: %(error)s",
                {"path": self._path, "error": problem},
            )

    def _part(self, whole: Iterator[KeyState | None]) -> list[ChangedKey]:
        try:
            looked_at = list(islice(whole, _PART))
        except SnapshotError as exc:  # it is whole, so somebody else wrote it
            self._tell(str(exc))
            self._whole, self._head = None, b""
            return []
        states = [state for state in looked_at if state is not None]
        self._seen.update(state.id for state in states)
        found = self._changed(states)
        if len(looked_at) < _PART:
            self._whole = None
            gone = self._by_id.keys() - self._seen
            found += self._changed([KeyState(id_, ()) for id_ in gone])
            self._seen = set()
        return found

    def _look_at_changes(self) -> list[ChangedKey]:
        self._has_more = False
        state = file_state(self._changes_path)
        if state == self._changes_state or not self._head:
            return []
        try:
            with Path(self._changes_path).open("rb") as file:
                if not self._changes_at:
                    self._changes_at = changes_begin(file.read(len(self._head) + 1), self._head)
                    if not self._changes_at:
                        self._changes_state = state
                        return []
                file.seek(self._changes_at)
                content = file.read(_CHANGES_BYTES)
                if b"\n" not in content:  # a line may be long, or not be whole
                    content += file.read()
            lines, n_read = changes_in(content, 0)
            states = [self._lines.read(line) for line in lines]
        except (OSError, msgspec.DecodeError) as exc:
            self._tell(str(exc))
            return []
        found = self._changed(states)
        if self._comparison is not None:
            self._comparison.skip(states)
        if not lines:
            self._changes_state = state  # all is read, or the last line is not whole yet
            if b"\n" in content and state != self._broken:
                self._logger.error(
                    "managed keys: a line is damaged, all is read again: %(path)s", {"path": self._changes_path}
                )
                self._state, self._broken = None, state
        self._changes_at += n_read
        self._has_more = bool(lines)
        return found

    def _changed(self, states: list[KeyState]) -> list[ChangedKey]:
        found = []
        for id_, entries in states:
            before = self._by_id.get(id_, ())
            if before == entries:
                continue
            if entries:
                self._by_id[id_] = entries
            else:
                del self._by_id[id_]
            found.append(ChangedKey(before, entries))
        return found
