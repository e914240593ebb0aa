"""The life of one request, from top to bottom: queue, read, who, gate, forward, account.

    check_head()    who      with the head, before a body is read: key and path             (intake.py)
    submit()        accept   a whole request has come: into the bounded queue, or refused   (intake.py)
    drain           queue    once per loop turn, up to a batch: what was too late is refused
      read()        read     one look into the body: model, stream, ...
      bucket.take() gate     the batch takes its tokens in one operation
    _run()          one coroutine per request:
      _read_in_steps()       a large body: the same look, in slices; then its token
      _wait_for_token()      a token that was taken ahead of its time
      _forward()    forward  a stream on a warm connection; the reply passes through reply.py
      _end()        account  always, exactly once: slot, token, body, count, log

Knows: the order of these steps and who is told of each end. Does not know: sockets (net/), framing (protocol/), rules
(policy/). docs/life-of-a-request.md shows the same as a picture.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.gateway.parts import GatewayLimits
from velox.gateway.reply import Reply
from velox.gateway.routes import reads_body
from velox.net.application import Client
from velox.net.upstream import UpstreamConnection, UpstreamFailure
from velox.observe.series import Phase
from velox.protocol.body import LARGE_BYTES
from velox.types import Peek, RequestHead

if TYPE_CHECKING:  # the gateway makes exchanges, and an exchange goes through its gateway
    from velox.gateway.intake import Gateway

__all__ = ["Exchange"]

# A try that the upstream surely did not begin is repeated at most this often (R-RETRY-1).
_MAX_FREE_RETRIES: Final = 2
_NS_PER_S: Final = 1_000_000_000


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_gateway",
        "_gone",
        "_holds_token",
        "_running",
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
        self._gone: Reason | None = None
        self._holds_token = False
        self._running = False

    def __repr__(self) -> str:
        return f"<Exchange {self.id.decode()} {self.phase} attempts={self.attempts}>"

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """Stop at once, in whichever phase (R-CANCEL-1)."""
        if self.reply is not None and self.reply.is_whole:
            return  # it left with its answer, which _run() is about to account
        self._gone = Reason.CLIENT_SLOW if stalled else Reason.CLIENT_CLOSED
        if self._task is not None:
            self._cancel()
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

    @property
    def is_large(self) -> bool:
        """True when reading the body at one go would hold up the other requests."""
        return self.body is not None and len(self.body) >= LARGE_BYTES

    def start(self, wait_ns: int | None) -> None:
        """Go on as a task. wait_ns: until the token that was taken for it is due; None: not read yet, and no token."""
        self._holds_token = bool(wait_ns)
        self._task = self._gateway.loop.create_task(self._run(wait_ns))

    async def _run(self, wait_ns: int | None) -> None:
        self._running = True
        error: VeloxError | None = None
        try:
            if self._gone:
                raise asyncio.CancelledError
            if wait_ns is None:
                await self._read_in_steps()
                wait_ns = self._gateway.take_token()
                self._holds_token = wait_ns > 0
            if wait_ns:
                await self._wait_for_token(wait_ns)
            await self._forward()
        except VeloxError as exc:
            error = exc
        except asyncio.CancelledError:
            # Two cancel: the client that left, and the end of a drain. Both go on to the account.
            error = VeloxError(self._gone or Reason.DRAINING, "the exchange was given up")
        except Exception as exc:
            self._gateway.parts.recorder.crashed(exc)
            error = VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
        self._end(error)
        if error is not None:
            # The traceback leads to this frame and the frame to the error: a cycle, which would hold the body until the
            # garbage collector comes by.
            error.__traceback__ = None

    async def _read_in_steps(self) -> None:
        """Do what read() does, with a turn of the loop for the others between two slices of the work."""
        if not reads_body(self.facts, self.head):
            return
        self.phase = "parse"
        steps = self._gateway.parts.reader.read_in_steps(self.body or b"")
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.peek = done.value
                return
            await asyncio.sleep(0)

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
                reply.begin()
                # No await from here to give_back(): the room that was leased is taken.
                try:
                    reply.attach(connection.open(request, reply))
                finally:
                    gateway.parts.pool.give_back(connection)
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
                failure.__traceback__ = None  # as in _run()
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
            async with asyncio.timeout(gateway.parts.limits.lease_timeout_s):
                while connection is None or not connection.has_room:
                    connection = await gateway.parts.pool.lease()
        except TimeoutError as exc:
            message = f"no upstream connection came free in {gateway.parts.limits.lease_timeout_s:g} s"
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
        if self.reply is None or self.phase == "connect":
            self._cancel()
        else:
            self.reply.on_failure(error)  # no effect on a reply that has just become whole

    def _cancel(self) -> None:
        # A task that is cancelled before its first step never runs, and its slot would never be freed: _run() looks.
        if self._task is not None and self._running:
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
