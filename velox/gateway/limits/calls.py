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
from typing import Final, NamedTuple

from msgspec.structs import astuple, replace

from velox.errors import Reason, VeloxError
from velox.gateway.limits.billed_units import AskedUnits
from velox.gateway.limits.budgets import BudgetGate
from velox.gateway.limits.metering import Meter, Usage, usage_of
from velox.gateway.limits.reservation import NOT_RESERVED, Reservation
from velox.gateway.reply.reply import AnsweringAttempt
from velox.ledger.record import MOST_NAMES, TAG_SEPARATOR, Flag, key_name
from velox.ledger.writer import CallNames, CallWriter, OpenCall
from velox.policy.budgets.budget import NANO_PER_USD
from velox.policy.limits.estimate import NO_TOKENS, Estimate, has_guess, recorded
from velox.prices.price import Price
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import ANYONE, BodyFields, Caller, Dialect, Endpoint

__all__ = [
    "NO_KINDS",
    "Answered",
    "Begun",
    "CallLog",
    "Copied",
    "RequestCalls",
    "Spending",
    "spending_of",
]

NO_KINDS: Final = TokenUsage()

_ERRORS_FROM: Final = 400
_SWITCHED: Final = 101
_COPY: Final = 0  # the number of its attempt: one copy is sent of a request
_LOST: Final = "lost"
_NOT_KNOWN: Final = b"unknown"
_OK: Final = "ok"
# As integers: an operation of an enum costs as much as the record.
_ABORTED_FLAG: Final = int(Flag.ABORTED)
_CUT_FLAG: Final = int(Flag.CUT)
_ESTIMATED: Final = int(Flag.ESTIMATED)
_MIRROR: Final = int(Flag.MIRROR)
_DRAINED: Final = int(Flag.DRAINED)
_LOST_FLAGS: Final = int(Flag.LOST | Flag.ESTIMATED)
_BILLED: Final = int(Flag.BILLED)
_REGIONAL: Final = int(Flag.REGIONAL)
_OTHERS: Final = int(Flag.OTHERS)
_CACHED: Final = int(Flag.CACHED)
_JOINED: Final = int(Flag.JOINED)
_N_TOKENS: Final = 13  # kinds of tokens, the first fields of TokenUsage
_NO_TOKENS: Final = (0, 0, None, None, None, None)
_CUT: Final = frozenset({Reason.UPSTREAM_TRUNCATED, Reason.UPSTREAM_RESET, Reason.UPSTREAM_IDLE_TIMEOUT})
_ABORTED: Final = frozenset({Reason.CLIENT_CLOSED, Reason.CLIENT_SLOW})


class Answered:
    """How the attempt ended that was the request's last.

    attempt: whose reply it was, or the last that was made; None: none was. status: that the client got. pays: False: it
    was not answered, and not by the client's doing. started: the client has seen the head. first_byte_ns: monotonic; 0:
    none. usage: estimated where the reply tells nothing. kinds: as far as it tells. was_drained: it was read on after
    its client had left.
    """

    __slots__ = ("attempt", "first_byte_ns", "kinds", "pays", "reason", "started", "status", "usage", "was_drained")

    def __init__(
        self,
        attempt: AnsweringAttempt | None,
        status: int,
        reason: Reason | None,
        pays: bool,
        started: bool,
        first_byte_ns: int,
        usage: Usage | None,
        kinds: TokenUsage,
        was_drained: bool = False,
    ) -> None:
        self.attempt: Final = attempt
        self.status: Final = status
        self.reason: Final = reason
        self.pays: Final = pays
        self.started: Final = started
        self.first_byte_ns: Final = first_byte_ns
        self.usage: Final = usage
        self.kinds: Final = kinds
        self.was_drained: Final = was_drained


