"""The members that one priority level of a route chooses from, and one attempt of a request at one of them.

    Group.pick()   a probe that is due, or else the balancer's choice among the healthy members; and which key
    Attempt        one choice, from its begin to its end: what was sent, what came back, and what the member's health,
                   balancer, keys and counters learn from it

    Attempt.send()      a stream on a warm connection; the reply passes through reply.py; returns what came of it
    Attempt.pass_on()   an error that came of it goes to the client, as no other attempt follows
    Attempt.give_up()   it does not, as another one follows
    Attempt.overdue()   asked every 0.25 s: is it time to give this upstream up?

Knows: what is asked before a choice (health, balancer, keys, concurrency, scraped load), how one attempt is made and
how it ended. Does not know: which level comes next (routing.py), whether a request is tried again (retries.py), or the
steps of a request around its attempts (exchange.py); what an attempt needs of these is AttemptHost.
"""

from __future__ import annotations

import abc
import asyncio
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from velox.errors import Reason, VeloxError, untraced
from velox.gateway.cpu_work import in_turns
from velox.gateway.recorder import Recorder
from velox.gateway.reply.addresses import UpstreamAddresses
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.reply.outcome import COMPLETE, ErrorReply, Failed, Unsupported
from velox.gateway.reply.reply import AnsweringAttempt, ReplyEnd
from velox.gateway.request_context import RequestContext
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.gateway.upstreams.member import Member
from velox.heads import Headers, ReplyHead, RequestHead
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.outcomes import Retry
from velox.policy.balance.candidates import Balancer, Candidates
from velox.policy.health.group import GroupHealth, GroupRules
from velox.policy.health.member import State, Verdict, of_failure, of_giving_up, of_status
from velox.policy.retries.retry import retry_after_s
from velox.policy.routes.entries import NO_RULES, HeaderRules, ModelName, asked_model
from velox.protocol.forms import with_form_model, with_form_model_in_steps
from velox.protocol.json.edit import with_model, with_model_in_steps
from velox.protocol.usage.token_usage import TokenUsage
from velox.providers.authority import NO_PROOF, Authority
from velox.providers.reasoning import reasons
from velox.types import BodyFields, Endpoint, FormFields

__all__ = [
    "UNSUPPORTED",
    "Attempt",
    "AttemptHost",
    "AttemptReply",
    "Group",
    "Outcome",
    "PriorityLevel",
    "RetryDecision",
    "level_of",
]

# What came of an attempt.
Outcome: TypeAlias = ReplyEnd | Unsupported | LocalAnswer

_NOT_BEGUN: Final = -1.0
_ANY_KEY: Final = 0
_SWITCHED: Final = 101
_UNCHANGED: Final = 304
# What a model makes: the first byte of such an answer, if it is no stream, comes when the model is done.
_WRITTEN: Final = frozenset(
    {
        *(Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.GENERATE),
        *(Endpoint.IMAGES, Endpoint.AUDIO),
    }
)
# Errors that an upstream may mean for the account that a client names, which need not be ours.
_OF_ACCOUNTS: Final = frozenset({401, 403, 429})
# What a provider adapter says of a request that its upstream's API has no way for.
UNSUPPORTED: Final = (Reason.BAD_REQUEST, Reason.PREVIOUS_NOT_FOUND, Reason.UNKNOWN_ROUTE)
_WELL: Final = Verdict.WELL  # the attribute of an enumeration takes 50 ns
# Nobody has too much to do for longer: what says so would have the member back in days.
_MAX_COOLDOWN_S: Final = 300.0
# How long the head of a stream waits at most for its first event, which may be an error. Providers that find out after
# the head that they are overloaded say so at once.
_HEAD_WAIT_S: Final = 1.0
# For the first credentials of a cloud, which come within a few round trips.
_CREDENTIALS_S: Final = 5.0


