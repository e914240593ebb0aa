"""When an event stream tells of the model's work for the first time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


NAMES = st.sampled_from(
    ["ping", "message_start", "response.created", "response.in_progress", "response.queued", "keepalive"]
)
PADDING = st.integers(0, 5000).map(lambda n: "x" * n)
# What says that somebody is there, and nothing of the model's work.
QUIET = st.one_of(
    st.text("abc :", max_size=20).map(lambda text: f":{text}\n\n"),
    st.sampled_from(["\n", "\n\n", "id: 7\n\n", "retry: 100\n\n"]),
    st.builds(lambda name, more: f'event: {name}\ndata: {{"more":"{more}"}}\n\n', NAMES, PADDING),
    st.builds(lambda name, more: f'data: {{"type":"{name}","more":"{more}"}}\n\n', NAMES, PADDING),
)
WORK = st.sampled_from(
    [
        'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n',
        'data: {"type":"response.output_text.delta","delta":"a"}\n\n',
        'data: {"id":"x","choices":[{"delta":{"content":"ping"}}]}\n\n',
        'data: {"candidates":[]}\n\n',
        "data: [DONE]\n\n",
    ]
)


@given(st.lists(QUIET, max_size=8), WORK, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_k5_signs_of_life_are_no_work_in_any_order_and_however_they_are_cut(
    quiet: list[str], work: str, line_end: str, data: st.DataObject
) -> None:
    """The one who looks on, and the one who holds back, agree: it begins with the first event that is none of these."""
    before, event = ("".join(each).replace("\n", line_end).encode() for each in (quiet, [work]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(before)), max_size=6)))
    watch = FirstEventWatch()

    for begin, end in zip([0, *cuts], [*cuts, len(before)], strict=True):
        assert not watch.feed(before[begin:end])
    at = data.draw(st.integers(0, len(event)))
    assert watch.feed(event[:at]) or watch.feed(event[at:])
    assert not has_whole_event(before)
    assert has_whole_event(before + event + b": ka")
