"""Properties of upstream connections: whatever happens in whatever order, the state is legal; however bytes are cut,
what is read is the same."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sockets.gateway.core_gateway import FakeClient, end_of, request_head
from tests.storm.frames import Server, Stage, frame
from tests.storm.http2_duel import Ear
from tests.unit import virtual_time
from tests.unit.net.upstream_wire import KIB, OK, Sink, Wire, asked
from tests.unit.protocol.http2.http2_peers import REQUEST, Name
from velox.gateway.reply.headers import NO_ATTEMPTS, ReplyFields
from velox.gateway.reply.reply import Reply
from velox.heads import ReplyHead
from velox.net.upstream.http2 import Http2Stream
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import ConnectionEnd
from velox.protocol.http1.response import ResponseDecoder
from velox.protocol.http1.response_head import ReplyHeads
from velox.protocol.http2.engine import EngineSettings
from velox.protocol.sse import EventWatch

ENGINES: tuple[Name, ...] = ("ngh2", "h2")
STREAM_WINDOW = 24 * KIB
VERBS = (
    "open", "open", "open", "open with a body", "answer", "answer", "answer", "body", "body", "body", "end", "end",
    "reset", "pause", "resume", "cancel", "turn", "carry", "carry", "stall", "unstall", "goaway", "limit", "retire",
    "lose", "abort",
)  # fmt: skip
FATAL = ("goaway", "retire", "lose", "abort")


class Story:
    """What happens on one connection: verbs drawn one after the other, and what must hold after each."""

    def __init__(self, engine: Name, seed: int) -> None:
        self.dice = random.Random(seed)
        self.wire = Wire(engine, EngineSettings(max_streams_local=20, stream_window=65_535), STREAM_WINDOW)
        self.told: dict[int, Sink] = {}
        self.streams: dict[int, Http2Stream] = {}
        self.answered: set[int] = set()
        self.is_gone = False
        self.done: list[str] = []

    def live(self) -> list[int]:
        """Streams whose sinks wait for more."""
        return [i for i, s in self.told.items() if not s.ended and s.failure is None and not s.is_deaf]

    def step(self) -> None:
        """Draw a verb and do it."""
        verb = self.dice.choice(VERBS)
        if verb in FATAL and self.dice.random() < 0.97:
            return
        self.done.append(verb)
        wire, live = self.wire, self.live()
        stream_id = self.dice.choice(live) if live else 0
        match verb:
            case "open" | "open with a body":
                self.open(self.dice.choice((1, 3_000, 200_000)) if verb != "open" else 0)
            case "turn":
                wire.loop.turn()
            case "carry":
                self.carry()
            case "stall":
                wire.transport.room = self.dice.choice((0, 10, 10_000))
            case "unstall":
                wire.transport.make_room(1 << 40)
            case "goaway":
                wire.server.goaway()
            case "limit":
                wire.give(frame(4, 0, 0, bytes((0, 3, 0, 0, 0, self.dice.choice((0, 1, 5, 30))))))
            case "retire":
                wire.connection.retire(ConnectionEnd.AGE)
            case "abort":
                wire.connection.abort(ConnectionEnd.AGE)
            case "lose":
                if not wire.is_closed:
                    wire.lose()
            case _:
                if stream_id:
                    self.act(verb, stream_id)
        self.check()

    def open(self, n_bytes: int) -> None:
        """Begin an exchange, if there is room."""
        connection = self.wire.connection
        if not connection.has_room:
            assert connection.n_rooms == 0
            return
        assert connection.n_rooms > 0
        sink = Sink()
        try:
            stream = connection.open(asked(bytes(n_bytes) or None, ahead=self.dice.random() < 0.5), sink)
        except UpstreamFailure as failure:
            assert failure.unprocessed is not None, "a stream that was never opened did no work"
            return
        self.told[stream.id], self.streams[stream.id] = sink, stream

    def act(self, verb: str, stream_id: int) -> None:
        """Do something with one stream, at either end."""
        server, stream = self.wire.server, self.streams[stream_id]
        is_known = stream_id in self.wire.peer.heads
        if verb == "cancel":
            self.told[stream_id].is_deaf = True
            stream.cancel()
        elif verb in ("pause", "resume"):
            getattr(stream, verb)()
        elif not is_known:
            pass  # the server has not seen it yet
        elif verb == "reset":
            server.reset(stream_id, self.dice.choice((0, 2, 7, 8)))
        elif verb == "answer" and stream_id not in self.answered:
            self.answered.add(stream_id)
            is_end = self.dice.random() < 0.2
            server.send_response(stream_id, OK, is_end)
        elif verb in ("body", "end") and stream_id in self.answered:
            server.send_data(stream_id, bytes(self.dice.choice((0, 10, 40_000))), verb == "end")

    def carry(self) -> None:
        """Take bytes over the wire one way or the other, in pieces."""
        wire = self.wire
        sent = wire.transport.take()
        if sent:
            wire.server.receive(sent)
        came = wire.server.take_output(self.dice.choice((200, 20_000))) if wire.server.has_output else b""
        cut = self.dice.randrange(len(came) + 1)
        for piece in (came[:cut], came[cut:]):
            if piece:
                wire.give(piece)

    def check(self) -> None:
        """What holds always."""
        connection, live = self.wire.connection, self.live()
        assert connection.n_streams == len(live), (self.done, connection, live)
        assert connection.is_closed == (connection._transport is None)
        if connection.is_closed:
            assert connection.end is not None and not live and not connection.has_room, self.done
        if connection.end is not None:
            assert not connection.has_room and connection.n_rooms == 0
        assert len(self.wire.owner.ends) == (connection.end is not None), "the owner hears of the end once"
        for stream_id, stream in self.streams.items():
            assert 0 <= stream.held <= STREAM_WINDOW, (stream_id, stream)

    def settle(self) -> None:
        """Let both ends say all, then compare what they hold; then end it, and nobody may be forgotten."""
        wire, connection = self.wire, self.wire.connection
        wire.transport.make_room(1 << 40)
        if not wire.is_closed:
            wire.pump()
            self.check()
        if not wire.is_closed:  # it may have ended by what was left to say
            engine_ids = set(connection._engine._streams)  # type: ignore[attr-defined]
            assert engine_ids == set(self.live()), (self.done, engine_ids)
            wire.lose()
        wire.loop.turn()
        wire.loop.turn()
        self.check()
        assert not self.live() and connection.is_closed, self.done


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40))
def test_any_interleaving_leaves_a_legal_state(engine: Name, seed: int) -> None:
    """No stream is lost or counted twice, each sink is told its end once, and the engine holds the same streams."""
    story = Story(engine, seed)
    for _ in range(story.dice.randint(5, 150)):
        story.step()
    story.settle()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_stories_reach_what_they_are_for(engine: Name) -> None:
    """Every verb, streams that end in every way, and connections that live through all of it."""
    done, ends, n_open = set(), set(), 0
    for seed in range(150):
        story = Story(engine, seed)
        for _ in range(100):
            story.step()
        n_open += not story.wire.is_closed
        done |= set(story.done)
        for sink in story.told.values():
            ends.add("whole" if sink.ended else "failed" if sink.failure else "left" if sink.is_deaf else "waits")
    assert done == set(VERBS) and ends == {"whole", "failed", "left", "waits"}
    assert n_open > 15


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_windows_are_whole_after_streams_that_ended_in_any_way(engine: Name) -> None:
    """Four times the connection's window passes, in streams that end well, badly, or are left with bytes unread.

    What a stream took from the window that all share comes back, however it ended.
    """
    wire = Wire(engine, None, STREAM_WINDOW)
    dice = random.Random(3)
    total = 512 * STREAM_WINDOW  # what the connection announces
    n_passed = 0
    while n_passed < 4 * total:
        opened = [wire.open() for _ in range(50)]
        wire.pump()
        for sink, stream in opened:
            if dice.random() < 0.5:
                stream.pause()
            wire.answer(stream, bytes(STREAM_WINDOW), end=dice.random() < 0.3)
            wire.pump()
            assert len(sink.body) == STREAM_WINDOW, f"the window is gone after {n_passed} bytes"
            n_passed += STREAM_WINDOW
            how = dice.choice(("cancel", "reset", "resume"))
            if sink.ended:
                continue
            if how == "cancel":
                sink.is_deaf = True
                stream.cancel()
            elif how == "reset":
                wire.server.reset(stream.id, 2)
            else:
                stream.resume()
                wire.server.send_data(stream.id, b"", True)
            wire.pump()
        assert wire.connection.n_streams == 0
    assert wire.connection.has_room and wire.connection.end is None


# -- any split ----------------------------------------------------------------------------------------------------


HEAD = b"HTTP/1.1 200 OK\r\nX-A: b\r\n"
HTTP1 = {
    "length": HEAD + b"Content-Length: 11\r\n\r\nhello world",
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n006\r\n world\r\n0\r\n\r\n",
    "trailers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: t\r\n\r\n",
    "interim": b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok",
    "close": HEAD + b"Connection: close\r\n\r\nas much as comes",
    "surplus": HEAD + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
    "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "emoji": HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\n\xf0\x9f\x8c\x8d\r\n3\r\n\n\r\n\r\n0\r\n\r\n",
}
Pieces = list[bytes]


def cut(wire: bytes, cuts: list[int]) -> Pieces:
    """Return the bytes in pieces, none of them empty."""
    marks = sorted({each % (len(wire) + 1) for each in cuts} | {0, len(wire)})
    return [wire[a:b] for a, b in itertools.pairwise(marks)]


def by_decoder(pieces: Pieces) -> tuple[object, ...]:
    """Return all that a decoder says of a reply."""
    decoder, body = ResponseDecoder(ReplyHeads(), head_request=False), b""
    for piece in pieces:
        decoder.feed(memoryview(piece))
        body += decoder.take_body()
    keep_alive, complete = decoder.keep_alive, decoder.complete
    head = decoder.head
    assert head is not None
    return (head.status, head.headers, head.content_length, body, complete, keep_alive, decoder.surplus, decoder.eof())


@pytest.mark.parametrize("name", HTTP1)
@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 500), max_size=12))
def test_http1_reply_reads_the_same_in_any_pieces(name: str, cuts: list[int]) -> None:
    """Head, body, end, and whether the connection may be used again."""
    wire = HTTP1[name]
    assert by_decoder(cut(wire, cuts)) == by_decoder([wire])


@pytest.mark.parametrize("name", HTTP1)
def test_http1_reply_reads_the_same_byte_by_byte(name: str) -> None:
    """The smallest pieces of all."""
    wire = HTTP1[name]
    assert by_decoder([wire[i : i + 1] for i in range(len(wire))]) == by_decoder([wire])


def by_engine(name: Name, pieces: Pieces, n_streams: int) -> tuple[object, ...]:
    """Return all that an engine tells of what a server said."""
    ear = Ear(name)
    for _ in range(n_streams):
        ear.engine.send_request(REQUEST, True)
    ear.engine.take_output()  # a stream is idle until its head is written
    for piece in pieces:
        ear.engine.receive(memoryview(piece))
        ear.engine.take_output()
    assert not ear.objections
    bodies = {stream_id: bytes(body) for stream_id, body in ear.bodies.items() if body}
    events = {stream_id: heard for stream_id, heard in ear.streams.items() if heard}
    return (events, bodies, dict(ear.of_connection), ear.open_ids, bool(ear.fatal))


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40), cuts=st.lists(st.integers(0, 10**6), max_size=40))
def test_http2_replies_read_the_same_in_any_pieces(name: Name, seed: int, cuts: list[int]) -> None:
    """Frames torn anywhere: inside a head block, between HEADERS and CONTINUATION, inside a frame's own head."""
    server = Server(random.Random(seed), dict.fromkeys(range(1, 20, 2), Stage.ASKED))
    draws = (server.head, server.body, server.body, server.trailers, server.interim, server.ping, server.settings)
    said = b"".join(server.dice.choice(draws)() for _ in range(30))
    wire = frame(4, 0, 0) + frame(4, 1, 0) + said
    assert by_engine(name, cut(wire, cuts), 10) == by_engine(name, [wire], 10)


