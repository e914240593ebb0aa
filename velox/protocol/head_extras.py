"""Plans for heads that have more fields than any that came before: what is known is found by the rest.

Knows: which fields may stand beside a plan, and how often such a head is read afresh all the same. Does not know: what
follows from a plan (http1_head.py).

A field may stand beside a plan if nobody looks for its name: then a head with it is treated as one without it, and the
field is passed on. So a client that invents names pays for these lines alone, and neither fills a memory nor has each
of its heads read afresh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from velox.protocol.head_memory import VALUE, HeadLines, LineMark, Marks, Plan
from velox.protocol.http1_fields import only_pass
from velox.types import Headers

__all__ = ["Beside", "PlansBeside"]

S = TypeVar("S")  # what follows from the known lines

_MOST_BASES: Final = 256
_PLANS_OF_BASE: Final = 4
# So many heads that taught nothing, then one in a few is read afresh, so that what is new in each may still be learnt;
# and of every other one only the fields that came before are.
_IN_VAIN: Final = 16
_SELDOM: Final = 32
_LINE: Final = rb"[A-Za-z0-9.-]+: " + VALUE
_LINES: Final = re.compile(rb"%b(?:\n%b)*" % (_LINE, _LINE))
# Of a Connection: others name fields that must not pass.
_PLAIN_CONNECTIONS: Final = (None, b"keep-alive", b"close")


class Beside(NamedTuple, Generic[S]):
    """A head as a plan has it. values: what its check has found. extras: the other fields."""

    plan: Plan[bytes, S]
    values: tuple[bytes, ...]
    extras: Headers


class _Base(NamedTuple, Generic[S]):
    """spelled: names of the lines that the plan has no marks for. names: of the fields that pass, lower-case."""

    plan: Plan[bytes, S]
    spelled: frozenset[bytes]
    names: frozenset[bytes]


class PlansBeside(Generic[S]):
    """The plans of a reader of heads, by the known lines of their heads alone."""

    __slots__ = ("_bases", "_most_fields", "_n_found", "_n_vain")

    def __init__(self, most_fields: int) -> None:
        """most_fields: of one head."""
        self._most_fields: Final = most_fields
        self._bases: Final[dict[tuple[LineMark, ...], tuple[_Base[S], ...]]] = {}
        self._n_found = 0
        self._n_vain = 0

    def __repr__(self) -> str:
        return f"<PlansBeside {len(self._bases)}>"

    def clear(self) -> None:
        """Forget everything."""
        self._bases.clear()

    @property
    def learns_less(self) -> bool:
        """True if a plan for the known fields of a head is worth more now than one for all of them."""
        return self._n_vain >= _IN_VAIN and self._n_vain % 2 == 0

    def keep(self, marks: Marks, plan: Plan[bytes, S], head: HeadLines[bytes], connection: bytes | None) -> None:
        """Take a plan. connection: what the head's Connection says."""
        if connection not in _PLAIN_CONNECTIONS:
            return
        if len(self._bases) >= _MOST_BASES:
            self._bases.clear()
        known = tuple(filter(None, marks))
        spelled = frozenset(start.removesuffix(b": ") for start in plan.starts)
        names = frozenset(field[0] for field in head.fields if field is not None)
        bases = (*self._bases.get(known, ()), _Base(plan, spelled, names))
        # The one that knows most first. What is dropped is read afresh.
        self._bases[known] = tuple(sorted(bases, key=lambda base: -len(base.spelled)))[:_PLANS_OF_BASE]

    def learnt(self, *, has_plan: bool) -> None:
        """Take note of a head that was read afresh. has_plan: heads of its kind have one now."""
        self._n_vain = 0 if has_plan else self._n_vain + 1

    def find(self, lines: Sequence[bytes], marks: Marks) -> Beside[S] | None:
        """Return what is known of a head that has no plan of its own; None: it must be read afresh."""
        if marks[0] is None:
            return None  # a request line that no plan knows
        bases = self._bases.get(tuple(filter(None, marks)))
        if bases is None or len(lines) > self._most_fields + 3:  # the request line, and two empty ones at the end
            return None
        pairs = [line.split(b": ", 1) for line, mark in zip(lines, marks, strict=True) if mark is None]
        try:
            given = dict(pairs)
        except ValueError:
            return None  # a line without a space behind its colon
        if len(given) != len(pairs):
            return None
        for base in bases:
            if given.keys() >= base.spelled:
                break
        else:
            return None
        plan = base.plan
        checked = plan.check(b"\n".join([*[start + given.pop(start[:-2]) for start in plan.starts], b""]))
        if checked is None or _LINES.fullmatch(b"\n".join(map(b": ".join, given.items()))) is None:
            return None
        text = b"\n".join(given).lower()
        names = text.split(b"\n")
        if len({*names}) < len(names) or not base.names.isdisjoint(names) or not only_pass(names, text):
            return None
        self._n_found += 1
        if self._n_vain < _IN_VAIN or not self._n_found % _SELDOM:
            return None
        return Beside(plan, checked.groups(), list(zip(names, given.values(), strict=True)))
