"""The chunked coding of requests: strict, bounded, nothing of extensions or trailers left over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.chunked import ChunkedDecoder

LIMIT = 1 << 20


def decode(wire: bytes, limit: int = LIMIT) -> tuple[bytes, bytes]:
    """Decode a whole body; return it and what follows it."""
    decoder = ChunkedDecoder(limit)
    body, at = decoder.decode(wire, 0)
    assert decoder.complete
    return body, wire[at:]


def refusal(wire: bytes, limit: int = LIMIT) -> VeloxError:
    """Return what a body is refused with, the same whole and byte by byte."""
    with pytest.raises(VeloxError) as whole:
        ChunkedDecoder(limit).decode(wire, 0)
    decoder, held = ChunkedDecoder(limit), bytearray()
    with pytest.raises(VeloxError) as dripped:
        for byte in wire:
            held.append(byte)
            _, at = decoder.decode(held, 0)
            del held[:at]
    assert whole.value.reason is dripped.value.reason
    assert whole.value.close
    return whole.value


@pytest.mark.parametrize(
    "wire",
    [
        *(size + b"\r\nhello\r\n0\r\n\r\n" for size in (
            b"0x5", b"+5", b"-1", b"5 ", b" 5", b"5\t", b"5_0", b"", b"F" * 17, b"5g", b"\xb5", b"5,5", b"5\x00")),
        *(b"5" + ext + b"\r\nhello\r\n0\r\n\r\n" for ext in (
            b";", b";a=", b";=b", b";a\nb", b";a\rb", b";a\x00", b";a b", b" ;a", b";a;", b';a="b', b";a=\x80",
            b";" + b"a" * 65536, b';a="\x01"')),
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a\nhello\r\n0\r\n\r\n",
        b"5\rhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"0\n\n",
        b"0\r\n\n",
        b"0\r\nX\r\n\r\n",
        b"0\r\nX : y\r\n\r\n",
        b"0\r\n X: y\r\n\r\n",
        b"0\r\nX: a\rb\r\n\r\n",
        b"0\r\nX: a\x00b\r\n\r\n",
        b"0\r\n: y\r\n\r\n",
        b"0\r\nX: y\n\r\n",
    ],
    ids=lambda wire: repr(wire[:24]),
)  # fmt: skip
def test_chunked_malformed_refused(wire: bytes) -> None:
    """B-8, B-9, B-10: sizes, extensions, ends of chunks and trailers that another server could read differently."""
    assert refusal(wire).reason is Reason.BAD_FRAMING


@pytest.mark.parametrize("size", [b"5", b"05", b"0000000000000005", b"5;a", b"5;a=b", b'5;a="b \t\\"c";d', b"5;a=b;c"])
def test_chunked_size_and_extension_discarded(size: bytes) -> None:
    """Extensions are checked and thrown away."""
    assert decode(size + b"\r\nhello\r\n0\r\n\r\nNEXT") == (b"hello", b"NEXT")


@pytest.mark.parametrize(
    "trailer", [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Host: b", b"Authorization: x", b"X:"]
)
def test_chunked_trailer_discarded(trailer: bytes) -> None:
    """B-11: trailers are read and mean nothing."""
    assert decode(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\nNEXT") == (b"hello", b"NEXT")


def test_chunked_body_limit_exact() -> None:
    """B-40: n-1 and n pass, n+1 is refused, in one chunk or as the last of many."""

    def wire(n: int) -> bytes:
        return b"%x\r\n%b\r\n0\r\n\r\n" % (n, b"a" * n)

    assert len(decode(wire(99), 100)[0]) == 99
    assert len(decode(wire(100), 100)[0]) == 100
    assert refusal(wire(101), 100).reason is Reason.BODY_TOO_LARGE
    assert refusal(b"64\r\n" + b"a" * 100 + b"\r\n1\r\na\r\n0\r\n\r\n", 100).reason is Reason.BODY_TOO_LARGE


def test_chunked_huge_size_refused_when_announced() -> None:
    """A size that can't be met is refused before any of it is awaited."""
    assert refusal(b"7FFFFFFFFFFFFFFF\r\n").reason is Reason.BODY_TOO_LARGE


def test_chunked_size_line_limit_exact() -> None:
    """A size line may have 256 bytes."""

    def wire(n: int) -> bytes:
        return b"5;" + b"a" * (n - 2) + b"\r\nhello\r\n0\r\n\r\n"

    assert decode(wire(255))[0] == decode(wire(256))[0] == b"hello"
    refusal(wire(257))
    refusal(b"5;" + b"a" * 300)


def test_chunked_one_byte_chunks_refused_past_the_overhead() -> None:
    """Framing may take 16 KiB and an eighth of the body; a flood of tiny chunks is no body."""
    assert len(decode(b"1\r\na\r\n" * 3000 + b"0\r\n\r\n")[0]) == 3000
    assert refusal(b"1\r\na\r\n" * 5000).reason is Reason.BAD_FRAMING


def test_chunked_endless_trailers_refused() -> None:
    """Trailers count as overhead too."""
    assert refusal(b"0\r\n" + b"X: y\r\n" * 3000).reason is Reason.BAD_FRAMING
    assert refusal(b"0\r\nX: " + b"y" * 17000).reason is Reason.BAD_FRAMING


@given(pieces=st.lists(st.binary(min_size=1, max_size=300), max_size=20), step=st.integers(1, 64))
def test_chunked_written_reads_back(pieces: list[bytes], step: int) -> None:
    """What http1_write builds comes out again, for any split."""
    wire = b"".join(map(http1_write.chunk, pieces)) + http1_write.LAST_CHUNK
    decoder, held, body = ChunkedDecoder(LIMIT), bytearray(), b""

    for i in range(0, len(wire), step):
        assert not decoder.complete
        held += wire[i : i + step]
        part, at = decoder.decode(held, 0)
        body += part
        del held[:at]

    assert decoder.complete
    assert body == b"".join(pieces)
