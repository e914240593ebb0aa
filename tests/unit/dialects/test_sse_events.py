"""Events of a stream, however its bytes are cut; lines that are no field; names that are made to fit."""

from __future__ import annotations

import re

import pytest

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.names import FittedNames
from velox.protocol.sse_events import SseEvents

_STREAM = (
    b'data: {"a":1}\r\n\r\n'
    b": comment\r\n\r\n"
    b"event: error\ndata: one\ndata: two\n\n"
    b"id: 7\r\ndata: three\r\n\r\n"
    b'{\n  "error": {\n    "code": 503\n  }\n}\n'
)
_EVENTS = [(b"", b'{"a":1}'), (b"error", b"one\ntwo"), (b"", b"three")]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 1000])
def test_events_are_the_same_for_every_cut(size: int) -> None:
    """CRLF, LF, comments, several lines of data; the lines of a bare error are kept aside."""
    events = SseEvents()

    found = [each for at in range(0, len(_STREAM), size) for each in events.feed(_STREAM[at : at + size])]
    found += events.end()

    assert found == _EVENTS
    assert events.stray == b'{\n  "error": {\n    "code": 503\n  }\n}'


def test_one_event_with_crlf_is_read_at_once() -> None:
    """As Google sends them: each in a read of its own."""
    assert SseEvents().feed(b"data: x\r\n\r\n") == [(b"", b"x")]
    assert SseEvents().feed(b"data: x\ry\r\n\r\n") == [(b"", b"x")]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("beat", [b"data:", b"data: ", b"data", b"event: ping\ndata:", b"event: ping\ndata: "])
def test_event_without_data_is_none(beat: bytes, end: bytes) -> None:
    """Servers keep connections open so. Its name is not that of the next one."""
    events = SseEvents()

    found = events.feed(beat + end) + events.feed(beat + end + b"data: x" + end) + events.feed(b"data: y" + end)

    assert found == [(b"", b"x"), (b"", b"y")]
    assert [each for at in range(len(beat + end)) for each in events.feed((beat + end)[at : at + 1])] == []
    assert events.end() == []


def test_an_event_over_the_bound_is_refused() -> None:
    """However it is cut."""
    for data in (b"data: 123456789\r\n\r\n", b"data: 123456789\r\n"):
        with pytest.raises(BrokenReplyError):
            SseEvents(8).feed(data)


def test_fitted_names_are_deterministic_and_restored() -> None:
    """What fits stays; what does not is mapped to the same name each time, and can be told back."""
    names = FittedNames(re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]*"), 64)
    long = "x" * 65

    assert names.fit("get_weather.v2") == "get_weather.v2"
    fitted = [names.fit(name) for name in (long, "é", "", "a b", "9")]

    assert fitted == [FittedNames(re.compile("[a-z]+"), 64).fit(name) for name in (long, "é", "", "a b", "9")]
    assert all(re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}", each) for each in fitted)
    assert [names.originals[each] for each in fitted] == [long, "é", "", "a b", "9"]
