"""The budgets of a request: which count it, what it holds of them while it runs, and what it spent at its end.

    BudgetGate.hold()    with the request's limits: all budgets that count it have room, or 429 and nothing is held
    Held.begin()         a call is about to be sent
    Held.spend()         it is recorded: what it counts in each budget, by what it cost
    Held.release()       the request is over

What is held: the prompt, as estimated by its bytes, and an answer as long as most of this caller's from this model are,
at the dearest price of all upstreams that may get the request. A budget that is `strict` holds the longest answer that
there may be. So budgets are exceeded by no more than what the calls that run at one time cost above their holds.

Knows: amounts, and what a refusal says. Does not know: where a budget is kept (shm/budget_table.py), what windows are
(policy/budgets/budget.py), or when a call begins and ends (calls.py, which asks).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.limits.billed_units import AskedUnits
from velox.gateway.limits.lease_wait import NotYet
from velox.memo import Memo
from velox.policy.budgets.budget import period_text, usd_text
from velox.policy.budgets.rules import BudgetRule, has_budgets, own_rules, spender_of, subjects
from velox.policy.limits.estimate import NO_TOKENS, Estimate, longest_answer, n_answers
from velox.policy.limits.output_guess import AnswerLengths, OutputGuess
from velox.prices.price import Price
from velox.protocol.usage.token_usage import TokenUsage, Units
from velox.shm.budget_table import BudgetTable, Lack, SharedBudget
from velox.types import BodyFields, Caller, Endpoint, FormFields

__all__ = ["BOUNDED", "BudgetGate", "CallPrices", "Destinations", "Held", "Unread", "bound_of"]

# Endpoints whose request tells little of the tokens that are paid for.
BOUNDED: Final = frozenset({Endpoint.IMAGES, Endpoint.AUDIO})

# The price of a call, by the name of its upstream, the model that it was asked for, model and tier that its reply
# tells, and Unix time in seconds.
CallPrices: TypeAlias = Callable[[str, str, str, str, int], Price | None]

# Which budgets refuse requests while nobody knows what was spent of them before: VELOX_BUDGETS_UNREAD.
Unread: TypeAlias = Literal["strict", "refuse", "allow"]

_KEPT_PLANS: Final = 4096
_TEXT_BYTES: Final = 4  # of a token
# OpenAI counts ten tokens for a second of sound, of which the leanest format that it takes has some 2,000 bytes; its
# largest picture has 6,240, and speech 20 a second, in which 15 letters are spoken.
# https://platform.openai.com/docs/guides/image-generation#cost-and-latency, https://platform.openai.com/docs/pricing
_FILE_BYTES: Final = 200
_SECOND_BYTES: Final = 2000
_PICTURE_TOKENS: Final = 6_240
_SPOKEN_TOKENS: Final = 2  # of a byte of text
# No amount is larger: a thousand million dollars.
_MOST: Final = 10**18
_WHOSE: Final = {
    "gateway": "the gateway's",
    "key": "this key's",
    "team": "this team's",
    "user": "this user's",
    "tag": "a tag's",
    "model": "this model's",
}
# Whose amounts a caller may see.
_OWN: Final = frozenset({"key", "user", "team"})
# When a running request ends nobody knows.
_HELD_RETRY_S: Final = 1.0
# What could not be read is tried again after a second, then after more and more.
_LACKING_RETRY_S: Final = 5.0
# A strict budget can't be passed without Redis: its requests wait longer for it than others.
_STRICT_PATIENCE_S: Final = 2.0


# Of a request: returns the name of each upstream that it may go to, with the model that it is asked for there; called
# with the model that the client named.
Destinations: TypeAlias = Callable[[str | None], Iterable[tuple[str, str]]]


class _MayCost:
    """What a call may cost. nano: None: an upstream that it may go to, `unpriced`, has no price for it, or nothing is
    known of its tokens."""

    __slots__ = ("nano", "unpriced")

    def __init__(self, nano: int | None, unpriced: str = "") -> None:
        self.nano: Final = nano
        self.unpriced: Final = unpriced


class _Plan:
    """What a caller's calls to one model count in: found once, for all of them. lengths: of their answers."""

    __slots__ = ("budgets", "caller", "lengths")

    def __init__(self, caller: Caller, budgets: tuple[SharedBudget, ...], lengths: AnswerLengths) -> None:
        self.caller: Final = caller
        self.budgets: Final = budgets
        self.lengths: Final = lengths


