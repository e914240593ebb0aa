"""Where requests enter a worker: checked by their heads, queued, and let through the gate in batches.

Knows: the queue, the slots, the bucket, and which exchanges are running. Does not know: what happens to a request after
the gate (exchange.py, where the whole way is listed).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.exchange import Exchange
from velox.gateway.parts import Parts
from velox.gateway.rate_headers import rate_limited
from velox.gateway.respond import error_reply
from velox.gateway.routes import WITHOUT_CONTENT, has_content
from velox.gateway.tunnel import TunnelExchange
from velox.memo import Memo
from velox.net.application import Client
from velox.net.in_turns import InTurns
from velox.observe.series import Phase
from velox.policy.deadline import ClientTerms, client_terms
from velox.settings.keys import KeyEntry
from velox.types import Caller, RequestHead, Route

__all__ = ["Gateway"]

_NS_PER_S: Final = 1_000_000_000
_KEPT_HEADS: Final = 512
_SHORT_S: Final = 10.0
# Exchanges that one turn of the loop looks at: when an upstream hangs, the time of all of them may be over at once.
_LOOKS_PER_TURN: Final = 32


class Gateway:
    """All exchanges of one worker; the application behind its connections."""

    def __init__(self, parts: Parts, loop: asyncio.AbstractEventLoop) -> None:
        self.parts: Final = parts
        self.loop: Final = loop
        self.draining = False  # set by the worker: nothing that lasts is begun any more
        self._refuses = False
        self._active: set[Exchange] = set()
        # Heads that passed, by their key: the caller, and whether a body followed (which more is asked of).
        self._vetted: Final[Memo[bytes | None, tuple[Caller, bool]]] = Memo(_KEPT_HEADS)
        self._terms: Final[Memo[bytes | None, ClientTerms]] = Memo(_KEPT_HEADS)
        # A client's deadline has a timer of its own if it may come in the queue, or is short; else sweep() sees it.
        self._timed_below_s: Final = max(_SHORT_S, parts.limits.queue_timeout_s)
        self._drain_queued = False
        self._late_timer: asyncio.TimerHandle | None = None
        self._swept_s = 0.0
        self._looks: Final[InTurns[Exchange]] = InTurns(self._look, _LOOKS_PER_TURN, loop)

    def __repr__(self) -> str:
        return f"<Gateway active={len(self._active)} queued={len(self.parts.queue)} {self.parts.upstreams!r}>"

    @property
    def n_active(self) -> int:
        """Exchanges that have begun and not ended, without those that are queued."""
        return len(self._active)

    # -- for the connections --------------------------------------------------------------------

    def check_head(self, head: RequestHead) -> Caller:
        """Refuse what is refused whatever its body is; return the caller. Raises VeloxError."""
        if self._refuses:
            message = "this worker is short of memory, and takes no new request for now (VELOX_MEMORY_SOFT)"
            raise VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0)
        vetted = self._vetted.get(head.key)
        if vetted is not None and vetted[1] == head.has_body:
            return vetted[0]
        caller = self.parts.auth.check(head)
        self.parts.routes.check(head)
        self.terms(head)
        if head.key is not None:
            self._vetted.put(head.key, (caller, head.has_body))
        return caller

    def terms(self, head: RequestHead) -> ClientTerms:
        """Return what the client says of time and tries. Raises VeloxError, but not once check_head() has passed it."""
        terms = self._terms.get(head.key)
        if terms is None:
            terms = client_terms(head.headers)
            if head.key is not None:
                self._terms.put(head.key, terms)
        return terms

    def replace_keys(self, keys: Iterable[KeyEntry]) -> None:
        """Ask for these keys from now on, also on connections that are open; what has passed goes on."""
        self.parts.auth.replace(keys)
        self._vetted.clear()

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> Exchange | None:
        """Queue a whole request; None when it was refused on the spot."""
        kind = Exchange if head.offer is None else TunnelExchange
        exchange = kind(self, client, head, body, caller)
        if body and head.method in WITHOUT_CONTENT:
            exchange.refuse(has_content())  # a length that was announced is refused by the head
            return None
        if self.parts.queue.offer(exchange, exchange.started_ns):
            self._drain_soon()
            if exchange.terms.timeout_s < self._timed_below_s:
                exchange.set_timer()
            return exchange
        message = f"{len(self.parts.queue)} requests are waiting in this worker, its limit (VELOX_QUEUE_DEPTH)"
        exchange.refuse(VeloxError(Reason.QUEUE_FULL, message, retry_after_s=1.0))
        return None

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""
        request_id = self.parts.recorder.next_id()
        route = Route.OTHER if head is None else self.parts.routes.facts(head.path).route
        self.parts.recorder.refused(request_id, head, route, error)
        self.answer(client, head, error, request_id)

    def crashed(self, exc: Exception) -> None:
        """Record an error that is a bug."""
        self.parts.recorder.crashed(exc)

    def answer(
        self,
        client: Client,
        head: RequestHead | None,
        error: VeloxError,
        request_id: bytes,
        *,
        may_have_begun: bool = False,
    ) -> None:
        """Write an error of Velox's own. may_have_begun: an upstream, with work for it."""
        headers, body = error_reply(error, request_id, may_have_begun=may_have_begun)
        with_body = head is None or head.method != b"HEAD"
        client.answer(error.status, headers, body, with_body=with_body, close=error.close)

    def refuse_new(self, refuse: bool) -> None:
        """Refuse new requests from now on, or no longer: the worker's memory is used up. What runs goes on."""
        self._refuses = refuse

    # -- queue and gate ---------------------------------------------------------------------------

    def _drain_soon(self) -> None:
        if not self._drain_queued:
            self._drain_queued = True
            self.loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Take a batch off the queue, read it, let it through the gate, and start what may go."""
        self._drain_queued = False
        parts = self.parts
        now_ns = time.monotonic_ns()
        now_s = now_ns / _NS_PER_S
        for late in parts.queue.late(now_ns):
            message = f"this request waited {parts.limits.queue_timeout_s:g} s in the queue (VELOX_QUEUE_TIMEOUT)"
            late.refuse(VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0))
        ready: list[Exchange] = []
        for exchange, waited_ns in parts.queue.take(parts.limits.max_inflight - len(self._active), now_ns):
            parts.recorder.overhead(Phase.QUEUE, waited_ns)
            if exchange.deadline_s <= now_s:
                exchange.on_deadline()  # its timer is due, but has not had its turn yet
            elif exchange.is_large:
                self._active.add(exchange)
                exchange.start(None)
            elif self._read(exchange):
                ready.append(exchange)
        if ready:
            self._gate(ready)
        self._after_drain(now_ns)

    def _read(self, exchange: Exchange) -> bool:
        began_ns = time.monotonic_ns()
        try:
            exchange.read()
        except VeloxError as error:
            exchange.refuse(error)
            return False
        except Exception as exc:
            self.parts.recorder.crashed(exc)
            exchange.refuse(VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded"))
            return False
        self.parts.recorder.overhead(Phase.PARSE, time.monotonic_ns() - began_ns)
        return True

    def _gate(self, ready: list[Exchange]) -> None:
        """Take the batch's tokens at once: those that get one start, the others are told when to come back."""
        parts = self.parts
        now_ns = time.monotonic_ns()
        taken = parts.bucket.take(len(ready), now_ns)
        parts.recorder.limited(taken, len(ready))
        for index, exchange in enumerate(ready):
            if index < taken.granted:
                self._active.add(exchange)
                exchange.start(taken.wait_ns(index))
            else:
                exchange.refuse(rate_limited(parts.bucket, taken, index - taken.granted, now_ns))
        parts.recorder.overhead(Phase.LIMIT, time.monotonic_ns() - now_ns)

    def take_token(self) -> int:
        """Take one token for a request that was read by itself; return how long it must wait. Raises VeloxError."""
        now_ns = time.monotonic_ns()
        taken = self.parts.bucket.take(1, now_ns)
        self.parts.recorder.limited(taken, 1)
        if not taken.granted:
            raise rate_limited(self.parts.bucket, taken, 0, now_ns)
        return taken.wait_ns(0)

    def _after_drain(self, now_ns: int) -> None:
        """More to do: at the next turn if there is room, else when a slot is free or the first is too late."""
        if not len(self.parts.queue):
            return
        if len(self._active) < self.parts.limits.max_inflight:
            self._drain_soon()
        elif self._late_timer is None:
            deadline_ns = self.parts.queue.next_deadline_ns
            assert deadline_ns is not None, "a queue that is not empty has a first deadline"
            delay_s = max(0, deadline_ns - now_ns) / _NS_PER_S
            self._late_timer = self.loop.call_later(delay_s, self._on_late)

    def _on_late(self) -> None:
        self._late_timer = None
        self._drain_soon()

    # -- the end of an exchange ---------------------------------------------------------------------

    def account(self, exchange: Exchange, reason: Reason | None, status: int) -> None:
        """Free the slot and record how it ended."""
        self._active.discard(exchange)
        self.parts.recorder.ended(exchange, reason, status)
        if len(self.parts.queue):
            self._drain_soon()

    def sweep(self, now_s: float) -> None:
        """Look at the deadlines of all exchanges, and publish the gauges."""
        self._swept_s = now_s
        self._looks.begin(self._active)
        upstreams, tunnels = self.parts.upstreams, self.parts.tunnels
        self.parts.recorder.tunnels(tunnels.n_open, tunnels.moved())
        self.parts.recorder.gauges(
            len(self.parts.queue), len(self._active), upstreams.statistics(), upstreams.n_out(now_s)
        )

    def _look(self, exchange: Exchange) -> None:
        if exchange in self._active:  # still
            exchange.check_deadlines(self._swept_s, self.parts.limits)

    def fail_all(self, error: VeloxError) -> None:
        """The end of a drain: what still runs is ended, and its clients are told."""
        for exchange in tuple(self._active):
            exchange.fail(error)
        queue = self.parts.queue
        while len(queue):
            for exchange, _ in queue.take(len(queue), time.monotonic_ns()):
                exchange.refuse(error)
