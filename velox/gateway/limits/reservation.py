"""What one request has taken of its limits and budgets, from its admission to the end of its reply.

    begin()    an attempt is about to be sent
    spend()    a call is recorded, with what it cost
    settle()   the request is over: whoever has a reservation settles it once, and then has it no more

Knows: what has to be made good at the end, however the request ended. Does not know: which limits and budgets there are
and when they refuse (limiter.py, budgets.py), or where they are kept (shm/quotas.py, shm/budget_table.py).

    never sent               all of it goes back, as if the request had not come
    sent, whole reply        its tokens are what the upstream says; if it says nothing, the estimate stands
    an upstream's error      no tokens
    cut, or the client left  tokens of the prompt, and of what was produced
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from velox.gateway.limits.budgets import Held
from velox.gateway.limits.metering import Usage
from velox.gateway.reply.headers import DROPPED, RateHeaders
from velox.outcomes import Unit
from velox.policy.limits.estimate import NO_TOKENS, Estimate
from velox.policy.limits.quota import Quota, Slots
from velox.shm.quotas import QuotaGroup
from velox.types import Caller, Scope

__all__ = ["LONGEST_DEBT_NS", "NOT_RESERVED", "LimitSet", "QuotaLimit", "Reservation", "SlotLimit", "Spent"]

# As long as a bucket may be empty for what was used above the estimates: ten times what it gives in a minute.
LONGEST_DEBT_NS: Final = 600_000_000_000


class QuotaLimit:
    """One quota, and the rule that made it. name: as messages call it. count_granted: when it lets a request pass."""

    __slots__ = ("_behind_ns", "_looked_ns", "count_granted", "is_tokens", "most", "name", "quota", "scope", "unit")

    def __init__(self, quota: Quota, name: str, scope: Scope, unit: Unit, count_granted: Callable[[], object]) -> None:
        self.quota: Final = quota
        self.name: Final = name
        self.scope: Final = scope
        self.unit: Final = unit
        self.count_granted: Final = count_granted
        self.is_tokens: Final = unit is Unit.TOKENS
        self.most: Final = quota.rate.burst  # that a full bucket holds
        self._looked_ns = 0
        self._behind_ns = 0

    def needed(self, estimate: Estimate) -> int:
        """Return the permits that a request takes in advance.

        An estimate of tokens is capped at what a full bucket holds: a guess never refuses a request for ever. What was
        used above it is charged at the end. Only an answer that the request itself names can be too long to ever pass:
        a prompt, of which there is no count yet, has one token at least.
        """
        if not self.is_tokens:
            return 1
        total, most = estimate.total, self.most
        if total <= most:
            return total
        return total if estimate.named >= most else most

    def in_line_ns(self, n: int, now_ns: int) -> int:
        """Return how much longer a refused request must wait for those that were refused at the same moment.

        Each gets a time of its own, so that as many as come back in time pass.
        """
        if now_ns != self._looked_ns:
            self._looked_ns, self._behind_ns = now_ns, 0
        behind_ns = self._behind_ns
        self._behind_ns += n * self.quota.rate.interval_ns
        return behind_ns

    def charge(self, n: int) -> None:
        """Take `n` more that were used already, as a debt if need be, which ends after LONGEST_DEBT_NS.

        An upstream may tell nonsense, and must not lock a key with it.
        """
        rate = self.quota.rate
        room_ns = rate.burst * rate.interval_ns + LONGEST_DEBT_NS - self.quota.full_in_ns(time.monotonic_ns())
        self.quota.charge(min(n, max(0, room_ns // rate.interval_ns)))


class SlotLimit:
    """Slots, and the rule that made them. name: as messages call it. count_granted: when they let a request pass."""

    __slots__ = ("count_granted", "name", "scope", "slots")

    def __init__(self, slots: Slots, name: str, scope: Scope, count_granted: Callable[[], object]) -> None:
        self.slots: Final = slots
        self.name: Final = name
        self.scope: Final = scope
        self.count_granted: Final = count_granted


class LimitSet:
    """What counts the requests of one caller for one model. only: the one quota, if that is all.

    group: the quotas, where a request may take of all of them at once: an estimate of `most_tokens` at most, which none
    of them cuts. counts_granted: what is called then.
    headers: None where no quota counts them. is_kept: what a request that went out has taken is used up, and no more.
    granted: what a request gets that need not wait, if nothing is settled for it but when it never goes out; nothing:
    where nothing counts it. All such requests share these.
    """

    __slots__ = (
        "caller",
        "counts_granted",
        "counts_tokens",
        "granted",
        "group",
        "headers",
        "is_kept",
        "most_tokens",
        "nothing",
        "only",
        "quotas",
        "slots",
    )

    def __init__(
        self,
        caller: Caller,
        quotas: Sequence[QuotaLimit],
        slots: Sequence[SlotLimit],
        group: QuotaGroup | None = None,
    ) -> None:
        """group: all the quotas; None: each has to be asked by itself."""
        self.caller: Final = caller
        self.quotas: Final = tuple(quotas)
        self.slots: Final = tuple(slots)
        tokens = [limit.quota for limit in quotas if limit.is_tokens]
        requests = [limit.quota for limit in quotas if not limit.is_tokens]
        self.counts_tokens: Final = bool(tokens)
        self.headers: Final = RateHeaders(requests, tokens, DROPPED) if quotas else None
        self.is_kept: Final = not tokens and not slots
        self.nothing: Final = None if quotas or slots else Reservation(self)
        self.granted: Final = Reservation(self) if quotas and self.is_kept else None
        self.only: Final = self.quotas[0] if len(self.quotas) == 1 and not self.slots else None
        self.group: Final = None if self.slots else group
        self.most_tokens: Final = min((limit.most for limit in quotas if limit.is_tokens), default=0)
        self.counts_granted: Final = tuple(limit.count_granted for limit in quotas)

    def __repr__(self) -> str:
        return f"<LimitSet quotas={len(self.quotas)} slots={len(self.slots)}>"


class Spent:
    """Tokens of one request: taken in advance, and what they really were."""

    __slots__ = ("estimated", "input", "output")

    def __init__(self, estimated: int, n_input: int, n_output: int) -> None:
        self.estimated: Final = estimated
        self.input: Final = n_input
        self.output: Final = n_output

    def __repr__(self) -> str:
        return f"<Spent estimated={self.estimated} {self.input} {self.output}>"


class Reservation:
    """What was taken. estimate: its tokens, where a limit counts them. wait_ns: until it may be sent.

    held: of the budgets that count it; None: none does.
    """

    __slots__ = ("_n_begun", "_waits", "estimate", "held", "limits", "wait_ns")

    def __init__(
        self,
        limits: LimitSet,
        estimate: Estimate = NO_TOKENS,
        waits: list[int] | None = None,
        held: Held | None = None,
    ) -> None:
        self.limits: Final = limits
        self.estimate: Final = estimate
        # Of each quota, how long its permits must wait; None: none of them must.
        self._waits = waits
        self.held = held
        self._n_begun = 0
        self.wait_ns = max(waits) if waits else 0

    def __repr__(self) -> str:
        return f"<Reservation of {self.limits!r} {self.estimate} {self.held!r}>"

    def holding(self, held: Held) -> Reservation:
        """Return a reservation that holds this of budgets as well: this one, unless other requests share it."""
        if self is self.limits.granted or self is self.limits.nothing:
            return Reservation(self.limits, held=held)
        self.held = held
        return self

    def used_wait(self) -> None:
        """What had to wait is due. Before the request goes out."""
        waits, self._waits, self.wait_ns = self._waits, None, 0
        for limit, wait_ns in zip(self.limits.quotas, waits or (), strict=False):
            if wait_ns:
                limit.quota.used_wait(limit.needed(self.estimate))

    def begin(self) -> None:
        """An attempt is about to be sent. If this process dies before it is over, it counts as what is held."""
        if self.held is not None:
            self._n_begun += 1
            self.held.begin()

    def spend(self, nano: int | None, tokens: int | None, *, is_known: bool = True, least: int = 0) -> None:
        """A call has cost this; the rest as for Held.spend()."""
        if self.held is not None:
            self.held.spend(nano, tokens, is_known=is_known, least=least)

    def settle(self, usage: Usage | None, *, sent: bool) -> Spent | None:
        """Free the slots, hold nothing more of budgets, and make good what was taken in advance.

        sent: an upstream has got the request; else all of it goes back. usage: as its reply tells, or NOTHING_USED;
        None: nobody has read it. Returns the tokens where they are counted.
        """
        if self.held is not None:
            self.held.release(self._n_begun)
        limits = self.limits
        if sent and limits.is_kept:
            return None  # nothing of it comes back
        for held in limits.slots:
            held.slots.release()
        estimate = self.estimate
        if sent and estimate is NO_TOKENS:
            return None
        prompt, answer, known = self._used(usage) if sent else (0, 0, 0)
        total = estimate.prompt + estimate.answer
        if sent and limits.group is not None and self._waits is None and known <= total <= limits.most_tokens:
            # The usual end: each quota of tokens has given all of the estimate. What is not known stays taken.
            more = total - prompt - answer
            if more > 0:
                limits.group.give_back_tokens(more)
            return Spent(total, prompt, answer)
        for index, limit in enumerate(limits.quotas):
            waiting = self._waits is not None and self._waits[index] > 0
            if not limit.is_tokens:
                if not sent:
                    limit.quota.give_back(1, waiting=waiting)
                continue
            taken = limit.needed(estimate)
            # Where nothing is known, what was taken stays taken: a guess is never a debt.
            more = max(known, min(prompt + answer, taken)) - taken
            if more > 0:
                limit.charge(more)
            elif more:
                limit.quota.give_back(-more, waiting=waiting)
        return None if estimate is NO_TOKENS else Spent(total, prompt, answer)

    def _used(self, usage: Usage | None) -> tuple[int, int, int]:
        """Return the tokens of the prompt and of the answer, estimated where nothing is known; and those known."""
        prompt, answer = self.estimate.prompt, self.estimate.answer
        if usage is None:
            return prompt, answer, 0
        prompt = prompt if usage.input is None else usage.input
        answer = answer if usage.output is None else usage.output
        return prompt, answer, (usage.input or 0) + (usage.output or 0)


_NOTHING: Final = LimitSet(Caller(""), (), ()).nothing
assert _NOTHING is not None, "nothing counts it"
# Of a request that has taken nothing yet, or has settled what it took.
NOT_RESERVED: Final = _NOTHING