class Held:
    """What one request holds of all budgets that count it. lengths: of answers such as its own."""

    __slots__ = ("_amounts", "_budgets", "lengths")

    def __init__(self, budgets: tuple[SharedBudget, ...], amounts: list[int], lengths: AnswerLengths) -> None:
        """amounts: of each budget, one behind the other, the number of the window, and the amount."""
        self._budgets: Final = budgets
        self._amounts: Final = amounts
        self.lengths: Final = lengths

    def __repr__(self) -> str:
        return f"<Held {self._amounts}>"

    def begin(self) -> None:
        """A call is about to be sent."""
        held, at = self._amounts, 0
        for each in self._budgets:
            each.begin(held[at], held[at + 1])
            at += 2

    def spend(self, nano: int | None, tokens: int | None, *, is_known: bool = True, least: int = 0) -> None:
        """Count a call in each budget. nano, tokens: what it cost; None: it is not known, and counts as held.

        is_known: False: its reply did not tell, and it is an estimate: then a budget that is strict counts what it
        holds at least, as the call may have cost as much. least: what of a cost that is not known is: what it cost
        beside that.
        """
        held, at = self._amounts, 0
        for each in self._budgets:
            cost = tokens if each.is_tokens else nano
            amount = held[at + 1] if cost is None else min(cost, _MOST)
            if nano is None and not each.is_tokens:
                amount = max(amount, min(least, _MOST))
            if not is_known and each.is_strict:
                amount = max(amount, held[at + 1])
            each.spend(held[at], amount)
            at += 2

    def release(self, n_begun: int) -> None:
        """Hold nothing more. n_begun: how often it was begun."""
        _release(self._budgets, self._amounts, n_begun)