class Spending:
    """What the calls of a request took, together. None: not known.

    is_estimated: not all of it was told by replies. is_recorded: in the ledger.
    """

    __slots__ = (
        "cache_written",
        "cached",
        "cost_nano",
        "input",
        "is_estimated",
        "is_recorded",
        "output",
        "reasoning",
    )

    def __init__(
        self,
        n_input: int | None = None,
        n_output: int | None = None,
        cached: int | None = None,
        cache_written: int | None = None,
        reasoning: int | None = None,
        cost_nano: int | None = None,
        is_estimated: bool = False,
        is_recorded: bool = True,
    ) -> None:
        self.input: Final = n_input
        self.output: Final = n_output
        self.cached: Final = cached
        self.cache_written: Final = cache_written
        self.reasoning: Final = reasoning
        self.cost_nano: Final = cost_nano
        self.is_estimated: Final = is_estimated
        self.is_recorded: Final = is_recorded


class Begun:
    """A call that has begun."""

    __slots__ = ("attempt", "began_ns", "call", "upstream")

    def __init__(self, attempt: AnsweringAttempt, upstream: str, call: OpenCall, began_ns: int) -> None:
        self.attempt: Final = attempt
        self.upstream: Final = upstream
        self.call: Final = call
        self.began_ns: Final = began_ns


class Copied(NamedTuple):
    """How the copy of a request ended (mirror.py). status: that its upstream gave; 0: none. Others: as in Answered."""

    may_have_worked: bool
    status: int
    reason: Reason | None
    first_byte_ns: int
    usage: Usage | None
    kinds: TokenUsage


