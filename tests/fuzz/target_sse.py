"""Fuzz: an event stream on its way to a client, against a reader that follows the standard's words.

Input: the bytes of a stream. Whatever they are, and however they are cut: Velox knows when it stands between two events
as the reader does, sees more than comments when there is more, counts the same errors, and an event that it adds
between two events is read as one more event, and changes none of the others.
"""

from __future__ import annotations

import re

from tests.fuzz.event_stream import events_of, lines_of
from tests.fuzz.wires import Pieces, cuttings
from velox.errors import Reason
from velox.protocol.sse import COMMENT, EventWatch, error_event

__all__ = ["run"]

_ERROR = re.compile(rb'data: ?\{ ?"(?:error" ?: ?[{"]|(?:type|object)" ?: ?"(?:error|response\.failed)")')


def run(data: bytes) -> None:
    """Watch a stream. Raises AssertionError, or what a bug raises."""
    if not data:
        return
    lines, rest = lines_of(data)
    between, n_errors, has_data = whole = _watch([data])
    for pieces in cuttings(data):
        assert _watch(pieces) == whole, "understood differently when the bytes are cut"
    assert between == _is_between(data), "between two events, or not"
    assert n_errors == sum(_ERROR.match(line) is not None for line in [*lines, rest]), "another number of errors"
    assert has_data == any(line and not line.startswith(b":") for line in [*lines, rest]), "only comments, or not"
    if between:
        before = events_of(data)
        assert events_of(data + COMMENT) == before, "a comment between two events changed one"
        event = error_event(Reason.UPSTREAM_RESET, "cut")
        assert events_of(data + event) == [*before, event[6:-2]], "the event that was added is not one event"


def _watch(pieces: Pieces) -> tuple[bool, int, bool]:
    watch, has_data = EventWatch(), False
    for piece in pieces:
        has_data |= watch.feed(piece)
    return watch.between, watch.n_errors, has_data


def _is_between(data: bytes) -> bool:
    """True when nothing is open: the last line is whole and blank, or there was only a first blank one."""
    lines, rest = lines_of(data)
    return not rest and not lines[-1]
