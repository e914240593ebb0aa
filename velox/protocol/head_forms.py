"""Known heads of HTTP/1.1, each found by one pattern: no line of it is looked up by itself.

Knows: where the volatile fields of a plan stand. Does not know: how plans come about (head_memory.py), or what a plan
says.

A form is what all heads with the same volatile fields in the same places have in common. Its pattern takes a head
apart: into the values of these fields, and the texts between them. The texts find the plan; they must be, byte for
byte, those of a head that was found by its lines before. A head that no form finds is read by its lines, with the same
result in three times as many instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Generic, TypeAlias, TypeVar

from velox.protocol.head_memory import LENGTH, MOST_HEAD_BYTES, VALUE, Plan, picker

__all__ = ["Found", "HeadForms"]

S = TypeVar("S")  # what follows from a plan

# The pattern of a form that does not fit has to fail before the next one is tried: early most often, for two client
# libraries send different fields first.
_MOST_FORMS: Final = 8
_LINE: Final = rb".*+\n"

# A head that is known: its plan, the values of its volatile fields as the plan has them, and where it ends.
Found: TypeAlias = tuple[Plan[bytes, S], tuple[bytes, ...], int]
_Groups: TypeAlias = tuple[bytes, ...]


class _Form(Generic[S]):
    """One form. match: matches a head. texts, values: take these from the groups of a match. plans: by the texts."""

    __slots__ = ("match", "plans", "texts", "values")

    def __init__(self, plan: Plan[bytes, S], n_lines: int) -> None:
        """n_lines: of a head, without the empty ones at its end."""
        starts = dict(zip(plan.places, plan.starts, strict=True))
        length_at = plan.places[-1] if plan.has_length else -1
        pattern = b""
        texts: list[int] = []
        values: dict[int, int] = {}  # the group of the value in each place
        at = 0
        for place in (*sorted(plan.places), n_lines):
            if place > at:
                texts.append(len(texts) + len(values))
                pattern += rb"(" + (place - at) * _LINE + rb")"
            if place < n_lines:
                values[place] = len(texts) + len(values)
                value = LENGTH if place == length_at else VALUE
                pattern += re.escape(starts[place]) + rb"(" + value + rb")\r\n"
            at = place + 1
        self.match: Final = re.compile(pattern + rb"\r\n").match
        self.texts: Final[Callable[[_Groups], object]] = itemgetter(*texts)
        self.values: Final = picker([values[place] for place in plan.places])
        self.plans: Final[dict[object, Plan[bytes, S]]] = {}


class HeadForms(Generic[S]):
    """The forms of one reader of heads. Those that heads have most often come first. most_plans: that it may hold."""

    __slots__ = ("_forms", "_most_plans", "_n_plans", "_order")

    def __init__(self, most_plans: int) -> None:
        self._most_plans: Final = most_plans
        self._forms: Final[dict[tuple[object, ...], _Form[S]]] = {}
        self._order: Final[list[_Form[S]]] = []
        self._n_plans = 0

    def __repr__(self) -> str:
        return f"<HeadForms {len(self._forms)} forms, {self._n_plans} plans>"

    def clear(self) -> None:
        """Forget everything."""
        self._forms.clear()
        self._order.clear()
        self._n_plans = 0

    def find(self, data: bytes | bytearray, at: int = 0) -> Found[S] | None:
        """Find the head that begins at `at`. None: it is not whole, too long, or must be read by its lines."""
        order = self._order
        for n, form in enumerate(order):
            match = form.match(data, at, at + MOST_HEAD_BYTES)
            if match is None:
                continue
            groups = match.groups()
            plan = form.plans.get(form.texts(groups))
            if plan is None:
                continue
            if n:
                order[n], order[n - 1] = order[n - 1], form
            return plan, form.values(groups), match.end()
        return None

    def keep(self, plan: Plan[bytes, S], head: bytes, n_lines: int) -> None:
        """Have heads like this one found, which was found by its lines to have that plan. n_lines: as for _Form."""
        layout = (plan.places, plan.starts, n_lines)
        form = self._forms.get(layout)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:
                self.clear()  # what is in use is found by its lines once more
            form = self._forms[layout] = _Form(plan, n_lines)
            self._order.append(form)
        match = form.match(head)
        if match is None:
            return
        texts = form.texts(match.groups())
        if texts not in form.plans:
            if self._n_plans >= self._most_plans:
                for each in self._order:
                    each.plans.clear()
                self._n_plans = 0
            self._n_plans += 1
        form.plans[texts] = plan
