"""Copies of requests, sent to another upstream; nobody waits for the answers.

    copy()     called for each request of a route with a mirror: a part of them is sent there, too
    close()    at the end of a drain: what is under way is given up

Knows: how much may be under way, how long an answer is read, who gets a copy's result. Does not know: which part
of the requests it is (policy/routes/split.py), or how one is sent (internal_request.py).

A client must not notice: all that its own request waits for is one draw and the making of a task. A copy is not counted
against limits, and not tried again; it has a room, a key and a place in the concurrency of its upstream like any other
request there, and what comes of it tells of that member's health, so that one that fails gets no copies until a probe
finds it well. While it has no room a copy is dropped: it would only wait with its body.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.group import Attempt, Group, level_of
from velox.gateway.cluster.routing import Routing
from velox.gateway.cpu_work import TranslationThread, is_large
from velox.gateway.internal_request import Listener, ask_status
from velox.gateway.limits.calls import Copied, RequestCalls
from velox.gateway.limits.metering import Meter, usage_key
from velox.gateway.recorder import outcome_of, outcome_of_failure
from velox.gateway.reply.filters import FilterChain, ReplyFilter, insert_in_order
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.heads import ReplyHead, RequestHead
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest
from velox.outcomes import AttemptOutcome, Mirrored
from velox.policy.routes.split import MirrorGate
from velox.protocol.reply_body import label_of
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import BodyFields

__all__ = ["Mirrors", "Prepare", "PrepareInThread"]

# Makes what a copy's attempt sends, and is told whom its translation tells the answer's tokens; None: nobody.
Prepare: TypeAlias = Callable[[Attempt, Callable[[TokenUsage], None] | None], Prepared | LocalAnswer]
PrepareInThread: TypeAlias = Callable[[Attempt, Callable[[TokenUsage], None] | None], Awaitable[Prepared | LocalAnswer]]

# Of all routes of one worker; each route has a bound of its own. Arbitrary.
_MOST: Final = 256
_MOST_BYTES: Final = 64 * 1024 * 1024
# Of one answer, that waits until a part before it has been read beside the loop.
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
_TOTAL_S: Final = 300.0  # longer than nearly all answers take


class Mirrors:
    """The copies of one worker.

    thread: where large answers are read. turns: of work in the loop. on_end: called with the result of each. on_room:
    an upstream may take more than a moment ago. on_bug: called with an unexpected error. random: in [0, 1).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: TranslationThread,
        turns: TurnBudget,
        *,
        on_end: Callable[[Mirrored], None],
        on_room: Callable[[], None],
        on_bug: Callable[[Exception], None],
        random: Callable[[], float] = random.random,
    ) -> None:
        self._loop: Final = loop
        self._cpu_thread: Final = thread
        self._turns: Final = turns
        self._on_end: Final = on_end
        self._on_room: Final = on_room
        self._on_bug: Final = on_bug
        self._random: Final = random
        self._tasks: Final[set[asyncio.Task[Mirrored]]] = set()
        self._n_bytes = 0
        self._is_closed = False
        self.n_begun = 0  # copies that have a place in the concurrency of an upstream

    def __repr__(self) -> str:
        return f"<Mirrors {len(self._tasks)} under way, {self._n_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._tasks)

    def copy(
        self,
        mirror: tuple[MirrorGate, Group],
        routing: Routing,
        head: RequestHead,
        fields: BodyFields,
        body: bytes | bytearray | None,
        *,
        prepare: Prepare | None = None,
        prepare_in_thread: PrepareInThread | None = None,
        calls: RequestCalls | None = None,
    ) -> None:
        """Send a copy of a request, if it is one of those; never of a WebSocket. The body must not change any more.

        prepare: None: the request is sent as it came. calls: where it is recorded; None: nowhere.
        prepare_in_thread: makes, beside the loop, what goes to an upstream of another API; None: that takes no time.

        routing: of the request's configuration, which stays as long as the copy is under way.
        """
        if self._is_closed or head.offer is not None:
            return
        gate, group = mirror
        n_bytes, n_dropped = 0 if body is None else len(body), gate.n_dropped
        if not gate.begin(n_bytes, self._random()):
            if gate.n_dropped != n_dropped:
                self._on_end(Mirrored.DROPPED)
            return
        if len(self._tasks) >= _MOST or self._n_bytes + n_bytes > _MOST_BYTES:
            gate.end(n_bytes)
            self._on_end(Mirrored.DROPPED)
            return
        routing.n_open += 1  # its upstream stays, whatever is reloaded
        self._n_bytes += n_bytes
        task = self._loop.create_task(
            self._send(group, head, fields, body, prepare, prepare_in_thread, calls), name="mirror"
        )
        self._tasks.add(task)

        def over(_: asyncio.Task[Mirrored]) -> None:
            # Not in the task: one that is cancelled before its first step never runs.
            self._tasks.discard(task)
            self._n_bytes -= n_bytes
            routing.n_open -= 1
            gate.end(n_bytes)
            self._on_end(Mirrored.FAILED if task.cancelled() else task.result())
            self._on_room()

        task.add_done_callback(over)

    def close(self) -> None:
        """Give up what is under way, and begin no more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    async def _send(
        self,
        group: Group,
        head: RequestHead,
        fields: BodyFields,
        body: bytes | bytearray | None,
        prepare: Prepare | None,
        prepare_in_thread: PrepareInThread | None,
        calls: RequestCalls | None,
    ) -> Mirrored:
        try:
            attempt = self._pick(group, fields)
            if attempt is None:
                return Mirrored.DROPPED
            attempt.copied = head
            meter: Meter | None = None
            if calls is not None:
                key = usage_key(calls.endpoint, calls.dialect)
                meter = Meter(is_stream=fields.stream, key=key)
            try:
                if prepare is None:
                    if body is not None and is_large((body,)):
                        await attempt.rename(fields, body, self._turns)
                        if group.is_limited and attempt.member.concurrency.free_slots <= 0:
                            return Mirrored.DROPPED  # as below
                    prepared: Prepared | LocalAnswer = Prepared(
                        attempt.build(head, fields, body, to_be_read=calls is not None)
                    )
                elif prepare_in_thread is not None and attempt.member.adapter is not None:
                    prepared = await prepare_in_thread(attempt, None if meter is None else meter.note)
                    if group.is_limited and attempt.member.concurrency.free_slots <= 0:
                        return Mirrored.DROPPED  # others have taken its place meanwhile
                else:
                    prepared = prepare(attempt, None if meter is None else meter.note)
            except UpstreamFailure:
                return Mirrored.FAILED  # there are no credentials
            except VeloxError:
                return Mirrored.DROPPED  # its API can't say this
            if not isinstance(prepared, Prepared):
                return Mirrored.DROPPED  # nobody is to be asked
            attempt.take(prepared)
            request = prepared.request
            copy = _Copy(attempt, self._loop, meter, self._cpu_thread)
            # Together with the place that it takes at once: nothing is awaited since it was seen to be free.
            self.n_begun += 1
            try:
                return await (copy.send(request) if calls is None else _recorded(copy, calls, fields, request))
            finally:
                self.n_begun -= 1
        except Exception as exc:
            self._on_bug(exc)
            return Mirrored.FAILED

    def _pick(self, group: Group, fields: BodyFields) -> Attempt | None:
        """Choose where a copy goes; None: it can't go anywhere now."""
        without_model = level_of(group, fields.model).closed
        return group.pick(self._loop.time(), tried=without_model, may_probe=True, within_limits=True)


