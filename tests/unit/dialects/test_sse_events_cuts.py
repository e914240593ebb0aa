"""Server-sent events: line ends, byte order mark, bounds and cost, for every cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.dialects.canonical.errors import BrokenReplyError
from velox.protocol.sse_events import SseEvents

_LINES = [
    "data: a",
    "data:b",
    "data",
    "data:  c",
    "event: e",
    "event:",
    "id: 1",
    ": x",
    "",
    "",
    "odd",
    "data: \u00e9",
    ":",
]


def _read(data: bytes, cuts: Sequence[int] = (), most_bytes: int = 1 << 20) -> list[tuple[bytes, bytes]]:
    events = SseEvents(most_bytes)
    found = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        found += events.feed(data[at:cut])
        at = max(at, cut)
    return found + events.end()


def _plain(lines: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Return the events of lines, as the standard tells it, but for those without data."""
    found = []
    name, data = "", None
    for line in [*lines, ""]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append((name.encode(), data.encode()))
            name, data = "", None
        elif field == "data":
            data = value if data is None else f"{data}\n{value}"
        elif field == "event":
            name = value
    return found


@given(st.lists(st.sampled_from(_LINES), max_size=12), st.data())
@settings(max_examples=400, deadline=None)
@pytest.mark.slow
def test_events_are_those_of_the_standard(lines: list[str], data: st.DataObject) -> None:
    """Whatever ends the lines, and wherever they are cut."""
    ends = data.draw(st.sampled_from(["\n", "\r\n", "\r", "mixed"]))
    text = "".join(line + (data.draw(st.sampled_from(["\n", "\r\n"])) if ends == "mixed" else ends) for line in lines)
    wire = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))

    assert _read(wire, cuts) == _plain(lines)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_single_cut_gives_the_same(end: bytes) -> None:
    """Between CR and LF, too; a byte order mark at the start is skipped."""
    wire = b"\xef\xbb\xbf" + end.join([b"event: a", b"data: 1", b"data: 2", b"", b": c", b"data: 3", b"", b""])
    whole = [(b"a", b"1\n2"), (b"", b"3")]
    assert _read(wire, range(len(wire))) == whole
    for cut in range(len(wire)):
        assert _read(wire, [cut]) == whole
    for size in range(1, 9):
        assert _read(wire, range(0, len(wire), size)) == whole


@pytest.mark.parametrize(
    "wire",
    [b"data: " + b"x" * 100 + b"\n\n", b"data: " + b"x" * 100, (b"data: " + b"x" * 24 + b"\n") * 4, b"x" * 106],
)
def test_events_over_the_bound_are_errors(wire: bytes) -> None:
    """In one line or several, whole or not, whatever the cuts; at the bound they are read."""
    ways: tuple[Sequence[int], ...] = ([], range(len(wire)), range(0, len(wire), 7))
    for cuts in ways:
        with pytest.raises(BrokenReplyError):
            _read(wire, cuts, 99)
        assert len(_read(wire, cuts, 130)) <= 1


@pytest.mark.parametrize("name", ["data: ", "data:", "event: e\r\ndata:  "])
def test_large_events_are_those_of_their_lines(name: str) -> None:
    """One line in many pieces, with what follows it in the last one."""
    text = b"x" * 700_000
    wire = name.encode() + text + b"\r\ndata: b\r\n\r\ndata: c\n\n"
    for cuts in (range(0, len(wire), 65_536), range(3, len(wire), 65_536), [700_007], [len(wire) - 3]):
        assert [each for _, each in _read(wire, cuts)] == [b" " * name.count("  ") + text + b"\nb", b"c"]


def test_many_events_in_one_read_have_a_bound_each() -> None:
    """It is of one event, not of a read."""
    assert len(_read(b"data: " + b"x" * 50 + b"\n\n") * 100) == 100
    assert len(_read((b"data: " + b"x" * 50 + b"\n\n") * 100, (), 60)) == 100


@pytest.mark.slow
def test_cost_of_a_large_event_is_not_quadratic() -> None:
    """A byte at a time: what is held is not joined again for each."""
    events = SseEvents()
    source = random.Random(1)
    wire = b"data: " + bytes(source.choices(b"abcdef", k=300_000)) + b"\n\n"
    n_joined = 0
    for at in range(len(wire)):
        n_joined += len(events.feed(wire[at : at + 1]))
    assert n_joined == 1
