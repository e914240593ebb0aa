"""The calls of a turn that have no result yet, each found at once: a turn may have thousands, and a client sends them.

Knows: ids and names; several calls may have the same. Does not know: any dialect.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

__all__ = ["OpenCalls"]

_T = TypeVar("_T")


class _Open(Generic[_T]):
    __slots__ = ("call", "is_open")

    def __init__(self, call: _T) -> None:
        self.call: Final = call
        self.is_open = True


class OpenCalls(Generic[_T]):
    """Of one conversation, in their order. What is taken is open no more."""

    __slots__ = ("_all", "_by_id", "_by_name", "_n")

    def __init__(self) -> None:
        self._all: Final[deque[_Open[_T]]] = deque()
        self._by_id: Final[dict[str, deque[_Open[_T]]]] = {}
        self._by_name: Final[dict[str, deque[_Open[_T]]]] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<OpenCalls {self._n}>"

    def add(self, call_id: str, name: str, call: _T) -> None:
        """Add a call. call_id: "" for none."""
        opened = _Open(call)
        self._all.append(opened)
        self._by_id.setdefault(call_id, deque()).append(opened)
        self._by_name.setdefault(name, deque()).append(opened)
        self._n += 1

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()
        self._by_id.clear()
        self._by_name.clear()
        self._n = 0

    def first(self) -> _T | None:
        """Return the first, which stays; None: there is none."""
        opened = _next(self._all)
        return None if opened is None else opened.call

    def take(self, call_id: str) -> _T | None:
        """Take the first of an id; None: there is none."""
        return self._taken(self._by_id.get(call_id))

    def take_named(self, name: str | None) -> _T | None:
        """Take the first of a name; None for any."""
        return self._taken(self._all if name is None else self._by_name.get(name))

    def _taken(self, calls: deque[_Open[_T]] | None) -> _T | None:
        opened = None if calls is None else _next(calls)
        if opened is None:
            return None
        opened.is_open = False
        self._n -= 1
        return opened.call


def _next(calls: deque[_Open[_T]]) -> _Open[_T] | None:
    while calls and not calls[0].is_open:
        calls.popleft()
    return calls[0] if calls else None