class Group:
    """The members of one priority level in one worker.

    weights: as configured, by member. models: what each is asked for instead of the model that the client named; None:
    that one. request_rules: of the route. rules: of their health.

    changes_body: by member: what is sent may be another body than the client's.
    """

    __slots__ = (
        "_candidates",
        "_learns_load",
        "_weights",
        "balancer",
        "changes_body",
        "health",
        "is_limited",
        "is_simple",
        "learns",
        "members",
        "models",
        "request_rules",
    )

    def __init__(
        self,
        members: Sequence[Member],
        models: Sequence[ModelName],
        weights: Sequence[float],
        balancer: Balancer,
        request_rules: HeaderRules = NO_RULES,
        *,
        rules: GroupRules | None = None,
    ) -> None:
        self.members: Final = tuple(members)
        self.models: Final = tuple(models)
        self.changes_body: Final = tuple(
            member.adapter is not None or model is not None for member, model in zip(members, models, strict=True)
        )
        self.balancer: Final = balancer
        self.health: Final = GroupHealth([member.health for member in members], weights, rules)
        self.request_rules: Final = request_rules
        self._weights: Final = tuple(weights)
        self._candidates: Final = Candidates(self._weights, _inflight(self.members))
        self.is_limited: Final = any(member.concurrency.limit for member in members)
        # One member, whose key is not chosen either.
        self.is_simple: Final = len(members) == 1 and members[0].health.keys is None
        self.learns: Final = balancer.learns
        self._learns_load: Final = any(member.load is not None for member in members)

    def __repr__(self) -> str:
        return f"<Group {' '.join(member.name for member in self.members)}>"

    def pick(
        self,
        now_s: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
        *,
        again: bool = False,
        may_probe: bool = False,
        allow_unhealthy: bool = False,
        within_limits: bool = False,
    ) -> Attempt | None:
        """Choose a member, and one of its keys; None: there is none.

        key: what requests are kept together by. tried: members that this request can't go to, or not again. again: it
        has failed once. may_probe: it can go elsewhere if it fails. allow_unhealthy: also where none is healthy, but to
        none whose keys all rest. within_limits: to none that has no room left.
        """
        probe = self.probe(now_s, tried) if may_probe else None
        if probe is not None:
            return probe
        weights = self.health.weights(now_s, again=again)
        if not allow_unhealthy and not self.health.n_in:
            return None
        chance = random.random()
        n = self.balancer.pick(self._weighed(weights, now_s, within_limits), now_s, chance, key, tried)
        if n is None and allow_unhealthy:
            weights = self._reachable(now_s)
            n = self.balancer.pick(self._weighed(weights, now_s, within_limits), now_s, chance, key, tried)
        return None if n is None else self.take(n, now_s)

    def probe(self, now_s: float, tried: Collection[int] = ()) -> Attempt | None:
        """Choose a member that is out and that a request is to test now; None: there is none."""
        n = self.health.probe(now_s, tried)
        if n is None:
            return None
        probe = self.take(n, now_s)
        probe.probe_timeout_s = self.health.probe_timeout_s(now_s)
        return probe

    def pick_in_cooldown(
        self,
        now_s: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
        *,
        within_limits: bool = False,
        allow_unhealthy: bool = False,
    ) -> Attempt | None:
        """Choose among those that rest, though it is their keys that do; None: there are none. All as in pick().

        allow_unhealthy: also among those that are out.
        """
        weights = [
            weight if allow_unhealthy or member.health.state(now_s) is State.RESTING else 0.0
            for weight, member in zip(self._weights, self.members, strict=True)
        ]
        n = self.balancer.pick(self._weighed(weights, now_s, within_limits), now_s, random.random(), key, tried)
        return None if n is None else self.take(n, now_s)

    def take(self, n: int, now_s: float, tried_keys: Collection[int] = ()) -> Attempt:
        """Return the choice of member `n`, with whichever key may be used, or any if none may."""
        keys = self.members[n].health.keys
        key = None if keys is None else keys.pick(now_s, random.random(), tried_keys)
        return Attempt(self, n, _ANY_KEY if key is None else key)

    @property
    def has_capacity(self) -> bool:
        """True if a simple group's one member may have a request more."""
        return not self.is_limited or self.members[0].concurrency.free_slots > 0

    def has_room(self, now_s: float, closed: Collection[int] = (), *, allow_unhealthy: bool = False) -> bool | None:
        """Say whether one of those that pick() chooses from may have a request more; None: it chooses from none.

        closed: members that the request can't go to.
        """
        weights = self.health.weights(now_s)
        if not allow_unhealthy and not self.health.n_in:
            return None
        found = [n for n, weight in enumerate(weights) if weight > 0.0 and n not in closed]
        if allow_unhealthy and not found:
            found = [n for n, weight in enumerate(self._reachable(now_s)) if weight > 0.0 and n not in closed]
        return any(self.members[n].concurrency.free_slots > 0 for n in found) if found else None

    def _reachable(self, now_s: float) -> Sequence[float]:
        """Return the weights where all that health says of members is their keys' rest."""
        return [
            0.0 if member.health.cooldown_left_s(now_s) else weight
            for member, weight in zip(self.members, self._weights, strict=True)
        ]

    def _weighed(self, weights: Sequence[float], now_s: float, within_limits: bool) -> Candidates:
        """Return what the choice is made from. weights: by health."""
        candidates = self._candidates
        if self._learns_load:
            loads = [member.load for member in self.members]
            candidates.extra = [0.0 if load is None else load.extra(now_s) for load in loads]  # noqa: S610
            weights = [
                weight if load is None else weight * load.headroom(now_s)
                for weight, load in zip(weights, loads, strict=True)
            ]
        if within_limits and self.is_limited:
            weights = [
                weight if member.concurrency.free_slots > 0 else 0.0
                for weight, member in zip(weights, self.members, strict=True)
            ]
        candidates.weights = weights
        candidates.is_even = weights is self.health.even  # as they are, neither lowered nor for one that has failed
        return candidates


