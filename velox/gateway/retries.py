"""Whether a request gets another attempt, at which upstream, and after how long.

Knows: what the attempts of one request ended in, and who is asked before another: settings, client, deadline, budget.
Does not know: how an attempt is made (exchange.py), or the rules of each (policy/).

    the upstream surely did no work  ->  free: at the next upstream if there is one, else at the same; two at most, ten
                                         when it was refused in so many words (GOAWAY, REFUSED_STREAM)
    it may have begun                ->  counted: within VELOX_RETRIES and the budget; at the next upstream at once, at
                                         the same after a wait, and never there after it let a time-out pass
    the client has seen a byte       ->  never
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from velox.errors import Reason
from velox.gateway.upstreams import Upstream
from velox.net.upstream.interface import UpstreamFailure
from velox.observe.series import Retry, RetryDenied
from velox.policy.deadline import ClientTerms
from velox.types import Headers, ReplyHead

if TYPE_CHECKING:  # the parts hold exchanges, and an exchange makes its retries
    from velox.gateway.parts import Parts

__all__ = ["Again", "Retries"]

# No connection could be made, or it was closed as it was used: sure enough for two more tries.
_MAX_FREE: Final = 2
# A server that ends each connection after so many requests (nginx: keepalive_requests) may refuse a request several
# times in a row, and says each time that it has not begun it.
_MAX_REFUSED: Final = 10
# From the third on not at once: a server that refuses streams may be short of something.
_N_AT_ONCE: Final = 2
_PAUSE_FIRST_S: Final = 0.005
# A connection that failed so late ran into a time-out; a refusal comes within a round trip.
_HOPELESS_S: Final = 1.0
_CAUSES: Final = {Reason.UPSTREAM_RESET: Retry.RESET, Reason.UPSTREAM_TTFB_TIMEOUT: Retry.TIMEOUT}


@dataclass(frozen=True, slots=True)
class Again:
    """One more attempt."""

    upstream: Upstream
    wait_s: float
    cause: Retry

    def give_up(self, now_s: float) -> None:
        """It will not be made: another request may be the probe that this one would have been."""
        self.upstream.breaker.gave_up(now_s)


class Retries:
    """The retries of one request; made when its first attempt did not bring a reply.

    deadline_s: of the client; no attempt begins after it.
    """

    __slots__ = ("_deadline_s", "_n_counted", "_n_free", "_parts", "_terms", "_tried")

    def __init__(self, parts: Parts, terms: ClientTerms, deadline_s: float) -> None:
        self._parts: Final = parts
        self._terms: Final = terms
        self._deadline_s: Final = deadline_s
        self._n_free = 0
        self._n_counted = 0
        self._tried: Final[list[Upstream]] = []

    def after_failure(self, failure: UpstreamFailure, upstream: Upstream, began_s: float, now_s: float) -> Again | None:
        """Decide after an attempt that brought no reply at all; None: that was the last."""
        self._tried.append(upstream)
        if failure.unprocessed is not None:
            # A connection that was waited for in vain is not waited for again: the client's SDK comes back in its time.
            hopeless = failure.unprocessed is Retry.CONNECT and now_s - began_s >= _HOPELESS_S
            return self._free(failure.unprocessed, None if hopeless else upstream, now_s)
        cause = _CAUSES.get(failure.reason)
        return None if cause is None else self._counted(cause, upstream, [], now_s)

    def after_status(self, head: ReplyHead, upstream: Upstream, now_s: float) -> Again | None:
        """Decide when a reply's head has come, before the client sees it; None: it is passed on."""
        if not self._parts.retry_rules.covers(head.status, head.headers):
            return None
        self._tried.append(upstream)
        cause = Retry.RATE_LIMITED if head.status == 429 else Retry.STATUS
        return self._counted(cause, upstream, head.headers, now_s)

    def _free(self, cause: Retry, same: Upstream | None, now_s: float) -> Again | None:
        if self._n_free >= (_MAX_REFUSED if cause in (Retry.REFUSED, Retry.GOAWAY) else _MAX_FREE):
            return None
        n_waits = self._n_free - _N_AT_ONCE
        wait_s = _PAUSE_FIRST_S * 2.0**n_waits * (0.5 + random.random()) if n_waits >= 0 else 0.0
        if now_s + wait_s >= self._deadline_s:
            return self._denied(RetryDenied.DEADLINE)
        upstream = self._parts.upstreams.next(now_s, self._tried, anyhow=True) or same
        if upstream is None:
            return None
        self._n_free += 1
        return self._again(upstream, wait_s, cause, now_s)

    def _counted(self, cause: Retry, upstream: Upstream, headers: Headers, now_s: float) -> Again | None:
        parts = self._parts
        if self._n_counted >= parts.retry_rules.retries or self._terms.retries_itself:
            return None
        wait_s: float | None = 0.0
        other = parts.upstreams.next(now_s, self._tried)
        if other is None:
            if cause is Retry.TIMEOUT:
                return None  # it may be at work on it still
            wait_s = parts.retry_rules.wait_s(headers, self._n_counted, time.time(), random.random())
        if wait_s is None:
            return self._denied(RetryDenied.WAIT)
        if now_s + wait_s >= self._deadline_s:
            return self._denied(RetryDenied.DEADLINE)
        if not parts.retry_budget.take(now_s):
            return self._denied(RetryDenied.BUDGET)
        self._n_counted += 1
        return self._again(other or upstream, wait_s, cause, now_s)

    def _again(self, upstream: Upstream, wait_s: float, cause: Retry, now_s: float) -> Again:
        # Now, not when it begins: others that decide in the same turn must see that the probe is taken.
        upstream.breaker.begin(now_s)
        return Again(upstream, wait_s, cause)

    def _denied(self, by: RetryDenied) -> Again | None:
        self._parts.recorder.retry_denied(by)
        return None
