"""What a limit can be asked: a quota gives permits (requests or model tokens) over time, slots are held for a while.

Knows: the questions, and what the answers mean. Does not know: where the state is kept (velox.shm.quotas), or what a
permit is for. The arithmetic is in velox.policy.limits.token_bucket.

An answer is one integer, because several are needed per request: what is at least 0 is a wait in
nanoseconds, what is below 0 is a refusal (-ns: when it could pass without a wait, if nobody else came), and NEVER is
the refusal of an amount that the bucket could not give even when it is full.

Of a quota that several gateways share there are two answers more. NOT_YET: what is here is used up, and somebody else
must be asked; ask again when told. UNAVAILABLE: that one can't be asked, and nothing may pass meanwhile.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.policy.limits.token_bucket import NEVER, BucketRate

__all__ = ["NEVER", "NOT_YET", "UNAVAILABLE", "Quota", "Slots"]

# Below each answer that is a time.
NOT_YET: Final = NEVER + 1
UNAVAILABLE: Final = NEVER + 2


class Quota(Protocol):
    """One bucket of permits. n: how many, all or none. now_ns: monotonic nanoseconds."""

    @property
    def rate(self) -> BucketRate:
        """How fast it fills, how much it holds, and how long a permit may be waited for."""

    def ask(self, n: int, now_ns: int) -> int:
        """Return what take() would; nothing is taken."""

    def take(self, n: int, now_ns: int) -> int:
        """Take `n` permits: >= 0: taken, and usable after so many ns; < 0: refused, nothing is taken."""

    def used_wait(self, n: int) -> None:
        """Note that `n` permits that had to wait are due and about to be used. Before the request goes out."""

    def give_back(self, n: int, *, waiting: bool) -> None:
        """Give back `n` permits that were not used. waiting: they had to wait, and used_wait() was not called."""

    def charge(self, n: int) -> None:
        """Take `n` permits that were used already, if need be as a debt: usage was above its estimate."""

    def remaining(self, now_ns: int) -> int:
        """Return how many permits could be taken without a wait."""

    def full_in_ns(self, now_ns: int) -> int:
        """Return the time until the bucket is full again."""

    def outlook(self, now_ns: int) -> tuple[int, int]:
        """Return both: remaining() and full_in_ns(). Asked for every reply."""


class Slots(Protocol):
    """A number of things that may go on at a time."""

    @property
    def limit(self) -> int:
        """How many."""

    def take(self) -> bool:
        """Take one; False when all are taken."""

    def release(self) -> None:
        """Give one back that this worker has taken."""

    def in_use(self) -> int:
        """Return how many are taken, by all workers."""
