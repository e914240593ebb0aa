"""The budgets of a request: which count it, what it holds of them while it runs, and what it spent at its end.

    BudgetGate.hold()   with the request's limits: all budgets that count it have room, or 429 and nothing is held
    counted()           a call is recorded: what it counts in a budget, by what it cost
    BudgetGate.learn()  how long an answer was

What is held: the prompt, as estimated by its bytes, and an answer as long as most of this caller's from this model are,
at the dearest price of all upstreams that may get the request. A budget that is `strict` holds the longest answer that
there may be. So budgets are exceeded by no more than what the calls that run at one time cost above their holds.

Knows: amounts, and what a refusal says. Does not know: where a budget is kept (shm/budget_table.py), what windows are
(policy/budgets/budget.py), or when a call begins and ends (calls.py, which asks).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.limits.billed_units import AskedUnits
from velox.gateway.limits.lease_wait import NotYet
from velox.memo import Memo
from velox.policy.budgets.budget import period_text, usd_text
from velox.policy.budgets.rules import BudgetRule, has_budgets, own_rules, spender_of, subjects
from velox.policy.limits.estimate import NO_TOKENS, Estimate, longest_answer, n_answers
from velox.policy.limits.output_guess import OutputGuess
from velox.prices.price import Price
from velox.protocol.usage.tokens import TokenUsage, Units
from velox.shm.budget_table import BudgetTable, Hold, Lack, SharedBudget
from velox.types import BodyFields, Caller, Endpoint, FormFields

__all__ = ["BOUNDED", "BudgetGate", "CallPrices", "Destinations", "Unread", "bound_of"]

# Endpoints whose request tells little of the tokens that are paid for.
BOUNDED: Final = frozenset({Endpoint.IMAGES, Endpoint.AUDIO})

# The price of a call, by the name of its upstream, the model that it was asked for, model and tier that its reply
# tells, and Unix time in seconds.
CallPrices: TypeAlias = Callable[[str, str, str, str, int], Price | None]

# Which budgets refuse requests while nobody knows what was spent of them before: VELOX_BUDGETS_UNREAD.
Unread: TypeAlias = Literal["strict", "refuse", "allow"]

_KEPT_SETS: Final = 4096
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


class _Set(NamedTuple):
    """The budgets that count a caller's calls to a model."""

    caller: Caller
    budgets: tuple[SharedBudget, ...]


