"""Memory of heads by their lines: a head is found again though the values of its volatile fields are new.

Knows: which lines came before, which names have a new value in each head, how much one caller may add. Does not know:
how a head is read (http1/request_head.py, http2/head_reader.py, http1/response_head.py), or what a line means.

A line is what a protocol looks up as one: the bytes of an HTTP/1.1 line, or a field of HTTP/2. Each known line has a
mark. The marks of a head's lines, with None for each line that is not known, find its plan: what follows from the known
lines, and which fields must stand where None is. Two heads with the same plan have the same lines everywhere else.

A field is volatile once its line was new several times in a row. Lines of volatile fields are not kept. Which fields
are never volatile is said by the readers: those that Velox acts on. Credentials always are: heads of many callers that
differ in nothing else have one plan, and no plan holds anything that only one caller has sent.

What is in use stays. When the memory is full all of it is put aside; what is found there comes back, the rest goes when
the memory is full again. One caller may add a part of it before that, so that it can't fill it by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from velox.heads import Header, ShapeField

__all__ = [
    "LENGTH",
    "MOST_HEAD_BYTES",
    "VALUE",
    "Bounds",
    "HeadLines",
    "LineMark",
    "LineMemory",
    "Marks",
    "Plan",
    "picker",
]

MOST_HEAD_BYTES: Final = 4096
_NEW_IN_A_ROW: Final = 4

_PLANS_OF_MARKS: Final = 4
_LINE_BYTES: Final = 512
_LINES_OF_HEAD: Final = 128
_VOLATILE_OF_HEAD: Final = 16
# Of a caller's part: a field that becomes volatile counts as so many lines.
_NAME_COST: Final = 16
# What a caller has added when its heads are looked at seldom.
_OFTEN: Final = 128
_SELDOM: Final = 8
# So many heads without a plan, then each caller has its whole part again.
_HEADS_OF_A_PART: Final = 16384


class Bounds(NamedTuple):
    """What a memory may hold, twice: as much is put aside. part: of its lines, what one caller may add before that."""

    plans: int = 256
    lines: int = 4096
    n_bytes: int = 1 << 20
    names: int = 256
    part: float = 0.125


K = TypeVar("K", bound=bytes | Header)  # a line
S = TypeVar("S")  # what follows from the known lines

# Visible ASCII with spaces inside. No other character passes that a protocol could take for a line's end. A tab, which
# may stand in a value, has its head read afresh: the one range is matched in a quarter less time than two.
VALUE: Final = rb"[!-~][ -~]*+(?<! )"
# Digits that fit 64 bits, which is what others count in.
LENGTH: Final = rb"[0-9]{1,18}"
_Check: TypeAlias = Callable[[bytes], "re.Match[bytes] | None"]


def _named_lines(starts: Sequence[bytes], *, has_length: bool) -> _Check:
    """Return a check of lines that begin with `starts` and end with LF: a group for each value.

    has_length: the last one is a content-length; its digits are a group too.
    """
    values = [VALUE] * len(starts)
    if has_length:
        values[-1] = LENGTH
    pairs = zip(starts, values, strict=True)
    return re.compile(b"".join([rb"%b(%b)\n" % (re.escape(start), value) for start, value in pairs])).fullmatch


def _values(n: int) -> _Check:
    """Return a check of `n` values that each end with LF."""
    return re.compile((VALUE + rb"\n") * n).fullmatch


class LineMark:
    """The identity of a known line. field: what it says, None for a line that is no field. start: see LineMemory."""

    __slots__ = ("field", "start")

    def __init__(self, field: Header | None, start: bytes | None) -> None:
        self.field: Final = field
        self.start: Final = start


Marks: TypeAlias = tuple[LineMark | None, ...]


class Plan(Generic[K, S]):
    """What is known of heads with the same marks.

    places: where the lines stand that are not known; if has_length, the last one is the content-length's, wherever that
    stands. starts: of these lines. pick: takes them from the lines of a head, and its last line after them; None where
    all are known.
    check: of these lines, joined by LF: of names and values if named, with a group for each value; else of values.
    """

    __slots__ = ("check", "has_length", "pick", "places", "shape", "starts")

    def __init__(
        self, shape: S, places: Sequence[int], starts: tuple[bytes, ...], *, has_length: bool, named: bool
    ) -> None:
        self.shape: Final = shape
        self.places: Final = tuple(places)
        # With the last line there are always two lines or more, so that itemgetter returns a tuple.
        self.pick: Final[Callable[[Sequence[K]], tuple[K, ...]] | None] = itemgetter(*places, -1) if places else None
        self.starts: Final = starts
        self.has_length: Final = has_length
        self.check: Final = _named_lines(starts, has_length=has_length) if named else _values(len(places))


class HeadLines(NamedTuple, Generic[K]):
    """The lines of a head that was read.

    fields: what each line says; None for what is no field, and for a field that is not passed on.
    length_at: where the line of the content-length is, which a plan passes over; -1 for none. length_start: its start.
    """

    lines: Sequence[K]
    fields: Sequence[Header | None]
    length_at: int
    length_start: bytes


class LineMemory(Generic[K, S]):
    """The lines and plans of the callers of a worker, or of one upstream.

    start: what a line is told to be volatile by, such as `Name: ` as it is spelled; None for a line that never is.
    always: names that are volatile from the first. repeats: names that may be volatile though they come several times
    in a head; others are not then. plans: by marks; several where volatile fields of different names stand in the same
    place.
    """

    __slots__ = (
        *("_always", "_bounds", "_marks_aside", "_n_bytes", "_n_heads", "_n_new", "_named", "_parts", "_plans_aside"),
        *("_repeats", "_seen", "_start", "_volatile_starts", "marks", "plans"),
    )

    def __init__(
        self,
        start: Callable[[K, Header], bytes | None],
        *,
        named: bool,
        always: frozenset[bytes] = frozenset(),
        repeats: frozenset[bytes] = frozenset(),
        bounds: Bounds = Bounds(),  # noqa: B008 - a constant
    ) -> None:
        self._start: Final = start
        self._always: Final = always
        self._repeats: Final = repeats
        self._named: Final = named
        self._bounds: Final = bounds
        self.marks: Final[dict[K, LineMark]] = {}
        self.plans: Final[dict[Marks, tuple[Plan[K, S], ...]]] = {}
        self._marks_aside: dict[K, LineMark] = {}
        self._plans_aside: dict[Marks, tuple[Plan[K, S], ...]] = {}
        self._seen: Final[set[Marks]] = set()  # once: a plan is made for what comes again
        self._n_new: Final[dict[bytes, int]] = {}  # by start: how many lines in a row were new
        self._volatile_starts: Final[set[bytes]] = set()
        self._parts: Final[dict[K | None, int]] = {}  # how much each caller has added
        self._n_heads = 0  # without a plan, since all had their whole parts
        self._n_bytes = 0

    def __repr__(self) -> str:
        return f"<LineMemory {len(self.plans)} plans, {len(self.marks)} lines, {len(self._volatile_starts)} volatile>"

    def __len__(self) -> int:
        """Return how many lines are held."""
        return len(self.marks) + len(self._marks_aside)

    def clear(self) -> None:
        """Forget everything."""
        self.marks.clear()
        self.plans.clear()
        self._marks_aside = {}
        self._plans_aside = {}
        self._seen.clear()
        self._n_new.clear()
        self._volatile_starts.clear()
        self._parts.clear()
        self._n_bytes = 0

    def recall(self, lines: Sequence[K]) -> tuple[Plan[K, S], ...]:
        """Return the plans for a head that `plans` has none for, if they were put aside; they come back by this."""
        aside = self._marks_aside
        if not aside:
            return ()
        for line in lines:
            if line not in self.marks and (mark := aside.get(line)) is not None:
                self._add(line, mark)
        marks = tuple(map(self.marks.get, lines))
        plans = self.plans.get(marks) or self._plans_aside.pop(marks, ())
        if plans:
            self._put(marks, plans)
        return plans

    def wants(self, caller: K | None) -> bool:
        """Say whether a head without a plan is worth a look: of a caller whose heads get none, one in a few."""
        self._n_heads += 1
        if self._n_heads >= _HEADS_OF_A_PART:
            self._n_heads = 0
            self._parts.clear()
        return self._n_heads % _SELDOM == 0 or self._parts.get(caller, 0) < _OFTEN

    def learn(self, head: HeadLines[K], caller: K | None = None) -> Marks | None:
        """Take a head that has no plan. Return its marks if they came before: then it is worth one.

        caller: whose part it counts for.
        """
        lines, _, length_at, _ = head
        used, bounds = self._parts.get(caller, 0), self._bounds
        most = max(1, round(bounds.part * bounds.lines))
        if len(lines) > _LINES_OF_HEAD or used >= most:
            return None
        starts = self._starts(head)
        if starts is None:
            return None
        used += _NAME_COST * self._count(lines, starts)
        marks = [self.marks.get(line) for line in lines]
        new = [
            at
            for at, (mark, start) in enumerate(zip(marks, starts, strict=True))
            if mark is None and at != length_at and start not in self._volatile_starts
        ]
        self._parts[caller] = used = used + len(new) + 1
        if used > most or any(_size(lines[at]) > _LINE_BYTES for at in new):
            return None
        for at in new:
            mark = self.marks.get(lines[at])  # one head may have the same line twice
            marks[at] = mark or self._add(lines[at], LineMark(head.fields[at], starts[at]))
        key = tuple(marks)
        if key in self._seen:
            self._seen.discard(key)
            return key
        if len(self._seen) >= bounds.plans:
            self._seen.clear()
        self._seen.add(key)
        return None

    def without_new(self, head: HeadLines[K], may_go: Callable[[bytes], bool]) -> HeadLines[K]:
        """Return a head without fields that are neither known nor volatile. may_go: says of which names."""
        kept = [
            at
            for at, (line, field) in enumerate(zip(head.lines, head.fields, strict=True))
            if field is None
            or at == head.length_at
            or line in self.marks
            or not may_go(field[0])
            or self._start(line, field) in self._volatile_starts
        ]
        length_at = kept.index(head.length_at) if head.length_at >= 0 else -1
        return HeadLines(
            [head.lines[at] for at in kept], [head.fields[at] for at in kept], length_at, head.length_start
        )

    def _add(self, line: K, mark: LineMark) -> LineMark:
        size = _size(line)
        if len(self.marks) >= self._bounds.lines or self._n_bytes + size > self._bounds.n_bytes:
            self._marks_aside = self.marks.copy()
            self.marks.clear()
            self._parts.clear()
            self._n_bytes = 0
        self.marks[line] = mark
        self._n_bytes += size
        return mark

    def _put(self, marks: Marks, plans: tuple[Plan[K, S], ...]) -> None:
        if len(self.plans) >= self._bounds.plans:
            self._plans_aside = self.plans.copy()
            self.plans.clear()
        self.plans[marks] = plans

    def _starts(self, head: HeadLines[K]) -> list[bytes | None] | None:
        """Return what each line is told to be volatile by; None for a head that must not be remembered.

        A volatile field that comes twice would leave its lines behind, and hide others' plans from heads with the same.
        """
        names = [field[0] for field in head.fields if field is not None]
        several = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        several -= self._repeats
        starts: list[bytes | None] = []
        for line, field in zip(head.lines, head.fields, strict=True):
            mark = None if several else self.marks.get(line)
            if mark is not None:
                starts.append(mark.start)
                continue
            start = None if field is None else self._start(line, field)
            if field is not None and field[0] in several:
                if start in self._volatile_starts:
                    return None
                start = None
            elif start is not None and field is not None and field[0] in self._always:
                self._make_volatile(start)
            starts.append(start)
        return starts

    def _count(self, lines: Sequence[K], starts: Sequence[bytes | None]) -> int:
        """Count the lines that are new; return how many fields have become volatile by it."""
        became: set[bytes] = set()
        counts = self._n_new
        if len(counts) > self._bounds.names:
            counts.clear()
        for line, start in zip(lines, starts, strict=True):
            if start is None or start in self._volatile_starts:
                continue
            if line in self.marks:
                counts.pop(start, None)
                continue
            counts[start] = counts.get(start, 0) + 1
            if counts[start] >= _NEW_IN_A_ROW:
                del counts[start]
                self._make_volatile(start)
                became.add(start)
        if became:
            for line in [line for line, mark in self.marks.items() if mark.start in became]:
                self._n_bytes -= _size(line)
                del self.marks[line]
        return len(became)

    def _make_volatile(self, start: bytes) -> None:
        if start not in self._volatile_starts:
            if len(self._volatile_starts) >= self._bounds.names:
                self._volatile_starts.clear()  # plans that were made stay; the names are found out again
            self._volatile_starts.add(start)

    def keep(self, marks: Marks, head: HeadLines[K], shape: Callable[[tuple[ShapeField, ...]], S]) -> Plan[K, S] | None:
        """Keep a plan for heads with these marks, which learn() has returned. shape: made of its fields.

        Return it; None: there is one already, or it would have too many volatile fields.
        """
        fields: list[ShapeField] = []
        places: list[int] = []
        starts: list[bytes] = []
        for at, (mark, field) in enumerate(zip(marks, head.fields, strict=True)):
            if field is None:
                continue
            if mark is not None:
                fields.append(mark.field or field)  # one object for all shapes
                continue
            start = self._start(head.lines[at], field)
            assert start is not None, "a line that may not be volatile has a mark"
            fields.append((field[0], None))
            places.append(at)
            starts.append(start)
        has_length = head.length_at >= 0
        if has_length:
            places.append(head.length_at)
            starts.append(head.length_start)
        assert len(places) == marks.count(None), "each line without a mark is looked at"
        if len(places) > _VOLATILE_OF_HEAD:
            return None
        others = self.plans.get(marks, ())
        if len(others) >= _PLANS_OF_MARKS or tuple(starts) in [plan.starts for plan in others]:
            return None
        plan = Plan[K, S](shape(tuple(fields)), places, tuple(starts), has_length=has_length, named=self._named)
        if others:
            self.plans[marks] = (*others, plan)
        else:
            self._put(marks, (plan,))
        return plan


def picker(places: Sequence[int]) -> Callable[[Sequence[bytes]], tuple[bytes, ...]]:
    """Return what takes the values at some places, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda values: (values[places[0]],)) if places else (lambda values: ())


def _size(line: bytes | Header) -> int:
    return len(line) if isinstance(line, bytes) else len(line[0]) + len(line[1])
