"""Two attempts of one request at a time: when the first is slow, another member is asked, too. Who speaks first wins.

    hedged()          what a request begins with: two attempts only where its route hedges or the first is a
                      probe (policy/health), and for what may be asked twice
    send()            the first; when the delay is over (retries/hedge.py) a second, if budget and members allow it
    on_answer()       one has brought its first good byte: it wins, the other is cancelled in the same turn
                      one has an error: it waits for the other, and is what the client gets if that fails, too
    on_failed()       one has failed: the other goes on as if it were alone; the last one has the usual retries

Each attempt runs in a task of its own, unless no second one can follow, and its reply is buffered (buffered_reply.py)
until it is the only one left. From then on all is as with one attempt.

Knows: which of two goes on, who gets the other's end. Does not know: how an attempt is made (group.py), when a
second one is due and how many there may be (policy/retries/hedge.py), or who gets it (routing.py).
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Final

from velox.errors import VeloxError, untraced
from velox.gateway.cluster.group import Attempt, AttemptHost, Outcome
from velox.gateway.cluster.routing import RouteCursor
from velox.gateway.reply.buffered_reply import BufferedReply
from velox.gateway.reply.outcome import COMPLETE, ErrorReply, Failed, Unsupported
from velox.gateway.reply.reply import Reply, ReplyEnd
from velox.gateway.reply.respond import crash
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Hedged
from velox.policy.retries.hedge import ProbeRelief, SecondTries
from velox.policy.retries.retry import RetryRules
from velox.types import Endpoint

__all__ = ["HedgedAttempts", "hedged"]

# Where the first byte takes as long whatever the answer is. Elsewhere a reply that is no stream comes when it is whole:
# the slowest are the longest, a second one would be as long, and these are the dearest.
_SHORT: Final = frozenset({Endpoint.EMBEDDINGS, Endpoint.MODERATIONS})
# Of a request for a response: it runs on when its connection is gone, and is added to a conversation.
_LASTING: Final = (b'"background"', b'"conversation"')


def hedged(
    host: AttemptHost, cursor: RouteCursor, rules: RetryRules, tries: SecondTries | None, first: Attempt
) -> Attempt | HedgedAttempts:
    """Return what a request begins with. rules: of its retries. tries: of its route; None: it does not hedge."""
    if tries is None and first.probe_timeout_s < math.inf:
        tries = ProbeRelief(first.probe_timeout_s)
    if tries is None or not _may_repeat(host):
        return first
    return HedgedAttempts(host, cursor, rules, tries, first)


def _may_repeat(host: AttemptHost) -> bool:
    """True for what is asked of a model and changes nothing, whose client has not begun to repeat it itself."""
    plan = host.plan
    if plan.terms.retries_itself or host.head.offer is not None or not plan.reads_body:
        return False
    body = host.body or b""
    if plan.endpoint is Endpoint.RESPONSES and any(name in body for name in _LASTING):
        return False
    return host.fields.stream or plan.endpoint in _SHORT


class _BufferedAttempt:
    """One of two attempts of a request at a time: its reply is buffered until it is known whose the client gets.

    task: in which it runs, if it has one. is_out: it has failed or was given up. has_begun: it has taken its first
    step. has_first: it has brought the first byte.
    """

    __slots__ = ("_attempts", "_host", "attempt", "has_begun", "has_first", "is_out", "reply", "task")

    def __init__(self, attempts: HedgedAttempts, host: AttemptHost, reply: Reply, attempt: Attempt) -> None:
        self._attempts: Final = attempts
        self._host: Final = host
        self.attempt: Final = attempt
        attempt.on_first_byte = self._on_first
        self.reply: Final = BufferedReply(
            reply, host.client, attempt.on_head, partial(attempts.on_answer, self), host.attempt_fields
        )
        self.task: asyncio.Task[Outcome] | None = None
        self.is_out = False
        self.has_begun = False
        self.has_first = False

    @property
    def name(self) -> str:
        """Return the name of its upstream."""
        return self.attempt.member.name

    async def send(self) -> Outcome:
        """Send as any attempt does, and report a failure."""
        self.has_begun = True  # a task that is cancelled before its first step never runs
        outcome = await self.attempt.send(self._host, self.reply)
        if isinstance(outcome, Failed):
            self._attempts.on_failed(self, outcome.failure)
        elif isinstance(outcome, Unsupported):
            self._attempts.on_failed(self, outcome.error)
        return outcome

    def _on_first(self) -> None:
        """It has brought the first bytes of a good reply."""
        self.has_first = True
        self._attempts.on_first(self)


class HedgedAttempts:
    """The first attempt of a request, and maybe another one beside it. Has what an exchange asks of an Attempt.

    last: the one that is left, or the first as long as two are.
    """

    __slots__ = (
        "_began_s",
        "_cursor",
        "_failed",
        "_first",
        "_hedging",
        "_host",
        "_is_late",
        "_n_running",
        "_over",
        "_reply",
        "_rules",
        "_second",
        "_sole",
        "_timer",
        "last",
    )

    def __init__(
        self, host: AttemptHost, cursor: RouteCursor, rules: RetryRules, hedging: SecondTries, attempt: Attempt
    ) -> None:
        self._host: Final = host
        self._cursor: Final = cursor
        self._rules: Final = rules
        self._hedging: Final = hedging
        self.last = attempt
        self._began_s: Final = host.loop.time()
        self._reply: Reply | None = None
        self._first: _BufferedAttempt | None = None
        self._second: _BufferedAttempt | None = None
        self._sole: _BufferedAttempt | None = None  # whose reply it will be, whatever it is
        self._failed: VeloxError | None = None  # what both were ended for from outside
        self._is_late = False
        self._n_running = 0
        self._over: asyncio.Future[None] = host.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<HedgedAttempts {self._first} {self._second}>"

    # -- what the exchange asks for (exchange.py) -------------------------------------------------

    async def send(self, host: AttemptHost, reply: Reply) -> Outcome:
        """Return what came of the one that counts. As Attempt.send()."""
        self._hedging.on_request()
        self._reply = reply
        first = self._first = _BufferedAttempt(self, self._host, reply, self.last)
        delay_s = self._hedging.delay_s(self._began_s)
        is_open = False
        try:
            if delay_s is None:
                self._keep_only(first)
                outcome = await first.send()
            else:
                self._start(first)
                self._timer = self._host.loop.call_at(self._began_s + delay_s, self._on_late)
                reply.ended.add_done_callback(self._on_end_from_outside)
                outcome = await self._wait()
            is_open = isinstance(outcome, ErrorReply)
            return outcome
        finally:
            if not is_open:
                self._close()

    async def pass_on(self, reply: Reply) -> Outcome:
        """As Attempt.pass_on()."""
        sole = self._sole
        assert sole is not None, "one is left whose error the client may get"
        is_open = False
        try:
            outcome = await sole.attempt.pass_on(sole.reply)
            is_open = isinstance(outcome, ErrorReply)
            return outcome
        finally:
            if not is_open:
                self._close()

    def give_up(self, error_reply: ErrorReply, reply: Reply) -> UpstreamFailure:
        """As Attempt.give_up()."""
        sole = self._sole
        assert sole is not None, "one is left whose error the client does not get"
        failure = sole.attempt.give_up(error_reply, sole.reply)
        self._close()
        return failure

    def abandon(self, reply: Reply) -> None:
        """As Attempt.abandon()."""
        self._close()

    @property
    def is_alone(self) -> bool:
        """True while no second attempt runs, nor one that was given up for it."""
        return self._n_running <= 1

    @property
    def total_s(self) -> float:
        """How long a reply may take that is no stream, as for an Attempt."""
        return self.last.total_s

    def overdue(self, reply: Reply, now_s: float) -> UpstreamFailure | None:
        """Return why the only attempt that is left gets no more time. Of two each is failed by itself."""
        if self._sole is not None:
            return self._sole.attempt.overdue(self._sole.reply, now_s)
        for buffered in (self._first, self._second):
            if buffered is not None and not buffered.is_out and not buffered.reply.is_bad:
                failure = buffered.attempt.overdue(buffered.reply, now_s)
                if failure is not None:
                    buffered.reply.on_failure(failure)
        return None

    # -- events of the attempts -------------------------------------------------------------------

    def on_answer(self, buffered: _BufferedAttempt) -> None:
        """Its buffered reply is good or bad: decide which of two goes on."""
        assert self._reply is not None, "set by send()"
        if self._sole is not None or buffered.is_out or self._reply.ended.done():
            return
        other = self._other(buffered)
        if other is None:
            self._keep_only(buffered)
        elif buffered.reply.is_good:
            self._choose(buffered, other)
        elif other.reply.is_bad:
            # Who would not be asked again has said what is to be said, be it of the request. Else the later one.
            is_final = self._is_final(other) and not self._is_final(buffered)
            if is_final:
                self._choose(other, buffered)
            else:
                self._choose(buffered, other)

    def on_first(self, buffered: _BufferedAttempt) -> None:
        """It has brought the first byte."""
        if buffered is self._first:
            now_s = self._host.loop.time()
            self._hedging.heard(now_s - self._began_s, now_s)

    def on_failed(self, buffered: _BufferedAttempt, failure: VeloxError) -> None:
        """It has failed: the other one goes on alone, if there is one."""
        if buffered.is_out:
            return
        buffered.is_out = True
        other = self._other(buffered)
        if self._sole is None and other is not None:
            self._host.attempt_failed(buffered.name, failure)
            self._keep_only(other)
            return
        self._sole = buffered
        self.last = buffered.attempt
        self._stop_timer()

    # -- two at a time ----------------------------------------------------------------------------

    def _start(self, buffered: _BufferedAttempt) -> None:
        self._n_running += 1
        buffered.task = self._host.loop.create_task(buffered.send())
        buffered.task.add_done_callback(partial(self._on_end, buffered))

    def _on_late(self) -> None:
        """The first has not answered in time: a second one goes, if one may."""
        host, first = self._host, self._first
        assert first is not None and self._reply is not None, "set by send()"
        if self._sole is not None or self._reply.ended.done():
            return
        self._is_late = True
        now_s = host.loop.time()
        self._cursor.tried(first.attempt)
        second = None if now_s >= host.deadline_s else self._cursor.next(now_s, within_limits=True)
        if second is None or not self._hedging.take():
            host.recorder.hedged(Hedged.DENIED)
            self._keep_only(first)
            return
        second.begin(now_s)
        self._cursor.tried(second)
        self._second = _BufferedAttempt(self, host, self._reply, second)
        host.count_hedges(1)
        self._start(self._second)

    def _other(self, buffered: _BufferedAttempt) -> _BufferedAttempt | None:
        """Return the one that may still answer beside `buffered`."""
        other = self._second if buffered is self._first else self._first
        return None if other is None or other.is_out else other

    def _is_final(self, buffered: _BufferedAttempt) -> bool:
        """True for an error after which there would be no other attempt."""
        head = buffered.reply.head
        assert head is not None, "it is bad"
        return head.status != 401 and not self._rules.covers(head.status, head.headers)

    def _choose(self, winner: _BufferedAttempt, loser: _BufferedAttempt) -> None:
        """Go on with one of two, and end the other at once."""
        loser.is_out = True
        if loser.reply.is_bad:
            self._host.attempt_failed(loser.name, loser.reply.refusal())
        else:
            self._note_hedged(loser, winner)
            self._give_up_silent(loser)
        self._drop(loser)
        self._keep_only(winner)

    def _keep_only(self, buffered: _BufferedAttempt) -> None:
        """Go on with what is the only attempt left, as if there had been no other."""
        self._sole = buffered
        self.last = buffered.attempt
        self._stop_timer()
        host = self._host
        if host.n_attempts:
            host.attempt_chosen(buffered.attempt)
            host.phase = "ttfb" if buffered.attempt.is_sent else "connect"
        assert self._reply is not None, "set by send()"
        if not self._reply.ended.done():  # else it was failed in this turn, and the attempts hear of it in the next
            buffered.reply.release()

    def _note_hedged(self, loser: _BufferedAttempt, winner: _BufferedAttempt) -> None:
        """Of two at a time one was given up for the other."""
        self._host.tried += (f"{loser.name}=hedged",)
        self._host.attempt_chosen(winner.attempt)

    def _drop(self, buffered: _BufferedAttempt) -> None:
        """End an attempt: its error is reported; without one it is cancelled."""
        reply = buffered.reply
        if reply.is_bad and not reply.passes:
            reply.on_failure(reply.refusal())
            return
        reply.detach()
        assert buffered.task is not None, "started"
        buffered.task.cancel()

    def _give_up_silent(self, buffered: _BufferedAttempt) -> None:
        """It is given up. Before the delay was over that says nothing: some clients do not wait for anything."""
        if buffered is self._first and self._is_late and not buffered.reply.is_bad:
            now_s = self._host.loop.time()
            self._hedging.heard(now_s - self._began_s, now_s)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- ends -------------------------------------------------------------------------------------

    async def _wait(self) -> Outcome:
        """Wait until all attempts have ended, and return what came of the one that counts."""
        try:
            await self._over
        except asyncio.CancelledError:
            for buffered in self._end_all():
                self._drop(buffered)
            while self._n_running:
                self._over = self._host.loop.create_future()
                try:
                    await self._over
                except asyncio.CancelledError:
                    continue  # two may cancel: the client that leaves, and the end of a drain
            raise
        if self._failed is not None:
            return Failed(self._failed)
        assert self._sole is not None and self._sole.task is not None, "the last one that ends is the only one"
        return self._sole.task.result()

    def _end_all(self) -> list[_BufferedAttempt]:
        """Return those that are to be ended, from outside: all that run."""
        first, second = self._first, self._second
        assert first is not None, "set by send()"
        if self._sole is None and not first.is_out:
            self._give_up_silent(first)
            if second is not None:
                self._note_hedged(second, first)
        self._stop_timer()
        running = [each for each in (first, second) if each is not None and each.task and not each.task.done()]
        for buffered in running:
            buffered.is_out = True
        return running

    def _on_end_from_outside(self, ended: asyncio.Future[ReplyEnd]) -> None:
        """The client's reply has failed (Exchange.fail()): both are ended, unless it is the reply of one already."""
        if ended.cancelled() or self._first is None or (self._sole is not None and self._sole.reply.passes):
            return  # or both had ended in this turn, and the exchange knows what came in between
        broken = ended.result()
        assert isinstance(broken, Failed), "it is not whole, for nothing was passed on"
        self._failed = broken.failure
        for buffered in self._end_all():
            if buffered.attempt.is_sent:
                buffered.reply.on_failure(broken.failure)
            else:
                self._drop(buffered)

    def _on_end(self, buffered: _BufferedAttempt, task: asyncio.Task[Outcome]) -> None:
        """Its task is over."""
        host = self._host
        self._n_running -= 1
        if not buffered.has_begun:
            buffered.attempt.gave_up(host.loop.time())
        error = None if task.cancelled() else task.exception()
        if buffered is self._second:
            host.recorder.hedged(self._outcome(buffered, task))
        if error is not None and not buffered.is_out:  # it got no connection; or a bug
            failure = error if isinstance(error, VeloxError) else crash()
            is_last = self._sole is not None or self._other(buffered) is None
            self.on_failed(buffered, failure)
            if not is_last and isinstance(error, Exception) and error is not failure:
                host.recorder.crashed(error)
        elif self._sole is None and not buffered.is_out and self._other(buffered) is None:
            self._sole, self.last = buffered, buffered.attempt  # it is answered here
        if isinstance(error, VeloxError):
            untraced(error)
        if self._n_running:
            host.count_hedges(-1)
            host.found_capacity()
        elif not self._over.done():
            self._over.set_result(None)

    def _outcome(self, second: _BufferedAttempt, task: asyncio.Task[Outcome]) -> Hedged:
        """Return what came of the second attempt."""
        if second.has_first:
            return Hedged.WON
        if task.cancelled():
            return Hedged.LOST
        if task.exception() is not None:
            return Hedged.FAILED
        outcome = task.result()
        if isinstance(outcome, Failed) and outcome.failure is self._failed:
            return Hedged.LOST
        is_good = outcome is COMPLETE and second.reply.status < 400
        return Hedged.WON if is_good else Hedged.FAILED

    def _close(self) -> None:
        """Let go of what leads back to the exchange: cycles, which would hold the request's body."""
        self._stop_timer()
        reply = self._reply
        if reply is not None:
            reply.ended.remove_done_callback(self._on_end_from_outside)
        for buffered in (self._first, self._second):
            if buffered is not None:
                buffered.attempt.abandon(buffered.reply)
                buffered.reply.detach()
                buffered.attempt.on_first_byte = None
                buffered.task = None
        self._first = self._second = self._sole = self._reply = self._failed = None
