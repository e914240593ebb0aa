"""What was spent of the budgets' open windows before this gateway began to count, as its ledger has it.

    before the first worker serves    a child first takes what a killed gateway has left in its rings, then sums up what
                                      is kept, and writes it into the rows of the budgets that count it
    after a change of the budgets     the same for those that are new, while they count already

Knows: which sums are asked for, which rows they belong to, and when. Does not know: how a store sums up (velox.ledger),
or what a row is (shm/budget_table.py).

A row counts the calls that begin after it was claimed, so what is read for it ends there. Sums are kept by the minute
for two days, then by the hour, then by the day: a window that begins inside of one of these is taken to begin with it,
so that too much is counted rather than too little.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from velox.gateway.auth import caller_of
from velox.ledger.collector import Collector
from velox.ledger.store import Question, Store, StoreError
from velox.observe.oplog import operations_logger
from velox.policy.budget import BudgetWindow, window_at
from velox.policy.budget_rules import BudgetRule, Spender, has_budgets, own_budgets, rules_of, subjects
from velox.runtime.ledger import LedgerFolder
from velox.runtime.stores import record_store
from velox.settings import Settings
from velox.shm.budget_table import BudgetMemory, BudgetTable
from velox.types import Budget, KeyEntry

__all__ = ["BudgetOpening", "KeyChanges", "RuleBook", "budget_memory", "read_spent"]

_LEAST_ROWS: Final = 65_536
_MOST_ROWS: Final = 4_194_304
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
# As long as sums of minutes and of hours are surely kept.
_MINUTES_S: Final = 2 * _DAY_S - _HOUR_S
_HOURS_S: Final = 89 * _DAY_S
_LAST_S: Final = 253_402_300_800  # the end of the year 9999
_US: Final = 1_000_000
# What was spent must be read within this time at the start; a database that hangs must not hold the gateway up.
_START_S: Final = 10.0
_LOOK_S: Final = 0.01
# By then all workers count by a change, and the records of calls before it are kept.
_SETTLED_S: Final = 2.0


def budget_memory(settings: Settings, blocks: int) -> BudgetMemory | None:
    """Return the table of a gateway's budgets; None: nothing is recorded, so nothing is counted."""
    if settings.ledger is None:
        return None
    needed = 4 * max(1, len(settings.budgets)) * max(1, len(settings.api_keys))
    return BudgetMemory(min(max(_LEAST_ROWS, needed), _MOST_ROWS), blocks)


class RuleBook:
    """The rules that keys, their teams and users have for themselves, by their identity.

    A change costs as much as it is: there may be many thousands of keys.
    """

    def __init__(self) -> None:
        self.rules: Final[dict[str, BudgetRule]] = {}
        self._n_keys: Final[Counter[str]] = Counter()  # that have a rule
        self._of_key: Final[dict[bytes, tuple[str, ...]]] = {}  # identities, by the key's digest
        # Of each owner as it was last: the same for all of its keys.
        self._of_owner: Final[dict[tuple[str, str], tuple[tuple[Budget, ...], tuple[tuple[str, BudgetRule], ...]]]] = {}

    def __repr__(self) -> str:
        return f"<RuleBook {len(self.rules)}>"

    def change(self, gone: Iterable[bytes], come: Iterable[KeyEntry]) -> list[BudgetRule]:
        """Know no longer the keys of these digests, and know these entries; return the rules that are new."""
        before: dict[str, BudgetRule] = {}
        added: dict[str, BudgetRule] = {}
        for digest in gone:
            self._forget(digest, before)
        for key in come:
            self._forget(key.digest, before)
            if has_budgets(key):
                self._learn(key, added)
        return [rule for identity, rule in added.items() if identity not in before]

    def _forget(self, digest: bytes, forgotten: dict[str, BudgetRule]) -> None:
        for identity in self._of_key.pop(digest, ()):
            self._n_keys[identity] -= 1
            if not self._n_keys[identity]:
                del self._n_keys[identity]
                forgotten[identity] = self.rules.pop(identity)

    def _learn(self, key: KeyEntry, added: dict[str, BudgetRule]) -> None:
        identities = []
        for scope, owner, budgets in own_budgets(caller_of(key)):
            known = self._of_owner.get((scope, owner))
            if known is None or (known[0] is not budgets and known[0] != budgets):
                known = budgets, tuple((rule.identity, rule) for rule in rules_of(scope, owner, budgets))
                self._of_owner[scope, owner] = known
            for identity, rule in known[1]:
                identities.append(identity)
                self._n_keys[identity] += 1
                if identity not in self.rules:
                    self.rules[identity] = added[identity] = rule
        self._of_key[key.digest] = tuple(identities)


