"""What was spent of the budgets' open windows before this gateway began to count, as its ledger has it.

    before the first worker serves    a child first takes what a killed gateway has left in its rings, then sums up what
                                      is kept, and writes it into the rows of the budgets that count it
    after a change of the budgets     the same for those that are new, while they count already
    when a budget is back             a blocked key, or a rule that was taken away, has its row from before, which has
                                      counted its part of what is kept: only the rest of it is added
    after a step of the clock         the same for all of them: rows that were in another window for a moment have lost
                                      what they had counted in this one
    where the ledger can't be read    at the start what budget_snapshot.py kept holds, and what the rings have had
                                      since; it is tried again after a second, then after more and more

Knows: which sums are asked for, which rows they belong to, and when. Does not know: how a store sums up (velox.ledger),
what a row is (shm/budget_table.py), or what becomes of requests whose budgets nobody knows (gateway/limits/budgets.py).

A reading waits until all records from before are kept: those that the rings had when the budgets came.

A row counts the calls that begin after it was claimed, so what is read for it ends there. Sums are kept by the minute
for two days, then by the hour, then by the day: a window that begins inside of one of these is taken to begin with it,
so that too much is counted rather than too little. Copies for mirrors are recorded, and count for no budget.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Self, TypeAlias

from velox.gateway.auth import caller_of
from velox.ledger.collector import Collector
from velox.ledger.record import MIRRORED, Call
from velox.ledger.store import Dimension, Store, StoreError, Sums, Total, UsageQuery
from velox.observe.oplog import operations_logger
from velox.policy.budgets.budget import BudgetWindow, window_at
from velox.policy.budgets.rules import (
    BudgetLabel,
    BudgetRule,
    Spender,
    by_identity,
    has_budgets,
    own_budgets,
    rules_of,
    subjects,
)
from velox.policy.request_tags import keys_tags
from velox.runtime.ledger.budget_snapshot import (
    Snapshot,
    SnapshotError,
    has_snapshot,
    known_rules,
    learn_rules,
    read_snapshot,
)
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.stores import has_records, record_store
from velox.runtime.processes.process import wait_for
from velox.settings import Settings
from velox.shm.budget_table import MOST_AHEAD_S, BudgetMemory, BudgetTable, rule_digest
from velox.shm.record_ring import RecordRing
from velox.types import Budget, KeyEntry, KeyUpdate

__all__ = ["BudgetBackfill", "KeyChanges", "RuleBook", "budget_memory", "budget_rows", "read_spent", "restore_spent"]

_LEAST_ROWS: Final = 65_536
# So many rows for each budget that there is at the start, in each half of the table: more budgets may come.
_USED_PART: Final = 4
_MOST_ROWS: Final = 4_194_304
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
# As long as sums of minutes and of hours are surely kept.
_MINUTES_S: Final = 2 * _DAY_S - _HOUR_S
_HOURS_S: Final = 89 * _DAY_S
_LAST_S: Final = 253_402_300_800  # the end of the year 9999
US: Final = 1_000_000
# What was spent must be read within this time at the start; a database that hangs must not hold the gateway up.
_START_S: Final = 10.0
_RESTORE_S: Final = 10.0
# By then all workers count by a change, and the records of calls before it are kept.
_SETTLED_S: Final = 2.0
# While budgets keep changing, those that have settled are read together this often.
_GATHER_S: Final = 8.0
# Until a reading that failed is tried again: at first, and at most.
_AGAIN_S: Final = 1.0
_MOST_AGAIN_S: Final = 30.0
# How a child that reads ends: it has read all; it could not; some records, which it has counted, are not kept yet.
_IS_READ, _HAS_FAILED, _IS_WAITING = range(3)
# Thousands of budgets come back one by one, as their next requests do; what the first reading found holds for all.
_STEPPED_S: Final = 60.0


def budget_memory(settings: Settings, blocks: int) -> BudgetMemory | None:
    """Return the table of a gateway's budgets; None: nothing is recorded, so nothing is counted."""
    return None if settings.ledger is None else BudgetMemory(budget_rows(settings), blocks)


def budget_rows(settings: Settings) -> int:
    """Return how many rows the table of a gateway's budgets has at the start."""
    needed = 2 * _USED_PART * _n_budgets(settings.budgets, settings.api_keys)
    return min(max(_LEAST_ROWS, needed), _MOST_ROWS)