class PriorityLevel(NamedTuple):
    """A group of a route, for requests that name one model, and those of its members that don't have the model.

    The levels of a route are asked in their order: a request goes to the first that has a healthy member.
    """

    group: Group
    closed: frozenset[int]

    @property
    def is_open(self) -> bool:
        """True if one of its members has the model."""
        return len(self.closed) < len(self.group.members)


def level_of(group: Group, model: str | None) -> PriorityLevel:
    """Return the priority level of requests that name a model; None: they name none."""
    closed = frozenset(
        n
        for n, member in enumerate(group.members)
        if (asked := asked_model(group.models[n], model)) is not None and not member.entry.has_model(asked)
    )
    return PriorityLevel(group, closed)


def _inflight(members: Sequence[Member]) -> Sequence[int]:
    """Return the requests in flight by member, counted when they are asked for: most choices look at two."""
    return members[0].counts.inflight_of([member.row for member in members])


class AttemptReply(Protocol):
    """Where the reply of an attempt goes: to the client (reply.py), or first into a buffer (buffered_reply.py).

    All as in Reply.
    """

    @property
    def ended(self) -> asyncio.Future[ReplyEnd]: ...

    @property
    def started(self) -> bool: ...

    @property
    def status(self) -> int: ...

    @property
    def last_s(self) -> float: ...

    @property
    def heard_s(self) -> float: ...

    @property
    def is_flowing(self) -> bool: ...

    @property
    def is_behind(self) -> bool: ...

    def begin(self, listener: AnsweringAttempt, told: AttemptFields) -> None: ...

    def attach(self, stream: UpstreamStream) -> None: ...

    def detach(self) -> None: ...

    def pause(self) -> None: ...

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None: ...

    def on_chunk(self, chunk: bytes, at: int) -> bool: ...

    def on_failure(self, failure: VeloxError) -> None: ...

    def pass_on(self) -> None: ...

    def release_head(self) -> None: ...


