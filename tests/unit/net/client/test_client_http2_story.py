"""A property of clients' HTTP/2 connections: whatever happens, nothing is lost, nothing held, and nobody told twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import KIB, Loop, Transport
from tests.unit.protocol.http2.http2_peers import Name, make
from velox.errors import VeloxError
from velox.heads import Header, RequestHead
from velox.net.application import Client, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.ingress import Ingress
from velox.net.client.reply_buffer_budget import MAX_AHEAD
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import CANCEL, INTERNAL_ERROR, EngineSettings
from velox.protocol.http2.engines import engine_factory
from velox.types import ANYONE, Caller

ENGINES: Final[tuple[Name, ...]] = ("ngh2", "h2")
BUDGET: Final = 100 * KIB
WINDOW: Final = 10 * KIB  # of a reply
VERBS: Final = (
    "ask", "ask", "ask", "upload", "upload", "upload", "waste", "more", "more", "more", "finish", "finish", "leave",
    "begin", "begin", "begin", "body", "body", "body", "end", "end", "end", "cut", "refuse", "hold", "take",
    "turn", "turn", "carry", "carry", "carry", "stall", "unstall", "later", "drain", "lose",
)  # fmt: skip
FATAL: Final = ("drain", "lose", "later")
BASE: Final[list[Header]] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"gateway.test"),
    (b":path", b"/v1/chat/completions"),
]


class Told:
    """An exchange, as the gateway would have it. Each verb of its client is used as the gateway uses it."""

    def __init__(self, client: Client, body: bytes | bytearray | None) -> None:
        self.client: Final = client
        self.n_body: Final = len(body or b"")
        self.is_begun = False
        self.is_over = False
        self.is_paused = False

    def client_gone(self, *, stalled: bool = False) -> None:
        assert not self.is_over, "told after the end"
        self.is_over = True
        self.client.release_body()

    def client_paused(self) -> None:
        assert not self.is_over and not self.is_paused
        self.is_paused = True

    def client_resumed(self) -> None:
        assert not self.is_over and self.is_paused
        self.is_paused = False

    def act(self, verb: str, data: bytes) -> None:
        client = self.client
        if verb == "begin" and not self.is_begun:
            self.is_begun = True
            client.begin_reply(200, [], None, data, False, has_body=True)
        elif verb == "body" and self.is_begun:
            client.body(data, False)
        elif verb == "end" and self.is_begun:
            client.body(data, True)
            self.is_over = True
            client.finish()
        elif verb == "cut" and self.is_begun:
            client.cut(data)
            self.is_over = True
        elif verb == "refuse" and not self.is_begun:
            client.answer(503, [], data, with_body=True, close=False)
            self.is_over = True


class App:
    """The gateway's place."""

    def __init__(self) -> None:
        self.told: Final[list[Told]] = []
        self.n_refused = 0
        self.takes_s = 0.0  # each request, of the worker's time

    def check_head(self, head: RequestHead) -> Caller:
        until_s = time.perf_counter() + self.takes_s
        while time.perf_counter() < until_s:
            pass
        return ANYONE

    def submit(self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller) -> Told:
        self.told.append(Told(client, body))
        return self.told[-1]

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.n_refused += 1
        client.answer(error.status, [], b"no", with_body=True, close=error.close)

    def crashed(self, exc: Exception) -> None:
        raise exc

    def live(self) -> Sequence[Told]:
        return [told for told in self.told if not told.is_over]


