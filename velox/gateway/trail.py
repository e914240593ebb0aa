"""Where a request has been: what its client and the log are told of its attempts.

Knows: the names of upstreams, in the order they were asked, and how each attempt ended beside or before another. Does
not know: why there was another.
"""

from __future__ import annotations

from velox.errors import Reason, VeloxError
from velox.types import Headers

__all__ = ["Trail", "told"]


class Trail:
    """The attempts of one request.

    n: attempts. upstream: of the last one, or of the one whose reply it is; "" before the first. tried: the others,
    "name=reason", "name=status", or "name=hedged" where another was faster.
    """

    __slots__ = ("_first_told", "n", "tried", "upstream")

    def __init__(self) -> None:
        self.n = 0
        self.upstream = ""
        self.tried: tuple[str, ...] = ()
        self._first_told: Headers = []

    def __repr__(self) -> str:
        return f"<Trail {self.n} {' '.join((*self.tried, self.upstream))}>"

    def began(self, upstream: str, first_told: Headers) -> None:
        """An attempt begins. first_told: told(upstream, 1), of which many are one."""
        self.n += 1
        self.upstream = upstream
        self._first_told = first_told

    def failed(self, upstream: str, failure: VeloxError) -> None:
        """One has ended, and there is another."""
        is_status = failure.reason is Reason.UPSTREAM_STATUS
        self.tried += (f"{upstream}={failure.status if is_status else failure.reason.code}",)

    def hedged(self, loser: str, winner: str) -> None:
        """Of two at a time one was given up for the other."""
        self.tried += (f"{loser}=hedged",)
        self.upstream = winner

    def headers(self) -> Headers:
        """Return the fields of a reply: x-velox-upstream, x-velox-attempts; and x-velox-tried after more than one."""
        if self.n == 1 and not self.tried:
            return self._first_told
        if not self.n:
            return []
        fields = told(self.upstream, self.n)
        if self.tried:
            fields.append((b"x-velox-tried", ", ".join(self.tried).encode("ascii")))
        return fields


def told(upstream: str, n: int) -> Headers:
    """Return the fields that a reply has after `n` attempts, the last of them at `upstream`."""
    return [(b"x-velox-upstream", upstream.encode("ascii")), (b"x-velox-attempts", b"%d" % n)]
