"""What a queue answers to an offer.

Knows: the answers. Does not know: why one is given (fair_queue.py), or how a client is told.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

__all__ = ["ADMITTED", "Outcome", "Verdict"]

T = TypeVar("T", bound=Hashable)


class Outcome(enum.IntEnum):
    """What became of an offer. FULL: VELOX_QUEUE_DEPTH; FULL_BYTES: VELOX_QUEUE_BYTES."""

    ADMITTED = 0
    FULL = 1
    FULL_BYTES = 2
    TOO_LATE = 3


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """The answer to an offer.

    wait_ns: when refused: about how long it would have waited; 0: not known. allowed_ns: when TOO_LATE: how long it
    might have. pushed_out: those that had to go for it; they no longer wait (as if they had found the queue FULL).
    """

    outcome: Outcome
    wait_ns: int = 0
    allowed_ns: int = 0
    pushed_out: tuple[T, ...] = ()


# The answer to most offers.
ADMITTED: Final[Verdict[Any]] = Verdict(Outcome.ADMITTED)
