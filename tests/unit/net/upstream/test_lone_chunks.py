"""Chunks that come alone: they are known for what llhttp would make of them, and for nothing else."""

from __future__ import annotations

import itertools
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.net.upstream.test_upstream_http1 import Line
from tests.unit.net.upstream_wire import Sink
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.response import LONE_CHUNK_BYTES, ResponseDecoder, lone_chunk
from velox.protocol.http1.response_head import ReplyHeads

HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
# Bytes that chunks are cut into and look like.
TRICKY: Final = b"01afA\r\n;= x+_"


def alone(size: int, fill: bytes = b"x") -> bytes:
    return http1_write.chunk(fill * size)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 254, 255, 256, 257, 258, 4094, 4095, 4096, 5000])
def test_chunk_of_two_or_three_digits_is_known(size: int) -> None:
    """Its data is found, and all that are known fit into what is looked at."""
    chunk = alone(size)
    at = lone_chunk(chunk)
    assert bool(at) == (16 <= size <= 4095)
    assert (at == 0 or chunk[at:-2] == b"x" * size) and (len(chunk) <= LONE_CHUNK_BYTES) == (size <= 4095)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        http1_write.LAST_CHUNK,
        alone(255).replace(b"ff", b"FF"),
        b"0" + alone(20),
        b"14;a=b\r\n" + b"x" * 20 + b"\r\n",
        b"14 \r\n" + b"x" * 20 + b"\r\n",
        b"+14\r\n" + b"x" * 20 + b"\r\n",
        b"0x14\r\n" + b"x" * 20 + b"\r\n",
        alone(20)[:-1],
        alone(20)[:-2] + b"xx",
        alone(20) + b"\r\n",
        alone(20) + alone(20),
        alone(20) + http1_write.LAST_CHUNK,
        b"14\n" + b"x" * 21 + b"\r\n",
        # As long as one of 0xff or of 0x100 bytes would have to be, and neither.
        b"100\r\n" + b"x" * 255 + b"\r\n",
        b"ff\r\n" + b"x" * 257 + b"\r\n",
    ],
)
def test_all_else_is_the_parsers(data: bytes) -> None:
    """Sizes that are written otherwise, more or less than one chunk, and what is none."""
    assert lone_chunk(data) == 0


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (b"1", alone(16)),  # 0x110 bytes, not 16
        (alone(20) + b"1", alone(16)),
        (alone(20) + b"1;a=b", alone(16)),
        (b"fff\r\nx", alone(20)),  # inside a chunk
        (b"18\r\nxx", alone(18)),  # its end is the end of that chunk
        (alone(20)[:-2], alone(20)),  # no CRLF after a chunk's data
        (alone(20)[:-1], alone(20)),
        (b"0\r\n", alone(20)),  # a trailer
        (b"0\r\nx: y\r\n", alone(20)),
    ],
)
def test_what_only_looks_like_a_chunk_is_not_taken_for_one(before: bytes, then: bytes) -> None:
    """The read before decides where a chunk may begin."""
    pieces = [HEAD, alone(30), before, then]
    sink = read(pieces, takes_chunks=True)
    assert sink.n_chunks == 0
    assert sink.body == read(pieces, takes_chunks=False).body


def test_chunks_at_a_models_pace_are_taken_alone() -> None:
    """From the second one on, also after several in one read and after one in two."""
    line = Line()
    sink = line.open(sink=Sink(takes_chunks=True))
    seen = []
    for data in (HEAD, alone(30), alone(31), alone(32) * 2, alone(33), alone(34)[:9], alone(34)[9:], alone(300)):
        line.give(data)
        seen.append(sink.n_chunks)
    assert seen == [0, 0, 1, 1, 2, 2, 2, 3]
    line.give(http1_write.LAST_CHUNK)
    assert sink.ended and sink.body == b"x" * (30 + 31 + 64 + 33 + 34 + 300) and line.connection.has_room


def test_read_of_nothing_says_nothing() -> None:
    """Where it stands is not known any more, and known again with the next chunk."""
    decoder = ResponseDecoder(ReplyHeads(), head_request=False)
    seen = []
    for data in (HEAD, alone(30), b"", alone(31)):
        decoder.feed(memoryview(data))
        seen.append(decoder.between)
    assert seen == [False, True, False, True] and decoder.take_body() == b"x" * 61


def test_chunk_that_is_not_taken_is_decoded() -> None:
    """A sink may leave it: nothing is lost, and nothing comes twice."""
    line = Line()
    sink = line.open()
    for data in (HEAD, alone(30), alone(31), alone(32), http1_write.LAST_CHUNK):
        line.give(data)
    assert sink.ended and sink.n_chunks == 0 and sink.body == b"x" * (30 + 31 + 32)


def read(pieces: list[bytes], *, takes_chunks: bool) -> Sink:
    """Let a connection read these, to the end of its reply or its own."""
    line = Line()
    sink = line.open(sink=Sink(takes_chunks=takes_chunks))
    for piece in pieces:
        if piece and not line.transport.is_closed and not sink.ended:
            line.give(piece)
    return sink


def cut(wire: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(wire), *(each % (len(wire) + 1) for each in at)})
    return [wire[begin:end] for begin, end in itertools.pairwise(places)]


chunks = st.one_of(
    st.integers(1, 300).map(alone),
    st.sampled_from([alone(16), alone(255), alone(256), alone(4095), alone(4096), alone(17, b"\r\n")]),
    st.binary(min_size=1, max_size=40).map(http1_write.chunk),
    st.sampled_from([b"A\r\n0123456789\r\n", b"014\r\n" + b"y" * 20 + b"\r\n", b'3;a="b"\r\nabc\r\n']),
    st.text(TRICKY.decode(), min_size=1, max_size=4).map(str.encode),
)


@given(st.lists(chunks, max_size=12), st.lists(st.integers(0, 10_000), max_size=6), st.booleans(), st.booleans())
@example([alone(20), b"1", alone(16)], [], True, False)
def test_the_short_way_and_the_parser_read_the_same(
    parts: list[bytes], cuts: list[int], by_part: bool, has_end: bool
) -> None:
    """Whatever comes, in whatever pieces: the same body, the same end, the same refusal."""
    parts = [*parts, http1_write.LAST_CHUNK] if has_end else parts
    # In reads as the chunks are, or anyhow.
    pieces = [HEAD, *(parts if by_part else cut(b"".join(parts), cuts))]
    short, parsed = (read(pieces, takes_chunks=takes) for takes in (True, False))
    assert parsed.n_chunks == 0
    assert (short.body, short.ended) == (parsed.body, parsed.ended)
    assert (short.failure is None) == (parsed.failure is None)
