"""Work in steps: for a loop that others wait for, and at once for a process that nobody waits for yet.

Knows: how steps are taken to their end. Does not know: what a step does, or how long it takes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

__all__ = ["finished"]

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    """Take all steps at once; return what they lead to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
