"""The objects of a JSON array that comes in pieces, one after the other.

Knows: where objects begin and end. Does not know: what an object says, or whether it is valid JSON: its reader looks.
"""

from __future__ import annotations

import re
from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.protocol.json.value_count import MOST_VALUES, has_over
from velox.protocol.json.value_end import ValueEnd

__all__ = ["JsonItems"]

_BRACE: Final = ord("{")
_BRACKET_END: Final = ord("]")
_MARK: Final = re.compile(rb"[{}\]]")  # between objects


class JsonItems:
    """Of one array; or one object alone. most_bytes: of one object."""

    __slots__ = ("_held", "_is_array", "_is_closed", "_is_open", "_most_bytes", "_n_bytes", "_value")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes: Final = most_bytes
        self._held: list[bytes] = []  # of the object that is not whole
        self._n_bytes = 0
        self._value: Final = ValueEnd()
        self._is_open = False  # an object is not whole
        self._is_array: bool | None = None
        self._is_closed = False

    @property
    def is_whole(self) -> bool:
        """True once the array, or the one object, is closed."""
        return not self._is_open and (self._is_closed or self._is_array is False)

    @property
    def n_held(self) -> int:
        """Bytes of an object that is not whole yet."""
        return self._n_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; return the objects that are whole. Raises BrokenReplyError: one is over a bound."""
        if self._is_array is None and data.strip():
            self._is_array = data.lstrip().startswith(b"[")
        found: list[bytes] = []
        self._value.take(data)
        at = begin = 0
        while at < len(data):
            if not self._is_open:
                mark = _MARK.search(data, at)
                if mark is None:
                    break
                begin, at = mark.span()
                byte = data[begin]
                if byte == _BRACKET_END:
                    self._is_closed = True
                    continue
                if byte != _BRACE:
                    raise BrokenReplyError("the upstream's answer closes an object that was not opened")
                self._is_open = True
                self._value.begin(byte)
            end = self._value.find(at)
            if self._value.is_broken:
                raise BrokenReplyError("the upstream's answer has brackets that are no pairs")
            self._hold(data[begin:] if end < 0 else data[begin:end])
            if end < 0:
                break
            item = b"".join(self._held)
            if has_over(item, MOST_VALUES):
                raise BrokenReplyError(f"a part of the upstream's answer has over {MOST_VALUES:,} values")
            found.append(item)
            self._held, self._n_bytes, self._is_open = [], 0, False
            at = end
        return found

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._n_bytes += len(data)
        if self._n_bytes > self._most_bytes:
            raise BrokenReplyError(f"a part of the upstream's answer is over {self._most_bytes} bytes")
