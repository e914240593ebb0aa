"""Whether a request gets another attempt, at which member, and after how long.

Knows: what the attempts of one request ended in, and who is asked before another: settings, client, deadline, budget.
Does not know: how an attempt is made (group.py), who acts on a decision (exchange.py), or the rules of each (policy/).

    the upstream surely did no work  ->  free: at the next member if there is one, else at the same; ten at most, but
                                         two where nobody else is well, unless it was refused in so many words (GOAWAY,
                                         REFUSED_STREAM); where only a connection ended, the first at the same
    it may have begun                ->  counted: within VELOX_RETRIES and the budget; at the next member at once, at
                                         the same after a wait, and never there after it let a time-out pass. Where
                                         these are used up, each fallback that is left is asked once, within the budget
    its reply can't be read          ->  counted, too, but at the next member only: no HTTP, or not what its API says
    429 with a short Retry-After,    ->  counted: the same once more where the next one is a fallback with another
    a single 500                         model, which is a worse answer
    what it signed in with was       ->  free: at the same member, once, when that is renewed
      refused before its time
    the key was refused (401)        ->  free: at the same member with another key, ten at most
    the key has had enough (429)     ->  counted, too: at the same member with another key, else as above
    404: it does not have the model  ->  free: at the next member, ten at most
    its model can't take the request ->  free: at the fallbacks that are for this, each once
    its API can't say it             ->  free: at the next member, ten at most
    it can't read the request's      ->  free: at the same member with the same key, once, without that reasoning
      reasoning, made elsewhere
    it refuses a field, a tool or a  ->  free: at the next member of another provider or with another model
      type that it does not know
    it refuses the request (400,     ->  free: at the next member; where nobody is left, the client hears of the failure
      422), and another one with         that may pass, and not of the refusal, which we have caused
      another API or model has failed
    the client has seen a byte       ->  never
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from velox.errors import Reason
from velox.gateway.cluster.group import Attempt, RetryDecision
from velox.gateway.cluster.routing import RouteCursor
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Retry, RetryDenied
from velox.policy.health.member import State
from velox.policy.retries.deadline import ClientTerms
from velox.policy.retries.retry import RetryBudget, RetryRules
from velox.policy.routes.entries import ModelName
from velox.protocol.error_meaning import (
    REFUSING,
    lacks_field,
    names_no_model,
    plain_body,
    refusal_of,
    refuses_reasoning,
)

__all__ = ["EARLIER_FAILURE", "EarlierFailure", "RetryPolicy"]

# No connection could be made, or it was closed as it was used: sure enough for two more tries, and for others where
# somebody else is well: who can't be reached is not, so these come to an end by themselves.
_MAX_FREE: Final = 2
# A server that ends each connection after so many requests (nginx: keepalive_requests) may refuse a request several
# times in a row, and says each time that it has not begun it.
_MAX_REFUSED: Final = 10
_REFUSALS: Final = frozenset({Retry.REFUSED, Retry.GOAWAY})
# These end a connection and say nothing of the member: another one may have another model, or no cache of the prompt.
_OF_CONNECTIONS: Final = frozenset({Retry.STALE, Retry.GOAWAY})
# After a time-out the upstream may still work on the request, and who breaks the protocol does so again.
_ONLY_ELSEWHERE: Final = frozenset({Retry.TIMEOUT, Retry.BROKEN})
# From the third on not at once: a server that refuses streams may be short of something.
_N_AT_ONCE: Final = 2
_PAUSE_FIRST_S: Final = 0.005
_OF_CREDENTIALS: Final = (401, 403)
_RENEWAL_S: Final = 5.0  # a token comes within a round trip or two
# A connection that failed so late ran into a time-out; a refusal comes within a round trip.
_HOPELESS_S: Final = 1.0
_CAUSES: Final = {
    Reason.UPSTREAM_RESET: Retry.RESET,
    Reason.UPSTREAM_TRUNCATED: Retry.RESET,  # of a stream whose head was held back
    Reason.UPSTREAM_PROTOCOL: Retry.BROKEN,
    Reason.UPSTREAM_TTFB_TIMEOUT: Retry.TIMEOUT,
    Reason.UPSTREAM_IDLE_TIMEOUT: Retry.TIMEOUT,  # of a reply that was held back until it is whole
}


class EarlierFailure:
    """No other attempt follows, and the client gets an earlier failure: this error came of the gateway's own choice."""

    __slots__ = ()


