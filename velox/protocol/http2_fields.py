"""One object for each header field that a connection brings again and again.

Knows: fields. Does not know: HPACK, heads, what a field means.

HPACK says a field that came before in one byte. Each time it is decoded into new objects, so that a client could fill
32 KiB of memory by a head of 30 bytes, on 100 streams at once (CVE-2026-47774). Shared, a field is in memory once for
all streams that hold it. Honest clients send the same fields all the time too, so their streams become smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.types import Header, Headers

__all__ = ["SharedFields"]

# Of all fields that are known, as RFC 9113 §6.5.2 counts them: what one head may hold. HPACK's table, which is all that
# can be said in a byte, is smaller.
_MAX_BYTES: Final = 32 << 10
_OVERHEAD: Final = 32


class SharedFields:
    """The fields of one connection."""

    __slots__ = ("_known", "_n_bytes")

    def __init__(self) -> None:
        self._known: Final[dict[Header, Header]] = {}
        self._n_bytes = 0

    def __repr__(self) -> str:
        return f"<SharedFields {len(self._known)}, {self._n_bytes} bytes>"

    def share(self, fields: Sequence[Header]) -> Headers:
        """Return the fields, those that came before as the same objects. A field of a subclass stays what it is."""
        get = self._known.get
        shared = []
        for field in fields:
            known = get(field)
            if known is None or type(field) is not tuple:
                known = self._keep(field)
            shared.append(known)
        return shared

    def _keep(self, field: Header) -> Header:
        if type(field) is tuple:
            self._n_bytes += len(field[0]) + len(field[1]) + _OVERHEAD
            if self._n_bytes > _MAX_BYTES:
                # Starts over: a client that fills it sends as many bytes as it holds.
                self._known.clear()
                self._n_bytes = 0
            else:
                self._known[field] = field
        return field
