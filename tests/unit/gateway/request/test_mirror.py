"""Copies of requests: how many, to whom, within which bounds, and what is left of them: nothing. Time is virtual."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, cast

import pytest

from tests.sockets.gateway.composed import TIMEOUTS, Counted, Stand, member_of, routing_of, upstream_of
from tests.sockets.gateway.core_gateway import request_head
from tests.unit import virtual_time
from tests.unit.gateway.limits.recorded_calls import CallRecords
from tests.unit.gateway.translation.test_provider_adapter import client_request_of
from tests.unit.net.upstream.pool_server import Server
from velox.gateway.cluster.group import Attempt
from velox.gateway.cluster.routing import Routing
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.limits.calls import CallLog
from velox.gateway.request.mirror import Mirrors
from velox.gateway.translation.adapter import ProviderAdapter
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.gateway.upstreams.member import Member
from velox.heads import ReplyHead, WebSocketOffer
from velox.ledger.record import Flag
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import UpstreamConnection
from velox.net.upstream.pool import UpstreamPool
from velox.outcomes import AttemptOutcome, Mirrored
from velox.policy.health.member import State
from velox.policy.limits.estimate import Estimate
from velox.policy.queue.concurrency import FixedLimit
from velox.policy.routes.entries import ANYTHING, Mirror, RouteEntry, Target
from velox.policy.routes.split import MirrorGate
from velox.protocol.usage.token_usage import TokenUsage
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ANYONE, ApiKind, BodyFields, Endpoint

BODY: Final = b'{"model":"m","messages":[{"role":"user","content":"model m"}]}'
PEEK: Final = BodyFields(model="m")
OUTCOMES: Final = {
    **dict.fromkeys((404, 429), AttemptOutcome.STATUS_4XX),
    **dict.fromkeys((500, 503), AttemptOutcome.STATUS_5XX),
    200: AttemptOutcome.OK,
    0: AttemptOutcome.RESET,
}
FIRST_BYTE_S: Final = 30.0


class Counts(Counted):
    """Keeps what it is told of attempts, too."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: Final[list[tuple[int, AttemptOutcome]]] = []
        self.firsts_s: Final[list[float]] = []

    def count_attempt(self, row: int, outcome: AttemptOutcome) -> None:
        self.attempts.append((row, outcome))

    def observe_ttfb(self, row: int, ttfb_ns: int) -> None:
        self.firsts_s.append(round(ttfb_ns / 1e9, 3))


class Setup:
    """A route whose requests are mirrored, and what was told of the copies."""

    def __init__(
        self,
        server: Server,
        *,
        percent: float = 100.0,
        most: int = 1000,
        most_bytes: int = 1 << 30,
        model: str | None = None,
        limit: int = 0,
        models: tuple[str, ...] = (),
        adapter: ProviderAdapter | None = None,
    ) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self.ends: Final[collections.Counter[Mirrored]] = collections.Counter()
        self.bugs: Final[list[Exception]] = []
        self.n_rooms = 0
        self.counts: Final = Counts()
        timeouts = dataclasses.replace(TIMEOUTS, first_byte_s=FIRST_BYTE_S)
        shadow = member_of(
            upstream_of("shadow", timeouts=timeouts, n_keys=2, models=models),
            Stand(concurrency=FixedLimit(limit) if limit else None, pool=cast(UpstreamPool, server)),
            row=1,
            counts=self.counts,
        )
        self.shadow: Final[Member] = shadow if adapter is None else dataclasses.replace(shadow, adapter=adapter)
        main = member_of(upstream_of("main"), Stand(pool=cast(UpstreamPool, Server())))
        self.gate: Final = MirrorGate(percent, most, most_bytes)
        entry = RouteEntry("r", ANYTHING, (Target("main"),), mirror=Mirror(Target("shadow", model), percent))
        self.routing: Final[Routing] = routing_of((main, self.shadow), entry, gate=self.gate)
        chance = random.Random(7)
        self.mirrors: Final = Mirrors(
            self.loop,
            TranslationThread(),
            TurnBudget(self.loop),
            on_end=lambda end: self.ends.update([end]),
            on_room=self._on_room,
            on_bug=self.bugs.append,
            random=chance.random,
        )

    def _on_room(self) -> None:
        self.n_rooms += 1

    def ask(self, body: bytes | None = BODY, *, method: bytes = b"POST") -> None:
        """What an exchange does: its own plan is closed, however long its copy takes."""
        head = request_head(method)
        mirror = self.routing.resolve(head, PEEK.model, ANYONE).parts.mirror
        assert mirror is not None
        self.mirrors.copy(mirror, self.routing, head, PEEK, body)

    def assert_nothing_left(self) -> None:
        assert (self.gate.n_inflight, self.gate.n_bytes, self.routing.n_open) == (0, 0, 0)
        assert len(self.mirrors) == 0 and "0 under way, 0 bytes" in repr(self.mirrors)
        assert self.counts.inflight(1) == 0 and self.shadow.concurrency.n_begun == self.mirrors.n_begun == 0


