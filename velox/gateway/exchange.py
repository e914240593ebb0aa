"""The life of one request, from top to bottom: queue, read, who, gate, forward, account.

    submit()        accept   a whole request has come: into the bounded queue, or refused at once
    _drain()        queue    once per loop turn, up to a batch: what was too late is refused
      _read()       read     one look into the body: model, stream, ...
      bucket.take() gate     the batch takes its tokens in one operation
    _run()          one coroutine per request:
      _wait_for_token()      a token that was taken ahead of its time
      _forward()    forward  a stream on a warm connection; the reply passes through reply.py
      _account()    account  always, exactly once: slot, token, body, count, log

Knows: the order of these steps and who is told of each end. Does not know: sockets (net/), framing (protocol/), rules
(policy/). docs/life-of-a-request.md shows the same as a picture. Who calls is checked with the head, before a body is
read (check_head).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.parts import GatewayLimits, Parts
from velox.gateway.rate_headers import rate_limited
from velox.gateway.reply import Reply
from velox.gateway.respond import error_reply
from velox.gateway.routes import reads_body
from velox.net.application import Client
from velox.net.upstream import UpstreamConnection, UpstreamFailure
from velox.observe.series import Phase
from velox.types import Peek, RequestHead, Route

__all__ = ["Exchange", "Gateway"]

# A try that the upstream surely did not begin is repeated at most this often (R-RETRY-1).
_MAX_FREE_RETRIES: Final = 2
_NS_PER_S: Final = 1_000_000_000


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_gateway",
        "_gone",
        "_holds_token",
        "_task",
        "attempts",
        "body",
        "caller",
        "client",
        "facts",
        "head",
        "id",
        "peek",
        "phase",
        "reply",
        "started_ns",
    )

    def __init__(
        self,
        gateway: Gateway,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        caller: str,
    ) -> None:
        self._gateway: Final = gateway
        self.client: Final = client
        self.head: Final = head
        self.body = body
        self.facts: Final = gateway.parts.routes.facts(head.path)
        self.caller: Final = caller
        self.id: Final = gateway.parts.recorder.next_id()
        self.peek = Peek()
        self.phase = "queue"
        self.attempts = 0
        self.reply: Reply | None = None
        self.started_ns: Final = time.monotonic_ns()
        self._task: asyncio.Task[None] | None = None
        self._gone = False
        self._holds_token = False

    def __repr__(self) -> str:
        return f"<Exchange {self.id.decode()} {self.phase} attempts={self.attempts}>"

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self) -> None:
        """Stop at once, in whichever phase (R-CANCEL-1)."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()
        elif self._gateway.parts.queue.discard(self):
            self._gateway.parts.recorder.ended(self, Reason.CLIENT_CLOSED, 499)

    def client_paused(self) -> None:
        if self.reply is not None:
            self.reply.pause()

    def client_resumed(self) -> None:
        if self.reply is not None:
            self.reply.resume()

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """Look into the body, if its path names a model. Raises VeloxError."""
        if reads_body(self.facts, self.head):
            self.peek = self._gateway.parts.reader.read(self.body or b"")

    def start(self, wait_ns: int) -> None:
        """Go on as a task; wait_ns: until the token that was taken for it is due."""
        self._holds_token = wait_ns > 0
        self._task = self._gateway.loop.create_task(self._run(wait_ns))

    async def _run(self, wait_ns: int) -> None:
        error: VeloxError | None = None
        try:
            if wait_ns:
                await self._wait_for_token(wait_ns)
            await self._forward()
        except VeloxError as exc:
            error = exc
        except asyncio.CancelledError:
            # Two cancel: the client that left, and the end of a drain. Both go on to the account.
            error = VeloxError(
                Reason.CLIENT_CLOSED if self._gone else Reason.DRAINING, "the exchange was given up"
            )
        except Exception as exc:
            self._gateway.parts.recorder.crashed(exc)
            error = VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
        self._end(error)

    async def _wait_for_token(self, wait_ns: int) -> None:
        self.phase = "limit"
        await asyncio.sleep(wait_ns / _NS_PER_S)
        self._holds_token = False
        self._gateway.parts.bucket.used_wait()

    async def _forward(self) -> None:
        """Send the request; wait for the end of the reply. Tries again only where no work was done."""
        gateway = self._gateway
        reply = self.reply = Reply(self.client, self.head, self.id, gateway.loop)
        request = gateway.parts.forwarder.build(self.head, self.peek, self.body)
        while True:
            self.attempts += 1
            try:
                connection = await self._lease()
                self.phase = "ttfb"
                # No await from here to give_back(): the room that was leased is taken.
                stream = connection.open(request, reply)
                gateway.parts.pool.give_back(connection)
                reply.attach(stream)
                if self.client.is_write_paused:
                    reply.pause()
                try:
                    await reply.done
                finally:
                    reply.detach()
            except UpstreamFailure as failure:
                gateway.parts.recorder.attempt_failed(failure)
                if not failure.unprocessed or reply.started or self.attempts > _MAX_FREE_RETRIES:
                    raise
            else:
                gateway.parts.recorder.attempt_answered(reply.status)
                return

    async def _lease(self) -> UpstreamConnection:
        gateway = self._gateway
        connection = gateway.parts.pool.lease_nowait()
        if connection is not None:
            return connection
        self.phase = "connect"
        began_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(gateway.parts.limits.queue_timeout_s):
                while connection is None or not connection.has_room:
                    connection = await gateway.parts.pool.lease()
        except TimeoutError as exc:
            message = f"no upstream connection came free in {gateway.parts.limits.queue_timeout_s:g} s"
            raise VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0) from exc
        gateway.parts.recorder.overhead(Phase.CONNECT, time.monotonic_ns() - began_ns)
        return connection

    def _end(self, error: VeloxError | None) -> None:
        """Tell the client how it ended, then account. No await: it happens exactly once."""
        reply = self.reply
        if self._holds_token:
            self._gateway.parts.bucket.refund()
        if error is None:
            assert reply is not None, "an exchange without error has replied"
            self._gateway.account(self, None, reply.status)
            self.client.finish(close=reply.ends_at_close)
            return
        self._gateway.account(self, error.reason, error.status)
        if self._gone:
            self.client.release_body()
        elif reply is not None and reply.started:
            reply.cut(error)
        else:
            self._gateway.answer(self.client, self.head, error, self.id)

    def refuse(self, error: VeloxError) -> None:
        """Answer instead of starting: the exchange never had a task."""
        self._gateway.parts.recorder.ended(self, error.reason, error.status)
        self._gateway.answer(self.client, self.head, error, self.id)

    def fail(self, error: VeloxError) -> None:
        """End the exchange from outside: a deadline, or the end of a drain."""
        if self.reply is not None and not self.reply.done.done():
            self.reply.on_failure(error)
        elif self._task is not None:
            self._task.cancel()

    def check_deadlines(self, now_s: float, limits: GatewayLimits) -> None:
        """Fail when the upstream has been silent for too long."""
        reply = self.reply
        if reply is None or self.phase == "connect" or self.client.is_write_paused:
            return  # a client that does not read keeps its upstream silent; it has a timer of its own
        if not reply.started:
            if now_s - reply.last_s >= limits.first_byte_timeout_s:
                message = f"the upstream sent no reply in {limits.first_byte_timeout_s:g} s"
                self.fail(UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message))
        elif now_s - reply.last_s >= limits.idle_timeout_s:
            message = f"the upstream sent nothing for {limits.idle_timeout_s:g} s"
            self.fail(UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message))


