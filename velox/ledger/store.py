"""What a store of records is asked for, whichever database it is.

Knows: the terms. Does not know: SQL (sqlite.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from velox.ledger.record import Call, CallRow

__all__ = [
    "DIMENSIONS",
    "PERIODS",
    "Batch",
    "CallPlace",
    "Carried",
    "Dimension",
    "Store",
    "StoreError",
    "Sums",
    "Total",
    "UsageQuery",
]

Dimension: TypeAlias = Literal["key", "team", "user", "tag", "upstream", "model", "agent", "minute", "hour", "day"]
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)
# Seconds of each period that sums are kept of.
PERIODS: Final[Mapping[str, int]] = {"minute": 60, "hour": 3600, "day": 86_400}


class StoreError(Exception):
    """A store can't be used. The message says which, why, and what to do."""


class Sums(NamedTuple):
    """Sums over calls. n_unpriced: calls without a price. n_estimated: calls some of whose tokens are a guess."""

    n: int = 0
    n_errors: int = 0
    n_estimated: int = 0
    n_unpriced: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0
    cost_nano: int = 0

    def plus(self, other: Sums) -> Sums:
        """Return both together."""
        return Sums(*map(int.__add__, self, other))


NOTHING: Final = Sums()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one ring, one after the other.

    end: the number after the last one. calls: in the order of their records. names: texts that came with them, by
    number. time_s: Unix time at which they were read. dropped: sums over all that the ring ever had no room for.
    n_damaged: records between that can't be read.
    """

    ring: str
    end: int
    calls: Sequence[CallRow]
    names: Mapping[int, str]
    time_s: int
    dropped: Sums = NOTHING
    n_damaged: int = 0


class Carried(NamedTuple):
    """Sums of calls that another gateway recorded. start_s: Unix time of the period that they are of."""

    start_s: int
    key: str
    team: str
    user: str
    model: str
    sums: Sums


class Total(NamedTuple):
    """Sums over the calls that have these values. group: one value for each dimension that was asked for."""

    group: tuple[str, ...]
    sums: Sums


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which calls are summed up: those from `since_s` until before `until_s` (Unix time), grouped `by` dimensions.

    where: values that dimensions must have. A call with several tags counts under each of them, and one without a tag
    under none. There are no sums by tag and agent together: totals() raises ValueError then.
    """

    since_s: int
    until_s: int
    by: tuple[Dimension, ...] = ()
    where: tuple[tuple[Dimension, str], ...] = ()


class CallPlace(NamedTuple):
    """Where a call stands among all: in the order of their start, then of their ids."""

    started_us: int
    process: int
    number: int
    attempt: int


class Store(Protocol):
    """Where records are kept. All raise StoreError."""

    def position(self, ring: str) -> int:
        """Return the number of the first record of a ring that is not safe."""

    def reads_from(self, ring: str, oldest: int) -> int:
        """Return the number of the first record that a part of the store may have lost; at most position().

        oldest: the first one that can still be read.
        """

    def check(self) -> list[str]:
        """Compare rows with sums of the last days, once all records that were there at the start are kept.

        What is missing in sums is added. Returns what is to be told of it.
        """

    def names(self, ring: str) -> dict[int, str]:
        """Return the texts that records of a ring refer to, by number, oldest first."""

    def renew(self, ring: str, name: str, position: int) -> None:
        """Know a ring by another name, too: all before `position` is safe, what the old name has else holds for it.

        What the old name stands for stays as it is.
        """

    def add(self, batch: Batch) -> None:
        """Keep records: all of them are safe when this returns. A batch may come again, whole or in part."""

    def carry(self, upstream: str, rows: Iterable[Carried]) -> None:
        """Have the sums of an upstream that no call goes to be these, and no others."""

    def totals(self, question: UsageQuery, after: Sequence[str] = (), most: int | None = None) -> list[Total]:
        """Return sums, in the order of their groups: those behind the group `after`, so many.

        Without a limit all. Raises ValueError where no group can be like that, and for tag with agent.
        """

    def calls(self, question: UsageQuery, after: CallPlace | None = None, most: int | None = None) -> Iterator[Call]:
        """Return calls in the order of their start, as far back as they are kept one by one.

        after: those behind this one. most: so many are enough; more may come.
        """

    def newest_s(self) -> int | None:
        """Return when the last day ends of which there are calls: Unix time; None: there are none."""

    def prune(self, now_s: int) -> None:
        """Drop what is older than it is to be kept. now_s: as whoever calls is sure of it; what is gone is gone."""

    def close(self) -> None:
        """Let go of all files and connections."""