class _Amounts(NamedTuple):
    """What a call may cost. nano: None: an upstream that it may go to, `unpriced`, has no price for it, or nothing is
    known of its tokens."""

    tokens: int
    nano: int | None
    unpriced: str = ""


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
        self._sets: Final[Memo[tuple[bytes, str], _Set]] = Memo(_KEPT_SETS)
        self.prices = prices  # other ones after a reload

    def __repr__(self) -> str:
        return f"<BudgetGate rules={len(self._rules)} sets={len(self._sets)}>"

    def replace(self, rules: Sequence[BudgetRule]) -> None:
        """Hold calls to these from now on. What is spent stays spent where a budget has the same windows as before."""
        if self._rules != tuple(rules):
            self._rules = tuple(rules)
            self._sets.clear()

    def hold(
        self,
        caller: Caller,
        destinations: Destinations,
        fields: BodyFields,
        estimate: Estimate,
        bound: TokenUsage | None = None,
    ) -> Sequence[Hold] | NotYet:
        """Hold what a request may cost, of all budgets that count it: mostly of none.

        estimate: NO_TOKENS: nothing is known of its tokens. bound: what dollars are held for in its place. Raises
        VeloxError(INSUFFICIENT_QUOTA) or VeloxError(UNPRICED_MODEL), and holds nothing. NotYet: nothing is held,
        Redis must be asked first.
        """
        if not self._rules and not has_budgets(caller):
            return ()
        model = fields.model or ""
        now_s = self._clock()
        found = self._sets.get((caller.id, model))
        if found is None or found.caller is not caller:
            found = self._sets.put((caller.id, model), self._find(caller, model, now_s))
        if not found.budgets:
            return ()
        usual = strict = None
        taken: list[Hold] = []
        not_yet: NotYet | None = None
        try:
            for each in found.budgets:
                if each.is_lacking and self._refuses_lacking(each):
                    raise _lacking(each)
                if each.rule.budget.strict:
                    amounts = strict = strict or self._amounts(
                        destinations, fields, estimate, now_s, longest_answer(fields), bound
                    )
                else:
                    usual = usual or self._amounts(
                        destinations, fields, estimate, now_s, self._usual(caller, fields), bound
                    )
                    amounts = usual
                amount = self._amount(each, amounts)
                hold = each.hold(amount, now_s)
                if hold is None:
                    not_yet = self._refused(each, amount, now_s)
                    break
                taken.append(hold)
        except BaseException:  # a refusal, or a bug: nothing stays held
            _release(taken)
            raise
        if not_yet is None:
            return taken
        _release(taken)
        return not_yet

    def learn(self, caller: Caller, model: str | None, answer: int) -> None:
        """Note that so long an answer came, in tokens."""
        self._guess.learn(caller.id, model or "", answer)

    def _refuses_lacking(self, kept: SharedBudget) -> bool:
        return self._unread == "refuse" or (self._unread == "strict" and kept.rule.budget.strict)

    # -- amounts ------------------------------------------------------------------------------------

    def _usual(self, caller: Caller, fields: BodyFields) -> int:
        guess = self._guess.guess(caller.id, fields.model or "")
        if guess is None:
            guess = self._default_answer * n_answers(fields)
        return guess if fields.max_tokens is None else min(guess, longest_answer(fields))

    def _amounts(
        self,
        destinations: Destinations,
        fields: BodyFields,
        estimate: Estimate,
        now_s: float,
        answer: int,
        bound: TokenUsage | None,
    ) -> _Amounts:
        """Return what a request may cost, at the dearest of the upstreams that may get it."""
        if not estimate.answer and not fields.max_tokens:
            answer = 0  # its answer is not made of tokens
        tokens = min(estimate.prompt + answer, _MOST)
        usage = bound
        if usage is None:
            usage = TokenUsage() if estimate is NO_TOKENS else TokenUsage(estimate.prompt, answer)
        most = 0
        for upstream, model in destinations(fields.model):
            price = self.prices(upstream, model, "", usage.tier, int(now_s))
            cost = None if price is None else price.cost(usage)
            if cost is None:
                return _Amounts(tokens, None, "" if usage.input is None else upstream)
            most = max(most, cost.nano)
        return _Amounts(tokens, min(most, _MOST))

    def _amount(self, kept: SharedBudget, amounts: _Amounts) -> int:
        """Return what a budget holds. A guess is no reason to refuse a request for ever: it is the limit at most."""
        budget = kept.rule.budget
        if kept.is_tokens:
            # Of what is not read, one: what holds nothing passes a budget that is used up.
            amount = amounts.tokens or 1
        elif amounts.nano is not None:
            amount = amounts.nano
        elif budget.refuses_unpriced:
            why = "what this request costs can't be known: what it sends there is not read; count tokens, or"
            if amounts.unpriced:
                why = f"no price is known for this model at {amounts.unpriced}; give it one (VELOX_PRICES), or"
            message = (
                f"{_WHOSE[kept.rule.scope]} budget ({kept.rule.name}) counts dollars, and {why} let such calls pass it"
                " (unpriced: allow)"
            )
            raise VeloxError(Reason.UNPRICED_MODEL, message, param="model")
        else:
            return 0
        # Of a limit of 0 as well something is held: what holds nothing passes.
        return amount if budget.strict else min(amount, max(1, budget.limit))

    # -- which budgets ------------------------------------------------------------------------------

    def _find(self, caller: Caller, model: str, now_s: float) -> _Set:
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
        return _Set(caller, tuple(found))

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
            raise VeloxError(Reason.INSUFFICIENT_QUOTA, f"{message}; it is for ever, and must be raised")
        reset = datetime.datetime.fromtimestamp(window.end_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise VeloxError(
            Reason.INSUFFICIENT_QUOTA,
            f"{message}; the next window begins at {reset}",
            retry_after_s=max(0.0, window.end_s - now_s),
            headers=((b"x-velox-budget-reset", reset.encode()),),
        )


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


def counted(hold: Hold, nano: int | None, tokens: int | None, *, is_known: bool = True, least: int = 0) -> int:
    """Return what a call counts in a budget. nano, tokens: what it cost; None: it is not known, and counts as held.

    is_known: False: its reply did not tell, and it is an estimate: then a budget that is strict counts what it holds at
    least, as the call may have cost as much. least: what of a cost that is not known is: what it cost beside that.
    """
    budget = hold.budget
    cost = tokens if budget.is_tokens else nano
    amount = hold.amount if cost is None else min(cost, _MOST)
    if nano is None and not budget.is_tokens:
        amount = max(amount, min(least, _MOST))
    if not is_known and budget.rule.budget.strict:
        amount = max(amount, hold.amount)
    return amount


def _release(holds: Sequence[Hold]) -> None:
    for hold in holds:
        hold.budget.release(hold)
