"""What budgets have spent, in a file: for a start at which the ledger can't be read.

    budgets.snapshot   what each budget has spent in its open window; how far the rings' records are in that; the names
                       that later records refer to. The ledger's process writes it every two seconds, if anything has
                       changed, and at its end
    budgets.known      digests of the rules of which it was read what was spent before: a rule among them that has no
                       budget in the snapshot has spent nothing. Who reads the ledger writes it

A start without the ledger takes the snapshot, and adds the records that the rings have had since. A worker counts a
call first, and then records it: so the rings are looked at before the budgets. A call that ends between the two looks
counts twice. That is too much rather than too little, until the ledger is read.

Knows: the files, and which records a snapshot has. Does not know: when it is needed (ledger/budget_backfill.py), or
what a rule counts (policy/budgets/rules.py).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from velox.accounts.snapshot import replace_file
from velox.ledger.collector import Collector
from velox.ledger.record import Call, NamePart, NameParts, read_body
from velox.ledger.store import Store
from velox.settings.yaml.tree import read_regular_file
from velox.shm.budget_table import BudgetMemory
from velox.shm.record_ring import RecordRing

__all__ = [
    "BudgetSnapshot",
    "SavedBudget",
    "Snapshot",
    "SnapshotError",
    "has_snapshot",
    "known_rules",
    "learn_rules",
    "read_snapshot",
]

_SNAPSHOT: Final = "budgets.snapshot"
_KNOWN: Final = "budgets.known"
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 30
_EVERY_S: Final = 2.0
# Writing may take one part of so many of the time, however many budgets there are.
_PART: Final = 20
_MOST_RECORDS: Final = 4096


class SnapshotError(ValueError):
    """A file is no snapshot. The message says why."""


class SavedBudget(msgspec.Struct, array_like=True):
    """One budget. name: the row's, in hexadecimal. rule: BudgetMemory.rule(). label: its text.

    is_open_ended: its row is in the half of what clients make up. number: of the window in which that was spent.
    """

    name: str
    rule: int
    is_open_ended: bool
    number: int
    spent: int
    label: str


class _Ring(msgspec.Struct, array_like=True):
    """One ring. position: of the first record that is not in what was spent. n_dropped: records that found no room.

    read: from there on names must be read, beside these.
    """

    position: int
    n_dropped: int
    read: int
    names: dict[int, str]


class _Content(msgspec.Struct):
    """What follows the head. lacking: digests of rules whose budgets lack what was spent before."""

    time_s: int
    budgets: list[SavedBudget]
    rings: dict[str, _Ring]
    lacking: list[int]


class _Head(msgspec.Struct):
    version: int
    sha256: str


class Snapshot:
    """One as it was read. time_s: Unix time at which it was written."""

    def __init__(self, content: _Content) -> None:
        self._content: Final = content
        self.time_s: Final = content.time_s
        self.budgets: Final[Sequence[SavedBudget]] = content.budgets
        self.lacking: Final = frozenset(content.lacking)

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self.budgets)} budgets>"

    @classmethod
    def nothing(cls) -> Self:
        """Return what stands for one that is not there."""
        return cls(_Content(0, [], {}, []))

    @classmethod
    def of_store(cls, store: Store, rings: Iterable[RecordRing]) -> Self:
        """Return one of no budgets, whose later records are those that a store does not have. Raises StoreError."""
        found = {}
        for ring in rings:
            position = store.position(ring.name)
            found[ring.name] = _Ring(position, ring.n_dropped, position, store.names(ring.name))
        return cls(_Content(0, [], found, []))

    def later_calls(self, ring: RecordRing) -> Iterator[Call | None]:
        """Yield the calls of a ring that are not in the snapshot; None: some of them are there no more."""
        kept = self._content.rings.get(ring.name)
        oldest = max(0, ring.head - ring.n_records)
        first, read, known = (0, 0, None) if kept is None else (kept.position, kept.read, kept.names)
        if min(first, read) < oldest or ring.n_dropped != (0 if kept is None else kept.n_dropped):
            yield None
        names, number = NameParts(known), max(min(read, first), oldest)
        while number < ring.head:
            for body in ring.read(number, _MOST_RECORDS):
                found = None if body is None else read_body(body, names)
                if isinstance(found, NamePart):
                    names.add(found)
                elif number >= first and body is None:
                    yield None
                elif number >= first and isinstance(found, Call):
                    yield found
                number += 1


def read_snapshot(folder: Path) -> Snapshot:
    """Return the snapshot in a ledger's folder. Raises SnapshotError, OSError: there is none."""
    head, _, rest = read_regular_file(str(folder / _SNAPSHOT), _MOST_BYTES).partition(b"\n")
    try:
        found = msgspec.json.decode(head, type=_Head)
        if found.version != _VERSION:
            raise SnapshotError(f"it is of version {found.version}, this Velox reads {_VERSION}")
        if hashlib.sha256(rest).hexdigest() != found.sha256:
            raise SnapshotError("it is not whole")
        return Snapshot(msgspec.json.decode(rest, type=_Content))
    except msgspec.MsgspecError as exc:
        raise SnapshotError("it is no snapshot of budgets") from exc


