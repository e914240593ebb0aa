"""Takes records out of the rings and has them kept: the work of the process `ledger`.

Knows: how far each ring has been read, and what is done about records that can't be. Does not know: files of the store
(sqlite.py), or when it is its turn (runtime/ledger/ledger_process.py).
"""

from __future__ import annotations

import datetime
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from velox.ledger.record import CallRow, NamePart, NameParts, Rest, process_of, read_row
from velox.ledger.store import NOTHING, Batch, Store, StoreError, Sums
from velox.shm.record_ring import RecordRing, RingError

__all__ = ["MOST_OF_BATCH", "Collector"]

# Records of one transaction.
MOST_OF_BATCH: Final = 5000
# A record that is counted but can't be read is given this long to appear before it is taken for damaged; so is the rest
# of a name.
_DAMAGED_AFTER_S: Final = 1.0


class Collector:
    """The reader of all rings of a gateway. clock: Unix time in seconds. beat: called after each ring.

    tell: is given what is lost, and what was found again. checks: rows are compared with sums, which takes its time.
    """

    def __init__(
        self,
        rings: Sequence[RecordRing],
        store: Store,
        clock: Callable[[], float],
        beat: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda text: None,
        *,
        checks: bool = True,
    ) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self._beat: Final = beat
        self._tell: Final = tell
        self._rings: Final = [_RingReader(ring, store, tell) for ring in rings]
        # Where each ring ended at the start; None: all before is kept, and rows were compared with sums.
        self._ends: list[int] | None = [ring.head for ring in rings] if checks else None

    def collect(self) -> int:
        """Have a batch of each ring kept; return how many records that were. Raises StoreError."""
        n = 0
        for each in self._rings:
            n += self._collect(each)
            self._beat()
        ends = self._ends
        if ends is not None and all(each.position >= end for each, end in zip(self._rings, ends, strict=True)):
            self._ends = None
            for text in self._store.check():
                self._tell(text)
            self._beat()
        return n

    def names(self) -> Iterator[tuple[str, int, dict[int, str]]]:
        """Yield the name of each ring, the number of the first record that is not safe, and the names before that."""
        for each in self._rings:
            yield each.ring.name, each.position, each.names

    @property
    def n_waiting(self) -> int:
        """How many records are not safe yet."""
        return sum(each.ring.head - each.position for each in self._rings)

    def _collect(self, reader: _RingReader) -> int:
        batch = reader.read(self._clock())
        if batch is None:
            return 0
        began = reader.position
        self._store.add(batch)
        reader.is_safe(batch)
        return batch.end - began