class Story:
    """One connection, and what happens to it: verbs drawn one after the other."""

    def __init__(self, engine: Name, seed: int, *, min_rate: int = 0, beside: Story | None = None) -> None:
        """beside: another connection of the same worker."""
        self.dice: Final = random.Random(seed)
        self.loop: Final = Loop() if beside is None else beside.loop
        self.app: Final = App()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        timeouts = ClientTimeouts(10.0, 15.0, 75.0, 30.0, min_rate_bytes=min_rate)
        self.budget: Final = BodyBudget(BUDGET, 5.0, self.loop.time) if beside is None else beside.budget
        limits = Http1Limits(body_bytes=50 * KIB)
        make_engine = engine_factory(engine)
        self.ingress: Final = Ingress(
            self.app, limits, timeouts, self.budget, loop, max_connections=9, http2=make_engine
        )
        self.transport: Final = _Transport()
        self.connection: Final = ClientHttp2Connection(self.ingress, make_engine)
        self.transport.protocol = cast(asyncio.BufferedProtocol, self.connection)
        self.client, self.peer = make("ngh2", EngineSettings(stream_window=WINDOW), client=True)
        self.uploads: Final[dict[int, int]] = {}  # what is still to be sent, by stream; -1: as much as you like
        self.asked: Final[list[int]] = []
        self.left: Final[set[int]] = set()
        self.is_lost = False
        self.done: Final[list[str]] = []
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    def step(self) -> None:
        verb = self.dice.choice(VERBS)
        if self.is_lost or (verb in FATAL and self.dice.random() < 0.95):
            return
        self.done.append(verb)
        match verb:
            case "ask" | "upload" | "waste":
                self.ask(verb)
            case "more" | "finish":
                self.send(verb)
            case "leave":
                open_ids = [i for i in self.asked if i not in self.peer.ended and i not in self.left]
                if open_ids:
                    stream_id = self.dice.choice(open_ids)
                    self.left.add(stream_id)
                    self.uploads.pop(stream_id, None)
                    self.client.reset(stream_id)
            case "hold" | "take":
                self.peer.acknowledges = verb == "take"
                if verb == "take":
                    for stream_id in self.asked:
                        self.client.acknowledge(stream_id, WINDOW)
            case "turn":
                self.loop.turn()
            case "carry":
                self.carry()
            case "stall":
                self.transport.room = self.dice.choice((0, 10, 10_000))
            case "unstall":
                self.transport.make_room(1 << 40)
            case "later":
                self.sweep(self.dice.choice((1.0, 20.0, 40.0)))
            case "drain":
                self.ingress.drain()
            case "lose":
                self.lose()
            case _:
                live = self.app.live()
                if live:
                    self.dice.choice(live).act(verb, bytes(self.dice.choice((0, 10, 5_000, 70_000))))
        self.check()

    def ask(self, verb: str) -> None:
        """Begin a request: whole, with a body that is announced, or with one that is not."""
        n_bytes = self.dice.choice((1, 3_000, 40_000, 60_000))
        length = [(b"content-length", b"%d" % n_bytes)] if verb == "upload" else []
        try:
            stream_id = self.client.send_request([*BASE, *length], verb == "ask")
        except Exception as error:
            assert "EngineError" in type(error).__name__
            return
        self.asked.append(stream_id)
        if verb != "ask":
            self.uploads[stream_id] = n_bytes if length else -1

    def send(self, verb: str) -> None:
        if not self.uploads:
            return
        stream_id = self.dice.choice(list(self.uploads))
        left = self.uploads[stream_id]
        if left < 0:
            self.client.send_data(stream_id, bytes(self.dice.choice((0, 1, 20_000))), verb == "finish")
            is_end = verb == "finish"
        else:
            n_bytes = left if verb == "finish" else min(left, self.dice.choice((1, 2_000)))
            is_end = n_bytes == left
            self.client.send_data(stream_id, bytes(n_bytes), is_end)
            self.uploads[stream_id] = left - n_bytes
        if is_end:
            del self.uploads[stream_id]

    def carry(self) -> None:
        """Take bytes over the wire both ways, in pieces."""
        came = self.transport.take()
        if came:
            self.client.receive(came)
        sent = self.client.take_output(self.dice.choice((200, 20_000))) if self.client.has_output else b""
        cut = self.dice.randrange(len(sent) + 1)
        for piece in (sent[:cut], sent[cut:]):
            self.give(piece)

    def give(self, data: bytes) -> None:
        """Let the transport have read this, and what came before, as soon as it reads."""
        self.transport.unread += data
        if self.transport.unread and self.transport.is_reading() and not self.transport.is_closed:
            unread, self.transport.unread = self.transport.unread, b""
            self.connection.data_received(unread)

    def sweep(self, after_s: float) -> None:
        """Let time pass, and the ingress look at its connections, as its timer does."""
        self.loop.now_s += after_s
        if self.connection.deadline_s and self.loop.now_s >= self.connection.deadline_s:
            self.connection.on_deadline()
        self.budget.expire()

    def lose(self) -> None:
        self.is_lost = True
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    def check(self) -> None:
        """What holds always."""
        if self.transport.is_closed and not self.is_lost:
            self.lose()  # as the loop would
        live = self.app.live()
        held = sum(told.n_body for told in live)
        assert self.budget.taken_bytes >= held, "a body that runs is paid for"
        assert self.budget.taken_bytes <= BUDGET
        ahead = [stream.id for stream in self.connection._streams.values() if stream.may_run_ahead]
        assert self.connection.reply_budget._n_ahead == len(ahead) <= MAX_AHEAD, self.done
        if self.is_lost:
            assert not live and not self.ingress.connections and self.ingress.n_http2 == 0, self.done
            assert self.budget.taken_bytes == 0 and not self.ingress.paused, self.done

    def settle(self) -> None:
        """Let everybody end: then each reply is whole or reset, and nothing is held for any of them."""
        self.transport.make_room(1 << 40)
        self.peer.acknowledges = True
        for _ in range(200):
            if self.is_lost:
                return
            for stream_id in self.asked:
                self.client.acknowledge(stream_id, WINDOW)
            for told in self.app.live():
                told.act("begin", b"")
                told.act("end", b"last")
            while self.uploads:
                self.send("finish")
            self.loop.turn()
            self.carry()
            self.check()
        reset = {stream_id for stream_id, _ in self.peer.resets}
        # What was announced and never came, because its client has no window for it, is refused by time.
        open_ids = set(self.asked) - set(self.peer.ended) - reset - self.left
        assert not open_ids, (self.done, open_ids, self.connection)
        assert not self.connection._streams and not self.connection._waiting, (self.done, self.connection)
        assert self.connection.reply_budget.n_bytes == 0, self.done
        assert self.budget.taken_bytes == 0


