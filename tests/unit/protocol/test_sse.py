"""What a gateway reads of an event stream, however it is cut; and the event that ends a broken one."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import Reason
from velox.protocol.sse import COMMENT, EventWatch, error_event
from velox.types import Dialect


@pytest.mark.parametrize("reason", list(Reason))
def test_error_event_is_one_event_in_the_shape_of_openai(reason: Reason) -> None:
    """One data line, an error object with the reason's code, a blank line; no [DONE]."""
    event = error_event(reason, 'the "upstream" said\nnothing: \u2028 ☹')

    assert event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    error = json.loads(event[6:])["error"]
    assert error["message"] == 'the "upstream" said\nnothing: \u2028 ☹'
    assert error["code"] == reason.code
    assert error["param"] is None
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("reason", list(Reason))
def test_error_event_for_anthropic_is_named_error(reason: Reason) -> None:
    """Anthropic's SDKs raise on `event: error`, whose data is a body of type error."""
    event = error_event(reason, "what\nfailed", Dialect.ANTHROPIC)

    name, data, *rest = event.split(b"\n")
    body = json.loads(data.removeprefix(b"data: "))
    assert (name, rest) == (b"event: error", [b"", b""])
    assert (body["type"], body["error"]["message"]) == ("error", "what\nfailed")
    assert body["error"]["code"] == reason.code and body["error"]["type"]


@pytest.mark.parametrize(
    ("stream", "between"),
    [
        (b"", True), (b"data: a", False), (b"data: a\n", False), (b"data: a\n\n", True), (b"data: a\r\n", False),
        (b"data: a\r\n\r\n", True), (b"data: a\r\n\r", True), (b"data: a\r\r", True), (b"data: a\r", False),
        (b"data: a\n\r\n", True), (b"data: a\r\n\n", True), (b"data: a\n\r", True), (b"\n", True),
        (b"data: a\n\ndata: b", False), (b"data: a\n\n: ping\n\n", True), (b'data: {"id":1}\n\ndata: {"id":2}', False),
        (b'data: {"id":1}\n', False), (b'data: {"id":1}\n\n', True), (b'data: {"id":1}\r\n\r\n', True),
        ("data: a\u2028\u2028".encode(), False), ("data: a\u0085\u0085".encode(), False), (b"data: a\x0b\x0c", False),
    ],
)  # fmt: skip
def test_boundary_after_blank_line_only(stream: bytes, between: bool) -> None:
    """Events end with a blank line; lines end with LF, CR, CRLF and nothing else."""
    watch = EventWatch()
    if stream:
        watch.feed(stream)

    assert watch.between is between


@pytest.mark.parametrize(
    ("pieces", "data"),
    [
        ([b": ping\n\n"], [False]),
        ([b": p", b"ing", b"\n\n"], [False, False, False]),
        ([b"\n", b"\r\n", b"\r"], [False, False, False]),
        ([b":", b"\n:", b":\r:", b" data: x"], [False, False, False, False]),
        ([b": ping\n\ndata: 1\n\n"], [True]),
        ([b": ping\n\n", b"data", b": 1", b"\n", b"\n"], [False, True, True, False, False]),
        ([b"data: a: b", b": c"], [True, True]),
        ([b"event: ping\n", b": x\n"], [True, False]),
        ([b"0\n\n", b"data: 1\r\n\r\n", b'data: {"id":1}\n\n'], [True, True, True]),
        ([b'data: {"id":1}\n\n', b": c\n\n", b'data: {"id":1}\n\n: c\n\n'], [True, False, True]),
    ],
)
def test_comments_and_blank_lines_are_silence(pieces: list[bytes], data: list[bool]) -> None:
    """F-19: an upstream that sends only `: ka` stalls."""
    watch = EventWatch()

    assert [watch.feed(piece) for piece in pieces] == data


@pytest.mark.parametrize(
    ("stream", "n"),
    [
        (b'data: {"error":{"message":"x"}}\n\n', 1),
        (b'data:{"error":{"message":"x"}}\n\n', 1),
        (b'data: {"error": "overloaded", "error_type": "x"}\r\n\r\n', 1),
        (b'data: {"error":null}\n\n', 0),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n', 1),
        (b'event: error\ndata: { "type" : "error" }\n\n', 1),
        (b'event: response.failed\ndata: {"type":"response.failed","response":{}}\n\n', 1),
        (b'data: {"object":"error","message":"x"}\n\ndata: [DONE]\n\n', 1),
        (b'data: {"id":"1","choices":[{"delta":{"content":"data: {\\"error\\":{}"}}]}\n\n', 0),
        (b'data: {"type":"response.error_free"}\n\n', 0),
        (b': data: {"error":{}}\n\n', 0),
        (b'x data: {"error":{}}\n\n', 0),
        (b': c\rdata: {"error":{}}\n\n', 1),
        (b'data: {"id":"1"}\n\ndata: {"error":{}}\n\ndata: {"id":"2"}\n\ndata: {"error":{}}\n\n', 2),
    ],
)
def test_error_events_are_counted(stream: bytes, n: int) -> None:
    """F-16: whichever provider's way of telling it."""
    watch = EventWatch()
    watch.feed(stream)

    assert watch.n_errors == n


LINES = [
    b"\r", b"\n", b"\r\n", b"\n\n", b"a", b":", b" ", b"data", b"data: \xf0\x9f\x98\x80", b": ping\n\n",
    b"event: error\n",
    b'data: {"error":{"a":1}}', b'data: {"type":"error"}\n\n', b'data: {"id":"1"}\n\n', b'data: {"error":null}\n',
    b'event: x\ndata: {"type":"content"}\n\n', b'data: { "object" : "response.failed"', b'data: {"' + b"x" * 60,
]  # fmt: skip
ERROR_LINE = re.compile(rb'data: ?\{ ?"(error" ?: ?[{"]|(type|object)" ?: ?"(error|response\.failed)")')


@given(
    parts=st.lists(st.sampled_from(LINES), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=30),
    each_byte=st.booleans(),
)
def test_any_split_gives_what_a_line_parser_sees(parts: list[bytes], cuts: list[int], each_byte: bool) -> None:
    """Where the stream stands, which bytes are more than comments, which lines are errors: as read from the start."""
    stream = b"".join(parts)
    places = sorted(
        {0, len(stream), *(range(len(stream)) if each_byte else (cut for cut in cuts if cut < len(stream)))}
    )
    lines = re.split(rb"(\r\n|\r|\n)", stream)
    kinds = b"".join(
        (b"." * len(line) if number % 2 or line.startswith(b":") else b"D" * len(line))
        for number, line in enumerate(lines)
    )
    watch = EventWatch()

    for start, end in itertools.pairwise(places):
        assert watch.feed(stream[start:end]) is (b"D" in kinds[start:end])
        *before, rest = re.split(rb"\r\n|\r|\n", stream[:end])
        assert watch.between is (rest == b"" and (not before or before[-1] == b""))
        assert watch.n_errors == sum(ERROR_LINE.match(line) is not None for line in (*before, rest))


def test_comment_of_velox_is_a_comment_between_events() -> None:
    """What is sent in a silence neither is data nor opens an event."""
    watch = EventWatch()

    assert not watch.feed(COMMENT)
    assert watch.between
