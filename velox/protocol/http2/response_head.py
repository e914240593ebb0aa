"""The head of an upstream's HTTP/2 reply: from its fields to a ReplyHead.

Knows: what a reply's head must have (RFC 9113 §8.3.2), which fields end at this hop, which heads it has read already.
Does not know: frames, streams, bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Final

from velox.heads import Header, ReplyHead, ReplyShape
from velox.protocol.heads.fields import LENGTH_DIGITS
from velox.protocol.heads.memory import MOST_HEAD_BYTES, HeadLines, LineMemory, Plan
from velox.protocol.http1.response_head import REPLY_BOUNDS, REPLY_NEVER_VOLATILE, REPLY_REPEATS, shared_reply_shape

__all__ = ["Http2ReplyHeads"]

# RFC 9113 §8.2.2: these have no meaning in HTTP/2; a careless upstream's are not passed on.
_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer"}
)
_LENGTH: Final = b"content-length"
# Plans that are tried first: so many of one number of fields, for so many numbers.
_RECENT: Final = 4
_RECENT_SIZES: Final = 16


class Http2ReplyHeads:
    """Reads the heads of one upstream's connections, so that what one of them taught helps the next.

    As for HTTP/1.1 (http1_response_head.ReplyHeads). A value that is new needs no check of its own: reading looks at no
    value but those of the status and the length, and whoever writes the fields looks at all of them.

    An upstream has few plans, so the last ones are tried before a head's fields are looked up: each of them would be
    hashed, name and value, since they are new objects in every head.
    """

    __slots__ = ("_memory", "_recent")

    def __init__(self) -> None:
        self._recent: Final[dict[int, tuple[_RecentPlan, ...]]] = {}  # by the number of fields
        self._memory: Final = LineMemory[Header, ReplyShape](
            _start, named=False, repeats=REPLY_REPEATS, bounds=REPLY_BOUNDS
        )

    def __repr__(self) -> str:
        return f"<Http2ReplyHeads {self._memory!r}>"

    def read(self, fields: Sequence[Header]) -> ReplyHead | None:
        """Return the head that the fields say; None when the status or the length is none."""
        for recent in self._recent.get(len(fields), ()):
            if recent.pick(fields) == recent.stable:
                head = _by_plan(recent.plan, fields)
                if head is not None:
                    return head
        memory = self._memory
        for plan in memory.plans.get(tuple(map(memory.marks.get, fields))) or memory.recall(fields):
            head = _by_plan(plan, fields)
            if head is not None:
                self._try_first(plan, fields)
                return head
        head = _read(fields)
        if head is not None:
            self._learn(head, fields)
        return head

    def _try_first(self, plan: Plan[Header, ReplyShape], fields: Sequence[Header]) -> None:
        """Try a plan first for heads of as many fields as these, which it fits. Those that were not used go."""
        recent = self._recent
        if len(recent) >= _RECENT_SIZES:
            recent.clear()
        others = recent.get(len(fields), ())
        recent[len(fields)] = (_RecentPlan(plan, fields), *others[: _RECENT - 1])

    def _learn(self, head: ReplyHead, fields: Sequence[Header]) -> None:
        if not self._memory.wants(None):
            return
        names = [name for name, _ in fields]
        n_lengths = names.count(_LENGTH)
        if n_lengths > 1 or sum(len(name) + len(value) for name, value in fields) > MOST_HEAD_BYTES:
            return
        passed = {name for name, _ in head.shape.fields}
        said = [field if field[0] in passed else None for field in fields]
        learnt = HeadLines(fields, said, names.index(_LENGTH) if n_lengths else -1, _LENGTH)
        marks = self._memory.learn(learnt)
        if marks is not None:
            self._memory.keep(marks, learnt, partial(shared_reply_shape, head.shape))


class _RecentPlan:
    """A plan, and what stays the same in all heads that have it. pick: takes that from such a head's fields."""

    __slots__ = ("pick", "plan", "stable")

    def __init__(self, plan: Plan[Header, ReplyShape], fields: Sequence[Header]) -> None:
        volatile = () if plan.pick is None else plan.pick(fields)[:-1]
        # At least the status, which is never volatile.
        places = [at for at, field in enumerate(fields) if field not in volatile]
        self.plan: Final = plan
        self.pick: Final[Callable[[Sequence[Header]], object]] = itemgetter(*places)
        self.stable: Final = self.pick(fields)


def _by_plan(plan: Plan[Header, ReplyShape], fields: Sequence[Header]) -> ReplyHead | None:
    """Return the head that a plan was found for; None if what is new in it must be looked at more closely."""
    if plan.pick is None:
        return ReplyHead(plan.shape, (), None)
    names, values = zip(*plan.pick(fields)[:-1])  # noqa: B905 - pairs; a keyword costs as much as three of them
    if names != plan.starts:
        return None
    if not plan.has_length:
        return ReplyHead(plan.shape, values, None)
    digits = values[-1]
    if not digits.isdigit() or len(digits) > LENGTH_DIGITS:
        return None
    return ReplyHead(plan.shape, values[:-1], int(digits))


def _read(fields: Sequence[Header]) -> ReplyHead | None:
    """Split the pseudo header off; None as Http2ReplyHeads.read()."""
    status = 0
    content_length: int | None = None
    kept: list[Header] = []
    for field in fields:
        name, value = field
        if name == b":status":
            status = int(value) if value.isdigit() and len(value) == 3 else 0
        elif name == _LENGTH:
            if not value.isdigit() or len(value) > LENGTH_DIGITS:
                return None
            content_length = int(value)
        elif name not in _CONNECTION_FIELDS:
            kept.append(field)
    return ReplyHead.of(status, kept, content_length) if 200 <= status <= 599 else None


def _start(line: Header, _: Header) -> bytes | None:
    """Return the name that a field is told to be volatile by; None where it must not change."""
    name, value = line
    return None if not value or name in REPLY_NEVER_VOLATILE else name
