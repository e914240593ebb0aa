"""OTLP's traces as protobuf: an ExportTraceServiceRequest written, an ExportTraceServiceResponse read.

Knows: the numbers and wire types of opentelemetry-proto 1.x (trace/v1/trace.proto, common/v1/common.proto,
collector/trace/v1/trace_service.proto) that Velox uses. Does not know: what a span says, or where it goes.

Written by hand, as a gateway has no other use for protobuf; tests read it back by the official package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

__all__ = ["CLIENT", "ERROR", "SERVER", "UNSET", "AttributeValue", "Span", "rejected_spans", "request_of"]

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]

SERVER: Final = 2  # Span.SpanKind
CLIENT: Final = 3
UNSET: Final = 0  # Status.StatusCode
ERROR: Final = 2
# Span.flags: below, those of the traceparent; and that it is known whether the parent is of another process.
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_U64: Final = (1 << 64) - 1


class Span(NamedTuple):
    """One span. parent_id: b"" for the first of a trace. start_ns, end_ns: Unix time. status: UNSET or ERROR."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    trace_state: str
    is_remote: bool
    is_sampled: bool
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    status: int = UNSET
    message: str = ""


def request_of(spans: Iterable[Span], resource: Mapping[str, AttributeValue], scope: tuple[str, str]) -> bytes:
    """Return an ExportTraceServiceRequest. scope: name and version of what has made the spans."""
    scope_spans = _message(1, _text(1, scope[0]) + _text(2, scope[1]))
    scope_spans += b"".join(_message(2, _span(each)) for each in spans)
    return _message(1, _message(1, _attributes(1, resource)) + _message(2, scope_spans))


def rejected_spans(response: bytes) -> int:
    """Return how many spans a collector says that it has not taken: an ExportTraceServiceResponse.

    0 for what can't be read: it said that it took them, by its status.
    """
    try:
        partial = dict(_fields(response)).get(1, b"")
        found = dict(_fields(partial)).get(1, 0) if isinstance(partial, bytes) else 0
    except (IndexError, ValueError, struct.error):
        return 0
    return found if isinstance(found, int) and found < 1 << 63 else 0


def _span(span: Span) -> bytes:
    flags = _HAS_IS_REMOTE | (_IS_REMOTE if span.is_remote else 0) | span.is_sampled
    return b"".join(
        (
            _field(1, span.trace_id),
            _field(2, span.span_id),
            _text(3, span.trace_state),
            _field(4, span.parent_id),
            _text(5, span.name),
            _number(6, span.kind),
            _key(7, _FIXED64) + struct.pack("<Q", span.start_ns),
            _key(8, _FIXED64) + struct.pack("<Q", span.end_ns),
            _attributes(9, span.attributes),
            _message(15, _text(2, span.message) + _number(3, span.status)) if span.status else b"",
            _key(16, _FIXED32) + struct.pack("<I", flags),
        )
    )


def _attributes(number: int, attributes: Mapping[str, AttributeValue]) -> bytes:
    return b"".join(_message(number, _text(1, key) + _message(2, _value(each))) for key, each in attributes.items())


def _value(value: AttributeValue) -> bytes:
    """Return an AnyValue; of a oneof the usual value is written, too."""
    if isinstance(value, str):
        return _message(1, value.encode("utf-8", "replace"))
    if isinstance(value, bool):
        return _key(2, _VARINT) + _varint(value)
    if isinstance(value, int):
        return _key(3, _VARINT) + _varint(value & _U64)
    if isinstance(value, float):
        return _key(4, _FIXED64) + struct.pack("<d", value)
    return _message(5, b"".join(_message(1, _value(each)) for each in value))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes; nothing for the usual value, which is empty."""
    return _message(number, data) if data else b""


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value) if value else b""


def _message(number: int, data: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(data)) + data


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _fields(data: bytes) -> Iterable[tuple[int, int | bytes]]:
    """Yield the fields of a message. Raises IndexError, ValueError, struct.error where it is none."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
        elif kind == _BYTES:
            n_bytes, at = _read_varint(data, at)
            if at + n_bytes > len(data):
                raise ValueError("it is cut")
            yield key >> 3, data[at : at + n_bytes]
            at += n_bytes
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("there is no such wire type")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(10):
        byte = data[at + n]
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value & _U64, at + n + 1
    raise ValueError("a number has no end")
