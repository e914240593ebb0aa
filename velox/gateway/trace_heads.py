"""The trace context of a request's head: whether it is recorded, and the head that goes up.

Knows: where a head has its traceparent. Does not know: spans, or what is noted of a request that is recorded.

A gateway that traces asks this of each request, and records few of them: what is the same for all heads of a shape is
looked for once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from velox.heads import ExtraFields, HeadShape, RequestHead
from velox.memo import Memo
from velox.observe.traces.sampling import Sampler
from velox.protocol.trace_context import TRACEPARENT, TRACESTATE, parent_of, traceparent

__all__ = ["TraceHeads", "with_parent"]

_KEPT_SHAPES: Final = 1024
# Places of the traceparent in heads of a shape, beside those among its values.
_NOWHERE: Final = -1
_ELSEWHERE: Final = -2
# As SDKs write it; what has another form is read by parent_of().
_USUAL: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-0([01])")
_SAMPLED: Final = b"1"
_OWN: Final = frozenset({TRACEPARENT, TRACESTATE})
_PARENT_ALONE: Final = frozenset({TRACEPARENT})
_NO_EXTRAS: Final = ExtraFields(frozenset(), b"")
_TRACE_BITS: Final = 128
_OF_PARENT: Final = 0
_SPAN_BITS: Final = 64


class TraceHeads:
    """Of one worker. getrandbits: returns a random number of so many bits."""

    __slots__ = ("_getrandbits", "_places", "_sampler")

    def __init__(self, sampler: Sampler, getrandbits: Callable[[int], int]) -> None:
        self._sampler: Final = sampler
        self._getrandbits: Final = getrandbits
        self._places: Final[Memo[HeadShape, int]] = Memo(_KEPT_SHAPES)

    def unsampled(self, head: RequestHead) -> RequestHead | int:
        """Return the head that goes up of a request that is not recorded: it says so, for those further up.

        An integer: it is recorded, in the trace of this number; 0: in that of its parent.
        """
        place, sampler = self._places.get(head.shape), self._sampler
        if place is None:
            place = self._find_place(head.shape)
        if place == _NOWHERE and head.extras is None:
            number = self._getrandbits(_TRACE_BITS) or 1
            if sampler.wants_root(number):
                return number
            field = b"traceparent: 00-%032x-%016x-00\r\n" % (number, self._getrandbits(_SPAN_BITS) or 1)
            return RequestHead(head.shape, head.values, head.content_length, ExtraFields(_PARENT_ALONE, field))
        usual = _USUAL.fullmatch(head.values[place]) if place >= 0 and head.extras is None else None
        if usual is None:
            return self._unusual(head)
        trace, flag = usual.groups()
        if flag == _SAMPLED if sampler.follows_parent else sampler.wants_root(int(trace, 16)):
            return _OF_PARENT
        if flag != _SAMPLED:
            return head
        values = list(head.values)
        values[place] = values[place][:-1] + b"0"
        return RequestHead(head.shape, tuple(values), head.content_length, head.extras)

    def _find_place(self, shape: HeadShape) -> int:
        names = [name for name, _ in shape.fields]
        if _OWN.isdisjoint(names):
            place = _NOWHERE
        elif names.count(TRACEPARENT) == 1 and TRACESTATE not in names and (TRACEPARENT, None) in shape.fields:
            place = [name for name, value in shape.fields if value is None].index(TRACEPARENT)
        else:
            place = _ELSEWHERE
        return self._places.put(shape, place) if shape.is_shared else place

    def _unusual(self, head: RequestHead) -> RequestHead | int:
        """Do as unsampled() for heads of all kinds."""
        parent, sampler = parent_of(head.headers), self._sampler
        number = (self._getrandbits(_TRACE_BITS) or 1) if parent is None else int.from_bytes(parent.trace_id, "big")
        trace_id = number.to_bytes(_TRACE_BITS // 8, "big")
        if sampler.wants(trace_id, parent):
            return number if parent is None else _OF_PARENT
        if parent is None:
            span_id = (self._getrandbits(_SPAN_BITS) or 1).to_bytes(_SPAN_BITS // 8, "big")
            return with_parent(head, traceparent(trace_id, span_id, is_sampled=False), keeps_state=False)
        if not parent.is_sampled and (parent.state or head.header(TRACESTATE) is None):
            return head
        field = traceparent(trace_id, parent.span_id, is_sampled=False)
        return with_parent(head, field, keeps_state=bool(parent.state))


def with_parent(head: RequestHead, field: bytes, *, keeps_state: bool) -> RequestHead:
    """Return a head with this traceparent in the place of its own. keeps_state: its tracestate means something."""
    names = [name for name, _ in head.shape.fields]
    n_parents, n_states = names.count(TRACEPARENT), names.count(TRACESTATE)
    extras = head.extras or _NO_EXTRAS
    is_state_here = n_states > 0 or TRACESTATE in extras.names
    if n_parents == 0 and (keeps_state or not is_state_here) and TRACEPARENT not in extras.names:
        lines = b"%btraceparent: %b\r\n" % (extras.lines, field)
        beside = ExtraFields(extras.names | {TRACEPARENT}, lines)
        return RequestHead(head.shape, head.values, head.content_length, beside)
    if n_parents == 1 and (keeps_state or not is_state_here) and (TRACEPARENT, None) in head.shape.fields:
        volatile = [name for name, value in head.shape.fields if value is None]
        values = list(head.values)
        values[volatile.index(TRACEPARENT)] = field
        return RequestHead(head.shape, tuple(values), head.content_length, head.extras)
    dropped = {TRACEPARENT} if keeps_state else _OWN
    fields = (*(each for each in head.headers if each[0] not in dropped), (TRACEPARENT, field))
    shape = replace(head.shape, fields=fields, is_shared=False, credential_at=-1)
    return RequestHead(shape, (), head.content_length)