def run(talk: Callable[[], Awaitable[Setup]]) -> None:
    """Run a test; afterwards nothing of its copies is left."""

    async def main() -> None:
        setup = await talk()
        setup.assert_nothing_left()
        assert not setup.bugs
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    virtual_time.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("percent", [0.0, 10.0, 100.0])
def test_mirror_gets_its_part_of_the_requests_as_they_are(percent: float) -> None:
    """Path, method and body as they came; with a key of its own, and never the client's."""

    async def talk() -> Setup:
        server = Server()
        setup = Setup(server, percent=percent)
        for _ in range(1000):
            setup.ask()
            await asyncio.sleep(0.02)
        assert len(server.asked) == pytest.approx(10 * percent, abs=40 if percent % 100 else 0)
        assert setup.ends == collections.Counter({Mirrored.ANSWERED: len(server.asked)} if percent else {})
        for request in server.requests:
            assert (request.method, request.target, request.body) == (b"POST", b"/v1/chat/completions", BODY)
            keys = [value for name, value in request.headers if name == b"authorization"]
            assert len(keys) == 1 and keys[0].startswith(b"Bearer sk-of-the-gateway-")
        return setup

    run(talk)


def test_mirror_is_asked_for_its_own_model() -> None:
    """Only that is changed, and only in the copy."""

    async def talk() -> Setup:
        server = Server()
        setup = Setup(server, model="next")
        body = bytearray(BODY)
        head = request_head()
        mirror = setup.routing.resolve(head, PEEK.model, ANYONE).parts.mirror
        assert mirror is not None
        setup.mirrors.copy(mirror, setup.routing, head, PEEK, body)
        setup.ask(None, method=b"GET")
        await asyncio.sleep(1)
        assert [request.body for request in server.requests] == [BODY.replace(b'"m"', b'"next"', 1), None]
        assert body == BODY
        return setup

    run(talk)


OPENAIS: Final = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}'
GEMINIS: Final = b'{"candidates":[],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":9}}'


@pytest.mark.parametrize(
    ("endpoint", "path", "answer"),
    [
        (Endpoint.CHAT, b"/v1/chat/completions", OPENAIS),
        (Endpoint.GENERATE, b"/v1beta/models/m:generateContent", GEMINIS),
    ],
)
def test_copy_is_recorded_as_its_answer_tells(tmp_path: Path, endpoint: Endpoint, path: bytes, answer: bytes) -> None:
    """Whatever the API, and though the client takes compressed answers, as SDKs do: the copy's is read."""
    records = CallRecords(tmp_path)
    log = CallLog(records.writer, lambda *_: None)

    async def talk() -> Setup:
        server = Server(body=answer)
        server.headers = [(b"content-type", b"application/json")]
        setup = Setup(server)
        calls = log.request(b"vx-1-1", ANYONE, endpoint, "r", PEEK, Estimate(7, 100, 0))
        head = request_head(path=path, more=[(b"accept-encoding", b"gzip, deflate")])
        mirror = setup.routing.resolve(head, PEEK.model, ANYONE).parts.mirror
        assert mirror is not None
        setup.mirrors.copy(mirror, setup.routing, head, PEEK, BODY, calls=calls)
        await asyncio.sleep(1)
        (asked,) = server.requests
        assert [value for name, value in asked.headers if name == b"accept-encoding"] == [b"identity"]
        return setup

    run(talk)
    (call,) = records.calls
    assert (call.tokens.input, call.tokens.output, call.flags) == (5, 9, Flag.MIRROR)


