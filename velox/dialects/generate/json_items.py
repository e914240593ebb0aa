"""The objects of a JSON array that comes in pieces, one after the other.

Knows: strings, escapes, braces. Does not know: what an object says, or whether it is valid JSON: its reader looks.
"""

from __future__ import annotations

import re
from typing import Final

from velox.dialects.canonical.losses import BrokenReplyError
from velox.protocol.value_count import MOST_VALUES, has_over

__all__ = ["JsonItems"]

_OUTSIDE: Final = re.compile(rb'["{}\]]')
_INSIDE: Final = re.compile(rb'["\\]')


class JsonItems:
    """Of one array; or one object alone. most_bytes: of one object."""

    __slots__ = ("_depth", "_held", "_in_string", "_is_array", "_is_closed", "_is_escaped", "_most_bytes", "_n_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes: Final = most_bytes
        self._held: list[bytes] = []  # of the object that is not whole
        self._n_bytes = 0
        self._depth = 0  # of objects
        self._in_string = False
        self._is_escaped = False  # the next byte stands after a backslash
        self._is_array: bool | None = None
        self._is_closed = False

    @property
    def is_whole(self) -> bool:
        """True once the array, or the one object, is closed."""
        return self._depth == 0 and (self._is_closed or self._is_array is False)

    @property
    def n_held(self) -> int:
        """Bytes of an object that is not whole yet."""
        return self._n_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; return the objects that are whole. Raises BrokenReplyError: one is over a bound."""
        if self._is_array is None and data.strip():
            self._is_array = data.lstrip().startswith(b"[")
        found: list[bytes] = []
        at, begin = 0, 0
        while at < len(data):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            match = (_INSIDE if self._in_string else _OUTSIDE).search(data, at)
            if match is None:
                break
            byte, at = match[0], match.end()
            if byte == b"\\":
                self._is_escaped = True
            elif byte == b'"':
                self._in_string = self._depth > 0 and not self._in_string
            elif byte == b"{":
                if self._depth == 0:
                    begin = at - 1
                self._depth += 1
            elif byte == b"]":
                self._is_closed = self._is_closed or self._depth == 0
            elif self._depth == 0:
                raise BrokenReplyError("the upstream's answer closes an object that was not opened")
            else:
                self._depth -= 1
                if self._depth == 0:
                    self._hold(data[begin:at])
                    item = b"".join(self._held)
                    if has_over(item, MOST_VALUES):
                        raise BrokenReplyError(f"a part of the upstream's answer has over {MOST_VALUES:,} values")
                    found.append(item)
                    self._held, self._n_bytes = [], 0
        if self._depth > 0:
            self._hold(data[begin:])
        return found

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._n_bytes += len(data)
        if self._n_bytes > self._most_bytes:
            raise BrokenReplyError(f"a part of the upstream's answer is over {self._most_bytes} bytes")
