"""Bodies of requests that came compressed: what they are, in steps, with bounds.

    coding_of()       which coding a head names; "" for none
    decoding()        the body, in steps of at most 128 KiB of it
    has_long_steps()  whether a step may hold its thread for long

Knows: gzip, deflate, zstd and br (RFC 9110 §8.4.1, RFC 8878, RFC 7932), and how far a body may expand. Does not know:
who holds it, or what it says. Codex compresses its requests with zstd. br is an extra of the package.

A few bytes may stand for gigabytes, so that nothing is decoded at one go: a step asks for no more than it has room for,
and whoever drives the steps is told of each piece before it is kept. The decoder of br fills the window that a body has
asked for before it gives of it: 16 MiB at most, which take up to 0.2 s in one step.
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Callable, Generator
from typing import Final, Protocol

from velox.errors import Reason, VeloxError
from velox.heads import RequestHead

__all__ = ["Decoder", "Inflater", "coding_of", "decoding", "has_brotli", "has_long_steps", "zstd_decoder"]

# RFC 9110 §12.5.3: a 415 says what would be taken.
_ACCEPTED: Final = b"zstd, gzip, deflate"
_ALIASES: Final = {b"x-gzip": b"gzip", b"identity": b""}
_CODINGS: Final = frozenset({b"zstd", b"gzip", b"deflate", b""})
_BR: Final = b"br"
_SEND_PLAIN: Final = "send it without Content-Encoding"
_NOT_BR: Final = (
    "no body in br can be read here without the package brotli, 1.2 or later (the extra `brotli` of velox-gateway; all "
    f"of requirements.lock has it); compress it by zstd, gzip or deflate, or {_SEND_PLAIN}"
)
_FIELD: Final = b"content-encoding"
_STEP_BYTES: Final = 128 * 1024
_INPUT_BYTES: Final = 64 * 1024
# Text of requests shrinks to a tenth; what is a hundred times as long was made to be so.
_MOST_RATIO: Final = 100
_FREE_BYTES: Final = 1024 * 1024
# One body may be of several frames (RFC 8878 §3.1) or members (RFC 1952 §2.2); thousands of empty ones only cost time.
_MOST_FRAMES: Final = 16
_OF_ONE_FRAME: Final = frozenset({b"deflate", _BR})
# A decoder holds a window: of 8 MiB, which RFC 8878 §3.1.1.1.2 asks of each, at most.
_WINDOW_LOG: Final = 23
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class Decoder(Protocol):
    """One frame, as Python's modules have it."""

    @property
    def eof(self) -> bool:
        """True behind the end of the frame."""

    @property
    def needs_input(self) -> bool:
        """False while more comes without any."""

    @property
    def unused_data(self) -> bytes:
        """What follows on the frame."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most so much of the frame."""


class Inflater:
    """A Decoder of zlib's formats. window_bits: as zlib.decompressobj() has it."""

    def __init__(self, window_bits: int) -> None:
        self._inner: Final = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Unbrotli:
    """A Decoder of RFC 7932. It refuses what follows on the stream itself.

    Raises VeloxError(UNSUPPORTED_ENCODING) where the package can't be loaded, or can't end a piece where it has to.
    """

    unused_data: Final = b""

    def __init__(self) -> None:
        try:
            import brotli
        except ImportError as exc:
            raise _no_brotli() from exc
        if not hasattr(brotli.Decompressor, "can_accept_more_data"):  # before 1.2
            raise _no_brotli()
        self._inner: Final = brotli.Decompressor()
        self._is_cut = False  # the last piece ended where it had to, not where the decoder had no more

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    @property
    def needs_input(self) -> bool:
        return not self._is_cut and bool(self._inner.can_accept_more_data())

    def decompress(self, data: bytes, max_length: int) -> bytes:
        # It ends with the first of its blocks of 32, 64 and 256 KiB that brings it over what it is told.
        limit = max_length // 2
        piece: bytes = self._inner.process(data, output_buffer_limit=limit)
        self._is_cut = len(piece) >= limit
        return piece


def has_brotli() -> bool:
    """Say whether bodies in br can be decoded. The package is loaded with the first one, not here."""
    return importlib.util.find_spec("brotli") is not None


