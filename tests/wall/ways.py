"""The names of the ways to speak with an upstream. Alone here: the table's plugin may import nothing else."""

from __future__ import annotations

from typing import Final

__all__ = ["ALL_KINDS", "KINDS"]

# The columns of the table; http1 has plain text before the first wall and TLS before the second, HTTP/2 the reverse.
KINDS: Final = ("http1", "ngh2", "h2")
# And the remaining way, for what TLS may change.
ALL_KINDS: Final = (*KINDS, "http1-tls")