def _n_budgets(rules: Sequence[BudgetRule], keys: Sequence[KeyEntry]) -> int:
    """Return how many budgets there are at the start, without those of models that rules do not name."""
    callers = [caller_of(key) for key in keys]
    names: dict[str, int] = {
        "key": len({each.id for each in callers}),
        "team": len({each.terms.team for each in callers}),
        "user": len({each.terms.user for each in callers}),
        "tag": len({tag for each in callers for tag in each.terms.tags}),
    }
    own = {(scope, owner): len(budgets) for each in callers for scope, owner, budgets in own_budgets(each)}
    return sum(names.get(rule.scope, 1 + len(rule.models)) for rule in rules) + sum(own.values())


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

    def change(self, update: KeyUpdate) -> list[BudgetRule]:
        """Take over what keys are from now on; return the rules that are new."""
        before: dict[str, BudgetRule] = {}
        added: dict[str, BudgetRule] = {}
        for digest, key in update.items():
            self._forget(digest, before)
            if key is not None and has_budgets(key):
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
                known = budgets, tuple(by_identity(rules_of(scope, owner, budgets)).items())
                self._of_owner[scope, owner] = known
            for identity, rule in known[1]:
                identities.append(identity)
                self._n_keys[identity] += 1
                if identity not in self.rules or identity in added:
                    added[identity] = rule
                self.rules[identity] = rule  # its limit may be another one than before, while other keys have it
        self._of_key[key.digest] = tuple(identities)


class KeyChanges(NamedTuple):
    """update: what keys have become since the last time. all: those that hold now, when asked."""

    update: KeyUpdate
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
    back: Collection[str] = (),
) -> int:
    """Write what was spent before they were into the rows of these budgets; return how many rows that were.

    changed_s: since when they may have counted; None: not yet. back: identities of rules that have counted here before.
    Raises StoreError.
    """
    known = {caller_of(key).id.hex(): key for key in keys}
    table = BudgetTable(memory, 0)
    sums: dict[int, _Sums] = {}
    # Calls before it are summed up, those from then on are looked at one by one.
    single_s = _LAST_S if changed_s is None else int(changed_s) // _MINUTE_S * _MINUTE_S
    single = [] if changed_s is None else list(_single(store, single_s, int(now_s) + _DAY_S, known))
    amounts: dict[int, tuple[BudgetWindow, int]] = {}
    counted: dict[int, int] = {}  # by rows of budgets that are back
    rows: dict[str, int | None] = {}  # of one rule, by subject
    for rule in by_identity(rules).values():
        window = window_at(rule.budget, now_s)
        since_s = _since(window.start_s, now_s)
        is_back = rule.identity in back
        if since_s not in sums:
            sums[since_s] = _Sums(store, since_s, single_s, single, known)
        rows.clear()
        for spent in sums[since_s].of(rule):
            if spent.started_us and spent.started_us < window.start_s * US:
                continue
            for subject in subjects(rule, spent.spender):
                if subject not in rows:
                    who = f"{spent.spender.key_id} {spent.spender.key_name}" if rule.scope == "key" else subject
                    rows[subject] = table.row(rule, subject, who, now_s)
                row = rows[subject]
                if row is not None and (is_back or spent.started_us < memory.since_us(row)):
                    if is_back and row not in counted:
                        counted[row] = memory.counted(row, window.number)
                    more = spent.tokens if rule.budget.is_tokens else spent.nano
                    amounts[row] = (window, amounts.get(row, (window, 0))[1] + more)
    for row, (window, amount) in amounts.items():
        base = amount
        if row in counted:
            # Never less than before: calls that have just ended are counted, and kept in a moment.
            base = max(amount - counted[row], memory.base(row, window.number))
        memory.set_base(row, window.number, base)
        memory.open_window(row, window)
    return len(amounts)


