"""The Date field: when a reply was made (RFC 9110 §6.6.1).

Knows: how a second is written. Does not know: which one it is, or who needs a date.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache

__all__ = ["http_date"]


@lru_cache(maxsize=1)  # thousands of replies share a second, and writing one takes 2 µs
def http_date(second: int) -> bytes:
    """Return a Unix time as IMF-fixdate (RFC 9110 §5.6.7)."""
    return formatdate(second, usegmt=True).encode("ascii")