EARLIER_FAILURE: Final = EarlierFailure()


class RetryPolicy:
    """The retries of one request; made when its first attempt did not bring a reply.

    deadline_s: of the client; no attempt begins after it. on_denied: called when something forbids a retry that could
    have been made. has_dropped_reasoning: an attempt was sent without encrypted reasoning.
    """

    __slots__ = (
        *("_budget", "_cursor", "_deadline_s", "_has_renewed", "_n_counted", "_n_free", "_n_stale", "_on_denied"),
        *("_failed", "_most", "has_dropped_reasoning", "_rules", "_terms"),
    )

    def __init__(
        self,
        rules: RetryRules,
        budget: RetryBudget,
        on_denied: Callable[[RetryDenied], None],
        cursor: RouteCursor,
        terms: ClientTerms,
        deadline_s: float,
    ) -> None:
        self._rules: Final = rules
        self._most: Final = rules.retries if terms.retries is None else min(rules.retries, terms.retries)
        self._budget: Final = budget
        self._on_denied: Final = on_denied
        self._cursor: Final = cursor
        self._terms: Final = terms
        self._deadline_s: Final = deadline_s
        self._n_free = 0
        self._n_stale = 0
        self._n_counted = 0
        self._has_renewed = False
        self.has_dropped_reasoning = False
        self._failed: tuple[str, ModelName] | None = None  # of the first one that failed in a way that may pass

    def after_failure(self, failure: UpstreamFailure, attempt: Attempt, now_s: float) -> RetryDecision | None:
        """Decide after an attempt that brought no reply at all; None: that was the last."""
        self._cursor.tried(attempt, is_silent=True)
        if failure.reason is not Reason.UPSTREAM_STATUS:
            self._failed = self._failed or _kind_of(attempt)
        if failure.unprocessed is Retry.STALE:
            self._n_stale += 1
            if self._n_stale == _MAX_FREE:
                # The others there may have ended with these, however short they have idled: the next one is new.
                attempt.member.pool.retire_stale_idle(now_s, 0.0)
        if failure.unprocessed is not None:
            # A connection that was waited for in vain is not waited for again: the client's SDK comes back in its time.
            hopeless = failure.unprocessed is Retry.CONNECT and now_s - attempt.began_s >= _HOPELESS_S
            return self._free(failure.unprocessed, None if hopeless else attempt, now_s)
        cause = _CAUSES.get(failure.reason)
        return None if cause is None else self._counted(cause, attempt, [], now_s)

    def after_status(self, head: ReplyHead, attempt: Attempt, now_s: float) -> RetryDecision | None:
        """Decide when a reply's head has come, before the client sees it; None: it is passed on.

        What it says of the key has been told already (Attempt.on_head).
        """
        if head.status in _OF_CREDENTIALS:
            again = self._renewed(head, attempt, now_s)
            if again is not None:
                return again
        if head.status == 401:
            # Of one key of ours; where there is no other, or the client's account may be meant, it is for the client.
            return None if attempt.names_account else self._with_accepted_key(attempt, now_s)
        if not self._rules.covers(head.status, head.headers):
            return None
        self._cursor.tried(attempt)
        self._failed = self._failed or _kind_of(attempt)
        if head.status != 429:
            return self._counted(Retry.STATUS, attempt, head.headers, now_s, head.status)
        again = self._with_other_key(attempt, now_s)
        return again or self._counted(Retry.RATE_LIMITED, attempt, head.headers, now_s, head.status)

    def reads_error(self, head: ReplyHead, *, is_encrypted: bool) -> bool:
        """Say whether what an error says may lead elsewhere, where its status did not: then after_error() is asked.

        is_encrypted: the request has reasoning that only its maker can read.
        """
        if head.status == 404:
            return self._cursor.has_others
        has_others = bool(self._cursor.parts.for_refusals) or self._cursor.has_others
        return head.status in REFUSING and (has_others or (is_encrypted and not self.has_dropped_reasoning))

    def after_error(
        self, head: ReplyHead, body: bytes, attempt: Attempt, now_s: float, *, is_encrypted: bool
    ) -> RetryDecision | EarlierFailure | None:
        """Decide when an error has been read, before the client sees it; None: it is passed on.

        Who does not have the model, or can't take the request with it, did no work, and is not asked again.
        is_encrypted: as for reads_error().
        """
        is_late, plain = now_s >= self._deadline_s, plain_body(head.headers, body)
        is_model = head.status == 404
        if is_model and not names_no_model(plain):
            return None
        if (
            not is_model
            and is_encrypted
            and not self.has_dropped_reasoning
            and refuses_reasoning(plain)
            and not is_late
        ):
            self.has_dropped_reasoning = True
            again = Attempt(attempt.group, attempt.n, attempt.key)
            again.begin(now_s)
            return RetryDecision(again, 0.0, Retry.STATUS, drops_reasoning=True)
        self._cursor.tried(attempt)
        refusal = None if is_model else refusal_of(plain)
        if refusal is not None:
            chosen = None if is_late else self._cursor.next_for(refusal, now_s)
            if chosen is not None:
                return self._again(chosen, 0.0, Retry.STATUS, now_s)
        kind = _kind_of(attempt)
        is_ours = self._failed is not None and self._failed != kind  # it was asked only as another one had failed
        other: Attempt | None = None
        if not is_late and self._n_free < _MAX_REFUSED and (is_model or is_ours or lacks_field(plain)):
            other = self._cursor.next(now_s, may_probe=True)
            while other is not None and not is_model and _kind_of(other) == kind:
                self._cursor.tried(other)  # it would refuse it, too
                other = self._cursor.next(now_s, may_probe=True)
        if other is None:
            return EARLIER_FAILURE if is_ours else None
        self._n_free += 1
        return self._again(other, 0.0, Retry.UNKNOWN_MODEL if is_model else Retry.STATUS, now_s)

    def after_unsupported(self, attempt: Attempt, now_s: float, *, allow_unhealthy: bool) -> RetryDecision | None:
        """Decide after an attempt that was not sent, as its member's API can't express it; None: no member is left.

        allow_unhealthy: an unhealthy member may follow, as no other one has failed.
        """
        self._cursor.tried(attempt)
        if self._n_free >= _MAX_REFUSED or now_s >= self._deadline_s:
            return None
        other = self._cursor.next(now_s, may_probe=True, allow_unhealthy=allow_unhealthy)
        if other is None:
            return None
        self._n_free += 1
        return self._again(other, 0.0, Retry.STATUS, now_s)

    def _renewed(self, head: ReplyHead, attempt: Attempt, now_s: float) -> RetryDecision | None:
        """Return the same attempt once more, where it was refused for credentials that are being renewed."""
        wait_s = min(_RENEWAL_S, self._deadline_s - now_s)
        if self._has_renewed or wait_s <= 0.0:
            return None
        renewal = attempt.renewal(head)
        if renewal is None:
            return None
        self._has_renewed = True
        self._cursor.tried(attempt)
        return RetryDecision(self._cursor.same(attempt, now_s), wait_s, Retry.STATUS, renewal)

    def _with_accepted_key(self, attempt: Attempt, now_s: float) -> RetryDecision | None:
        """Return another attempt at the same member after its key was refused, with another one if there is one."""
        self._cursor.tried(attempt)
        if self._n_free >= _MAX_REFUSED or now_s >= self._deadline_s:
            return None
        other = self._cursor.other_key(attempt, now_s)
        if other is None:
            return None
        self._n_free += 1
        return self._again(other, 0.0, Retry.STATUS, now_s)

    def _with_other_key(self, attempt: Attempt, now_s: float) -> RetryDecision | None:
        """Return another attempt at the same member after a 429, with another key if there is one."""
        if self._n_counted >= self._most or self._terms.retries_itself:
            return None
        other = self._cursor.other_key(attempt, now_s)
        if other is None or now_s >= self._deadline_s or not self._budget.take(now_s):
            return None
        self._n_counted += 1
        return self._again(other, 0.0, Retry.RATE_LIMITED, now_s)

    def _free(self, cause: Retry, same: Attempt | None, now_s: float) -> RetryDecision | None:
        if self._n_free >= _MAX_REFUSED:
            return None
        n_waits = self._n_free - _N_AT_ONCE
        wait_s = _PAUSE_FIRST_S * 2.0**n_waits * (0.5 + random.random()) if n_waits >= 0 else 0.0
        if now_s + wait_s >= self._deadline_s:
            return self._denied(RetryDenied.DEADLINE)
        attempt = self._where(cause, same, now_s)
        if attempt is None:
            return None
        self._n_free += 1
        return self._again(attempt, wait_s, cause, now_s)

    def _where(self, cause: Retry, same: Attempt | None, now_s: float) -> Attempt | None:
        """Return where a free attempt goes; None: nowhere. same: where the last one was, if it may be asked again."""
        cursor = self._cursor
        if same is not None and cause in _OF_CONNECTIONS and not self._n_free:
            return cursor.same(same, now_s)
        attempt = cursor.next(now_s)
        if attempt is None and self._n_free < (_MAX_REFUSED if cause in _REFUSALS else _MAX_FREE):
            attempt = cursor.next(now_s, allow_unhealthy=True)
            if attempt is None and same is not None:
                attempt = cursor.same(same, now_s)
        return attempt

    def _counted(
        self, cause: Retry, attempt: Attempt, headers: Headers, now_s: float, status: int = 0
    ) -> RetryDecision | None:
        if not self._rules.retries or self._terms.retries_itself:
            return None
        is_spent = self._n_counted >= self._most
        wait_s: float | None = 0.0
        other = self._cursor.next(now_s, beyond=is_spent)
        is_first = not self._n_counted and not is_spent
        if other is not None and is_first and not self._cursor.is_as_good(other, attempt):
            is_single = attempt.member.health.is_faultless
            same_s = self._rules.wait_before_fallback_s(
                status, headers, time.time(), random.random(), is_single=is_single
            )
            if same_s is not None and now_s + same_s < self._deadline_s:
                other, wait_s = None, same_s
        elif other is None:
            may_stay = not is_spent and cause not in _ONLY_ELSEWHERE
            wait_s = self._rules.wait_s(headers, self._n_counted, time.time(), random.random()) if may_stay else None
            # It is no better than the others if it is out itself.
            is_out = attempt.member.health.state(now_s) is State.OUT
            if is_out or wait_s is None:
                other = self._cursor.next(now_s, may_probe=True, allow_unhealthy=is_out, beyond=is_spent)
                if other is not None:
                    wait_s = 0.0
                elif not may_stay:
                    return None
        if wait_s is None:
            return self._denied(RetryDenied.WAIT)
        if now_s + wait_s >= self._deadline_s:
            return self._denied(RetryDenied.DEADLINE)
        if not self._budget.take(now_s):
            return self._denied(RetryDenied.BUDGET)
        self._n_counted += 1
        return self._again(other or self._cursor.same(attempt, now_s), wait_s, cause, now_s)

    def _again(self, attempt: Attempt, wait_s: float, cause: Retry, now_s: float) -> RetryDecision:
        if not wait_s:
            # Now, not when it is sent: others that decide in the same turn must see that the probe is taken.
            attempt.begin(now_s)
        return RetryDecision(attempt, wait_s, cause)

    def _denied(self, by: RetryDenied) -> RetryDecision | None:
        self._on_denied(by)
        return None


def _kind_of(attempt: Attempt) -> tuple[str, ModelName]:
    """Return what decides which requests are taken: who serves them, and the model that is asked for."""
    return attempt.member.entry.provider, attempt.group.models[attempt.n]
