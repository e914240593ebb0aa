"""Where a request has been: what its client and the log are told of its attempts.

Knows: the names of upstreams, in the order they were asked, and how each attempt ended beside or before another. Does
not know: why there was another.
"""

from __future__ import annotations

from velox.errors import Reason, VeloxError
from velox.types import Headers

__all__ = ["Trail"]


class Trail:
    """The attempts of one request.

    n: attempts. upstream: of the last one, or of the one whose reply it is; "" before the first. tried: the others,
    "name=reason", "name=status", or "name=hedged" where another was faster.
    """

    __slots__ = ("n", "tried", "upstream")

    def __init__(self) -> None:
        self.n = 0
        self.upstream = ""
        self.tried: list[str] = []

    def __repr__(self) -> str:
        return f"<Trail {self.n} {' '.join((*self.tried, self.upstream))}>"

    def began(self, upstream: str) -> None:
        """An attempt begins."""
        self.n += 1
        self.upstream = upstream

    def failed(self, upstream: str, failure: VeloxError) -> None:
        """One has ended, and there is another."""
        is_status = failure.reason is Reason.UPSTREAM_STATUS
        self.tried.append(f"{upstream}={failure.status if is_status else failure.reason.code}")

    def hedged(self, loser: str, winner: str) -> None:
        """Of two at a time one was given up for the other."""
        self.tried.append(f"{loser}=hedged")
        self.upstream = winner

    def headers(self) -> Headers:
        """Return the fields of a reply: x-velox-upstream, x-velox-attempts; and x-velox-tried after more than one."""
        if not self.n:
            return []
        fields = [(b"x-velox-upstream", self.upstream.encode("ascii")), (b"x-velox-attempts", b"%d" % self.n)]
        if self.tried:
            fields.append((b"x-velox-tried", ", ".join(self.tried).encode("ascii")))
        return fields