def has_snapshot(folder: Path) -> bool:
    """Say whether there is one in a ledger's folder."""
    return (folder / _SNAPSHOT).exists()


def known_rules(folder: Path) -> frozenset[int]:
    """Return the digests of the rules of which it was read what was spent before."""
    try:
        head, _, rest = read_regular_file(str(folder / _KNOWN), _MOST_BYTES).partition(b"\n")
        if head != hashlib.sha256(rest).hexdigest().encode():
            return frozenset()
        return frozenset(msgspec.json.decode(rest, type=list[int]))
    except (OSError, msgspec.MsgspecError):
        return frozenset()


def learn_rules(folder: Path, rules: Iterable[int], *, is_start: bool) -> None:
    """Add rules to those. is_start: there are no others. Raises OSError."""
    before = frozenset[int]() if is_start else known_rules(folder)
    after = before.union(rules)
    if is_start or after != before:
        rest = msgspec.json.encode(sorted(after))
        replace_file(folder / _KNOWN, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)


class BudgetSnapshot:
    """Writes the snapshot of a gateway, in its ledger's process."""

    def __init__(self, folder: Path, memory: BudgetMemory, rings: Sequence[RecordRing]) -> None:
        self._path: Final = folder / _SNAPSHOT
        self._memory: Final = memory
        self._rings: Final = rings
        self._known: dict[str, _Ring] = {}
        self._written = b""
        self._exists = self._path.exists()
        self._due_s = 0.0
        try:
            self._known = read_snapshot(folder)._content.rings
        except (OSError, SnapshotError):
            pass

    def __repr__(self) -> str:
        return f"<BudgetSnapshot {self._path}>"

    def turn(self, now_s: float, time_s: float, collector: Collector | None) -> None:
        """Save, if it is time. now_s: monotonic. Raises OSError.

        collector: who reads the rings; None: nobody can now, and the names are those of before.
        """
        if now_s < self._due_s:
            return
        began_s = time.monotonic()
        try:
            self.save(time_s, collector)
        finally:
            self._due_s = now_s + max(_EVERY_S, _PART * (time.monotonic() - began_s))

    def save(self, time_s: float, collector: Collector | None) -> None:
        """Write what has changed. Raises OSError."""
        positions = {ring.name: (ring.head, ring.n_dropped) for ring in self._rings}
        memory, lacking = self._memory, self._memory.lacking()
        if lacking is None:
            return  # the one that is there knows more
        if collector is not None:
            for name, read, names in collector.names():
                self._known[name] = _Ring(0, 0, read, names)
        rings = {}
        for name, (position, n_dropped) in positions.items():
            known = self._known.get(name)
            read, names = (0, {}) if known is None else (known.read, known.names)
            rings[name] = _Ring(position, n_dropped, read, names)
        content = _Content(0, list(_saved(memory, lacking)), rings, sorted(lacking))
        digest = hashlib.sha256(msgspec.json.encode(content)).digest()
        if digest == self._written or not (content.budgets or self._exists):
            return
        content.time_s = int(time_s)
        rest = msgspec.json.encode(content)
        head = msgspec.json.encode(_Head(_VERSION, hashlib.sha256(rest).hexdigest()))
        replace_file(self._path, head + b"\n" + rest)
        self._written, self._exists = digest, True


def _saved(memory: BudgetMemory, lacking: frozenset[int]) -> Iterator[SavedBudget]:
    for row in memory.used_rows():
        number, rule, label = memory.window_of(row)[1], memory.rule(row), memory.text(row)
        spent = memory.taken(row, number)[0] if number else 0
        if spent and label and rule not in lacking:
            is_open_ended = row >= memory.rows // 2
            yield SavedBudget(memory.name(row).hex(), rule, is_open_ended, number, spent, label.decode())