def restore_spent(
    memory: BudgetMemory,
    snapshot: Snapshot,
    rings: Iterable[RecordRing],
    rules: Iterable[BudgetRule],
    keys: Iterable[KeyEntry],
    now_s: float,
    *,
    is_on_top: bool = False,
) -> tuple[int, bool]:
    """Write what a snapshot has, and what rings had since, into the rows of these budgets.

    is_on_top: they have what was spent before that. Return how many rows have spent something, and whether that is all:
    False: records are lost.
    """
    known = {caller_of(key).id.hex(): key for key in keys}
    table, now_us = BudgetTable(memory, 0), round(now_s * US)
    found = {rule_digest(rule.identity): rule for rule in by_identity(rules).values()}
    windows = {digest: window_at(rule.budget, now_s) for digest, rule in found.items()}
    amounts: dict[int, tuple[BudgetWindow, int]] = {}
    for saved in snapshot.budgets:
        rule, label = found.get(saved.rule), BudgetLabel.read(saved.label.encode())
        name = bytes.fromhex(saved.name)
        if rule is None or label is None:
            continue
        row = memory.claim(memory.tag_of(name), open_ended=saved.is_open_ended)
        if row is None:
            continue
        label = label._replace(name=rule.name, soft=rule.budget.soft)
        memory.settle_in(row, name, label, rule.budget.limit, now_us, saved.rule)
        if saved.number == windows[saved.rule].number:
            amounts[row] = windows[saved.rule], saved.spent
    # There may be thousands of keys with rules of their own, and thousands of records.
    by_owner: dict[tuple[str, str], list[int]] = {}
    for digest, rule in found.items():
        by_owner.setdefault((rule.scope, rule.owner) if rule.owner else ("", ""), []).append(digest)
    is_whole = True
    for call in (call for ring in rings for call in snapshot.later_calls(ring)):
        if call is None:
            is_whole = False
        elif call.attempt:  # no copy for a mirror
            spent = _spent(call, known)
            who = spent.spender
            for owner in (("", ""), ("key", who.key_id), ("team", who.team), ("user", who.user)):
                for digest in by_owner.get(owner, ()):
                    rule, window = found[digest], windows[digest]
                    for subject in subjects(rule, who) if call.started_us >= window.start_s * US else ():
                        shown = f"{who.key_id} {who.key_name}" if rule.scope == "key" else subject
                        row = table.row(rule, subject, shown, now_s)
                        if row is not None:
                            more = spent.tokens if rule.budget.is_tokens else spent.nano
                            amounts[row] = window, amounts.get(row, (window, 0))[1] + more
    for row, (window, amount) in amounts.items():
        before = memory.base(row, window.number)
        memory.set_base(row, window.number, before + amount if is_on_top else max(amount, before))
        memory.open_window(row, window)
    return len(amounts), is_whole


# Of what sums are kept by, beside tags: a key as records have it, its team, its user, and a model.
_Group: TypeAlias = tuple[str, str, str, str]


class _Sums:
    """What was spent since some time: by whose it was, for each of thousands of keys may have a budget of its own.

    Teams, users and tags are those that its key had when a call was made, whatever it has now. Tags of its request
    count for no budget.
    """

    def __init__(
        self, store: Store, since_s: int, until_s: int, single: Sequence[_Spent], keys: Mapping[str, KeyEntry]
    ) -> None:
        self._store: Final = store
        self._since_s: Final = since_s
        self._until_s: Final = until_s
        self._single: Final = single
        self._keys: Final = keys
        self._groups: Final = {_group(each.group): each.sums for each in self._totals()}
        self._all: Final = [*self._of(self._groups.items()), *single]
        self._by_owner: Final[dict[tuple[str, str], list[_Spent]]] = {}
        for each in self._all:
            who = each.spender
            for owner in (("key", who.key_id), ("team", who.team), ("user", who.user)):
                self._by_owner.setdefault(owner, []).append(each)
        self._by_tag: list[tuple[_Group, str, Sums]] | None = None  # it is asked for where a rule needs it
        self._tagged: Final[dict[tuple[str, ...], Sequence[_Spent]]] = {}

    def of(self, rule: BudgetRule) -> Sequence[_Spent]:
        """Return what a rule may count."""
        if rule.owner:
            return self._by_owner.get((rule.scope, rule.owner), ())
        if rule.scope != "tag" and not rule.tags:
            return self._all
        # A call with two tags is in the budget of each, and once in that of a rule which counts calls of either.
        tags = () if rule.scope == "tag" else rule.tags
        if tags not in self._tagged:
            found = self._under_either(tags) if tags else self._under_each()
            self._tagged[tags] = [*found, *self._single]
        return self._tagged[tags]

    def _under_each(self) -> Iterator[_Spent]:
        for group, tag, sums in self._tags():
            yield from self._of([(group, sums)], (tag,))

    def _under_either(self, tags: Sequence[str]) -> Iterator[_Spent]:
        """Yield what calls with one of these tags cost. Of calls with several, sums can't tell: too much, never less.

        It is not more than the same key spent in all on the model.
        """
        found: dict[_Group, Sums] = {}
        for group, tag, sums in self._tags():
            if tag in tags:
                found[group] = found.get(group, Sums()).plus(sums)
        for group, sums in found.items():
            bounded = Sums(*map(min, sums, self._groups.get(group, sums)))
            yield from self._of([(group, bounded)], tags)

    def _tags(self) -> list[tuple[_Group, str, Sums]]:
        if self._by_tag is None:
            self._by_tag = [
                (_group(each.group), each.group[4], each.sums)
                for each in self._totals("tag")
                if keys_tags(each.group[4:])
            ]
        return self._by_tag

    def _totals(self, *more: Dimension) -> list[Total]:
        if self._since_s >= self._until_s:
            return []
        by: tuple[Dimension, ...] = ("key", "team", "user", "model", *more)
        found = self._store.totals(UsageQuery(self._since_s, self._until_s, by))
        return [each for each in found if each.group[0] != MIRRORED]

    def _of(self, sums: Iterable[tuple[_Group, Sums]], tags: Sequence[str] = ()) -> Iterator[_Spent]:
        for group, each in sums:
            yield _Spent(_spender(group, tuple(tags), self._keys), each.cost_nano, each.input + each.output)