class BudgetGate:
    """The budgets of all callers, in one worker. rules: as the settings have them. clock: Unix time in seconds.

    default_answer: tokens of an answer of which nothing is known. unread: which budgets refuse while nobody knows what
    was spent of them before the start.
    """

    def __init__(
        self,
        rules: Sequence[BudgetRule],
        table: BudgetTable,
        prices: CallPrices,
        clock: Callable[[], float],
        default_answer: int = 1024,
        unread: Unread = "strict",
    ) -> None:
        self._rules: tuple[BudgetRule, ...] = tuple(rules)
        self._table: Final = table
        self._clock: Final = clock
        self._default_answer: Final = default_answer
        self._unread: Final = unread
        self._guess: Final = OutputGuess()
        self._plans: Final[Memo[tuple[bytes, str], _Plan]] = Memo(_KEPT_PLANS)
        # Where no rule and no key names models: what counts a caller's calls to each of them.
        self._of_callers: Final[Memo[bytes, tuple[Caller, tuple[SharedBudget, ...]]]] = Memo(_KEPT_PLANS)
        self.prices = prices  # other ones after a reload

    def __repr__(self) -> str:
        return f"<BudgetGate rules={len(self._rules)} plans={len(self._plans)}>"

    def replace(self, rules: Sequence[BudgetRule]) -> None:
        """Hold calls to these from now on. What is spent stays spent where a budget has the same windows as before."""
        if self._rules != tuple(rules):
            self._rules = tuple(rules)
            self._plans.clear()
            self._of_callers.clear()

    def hold(
        self,
        caller: Caller,
        destinations: Destinations,
        fields: BodyFields,
        estimate: Estimate,
        bound: TokenUsage | None = None,
    ) -> Held | NotYet | None:
        """Hold what a request may cost, of all budgets that count it. None: none does.

        estimate: NO_TOKENS: nothing is known of its tokens. bound: what dollars are held for in its place. Raises
        VeloxError(INSUFFICIENT_QUOTA) or VeloxError(UNPRICED_MODEL), and holds nothing. NotYet: nothing is held,
        Redis must be asked first.
        """
        if not self._rules and not has_budgets(caller):
            return None
        now_s = self._clock()
        plan = self._plans.get((caller.id, fields.model or ""))
        if plan is None or plan.caller is not caller:
            plan = self._plan(caller, fields.model or "", now_s)
        budgets = plan.budgets
        if not budgets:
            return None
        has_lacking = self._table.has_lacking
        usual = strict = -1  # tokens of the answer
        cost: _MayCost | None = None
        strict_cost: _MayCost | None = None
        held: list[int] = []
        try:
            for each in budgets:
                if has_lacking and each.is_lacking and self._refuses_lacking(each):
                    raise _lacking(each)
                if not each.is_strict:
                    if usual < 0:
                        usual = _usual_answer(fields, estimate, plan.lengths.guess, self._default_answer)
                    answer = usual
                else:
                    if strict < 0:
                        strict = longest_answer(fields) if _has_answer(fields, estimate) else 0
                    answer = strict
                if each.is_tokens:
                    # Of what is not read, one: what holds nothing passes a budget that is used up.
                    amount = min(estimate.prompt + answer, _MOST) or 1
                elif each.is_strict:
                    strict_cost = strict_cost or self._cost(destinations, fields, estimate, now_s, answer, bound)
                    amount = _dollars(each, strict_cost)
                else:
                    cost = cost or self._cost(destinations, fields, estimate, now_s, answer, bound)
                    amount = _dollars(each, cost)
                # A guess is no reason to refuse a request for ever: it is the limit at most. Of a limit of 0 as well
                # something is held.
                if amount > each.limit and not each.is_strict:
                    amount = min(amount, max(1, each.limit))
                number = each.hold(amount, now_s)
                if number is None:
                    not_yet = self._refused(each, amount, now_s)
                    break
                held.append(number)
                held.append(amount)
            else:
                return Held(budgets, held, plan.lengths)
        except BaseException:  # a refusal, or a bug: nothing stays held
            _release(budgets, held)
            raise
        _release(budgets, held)
        return not_yet

    def _refuses_lacking(self, kept: SharedBudget) -> bool:
        return self._unread == "refuse" or (self._unread == "strict" and kept.is_strict)

    # -- amounts ------------------------------------------------------------------------------------

    def _cost(
        self,
        destinations: Destinations,
        fields: BodyFields,
        estimate: Estimate,
        now_s: float,
        answer: int,
        bound: TokenUsage | None,
    ) -> _MayCost:
        """Return what a request may cost, at the dearest of the upstreams that may get it."""
        usage = bound
        if usage is None:
            usage = TokenUsage() if estimate is NO_TOKENS else TokenUsage(estimate.prompt, answer)
        most = 0
        for upstream, model in destinations(fields.model):
            price = self.prices(upstream, model, "", usage.tier, int(now_s))
            cost = None if price is None else price.cost(usage)
            if cost is None:
                return _MayCost(None, "" if usage.input is None else upstream)
            most = max(most, cost.nano)
        return _MayCost(min(most, _MOST))

    # -- which budgets ------------------------------------------------------------------------------

    def _plan(self, caller: Caller, model: str, now_s: float) -> _Plan:
        """Return what counts a caller's calls to a model, kept for those that follow."""
        known = self._of_callers.get(caller.id)
        if known is not None and known[0] is caller:
            budgets = known[1]
        else:
            # Callers have no budgets of their own that look at models.
            budgets = self._find(caller, model, now_s)
            if not any(rule.models or rule.scope == "model" for rule in self._rules):
                self._of_callers.put(caller.id, (caller, budgets))
        return self._plans.put((caller.id, model), _Plan(caller, budgets, self._guess.lengths(caller.id, model)))

    def _find(self, caller: Caller, model: str, now_s: float) -> tuple[SharedBudget, ...]:
        spender = spender_of(caller, model)
        found: list[SharedBudget] = []
        rules: dict[str, BudgetRule] = {}
        for rule in (*self._rules, *own_rules(caller)):
            first = rules.setdefault(rule.identity, rule)
            if rule.budget.limit < first.budget.limit:
                rules[rule.identity] = rule  # of two limits of one window the lower one holds
        for rule in rules.values():
            for subject in subjects(rule, spender):
                who = f"{spender.key_id} {spender.key_name}" if rule.scope == "key" else subject
                found.append(self._table.budget(rule, subject, who, now_s))
        return tuple(found)

    def _refused(self, kept: SharedBudget, amount: int, now_s: float) -> NotYet:
        """Raise the refusal; return what must be asked for where nobody here knows."""
        rule, lack = kept.rule, kept.lack(amount, now_s)
        if lack is Lack.NOT_GRANTED:
            return NotYet([(kept, amount)], _STRICT_PATIENCE_S if rule.budget.strict else 0.0)
        if lack is Lack.UNKNOWN:
            message = (
                f"what this gateway was granted of {_WHOSE[rule.scope]} budget ({rule.name}) is used up, and what is"
                " left of it can't be found out: Redis does not answer (VELOX_REDIS_URL)"
            )
            raise VeloxError(Reason.LIMITS_UNAVAILABLE, message, retry_after_s=kept.retry_s)
        budget, window = rule.budget, kept.window(now_s)
        spent = kept.spent(now_s)

        def text(n: int, *, bare: bool = False) -> str:
            return f"{n}{'' if bare else ' tokens'}" if budget.is_tokens else f"${usd_text(n)}"

        whose = f"{_WHOSE[rule.scope]} budget"
        if budget.window != "total":
            whose += (
                f" for each {period_text(budget)}" if isinstance(budget.window, str) else f" of {period_text(budget)}"
            )
        if lack is Lack.HELD:
            message = f"{whose} ({rule.name}) is held by requests that run; retry when one has ended"
            raise VeloxError(Reason.RATE_LIMITED, message, retry_after_s=_HELD_RETRY_S)
        kept.count_refusal(now_s)
        message = f"{whose} is used up ({rule.name})"
        if rule.scope in _OWN:
            message += f": {text(spent, bare=True)} of {text(budget.limit)} are spent, "
            message += f"and this request may cost {text(amount)}"
        if window.end_s is None:
            raise VeloxError(Reason.INSUFFICIENT_QUOTA, f"{message}; it is never reset: an operator has to raise it")
        reset = datetime.datetime.fromtimestamp(window.end_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise VeloxError(
            Reason.INSUFFICIENT_QUOTA,
            f"{message}; the next window begins at {reset}",
            retry_after_s=max(0.0, window.end_s - now_s),
            headers=((b"x-velox-budget-reset", reset.encode()),),
        )


def _usual_answer(fields: BodyFields, estimate: Estimate, guess: int | None, default: int) -> int:
    """Return how long an answer most likely is, in tokens. guess: by those that came; default: of one, without them."""
    if not _has_answer(fields, estimate):
        return 0
    if guess is None:
        guess = default * n_answers(fields)
    return guess if fields.max_tokens is None else min(guess, longest_answer(fields))


def _has_answer(fields: BodyFields, estimate: Estimate) -> bool:
    """Return False for an answer that is not made of tokens."""
    return bool(estimate.answer or fields.max_tokens)


def _dollars(kept: SharedBudget, cost: _MayCost) -> int:
    """Return what a budget of dollars holds, before its limit is looked at. Raises VeloxError(UNPRICED_MODEL)."""
    if cost.nano is not None:
        return cost.nano
    if not kept.rule.budget.refuses_unpriced:
        return 0
    why = "what this request costs can't be known: what it sends there is not read; count tokens, or"
    if cost.unpriced:
        why = f"no price is known for this model at {cost.unpriced}; give it one (VELOX_PRICES), or"
    message = (
        f"{_WHOSE[kept.rule.scope]} budget ({kept.rule.name}) counts dollars, and {why} let such calls pass it"
        " (unpriced: allow)"
    )
    raise VeloxError(Reason.UNPRICED_MODEL, message, param="model")


def _lacking(kept: SharedBudget) -> VeloxError:
    message = (
        f"what was spent of {_WHOSE[kept.rule.scope]} budget ({kept.rule.name}) before the gateway started can't be"
        " read yet, so nobody knows what is left (VELOX_BUDGETS_UNREAD)"
    )
    return VeloxError(Reason.LIMITS_UNAVAILABLE, message, retry_after_s=_LACKING_RETRY_S)


def bound_of(endpoint: Endpoint, fields: BodyFields, n_bytes: int, asked: AskedUnits | None) -> TokenUsage | None:
    """Return the most that a call is likely to be counted as that is not paid by its text.

    None: its reply will not tell what it was. n_bytes: of the body. asked: what the request tells of other units. What
    a call whose reply tells nothing counts as is what it held, so this is no low guess.
    """
    usage = _tokens_bound(endpoint, fields, n_bytes)
    return usage if asked is None or usage is None else asked.bound(usage)


def _tokens_bound(endpoint: Endpoint, fields: BodyFields, n_bytes: int) -> TokenUsage | None:
    text = n_bytes
    files = 0
    if isinstance(fields, FormFields):
        if not fields.tells:
            return None
        text, files = fields.n_text, fields.n_file // _FILE_BYTES
    prompt = -(-text // _TEXT_BYTES) + files
    if endpoint is Endpoint.IMAGES:
        made = n_answers(fields) * _PICTURE_TOKENS
        return TokenUsage(prompt, made, image_input=files or None, image_output=made)
    if endpoint is not Endpoint.AUDIO:
        return TokenUsage(prompt, 0)
    if isinstance(fields, FormFields):
        length = Units(sound_ms=fields.n_file * 1000 // _SECOND_BYTES)
        return TokenUsage(prompt, prompt, audio_input=files or None, units=length)
    made = text * _SPOKEN_TOKENS
    return TokenUsage(prompt, made, audio_output=made)


def _release(budgets: tuple[SharedBudget, ...], held: list[int], n_begun: int = 0) -> None:
    """Hold nothing more. held: as Held has it; of the first budgets, if not all were held."""
    at = 0
    for each in budgets:
        if at == len(held):
            return
        each.release(held[at], held[at + 1], n_begun)
        at += 2
