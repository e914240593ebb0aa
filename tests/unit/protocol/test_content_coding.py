"""Bodies of requests that came compressed: what they are, and what is none."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.heads import Headers, RequestHead
from velox.protocol.content_coding import coding_of, decoding, has_brotli, has_long_steps
from velox.protocol.slices import finished

MOST = 32 * 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "zstd": (b"zstd", zstd.compress),
    "gzip": (b"gzip", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "br": (b"br", brotli.compress),
    "raw deflate": (b"deflate", raw_deflate),
}
PACKED = pytest.mark.parametrize("kind", PACKERS)


def decoded(coding: bytes, body: bytes, most: int = MOST, on_piece: Callable[[int], None] = lambda n: None) -> bytes:
    return bytes(finished(decoding(coding, body, most, on_piece)))


@PACKED
@given(data=st.binary(max_size=2000), times=st.integers(1, 40))
def test_body_is_what_was_packed(kind: str, data: bytes, times: int) -> None:
    """C16: whatever it is, also nothing."""
    coding, pack = PACKERS[kind]
    assert decoded(coding, pack(data * times)) == data * times


@PACKED
def test_long_body_comes_in_pieces(kind: str) -> None:
    """C16: no piece is longer than 128 KiB, however little of the packed body it takes; each is told of."""
    coding, pack = PACKERS[kind]
    data = b"".join(b'{"role":"user","content":"message %d"},' % n for n in range(100_000))
    pieces: list[int] = []
    assert decoded(coding, pack(data), on_piece=pieces.append) == data
    assert sum(pieces) == len(data) and max(pieces) <= 128 * 1024
    steps = decoding(coding, pack(data), MOST, pieces.append)
    assert sum(1 for _ in steps) >= len(data) // (128 * 1024)


@PACKED
def test_body_that_is_cut_or_goes_on_is_refused(kind: str) -> None:
    """C16: half a body must not become a request, and what follows on one is no part of it."""
    coding, pack = PACKERS[kind]
    data = b"".join(b"%d " % n for n in range(5000))
    whole = pack(data)
    for body in (b"", whole[:1], whole[:100], whole[:-1], whole + b"x", b"{}" + whole, b'{"model":"gpt"}'):
        with pytest.raises(VeloxError) as refused:
            decoded(coding, body)
        assert refused.value.reason is Reason.BAD_REQUEST


@PACKED
def test_body_that_expands_without_end_is_refused(kind: str) -> None:
    """C16: a hundred times its length, and no more than bodies may have; no piece is kept that is over it."""
    coding, pack = PACKERS[kind]
    pieces: list[int] = []
    with pytest.raises(VeloxError) as refused:
        decoded(coding, pack(bytes(30_000_000)), on_piece=pieces.append)
    assert refused.value.reason is Reason.BAD_REQUEST and sum(pieces) <= 4 * 1024 * 1024
    with pytest.raises(VeloxError) as refused:
        decoded(coding, pack(b"abc" * 1000), most=2999)
    assert (refused.value.reason, refused.value.status) == (Reason.BODY_TOO_LARGE, 413)
    assert decoded(coding, pack(b"abc" * 1000), most=3000) == b"abc" * 1000


@pytest.mark.parametrize("kind", ["zstd", "gzip"])
def test_body_of_several_frames_is_their_sum(kind: str) -> None:
    """RFC 8878 §3.1, RFC 1952 §2.2: some packers write several. Thousands of empty ones are refused."""
    coding, pack = PACKERS[kind]
    assert decoded(coding, pack(b"one ") + pack(b"") + pack(b"two")) == b"one two"
    with pytest.raises(VeloxError):
        decoded(coding, pack(b"") * 17)


def test_window_that_is_too_large_is_refused() -> None:
    """RFC 8878 §3.1.1.1.2: a decoder need not hold more than 8 MiB of it."""
    options = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=options)
    body = packer.compress(bytes(range(256)) * 40_000) + packer.flush()
    with pytest.raises(VeloxError):
        decoded(b"zstd", body)


@pytest.mark.parametrize(
    ("headers", "coding"),
    [
        ([], b""),
        ([(b"content-encoding", b"")], b""),  # N6
        ([(b"content-encoding", b"identity")], b""),
        ([(b"content-encoding", b"ZSTD")], b"zstd"),
        ([(b"content-encoding", b"Br")], b"br"),
        ([(b"content-encoding", b" x-gzip ")], b"gzip"),
        ([(b"content-encoding", b"identity, deflate")], b"deflate"),
        ([(b"content-encoding", b""), (b"content-encoding", b"gzip")], b"gzip"),
    ],
)
def test_coding_is_known(headers: Headers, coding: bytes) -> None:
    """N6: an empty one is none."""
    assert coding_of(RequestHead.of(b"POST", b"/", headers)) == coding


OTHERS = [b"gzip, zstd", b"gzip, gzip", b"br, br", b"compress", b"aws-chunked", b"\xff"]


def refusal_of(value: bytes, is_br_known: bool) -> VeloxError:
    with pytest.raises(VeloxError) as refused:
        coding_of(RequestHead.of(b"POST", b"/", [(b"content-encoding", value)]), lambda: is_br_known)
    assert (refused.value.reason, refused.value.status) == (Reason.UNSUPPORTED_ENCODING, 415)
    return refused.value


@pytest.mark.parametrize("value", OTHERS)
def test_other_coding_is_refused_with_those_that_are_taken(value: bytes) -> None:
    """C16: RFC 9110 §15.5.16: the answer says which codings would have been accepted."""
    known, unknown = refusal_of(value, True), refusal_of(value, False)
    assert known.headers == ((b"accept-encoding", b"zstd, gzip, deflate, br"),) and " br," in str(known)
    assert unknown.headers == ((b"accept-encoding", b"zstd, gzip, deflate"),) and " br" not in str(unknown)


def test_br_without_its_package_says_what_to_do() -> None:
    """The package is an extra; a gateway without it takes the other codings as ever."""
    refused = refusal_of(b"br", False)
    assert refused.headers == ((b"accept-encoding", b"zstd, gzip, deflate"),)
    assert "the extra `brotli` of velox-gateway" in str(refused) and "zstd, gzip or deflate" in str(refused)
    assert coding_of(RequestHead.of(b"POST", b"/", [(b"content-encoding", b"gzip")]), lambda: False) == b"gzip"
    assert has_brotli()


def test_only_br_has_long_steps() -> None:
    """A decoder of br fills the window that 14 bytes ask for, 16 MiB, before it gives of it."""
    assert [coding for coding in (b"zstd", b"gzip", b"deflate", b"br") if has_long_steps(coding)] == [b"br"]
    pieces: list[int] = []
    steps = decoding(b"br", brotli.compress(bytes(16 << 20), lgwin=24), MOST, pieces.append)
    for _ in zip(range(8), steps, strict=False):
        assert max(pieces) <= 128 * 1024
    with pytest.raises(VeloxError):
        finished(steps)
    assert sum(pieces) <= 1024 * 1024