class KeyChanges(NamedTuple):
    """Keys: digests that are gone, entries that have come since the last time; all that hold now, when asked."""

    gone: Sequence[bytes]
    come: Sequence[KeyEntry]
    all: Callable[[], Sequence[KeyEntry]]


class _Spent(NamedTuple):
    """What one caller spent on one model. started_us: of a single call; 0: of many, all of them before the rows."""

    spender: Spender
    nano: int
    tokens: int
    started_us: int = 0


def read_spent(
    memory: BudgetMemory,
    store: Store,
    rules: Iterable[BudgetRule],
    keys: Iterable[KeyEntry],
    now_s: float,
    changed_s: float | None = None,
) -> int:
    """Write what was spent before they were into the rows of these budgets; return how many rows that were.

    changed_s: since when they may have counted; None: not yet. Raises StoreError.
    """
    known = {caller_of(key).id.hex(): key for key in keys}
    table = BudgetTable(memory, 0)
    sums: dict[int, _Sums] = {}
    # Calls before it are summed up, those from then on are looked at one by one.
    single_s = _LAST_S if changed_s is None else int(changed_s) // _MINUTE_S * _MINUTE_S
    single = [] if changed_s is None else list(_single(store, single_s, int(now_s) + _DAY_S, known))
    amounts: dict[int, tuple[BudgetWindow, int]] = {}
    rows: dict[str, int | None] = {}  # of one rule, by subject
    for rule in {rule.identity: rule for rule in rules}.values():
        window = window_at(rule.budget, now_s)
        since_s = _since(window.start_s, now_s)
        if since_s not in sums:
            sums[since_s] = _Sums((*_spent(store, since_s, single_s, known), *single))
        rows.clear()
        for spent in sums[since_s].of(rule):
            if spent.started_us and spent.started_us < window.start_s * _US:
                continue
            for subject in subjects(rule, spent.spender):
                if subject not in rows:
                    who = f"{spent.spender.key_id} {spent.spender.key_name}" if rule.scope == "key" else subject
                    rows[subject] = table.row(rule, subject, who, now_s)
                row = rows[subject]
                if row is not None and spent.started_us < memory.since_us(row):
                    more = spent.tokens if rule.budget.is_tokens else spent.nano
                    amounts[row] = (window, amounts.get(row, (window, 0))[1] + more)
    for row, (window, amount) in amounts.items():
        memory.set_base(row, window.number, amount)
        memory.open_window(row, window)
    return len(amounts)


class _Sums:
    """What was spent since some time, also by whose it was: each of thousands of keys may have a budget of its own."""

    def __init__(self, spent: Sequence[_Spent]) -> None:
        self._all: Final = spent
        self._of: Final[dict[tuple[str, str], list[_Spent]]] = {}
        for each in spent:
            who = each.spender
            for owner in (("key", who.key_id), ("team", who.team), ("user", who.user)):
                self._of.setdefault(owner, []).append(each)

    def of(self, rule: BudgetRule) -> Sequence[_Spent]:
        """Return what a rule may count."""
        return self._of.get((rule.scope, rule.owner), ()) if rule.owner else self._all


def _spent(store: Store, since_s: int, until_s: int, keys: dict[str, KeyEntry]) -> Iterator[_Spent]:
    """Yield what each key spent on each model."""
    if since_s < until_s:
        for (key, team, user, model), sums in store.totals(
            Question(since_s, until_s, ("key", "team", "user", "model"))
        ):
            yield _Spent(_spender(key, team, user, model, keys), sums.cost_nano, sums.input + sums.output)


def _single(store: Store, since_s: int, until_s: int, keys: dict[str, KeyEntry]) -> Iterator[_Spent]:
    for call in store.calls(Question(since_s, until_s)):
        tokens = (call.tokens.input or 0) + (call.tokens.output or 0)
        yield _Spent(
            _spender(call.key, call.team, call.user, call.model, keys), call.cost_nano or 0, tokens, call.started_us
        )


def _spender(key: str, team: str, user: str, model: str, keys: dict[str, KeyEntry]) -> Spender:
    """Return who spent it. Teams and users are those that its key has now; of a key that is gone, those it had."""
    key_id, _, name = key.partition(" ")
    entry = keys.get(key_id)
    if entry is None:
        return Spender(key_id, name, team, user, model=model)
    return Spender(key_id, entry.caller_name, entry.team, entry.user, entry.tags, model)


