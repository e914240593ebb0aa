"""Alerts of budgets: which thresholds are reached, each once in each window, and what an alert says.

Knows: thresholds and what has been told already. Does not know: where budgets are kept, a clock, or who is told
(runtime/ledger/alerts.py).

An alert has an id that follows from the budget, the window, the threshold and the limit alone: gateways that share a
budget each tell of it with the same one, and an alert that is sent again after a crash has it, too.

Who raises a limit wants to hear when most of the new one is spent. So a threshold is told again of a higher limit than
before, once more has been spent: not of what was spent, and told, before the limit was raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from velox.policy.budgets.budget import BudgetWindow, period_text, usd_text
from velox.policy.budgets.rules import BudgetLabel

__all__ = ["Alert", "AlertBook", "Level", "Told"]

# What is told of a window is forgotten so long after its end.
_KEPT_S: Final = 86_400
_WHOLE: Final = 100  # percent


class Level(NamedTuple):
    """The highest percentage that was told of a limit, and so of every lower one."""

    limit: int
    percent: int


class Told(NamedTuple):
    """Of one budget: a window's number and end (None: it has none), and the highest percentage told of it.

    is_refusing: it was told that a request was refused before 100 % of the highest limit was spent. levels: what was
    told of which limit; of a higher limit less was told.
    """

    number: int
    end_s: int | None
    percent: int
    is_refusing: bool = False
    levels: tuple[Level, ...] = ()

    def of(self, limit: int) -> int:
        """Return the highest percentage told of this limit, or of a higher one."""
        return max((each.percent for each in self.levels if each.limit >= limit), default=0)

    def at(self, limit: int, percent: int) -> Told:
        """Return it with a percentage that is told of a limit now."""
        rest = (each for each in self.levels if each.limit > limit or each.percent > percent)
        return self._replace(percent=max(self.percent, percent), levels=(*rest, Level(limit, percent)))


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold that is reached. limit, spent: in tokens or nano-dollars.

    is_refusing: less than 100 % is spent, but what is left was too little for a request.
    """

    name: bytes
    label: BudgetLabel
    window: BudgetWindow
    percent: int
    limit: int
    spent: int
    is_refusing: bool = False

    @property
    def id(self) -> str:
        """Return what no other alert has."""
        what = "refusal" if self.is_refusing else self.percent
        text = f"{self.name.hex()} {self.window.number} {what} {self.limit}"
        return f"alert_{sha256(text.encode()).hexdigest()[:24]}"

    @property
    def who(self) -> str:
        """Return whose budget it is, as people call it."""
        return self.label.who.partition(" ")[2] if self.label.scope == "key" else self.label.who

    @property
    def text(self) -> str:
        """Return it as a sentence."""
        label, budget = self.label, self.label.budget(self.limit)
        whose = f"{label.scope} {self.who}".rstrip()
        until = "" if self.window.end_s is None else f", until {_time(self.window.end_s)}"
        spent = f"{self._amount(self.spent)} of {self._amount(self.limit)}"
        period = f"{period_text(budget)}{until}"
        what = f"has reached {self.percent} %"
        if self.is_refusing:
            what = "refuses requests that may cost more than is left"
        return f"budget of {whose} {what}: {spent} are spent ({label.name}, {period})"

    def fields(self) -> Mapping[str, object]:
        """Return it as JSON has it. Dollars are decimal texts, as everywhere."""
        label = self.label
        amount = int if label.is_tokens else usd_text
        return {
            "id": self.id,
            "type": "budget.threshold",
            "text": self.text,
            "threshold_percent": self.percent,
            "budget": {
                "scope": label.scope,
                "name": self.who,
                "budget": label.name,
                "window": period_text(label.budget(self.limit)),
                "window_start": _time(self.window.start_s),
                "window_end": None if self.window.end_s is None else _time(self.window.end_s),
                "unit": "tokens" if label.is_tokens else "usd",
                "limit": amount(self.limit),
                "spent": amount(self.spent),
            },
        }

    def _amount(self, n: int) -> str:
        return f"{n} tokens" if self.label.is_tokens else f"${usd_text(n)}"


def _time(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class AlertBook:
    """What was told of each budget, by its name. told: from before."""

    def __init__(self, told: Mapping[str, Told] | None = None) -> None:
        self._told: Final[dict[str, Told]] = dict(told or {})
        # How many requests had been refused when a limit was raised: these say nothing of the present one.
        self._refused_before: Final[dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"<AlertBook {len(self._told)}>"

    @property
    def told(self) -> Mapping[str, Told]:
        """What is to be known after a restart."""
        return self._told

    def look(
        self,
        name: bytes,
        label: BudgetLabel,
        window: BudgetWindow,
        limit: int,
        spent: int,
        *,
        is_refusing: bool = False,
        n_refused: int = 0,
    ) -> list[Alert]:
        """Return the alerts of thresholds that are reached and were not told yet; now they are.

        is_refusing: in this window too little was left for a request. Who wants to know of 100 % is told of that, too:
        of a limit hardly ever just nothing is left. But one request may have been very large, so 100 % is told besides.
        n_refused: requests for which too little was left, in all windows: what comes after a raise is of its limit.
        """
        if not label.soft or not (spent or is_refusing):
            return []
        key = name.hex()
        before = self._told.get(key)
        if before is not None and before.number > window.number:
            return []  # the clock was set back
        is_same = before is not None and before.number == window.number
        told = before if before is not None and is_same else Told(window.number, window.end_s, 0)
        if not is_same:
            self._refused_before.pop(key, None)
        reached = [each for each in label.soft if spent * 100 >= limit * each]
        if is_same and all(each.limit < limit for each in told.levels):
            # It was raised, or an earlier Velox has written what was told, without the limit.
            known = told.percent if not told.levels else max((n for n in reached if n <= told.percent), default=0)
            if told.levels:
                told = told._replace(is_refusing=False)
                self._refused_before[key] = n_refused
            told = self._told[key] = told.at(limit, known)
        percent = told.of(limit)
        alerts = [Alert(name, label, window, each, limit, spent) for each in reached if each > percent]
        percent = max(reached, default=percent)
        refuses_now = is_refusing and n_refused > self._refused_before.get(key, -1)
        refuses_now = refuses_now and not told.is_refusing and _WHOLE in label.soft and percent < _WHOLE
        if refuses_now:
            alerts.append(Alert(name, label, window, _WHOLE, limit, spent, is_refusing=True))
        if alerts:
            told = told.at(limit, max(percent, told.of(limit)))
            self._told[key] = told._replace(is_refusing=told.is_refusing or refuses_now)
        return alerts

    def forget(self, now_s: float) -> None:
        """Forget windows that are long over."""
        over = [key for key, told in self._told.items() if told.end_s is not None and told.end_s + _KEPT_S < now_s]
        for key in over:
            del self._told[key]
            self._refused_before.pop(key, None)
