"""Which classes read and write which dialect. A part of the composition root.

Knows: the classes. Does not know: what any of them does, or which requests need them (gateway/lanes.py).
"""

from __future__ import annotations

from velox.gateway.lanes import Sides

__all__ = ["sides"]


def sides() -> Sides:
    """Return the dialects that clients and models may speak."""
    return Sides(clients={}, models={})
