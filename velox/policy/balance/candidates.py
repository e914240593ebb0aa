"""What a choice among members is made from, and what every way to choose has in common.

Knows: the facts a choice may use, and what a balancer is asked and told. Does not know: why a member has its weight
(configuration, health, slow start, scraped load), where requests in flight are counted, a clock, or chance.

A group's members are numbered from 0, in the order of the configuration. Where none may be chosen the caller decides
(panic: use all); it then passes other weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

__all__ = ["Balancer", "Candidates", "LearnsNothing", "usable"]


@dataclass(slots=True)
class Candidates:
    """The members of a group now, each sequence by member. The lists may be changed in place between two choices.

    weights: configured weight times all that lowers it (slow start, a cache that is full); 0 or less: not to be chosen.
    inflight: requests of all workers that have begun and not ended. extra: load on top of it that came another way
    (scraped.py), in requests; empty: none. is_even: all weights are the same, and more than 0; False where that is not
    known.
    """

    weights: Sequence[float]
    inflight: Sequence[int]
    extra: Sequence[float] = ()
    is_even: bool = False

    def __post_init__(self) -> None:
        if not self.extra:
            self.extra = (0.0,) * len(self.weights)


class Balancer(Protocol):
    """A way to choose. One per group and worker; it is never awaited and never raises.

    learns: whether it is to be told of attempts; one that is not is only asked to choose.
    """

    learns: ClassVar[bool]

    def pick(
        self,
        candidates: Candidates,
        now_s: float,
        random: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
    ) -> int | None:
        """Choose a member; None where none may be.

        now_s: monotonic. random: in [0, 1). key: what requests are kept together by; empty: nothing. tried: members
        that this request must not go to (again).
        """

    def began(self, member: int, now_s: float) -> None:
        """An attempt goes to `member`. Its end is told by exactly one of answered(), failed() and gave_up()."""

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        """The first byte of a good reply came after `waited_s`. Nothing is told of how the reply ends."""

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt ended without one after `waited_s`, by the member's fault."""

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt was ended from this side before one came, after `waited_s`: the client left, a hedge lost."""


class LearnsNothing:
    """For balancers to which no attempt tells anything."""

    __slots__ = ()

    learns: ClassVar[bool] = False

    def began(self, member: int, now_s: float) -> None:
        """Nothing to learn."""

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        """Nothing to learn."""

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        """Nothing to learn."""

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        """Nothing to learn."""


def usable(weights: Sequence[float], tried: Collection[int]) -> Sequence[float]:
    """Return the weights with those of `tried` set to 0."""
    if not tried:
        return weights
    return [0.0 if member in tried else weight for member, weight in enumerate(weights)]
