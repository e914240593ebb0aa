"""HTTP/2 heads that came before: what was read of one is kept for the next one like it.

Knows: which fields of a head may be new when it comes again. Does not know: how one is read (http2/request_head.py),
how they are found (heads/memory.py).

As for HTTP/1.1 (http1_head.HeadReader), and for the same reason: reading takes several times as long as looking up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from velox.heads import Header, HeadShape, RequestHead
from velox.protocol.heads.fields import CREDENTIALS, LENGTH_DIGITS, is_never_volatile
from velox.protocol.heads.memory import MOST_HEAD_BYTES, HeadLines, LineMemory, Plan
from velox.protocol.http1.request_head import Http1Limits, body_length, shared_shape
from velox.protocol.http2.request_head import read_head

__all__ = ["Http2HeadReader"]

# A line beside the fields, so that a head that ends its stream is never taken for one that does not.
_END: Final = (b"", b"end")
_NO_END: Final = (b"", b"")


class Http2HeadReader:
    """Reads the heads of many connections; one a worker."""

    __slots__ = ("_limits", "_memory", "_unknown")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits: Final = limits
        self._memory: Final = LineMemory[Header, HeadShape](_start, named=False, always=CREDENTIALS)
        self._unknown: tuple[RequestHead, list[Header]] | None = None  # that was read last

    def __repr__(self) -> str:
        return f"<Http2HeadReader {self._memory}>"

    def clear(self) -> None:
        """Forget everything."""
        self._memory.clear()

    def read(self, fields: Sequence[Header], *, end_stream: bool) -> RequestHead:
        """See read_head()."""
        lines = [*fields, _END if end_stream else _NO_END]
        memory = self._memory
        for plan in memory.plans.get(tuple(map(memory.marks.get, lines))) or memory.recall(lines):
            request = self._by_plan(plan, lines)
            if request is not None:
                return request
        request = read_head(fields, self._limits, end_stream=end_stream)
        self._unknown = request, lines
        return request

    def _by_plan(self, plan: Plan[Header, HeadShape], lines: list[Header]) -> RequestHead | None:
        """Return the head that a plan was found for; None if what is new in it must be looked at more closely."""
        if plan.pick is None:
            return RequestHead(plan.shape, (), None)
        # The objects that came: they may be shared by many heads (http2/ngh2_engine.py).
        names, values = zip(*plan.pick(lines)[:-1])  # noqa: B905 - pairs
        if names != plan.starts or plan.check(b"\n".join(values) + b"\n") is None:
            return None
        if not plan.has_length:
            return RequestHead(plan.shape, values, None)
        digits = values[-1]
        # Of a body of no bytes more is asked (http2/request_head.py).
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS or digits.startswith(b"0"):
            return None
        return RequestHead(plan.shape, values[:-1], body_length(digits, self._limits))

    def accept(self, request: RequestHead) -> None:
        """Remember a head that read() has just returned: its caller may be served."""
        unknown, self._unknown = self._unknown, None
        if unknown is None or unknown[0] is not request:
            return
        lines = unknown[1]
        names = [name for name, _ in lines]
        if b"expect" in names or sum(len(name) + len(value) for name, value in lines) > MOST_HEAD_BYTES:
            return
        length_at = names.index(b"content-length") if b"content-length" in names else -1
        # Where several fields are told as one, and where a length says that there is no body, it is read each time.
        if length_at >= 0 and (names.count(b"content-length") > 1 or not request.content_length):
            return
        credentials = [line for line in lines if line[0] in CREDENTIALS]
        caller = credentials[0] if credentials else None
        if len(credentials) > 1 or not self._memory.wants(caller):
            return
        passed = {name for name, _ in request.shape.fields}
        said = [line if line[0] in passed else None for line in lines]
        learnt = HeadLines(lines, said, length_at, b"content-length")
        marks = self._memory.learn(learnt, caller)
        if marks is not None:
            self._memory.keep(marks, learnt, partial(shared_shape, request.shape))


def _start(line: Header, _: Header) -> bytes | None:
    """Return the name that a field is told to be volatile by; None where it must not change."""
    name, value = line
    return None if not value or is_never_volatile(name) else name