def _group(values: tuple[str, ...]) -> _Group:
    key, team, user, model = values[:4]
    return key, team, user, model


def _single(store: Store, since_s: int, until_s: int, keys: Mapping[str, KeyEntry]) -> Iterator[_Spent]:
    for call in store.calls(UsageQuery(since_s, until_s)):
        if call.attempt:  # no copy for a mirror
            yield _spent(call, keys)


def _spent(call: Call, keys: Mapping[str, KeyEntry]) -> _Spent:
    tokens = (call.tokens.input or 0) + (call.tokens.output or 0)
    spender = _spender((call.key, call.team, call.user, call.model), keys_tags(call.tags), keys)
    return _Spent(spender, call.cost_nano or 0, tokens, call.started_us)


def _spender(group: _Group, tags: tuple[str, ...], keys: Mapping[str, KeyEntry]) -> Spender:
    """Return who spent it. A key is called as it is now."""
    key, team, user, model = group
    key_id, _, name = key.partition(" ")
    entry = keys.get(key_id)
    return Spender(key_id, name if entry is None else entry.caller_name, team, user, tags, model)


def _since(start_s: int, now_s: float) -> int:
    """Return from when on sums are asked for, so that they are kept as short as that needs."""
    age_s = now_s - start_s
    unit_s = _MINUTE_S if age_s < _MINUTES_S else _HOUR_S if age_s < _HOURS_S else _DAY_S
    return start_s // unit_s * unit_s


class _Due(NamedTuple):
    """Rules to read, by identity. at_s: not before (monotonic). changed_s: since when they may have counted (Unix).

    heads: of the rings, when they came: all before must be kept first. back: identities of those that have counted here
    before. again_s: a reading of them has failed, and is tried again after so long; 0: none has.
    """

    at_s: float
    changed_s: float
    rules: Mapping[str, BudgetRule]
    heads: tuple[int, ...]
    back: frozenset[str] = frozenset()
    again_s: float = 0.0


def _together(due: Sequence[_Due]) -> _Due:
    rules: dict[str, BudgetRule] = {}
    for each in due:
        rules.update(each.rules)
    at_s, changed_s = max(each.at_s for each in due), min(each.changed_s for each in due)
    back = frozenset[str]().union(*(each.back for each in due))
    heads = tuple(map(max, zip(*(each.heads for each in due), strict=True)))
    return _Due(at_s, changed_s, rules, heads, back, max(each.again_s for each in due))


