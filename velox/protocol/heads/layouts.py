"""Known heads of HTTP/1.1, each found by one pattern: no line of it is looked up by itself.

Knows: where the volatile fields of a plan stand. Does not know: how plans come about (heads/memory.py), or what a plan
says.

A form is what all heads with the same volatile fields in the same places have in common. Its pattern takes a head
apart: into the values of these fields, and the texts between them. The texts find the plan; they must be, byte for
byte, those of a head that was found by its lines before. A head that no form finds is read by its lines, with the same
result in three times as many instructions.

A form may have a place for a run of extra fields (heads/extras.py): lines of any names, as many as there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from velox.protocol.heads.memory import LENGTH, MOST_HEAD_BYTES, VALUE, picker

__all__ = ["EXTRA_LINES", "Found", "HeadForms", "Layout"]

P = TypeVar("P")  # what the texts of a form find: a plan

# The pattern of a form that does not fit has to fail before the next one is tried: early most often, for two client
# libraries send different fields first.
_MOST_FORMS: Final = 8
# Where there are that many, of so many heads that no form is there for, one has it made in the place of the last: those
# that come most often stay, however many other kinds a client sends.
_REPLACED_SELDOM: Final = 16
_LINE: Final = rb".*+\n"
# Of extra fields: names without the characters that servers read in different ways.
_EXTRA_LINE: Final = rb"[A-Za-z0-9.-]++: " + VALUE + rb"\r\n"
EXTRA_LINES: Final = rb"(?:" + _EXTRA_LINE + rb")+"

# A head that is known: its plan, the values of its volatile fields as the plan has them, and where it ends. The run of
# extra fields is one more value, the last one.
Found: TypeAlias = tuple[P, tuple[bytes, ...], int]
_Groups: TypeAlias = tuple[bytes, ...]


class Layout(NamedTuple):
    """Where the lines of volatile fields stand in a head, and how they begin, in the order of the plan's values.

    has_length: the last one is the content-length's. n_lines: of the head, without the empty ones at its end.
    run_at: where a run of extra fields stands, which counts as one line; -1: there is none. behind: how the line after
    the run begins, up to its value; b"" for the end of the head.
    """

    places: tuple[int, ...]
    starts: tuple[bytes, ...]
    has_length: bool
    n_lines: int
    run_at: int = -1
    behind: bytes = b""

    def pieces(self) -> dict[int, bytes]:
        """Return the patterns of all lines that are not the same in each head, each with a group."""
        pieces = {
            place: re.escape(start) + rb"(" + VALUE + rb")\r\n"
            for place, start in zip(self.places, self.starts, strict=True)
        }
        if self.has_length:
            pieces[self.places[-1]] = re.escape(self.starts[-1]) + rb"(" + LENGTH + rb")\r\n"
        if self.run_at >= 0:
            # Not possessive: CPython before 3.11.5 matches possessive groups wrongly (gh-106052). A line fits in one
            # way, so that giving lines back takes no more tries than there are lines.
            line = rb"(?!" + re.escape(self.behind) + rb")" + _EXTRA_LINE if self.behind else _EXTRA_LINE
            pieces[self.run_at] = rb"((?:" + line + rb")+)"
        return pieces


class _Form(Generic[P]):
    """One form. match: matches a head. texts, values: take these from the groups of a match. plans: by the texts."""

    __slots__ = ("match", "plans", "texts", "values")

    def __init__(self, layout: Layout) -> None:
        pieces = layout.pieces()
        pattern = b""
        texts: list[int] = []
        values: dict[int, int] = {}  # the group of the value in each place
        at = 0
        for place in (*sorted(pieces), layout.n_lines):
            if place > at:
                texts.append(len(texts) + len(values))
                pattern += rb"(" + (place - at) * _LINE + rb")"
            if place < layout.n_lines:
                values[place] = len(texts) + len(values)
                pattern += pieces[place]
            at = place + 1
        self.match: Final = re.compile(pattern + rb"\r\n").match
        self.texts: Final[Callable[[_Groups], object]] = itemgetter(*texts)
        places = layout.places if layout.run_at < 0 else (*layout.places, layout.run_at)
        self.values: Final = picker([values[place] for place in places])
        self.plans: Final[dict[object, P]] = {}


class HeadForms(Generic[P]):
    """The forms of one reader of heads. Those that heads have most often come first."""

    __slots__ = ("_forms", "_made_seldom", "_most_plans", "_n_plans", "_n_without", "_order")

    def __init__(self, most_plans: int, *, made_seldom: int = 1) -> None:
        """most_plans: that it may hold. made_seldom: of so many heads that no form is there for, one has it made."""
        self._most_plans: Final = most_plans
        self._made_seldom: Final = made_seldom
        self._forms: Final[dict[Layout, _Form[P]]] = {}
        self._order: Final[list[_Form[P]]] = []
        self._n_plans = 0
        self._n_without = 0

    def __repr__(self) -> str:
        return f"<HeadForms {len(self._forms)} forms, {self._n_plans} plans>"

    def clear(self) -> None:
        """Forget everything."""
        self._forms.clear()
        self._order.clear()
        self._n_plans = 0

    def find(self, data: bytes | bytearray, at: int = 0) -> Found[P] | None:
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

    def keep(self, plan: P, head: bytes, layout: Layout) -> None:
        """Have heads like this one found, which was found by its lines to have that plan."""
        form = self._forms.get(layout)
        if form is None:
            self._n_without += 1
            is_full = len(self._forms) >= _MOST_FORMS
            if self._n_without % (max(self._made_seldom, _REPLACED_SELDOM) if is_full else self._made_seldom):
                return
            if is_full:
                self._drop_last()
            form = self._forms[layout] = _Form(layout)
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

    def _drop_last(self) -> None:
        """Drop the form that is tried last: it has come most seldom, or not for a while."""
        last = self._order.pop()
        self._n_plans -= len(last.plans)
        for layout, form in self._forms.items():
            if form is last:
                del self._forms[layout]
                break
