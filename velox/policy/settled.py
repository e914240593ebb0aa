"""When a change that is seen from outside may be taken: once it has looked the same twice.

Knows: what was looked at before, and when to look again. Does not know: what is looked at, a clock, or what follows.

Whoever writes a file does it piece by piece. What differs each time is still being written; so a change that is seen is
doubtful until the next look, which comes sooner, finds it unchanged.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

__all__ = ["Settled"]

_EVERY_S: Final = 0.5
_AGAIN_S: Final = 0.2

T = TypeVar("T")


class Settled(Generic[T]):
    """Of one thing that is looked at. known: the mark of what was taken, or refused, last. Times never decrease."""

    __slots__ = ("_doubtful", "_known", "_next_s", "_since_s")

    def __init__(self, known: T) -> None:
        self._known = known
        self._doubtful: T | None = None
        self._since_s = 0.0
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<Settled {'unchanged' if self._doubtful is None else 'doubtful'} next={self._next_s:.1f}>"

    def is_due(self, now_s: float) -> bool:
        """Return True when it is time to look again: then see() is called."""
        return now_s >= self._next_s

    def see(self, mark: T, now_s: float) -> bool:
        """Note what is there now; return True if it is a change that has looked the same twice, until take().

        mark: what tells one content from another.
        """
        self._next_s = now_s + _EVERY_S
        if mark == self._known:
            self._doubtful = None
        elif mark != self._doubtful:
            self._doubtful, self._since_s, self._next_s = mark, now_s, now_s + _AGAIN_S
        else:
            return True
        return False

    def doubtful_s(self, now_s: float) -> float:
        """Return for how long the change that see() told of has looked as it does."""
        return now_s - self._since_s

    def take(self, mark: T) -> None:
        """The change was taken, or refused for good: it is no news any more."""
        self._known, self._doubtful = mark, None
