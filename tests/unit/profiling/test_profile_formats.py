"""A profile as pprof file and as folded text."""

from __future__ import annotations

import dataclasses
import gzip
import json

from velox.profiling import pprof
from velox.profiling.folded import folded
from velox.profiling.samples import HEAP, Cost, Frame, Profile, Stack
from velox.profiling.speedscope import speedscope
from velox.profiling.top_lines import top_lines

MAIN = Frame("main", "velox/cli.py", 10, 12)
RUN = Frame("Exchange.run", "velox/gateway/request/exchange.py", 40, 55)
RUN_LATER = RUN._replace(line=70)
LOADS = Frame("loads", "json/__init__.py", 299, 346)

STACKS: dict[Stack, Cost] = {
    (MAIN, RUN): Cost(3, 30_000_000),
    (MAIN, RUN_LATER, LOADS): Cost(5, 50_000_000),
    (MAIN,): Cost(2, 20_000_000),
}


def a_profile(workers: dict[str, dict[Stack, Cost]], missing: tuple[str, ...] = ()) -> Profile:
    return Profile(workers, missing, started_ns=1_700_000_000_000_000_000, duration_ns=2_000_000_000, hz=99)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def message(data: bytes) -> list[tuple[int, int | bytes]]:
    """Decode protobuf of wire types 0 and 2, without knowing what it means."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            fields.append((key >> 3, data[at : at + value]))
            at += value
        else:
            assert key & 7 == 0
            fields.append((key >> 3, value))
    return fields


def numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


class Decoded:
    """A pprof file, read by the fields' numbers in profile.proto."""

    def __init__(self, data: bytes) -> None:
        self.fields = message(gzip.decompress(data))
        self.strings = [value.decode() for value in self.blocks(6)]
        self.functions = {dict(f)[1]: dict(f) for f in map(message, self.blocks(5))}
        self.locations = {dict(f)[1]: dict(f) for f in map(message, self.blocks(4))}

    def blocks(self, field: int) -> list[bytes]:
        return [value for number, value in self.fields if number == field and isinstance(value, bytes)]

    def text(self, index: int | bytes) -> str:
        assert isinstance(index, int)
        return self.strings[index]

    def place(self, location: int) -> str:
        line = self.locations[location][4]
        assert isinstance(line, bytes)
        of = dict(message(line))
        function = self.functions[of[1]]
        start, current = function[5], of[2]
        assert isinstance(start, int)
        assert isinstance(current, int)
        return f"{self.text(function[2])} {self.text(function[4])}:{start}:{current}"

    def samples(self) -> dict[tuple[str, ...], list[int]]:
        found = {}
        for fields in map(dict, map(message, self.blocks(2))):
            places, values, label = fields[1], fields[2], fields[3]
            assert isinstance(places, bytes)
            assert isinstance(values, bytes)
            assert isinstance(label, bytes)
            key, worker = dict(message(label))[1], dict(message(label))[2]
            stack = tuple(self.place(location) for location in numbers(places))
            found[(f"{self.text(key)}={self.text(worker)}", *stack)] = numbers(values)
        return found


def test_pprof_samples_decode_to_what_was_sampled() -> None:
    """Every stack is there, the function that ran first, with its count, its CPU time and its worker."""
    decoded = Decoded(pprof.encode(a_profile({"worker 0": STACKS})))

    main, run = (
        "velox.cli.main velox/cli.py:10:12",
        "velox.gateway.request.exchange.Exchange.run velox/gateway/request/exchange.py:40",
    )
    assert decoded.samples() == {
        ("worker=worker 0", f"{run}:55", main): [3, 30_000_000],
        ("worker=worker 0", "json.loads json/__init__.py:299:346", f"{run}:70", main): [5, 50_000_000],
        ("worker=worker 0", main): [2, 20_000_000],
    }
    assert len(decoded.functions) == 3, "two lines of one function are two locations, one function"


def test_pprof_header_has_types_times_and_who_is_missing() -> None:
    """The file says what the values are, when and how long, and which workers are not in it."""
    decoded = Decoded(pprof.encode(a_profile({"worker 0": STACKS}, missing=("worker 1",))))
    fields = dict(decoded.fields)

    types = [tuple(decoded.text(index) for _, index in message(block)) for block in decoded.blocks(1)]
    assert types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert decoded.strings[0] == ""
    assert fields[9] == 1_700_000_000_000_000_000
    assert fields[10] == 2_000_000_000
    assert fields[12] == 1_000_000_000 // 99
    assert decoded.text(fields[13]) == "worker 1 did not answer and is not in this profile"
    assert decoded.text(fields[14]) == "cpu"