class _Transport(Transport):
    """As upstream_wire's; what comes while it is not read stays outside."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = b""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True  # what is in `sent` has left


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40))
def test_any_interleaving_ends_well(engine: Name, seed: int) -> None:
    """Every exchange ends once, bodies are paid for while they run, and at the end nothing is left."""
    story = Story(engine, seed)
    for _ in range(story.dice.randint(5, 200)):
        story.step()
    story.settle()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.slow
def test_stories_reach_what_they_are_for(engine: Name) -> None:
    """Every verb, replies that end in every way, refusals, and streams that are held up."""
    done: set[str] = set()
    codes: set[int] = set()
    n_refused = n_paused = n_ended = n_open = 0
    for seed in range(100):
        story = Story(engine, seed)
        for _ in range(150):
            story.step()
            n_paused += any(told.is_paused for told in story.app.told)
        story.settle()
        done |= set(story.done)
        codes |= {code for _, code in story.peer.resets}
        n_refused += story.app.n_refused
        n_ended += len(story.peer.ended)
        n_open += not story.is_lost
    assert done == set(VERBS)
    assert codes >= {INTERNAL_ERROR, CANCEL}
    assert n_refused > 20 and n_paused > 50 and n_ended > 200 and n_open > 15


@pytest.mark.parametrize("engine", ENGINES)
def test_stream_is_not_late_while_its_whole_connection_is_slow(engine: Name) -> None:
    """What opens its window may lie among the bytes that are not read meanwhile."""
    story = Story(engine, 0)
    for _ in range(12):
        story.ask("ask")
    quiet(story)
    story.peer.acknowledges = False
    held, *others = story.app.told
    held.act("begin", bytes(WINDOW + 1))
    quiet(story)
    story.loop.now_s += 20.0
    story.transport.room = 0
    for told in others:
        told.act("begin", bytes(WINDOW))
    for _ in range(5):
        story.loop.turn()
    assert not story.transport.is_reading(), "more than the transport's 64 KiB wait"
    story.transport.make_room(1000)
    story.sweep(20.0)
    assert not held.is_over, "its time was over, its connection's was not"
    story.settle()
    assert set(story.peer.ended) == set(story.asked) and not story.peer.resets


@pytest.mark.parametrize("engine", ENGINES)
def test_stream_that_trickles_is_late(engine: Name) -> None:
    """CVE-2026-49975: a byte now and then must not keep a reply in memory for ever, where a rate is asked for."""
    story = Story(engine, 0, min_rate=200)
    story.ask("ask")
    quiet(story)
    story.peer.acknowledges = False
    (told,) = story.app.told
    told.act("begin", bytes(3 * WINDOW))
    quiet(story)
    for taken, is_late in ((6_000, False), (5_999, True)):
        story.client.acknowledge(story.asked[0], taken)
        quiet(story)
        story.sweep(31.0)
        assert told.is_over == is_late


@pytest.mark.parametrize("engine", ENGINES)
def test_reply_that_is_held_above_the_buffer_takes_room_of_the_worker(engine: Name) -> None:
    """X14: one event of a translation has up to 32 MiB, and its client may take nothing: all clients of a worker share
    the room for such. Without room the stream is given up, and the others of its connection are not."""
    first = Story(engine, 0)
    second = Story(engine, 0, beside=first)
    for story in (first, second):
        story.ask("ask")
        story.ask("ask")
        quiet(story)
        story.peer.acknowledges = False
    large = 5 * 1024 * KIB
    first.app.told[0].act("begin", bytes(large))
    quiet(first)
    assert first.budget.taken_bytes >= large - 2048 * KIB - WINDOW, "one alone may be more than there is room"
    held, other = second.app.told
    other.act("begin", b"a word")
    held.act("begin", bytes(large))
    quiet(second)
    assert not held.is_over
    second.sweep(0.3)
    assert held.is_over and not other.is_over, "the one that holds most"
    assert second.connection.reply_budget.n_bytes < KIB
    first.sweep(0.3)
    assert not first.app.told[0].is_over
    first.lose()
    assert first.budget.taken_bytes == 0
    second.settle()


@pytest.mark.parametrize("engine", ENGINES)
def test_reply_without_room_that_is_taken_at_once_goes_on(engine: Name) -> None:
    """X14: as over HTTP/1.1. What is read gives its room back."""
    first = Story(engine, 0)
    second = Story(engine, 0, beside=first)
    for story in (first, second):
        story.ask("ask")
        quiet(story)
        story.peer.acknowledges = False
    for story in (first, second):
        story.app.told[0].act("begin", bytes(3 * 1024 * KIB))
        story.loop.turn()
    assert first.budget.taken_bytes > 0
    for story in (second, first):
        story.peer.acknowledges = True
        for _ in range(20):
            story.client.acknowledge(story.asked[0], WINDOW)
            quiet(story)
    second.sweep(0.3)
    assert not second.app.told[0].is_over and first.budget.taken_bytes == 0
    for story in (first, second):
        story.settle()
        assert set(story.peer.ended) == set(story.asked)


@pytest.mark.parametrize("engine", ENGINES)
def test_read_full_of_requests_takes_several_turns(engine: Name) -> None:
    """X9: a hundred requests in one read took 8 ms of a turn. What does not fit into a millisecond waits in line."""
    story = Story(engine, 0)
    quiet(story)
    story.app.takes_s = 0.0005
    for _ in range(90):
        story.client.send_request([*BASE, (b"x-padding", bytes(range(97, 120)) * 3)], True)
    sent = story.client.take_output()
    assert len(sent) > 2048
    story.connection.data_received(sent)
    assert len(story.app.told) < 60 and not story.transport.is_reading()
    n_before, n_turns = len(story.app.told), 0
    while not story.transport.is_reading():
        story.loop.turn()
        n_turns += 1
        assert n_turns < 200
    assert n_before < len(story.app.told) == 90 and n_turns > 1
    story.lose()
    story.loop.turn()


def quiet(story: Story) -> None:
    """Carry bytes both ways until both sides are quiet."""
    for _ in range(20):
        story.loop.turn()
        came = story.transport.take()
        if came:
            story.client.receive(came)
        while story.client.has_output and (sent := story.client.take_output()):
            story.give(sent)
