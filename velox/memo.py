"""A bounded memory of results that are a pure function of their key.

Knows: how many it may hold. Does not know: what they are. When it is full it starts over: a workload whose keys repeat
never fills it, and one whose keys don't gains nothing from a cleverer choice of what to forget.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

__all__ = ["Memo"]

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """At most `limit` results."""

    __slots__ = ("_known", "_limit", "get")

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._known: dict[K, V] = {}
        self.get = self._known.get  # without a Python frame: asked several times for each request

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<Memo {len(self._known)} of {self._limit}>"

    def clear(self) -> None:
        """Forget everything: what the results were a function of has changed."""
        self._known.clear()

    def put(self, key: K, value: V) -> V:
        """Keep a result, and return it."""
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known[key] = value
        return value