async def _recorded(copy: _Copy, calls: RequestCalls, fields: BodyFields, request: UpstreamRequest) -> Mirrored:
    """Send a copy, and record it."""
    begun = calls.begin_copy(copy.attempt, copy.attempt.member.name, copy.attempt.asked(fields.model))
    try:
        return await copy.send(request)
    finally:
        calls.end_copy(begun, copy.copied())


class _Copy:
    """One copy; hears of its answer, for the member that gives it."""

    __slots__ = (
        "_attempt",
        "_began_s",
        "_chain",
        "_cpu_thread",
        "_has_replied",
        "_is_sse",
        "_loop",
        "_meter",
        "_n_waiting",
        "_status",
        "_waiting",
        "first_byte_ns",
        "may_have_worked",
        "reason",
    )

    def __init__(
        self, attempt: Attempt, loop: asyncio.AbstractEventLoop, meter: Meter | None, thread: TranslationThread
    ) -> None:
        """meter: reads the answer of one that is recorded. thread: where that is done of what is large."""
        self._cpu_thread: Final = thread
        self._waiting: Final[deque[tuple[bytes, bool]]] = deque()  # for a filter that is behind
        self._n_waiting = 0
        self._attempt: Final = attempt
        self._loop: Final = loop
        self._began_s: Final = loop.time()
        self._status = 0
        self._is_sse = False
        self._has_replied = False
        self._meter: Final = meter
        self._chain: FilterChain | None = None
        self.first_byte_ns = 0
        self.may_have_worked = True
        self.reason: Reason | None = None  # why there is no whole answer

    @property
    def attempt(self) -> Attempt:
        """Where it goes."""
        return self._attempt

    def copied(self) -> Copied:
        """Return how it ended, for the record."""
        meter = self._meter
        assert meter is not None, "asked for one that is recorded"
        usage, kinds = meter.usage(is_whole=self.reason is None), meter.kinds()
        return Copied(self.may_have_worked, self._status, self.reason, self.first_byte_ns, usage, kinds)

    async def send(self, request: UpstreamRequest) -> Mirrored:
        """Send it, and read its answer to the end."""
        attempt, loop = self._attempt, self._loop
        member = attempt.member
        timeouts = member.timeouts
        attempt.begin(self._began_s)
        member.concurrency.begin(self._began_s)
        try:
            status = await ask_status(
                member.pool,
                request,
                loop,
                timeout_s=min(_TOTAL_S, timeouts.total_s or math.inf),
                first_byte_s=max(timeouts.first_byte_s, timeouts.thinking_s),
                listener=Listener(self.on_head, self.on_first, self.on_data),
            )
            await self._catch_up()
        except UpstreamFailure as failure:
            self.reason, self.may_have_worked = failure.reason, failure.unprocessed is None
            self._count(outcome_of_failure(failure))
            attempt.broke(failure, loop.time())
            return Mirrored.FAILED
        except VeloxError as exc:
            self.reason, self.may_have_worked = exc.reason, False  # it found no connection
            self._count(AttemptOutcome.CANCELLED)
            attempt.gave_up(loop.time())
            return Mirrored.FAILED
        except BaseException:
            self.reason = Reason.DRAINING
            self._count(AttemptOutcome.CANCELLED)
            attempt.gave_up(loop.time())
            raise
        finally:
            member.concurrency.ended(self._began_s, loop.time(), replied=self._has_replied)
        self._count(outcome_of(status))
        attempt.answered(status, loop.time())
        return Mirrored.ANSWERED if status < 500 else Mirrored.FAILED

    def _count(self, outcome: AttemptOutcome) -> None:
        """Count it for its upstream: how that does is what a mirror is for. It is no attempt of a request."""
        member = self._attempt.member
        member.counts.count_attempt(member.row, outcome)

    # -- its answer--------------------------------------------------------------------------------

    def on_head(self, head: ReplyHead) -> None:
        self._status = head.status
        self._is_sse, is_plain = label_of(head.headers)
        self._attempt.answers(head, self._loop.time())
        if self._meter is not None:
            translation = self._attempt.translation
            # What is in another API than the client's is read by who would have to translate it.
            filters: tuple[ReplyFilter, ...] = (self._meter,)
            if translation is not None and self._status < 400:
                filters = insert_in_order(filters, translation())
            self._chain = FilterChain(filters, is_sse=self._is_sse, is_plain=is_plain)
            self._chain.begin(head)

    def on_data(self, data: bytes, end: bool) -> None:
        if data and not self.first_byte_ns:
            self.first_byte_ns = time.monotonic_ns()
        chain = self._chain
        if chain is None or chain.is_over:
            return
        if not chain.is_behind:
            self._step(partial(chain.feed, data, end))
            return
        self._waiting.append((data, end))
        self._n_waiting += len(data)
        if self._n_waiting > _MOST_WAITING_BYTES:
            self._chain, self.reason = None, Reason.UPSTREAM_PROTOCOL
            self._waiting.clear()

    async def _catch_up(self) -> None:
        """Read beside the loop what is large of it, once it is there."""
        while (chain := self._chain) is not None and (chain.is_behind or (self._waiting and not chain.is_over)):
            if chain.has_work:
                await self._cpu_thread.run(chain.work)
            self._step(chain.go_on if chain.is_behind else partial(chain.feed, *self._waiting.popleft()))

    def _step(self, step: Callable[[], bytes]) -> None:
        try:
            step()
        except UpstreamFailure as failure:  # it can't be translated, or was cut: what was read until then counts
            self._chain, self.reason = None, failure.reason
            return
        chain = self._chain
        if chain is not None and chain.head is not None:
            self._status = chain.head.status  # a status of 200 may have an error's body

    def on_first(self, waited_s: float) -> None:
        if self._status >= 400:
            return
        self._has_replied = True
        now_s = self._loop.time()
        self._attempt.has_first(waited_s, now_s)
        self._attempt.member.concurrency.replied(self._began_s, waited_s, now_s, streamed=self._is_sse)