class _RingReader:
    """One ring, and how far it has been read."""

    def __init__(self, ring: RecordRing, store: Store, tell: Callable[[str], None]) -> None:
        self.ring: Final = ring
        self._tell: Final = tell
        left = ring.left  # by writers that are dead: no record of theirs is on its way
        n_found = ring.take_found()
        if n_found:
            tell(f"ring {ring.name}: its header was lost; {n_found} records were found, and are compared with the rows")
        self.position = self._first(store)
        self._last_us = 0  # when the call began that was read last
        self._names: Final = NameParts(store.names(ring.name))
        self._process: int | None = None  # whose call was read last
        self._first_name = 0  # of those that were read since that call; 0: there was none
        # Once the records before the second number are read, no other refers to a name of a number below the first.
        self._forgets: tuple[int, int] | None = None
        self._dropped = NOTHING
        # Records before this number that can't be read are given time since then.
        self._waits_before, self._waits_since_s = left or 0, -math.inf

    def _first(self, store: Store) -> int:
        """Return the first record to be read. What was let go, and the store does not have, is read once more."""
        ring = self.ring
        safe, tail = _safe_position(ring, store), ring.tail
        if not safe:
            # A store that is new, or another one than before, knows nothing of what the ring has let go.
            if tail:
                self._tell(f"ring {ring.name}: the database has none of its records before number {tail}")
            return tail
        ring.free(safe)
        doubted = store.reads_from(ring.name, ring.oldest)
        if doubted >= tail:
            return doubted
        first = max(doubted, ring.oldest)
        if safe < first:
            ring.add_lost(first - safe)
            self._tell(
                f"ring {ring.name}: {first - safe} records are lost: the database had them, and has them no more"
            )
        self._tell(
            f"ring {ring.name}: the database has lost what it had from record {doubted} on; {tail - first} records are"
            " read again"
        )
        return first

    def read(self, now_s: float) -> Batch | None:
        """Return what has come; None: nothing."""
        ring, number = self.ring, self.position
        calls: list[CallRow] = []
        names: dict[int, str] = {}
        n_damaged = 0
        begun_at: int | None = None  # where a name or a call begins of which only the first records were read
        rest: Rest | None = None
        for body in ring.read(number, MOST_OF_BATCH):
            found = None
            if body is None:
                if not self._is_damaged(number, now_s):
                    break
                n_damaged += 1
                begun_at = None
            else:
                found = read_row(number, body, self._names, rest)
                if isinstance(found, NamePart):
                    text = self._names.add(found)
                    if text is not None:
                        names[found.number] = text
                        self._first_name = min(found.number, self._first_name or found.number)
                        begun_at = None
                    elif found.part == 0:
                        begun_at = number
                elif isinstance(found, Rest):
                    begun_at = number
                else:
                    begun_at = None
                    if found is not None:
                        calls.append(found)
                        if found[2] != self._process:
                            self._see_writer(found[2])
                        self._first_name = 0
            rest = found if isinstance(found, Rest) else None
            number += 1
        # A reader after this one begins where the batch ends: it would have but the last records of what has begun. At
        # the end of the ring they may never come, for a writer can be killed between them.
        if begun_at is not None and (number < ring.head or not self._is_damaged(begun_at, now_s)):
            number = begun_at
        if self._forgets is not None and number >= self._forgets[1]:
            self._names.forget_before(self._forgets[0])
            self._forgets = None
        dropped = _dropped(ring)
        if number == self.position and dropped == self._dropped:
            return None
        return Batch(ring.name, number, calls, names, int(now_s), dropped, n_damaged)

    def _see_writer(self, process: int) -> None:
        """Take note that another process writes now: the names of the one before can soon be forgotten.

        It writes its own anew, before its first call. All calls that the one before had open were recorded when that
        was reaped, unless the ring had no room: then they stay open, and their names are needed. The store keeps the
        names: its files of days may lose what they had, and then records are read again.
        """
        before, self._process = self._process, process
        if before is None or not self._first_name:
            return
        if all(process_of(body) == process for body in self.ring.open_bodies()):
            self._forgets = self._first_name, self.ring.head

    @property
    def names(self) -> dict[int, str]:
        """The names that were read, by number."""
        return self._names.texts

    def is_safe(self, batch: Batch) -> None:
        """Note that a batch was kept, and tell what of it is lost."""
        if batch.calls:
            times = [row[1] for row in batch.calls]
            first_us, last_us = min(times), max(times)
        else:
            first_us = last_us = self._last_us
        if batch.n_damaged:
            self.ring.add_lost(batch.n_damaged)
            since = _time(self._last_us or first_us)
            self._tell(
                f"ring {batch.ring}: {batch.n_damaged} of the records {self.position} to {batch.end - 1} are damaged,"
                f" and are left out; calls around them began from {since} to {_time(last_us)}"
            )
        self._last_us = last_us
        self.position, self._dropped = batch.end, batch.dropped
        self.ring.free(batch.end)

    def _is_damaged(self, number: int, now_s: float) -> bool:
        """Tell whether a record that can't be read, or the rest of a name, was waited for long enough."""
        if number >= self._waits_before:
            self._waits_before, self._waits_since_s = self.ring.head, now_s
        return abs(now_s - self._waits_since_s) >= _DAMAGED_AFTER_S


def _safe_position(ring: RecordRing, store: Store) -> int:
    """Return the number of the first record that the store does not have. Raises StoreError.

    If it has more than writers had left before this start, the file of the ring is older than the store: after a power
    failure, or out of a backup. Then it has all that they left, and what has the numbers above that now is new. Under
    another name it is not taken for what is there: not by the files of days either, which have positions of their own.
    """
    left, position = ring.left, store.position(ring.name)
    end = ring.head if left is None else left
    try:
        if position > end:
            identity = secrets.randbits(64)
            store.renew(ring.name, ring.name_with(identity), end)
            ring.rename(identity)
            return end
        if left is not None:
            ring.compared()
    except RingError as exc:
        raise StoreError(str(exc)) from exc
    return position


def _time(time_us: int) -> str:
    """Return a time for people; 0: none is known."""
    time = datetime.datetime.fromtimestamp(time_us // 1_000_000, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time_us else "an unknown time"


def _dropped(ring: RecordRing) -> Sums:
    """Return the sums over calls that the ring had no room for, as CallWriter adds them up."""
    n, n_input, n_output, cost_nano, n_unpriced = ring.dropped[:5]
    return Sums(n=n, n_unpriced=n_unpriced, input=n_input, output=n_output, cost_nano=cost_nano)
