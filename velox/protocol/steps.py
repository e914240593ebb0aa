"""Long work in steps, each a millisecond at most: taken all at once.

Knows: how steps are taken to their end. Does not know: what a step does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

__all__ = ["finished"]

_T = TypeVar("_T")


def finished(steps: Generator[None, None, _T]) -> _T:
    """Take all steps at once, where nothing waits for a turn; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