SSE_PARTS = (
    b"data: x\n\n", b"data: x\r\n\r\n", b"data: x\r\r", b": ping\n\n", b":\n", b"\n", b"\r", b"\r\n", b"data: half",
    b'data: {"error":{"message":"x"}}\n\n', b'data: {"error": {"a":1}}\r\n\r\n', b'data: {"type":"error"}\n\n',
    b"event: error\n",
    b'data: {"id":"1","choices":[]}\n\n', b"data: [DONE]\n\n", "data: \u2028\U0001f30d\x85\n\n".encode(), b"id: 1\n",
)  # fmt: skip
sse_streams = st.lists(st.sampled_from(SSE_PARTS), min_size=1, max_size=12).map(b"".join)


@settings(max_examples=400, deadline=None)
@given(text=sse_streams, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_event_stream_is_understood_the_same_in_any_pieces(text: bytes, cuts: list[int]) -> None:
    """Whether it stands between two events, how many told of an error, and whether there was anything but comments."""

    def watched(pieces: Pieces) -> tuple[object, ...]:
        watch = EventWatch()
        has_data = [watch.feed(piece) for piece in pieces]
        return (watch.between, watch.n_errors, any(has_data))

    assert watched(cut(text, cuts)) == watched([text])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=sse_streams, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_reply_passes_the_same_bytes_on_in_any_pieces(text: bytes, cuts: list[int]) -> None:
    """Bytes in are bytes out; the frames of chunked coding are the client's connection's own business."""
    head = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)

    async def main() -> bytes:
        client = FakeClient()
        reply = Reply(client, request_head(), b"vx-1", asyncio.get_running_loop(), ReplyFields())
        reply.begin(None, NO_ATTEMPTS)
        reply.on_reply(head, b"", False)
        pieces = cut(text, cuts)
        for number, piece in enumerate(pieces):
            reply.on_reply(None, piece, number == len(pieces) - 1)
        await end_of(reply)
        return bytes(client.written)

    written = virtual_time.run(main())
    decoder = ResponseDecoder(ReplyHeads(), head_request=False)
    decoder.feed(written)
    assert decoder.complete and not decoder.surplus
    assert decoder.take_body() == text