class BudgetBackfill:
    """Of one gateway, in its supervisor. pid: of the child that reads, 0: none. wall_s: Unix time.

    fork: starts one; 0: it can't now.
    """

    def __init__(
        self,
        settings: Settings,
        memory: BudgetMemory,
        folder: LedgerFolder,
        logger: logging.Logger,
        fork: Callable[[Callable[[], int]], int],
        start_s: float = _START_S,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._wall_s: Final = wall_s
        self._ahead_s: float | None = None  # of monotonic time
        self._n_came_back = 0
        self._is_stepped = False
        self._next_step_s = 0.0
        self._start_s: Final = start_s
        self._book: Final = RuleBook()
        self._settings: Final = settings
        self._memory: Final = memory
        self._folder: Final = folder
        self._logger: Final = logger
        self._fork: Final = fork
        self._fixed: Sequence[BudgetRule] = ()  # rules of the settings
        self._due: list[_Due] = []
        self._reading: _Due | None = None  # what the child reads
        self._had: Final[set[str]] = set()  # identities of the rules that have counted
        self._lacking: frozenset[int] = frozenset()  # digests of those of which nobody knows what was spent before
        self.pid = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        memory: BudgetMemory | None,
        folder: LedgerFolder | None,
        logger: logging.Logger,
        fork: Callable[[Callable[[], int]], int],
    ) -> Self | None:
        """Return that of a gateway; None: it records nothing, so nothing is counted."""
        return None if memory is None or folder is None else cls(settings, memory, folder, logger, fork)

    def __repr__(self) -> str:
        return f"<BudgetBackfill pid={self.pid} {self._book!r}>"

    def begin(
        self, keys: Sequence[KeyEntry], is_stopped: Callable[[], bool], on_reaped: Callable[[int], object]
    ) -> None:
        """Read what was spent before the start, and wait for that. Without budgets there is nothing to read."""
        self._fixed = self._settings.budgets
        own = self._book.change({key.digest: key for key in keys})
        rules = (*self._fixed, *own)
        if not rules:
            return
        self._had.update(rule.identity for rule in rules)
        pid = self._fork(partial(self._read, rules, keys, None))
        code: int | None = _HAS_FAILED
        if pid:
            code = wait_for(pid, self._start_s, is_stopped)
            on_reaped(pid)
        if code == _IS_READ:
            return
        if code is None and not is_stopped():
            self._logger.error(
                "budgets: earlier spend in the ledger could not be read in %(seconds)g s", {"seconds": self._start_s}
            )
        if code != _IS_WAITING and not is_stopped():
            self._restore(rules, keys, is_stopped, on_reaped)
        self._read_later(rules)

    def go_on(self, keys: Sequence[KeyEntry]) -> None:
        """Begin with the table of the version before, which has counted its part: the rest is read while it counts."""
        own = self._book.change({key.digest: key for key in keys})
        rules = (*self._settings.budgets, *own)
        self._fixed = self._settings.budgets
        self._had.update(rule.identity for rule in rules)
        self.read_again()

    def read_again(self) -> None:
        """Read what was spent once more, as after a step of the clock: others have counted elsewhere meanwhile."""
        self._is_stepped = True

    def _restore(
        self,
        rules: Sequence[BudgetRule],
        keys: Sequence[KeyEntry],
        is_stopped: Callable[[], bool],
        on_reaped: Callable[[int], object],
    ) -> None:
        """Have a child take what was saved, and wait for that."""
        self._memory.set_lacking(None)
        pid = self._fork(partial(self._take_saved, rules, keys))
        if pid:
            wait_for(pid, _RESTORE_S, is_stopped)
            on_reaped(pid)
        self._lacking = self._now_lacking(rules)
        if self._lacking:
            message = (
                "budgets: earlier spend of %(unknown)d of %(rules)d rules is unknown: %(effect)s "
                "(VELOX_BUDGETS_UNREAD=%(policy)s)"
            )
            policy = self._settings.budgets_unread
            what = {
                "strict": "strict ones refuse until it is read, others begin at 0",
                "refuse": "they refuse until it is read",
                "allow": "they begin at 0 until it is read",
            }[policy]
            n, n_rules = len(self._lacking), len(by_identity(rules))
            self._logger.error(message, {"unknown": n, "rules": n_rules, "effect": what, "policy": policy})

    def _now_lacking(self, rules: Iterable[BudgetRule]) -> frozenset[int]:
        digests = frozenset(rule_digest(rule.identity) for rule in rules)
        found = self._memory.lacking()
        return digests if found is None else digests & found

    def _take_saved(self, rules: Sequence[BudgetRule], keys: Sequence[KeyEntry]) -> int:
        """Be the child."""
        logger, path = operations_logger(sys.stderr), self._folder.path
        try:
            snapshot = read_snapshot(path)
            known = known_rules(path) - snapshot.lacking
        except (OSError, SnapshotError) as exc:
            why = "there is none" if isinstance(exc, FileNotFoundError) else str(exc)
            logger.error("budgets: earlier spend can't be restored from budgets.snapshot: %(error)s", {"error": why})
            snapshot, known = Snapshot.nothing(), frozenset()
        n, is_whole = restore_spent(self._memory, snapshot, self._folder.all, rules, keys, self._wall_s())
        if not is_whole:
            logger.error("budgets: some records since budgets.snapshot are missing from the rings")
            known = frozenset()
        lacking = {rule_digest(rule.identity) for rule in rules} - known
        self._memory.set_lacking(lacking)
        if n:
            logger.warning(
                "budgets: %(budgets)d restored from budgets.snapshot and the rings, until the ledger is read",
                {"budgets": n},
            )
        return 0

    def _read_later(self, rules: tuple[BudgetRule, ...]) -> None:
        """Read while the gateway serves, however long that takes: calls from now on are looked at one by one."""
        due = _Due(time.monotonic() + _SETTLED_S, self._wall_s(), by_identity(rules), self._heads(), again_s=_AGAIN_S)
        self._due.append(due)
        self._memory.is_unread = True

    def _heads(self) -> tuple[int, ...]:
        return tuple(ring.head for ring in self._folder.all)

    def look(self, rules: Sequence[BudgetRule], keys: KeyChanges, now_s: float) -> None:
        """Look whether there are new budgets, and have read what was spent of them. now_s: monotonic.

        keys: what has changed since the last time.
        """
        new: list[BudgetRule] = []
        if rules is not self._fixed:
            known = {rule.identity for rule in self._fixed} | self._book.rules.keys()
            new += [rule for rule in rules if rule.identity not in known]
            self._fixed = rules
        if keys.update:
            fixed = {rule.identity for rule in self._fixed}
            new += [rule for rule in self._book.change(keys.update) if rule.identity not in fixed]
        if self._has_stepped(now_s):
            new = [*self._fixed, *self._book.rules.values()]
        if new:
            found = by_identity(new)
            back = frozenset(found.keys() & self._had)
            self._due.append(_Due(now_s + _SETTLED_S, self._wall_s(), found, self._heads(), back))
            self._had.update(found)
        if not self.pid and self._is_due(now_s):
            self._start(keys.all(), now_s)

    def _is_due(self, now_s: float) -> bool:
        times = [each.at_s for each in self._due]
        return bool(times) and now_s >= min(max(times), min(times) + _GATHER_S)

    def _start(self, keys: Sequence[KeyEntry], now_s: float) -> None:
        """Have what is due read; what has changed a moment ago stays due."""
        reading = _together([each for each in self._due if each.at_s <= now_s])
        self._due = [each for each in self._due if each.at_s > now_s]
        # Of a limit that has changed meanwhile the last counts.
        latest, fixed = self._book.rules, by_identity(self._fixed)
        rules = [latest.get(identity, fixed.get(identity, rule)) for identity, rule in reading.rules.items()]
        self.pid = self._fork(partial(self._read, rules, keys, reading))
        if self.pid:
            self._reading = reading
        else:
            self._due.append(reading._replace(at_s=now_s + _SETTLED_S))

    def _has_stepped(self, now_s: float) -> bool:
        """Say whether the clock was set, by so much that budgets may have been in another window."""
        ahead_s, n = self._wall_s() - now_s, self._memory.n_came_back
        before_s, self._ahead_s = self._ahead_s, ahead_s
        has_stepped = before_s is not None and abs(ahead_s - before_s) > MOST_AHEAD_S
        if self._is_stepped:
            self._is_stepped = False
            return True
        # A step that was taken back at once is seen by what requests have made of it.
        if has_stepped or (n != self._n_came_back and now_s >= self._next_step_s):
            self._n_came_back, self._next_step_s = n, now_s + _STEPPED_S
            return True
        return False

    def died(self, now_s: float, *, ended_well: bool) -> None:
        """Note that the child was reaped. What it could not read is read again."""
        self.pid = 0
        reading, self._reading = self._reading, None
        if reading is not None:
            digests = {rule_digest(identity) for identity in reading.rules}
            if ended_well:
                self._lacking -= digests
            else:
                if not reading.again_s:  # they are new, or are back with what they had
                    self._lacking |= digests - {rule_digest(identity) for identity in reading.back}
                again_s = reading.again_s or _AGAIN_S
                self._due.append(reading._replace(at_s=now_s + again_s, again_s=min(2 * again_s, _MOST_AGAIN_S)))
        self._memory.set_lacking(self._lacking)
        self._memory.is_unread = any(each.again_s for each in self._due)

    def _read(self, rules: Sequence[BudgetRule], keys: Sequence[KeyEntry], reading: _Due | None) -> int:
        """Be the child. reading: what is read while the gateway serves; None: it does not yet."""
        logger = operations_logger(sys.stderr)
        changed_s, back = (None, frozenset[str]()) if reading is None else (reading.changed_s, reading.back)
        # Where Redis adds up what all gateways have spent, each brings what it spent itself.
        is_own = self._settings.redis_url is not None
        opened = partial(record_store, self._settings, is_own=is_own)
        is_lost = changed_s is None and self._is_lost()
        try:
            if reading is not None:
                self._check_kept(reading.heads)
            with contextlib.closing(opened(is_reader=changed_s is not None)) as store:
                if changed_s is None:  # the ledger's process has not begun
                    collector = Collector(
                        self._folder.all, store, time.time, tell=partial(logger.warning, "%s"), checks=False
                    )
                    while collector.collect():
                        pass
                n = read_spent(self._memory, store, rules, keys, self._wall_s(), changed_s, back)
        except StoreError as exc:
            if reading is not None:
                again_s = reading.again_s or _AGAIN_S
                logger.error(
                    "budgets: earlier spend can't be read from the ledger: %(error)s; next try in %(next_s)g s",
                    {"error": exc, "next_s": again_s},
                )
                return _HAS_FAILED
            try:
                if self._settings.ledger_database is not None:  # this one has been waited for
                    raise
                # A full disk takes nothing, and has what it took.
                with contextlib.closing(opened(is_reader=True, without_room=True)) as store:
                    n = read_spent(self._memory, store, rules, keys, self._wall_s())
                    waiting, rings = Snapshot.of_store(store, self._folder.all), self._folder.all
                    restore_spent(self._memory, waiting, rings, rules, keys, self._wall_s(), is_on_top=True)
            except StoreError:
                logger.error("budgets: earlier spend can't be read from the ledger: %(error)s", {"error": exc})
            else:
                logger.error(
                    "budgets: %(budgets)d restored from the ledger and from records that still wait: %(error)s",
                    {"budgets": n, "error": exc},
                )
                return _IS_WAITING
            return _HAS_FAILED
        if is_lost:
            self._take_lost(rules, keys, logger)
        elif n:
            logger.info("budgets: %(budgets)d restored from the ledger", {"budgets": n})
        with contextlib.suppress(OSError):  # the next start without a ledger knows less
            learn_rules(self._folder.path, (rule_digest(rule.identity) for rule in rules), is_start=reading is None)
        return _IS_READ

    def _check_kept(self, heads: Sequence[int]) -> None:
        """Raise StoreError if records from before are not kept yet: they are in no sum."""
        n = sum(max(0, head - ring.tail) for ring, head in zip(self._folder.all, heads, strict=True))
        if n:
            raise StoreError(f"{n} records wait to be kept")

    def _is_lost(self) -> bool:
        """Say whether the database is not there, though budgets were saved beside it."""
        folder = self._folder.path
        if self._settings.ledger_database is not None:
            return False
        return has_snapshot(folder) and not has_records(folder)

    def _take_lost(self, rules: Sequence[BudgetRule], keys: Sequence[KeyEntry], logger: logging.Logger) -> None:
        """A database that was taken away has nothing: nobody may spend again what is saved."""
        with contextlib.suppress(OSError, SnapshotError):
            snapshot = read_snapshot(self._folder.path)
            n, _ = restore_spent(self._memory, snapshot, (), rules, keys, self._wall_s())
            logger.error(
                "budgets: the ledger's database is missing, %(budgets)d restored from budgets.snapshot", {"budgets": n}
            )
