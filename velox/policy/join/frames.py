"""What two workers say to each other of a call: one has it, the other one has clients that want to join it.

The one that asks sends question_bytes() and nothing else. It gets frames: a kind, a length, and so many bytes.

Knows: these bytes. Does not know: sockets, or what is done about them (gateway/join).
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

import msgspec

from velox.heads import ReplyHead

__all__ = ["QUESTION_BYTES", "Frame", "FrameKind", "FrameReader", "Question", "Wanted", "frame_bytes", "head_bytes"]
__all__ += ["question_bytes", "read_head", "read_question"]

_QUESTION: Final = struct.Struct("<16sB32s32s")
QUESTION_BYTES: Final = _QUESTION.size
_FRAME: Final = struct.Struct("<BI")
_HEAD: Final = msgspec.msgpack.Decoder(tuple[int, bool, int | None, list[tuple[bytes, bytes]]])
_NO_NAME: Final = bytes(32)


class Wanted(enum.IntEnum):
    """Which call is asked for."""

    EQUAL = 0  # one that runs for an equal request
    RETRY = 1  # the first call of a retry
    NAMED = 2  # that of an Idempotency-Key


class FrameKind(enum.IntEnum):
    """What a frame says."""

    NONE = 0  # there is no such call; nothing follows
    MISMATCH = 1  # the Idempotency-Key is another request's; nothing follows
    JOINED = 2  # the reply follows
    HEAD = 3
    DATA = 4
    END = 5  # it is whole
    ALONE = 6  # there will be nothing of it
    FAILED = 7  # it is cut off; why: the code of the reason


class Question(NamedTuple):
    """token: what the other process wants to see. name: what stands for an Idempotency-Key."""

    token: bytes
    wanted: Wanted
    key: bytes
    name: bytes | None


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    data: bytes


def question_bytes(question: Question) -> bytes:
    """Return what is sent."""
    return _QUESTION.pack(question.token, question.wanted, question.key, question.name or _NO_NAME)


def read_question(data: bytes) -> Question | None:
    """Return what QUESTION_BYTES say; None: nothing that is understood."""
    token, wanted, key, name = _QUESTION.unpack(data)
    try:
        return Question(token, Wanted(wanted), key, None if name == _NO_NAME else name)
    except ValueError:
        return None


def frame_bytes(kind: FrameKind, data: bytes = b"") -> bytes:
    """Return a frame."""
    return _FRAME.pack(kind, len(data)) + data


def head_bytes(head: ReplyHead, *, is_sse: bool) -> bytes:
    """Return the frame of a reply's head."""
    told = msgspec.msgpack.encode((head.status, is_sse, head.content_length, head.headers))
    return frame_bytes(FrameKind.HEAD, told)


def read_head(data: bytes) -> tuple[ReplyHead, bool]:
    """Return a head, and whether its body is a stream of events. Raises ValueError."""
    status, is_sse, length, headers = _HEAD.decode(data)
    return ReplyHead.of(status, headers, length), is_sse


class FrameReader:
    """Finds the frames in what comes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def n_bytes(self) -> int:
        """Bytes that are held: of frames that were not taken."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._data += data

    def next(self) -> Frame | None:
        """Return the next frame; None: it is not whole. Raises ValueError: it is none."""
        held = self._data
        if len(held) < _FRAME.size:
            return None
        kind, n_bytes = _FRAME.unpack_from(held)
        end = _FRAME.size + n_bytes
        if len(held) < end:
            return None
        frame = Frame(FrameKind(kind), bytes(memoryview(held)[_FRAME.size : end]))
        del held[:end]
        return frame
