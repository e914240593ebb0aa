"""Long work on the loop of a worker: in steps, with a turn for all others between two of them.

Knows: how steps are taken to their end. Does not know: what a step does. One should take a millisecond at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

__all__ = ["in_steps"]

T = TypeVar("T")


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Take all steps; return what they lead to. Raises what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