def coding_of(head: RequestHead, has_brotli: Callable[[], bool] = has_brotli) -> bytes:
    """Return how a body is coded, b"" if it is not. Raises VeloxError for another coding than those, or several."""
    if head.header(_FIELD) is None:
        return b""
    named = [value for name, value in head.headers if name == _FIELD]
    codings = [word for word in b",".join(named).lower().replace(b"\t", b" ").replace(b" ", b"").split(b",") if word]
    found = [coding for word in codings if (coding := _ALIASES.get(word, word))]
    coding = found[0] if found else b""
    if len(found) < 2 and coding in _CODINGS:
        return coding
    takes_br = has_brotli()
    if found == [_BR]:
        if takes_br:
            return _BR
        raise _no_brotli()
    names = "zstd, br, gzip or deflate" if takes_br else "zstd, gzip or deflate"
    message = f"a request's body may be compressed once, by {names}; {_SEND_PLAIN}"
    raise _unsupported(message, _ACCEPTED + b", br" if takes_br else _ACCEPTED)


def _no_brotli() -> VeloxError:
    return _unsupported(_NOT_BR, _ACCEPTED)


def _unsupported(message: str, accepted: bytes) -> VeloxError:
    return VeloxError(Reason.UNSUPPORTED_ENCODING, message, headers=((b"accept-encoding", accepted),))


def has_long_steps(coding: bytes) -> bool:
    """Say whether the steps of a coding are for a thread: one may hold it for 0.2 s, without the interpreter's lock."""
    return coding == _BR


def decoding(
    coding: bytes, body: bytes | bytearray, most_bytes: int, on_piece: Callable[[int], None]
) -> Generator[None, None, bytearray]:
    """Return a body without its coding; yields between steps of the work. most_bytes: that it may have.

    on_piece: told of each piece's bytes before it is kept; may raise. Raises VeloxError for what is not whole, is none
    of this coding, or expands too much.
    """
    most = min(most_bytes, max(_FREE_BYTES, _MOST_RATIO * len(body)))
    decoded = bytearray()
    n_frames, at = 1, 0
    decoder = _decoder(coding, body)
    while True:
        fed = b""
        if decoder.needs_input:
            fed = bytes(body[at : at + _INPUT_BYTES])
            at += len(fed)
            if not fed:
                raise _not_decoded(coding, "it is not whole")
        try:
            piece = decoder.decompress(fed, _STEP_BYTES)
        except Exception as exc:  # of zlib, zstd or brotli, whose classes have no common one
            raise _not_decoded(coding, "it is none") from exc
        if len(decoded) + len(piece) > most:
            raise _too_long(most, most_bytes)
        on_piece(len(piece))
        decoded += piece
        if decoder.eof:
            at -= len(decoder.unused_data)
            if at == len(body):
                return decoded
            n_frames += 1
            if n_frames > _MOST_FRAMES or coding in _OF_ONE_FRAME:
                raise _not_decoded(coding, "something follows on it")
            decoder = _decoder(coding, body)
        yield


def _decoder(coding: bytes, body: bytes | bytearray) -> Decoder:
    if coding == b"zstd":
        return zstd_decoder()
    if coding == b"gzip":
        return Inflater(_GZIP_BITS)
    if coding == _BR:
        return _Unbrotli()
    # RFC 9110 §8.4.1.2: in zlib's format, but some send it without (RFC 1950 §2.2 says how that begins).
    is_zlib = len(body) > 1 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
    return Inflater(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def zstd_decoder() -> Decoder:
    """Return what decodes one frame."""
    # Here, not above: most gateways never meet such a body.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


def _not_decoded(coding: bytes, problem: str) -> VeloxError:
    message = f"the request's body can't be read as {coding.decode('ascii')}, its Content-Encoding: {problem}"
    return VeloxError(Reason.BAD_REQUEST, message)


def _too_long(most: int, most_bytes: int) -> VeloxError:
    if most < most_bytes:
        message = f"the request's body expands to over {_MOST_RATIO} times its length, which is none of a request"
        return VeloxError(Reason.BAD_REQUEST, message)
    message = f"the request's body is longer than {most_bytes} bytes without its Content-Encoding (VELOX_MAX_BODY)"
    return VeloxError(Reason.BODY_TOO_LARGE, message)