class AttemptHost(RequestContext):
    """The request that an attempt is made for: an exchange (exchange.py), or that of a WebSocket (tunnel.py).

    A base class and no protocol: compiled code reads its attributes directly.
    """

    __slots__ = ("recorder",)

    recorder: Recorder

    @abc.abstractmethod
    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """Note where the request goes now; return the fields that tell the client of the attempts so far."""

    @abc.abstractmethod
    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """Return what is sent; a request alone where its reply passes as it comes.

        Raises VeloxError for what the API of the upstream can't say.
        """

    @property
    @abc.abstractmethod
    def has_turn(self) -> bool:
        """True while this turn of the loop has time to put a body into another API, or to give it another model."""

    @abc.abstractmethod
    async def prepare_in_thread(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """Do what prepare() does, while others have their turns."""

    @abc.abstractmethod
    async def lease(self, member: Member) -> UpstreamConnection:
        """Wait for a connection with room for one request. Raises VeloxError."""

    @abc.abstractmethod
    def found_capacity(self) -> None:
        """Let others have what the upstream takes more than a moment ago."""

    @abc.abstractmethod
    def attempt_chosen(self, attempt: Attempt) -> None:
        """Note which of two attempts (hedging.py) is the one whose reply it will be, if any."""

    @abc.abstractmethod
    def reply_ends(self) -> bool:
        """Account for a reply whose last bytes are about to go to the client. False: its end will tell how it ended."""

    @abc.abstractmethod
    def count_hedges(self, n: int) -> None:
        """Count so many second attempts more that are under way, or fewer."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """One more attempt. attempt: it has begun, unless there is a wait before it.

    renewal: what to wait for, in place of a time, but no longer than wait_s; None: nothing. drops_reasoning: the
    request is sent without encrypted reasoning, which only its maker can read.
    """

    attempt: Attempt
    wait_s: float
    cause: Retry
    renewal: asyncio.Future[None] | None = None
    drops_reasoning: bool = False

    def give_up(self, now_s: float) -> None:
        """It will not be made: another request may be the probe that this one would have been."""
        self.attempt.gave_up(now_s)


class Attempt(AnsweringAttempt):
    """One choice of a member, and the attempt that is made there.

    begin() first, then at most one each of answers() and has_first(), then one of those that end it: answered(),
    broke(), gave_up(). send() does all of that; after ErrorReply, pass_on(), give_up() or abandon() does the rest.

    group: what it was chosen from. on_first_byte: called when it has brought the first bytes of a good reply; None for
    most. probe_timeout_s: of a probe: one without an answer by then counts as failed. is_sent: as far as it is known;
    it may have failed as it was. may_have_worked: it ended without an answer, and nothing says that the upstream did
    not take it. translation, usage_so_far: as in Prepared. copied: the head of the request that a mirror's is a copy
    of; it is not sent here.
    """

    __slots__ = (
        *("_answers", "_began_s", "_has_first", "_has_head", "_head_s", "_headers", "_host", "_is_of_client"),
        *("_is_counted", "_key_status", "_n_unsent", "_progress_s", "_renamed", "_sent_s", "_stream"),
        *("copied", "forwarder", "group", "is_sent", "key", "keys", "member", "n", "on_first_byte", "probe_timeout_s"),
        "proof",
    )

    def __init__(self, group: Group, n: int, key: int) -> None:
        member = group.members[n]
        self.group: Final = group
        self.n: Final = n  # among the members of its group
        self.key: Final = key
        self.keys: Final = member.health.keys  # what is known of them
        self.member: Final = member
        self.forwarder: Final = member.forwarders[key]
        self.secret = self.forwarder.secret  # what no error may show; None where the client's own key goes up
        self.proof = NO_PROOF  # what it signs in with, where its upstream has no keys
        self.probe_timeout_s = math.inf
        self.on_first_byte: Callable[[], None] | None = None
        self.translation: Callable[[], ReplyFilter] | None = None
        self.is_sent = False
        self.may_have_worked = False
        self.usage_so_far: Callable[[], TokenUsage | None] | None = None
        self.copied: RequestHead | None = None
        self._host: AttemptHost | None = None  # while it runs
        self._began_s = _NOT_BEGUN
        self._sent_s = 0.0
        self._stream: UpstreamStream | None = None  # from its opening to its end; never of several calls
        self._renamed: bytes | bytearray | None = None  # the body, with its model
        self._n_unsent = 0  # of the request's body, at the last look
        self._progress_s = 0.0  # when that had last become less
        self._has_head = False
        self._head_s = 0.0  # when it came, if it was good
        self._answers = False  # with a good reply
        self._has_first = False
        self._is_counted = False  # as answered
        self._headers: Headers = []  # of an error
        self._is_of_client = False  # which is about an account of the client's, and so not of how much there is to do
        self._key_status = 0  # the status that was, last; 0: none was; -1: it was given up

    def __repr__(self) -> str:
        state = "open" if self._stream is not None else "not begun" if self._began_s < 0.0 else "waiting"
        return f"<Attempt at {self.member.name} key={self.key} {state}>"

    @property
    def began_s(self) -> float:
        """When it began, on the loop's clock."""
        return self._began_s

    def asked(self, named: str | None) -> str | None:
        """Return the model that it asks for. named: by the client; None: it named none, and neither does its route."""
        wanted = self.group.models[self.n]
        return named if wanted is None else asked_model(wanted, named)

    def reasons(self, named: str | None) -> bool:
        """Return True where the model that it asks for may reason. named: as in asked()."""
        return reasons(self.member.entry, self.asked(named) or "")

    def count_call(self, tokens: Sequence[int | None], cost_nano: int | None) -> None:
        """Count what it cost, for its upstream."""
        self.member.counts.count_call(self.member.row, tokens, cost_nano)

    # -- the whole of it ----------------------------------------------------------------------------

    async def send(self, host: AttemptHost, reply: AttemptReply) -> Outcome:
        """Send the request once; return what came of it. Of ErrorReply the client has seen nothing, and all is open.

        Raises VeloxError where it could not be sent for a reason that is not the upstream's.
        """
        loop, group, member, is_tunnel = host.loop, self.group, self.member, host.is_tunnel
        told = host.attempt_began(self)
        if self._began_s < 0.0:
            self.begin(loop.time())
        if group.is_limited:
            member.concurrency.begin(self._began_s, is_tunnel=is_tunnel)
        else:
            member.concurrency.n_begun += 1
        self._host = host
        try:
            if self.forwarder.authority is not None:
                await self._sign_in(host, self.forwarder.authority)
            # What an API of its own takes may be long in the making, and so may be a body with another model.
            in_thread = group.changes_body[self.n] and (host.is_large or not host.has_turn)
            if in_thread:
                host.phase = "translate"
                prepared = await host.prepare_in_thread(self)
            else:
                prepared = host.prepare(self)
            if isinstance(prepared, UpstreamRequest):
                request = prepared
            elif isinstance(prepared, Prepared):
                self.take(prepared)
                request = prepared.request
                told = told.with_dropped(prepared.left_out) if prepared.left_out else told
            else:
                self._given_up(host, reply)
                return prepared
            request.may_run_ahead = host.client.may_run_ahead
            # A tunnel has a connection of its own.
            connection = None if is_tunnel else member.pool.lease_nowait()
            if connection is None:
                connection = await host.lease(member)
            host.phase = "ttfb"
            self.is_sent = True
            reply.begin(self, told)
            # No await before give_back(): the stream that was leased is taken.
            try:
                dispatch = request.dispatch
                stream = connection.open(request, reply) if dispatch is None else dispatch(reply)
                reply.attach(stream)
            finally:
                member.pool.give_back(connection)
            if not host.sent_ns:
                host.sent_ns = time.monotonic_ns()
            self._stream = stream if request.dispatch is None else None  # several calls have time-outs of their own
            self._sent_s = self._progress_s = loop.time()
            if host.client.is_write_paused:
                reply.pause()
            ended = await reply.ended
        except UpstreamFailure as failure:
            return self._ended_as(Failed(untraced(failure)), host, reply)
        except VeloxError as exc:
            self._given_up(host, reply)
            if exc.reason in UNSUPPORTED and not self.is_sent:
                return Unsupported(untraced(exc))
            raise
        except BaseException:
            self._given_up(host, reply)
            raise
        return self._ended_as(ended, host, reply)

    def take(self, prepared: Prepared) -> None:
        """Take what is sent."""
        self.translation, self.usage_so_far = prepared.translation, prepared.usage_so_far

    async def pass_on(self, reply: AttemptReply) -> Outcome:
        """Have the client get the error that came of it; return what comes of that."""
        host = self._host
        assert host is not None, "it is open"
        try:
            reply.pass_on()
            ended = await reply.ended
        except BaseException:
            self._given_up(host, reply)
            raise
        return self._ended_as(ended, host, reply)

    def give_up(self, error_reply: ErrorReply, reply: AttemptReply) -> UpstreamFailure:
        """End it with an error that the client does not get. Return how that counts."""
        host = self._host
        assert host is not None, "it is open"
        failure = UpstreamFailure(Reason.UPSTREAM_STATUS, error_reply.message, status=error_reply.head.status)
        self._ended_as(Failed(failure), host, reply)
        return failure

    def abandon(self, reply: AttemptReply) -> None:
        """End it if it is open: nobody has decided about its error, nor will."""
        if self._host is not None:
            self._given_up(self._host, reply)

    def _ended_as(self, ended: ReplyEnd, host: AttemptHost, reply: AttemptReply) -> ReplyEnd:
        """Account for how it ended; an error stays open until it is known who gets it."""
        if ended is COMPLETE:
            now_s = self._close(host, reply)
            host.was_sent = True
            status = reply.status
            if not self._is_counted:
                host.recorder.attempt_answered(self.member, status)
            self.answered(status, now_s)
            return ended
        if isinstance(ended, ErrorReply):
            self.on_head(ended.head)
            return ended
        assert isinstance(ended, Failed), "there is no other end"
        failure = ended.failure
        if not isinstance(failure, UpstreamFailure):  # it was ended from outside
            self._given_up(host, reply)
            return ended
        host.recorder.attempt_failed(self.member, failure)
        self.broke(failure, host.loop.time())
        host.was_sent |= failure.unprocessed is None
        # What it answered, even with an error, it does not work on any more.
        self.may_have_worked = failure.unprocessed is None and failure.reason is not Reason.UPSTREAM_STATUS
        host.may_have_begun |= self.may_have_worked
        self._close(host, reply)
        return ended

    def _close(self, host: AttemptHost, reply: AttemptReply) -> float:
        """Let go of its stream and of its place at the member. Return when, on the loop's clock."""
        now_s = host.loop.time()
        self._stream = None
        if self.is_sent:
            reply.detach()
        if self.group.is_limited:
            self.member.concurrency.ended(self._began_s, now_s, replied=self._has_first, is_tunnel=host.is_tunnel)
        else:
            self.member.concurrency.n_begun -= 1
        self._host = None  # a cycle, which would hold the request's body
        return now_s

    async def _sign_in(self, host: AttemptHost, authority: Authority) -> None:
        coming = authority.coming(time.time())
        if coming is not None:
            host.phase = "renewal"
            await asyncio.wait((coming,), timeout=_CREDENTIALS_S)
        self.proof = authority.proof(time.time())
        self.secret = self.proof.secret

    def _given_up(self, host: AttemptHost, reply: AttemptReply) -> None:
        """Close and account for an attempt that was ended from outside, or could not be made."""
        now_s = self._close(host, reply)
        host.recorder.attempt_given_up(self.member)
        self.gave_up(now_s)
        host.was_sent |= self.is_sent
        host.may_have_begun |= self.is_sent
        self.may_have_worked = self.is_sent

    def renewal(self, head: ReplyHead) -> asyncio.Future[None] | None:
        """Look whether an error is about what it signed in with. Return what is done once something newer may hold."""
        authority = self.forwarder.authority
        return (
            None if authority is None else authority.refused(self.proof.version, head.status, head.headers, time.time())
        )

    @property
    def addresses(self) -> UpstreamAddresses | None:
        """Which addresses are of its upstream."""
        return self.member.addresses

    @property
    def holds_head(self) -> bool:
        """True when the client gets the head of a stream with the first event: another one may be asked until then."""
        return self.member.timeouts.first_event_s > 0.0

    @property
    def names_account(self) -> bool:
        """True for one with an account that the client names: an error may be about that, and not our key."""
        head, rules = self._request_head, self.group.request_rules
        return head is not None and self.translation is None and self.forwarder.names_account(head, rules)

    @property
    def _request_head(self) -> RequestHead | None:
        return self.copied if self._host is None else self._host.head

    def on_head(self, head: ReplyHead) -> None:
        """The reply's head has come, whether or not it is the client's.

        Of a good one only the first call counts. The head of an error may follow it: of one that stood in the body.
        """
        host, status = self._host, head.shape.status
        if host is None or (self._has_head and status < 400):
            return
        now_s = host.loop.time()
        if status < 300 and self.keys is None and status != _SWITCHED:  # most of them
            self._has_head = self._answers = True
            self._head_s = now_s
            self.member.health.answers(self._began_s, now_s)
        elif status < 300 or status >= 400 or status == _UNCHANGED:  # a redirect is no answer
            self.answers(head, now_s)

    def on_first(self, now_s: float, *, is_stream: bool) -> None:
        """The client has the first event of a stream, or what there is first of another reply."""
        host = self._host
        assert host is not None, "a reply comes while its attempt runs"
        waited_s = now_s - self._sent_s
        self._has_first = True
        group, member = self.group, self.member
        if is_stream:
            member.health.begins_well(now_s)  # any other's end is near, and says so
        if group.learns:
            group.balancer.answered(self.n, waited_s, now_s)
        member.counts.observe_ttfb(member.row, int(waited_s * 1e9))
        if group.is_limited:
            concurrency = member.concurrency
            if concurrency.limit and concurrency.replied(self._began_s, waited_s, now_s, streamed=host.is_streamed):
                host.found_capacity()
        if self.on_first_byte is not None:
            self.on_first_byte()

    def on_last(self, status: int) -> None:
        """The client is about to get the last bytes."""
        host = self._host
        if host is not None and host.reply_ends():
            self._is_counted = True
            host.recorder.attempt_answered(self.member, status)

    @property
    def total_s(self) -> float:
        """How long a reply of this upstream may take that is no stream; 0: no limit."""
        return self.member.timeouts.total_s

    def overdue(self, reply: AttemptReply, now_s: float) -> UpstreamFailure | None:
        """Return why the upstream gets no more time; None while it has some."""
        limits = self.member.timeouts
        idle_s = limits.idle_s
        if reply.started:
            silent_s = now_s - reply.last_s
            if silent_s < limits.stall_s and silent_s < idle_s:
                return None
            if reply.is_flowing:
                idle_s = min(idle_s, limits.stall_s)
            else:
                silent_s = now_s - reply.heard_s  # comments tell that the server is there while the model may think
            if silent_s < idle_s:
                return None
        stream = self._stream
        if stream is None or reply.ended.done() or reply.is_behind:
            return None  # what it has brought is in the making
        if reply.started:
            message = f"the upstream sent nothing for {idle_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message)
        if self._answers and now_s - self._head_s >= _HEAD_WAIT_S and not self.holds_head:
            reply.release_head()
        n_unsent = stream.n_unsent
        if n_unsent != self._n_unsent:
            # The wait for the first byte runs from when the body has been taken; until then, each byte taken counts.
            self._n_unsent = n_unsent
            self._progress_s = now_s
            return None
        silent_s = now_s - self._progress_s
        if n_unsent and silent_s >= limits.write_s:
            message = f"the upstream took nothing of the request's body for {limits.write_s:g} s"
            return UpstreamFailure(Reason.BODY_TIMEOUT, message, status=504)
        if n_unsent:
            return None
        host = self._host
        if limits.first_event_s and silent_s >= limits.first_event_s and host is not None and host.wants_stream:
            message = f"the upstream sent no event in {limits.first_event_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message)
        if not self._has_head:
            if silent_s < limits.first_byte_s:
                return None
            waits_s = limits.first_byte_s
            if limits.thinking_s > waits_s and host is not None and self._may_think(host):
                waits_s = limits.thinking_s
                if silent_s < waits_s:
                    return None
            message = f"the upstream sent no reply in {waits_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message)
        # It is held, to be read or translated. What comes of it meanwhile is no silence: pings, comments, the blanks
        # that some upstreams send while the model of a plain answer thinks.
        if now_s - max(self._progress_s, reply.heard_s) < idle_s:
            return None
        message = f"the upstream sent nothing for {idle_s:g} s"
        return UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message)

    def _may_think(self, host: AttemptHost) -> bool:
        """Say whether the first byte may be as late as the end of the model's thoughts."""
        if host.plan.endpoint not in _WRITTEN or host.head.method != b"POST":
            return False
        return not host.wants_stream or self.reasons(host.fields.model)

    # -- what is sent -------------------------------------------------------------------------------

    def build(
        self,
        head: RequestHead,
        fields: BodyFields,
        body: bytes | bytearray | None,
        *,
        to_be_read: bool,
        target: bytes | None = None,
    ) -> UpstreamRequest:
        """Return the request, put into the form of this member's provider.

        to_be_read: Velox reads the reply, which must not be compressed then. target: in place of the client's.
        """
        group = self.group
        if body and fields.model is not None and group.models[self.n] is not None and not fields.is_model_in_path:
            model = self.asked(fields.model)
            if model is not None and model != fields.model:
                renamed, self._renamed = self._renamed, None
                if renamed is not None:
                    body = renamed
                elif isinstance(fields, FormFields):
                    body = with_form_model(body, fields, model)
                else:
                    body = with_model(body, model)
        rules = group.request_rules
        return self.forwarder.build(head, fields, body, to_be_read=to_be_read, rules=rules, target=target)

    async def rename(self, fields: BodyFields, body: bytes | bytearray, turns: TurnBudget) -> None:
        """Put its model into a body, for build(), while others have their turns. Raises VeloxError."""
        model = self.asked(fields.model)
        if model is not None and model != fields.model and fields.model is not None and not fields.is_model_in_path:
            if isinstance(fields, FormFields):
                self._renamed = await in_turns(with_form_model_in_steps(body, fields, model), turns)
            else:
                self._renamed = await in_turns(with_model_in_steps(body, model), turns)

    def build_upgrade(self, head: RequestHead, named: str | None) -> UpstreamRequest:
        """Return the request for a WebSocket. named: the model that its query names; None: it names none."""
        model = self.asked(named)
        is_other = model is not None and model != named
        return self.forwarder.build_upgrade(head, model if is_other else None, self.group.request_rules)

    # -- what its member learns from it -------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """The attempt begins, or is sure to: others that choose in the same turn see that a probe is taken."""
        if self._began_s >= 0.0:
            return
        self._began_s = now_s
        group, member = self.group, self.member
        member.health.begin(now_s)
        if group.learns:
            group.balancer.began(self.n, now_s)
        member.began()
        if self.keys is not None:
            self.keys.begin(self.key, now_s)

    def answers(self, head: ReplyHead, now_s: float) -> None:
        """A reply begins. What it says of the key counts at once: for the next choice, and its end may be far."""
        status = head.status
        self._has_head = True
        if status >= 400 or self.keys is not None:
            self._headers = head.headers
            self._report_to_key(status, now_s)
        if status >= 400:
            self._is_of_client = status == 429 and (self.names_account or self._counts_clients_key(head))
            return
        self._answers = True
        self._head_s = now_s
        self.member.health.answers(self._began_s, now_s)
        if status == _SWITCHED:
            self.member.health.begins_well(now_s)
            # All that a tunnel tells of latency; how long it lasts is the client's affair.
            self._has_first = True
            self.group.balancer.answered(self.n, now_s - self._began_s, now_s)

    def has_first(self, waited_s: float, now_s: float) -> None:
        """The first bytes of a good reply's body are there. waited_s: since it was sent."""
        self._has_first = True
        group, member = self.group, self.member
        member.health.begins_well(now_s)
        if group.learns:
            group.balancer.answered(self.n, waited_s, now_s)
        member.counts.observe_ttfb(member.row, int(waited_s * 1e9))

    def answered(self, status: int, now_s: float) -> None:
        """Its reply is whole, or was refused for another attempt's."""
        if self.keys is not None:
            self._report_to_key(status, now_s)
        if status < 400:
            group, member = self.group, self.member
            member.health.succeeded(self._began_s, now_s, answered=self._answers)
            if group.learns and not self._has_first:
                self._report_to_balancer(_WELL, now_s)
            member.counts.ended(member.row)
            return
        verdict, cooldown_s = of_status(status), None
        if verdict is Verdict.BUSY or (verdict is Verdict.QUOTA and not self._is_of_client):
            self.member.concurrency.refused(self._began_s, now_s)
        if verdict is Verdict.BUSY:
            cooldown_s = retry_after_s(self._headers, time.time())
            cooldown_s = None if cooldown_s is None else min(cooldown_s, _MAX_COOLDOWN_S)
        self._ended(verdict, now_s, cooldown_s)

    def broke(self, failure: UpstreamFailure, now_s: float) -> None:
        """It ended without a whole reply that goes to the client."""
        if failure.reason is Reason.UPSTREAM_STATUS:
            self.answered(failure.status, now_s)
            return
        if failure.may_be_stale:
            self.member.pool.retire_stale_idle(now_s)
        if failure.reason is Reason.UPSTREAM_TTFB_TIMEOUT:
            self.member.concurrency.refused(self._began_s, now_s)
            if not self._has_head:
                # The connection may be one that a NAT has forgotten, and then so are others that have idled.
                self.member.pool.retire_stale_idle(now_s)
        self._release_key()
        # A connection that could not be made is a fault; a stream refused, or a connection closed in time, is not.
        unprocessed = failure.unprocessed not in (None, Retry.CONNECT)
        self._ended(of_failure(failure.reason, unprocessed=unprocessed), now_s)

    def gave_up(self, now_s: float) -> None:
        """It was ended from this side, or never made."""
        if self._began_s < 0.0:
            return
        self._release_key()
        waited_s = now_s - self._began_s
        is_silent = waited_s >= self.probe_timeout_s and not self._answers
        self._ended(Verdict.SILENT if is_silent else of_giving_up(waited_s, answered=self._answers), now_s)

    def _counts_clients_key(self, refused: ReplyHead) -> bool:
        """Say whether a 429 is about a key of the client's own."""
        head = self._request_head
        return head is not None and self.forwarder.counts_clients_key(head, refused)

    def _report_to_key(self, status: int, now_s: float) -> None:
        """Tell it once, and once more where a reply had an error inside that its head does not tell of."""
        told = self._key_status
        if self.keys is None or status == told or (told and status < 400):
            return
        self._key_status = status
        if status not in _OF_ACCOUNTS or not self.names_account:
            self.keys.answered(
                self.key, status, self._headers, self._began_s, now_s, time.time(), random=random.random()
            )
        elif not told:
            self.keys.gave_up(self.key, self._began_s)

    def _release_key(self) -> None:
        if self.keys is not None and not self._key_status:
            self._key_status = -1
            self.keys.gave_up(self.key, self._began_s)

    def _ended(self, verdict: Verdict, now_s: float, cooldown_s: float | None = None) -> None:
        group, member = self.group, self.member
        answered = self._answers
        if verdict is _WELL:
            member.health.ended(verdict, self._began_s, now_s, answered=answered)
        else:
            was_in = member.health.state(now_s) is not State.OUT
            group.health.ended(
                self.n, verdict, self._began_s, now_s, answered=answered, cooldown_s=cooldown_s, random=random.random()
            )
            if was_in and member.health.state(now_s) is State.OUT:
                member.counts.count_ejection(member.row)
        if group.learns and not self._has_first:
            self._report_to_balancer(verdict, now_s)
        member.counts.ended(member.row)

    def _report_to_balancer(self, verdict: Verdict, now_s: float) -> None:
        """It ended before the first bytes of a good reply."""
        balancer, waited_s = self.group.balancer, now_s - self._began_s
        if verdict in (Verdict.FAULT, Verdict.CUT, Verdict.SILENT):
            balancer.failed(self.n, waited_s, now_s)
        elif self._answers and verdict is Verdict.WELL:
            balancer.answered(self.n, waited_s, now_s)  # a reply without a body
        else:
            balancer.gave_up(self.n, waited_s, now_s)
