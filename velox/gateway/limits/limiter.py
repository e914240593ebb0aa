"""The limits of a request: which quotas and slots count it, and whether all of them have room.

    limits()   those of a caller and a model
    admit()    all are looked at first, then all are taken, mostly in one pass; a refusal takes nothing from any

Knows: the rules, which of them count a request, what a refusal says. Does not know: where a quota is kept and who else
takes from it (shm/quotas.py), what a request may cost (policy/limits/estimate.py), or what becomes of what it took
(reservation.py).

Between look and taking another worker may be faster. What was taken by then is given back, and the answer is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.access.plan import RequestPlan
from velox.gateway.limits.lease_wait import NotYet, unavailable
from velox.gateway.limits.metering import NOTHING_USED
from velox.gateway.limits.reservation import LimitSet, QuotaLimit, Reservation, SlotLimit
from velox.memo import Memo
from velox.outcomes import Decision, Unit
from velox.policy.limits.estimate import NO_TOKENS, Estimate, Estimator
from velox.policy.limits.limit_rules import LimitRule, called, rules_of
from velox.policy.limits.quota import NEVER, NOT_YET, UNAVAILABLE, Quota, Slots
from velox.policy.limits.token_bucket import BucketRate
from velox.policy.patterns import matches
from velox.shm.quotas import QuotaGroup
from velox.types import BodyFields, Caller, FormFields, Scope

__all__ = ["DecisionCounter", "Limiter", "QuotaTable"]

# Each holds a few hundred bytes. A client can make up models, but no callers.
_KEPT_SETS: Final = 4096
_KEPT_QUOTAS: Final = 4096
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
# When a running request ends nobody knows.
_SLOT_RETRY_S: Final = 1.0
_OF_KEY: Final = frozenset({Scope.KEY, Scope.KEY_MODEL})
_OF_MODEL: Final = frozenset({Scope.MODEL, Scope.KEY_MODEL})
_OF_SEVERAL: Final = frozenset({Scope.TEAM, Scope.USER})
_WHOSE: Final = {
    Scope.GATEWAY: "the gateway's",
    Scope.KEY: "this key's",
    Scope.MODEL: "this model's",
    Scope.KEY_MODEL: "this key's, for this model:",
    Scope.TEAM: "this team's",
    Scope.USER: "this user's",
}

# Returns what is called each time that a limit says this of a request.
DecisionCounter: TypeAlias = Callable[[Scope, Unit, Decision], Callable[[], object]]


class QuotaTable(Protocol):
    """Where quotas and slots are kept."""

    def tag(self, *parts: bytes) -> int:
        """Return the name of a row."""

    def quota(self, tag: int, rate: BucketRate, *, open_ended: bool = False, others: int = 0) -> Quota:
        """Return the quota of that name, which tag() has just returned. open_ended: a client's words went into it.

        others: the name of what the caller's models have together that are beyond its share of rows; 0: no share.
        """

    def group(self, requests: Sequence[Quota], tokens: Sequence[Quota]) -> QuotaGroup | None:
        """Return quotas of this table that are taken from at once; None: each has to be asked by itself."""

    def slots(self, tag: int, limit: int, *, open_ended: bool = False, others: int = 0) -> Slots:
        """Return the slots of that name. The rest as for quota()."""


class Limiter:
    """The limits of all callers, in one worker. rules: as the settings have them. max_wait_s: for a quota's turn."""

    def __init__(
        self, rules: Sequence[LimitRule], table: QuotaTable, max_wait_s: float, counter: DecisionCounter
    ) -> None:
        self._rules: tuple[LimitRule, ...] = ()
        self._table: Final = table
        self._max_wait_s: Final = max_wait_s
        self._counter: Final = counter
        self._sets: Final[Memo[tuple[bytes, str | None], LimitSet]] = Memo(_KEPT_SETS)
        # Callers share those of the gateway. Of models each caller has its own: rows that it claims are of its share.
        # One of each name: a rate that comes back after another one is a new quota, which finds what that has used.
        self._quotas: Final[Memo[tuple[int, int], QuotaLimit]] = Memo(_KEPT_QUOTAS)
        self._names_models = False
        self.replace(rules)

    def __repr__(self) -> str:
        return f"<Limiter rules={len(self._rules)} sets={len(self._sets)}>"

    def replace(self, rules: Sequence[LimitRule]) -> None:
        """Hold requests to these from now on; what was taken is given back where it was taken.

        A rule finds what was used under its name: after a change of its rates, too, as far as an empty bucket goes.
        """
        if self._rules == tuple(rules):
            return
        self._rules = tuple(rules)
        # Most gateways name no model in their limits: then one set does for all.
        self._names_models = any(rule.models or rule.scope in _OF_MODEL for rule in rules)
        self._sets.clear()

    def limits(self, caller: Caller, model: str | None) -> LimitSet:
        """Return what counts a caller's request. model: None: none can be read."""
        key = (caller.id, model if self._names_models else None)
        found = self._sets.get(key)
        # After a change of the keys there are callers of the same id with other rates: theirs count from now on.
        if found is not None and found.caller is caller:
            return found
        return self._sets.put(key, self._make(caller, key[1]))

    def reserve(
        self,
        plan: RequestPlan,
        fields: BodyFields,
        body: bytes | bytearray | None,
        estimator: Estimator,
        now_ns: int,
    ) -> Reservation | NotYet:
        """Take what a request needs, of all that count it. Raises as admit() does."""
        caller = plan.caller
        found = None if self._names_models else self._sets.get((caller.id, None))
        limits = found if found is not None and found.caller is caller else self.limits(caller, fields.model)
        if limits.counts_tokens and body and plan.names_model:
            # Of a form its texts: the bytes of pictures and sounds tell nothing of tokens.
            n_bytes = fields.n_text if isinstance(fields, FormFields) else len(body)
            return self.admit(limits, estimator.estimate(plan.endpoint, n_bytes, fields), now_ns)
        granted, only = limits.granted, limits.only
        if granted is None or only is None:
            return self.admit(limits, NO_TOKENS, now_ns)
        # The usual one, a limit of requests alone: without the calls of admit().
        answer = only.quota.take(1, now_ns)
        if answer:
            return self._reserve_single(limits, only, NO_TOKENS, answer, now_ns)
        only.count_granted()
        return granted

    def count_refused(self, caller: Caller, now_ns: int) -> None:
        """Take a request that is refused before it is one: nothing of it comes back. Raises VeloxError(RATE_LIMITED).

        Where Redis would have to be asked first, it is not counted.
        """
        taken = self.admit(self.limits(caller, None), NO_TOKENS, now_ns)
        if isinstance(taken, Reservation):
            taken.used_wait()
            taken.settle(NOTHING_USED, sent=True)

    def admit(self, limits: LimitSet, estimate: Estimate, now_ns: int) -> Reservation | NotYet:
        """Take what a request needs, of all that count it. Raises VeloxError(RATE_LIMITED), and has taken nothing.

        NotYet: nothing was taken, Redis must be asked first. Raises VeloxError(LIMITS_UNAVAILABLE) where it can't be.
        estimate: its tokens; NO_TOKENS for a request that takes none, which quotas for tokens then do not hold up.
        """
        if limits.nothing is not None:
            return limits.nothing
        only = limits.only
        if only is not None:  # most callers have one limit: to look at it first would cost as much as taking
            n = only.needed(estimate) if only.is_tokens else 1
            answer = only.quota.take(n, now_ns) if n else 0
            return self._reserve_single(limits, only, estimate, answer, now_ns)
        group, total = limits.group, estimate.prompt + estimate.answer
        if group is not None and total <= limits.most_tokens and group.take(total, now_ns):
            for count in limits.counts_granted:
                count()
            return Reservation(limits, estimate) if limits.granted is None else limits.granted
        not_yet = self._look(limits, estimate, now_ns)
        if not_yet is not None:
            return not_yet
        waits = self._take(limits, estimate, now_ns)
        if isinstance(waits, NotYet):
            return waits
        for limit, wait_ns in zip(limits.quotas, waits, strict=True):
            if wait_ns:
                self._counter(limit.scope, limit.unit, Decision.WAITED)()
            else:
                limit.count_granted()
        for held in limits.slots:
            held.count_granted()
        return Reservation(limits, estimate, waits if any(waits) else None)

    def _reserve_single(
        self, limits: LimitSet, only: QuotaLimit, estimate: Estimate, answer: int, now_ns: int
    ) -> Reservation | NotYet:
        """Return what the answer of the only quota means. As admit()."""
        if answer < 0:
            return self._refused([(only, answer)], estimate, now_ns)
        if answer:
            self._counter(only.scope, only.unit, Decision.WAITED)()
            return Reservation(limits, estimate, [answer])
        only.count_granted()
        return Reservation(limits, estimate) if limits.granted is None else limits.granted

    def _look(self, limits: LimitSet, estimate: Estimate, now_ns: int) -> NotYet | None:
        """Raise VeloxError if one of them has no room; say if one must be asked for first."""
        answers: list[tuple[QuotaLimit, int]] = []
        is_refused = False
        for limit in limits.quotas:
            n = limit.needed(estimate)
            answer = limit.quota.ask(n, now_ns) if n else 0
            is_refused |= answer < 0
            answers.append((limit, answer))
        if is_refused:
            return self._refused(answers, estimate, now_ns)
        for held in limits.slots:
            if held.slots.in_use() >= held.slots.limit:
                raise self._full(held)
        return None

    def _take(self, limits: LimitSet, estimate: Estimate, now_ns: int) -> list[int] | NotYet:
        """Take from all of them; return how long each must be waited for. Raises VeloxError, and has taken nothing."""
        n_slots = 0
        waits: list[int] = []
        taken: list[int] | NotYet = waits
        try:
            for held in limits.slots:
                if not held.slots.take():
                    raise self._full(held)
                n_slots += 1
            for limit in limits.quotas:
                n = limit.needed(estimate)
                answer = limit.quota.take(n, now_ns) if n else 0
                if answer < 0:
                    taken = self._refused([(limit, answer)], estimate, now_ns)
                    break
                waits.append(answer)
        except BaseException:  # a refusal, or a bug: nothing stays taken
            _give_back(limits, n_slots, waits, estimate)
            raise
        if taken is not waits:
            _give_back(limits, n_slots, waits, estimate)
        return taken

    # -- refusals -----------------------------------------------------------------------------------

    def _refused(self, asked: Sequence[tuple[QuotaLimit, int]], estimate: Estimate, now_ns: int) -> NotYet:
        """Raise the 429, whose time is when all that were asked have room again, without a wait.

        Where that is not known before others are asked: return what must be asked for.
        """
        answers = [pair for pair in asked if pair[1] != NOT_YET]
        if len(answers) < len(asked) and all(answer >= 0 for _, answer in answers):
            wants = [(limit.quota, limit.needed(estimate)) for limit, answer in asked if answer == NOT_YET]
            return NotYet(wants)
        # A wait that may be waited for is shorter than each that may not: the longest is among the refusals.
        limit, answer = min(answers, key=lambda pair: pair[1])
        self._counter(limit.scope, limit.unit, Decision.REFUSED)()
        n = limit.needed(estimate)
        if answer == NEVER:
            raise _never(limit, n)
        if answer == UNAVAILABLE:
            raise unavailable()
        longest_ns = limit.in_line_ns(n, now_ns) - answer
        what = f"{n} tokens" if limit.is_tokens else "a request"
        message = (
            f"{_WHOSE[limit.scope]} {'token' if limit.is_tokens else 'request'} limit is reached ({limit.name}); "
            f"{what} will pass in {-(-longest_ns // _NS_PER_MS)} ms"
        )
        raise VeloxError(Reason.RATE_LIMITED, message, retry_after_s=longest_ns / _NS_PER_S)

    def _full(self, held: SlotLimit) -> VeloxError:
        self._counter(held.scope, Unit.CONCURRENCY, Decision.REFUSED)()
        message = (
            f"{_WHOSE[held.scope]} limit of {held.slots.limit} requests at a time is reached ({held.name}); "
            "retry when one has ended"
        )
        return VeloxError(Reason.RATE_LIMITED, message, retry_after_s=_SLOT_RETRY_S)

    # -- which limits -------------------------------------------------------------------------------

    def _make(self, caller: Caller, model: str | None) -> LimitSet:
        quotas: list[QuotaLimit] = []
        slots: list[SlotLimit] = []
        for rule in rules_of(caller, self._rules):
            if rule.models and (model is None or not any(matches(pattern, model) for pattern in rule.models)):
                continue
            rates = rule.rates
            if rates.rpm:
                quotas.append(self._quota_limit(rule, "rpm", rates.rpm, rates.burst, caller, model))
            if rates.tpm:
                quotas.append(self._quota_limit(rule, "tpm", rates.tpm, rates.tpm_burst, caller, model))
            if rates.concurrency:
                others = self._others(rule, "concurrency", caller)
                tag = self._tag(rule, "concurrency", caller, model)
                held = self._table.slots(tag, rates.concurrency, open_ended=rule.is_open_ended, others=others)
                granted = self._counter(rule.scope, Unit.CONCURRENCY, Decision.GRANTED)
                slots.append(SlotLimit(held, called(rule, "concurrency"), rule.scope, granted))
        requests = [each.quota for each in quotas if not each.is_tokens]
        tokens = [each.quota for each in quotas if each.is_tokens]
        return LimitSet(caller, quotas, slots, self._table.group(requests, tokens))

    def _quota_limit(
        self, rule: LimitRule, rate: str, per_minute: int, burst: int, caller: Caller, model: str | None
    ) -> QuotaLimit:
        others = self._others(rule, rate, caller)
        tag = self._tag(rule, rate, caller, model)
        bucket = BucketRate.from_rpm(per_minute, burst, self._max_wait_s)
        known, name = self._quotas.get((tag, others)), called(rule, rate)
        if known is not None and known.quota.rate == bucket and known.name == name:
            return known
        quota = self._table.quota(tag, bucket, open_ended=rule.is_open_ended, others=others)
        unit = Unit.TOKENS if rate == "tpm" else Unit.REQUESTS
        granted = self._counter(rule.scope, unit, Decision.GRANTED)
        return self._quotas.put((tag, others), QuotaLimit(quota, name, rule.scope, unit, granted))

    def _others(self, rule: LimitRule, rate: str, caller: Caller) -> int:
        """Return the name for a caller's models beyond its share of rows; 0 where it can't make up any, or is alone."""
        if not rule.is_open_ended or not caller.id:
            return 0
        return self._table.tag(rate.encode(), rule.name.encode(), caller.id, b"", b"others")

    def _tag(self, rule: LimitRule, rate: str, caller: Caller, model: str | None) -> int:
        """Return the name of a row. Without the rate itself: a key whose rate changes keeps what it has used."""
        who = caller.id if rule.scope in _OF_KEY else b""
        if rule.scope in _OF_SEVERAL:
            who = (caller.terms.team if rule.scope is Scope.TEAM else caller.terms.user).encode()
        # A surrogate that JSON let through: it has no UTF-8, but must have a quota.
        what = (model or "").encode("utf-8", "surrogatepass") if rule.scope in _OF_MODEL else b""
        return self._table.tag(rate.encode(), rule.name.encode(), who, what)


def _give_back(limits: LimitSet, n_slots: int, waits: Sequence[int], estimate: Estimate) -> None:
    """Give back what was taken before one of them refused. n_slots: of the slots. waits: of the quotas."""
    for held in limits.slots[:n_slots]:
        held.slots.release()
    for limit, wait_ns in zip(limits.quotas, waits, strict=False):
        limit.quota.give_back(limit.needed(estimate), waiting=wait_ns > 0)


def _never(limit: QuotaLimit, n: int) -> VeloxError:
    message = (
        f"this request may need {n} tokens and {_WHOSE[limit.scope]} limit holds {limit.quota.rate.burst} "
        f"({limit.name}), so it can never pass; ask for fewer (max_tokens), or send less"
    )
    error = VeloxError(Reason.RATE_LIMITED, message)
    error.should_retry = False
    return error
