"""The head of an upstream's HTTP/1.1 reply: from its bytes to a ReplyHead, and how its body is framed.

Knows: the framing of replies (RFC 9112 §6.3), what an upstream may not send, which heads it has read already. Does not
know: how the bytes came (http1/response.py), bodies, pools.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import httptools

from velox.heads import NO_BODY_STATUSES, Header, Headers, ReplyHead, ReplyShape, ShapeField
from velox.protocol.heads.fields import (
    HOP_BY_HOP,
    FieldCollector,
    connection_members,
    field_values,
    length_line,
    line_start,
)
from velox.protocol.heads.layouts import HeadForms, Layout
from velox.protocol.heads.memory import MOST_HEAD_BYTES, Bounds, HeadLines, LineMemory, Plan

__all__ = [
    "REPLY_BOUNDS",
    "REPLY_NEVER_VOLATILE",
    "REPLY_REPEATS",
    "Framed",
    "ReplyHeads",
    "ResponseError",
    "read_fields",
    "shared_reply_shape",
]

_HEADER_COUNT: Final = 200
# What the reply of two kinds differs in (gateway/).
REPLY_NEVER_VOLATILE: Final = frozenset(
    {b"content-type", b"content-encoding", b"retry-after", b"retry-after-ms", b"location"}
)
REPLY_REPEATS: Final = frozenset({b"set-cookie"})
# There are as many of these as upstreams: a few hundred KiB at most, and 10 KiB otherwise.
REPLY_BOUNDS: Final = Bounds(plans=64, lines=256, n_bytes=64 << 10, part=16.0)
_REMOVED: Final = HOP_BY_HOP | {b"content-length"}


class ResponseError(Exception):
    """The upstream broke the protocol. The message says how, and repeats nothing that it sent."""


# A head; how many bytes its body has, None if that ends with its last chunk, or with the connection; and whether the
# upstream means to keep the connection open after it.
Framed: TypeAlias = tuple[ReplyHead, int | None, bool]


class ReplyHeads:
    """Reads the heads of one upstream's connections, so that what one of them taught helps the next.

    A server sends the same lines again and again, but for its dates, ids and counts. As with requests
    (http1/request_head.py) what it says beside those is found by its lines (heads/memory.py). Only heads that passed
    every check are remembered.
    """

    __slots__ = ("_forms", "_memory")

    def __init__(self) -> None:
        self._forms: Final = HeadForms[Plan[bytes, ReplyShape]](REPLY_BOUNDS.plans)
        self._memory: Final = LineMemory[bytes, ReplyShape](
            _start, named=True, repeats=REPLY_REPEATS, bounds=REPLY_BOUNDS
        )

    def __repr__(self) -> str:
        return f"<ReplyHeads {self._memory!r}>"

    def find(self, data: bytes) -> tuple[Framed, int] | None:
        """Return the head that these bytes begin with, if it is whole and known, and where it ends.

        None: read() has to look, once it is whole.
        """
        found = self._forms.find(data)
        if found is None:
            return None
        plan, values, end = found
        return _filled(plan, values), end

    def read(self, data: bytes) -> Framed:
        """Read a whole head, from its first byte to the empty line, that is no interim reply. Raises ResponseError."""
        if len(data) > MOST_HEAD_BYTES:
            return _read(data)[0]
        lines = data.split(b"\r\n")
        memory = self._memory
        for plan in memory.plans.get(tuple(map(memory.marks.get, lines))) or memory.recall(lines):
            framed = _by_plan(plan, lines)
            if framed is not None:
                layout = Layout(plan.places, plan.starts, plan.has_length, len(lines) - 2)
                self._forms.keep(plan, data, layout)
                return framed
        framed, fields = _read(data)
        self._learn(framed[0], lines, fields)
        return framed

    def _learn(self, head: ReplyHead, lines: list[bytes], fields: Headers) -> None:
        if not self._memory.wants(None):
            return
        length_at, length_start = length_line(lines, fields)
        # Whose body is not framed by its fields, or in an unusual way, is read each time.
        if head.status in NO_BODY_STATUSES or (head.content_length is not None and length_at < 0):
            return
        passed = {name for name, _ in head.shape.fields}
        if len(lines) != len(fields) + 3:
            return
        said = [None, *(field if field[0] in passed else None for field in fields), None, None]
        learnt = HeadLines(lines, said, length_at, length_start)
        marks = self._memory.learn(learnt)
        if marks is not None:
            self._memory.keep(marks, learnt, partial(shared_reply_shape, head.shape))


def _by_plan(plan: Plan[bytes, ReplyShape], lines: list[bytes]) -> Framed | None:
    """Return the head that a plan was found for; None if what is new in it must be looked at more closely."""
    if plan.pick is None:
        return _filled(plan, ())
    new = plan.check(b"\n".join(plan.pick(lines)))
    return None if new is None else _filled(plan, new.groups())


def _filled(plan: Plan[bytes, ReplyShape], values: tuple[bytes, ...]) -> Framed:
    shape = plan.shape
    if not plan.has_length:
        return ReplyHead(shape, values, None), None, shape.keep_alive
    length = int(values[-1])
    return ReplyHead(shape, values[:-1], length), length, shape.keep_alive


def shared_reply_shape(shape: ReplyShape, fields: tuple[ShapeField, ...]) -> ReplyShape:
    """Return the shape of heads like one that was read, with these fields."""
    return replace(shape, fields=fields, is_shared=True)


def _start(line: bytes, field: Header) -> bytes | None:
    """See LineMemory."""
    return None if field[0] in REPLY_NEVER_VOLATILE else line_start(line, field)


def read_fields(data: bytes, what: str = "reply") -> tuple[int, Headers]:
    """Return the status of a whole head, and all of its fields. what: it is, for people. Raises ResponseError."""
    collector = FieldCollector()
    parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops at a 101, as is wanted
    except httptools.HttpParserError:
        raise ResponseError(f"{what} is malformed") from None
    return parser.get_status_code(), collector.fields


def _read(data: bytes) -> tuple[Framed, Headers]:
    """Return the head, how its body ends, and all fields; llhttp has refused two lengths, and length with coding."""
    status, fields = read_fields(data)
    if len(fields) > _HEADER_COUNT:
        raise ResponseError("reply has over 200 header fields")
    if not 200 <= status <= 599:
        raise ResponseError("reply has a status outside 200 to 599")
    http_1_0 = data[7] == ord("0")
    values = field_values(fields)
    coding = values.get(b"transfer-encoding")
    if coding is not None and (http_1_0 or coding.lower() != b"chunked"):
        raise ResponseError("Transfer-Encoding other than chunked, or on HTTP/1.0")
    digits = values.get(b"content-length")
    length = None if digits is None else int(digits)
    removed = _REMOVED
    keep_alive = not http_1_0
    if b"connection" in values and values[b"connection"] != b"keep-alive":
        members = connection_members(values[b"connection"])
        removed = _REMOVED | members
        keep_alive = keep_alive and b"close" not in members
    is_bare = status in NO_BODY_STATUSES
    headers = tuple([field for field in fields if field[0] not in removed])
    shape = ReplyShape(status, headers, coding is None and length is None and not is_bare, keep_alive)
    return (ReplyHead(shape, (), length), 0 if is_bare else length, keep_alive), fields