class CallLog:
    """Records the calls of one worker.

    wall_ns, clock_ns: Unix time and a monotonic one, in nanoseconds. prices: the price of a call, by the name of its
    upstream, the model that it was asked for, model and tier that its reply tells, and Unix time in seconds. budgets:
    that calls count in. refuses: requests whose calls could not be recorded are refused.
    """

    def __init__(
        self,
        writer: CallWriter,
        prices: Callable[[str, str, str, str, int], Price | None],
        wall_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        budgets: BudgetGate | None = None,
        refuses: bool = False,
    ) -> None:
        self._writer: Final = writer
        self._refuses: Final = refuses
        self.budgets: Final = budgets
        self.prices = prices  # another one after a reload
        self._wall_ns: Final = wall_ns
        self._clock_ns: Final = clock_ns
        # Texts of calls with whose they are: those of one caller and model are alike.
        self._named: Final[dict[tuple[bytes, str, str, str, str, str, str | None], tuple[Caller, CallNames]]] = {}

    def check(self) -> None:
        """Raise VeloxError(LEDGER_FULL) for a request that could not be recorded, where that is asked for."""
        if self._refuses and not self._writer.has_room:
            message = "no more calls can be recorded now: the gateway's database is away, or too slow"
            raise VeloxError(Reason.LEDGER_FULL, message, retry_after_s=1.0)

    def request(
        self,
        request_id: bytes,
        caller: Caller,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        estimate: Estimate,
        *,
        reservation: Reservation = NOT_RESERVED,
        dialect: Dialect = Dialect.OPENAI,
        path: str = "",
        asked: AskedUnits | None = None,
        agent: int = 0,
        tags: str | None = None,
    ) -> RequestCalls:
        """Return what records the calls of one request. dialect: of its client. path: its family. agent: its client's.

        tags: as one text; None: those of its key.
        reservation: in whose budgets they count.
        asked: what it tells of units that are paid in place of tokens; None: nothing.
        estimate: of its tokens, as limits count it; NO_TOKENS: nothing is known of them but what the reply tells.
        """
        return RequestCalls(
            self,
            self._writer,
            _number_of(request_id),
            caller=caller,
            endpoint=endpoint,
            route=route,
            fields=fields,
            estimate=recorded(estimate, fields),
            reservation=reservation,
            dialect=dialect,
            path=path,
            asked=asked,
            agent=agent,
            tags=tags,
        )

    def record_again(
        self,
        request_id: bytes,
        caller: Caller,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        path: str,
        agent: int = 0,
        tags: str | None = None,
    ) -> None:
        """Record an answer that was given again: no upstream was asked, it took no tokens and cost nothing.

        Raises VeloxError as check() does.
        """
        self.check()
        number, asked = _number_of(request_id), fields.model or ""
        names = self.names(caller, route, "", asked, "", path, tags)
        wall_ns = self._wall_ns()
        call = self._writer.begin(number, 1, endpoint, fields.stream, wall_ns // 1000, names, (0, 0), 0, "", agent)
        self._writer.end(
            call,
            status=200,
            reason=_OK,
            flags=_CACHED,
            first_byte_us=0,
            duration_us=0,
            tokens=_NO_TOKENS,
            cost_nano=0,
            prices="",
        )

    def record_joined(
        self,
        request_id: bytes,
        caller: Caller,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        path: str,
        agent: int,
        tags: str | None,
        status: int,
        reason: Reason | None,
        began_ns: int,
        first_byte_ns: int,
    ) -> None:
        """Record a request whose reply was that of another one's call: where that is, its tokens and its cost are.

        began_ns, first_byte_ns: monotonic; 0: no byte came.
        """
        now_ns = self._clock_ns()
        duration_us = (now_ns - began_ns) // 1000
        names = self.names(caller, route, "", fields.model or "", "", path, tags)
        started_us = self._wall_ns() // 1000 - duration_us
        number = _number_of(request_id)
        call = self._writer.begin(number, 1, endpoint, fields.stream, started_us, names, (0, 0), 0, "", agent)
        flags = _JOINED | (_ABORTED_FLAG if reason in _ABORTED else _CUT_FLAG if reason in _CUT else 0)
        self._writer.end(
            call,
            status=status,
            reason=_code(reason),
            flags=flags,
            first_byte_us=(first_byte_ns - began_ns) // 1000 if first_byte_ns else None,
            duration_us=duration_us,
            tokens=_NO_TOKENS,
            cost_nano=0,
            prices="",
        )

    def names(
        self, caller: Caller, route: str, upstream: str, asked: str, model: str, path: str, tags: str | None = None
    ) -> CallNames:
        """Return the texts of a call. asked, model: that the client named, and that the upstream is asked for.

        tags: as one text; None: those of its key.
        """
        kind = (caller.id, route, upstream, asked, model, path, tags)
        found = self._named.get(kind)
        if found is None or found[0] is not caller:  # after a reload a caller may have other terms
            if len(self._named) >= MOST_NAMES:
                self._named.clear()
            found = self._named[kind] = caller, _names(caller, route, upstream, asked, model, path, tags)
        return found[1]

    def times(self) -> tuple[int, int]:
        """Return both clocks."""
        return self._wall_ns(), self._clock_ns()


class RequestCalls:
    """Those of one request.

    endpoint, dialect: that its client asked, and in whose API. answering: the attempt whose reply it is.
    """

    __slots__ = (
        "_agent",
        "_answer",
        "_asked",
        "_begun",
        "_caller",
        "_estimate",
        "_fields",
        "_log",
        "_number",
        "_path",
        "_prices",
        "_reservation",
        "_route",
        "_tags",
        "_writer",
        "_written",
        "answering",
        "dialect",
        "endpoint",
    )

    def __init__(
        self,
        log: CallLog,
        writer: CallWriter,
        number: int,
        *,
        caller: Caller,
        endpoint: Endpoint,
        route: str,
        fields: BodyFields,
        estimate: Estimate,
        reservation: Reservation,
        dialect: Dialect,
        path: str,
        asked: AskedUnits | None = None,
        agent: int = 0,
        tags: str | None = None,
    ) -> None:
        self._agent: Final = agent
        self._tags: Final = tags
        self._asked: Final = asked
        self._reservation: Final = reservation
        self._log: Final = log
        self._prices: Final = log.prices  # a reload may take the upstream away while it answers
        self._writer: Final = writer
        self._number: Final = number
        self._caller: Final = caller
        self.endpoint: Final = endpoint
        self.dialect: Final = dialect
        self._route: Final = route
        self._path: Final = path
        self._fields: Final = fields
        self._estimate: Final = estimate
        self._answer: Final = estimate.answer if has_guess(endpoint) else None
        self._begun: list[Begun] = []
        self.answering: AnsweringAttempt | None = None
        self._written: tuple[tuple[TokenUsage, int | None, int], ...] = ()  # copies apart

    def __repr__(self) -> str:
        return f"<RequestCalls of {self._number:x}, {len(self._begun)} begun>"

    @property
    def guess(self) -> int:
        """Return how long the answer is taken to be where nothing tells, in tokens; 0: it is not made of tokens."""
        return 0 if self._answer is None else self._answer

    def spent(self) -> Spending | None:
        """Return what the calls took that are recorded so far, copies apart; None: none is."""
        total: Spending | None = None
        for usage, cost_nano, flags in self._written:
            total = _sum(total, spending_of(usage, cost_nano, is_estimated=bool(flags & _ESTIMATED)))
        return total

    def begin(self, attempt: AnsweringAttempt, upstream: str, model: str | None) -> None:
        """Note an attempt before it is sent. model: that the upstream is asked for."""
        self._begun.append(self._begin(attempt, upstream, model, len(self._begun) + 1, self._caller))
        self.answering = attempt
        self._reservation.begin()

    def begin_copy(self, attempt: AnsweringAttempt, upstream: str, model: str | None) -> Begun:
        """Note the copy of a request before it is sent. It is not the caller's doing: it counts for no key."""
        return self._begin(attempt, upstream, model, _COPY, ANYONE)

    def _begin(self, attempt: AnsweringAttempt, upstream: str, model: str | None, n: int, caller: Caller) -> Begun:
        wall_ns, now_ns = self._log.times()
        asked = self._fields.model or ""
        tags = None if n == _COPY else self._tags
        usage = self._guess(self._answer)
        cost_nano, label, _ = self._priced(upstream, model or asked, usage, wall_ns // 1000)
        call = self._writer.begin(
            self._number,
            n,
            self.endpoint,
            self._fields.stream,
            wall_ns // 1000,
            self._log.names(caller, self._route, upstream, asked, model or asked, self._path, tags),
            (usage.input, usage.output),
            cost_nano,
            label,
            self._agent,
        )
        return Begun(attempt, upstream, call, now_ns)

    def _guess(self, answer: int | None) -> TokenUsage:
        """Return what is taken for used where nothing tells; None: not even that is known."""
        return TokenUsage() if self._estimate is NO_TOKENS else TokenUsage(self._estimate.prompt, answer)

    def cost_by(self, meter: Meter) -> bytes:
        """Return what cost() does, of the tokens that a meter has read of a whole answer."""
        usage = usage_of(meter, self.answering, self._fields.model, self.guess, is_whole=True)
        return self.cost(usage, meter.kinds())

    def cost(self, usage: Usage | None, kinds: TokenUsage) -> bytes:
        """Return what the client learns of the cost of its answer: dollars. Asked before the end of the request."""
        begun = self._of(self.answering)
        if begun is None:
            return _NOT_KNOWN
        kinds, flags = self._kinds(usage, kinds)
        start = begun.call
        nano, *_ = self._priced(begun.upstream, start.names.upstream_model, kinds, start.started_us)
        if nano is None:
            return _NOT_KNOWN
        return b"%d.%09d%b" % (*divmod(nano, NANO_PER_USD), b"; estimated" if flags else b"")

    def _priced(self, upstream: str, model: str, usage: TokenUsage, started_us: int) -> tuple[int | None, str, int]:
        """Return what a call cost in nano-dollars, the label of its price, and what is to be said of it (Flag).

        None: it is not known; the label says which kind of tokens has no rate. model: that the upstream was asked for.
        """
        price = self._prices(upstream, model, usage.model, usage.tier, started_us // 1_000_000)
        if price is None:
            return None, "", 0
        cost = price.cost(usage)
        if cost is None:
            lacking = price.lacks(usage)
            return None, f"{price.label}: no rate of {lacking}" if lacking else "", 0
        return cost.nano, price.label, _BILLED if usage.bill is not None and price.is_billed(usage) else 0

    def _of(self, attempt: AnsweringAttempt | None) -> Begun | None:
        # By the attempt itself: two of them may be at one upstream, for other models or at other origins.
        for each in self._begun:
            if each.attempt is attempt:
                return each
        return None

    def end(self, answered: Answered) -> None:
        """Record them. Once, when the request is over."""
        last = self._of(answered.attempt)
        begun, self._begun, self.answering = self._begun, [], None
        now_ns = self._log.times()[1]
        for each in begun:
            if each is last:
                self._end_last(each, answered, now_ns)
            else:
                self._end_failed(each, now_ns, _LOST, 0, may_have_worked=each.attempt.may_have_worked)

    def _end_last(self, begun: Begun, answered: Answered, now_ns: int) -> None:
        reason, usage = answered.reason, answered.usage
        is_error = answered.started and answered.status >= _ERRORS_FROM and reason in (None, Reason.UPSTREAM_STATUS)
        if is_error or not answered.pays:
            may_have_worked = begun.attempt.may_have_worked and not is_error
            code = _code(Reason.UPSTREAM_STATUS if is_error else reason)
            self._end_failed(begun, now_ns, code, answered.status, may_have_worked=may_have_worked)
            return
        kinds, flags = self._kinds(usage, answered.kinds)
        if reason in _ABORTED:
            flags |= _ABORTED_FLAG | (_DRAINED if answered.was_drained and not flags else 0)
        elif reason in _CUT:
            flags |= _CUT_FLAG
        first_us = _since_us(answered.first_byte_ns, begun)
        self._write(
            *(begun, now_ns, _code(reason), answered.status, flags, kinds),
            first_byte_us=first_us,
            is_known=not flags & _ESTIMATED,
        )
        held = self._reservation.held
        if held is not None and not flags and kinds.output is not None:
            held.lengths.add(kinds.output)

    def _end_failed(self, begun: Begun, now_ns: int, reason: str, status: int, *, may_have_worked: bool) -> None:
        """End a call that gave no reply: by its prompt if it may have worked, by what is known to have been done."""
        usage_so_far = begun.attempt.usage_so_far
        usage = self._guess(0) if may_have_worked else None if usage_so_far is None else usage_so_far()
        if usage is None:
            self._writer.forget(begun.call)
        else:
            self._write_lost(begun, now_ns, reason, status, usage)

    def end_copy(self, begun: Begun, copied: Copied) -> None:
        """Record the copy, unless it did no work."""
        if not copied.may_have_worked or copied.status >= _ERRORS_FROM:
            self._writer.forget(begun.call)
            return
        kinds, flags = self._kinds(copied.usage, copied.kinds)
        if copied.reason in _CUT:
            flags |= _CUT_FLAG
        now_ns = self._log.times()[1]
        first_us = _since_us(copied.first_byte_ns, begun)
        reason = _code(copied.reason)
        self._write(begun, now_ns, reason, copied.status, flags | _MIRROR, kinds, first_byte_us=first_us, counts=False)

    def _kinds(self, usage: Usage | None, kinds: TokenUsage) -> tuple[TokenUsage, int]:
        """Return the tokens of a reply, with the estimate where it does not tell, and what is to be said of them."""
        given, made = (None, None) if usage is None else (usage.input, usage.output)
        is_exact = given is not None and made is not None and usage is not None and usage.is_exact
        asked = self._asked
        if asked is None and self.endpoint is Endpoint.VIDEOS:
            kinds = replace(kinds, units=None)  # of an edit or a longer version: nobody knows what of it is paid
        if asked is not None:
            kinds = asked.merged(kinds, has_tokens=given is not None or made is not None)
        if kinds.units is not None and given is None and made is None:
            return kinds, 0 if asked is None or asked.is_sure else _ESTIMATED  # it is paid by these
        if given is None or made is None:
            guess = self._guess(self._answer)
            given = guess.input if given is None else given
            made = guess.output if made is None else made
        if self.endpoint is Endpoint.IMAGES and kinds.image_output is None:
            kinds = replace(kinds, image_output=made)  # OpenAI's streams of pictures do not tell them apart
        if kinds.input != given or kinds.output != made:
            kinds = replace(kinds, input=given, output=made)
        return kinds, 0 if is_exact else _ESTIMATED

    def _write(
        self,
        begun: Begun,
        now_ns: int,
        reason: str,
        status: int,
        flags: int,
        usage: TokenUsage,
        *,
        first_byte_us: int | None = None,
        is_known: bool = True,
        counts: bool = True,
    ) -> None:
        """Count a call where budgets count it, and then record it: what is recorded is counted.

        counts: False: it is no call of the caller's.
        """
        start = begun.call
        cost_nano, label, billed = self._priced(begun.upstream, start.names.upstream_model, usage, start.started_us)
        if usage.is_regional:
            flags |= _REGIONAL
        if usage.has_others:
            flags |= _OTHERS
        if counts and self._reservation.held is not None:
            least = 0
            if cost_nano is None and usage.has_others:
                own = replace(usage, has_others=False)
                least = self._priced(begun.upstream, start.names.upstream_model, own, start.started_us)[0] or 0
            self._reservation.spend(cost_nano, _total(usage), is_known=is_known, least=least)
        self._writer.end(
            begun.call,
            status=status,
            reason=reason,
            flags=flags | billed,
            first_byte_us=first_byte_us,
            duration_us=(now_ns - begun.began_ns) // 1000,
            tokens=_counts(usage),
            cost_nano=cost_nano,
            prices=label,
            tier=usage.tier,
            answered=usage.model,
        )
        if counts:
            self._written += ((usage, cost_nano, flags),)
        if status != _SWITCHED:  # its member may be gone since: a WebSocket lasts longer than configurations
            kinds = (usage.input, usage.output, usage.cached, usage.written, usage.reasoning)
            begun.attempt.count_call(kinds, cost_nano)

    def _write_lost(self, begun: Begun, now_ns: int, reason: str, status: int, usage: TokenUsage) -> None:
        """Record a call that may have worked for nobody."""
        self._write(begun, now_ns, reason, status, _LOST_FLAGS, usage)


def _number_of(request_id: bytes) -> int:
    """Return the part of an id that counts requests."""
    return int(request_id.rpartition(b"-")[2], 16)


def _names(caller: Caller, route: str, upstream: str, asked: str, model: str, path: str, tags: str | None) -> CallNames:
    """Return the texts of a call. Two keys of one name differ in the id; "": no key is asked for."""
    key = key_name(caller.id, caller.name, caller.account) if caller.id else ""
    terms = caller.terms
    if tags is None:
        tags = TAG_SEPARATOR.join(terms.tags) if terms.tags else ""
    return CallNames(key, route, upstream, asked, model, terms.team, terms.user, tags, path)


def spending_of(usage: TokenUsage, cost_nano: int | None, *, is_estimated: bool, is_recorded: bool = True) -> Spending:
    """Return what one call took."""
    return Spending(
        usage.input,
        usage.output,
        usage.cached,
        usage.written,
        usage.reasoning,
        cost_nano,
        is_estimated,
        is_recorded,
    )


def _sum(one: Spending | None, other: Spending) -> Spending:
    """Return both together. Tokens that one of them does not tell are left out; a cost is known of both or of none."""
    if one is None:
        return other
    cost = None if one.cost_nano is None or other.cost_nano is None else one.cost_nano + other.cost_nano
    return Spending(
        _added(one.input, other.input),
        _added(one.output, other.output),
        _added(one.cached, other.cached),
        _added(one.cache_written, other.cache_written),
        _added(one.reasoning, other.reasoning),
        cost,
        one.is_estimated or other.is_estimated,
    )


def _added(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _counts(usage: TokenUsage) -> tuple[int | None, ...]:
    """Return what is recorded of a usage, as record.Tokens has it."""
    tokens: tuple[int | None, ...] = astuple(usage)[:_N_TOKENS]
    return tokens if usage.units is None else tokens + usage.units


def _total(usage: TokenUsage) -> int | None:
    return None if usage.input is None and usage.output is None else (usage.input or 0) + (usage.output or 0)


def _since_us(time_ns: int, begun: Begun) -> int | None:
    return (time_ns - begun.began_ns) // 1000 if time_ns else None


def _code(reason: Reason | None) -> str:
    return _OK if reason is None else reason.code
