"""W3C Trace Context, Level 1: `traceparent` and `tracestate` of a request, read strictly and written.

Knows: the fields' forms (https://www.w3.org/TR/trace-context-1/, §3). Does not know: who samples, or what a span is.

A `traceparent` that can't be read, or of which there are several, begins a new trace: then there is no `tracestate`
either (§4.3). One of a later version is read as far as version 00 goes. A `tracestate` that can't be read is left out,
and the trace goes on (§3.3.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from velox.heads import Header

__all__ = ["TRACEPARENT", "TRACESTATE", "TraceParent", "parent_of", "traceparent"]

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SAMPLED: Final = 1
_VERSION_0: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LATER: Final = re.compile(rb"(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_MOST_MEMBERS: Final = 32
# A vendor has to pass 512 characters on, and may pass more; what is longer is nobody's state.
_MOST_STATE: Final = 8192
_MEMBER: Final = re.compile(
    rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class TraceParent(NamedTuple):
    """Whose span a request belongs to. trace_id: 16 bytes. span_id: 8 bytes. state: for those further up; "" for none.

    is_sampled: whoever asks records it.
    """

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    state: str = ""


def parent_of(headers: Sequence[Header]) -> TraceParent | None:
    """Return what the fields of a request say; None: it begins a trace."""
    parents = [value for name, value in headers if name == TRACEPARENT]
    if len(parents) != 1:
        return None
    found = _VERSION_0.fullmatch(parents[0]) or _LATER.fullmatch(parents[0])
    if found is None:
        return None
    trace_id, span_id, flags = (bytes.fromhex(each.decode("ascii")) for each in found.groups())
    if not any(trace_id) or not any(span_id):
        return None
    states = [value for name, value in headers if name == TRACESTATE]
    return TraceParent(trace_id, span_id, bool(flags[0] & SAMPLED), _state(b",".join(states)))


def traceparent(trace_id: bytes, span_id: bytes, *, is_sampled: bool) -> bytes:
    """Write a field of version 00."""
    return b"00-%b-%b-%02x" % (trace_id.hex().encode(), span_id.hex().encode(), SAMPLED if is_sampled else 0)


def _state(value: bytes) -> str:
    """Return a list of members, as it came; "" if it is none."""
    if not value or len(value) > _MOST_STATE:
        return ""
    members = [each.strip(b" \t") for each in value.split(b",")]
    named = [each for each in members if each]
    keys = {each.partition(b"=")[0] for each in named}
    if len(named) > _MOST_MEMBERS or len(keys) < len(named) or not all(map(_MEMBER.fullmatch, named)):
        return ""
    return b",".join(named).decode("ascii")
