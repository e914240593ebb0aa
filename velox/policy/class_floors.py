"""Which class is served next: the highest, but each lower one gets its floor.

Knows: the order of the classes, and what each has earned. Does not know: who waits in them.

While a higher class is served, each lower class that waits earns `floor` tokens for each token served. It is served
ahead of its turn as soon as it has earned anything, and pays what that cost: so a large request is not kept out for
being large, and over time the class has exactly its floor. What it gets when no higher class waits is free. Nothing is
saved: a class that does not wait earns only what it owes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["ClassFloors"]


class ClassFloors:
    """What the classes have earned. Class 0 is the highest. floor: part of the tokens served, below 1 / n_classes."""

    __slots__ = ("_earned", "_floor", "is_even")

    def __init__(self, n_classes: int, floor: float) -> None:
        assert 0 <= floor * n_classes < 1, "the floors leave something for the highest class"
        self._floor: Final = floor
        self._earned: Final = [0.0] * n_classes
        self.is_even = True  # no class has earned or owes anything

    def __repr__(self) -> str:
        return f"<ClassFloors {self._earned}>"

    def choose(self, waiting: Sequence[int]) -> int:
        """Return the class to serve. waiting: how many wait in each; somebody does."""
        top = -1
        for index, n in enumerate(waiting):
            if n:
                if top < 0:
                    top = index
                elif self._earned[index] > 0:
                    return index
        return top

    def served(self, chosen: int, cost: int, waiting: Sequence[int]) -> None:
        """Count `cost` tokens for class `chosen`. waiting: how many waited in each before."""
        earned = self._earned
        top = next(index for index, n in enumerate(waiting) if n)
        if chosen != top:
            earned[chosen] -= cost
        for index in range(1, len(earned)):
            if index > top:
                earned[index] += self._floor * cost
                if not waiting[index]:
                    earned[index] = min(0.0, earned[index])
            else:
                # No higher class waits: nobody is wronged, and what it owes to them is paid off.
                earned[index] = min(0.0, earned[index] + cost)
        self.is_even = not any(earned)
