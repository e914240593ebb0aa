"""Plans for heads that have more fields than any that came before: what is known is found by the rest.

Knows: which fields may stand beside a plan, and how often such a head is read afresh all the same. Does not know: what
follows from a plan (http1/request_head.py).

A field may stand beside a plan if nobody looks for its name: then a head with it is treated as one without it, and the
field is passed on. So a client that invents names pays for these lines alone, and neither fills a memory nor has each
of its heads read afresh.

A client puts such fields in the same place of each head. So a head with all of them in one place makes a form
(heads/layouts.py), by which the next one is found: then only the names of these fields are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from velox.heads import ExtraFields
from velox.protocol.heads.fields import only_pass
from velox.protocol.heads.layouts import EXTRA_LINES, HeadForms, Layout
from velox.protocol.heads.memory import HeadLines, LineMark, Marks, Plan

__all__ = ["Beside", "PlansBeside"]

S = TypeVar("S")  # what follows from the known lines

_MOST_BASES: Final = 256
_PLANS_OF_BASE: Final = 4
# So many heads that taught nothing, then of those with a plan beside one in a few is read afresh, so that what is new
# in each may still be learnt. Of most that have none only the fields that came before are.
_IN_VAIN: Final = 16
_SELDOM: Final = 64
_WHOLE: Final = 4
# Making a form takes as long as reading several heads. A caller that moves its fields about may not have one made for
# each head.
_FORM_MADE_SELDOM: Final = 16
_EXTRA_LINES: Final = re.compile(EXTRA_LINES)
_NAMES: Final = re.compile(rb"([^:]++): .*+\n")
# Of a Connection: others name fields that must not pass.
_PLAIN_CONNECTIONS: Final = (None, b"keep-alive", b"close")

# A head as a plan has it: the values that its check has found, and the other fields.
Beside: TypeAlias = tuple[Plan[bytes, S], tuple[bytes, ...], ExtraFields]


class _Base(NamedTuple, Generic[S]):
    """spelled: names of the lines that the plan has no marks for. names: of the fields that pass, lower-case.

    n_lines: of a head without extra fields, with the empty ones at its end.
    """

    plan: Plan[bytes, S]
    spelled: frozenset[bytes]
    names: frozenset[bytes]
    n_lines: int


class PlansBeside(Generic[S]):
    """The plans of a reader of heads, by the known lines of their heads alone."""

    __slots__ = ("_bases", "_forms", "_has_plan", "_is_due", "_most_fields", "_n_found", "_n_vain")

    def __init__(self, most_fields: int) -> None:
        """most_fields: of one head."""
        self._most_fields: Final = most_fields
        self._bases: Final[dict[tuple[LineMark, ...], tuple[_Base[S], ...]]] = {}
        self._forms: Final = HeadForms[_Base[S]](_MOST_BASES, made_seldom=_FORM_MADE_SELDOM)
        self._n_found = 0
        self._n_vain = 0
        self._is_due = False  # the head that was found last is read afresh
        self._has_plan = False  # and so was the one that find_by_lines() had last

    def __repr__(self) -> str:
        return f"<PlansBeside {len(self._bases)}>"

    def clear(self) -> None:
        """Forget everything."""
        self._bases.clear()
        self._forms.clear()

    @property
    def learns_less(self) -> bool:
        """True if a plan for the known fields of the head that came last is worth more than one for all of them."""
        return self._n_vain >= _IN_VAIN and not self._has_plan and self._n_vain % _WHOLE > 0

    def keep(self, marks: Marks, plan: Plan[bytes, S], head: HeadLines[bytes], connection: bytes | None) -> None:
        """Take a plan. connection: what the head's Connection says."""
        if connection not in _PLAIN_CONNECTIONS:
            return
        if len(self._bases) >= _MOST_BASES:
            self._bases.clear()
        known = tuple(filter(None, marks))
        spelled = frozenset(start.removesuffix(b": ") for start in plan.starts)
        names = frozenset(field[0] for field in head.fields if field is not None)
        bases = (*self._bases.get(known, ()), _Base(plan, spelled, names, len(head.lines)))
        # The one that knows most first. What is dropped is read afresh.
        self._bases[known] = tuple(sorted(bases, key=lambda base: -len(base.spelled)))[:_PLANS_OF_BASE]

    def learnt(self, *, has_plan: bool) -> None:
        """Take note of a head that was read afresh. has_plan: heads of its kind have one now."""
        self._n_vain = 0 if has_plan else self._n_vain + 1

    def find(self, data: bytes | bytearray, at: int = 0) -> tuple[Beside[S], int] | None:
        """Return what is known of the head that begins at `at`, and where it ends. None: it is read by its lines."""
        if self._n_vain < _IN_VAIN:
            return None
        found = self._forms.find(data, at)
        if found is None:
            return None
        base, values, end = found
        extras = self._extras(base, values[-1])
        if extras is None:
            return None
        self._count_found()
        return None if self._is_due else ((base.plan, values[:-1], extras), end)

    def find_by_lines(self, head: bytes, lines: Sequence[bytes], marks: Marks) -> Beside[S] | None:
        """Return what is known of a head that has no plan of its own; None: it must be read afresh."""
        self._has_plan, self._is_due = self._is_due, False
        if self._has_plan:
            return None
        if marks[0] is None:
            return None  # a request line that no plan knows
        bases = self._bases.get(tuple(filter(None, marks)))
        if bases is None:
            return None
        new = [line.split(b": ", 1) for line, mark in zip(lines, marks, strict=True) if mark is None]
        try:
            given = dict(new)
        except ValueError:
            return None  # a line without a space behind its colon
        if len(given) != len(new):
            return None
        for base in bases:
            if given.keys() >= base.spelled:
                break
        else:
            return None
        plan = base.plan
        checked = plan.check(b"\n".join([*[start + given.pop(start[:-2]) for start in plan.starts], b""]))
        run = b"\r\n".join([*map(b": ".join, given.items()), b""])
        if checked is None or _EXTRA_LINES.fullmatch(run) is None:
            return None
        extras = self._extras(base, run)
        if extras is None:
            return None
        self._count_found()
        self._has_plan, self._is_due = self._is_due, False
        if self._n_vain < _IN_VAIN or self._has_plan:
            return None
        layout = _layout(plan, lines, marks)
        if layout is not None:
            self._forms.keep(base, head, layout)
        return plan, checked.groups(), extras

    def _extras(self, base: _Base[S], run: bytes) -> ExtraFields | None:
        """Look at the names of extra fields, whose lines are well-formed. None: they may not stand beside the plan."""
        spelled = b"\n".join(_NAMES.findall(run))
        text = spelled.lower()
        names = text.split(b"\n")
        distinct = frozenset(names)
        if (
            len(distinct) < len(names)
            or base.n_lines + len(names) > self._most_fields + 3  # the request line, and two empty ones at the end
            or not base.names.isdisjoint(distinct)
            or not only_pass(distinct, text)
        ):
            return None
        return ExtraFields(distinct, run if spelled == text else _lower(run))

    def _count_found(self) -> None:
        self._n_found += 1
        self._is_due = not self._n_found % _SELDOM


def _lower(run: bytes) -> bytes:
    """Return lines with the names in lower case."""
    pairs = [line.split(b": ", 1) for line in run.split(b"\r\n")[:-1]]
    return b"".join([name.lower() + b": " + value + b"\r\n" for name, value in pairs])


def _layout(plan: Plan[bytes, S], lines: Sequence[bytes], marks: Marks) -> Layout | None:
    """Return how a head with extra fields beside that plan is laid out; None if they stand in several places."""
    new = {
        line[: line.index(b": ") + 2]: at
        for at, (line, mark) in enumerate(zip(lines, marks, strict=True))
        if mark is None
    }
    places = [new.pop(start) for start in plan.starts]
    run = list(new.values())
    first, n_extra = run[0], len(run)
    if run[-1] - first >= n_extra:
        return None
    behind = lines[first + n_extra]
    start = behind[: behind.find(b": ") + 2]
    if behind and not start.endswith(b": "):
        return None
    moved = tuple([at if at < first else at - n_extra + 1 for at in places])
    return Layout(moved, plan.starts, plan.has_length, len(lines) - n_extra - 1, first, start if behind else b"")
