"""One attempt of an exchange at one upstream, while it is under way.

Knows: which upstream, since when, how far the request's body has got, and when that takes too long. Does not know: how
it is sent, and what follows it (exchange.py, retries.py).
"""

from __future__ import annotations

from typing import Final

from velox.errors import Reason
from velox.gateway.parts import GatewayLimits
from velox.gateway.reply import Reply
from velox.gateway.retries import Again
from velox.gateway.upstreams import Upstream
from velox.net.upstream.interface import UpstreamFailure, UpstreamStream

__all__ = ["Attempt"]


class Attempt:
    """again: what follows it, once the head of its reply has been refused.

    stream: None until it is opened, and from its end on.
    """

    __slots__ = ("_n_unsent", "_progress_s", "again", "began_s", "stream", "upstream")

    def __init__(self, upstream: Upstream, now_s: float) -> None:
        self.upstream: Final = upstream
        self.began_s: Final = now_s
        self.stream: UpstreamStream | None = None
        self.again: Again | None = None
        self._n_unsent = 0  # of the request's body, at the last look
        self._progress_s = now_s  # when that had last become less

    def __repr__(self) -> str:
        return f"<Attempt at {self.upstream.name} {'open' if self.stream is not None else 'waiting'}>"

    def opened(self, stream: UpstreamStream, now_s: float) -> None:
        """The request is on its way."""
        self.stream = stream
        self._progress_s = now_s

    def overdue(self, reply: Reply, now_s: float, limits: GatewayLimits) -> UpstreamFailure | None:
        """Return why the upstream gets no more time; None while it has some."""
        if reply.started and now_s - reply.last_s < limits.idle_timeout_s:
            return None
        stream = self.stream
        if stream is None or reply.done.done():
            return None
        if reply.started:
            message = f"the upstream sent nothing for {limits.idle_timeout_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message)
        n_unsent = stream.n_unsent
        if n_unsent != self._n_unsent:
            # The wait for the first byte runs from when the body has been taken; until then, each byte taken counts.
            self._n_unsent = n_unsent
            self._progress_s = now_s
            return None
        silent_s = now_s - self._progress_s
        if n_unsent and silent_s >= limits.write_timeout_s:
            message = f"the upstream took nothing of the request's body for {limits.write_timeout_s:g} s"
            return UpstreamFailure(Reason.BODY_TIMEOUT, message, status=504)
        if not n_unsent and silent_s >= limits.first_byte_timeout_s:
            message = f"the upstream sent no reply in {limits.first_byte_timeout_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message)
        return None