ERROR: Final = b'{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"no"}}'


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (GEMINIS.replace(b"[]", b'[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}]'), (5, 9)),
        (ERROR, None),
        (b"{", (7, 100)),
    ],
)
def test_copy_that_is_translated_is_recorded_whatever_comes(
    tmp_path: Path, answer: bytes, tokens: tuple[int, int] | None
) -> None:
    """As it tells, or as estimated where it tells nothing; an error did no work, though its status is 200."""
    records = CallRecords(tmp_path)
    log = CallLog(records.writer, lambda *_: None)
    row = PROVIDERS["gemini"]
    adapter = ProviderAdapter(dialect_table(), row, {}, lambda model: facts_of(row, model))

    def prepare(attempt: Attempt, on_tokens: Callable[[TokenUsage], None] | None) -> Prepared | LocalAnswer:
        call = adapter.target_call(ApiKind.CHAT, "gemini-m", stream=False, query=b"")
        assert call is not None
        request = client_request_of(ApiKind.CHAT, request_head(), "gemini-m")
        return adapter.prepare(call, request._replace(forwarder=attempt.forwarder, on_tokens=on_tokens))

    async def talk() -> Setup:
        server = Server(body=answer)
        server.headers = [(b"content-type", b"application/json")]
        setup = Setup(server)
        calls = log.request(b"vx-1-1", ANYONE, Endpoint.CHAT, "r", PEEK, Estimate(7, 100, 0))
        mirror = setup.routing.resolve(request_head(), PEEK.model, ANYONE).parts.mirror
        assert mirror is not None
        setup.mirrors.copy(mirror, setup.routing, request_head(), PEEK, BODY, prepare=prepare, calls=calls)
        await asyncio.sleep(1)
        return setup

    run(talk)
    assert [call.tokens[:2] for call in records.calls] == ([] if tokens is None else [tokens])
    assert all(Flag.MIRROR in call.flags for call in records.calls)


@pytest.mark.parametrize("status", [200, 404, 429, 503, 500, 0])
def test_what_came_of_a_copy_is_counted(status: int) -> None:
    """Whatever a client would have had to hear of; it is not sent again."""

    async def talk() -> Setup:
        server = Server(status)
        setup = Setup(server)
        setup.ask()
        await asyncio.sleep(1)
        end = Mirrored.ANSWERED if 0 < status < 500 else Mirrored.FAILED
        assert setup.ends == {end: 1} and len(server.asked) == 1 and setup.n_rooms == 1
        assert setup.counts.attempts == [(1, OUTCOMES[status])]
        return setup

    run(talk)


def test_copies_under_way_are_bounded_in_number_and_in_bytes() -> None:
    """At a mirror that stalls: what is too much is dropped and counted; all end after the time for a first byte."""

    async def talk() -> Setup:
        for bounds in ({"most": 8}, {"most_bytes": 8 * len(BODY)}):
            server = Server(takes_s=1e6)
            setup = Setup(server, **bounds)
            for n in range(100):
                setup.ask()
                await asyncio.sleep(0.01)
                assert len(setup.mirrors) == min(n + 1, 8)
            assert server.most_open == 8 and setup.ends == {Mirrored.DROPPED: 92}
            await asyncio.sleep(FIRST_BYTE_S)
            assert setup.ends == {Mirrored.DROPPED: 92, Mirrored.FAILED: 8} and server.n_open == 0
            setup.assert_nothing_left()
        return setup

    run(talk)


@pytest.mark.slow
def test_copies_of_all_routes_together_are_bounded() -> None:
    """However many routes have a mirror, and whatever each of them may have under way."""

    async def talk() -> Setup:
        server = Server(takes_s=1e6)
        setup = Setup(server, most=1 << 30)
        for _ in range(1000):
            setup.ask()
        await asyncio.sleep(1)
        assert server.n_open == len(setup.mirrors) == 256
        assert setup.ends == {Mirrored.DROPPED: 744}
        setup.mirrors.close()
        await asyncio.sleep(1)
        return setup

    async def large() -> Setup:
        server = Server(takes_s=1e6)
        setup = Setup(server, most=1 << 30)
        body = bytes(10 << 20)
        for _ in range(10):
            setup.ask(body)
        await asyncio.sleep(1)
        assert server.n_open == 6
        setup.mirrors.close()
        await asyncio.sleep(1)
        return setup

    run(talk)
    run(large)


def test_mirror_that_fails_gets_no_copies_until_it_is_well() -> None:
    """They would only fill memory; now and then one of them finds out whether it is back."""

    async def talk() -> Setup:
        server = Server(0)
        setup = Setup(server)
        for _ in range(100):
            setup.ask()
            await asyncio.sleep(0.1)
        assert setup.shadow.health.state(setup.loop.time()) is State.OUT
        assert 5 <= len(server.asked) <= 12 and setup.ends[Mirrored.DROPPED] >= 88

        server.status = 200
        for _ in range(300):
            setup.ask()
            await asyncio.sleep(0.1)
        assert setup.shadow.health.state(setup.loop.time()) is State.IN
        setup.ends.clear()
        for _ in range(100):
            setup.ask()
            await asyncio.sleep(0.1)
        assert setup.ends == {Mirrored.ANSWERED: 100}
        return setup

    run(talk)


