"""The calls of upstreams that one request makes, as they are recorded: which did work, and what of.

    begin()    an attempt is about to be sent: it is noted as open, with the estimate
    end()      the request is over: the call whose reply the client got is recorded as it was, those that may have
               worked for nobody with the estimate, the others not at all

Knows: which attempts count, and what is known of their tokens. Does not know: how a record is kept (velox.ledger).

An attempt did no work if it was not sent, if the upstream said that it did not take it, or if it answered with an
error. One that was given up after it was sent may have worked: its prompt counts, as estimated. One whose client left,
or whose reply was cut, counts by what came, and by the estimate where nothing is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from velox.errors import Reason
from velox.gateway.budgets import BudgetGate, BudgetHold
from velox.gateway.metering import Usage
from velox.ledger.record import Flag, Tokens
from velox.ledger.writer import CallNames, CallStart, CallWriter, OpenCall
from velox.policy.estimate import Estimate
from velox.prices.price import Price
from velox.protocol.token_usage import TokenUsage
from velox.types import BodyFields, Caller, Endpoint

__all__ = ["NO_KINDS", "Answered", "CallLog", "RecordedAttempt", "RequestCalls"]

NO_KINDS: Final = TokenUsage()

_ERRORS_FROM: Final = 400
_LOST: Final = "lost"
_OK: Final = "ok"
_CUT: Final = frozenset({Reason.UPSTREAM_TRUNCATED, Reason.UPSTREAM_RESET, Reason.UPSTREAM_IDLE_TIMEOUT})
_ABORTED: Final = frozenset({Reason.CLIENT_CLOSED, Reason.CLIENT_SLOW})


class RecordedAttempt(Protocol):
    """What is asked of an attempt (group.py). may_have_worked: it was sent, and nothing says that it was not taken."""

    may_have_worked: bool


class Answered(NamedTuple):
    """How the attempt ended that was the request's last.

    upstream: whose reply it was, or the last that was asked. status: that the client got. pays: False: it was not
    answered, and not by the client's doing. started: the client has seen the head. first_byte_ns: monotonic; 0: none.
    usage: estimated where the reply tells nothing. kinds: as far as it tells.
    """

    upstream: str
    status: int
    reason: Reason | None
    pays: bool
    started: bool
    first_byte_ns: int
    usage: Usage | None
    kinds: TokenUsage


class _Begun(NamedTuple):
    attempt: RecordedAttempt
    upstream: str
    call: OpenCall
    began_ns: int


class CallLog:
    """Records the calls of one worker.

    wall_ns, clock_ns: Unix time and a monotonic one, in nanoseconds. prices: the price of a call, by the name of its
    upstream, its model, the tier that its reply tells, and Unix time in seconds. budgets: that calls count in.
    """

    def __init__(
        self,
        writer: CallWriter,
        prices: Callable[[str, str, str, int], Price | None],
        wall_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        budgets: BudgetGate | None = None,
    ) -> None:
        self._writer: Final = writer
        self.budgets: Final = budgets
        self.prices = prices  # another one after a reload
        self._wall_ns: Final = wall_ns
        self._clock_ns: Final = clock_ns

    def request(
        self,
        request_id: bytes,
        caller: Caller,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        estimate: Estimate,
        *,
        hold: BudgetHold | None = None,
    ) -> RequestCalls:
        """Return what records the calls of one request. estimate: of its tokens. hold: of its budgets."""
        number = int(request_id.rpartition(b"-")[2], 16)
        return RequestCalls(
            self,
            self._writer,
            number,
            key=_key(caller),
            endpoint=endpoint,
            route=route,
            fields=fields,
            estimate=estimate,
            hold=hold,
        )

    def cost(self, upstream: str, model: str, usage: TokenUsage, started_us: int) -> tuple[int | None, str]:
        """Return what a call cost in nano-dollars, and the version of its price; None: it is not known."""
        price = self.prices(upstream, model, usage.tier, started_us // 1_000_000)
        if price is None:
            return None, ""
        cost = price.cost(usage)
        return (None, "") if cost is None else (cost.nano, price.version)

    def times(self) -> tuple[int, int]:
        """Return both clocks."""
        return self._wall_ns(), self._clock_ns()


class RequestCalls:
    """Those of one request."""

    __slots__ = ("_begun", "_endpoint", "_estimate", "_fields", "_hold", "_key", "_log", "_number", "_route", "_writer")

    def __init__(
        self,
        log: CallLog,
        writer: CallWriter,
        number: int,
        *,
        key: str,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        estimate: Estimate,
        hold: BudgetHold | None,
    ) -> None:
        self._hold: Final = hold
        self._log: Final = log
        self._writer: Final = writer
        self._number: Final = number
        self._key: Final = key
        self._endpoint: Final = endpoint
        self._route: Final = route
        self._fields: Final = fields
        self._estimate: Final = estimate
        self._begun: list[_Begun] = []

    def __repr__(self) -> str:
        return f"<RequestCalls of {self._number:x}, {len(self._begun)} begun>"

    def begin(self, attempt: RecordedAttempt, upstream: str, model: str | None) -> None:
        """Note an attempt before it is sent. model: that the upstream is asked for."""
        wall_ns, now_ns = self._log.times()
        asked, estimate = self._fields.model or "", self._estimate
        usage = TokenUsage(estimate.prompt, estimate.answer)
        cost_nano, prices = self._log.cost(upstream, model or asked, usage, wall_ns // 1000)
        start = CallStart(
            self._number,
            len(self._begun) + 1,
            self._endpoint,
            self._fields.stream,
            wall_ns // 1000,
            CallNames(self._key, self._route, upstream, asked, model or asked),
            Tokens(estimate.prompt, estimate.answer),
            cost_nano,
            prices,
        )
        self._begun.append(_Begun(attempt, upstream, self._writer.begin(start), now_ns))
        if self._hold is not None:
            self._hold.begin()

    def end(self, answered: Answered) -> None:
        """Record them. Once, when the request is over."""
        begun, self._begun = self._begun, []
        now_ns = self._log.times()[1]
        last = next((each for each in reversed(begun) if each.upstream == answered.upstream), None)
        try:
            for each in begun:
                if each is last:
                    self._end_last(each, answered, now_ns)
                elif each.attempt.may_have_worked:
                    usage = TokenUsage(self._estimate.prompt, 0)
                    self._write(each, now_ns, _LOST, 0, Flag.LOST | Flag.ESTIMATED, usage)
                else:
                    self._writer.forget(each.call)
        finally:
            if self._hold is not None:
                self._hold.end(len(begun))

    def _end_last(self, begun: _Begun, answered: Answered, now_ns: int) -> None:
        reason, usage = answered.reason, answered.usage
        is_error = answered.started and answered.status >= _ERRORS_FROM and reason in (None, Reason.UPSTREAM_STATUS)
        if is_error or not answered.pays:
            if begun.attempt.may_have_worked and not is_error:
                lost = TokenUsage(self._estimate.prompt, 0)
                self._write(begun, now_ns, _code(reason), answered.status, Flag.LOST | Flag.ESTIMATED, lost)
            else:
                self._writer.forget(begun.call)
            return
        flags = Flag(0)
        if reason in _ABORTED:
            flags |= Flag.ABORTED
        elif reason in _CUT:
            flags |= Flag.CUT
        given, made = (None, None) if usage is None else (usage.input, usage.output)
        if given is None or made is None or usage is None or not usage.is_exact:
            flags |= Flag.ESTIMATED
        if given is None:
            given = self._estimate.prompt
        if made is None:
            made = self._estimate.answer
        first_ns = answered.first_byte_ns
        first_us = (first_ns - begun.began_ns) // 1000 if first_ns else None
        kinds = answered.kinds._replace(input=given, output=made)
        if self._hold is not None and not flags:
            self._hold.learn(made)
        self._write(begun, now_ns, _code(reason), answered.status, flags, kinds, first_byte_us=first_us)

    def _write(
        self,
        begun: _Begun,
        now_ns: int,
        reason: str,
        status: int,
        flags: Flag,
        usage: TokenUsage,
        *,
        first_byte_us: int | None = None,
    ) -> None:
        start = begun.call.start
        cost_nano, prices = self._log.cost(begun.upstream, start.names.upstream_model, usage, start.started_us)
        self._writer.end(
            begun.call,
            status=status,
            reason=reason,
            flags=flags,
            first_byte_us=first_byte_us,
            duration_us=(now_ns - begun.began_ns) // 1000,
            tokens=Tokens(*usage[:6]),
            cost_nano=cost_nano,
            prices=prices,
        )
        if self._hold is not None:
            self._hold.spend(cost_nano, (usage.input or 0) + (usage.output or 0))


def _key(caller: Caller) -> str:
    """Return how records name a key: two of one name differ in the id. "": no key is asked for."""
    return f"{caller.id.hex()} {caller.name}" if caller.id else ""


def _code(reason: Reason | None) -> str:
    return _OK if reason is None else reason.code
