"""Parameters that an upstream wants in the query of each request: a version, a tenant, a key.

    OwnQuery.on()   the target of a request with them, in place of the client's of the same names

Knows: how a query is written (RFC 3986 §3.4, as forms are, with & between names and values). Does not know: what a
parameter means, or which requests there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

__all__ = ["OwnQuery"]


class OwnQuery:
    """Those of one upstream, each a name and its value, as they are before they are escaped."""

    __slots__ = ("_names", "_text")

    def __init__(self, parameters: Iterable[tuple[str, str]]) -> None:
        pairs = tuple(parameters)
        self._names: Final = frozenset(name.lower().encode() for name, _ in pairs)
        self._text: Final = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs).encode()

    def __repr__(self) -> str:
        return f"<OwnQuery {len(self._names)}>"

    def on(self, target: bytes) -> bytes:
        """Return a target with these. What a client says under one of these names, however it spells it, is left out.

        Upper and lower case are one name here: some servers read them so, and would have the client's.
        """
        path, _, query = target.partition(b"?")
        kept = [part for part in query.split(b"&") if part and self._name(part) not in self._names]
        return path + b"?" + b"&".join((*kept, self._text))

    def _name(self, part: bytes) -> bytes:
        return unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" ")).lower()