def test_pprof_empty_profile_is_still_a_profile() -> None:
    """Idle workers give a file with no sample, not a broken one."""
    decoded = Decoded(pprof.encode(a_profile({})))

    assert decoded.samples() == {}


def test_folded_is_one_line_per_stack() -> None:
    """Other tools read a stack per line, callers first, and microseconds; separators in names are replaced."""
    odd = Frame("<lambda>; x", "velox/a.py", 1, 1)
    text = folded(a_profile({"worker 0": {(MAIN, odd): Cost(1, 1_500_000), (MAIN,): Cost(1, 2000)}}))

    assert text == "worker_0;velox.cli.main 2\nworker_0;velox.cli.main;velox.a.<lambda>,_x 1500\n"


def test_file_says_what_samples_can_not_show() -> None:
    """A profile of compiled modules looks as if nothing were done there."""
    profile = dataclasses.replace(a_profile({"worker 0": STACKS}), unseen="compiled & unseen")
    assert b"compiled & unseen" in gzip.decompress(pprof.encode(profile))


LINE = Frame("", "velox/net/a.py", 12, 12)
OTHER_LINE = Frame("", "velox/net/a.py", 40, 40)


def a_heap() -> Profile:
    stacks: dict[Stack, Cost] = {(OTHER_LINE, LINE): Cost(2, 300), (LINE,): Cost(1, 50), (OTHER_LINE,): Cost(1, 40)}
    taken = {"worker 0": stacks, "worker 1": {(OTHER_LINE,): Cost(1, 60)}}
    return Profile(taken, ("worker 2",), 0, 5_000_000_000, 0, "what is compiled", HEAP)


def test_heap_for_pprof_has_the_types_of_gos_heap_profiles() -> None:
    """So that -inuse_space and -inuse_objects work; a line stands for a function, which nobody knows of it."""
    decoded = Decoded(pprof.encode(a_heap()))
    types = [tuple(decoded.text(index) for _, index in message(block)) for block in decoded.blocks(1)]

    assert types == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    assert 11 not in dict(decoded.fields) and 12 not in dict(decoded.fields), "it has no rate"
    assert decoded.samples()["worker=worker 1", "velox/net/a.py:40 velox/net/a.py:40:40"] == [1, 60]


def test_heap_as_text_sums_lines_over_stacks_and_workers() -> None:
    text = top_lines(a_heap()).splitlines()

    assert text[:3] == [
        "memory allocated in 5 s and still in use: 450 bytes in 5 blocks",
        "worker 2 did not answer and is not in this profile",
        "compiled build: what is compiled",
    ]
    assert [line.split() for line in text[5:]] == [["350", "3", "velox/net/a.py:12"], ["100", "2", "velox/net/a.py:40"]]


def test_heap_as_text_sums_what_is_beyond_the_largest() -> None:
    lines: dict[Stack, Cost] = {(Frame("", "a.py", n, n),): Cost(1, 100 - n) for n in range(70)}
    shown = top_lines(dataclasses.replace(a_heap(), workers={"worker 0": lines})).splitlines()

    assert shown[-1].split() == [str(sum(range(31, 41))), "10", "10", "other", "lines"]


def test_speedscope_has_a_profile_for_each_worker_with_shared_frames() -> None:
    """As its file format says: indexes into the shared frames, callers first, weights that sum up to the end."""
    file = json.loads(speedscope(a_profile({"worker 0": STACKS, "worker 1": {(MAIN,): Cost(1, 7)}}, ("worker 2",))))

    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert "worker 2 did not answer" in file["name"]
    first, second = file["profiles"]
    names = [frame["name"] for frame in file["shared"]["frames"]]
    assert [names[at] for at in first["samples"][0]] == [
        "velox.cli.main",
        "velox.gateway.request.exchange.Exchange.run",
    ]
    assert (first["type"], first["unit"], first["startValue"], first["endValue"]) == (
        "sampled",
        "nanoseconds",
        0,
        10**8,
    )
    assert sum(first["weights"]) == first["endValue"]
    assert (second["name"], second["weights"]) == ("worker 1", [7])
    assert file["shared"]["frames"][1] == {"name": names[1], "file": "velox/gateway/request/exchange.py", "line": 55}
