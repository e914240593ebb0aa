"""Where an event stream stands between events, and the event that ends a broken one."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import Reason
from velox.protocol.sse import EventBoundary, error_event


@pytest.mark.parametrize("reason", list(Reason))
def test_error_event_is_one_event_in_the_shape_of_openai(reason: Reason) -> None:
    """R-STREAM-1: one data line, an error object with the reason's code, a blank line; no [DONE]."""
    event = error_event(reason, 'the "upstream" said\nnothing: \u2028 ☹')

    assert event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    error = json.loads(event[6:])["error"]
    assert error["message"] == 'the "upstream" said\nnothing: \u2028 ☹'
    assert error["code"] == reason.code
    assert error["param"] is None
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("stream", "between"),
    [
        (b"", True), (b"data: a", False), (b"data: a\n", False), (b"data: a\n\n", True), (b"data: a\r\n", False),
        (b"data: a\r\n\r\n", True), (b"data: a\r\n\r", True), (b"data: a\r\r", True), (b"data: a\r", False),
        (b"data: a\n\r\n", True), (b"data: a\r\n\n", True), (b"data: a\n\r", True), (b"\n", True),
        (b"data: a\n\ndata: b", False), (b"data: a\n\n: ping\n\n", True),
        ("data: a\u2028\u2028".encode(), False), ("data: a\u0085\u0085".encode(), False), (b"data: a\x0b\x0c", False),
    ],
)  # fmt: skip
def test_boundary_after_blank_line_only(stream: bytes, between: bool) -> None:
    """R-STREAM-2: events end with a blank line; lines end with LF, CR, CRLF and nothing else."""
    boundary = EventBoundary()
    boundary.feed(stream)

    assert boundary.between is between


@given(
    pieces=st.lists(
        st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"data: \xf0\x9f\x98\x80"]), max_size=6).map(b"".join),
        max_size=8,
    )
)
def test_boundary_as_a_line_parser_sees_it(pieces: list[bytes]) -> None:
    """However the stream is split, the answer is the one of a parser that reads all lines from the beginning."""
    boundary = EventBoundary()
    for piece in pieces:
        boundary.feed(piece)

    *lines, rest = re.split(rb"\r\n|\r|\n", b"".join(pieces))
    assert boundary.between is (rest == b"" and (not lines or lines[-1] == b""))
