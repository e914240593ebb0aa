"""When an event stream tells of the model's work for the first time."""

from __future__ import annotations

import pytest

from velox.gateway.reply.first_event import FirstEventWatch, has_whole_event

EVENT = b'data: {"id":"x"}\n\n'
PRELUDE = (
    b': ka\n\nevent: message_start\ndata: {"type":"message_start"}\n\nevent: ping\r\ndata: {}\r\n\r\n'
    b'event: response.created\ndata: {"type":"response.created"}\n\nevent: response.in_progress\ndata: {}\n\n'
)
# Some servers leave the name out.
UNNAMED = b'data: {"type":"response.created","response":{"id":"r"}}\n\ndata: { "type": "keepalive" }\n\n'


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "prelude", [b"", b": ka\n\n", PRELUDE, UNNAMED, PRELUDE.replace(b"{}", b'{"x":"%b"}' % (b"x" * 90_000))]
)
def test_who_looks_on_knows_the_first_event_however_it_is_cut(prelude: bytes, line_end: bytes, step: int) -> None:
    """And keeps next to nothing, however long what says only that the request was taken is."""
    prelude, event = (text.replace(b"\r\n", b"\n").replace(b"\n", line_end) for text in (prelude, EVENT))
    watch, at = FirstEventWatch(), 0
    for at in range(0, len(prelude), step):
        assert not watch.feed(prelude[at : min(at + step, len(prelude))])
        assert len(watch._line) <= 65

    assert any(watch.feed(event[at : at + step]) for at in range(0, len(event), step))


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"\r"])
def test_whole_event_is_seen_whatever_ends_its_lines(line: bytes, blank: bytes) -> None:
    """CR and LF after each other are one end of a line; nothing else of these is."""
    event = b'data: {"id":"x"}'
    is_ended = line + blank != b"\r\n"

    assert has_whole_event(event + line + blank + b"data: {") is is_ended
    assert not has_whole_event(event + line)
    assert not has_whole_event(b": ka" + line + line + event)
