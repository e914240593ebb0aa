"""Memory of heads by their lines: a head is found again though the values of its volatile fields are new.

Knows: which lines came before, which names have a new value in each head, how much one caller may hold. Does not know:
how a head is read (http1_head.py, http2_heads.py, http1_response_head.py), or what a line means.

A line is what a protocol looks up as one: the bytes of an HTTP/1.1 line, or a field of HTTP/2. Each known line has a
mark. The marks of a head's lines, with None for each line that is not known, find its plan: what follows from the known
lines, and which fields must stand where None is. Two heads with the same plan have the same lines everywhere else.

A field is volatile once its line was new several times in a row. Lines of volatile fields are not kept. Which fields
are never volatile is said by the readers: those that Velox acts on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from velox.types import Header, ShapeField

__all__ = ["MOST_HEAD_BYTES", "CallerMemories", "HeadLines", "LineMemory", "Plan", "plain_lines"]

MOST_HEAD_BYTES: Final = 4096
_NEW_IN_A_ROW: Final = 4
_ALL_UP_TO: Final = 64
_ONE_IN: Final = 8

# What one caller may hold: a few hundred KiB when it tries to hold much, 3 to 10 KiB otherwise.
_PLANS: Final = 64
_PLANS_OF_MARKS: Final = 4
_LINES: Final = 256
_LINE_BYTES: Final = 512
_ALL_LINES_BYTES: Final = 64 << 10
_NAMES: Final = 256
_LINES_OF_HEAD: Final = 128
_VOLATILE_OF_HEAD: Final = 32

_NEW_CALLERS: Final = 64
_CALLERS: Final = 448
_LOOKS: Final = 8

K = TypeVar("K", bound=bytes | Header)  # a line
S = TypeVar("S")  # what follows from the known lines

# Visible ASCII with blanks inside. No other character passes that a protocol could take for a line's end.
_PLAIN_VALUE: Final = rb"[!-~][\t -~]*+(?<![\t ])\n"
_Check: TypeAlias = Callable[[bytes], "re.Match[bytes] | None"]


def plain_lines(n_lines: int, *, named: bool) -> _Check:
    """Return a check of `n_lines` lines that each end with LF: groups of name with separator, value; or of nothing.

    named: they are `name: value`; otherwise only values.
    """
    line = rb"([^:]++: )(" + _PLAIN_VALUE[:-2] + rb")\n" if named else _PLAIN_VALUE
    return re.compile(line * n_lines).fullmatch


class _Mark:
    """The identity of a known line. field: what it says, None for a line that is no field. start: see LineMemory."""

    __slots__ = ("field", "start")

    def __init__(self, field: Header | None, start: bytes | None) -> None:
        self.field: Final = field
        self.start: Final = start


_Marks: TypeAlias = tuple[_Mark | None, ...]


class Plan(Generic[K, S]):
    """What is known of heads with the same marks.

    pick: takes the lines that are not known from the lines of a head, and its last line after them; None where all are
    known. The content-length, if has_length, is the last of those that are not known. starts: of these lines.
    """

    __slots__ = ("check", "has_length", "pick", "shape", "starts")

    def __init__(
        self, shape: S, places: Sequence[int], starts: tuple[bytes, ...], *, has_length: bool, named: bool
    ) -> None:
        self.shape: Final = shape
        # With the last line there are always two lines or more, so that itemgetter returns a tuple.
        self.pick: Final[Callable[[Sequence[K]], tuple[K, ...]] | None] = itemgetter(*places, -1) if places else None
        self.starts: Final = starts
        self.has_length: Final = has_length
        self.check: Final = plain_lines(len(places), named=named)


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
    """The lines and plans of one caller, or of one upstream.

    start: what a line is told to be volatile by, such as `Name: ` as it is spelled; None for a line that never is.
    repeats: names that may be volatile though they come several times in a head. Others are not then.
    plans: by marks; several where volatile fields of different names stand in the same place. used: a plan was found
    since this was last cleared.
    """

    __slots__ = (
        "_n_bytes",
        "_n_new",
        "_n_offered",
        "_named",
        "_repeats",
        "_seen",
        "_start",
        "_volatile",
        "marks",
        "plans",
        "used",
    )

    def __init__(
        self, start: Callable[[K, Header], bytes | None], *, named: bool, repeats: frozenset[bytes] = frozenset()
    ) -> None:
        self._start: Final = start
        self._repeats: Final = repeats
        self._named: Final = named
        self.marks: Final[dict[K, _Mark]] = {}
        self.plans: Final[dict[_Marks, tuple[Plan[K, S], ...]]] = {}
        self._seen: Final[set[_Marks]] = set()  # once: a plan is made for what comes again
        self._n_new: Final[dict[bytes, int]] = {}  # by start: how many lines in a row were new
        self._volatile: Final[set[bytes]] = set()
        self._n_bytes = 0
        self._n_offered = 0
        self.used = False

    def __repr__(self) -> str:
        return f"<LineMemory {len(self.plans)} plans, {len(self.marks)} lines, {len(self._volatile)} volatile>"

    def clear(self) -> None:
        """Forget everything."""
        self._forget_lines()
        self._n_new.clear()
        self._volatile.clear()

    def _forget_lines(self) -> None:
        self.marks.clear()
        self.plans.clear()
        self._seen.clear()
        self._n_bytes = 0

    def is_due(self) -> bool:
        """Return True when a head that has no plan is to be learnt: the first ones, and then a part of them.

        Learning takes longer than reading, and would be wasted on a caller whose heads are never alike.
        """
        self._n_offered += 1
        return self._n_offered <= _ALL_UP_TO or self._n_offered % _ONE_IN == 0

    def learn(self, head: HeadLines[K]) -> _Marks | None:
        """Take a head that has no plan. Return its marks if they came before: then it is worth one."""
        lines, fields, length_at, _ = head
        if len(lines) > _LINES_OF_HEAD:
            return None
        several = self._several(fields)
        starts: list[bytes | None] = []
        for line, field in zip(lines, fields, strict=True):
            start = None if field is None else self._start(line, field)
            if field is not None and field[0] in several:
                if start in self._volatile:
                    return None  # lines of volatile fields are not kept
                start = None
            starts.append(start)
        if self._count(lines, starts):
            self._forget_lines()  # some of them are of fields that turned out to be volatile
        marks = [self.marks.get(line) for line in lines]
        new = [
            at
            for at, (mark, start) in enumerate(zip(marks, starts, strict=True))
            if mark is None and at != length_at and start not in self._volatile
        ]
        sizes = [_size(lines[at]) for at in new]
        if sizes and max(sizes) > _LINE_BYTES:
            return None
        if len(self.marks) + len(new) > _LINES or self._n_bytes + sum(sizes) > _ALL_LINES_BYTES:
            self.clear()
            return None
        for at in new:
            marks[at] = self.marks.setdefault(lines[at], _Mark(fields[at], starts[at]))
        self._n_bytes += sum(sizes)
        key = tuple(marks)
        if key in self._seen:
            self._seen.discard(key)
            return key
        if len(self._seen) >= _PLANS:
            self._seen.clear()
        self._seen.add(key)
        return None

    def _several(self, fields: Sequence[Header | None]) -> set[bytes]:
        """Return the names that come several times, but for those that may be volatile all the same."""
        names = [field[0] for field in fields if field is not None]
        if len(set(names)) == len(names):
            return set()
        return {name for name in names if names.count(name) > 1} - self._repeats

    def _count(self, lines: Sequence[K], starts: Sequence[bytes | None]) -> bool:
        """Count the lines that are new; return True when a field has become volatile by it."""
        became, counts = False, self._n_new
        if len(counts) + len(self._volatile) > _NAMES:
            self.clear()
        for line, start in zip(lines, starts, strict=True):
            if start is None or start in self._volatile:
                continue
            if line in self.marks:
                counts.pop(start, None)
                continue
            counts[start] = counts.get(start, 0) + 1
            if counts[start] >= _NEW_IN_A_ROW:
                del counts[start]
                self._volatile.add(start)
                became = True
        return became

    def keep(self, marks: _Marks, head: HeadLines[K], shape: Callable[[tuple[ShapeField, ...]], S]) -> None:
        """Keep a plan for heads with these marks, which learn() has returned. shape: made of its fields."""
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
            return
        others = self.plans.get(marks, ())
        if len(others) >= _PLANS_OF_MARKS or tuple(starts) in [plan.starts for plan in others]:
            return
        if not others and len(self.plans) >= _PLANS:
            self.plans.clear()
        plan = Plan[K, S](shape(tuple(fields)), places, tuple(starts), has_length=has_length, named=self._named)
        self.plans[marks] = (*others, plan)


class CallerMemories(Generic[K, S]):
    """The memories of all callers of a worker, each below the line of its credential.

    Callers that are new have few places among themselves. Whoever was found again there gets one of the others when its
    turn comes, in place of one that was not found again since; so a flood of new credentials only pushes itself out.
    """

    __slots__ = ("_at", "_by_line", "_make", "_new", "_old", "anonymous", "get")

    def __init__(self, make: Callable[[], LineMemory[K, S]]) -> None:
        self._make: Final = make
        self._by_line: Final[dict[K, LineMemory[K, S]]] = {}
        self.get: Final = self._by_line.get
        # In the order in which they are looked at when a place is needed.
        self._new: Final[dict[K, None]] = {}
        self._old: Final[dict[K, None]] = {}
        self.anonymous: Final = make()
        self._at = 0  # where a credential was last found: most clients have it in the same place

    def __repr__(self) -> str:
        return f"<CallerMemories {len(self._old)} callers and {len(self._new)} new ones>"

    def __len__(self) -> int:
        return len(self._by_line)

    def clear(self) -> None:
        """Forget everything."""
        self._by_line.clear()
        self._new.clear()
        self._old.clear()
        self.anonymous.clear()

    def find(self, lines: Sequence[K]) -> LineMemory[K, S]:
        """Return the memory of who sent these lines, as far as it is known; the anonymous one otherwise.

        A line that is not known to a memory finds nothing there, so that this need not tell an unknown credential
        from none.
        """
        if self._at < len(lines):
            memory = self.get(lines[self._at])
            if memory is not None:
                return memory
        for at, line in enumerate(lines):
            memory = self.get(line)
            if memory is not None:
                self._at = at
                return memory
        return self.anonymous

    def of(self, credential: K | None) -> LineMemory[K, S] | None:
        """Return the memory of a caller, a new one if there is none; None for a credential that is too long."""
        if credential is None:
            return self.anonymous
        memory = self._by_line.get(credential)
        if memory is None:
            if _size(credential) > _LINE_BYTES:
                return None
            if len(self._new) >= _NEW_CALLERS:
                self._settle(next(iter(self._new)))
            memory = self._by_line[credential] = self._make()
            self._new[credential] = None
        return memory

    def _settle(self, credential: K) -> None:
        """Give a new caller a place among the others if it is in use and there is one; else forget it."""
        del self._new[credential]
        if self._by_line[credential].used and (len(self._old) < _CALLERS or self._make_room()):
            self._old[credential] = None
        else:
            del self._by_line[credential]

    def _make_room(self) -> bool:
        for _ in range(_LOOKS):
            oldest = next(iter(self._old))
            del self._old[oldest]
            memory = self._by_line[oldest]
            if not memory.used:
                del self._by_line[oldest]
                return True
            memory.used = False
            self._old[oldest] = None
        return False


def _size(line: bytes | Header) -> int:
    return len(line) if isinstance(line, bytes) else len(line[0]) + len(line[1])
