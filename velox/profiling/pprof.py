"""A profile in the format of `go tool pprof`: gzip'd protocol buffer `perftools.profiles.Profile`.

Knows: that message's fields (google/pprof, proto/profile.proto) and the protobuf wire format. Does not
know: where a profile came from.

Two values per sample, as Go's runtime writes them: samples/count and cpu/nanoseconds, or of memory
inuse_objects/count and inuse_space/bytes. Each sample has the
label `worker`, so `-tagfocus` selects one and `-tagroot worker` shows them side by side.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from velox.profiling.samples import Frame, Profile

__all__ = ["encode"]

# Field numbers of Profile.
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _COMMENT, _DEFAULT_TYPE = 9, 10, 11, 12, 13, 14

_MAPPING_ID = 1


def encode(profile: Profile) -> bytes:
    """Return the profile, ready to be a reply or a `.pb.gz` file."""
    return gzip.compress(_Encoder().encode(profile), compresslevel=6, mtime=0)


class _Encoder:
    """Tables of one profile while it is written; ids count from 1, index 0 of the strings is empty."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Frame, int] = {}

    def encode(self, profile: Profile) -> bytes:
        out = bytearray()
        for kind, unit in profile.measure:
            out += _block(_SAMPLE_TYPE, self._value_type(kind, unit))
        for worker, samples in profile.workers.items():
            label = _number(1, self._string("worker")) + _number(2, self._string(worker))
            for stack, cost in samples.items():
                # pprof wants the function that ran first.
                places = (self._location(frame) for frame in reversed(stack))
                out += _block(_SAMPLE, _packed(1, places) + _packed(2, cost) + _block(3, label))
        # One mapping that claims to be symbolised: otherwise pprof looks for a binary and symbols.
        out += _block(_MAPPING, _number(1, _MAPPING_ID) + b"".join(_number(has, 1) for has in (7, 8, 9)))
        for frame, ident in self._locations.items():
            line = _number(1, self._function(frame)) + _number(2, frame.line)
            out += _block(_LOCATION, _number(1, ident) + _number(2, _MAPPING_ID) + _block(4, line))
        for (name, file, start), ident in self._functions.items():
            text = self._string(name)
            places_ = _number(2, text) + _number(3, text) + _number(4, self._string(file)) + _number(5, start)
            out += _block(_FUNCTION, _number(1, ident) + places_)
        out += self._about(profile)
        # Last, because everything above adds to it.
        for text_ in self._strings:
            out += _block(_STRING, text_.encode(errors="replace"))
        return bytes(out)

    def _about(self, profile: Profile) -> bytes:
        texts = [f"{name} did not answer and is not in this profile" for name in profile.missing]
        comments = [self._string(text) for text in (*texts, profile.unseen) if text]
        return (
            _number(_TIME, profile.started_ns)
            + _number(_DURATION, profile.duration_ns)
            + (self._period(profile) if profile.hz else b"")
            + b"".join(_number(_COMMENT, comment) for comment in comments)
            + _number(_DEFAULT_TYPE, self._string(profile.measure.amount[0]))
        )

    def _period(self, profile: Profile) -> bytes:
        kind, unit = profile.measure.amount
        return _block(_PERIOD_TYPE, self._value_type(kind, unit)) + _number(_PERIOD, 1_000_000_000 // profile.hz)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _function(self, frame: Frame) -> int:
        key = (frame.dotted, frame.file, frame.def_line)
        return self._functions.setdefault(key, len(self._functions) + 1)

    def _location(self, frame: Frame) -> int:
        return self._locations.setdefault(frame, len(self._locations) + 1)

    def _value_type(self, kind: str, unit: str) -> bytes:
        return _number(1, self._string(kind)) + _number(2, self._string(unit))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    """One field of wire type 0; value: 0 or more."""
    return _varint(field << 3) + _varint(value)


def _block(field: int, content: bytes) -> bytes:
    """One field of wire type 2: a string or a message inside."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _block(field, b"".join(map(_varint, values)))
