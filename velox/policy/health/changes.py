"""A count of what has changed: whoever keeps what it found of many members looks again when it is another one.

Knows: nothing. Does not know: what changed, or who looks.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Changes"]


@dataclass(slots=True)
class Changes:
    """The changes of all members and keys of one worker so far."""

    n: int = 0
