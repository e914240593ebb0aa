"""Long work in steps, each a millisecond at most, with turns for others in between.

Knows: how steps are taken to their end. Does not know: what a step does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

__all__ = ["in_steps"]

T = TypeVar("T")


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Take all steps, with a turn of the loop after each; return their result. Raises what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
