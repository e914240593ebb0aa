"""A bounded memory of results that are a pure function of their key.

Knows: how many it may hold. Does not know: what they are. What is in use stays: when it is full, all are put aside, and
those that are found among them come back; the others go when it is full again.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

__all__ = ["Memo"]

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """At most twice `limit` results. known: those that need not be looked for by find(); changed here only."""

    __slots__ = ("_aside", "_limit", "get", "known")

    def __init__(self, limit: int) -> None:
        """limit: how many may be added before the older ones are put aside; as many may be there besides."""
        self._limit: Final = limit
        self.known: Final[dict[K, V]] = {}
        self._aside: dict[K, V] = {}
        # Both without a Python frame: asked several times for each request. The dictionary's own get() is faster yet.
        self.get = self.known.get

    def __len__(self) -> int:
        return len(self.known) + len(self._aside)

    def __repr__(self) -> str:
        return f"<Memo {len(self)} of {2 * self._limit}>"

    def clear(self) -> None:
        """Forget everything: what the results were a function of has changed."""
        self.known.clear()
        self._aside.clear()

    def find(self, key: K) -> V | None:
        """Return a result that get() did not find, because it was put aside; it is not from now on."""
        value = self._aside.pop(key, None)
        return None if value is None else self.put(key, value)

    def put(self, key: K, value: V) -> V:
        """Keep a result, and return it."""
        if len(self.known) >= self._limit:
            self._aside = self.known.copy()
            self.known.clear()
        self.known[key] = value
        return value