class Gateway:
    """All exchanges of one worker; the application behind its connections."""

    def __init__(self, parts: Parts, loop: asyncio.AbstractEventLoop) -> None:
        self.parts: Final = parts
        self.loop: Final = loop
        self.draining = False
        self._active: set[Exchange] = set()
        self._drain_queued = False
        self._late_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Gateway active={len(self._active)} queued={len(self.parts.queue)} {self.parts.pool!r}>"

    @property
    def n_active(self) -> int:
        """Exchanges that have begun and not ended, without those that are queued."""
        return len(self._active)

    # -- for the connections --------------------------------------------------------------------

    def check_head(self, head: RequestHead) -> str:
        """Refuse what is refused whatever its body is; return the caller's name. Raises VeloxError."""
        caller = self.parts.auth.check(head)
        self.parts.routes.check(head)
        return caller

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: str
    ) -> Exchange | None:
        """Queue a whole request; None when it was refused on the spot."""
        exchange = Exchange(self, client, head, body, caller)
        if self.parts.queue.offer(exchange, exchange.started_ns):
            self._drain_soon()
            return exchange
        message = (
            f"{len(self.parts.queue)} requests are waiting in this worker, its limit (VELOX_QUEUE_DEPTH)"
        )
        exchange.refuse(VeloxError(Reason.QUEUE_FULL, message, retry_after_s=1.0))
        return None

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""
        request_id = self.parts.recorder.next_id()
        route = Route.OTHER if head is None else self.parts.routes.facts(head.path).route
        self.parts.recorder.refused(route, error)
        self.answer(client, head, error, request_id)

    def answer(self, client: Client, head: RequestHead | None, error: VeloxError, request_id: bytes) -> None:
        """Write an error of Velox's own."""
        close = error.close or client.will_close
        with_body = head is None or head.method != b"HEAD"
        client.write(error_reply(error, request_id, close=close, with_body=with_body))
        client.finish(close=close)

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
        for late in parts.queue.late(now_ns):
            message = (
                f"this request waited {parts.limits.queue_timeout_s:g} s in the queue (VELOX_QUEUE_TIMEOUT)"
            )
            late.refuse(VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0))
        ready: list[Exchange] = []
        for exchange, waited_ns in parts.queue.take(parts.limits.max_inflight - len(self._active), now_ns):
            parts.recorder.overhead(Phase.QUEUE, waited_ns)
            if self._read(exchange):
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
            exchange.refuse(
                VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
            )
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
        for exchange in tuple(self._active):
            exchange.check_deadlines(now_s, self.parts.limits)
        self.parts.recorder.gauges(len(self.parts.queue), len(self._active), self.parts.pool.statistics())

    def fail_all(self, error: VeloxError) -> None:
        """The end of a drain: what still runs is ended, and its clients are told."""
        for exchange in tuple(self._active):
            exchange.fail(error)
