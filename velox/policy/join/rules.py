"""What a route says of requests that share one call.

Knows: the fields of a rule. Does not know: how a rule is written (settings/routing/routes.py).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JoinRule"]


@dataclass(frozen=True, slots=True)
class JoinRule:
    """equal: requests that are equal share a call while it runs. sampled: also those whose answers differ by chance.

    retries: a client's retry gets the reply of its first call. keep_s: how long that call goes on with nobody there,
    and how long its answer is kept behind its end.
    """

    equal: bool = True
    sampled: bool = False
    retries: bool = False
    keep_s: float = 30.0

    def __str__(self) -> str:
        parts = ["equal requests" + (", sampled too" if self.sampled else "")] if self.equal else []
        if self.retries:
            parts.append(f"retries, kept for {self.keep_s:g}s")
        return " and ".join(parts)