def _since(start_s: int, now_s: float) -> int:
    """Return from when on sums are asked for, so that they are kept as short as that needs."""
    age_s = now_s - start_s
    unit_s = _MINUTE_S if age_s < _MINUTES_S else _HOUR_S if age_s < _HOURS_S else _DAY_S
    return start_s // unit_s * unit_s


class BudgetOpening:
    """Of one gateway, in its supervisor. pid: of the child that reads, 0: none. fork: starts one."""

    def __init__(
        self,
        settings: Settings,
        memory: BudgetMemory,
        folder: LedgerFolder,
        logger: logging.Logger,
        fork: Callable[[Callable[[], int]], int],
        start_s: float = _START_S,
    ) -> None:
        self._start_s: Final = start_s
        self._book: Final = RuleBook()
        self._settings: Final = settings
        self._memory: Final = memory
        self._folder: Final = folder
        self._logger: Final = logger
        self._fork: Final = fork
        self._fixed: Sequence[BudgetRule] = ()  # rules of the settings
        self._due: tuple[float, float, tuple[BudgetRule, ...]] | None = None
        self.pid = 0

    def __repr__(self) -> str:
        return f"<BudgetOpening pid={self.pid} {self._book!r}>"

    def begin(
        self, keys: Sequence[KeyEntry], is_stopped: Callable[[], bool], on_reaped: Callable[[int], object]
    ) -> None:
        """Read what was spent before the start, and wait for that. Without budgets there is nothing to read."""
        self._fixed = self._settings.budgets
        own = self._book.change((), keys)
        rules = (*self._fixed, *own)
        if not rules:
            return
        pid = self._fork(partial(self._read, rules, keys, None))
        until_s = time.monotonic() + self._start_s
        while time.monotonic() < until_s and not is_stopped():
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                on_reaped(pid)
                if status:
                    self._read_later(rules)
                return
            time.sleep(_LOOK_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        on_reaped(pid)
        message = "what was spent before could not be read in %g s: budgets begin at 0 until it is"
        self._logger.error(message, self._start_s)
        self._read_later(rules)

    def _read_later(self, rules: tuple[BudgetRule, ...]) -> None:
        """Read while the gateway serves, however long that takes: calls from now on are looked at one by one."""
        self._due = (time.monotonic() + _SETTLED_S, time.time(), rules)

    def look(self, rules: Sequence[BudgetRule], keys: KeyChanges, now_s: float) -> None:
        """Look whether there are new budgets, and have read what was spent of them. now_s: monotonic.

        keys: what has changed since the last time.
        """
        new: list[BudgetRule] = []
        if rules is not self._fixed:
            known = {rule.identity for rule in self._fixed} | self._book.rules.keys()
            new += [rule for rule in rules if rule.identity not in known]
            self._fixed = rules
        if keys.gone or keys.come:
            fixed = {rule.identity for rule in self._fixed}
            new += [rule for rule in self._book.change(keys.gone, keys.come) if rule.identity not in fixed]
        if new:
            before = () if self._due is None else self._due[2]
            self._due = (now_s + _SETTLED_S, time.time(), (*before, *new))
        if self._due is not None and now_s >= self._due[0] and not self.pid:
            _, changed_s, due = self._due
            self._due = None
            self.pid = self._fork(partial(self._read, due, keys.all(), changed_s))

    def died(self) -> None:
        """Note that the child was reaped."""
        self.pid = 0

    def _read(self, rules: Sequence[BudgetRule], keys: Sequence[KeyEntry], changed_s: float | None) -> int:
        """Be the child."""
        logger = operations_logger(sys.stderr)
        try:
            # Where Redis adds up what all gateways have spent, each brings what it spent itself.
            is_own = self._settings.redis_url is not None
            store = record_store(self._settings, is_reader=changed_s is not None, is_own=is_own)
            if changed_s is None:  # the ledger's process has not begun
                collector = Collector(self._folder.all, store, time.time)
                while collector.collect():
                    pass
            n = read_spent(self._memory, store, rules, keys, time.time(), changed_s)
            store.close()
        except StoreError as exc:
            logger.error("what was spent before can't be read: %s; budgets begin at 0 until it is", exc)
            return 1
        if n:
            logger.info("%d budgets go on with what was spent before", n)
        return 0
