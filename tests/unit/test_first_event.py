"""What holds a stream's head back until its first event."""

from __future__ import annotations

import pytest

from velox.gateway.filters import FilterChain
from velox.gateway.first_event import FirstEventGate, FirstEventWatch
from velox.heads import ReplyHead

HEAD = ReplyHead.of(200, [], None)
EVENT = b'data: {"id":"x"}\n\n'
PRELUDE = (
    b': ka\n\nevent: message_start\ndata: {"type":"message_start"}\n\nevent: ping\r\ndata: {}\r\n\r\n'
    b'event: response.created\ndata: {"type":"response.created"}\n\nevent: response.in_progress\ndata: {}\n\n'
)


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("prelude", [b"", b": ka\n\n", b"\n", PRELUDE])
def test_stream_is_held_until_its_first_event_however_it_is_cut(prelude: bytes, step: int) -> None:
    """Comments, and events from before the model's work, are none. Then all of it goes on, and no more is looked at."""
    chain = FilterChain([FirstEventGate()], is_sse=True, is_plain=True)
    assert chain.begin(HEAD) is None
    text, out, released_at = prelude + EVENT + b"event: ping\ndata: {}\n\n", b"", -1
    for at in range(0, len(text), step):
        out += chain.feed(text[at : at + step], False)
        if chain.head is not None and released_at < 0:
            released_at = at + step
    assert out == text and chain.head == HEAD and not chain.reads_body
    assert released_at > len(prelude)
    assert step > 100 or released_at <= len(prelude + EVENT)


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "prelude", [b"", b": ka\n\n", PRELUDE, PRELUDE.replace(b"{}", b'{"x":"%b"}' % (b"x" * 90_000))]
)
def test_who_looks_on_knows_the_first_event_however_it_is_cut(prelude: bytes, line_end: bytes, step: int) -> None:
    """And keeps next to nothing, however long what says only that the request was taken is."""
    prelude, event = (text.replace(b"\r\n", b"\n").replace(b"\n", line_end) for text in (prelude, EVENT))
    watch, at = FirstEventWatch(), 0
    for at in range(0, len(prelude), step):
        assert not watch.feed(prelude[at : min(at + step, len(prelude))])
        assert len(watch._line) <= 65

    assert any(watch.feed(event[at : at + step]) for at in range(0, len(event), step))


@pytest.mark.parametrize(("is_sse", "is_plain"), [(False, True), (True, False)])
def test_what_has_no_events_to_read_passes_at_once(is_sse: bool, is_plain: bool) -> None:
    """JSON, and what is compressed."""
    chain = FilterChain([FirstEventGate()], is_sse=is_sse, is_plain=is_plain)
    assert chain.begin(HEAD) == HEAD and not chain.reads_body


def test_stream_without_an_event_passes_at_its_end_and_a_long_one_before() -> None:
    """Nobody is asked instead: it ended well. And nobody sends 64 KiB of comments."""
    chain = FilterChain([FirstEventGate()], is_sse=True, is_plain=True)
    chain.begin(HEAD)
    assert chain.feed(b": ka\n\n", False) == b"" and chain.feed(b"", True) == b": ka\n\n"
    chain = FilterChain([FirstEventGate()], is_sse=True, is_plain=True)
    chain.begin(HEAD)
    long = b": " + b"x" * 70_000
    assert chain.feed(long, False) == long