def test_keys_of_a_mirror_rest_as_long_as_they_are_told() -> None:
    """A 429 to a copy is as good as one to a request."""

    async def talk() -> Setup:
        server = Server(429)
        server.headers = [(b"retry-after", b"20")]
        setup = Setup(server)
        for _ in range(150):
            setup.ask()
            await asyncio.sleep(0.1)
        assert len(server.asked) == 2  # one for each key
        server.status = 200
        for _ in range(100):
            setup.ask()
            await asyncio.sleep(0.1)
        assert len(server.asked) >= 40
        return setup

    run(talk)


def test_copy_keeps_to_the_concurrency_of_its_upstream() -> None:
    """Where there is no room it is dropped: it does not wait with its body."""

    async def talk() -> Setup:
        server = Server(takes_s=1.0)
        setup = Setup(server, limit=3)
        for _ in range(10):
            setup.ask()
        await asyncio.sleep(0.5)
        assert server.n_open == 3 and setup.counts.inflight(1) == 3
        assert setup.shadow.concurrency.n_begun == setup.mirrors.n_begun == 3
        await asyncio.sleep(1)
        assert setup.ends == {Mirrored.DROPPED: 7, Mirrored.ANSWERED: 3}
        return setup

    run(talk)


def test_copy_that_was_made_beside_the_loop_keeps_to_the_concurrency_too() -> None:
    """All found a place before they were made; those that find it taken afterwards are dropped."""
    row = PROVIDERS["gemini"]
    adapter = ProviderAdapter(dialect_table(), row, {}, lambda model: facts_of(row, model))
    names: list[str] = []

    def prepare(attempt: Attempt, on_tokens: Callable[[TokenUsage], None] | None) -> Prepared | LocalAnswer:
        call = adapter.target_call(ApiKind.CHAT, "gemini-m", stream=False, query=b"")
        assert call is not None
        names.append(threading.current_thread().name)
        request = client_request_of(ApiKind.CHAT, request_head(), "gemini-m")
        return adapter.prepare(call, request._replace(forwarder=attempt.forwarder, on_tokens=on_tokens))

    async def main() -> None:
        thread = TranslationThread()
        server = Server(takes_s=600.0)
        setup = Setup(server, limit=3, adapter=adapter)
        mirror = setup.routing.resolve(request_head(), PEEK.model, ANYONE).parts.mirror
        assert mirror is not None

        async def prepare_in_thread(
            attempt: Attempt, on_tokens: Callable[[TokenUsage], None] | None
        ) -> Prepared | LocalAnswer:
            return await thread.run(lambda: prepare(attempt, on_tokens))

        for _ in range(10):
            setup.mirrors.copy(
                mirror, setup.routing, request_head(), PEEK, BODY, prepare=prepare, prepare_in_thread=prepare_in_thread
            )
        while len(names) < 10 or setup.ends[Mirrored.DROPPED] < 7:
            await asyncio.sleep(0)
        assert server.n_open == 3 and setup.mirrors.n_begun == 3
        assert all(name.startswith("translation") for name in names)
        setup.mirrors.close()
        while len(setup.mirrors):
            await asyncio.sleep(0)
        setup.assert_nothing_left()

    asyncio.run(main())


def test_websocket_is_not_mirrored() -> None:
    """What follows its request is a conversation, of which a copy would know one half."""

    async def talk() -> Setup:
        server = Server()
        setup = Setup(server)
        head = request_head(b"GET", offer=WebSocketOffer(b"k", (), b""))
        mirror = setup.routing.resolve(head, PEEK.model, ANYONE).parts.mirror
        assert mirror is not None
        setup.mirrors.copy(mirror, setup.routing, head, PEEK, None)
        assert not len(setup.mirrors) and not setup.ends
        return setup

    run(talk)


def test_mirror_without_the_model_is_not_asked_for_it() -> None:
    """An upstream with `models` is asked for those only."""

    async def talk() -> Setup:
        server = Server()
        for models, model, n in ((("x-*",), None, 0), (("m",), None, 1), (("x-*",), "x-1", 2)):
            setup = Setup(server, models=models, model=model)
            setup.ask()
            await asyncio.sleep(1)
            assert len(server.asked) == n
        return setup

    run(talk)


@pytest.mark.parametrize(
    ("media", "pieces", "first_s"),
    [
        (b"text/event-stream", (b": ok\n\n", b"event: message_start\ndata: {}\n\n", b"event: x\ndata: {}\n\n"), 3.0),
        (b"Text/Event-Stream", (b": ok\n\n", b"event: x\ndata: {}\n\n"), 2.0),
        (b"text/event-stream", (b": ok\n\n", b"event: response.created\ndata: {}\n\n"), None),
        (b"application/json", (b" ", b"{}"), 1.0),
    ],
)
def test_first_event_of_a_copy_is_one_that_tells_of_the_models_work(
    media: bytes, pieces: tuple[bytes, ...], first_s: float | None
) -> None:
    """As with a client's: else its upstream looks idle, however many wait inside, and `auto` sends more and more.

    A media type has no case, and `identity` compresses nothing: it is an event stream all the same.
    """

    class Slow(Server):
        def open(self, request, sink):  # type: ignore[no-untyped-def,override]
            stream = super().open(request, sink)
            stream._answer.cancel()
            loop = asyncio.get_running_loop()
            head = ReplyHead.of(200, [(b"content-type", media), (b"content-encoding", b"identity")], None)
            for n, piece in enumerate(pieces, 1):
                loop.call_later(n, sink.on_reply, head if n == 1 else None, piece, False)
            loop.call_later(len(pieces) + 1, self._whole, stream, sink)
            return stream

        def _whole(self, stream, sink) -> None:  # type: ignore[no-untyped-def]
            sink.on_reply(None, b"", True)
            self.n_open -= 1

    async def talk() -> Setup:
        setup = Setup(Slow(), limit=1)
        setup.ask()
        await asyncio.sleep(10)
        assert setup.ends == {Mirrored.ANSWERED: 1}
        assert setup.counts.firsts_s == ([] if first_s is None else [first_s])
        return setup

    run(talk)


def test_answer_that_is_long_is_read_for_a_bounded_time() -> None:
    """Its time runs from the beginning, whatever comes."""

    class Endless(Server):
        def open(self, request, sink):  # type: ignore[no-untyped-def,override]
            loop = asyncio.get_running_loop()
            stream = super().open(request, sink)
            stream._answer.cancel()

            def go_on(head) -> None:  # type: ignore[no-untyped-def]
                if stream._sink is not None:
                    sink.on_reply(head, b"data: x\n\n", False)
                    loop.call_later(1.0, go_on, None)

            loop.call_later(1.0, go_on, ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None))
            return stream

    async def talk() -> Setup:
        server = Endless()
        setup = Setup(server)
        setup.ask()
        await asyncio.sleep(299)
        assert server.n_open == 1
        await asyncio.sleep(2)
        assert server.n_open == 0 and setup.ends == {Mirrored.FAILED: 1}
        return setup

    run(talk)


@pytest.mark.parametrize("n_turns", range(6))
def test_end_gives_up_all_that_is_under_way(n_turns: int) -> None:
    """Also copies that have not begun yet; and there are no new ones."""

    async def talk() -> Setup:
        server = Server(takes_s=10.0)
        setup = Setup(server)
        for _ in range(5):
            setup.ask()
        for _ in range(n_turns):
            await asyncio.sleep(0)
        setup.mirrors.close()
        await asyncio.sleep(0.001)
        assert server.n_open == 0 and setup.ends == {Mirrored.FAILED: 5}
        assert setup.counts.attempts == [(1, AttemptOutcome.CANCELLED)] * len(setup.counts.attempts)
        n_asked = len(server.asked)
        setup.ask()
        await asyncio.sleep(1)
        assert len(server.asked) == n_asked
        return setup

    run(talk)


def test_bug_in_a_copy_is_told_and_stays_there() -> None:
    """The client's request knows nothing of it."""

    class Broken(Server):
        def lease_nowait(self) -> UpstreamConnection | None:
            raise RuntimeError("a bug")

    async def talk() -> Setup:
        setup = Setup(Broken())
        setup.ask()
        await asyncio.sleep(1)
        assert setup.ends == {Mirrored.FAILED: 1}
        assert [str(bug) for bug in setup.bugs] == ["a bug"]
        setup.bugs.clear()
        return setup

    run(talk)
