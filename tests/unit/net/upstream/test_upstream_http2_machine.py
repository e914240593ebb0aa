"""Any order of requests, replies, pauses, cancels, resets and losses leaves an HTTP/2 connection in a legal state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from tests.unit.net.upstream_wire import KIB, OK, Sink, Wire
from tests.unit.protocol.http2.http2_peers import Name
from velox.net.upstream.http2 import Http2Stream
from velox.outcomes import ConnectionEnd
from velox.protocol.http2.engine import REFUSED_STREAM, EngineSettings

WINDOW = 64 * KIB


@dataclass
class Asked:
    """One request, and what the upstream has done about it."""

    sink: Sink
    stream: Http2Stream
    upload: int
    is_headed: bool = False
    is_ended: bool = False  # the upstream has sent all of the reply
    is_paused: bool = False
    is_cancelled: bool = False
    is_gone: bool = False  # reset by the upstream
    said: bytearray = field(default_factory=bytearray)

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.sink.ended or self.sink.failure is not None


class Http2Machine(RuleBasedStateMachine):
    """One connection to one upstream; frames are under way until `pump`, or a piece of them has been read."""

    engine: ClassVar[Name]
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        # Uploads wait for a window of 64 KiB; ten streams at once.
        settings = EngineSettings(stream_window=WINDOW, connection_window=4 * WINDOW, max_streams_local=10)
        self.wire = Wire(self.engine, settings, stream_window_bytes=65_535)
        self.asked: list[Asked] = []

    # -- us ---------------------------------------------------------------------------------------------------

    @rule(target=requests, upload=st.sampled_from([0, 10, 300 * KIB]))
    def open(self, upload: int):  # type: ignore[no-untyped-def]
        if not self.wire.connection.has_room:
            return multiple()
        sink, stream = self.wire.open(bytes(upload) if upload else None)
        asked = Asked(sink, stream, upload)
        self.asked.append(asked)
        return asked

    @rule(target=requests)
    def open_and_arrive(self):  # type: ignore[no-untyped-def]
        """Without it few streams would get as far as a reply."""
        asked = self.open(0)
        self.pump()
        return asked

    @rule(asked=requests)
    def pause(self, asked: Asked) -> None:
        asked.is_paused = True
        asked.stream.pause()

    @rule(asked=requests)
    def resume(self, asked: Asked) -> None:
        asked.is_paused = False
        asked.stream.resume()

    @rule(asked=requests)
    def cancel(self, asked: Asked) -> None:
        if not asked.is_over:
            asked.is_cancelled = asked.sink.is_deaf = True
        asked.stream.cancel()

    @rule(now_s=st.floats(1.0, 2.0))
    def check_alive(self, now_s: float) -> None:
        self.wire.connection.check_alive(now_s, 30.0)

    # -- the upstream -------------------------------------------------------------------------------------------

    def seen(self, asked: Asked) -> bool:
        """True while the upstream may answer."""
        known = asked.stream.id in self.wire.peer.heads
        return known and not asked.is_ended and not asked.is_gone

    @rule(asked=requests, n_bytes=st.sampled_from([0, 1, 1000, 50 * KIB, 200 * KIB]), end=st.booleans())
    def answer(self, asked: Asked, n_bytes: int, end: bool) -> None:
        if not self.seen(asked):
            return
        server, stream_id = self.wire.server, asked.stream.id
        if not asked.is_headed:
            asked.is_headed = True
            server.send_response(stream_id, OK, False)
        # Each stream's bytes are its own: none may reach another's sink.
        body = bytes([stream_id % 251]) * n_bytes
        asked.said += body
        asked.is_ended = end
        server.send_data(stream_id, body, end)

    @rule(asked=requests, n_bytes=st.sampled_from([0, 1, 50 * KIB]))
    def answer_and_arrive(self, asked: Asked, n_bytes: int) -> None:
        self.pump()
        self.answer(asked, n_bytes, True)
        self.pump()

    @rule(asked=requests, code=st.sampled_from([0, 2, REFUSED_STREAM, 8]))
    def reset(self, asked: Asked, code: int) -> None:
        if self.seen(asked):
            asked.is_gone = True
            self.wire.server.reset(asked.stream.id, code)

    # -- the way ------------------------------------------------------------------------------------------------

    @rule()
    def pump(self) -> None:
        if not self.wire.is_closed:
            self.wire.pump()

    @rule(n_bytes=st.integers(1, 40_000))
    def read_some(self, n_bytes: int) -> None:
        """One read of ours, cut anywhere."""
        if not self.wire.is_closed and self.wire.server.has_output:
            self.wire.give(self.wire.server.take_output(n_bytes))

    @rule()
    def turn(self) -> None:
        self.wire.loop.turn()

    @rule(n_bytes=st.integers(1, 100_000))
    def write_some(self, n_bytes: int) -> None:
        """The upstream's kernel takes so much, and no more until the next time."""
        transport = self.wire.transport
        transport.room = 0
        transport.make_room(n_bytes)
        sent = transport.take()
        if sent:
            self.wire.server.receive(sent)

    @rule()
    def write_freely(self) -> None:
        self.wire.transport.make_room(1 << 40)

    @precondition(lambda self: len(self.asked) > 3)
    @rule(cause=st.sampled_from([ConnectionEnd.AGE, ConnectionEnd.SHUTDOWN]))
    def retire(self, cause: ConnectionEnd) -> None:
        self.wire.connection.retire(cause)

    @precondition(lambda self: len(self.asked) > 5)
    @rule(how=st.sampled_from(["lose", "eof", "abort", "goaway"]), asked=consumes(requests))
    def leave(self, how: str, asked: Asked) -> None:
        wire = self.wire
        if wire.is_closed:
            return
        match how:
            case "lose":
                wire.lose()
            case "eof":
                keeps_open = wire.connection.eof_received()
                if not keeps_open and not wire.is_closed:
                    wire.lose()  # as the loop does then
            case "abort":
                wire.connection.abort(ConnectionEnd.SHUTDOWN)
            case _:
                wire.server.goaway()

    # -- the law ------------------------------------------------------------------------------------------------

    @invariant()
    def state_is_legal(self) -> None:
        connection = self.wire.connection
        running = [asked for asked in self.asked if not asked.is_over]
        assert connection.n_streams == len(running)
        assert 0 <= connection.n_rooms <= 10 - (connection.n_streams if connection.has_room else 0)
        assert connection.has_room == (connection.n_rooms > 0)
        assert len(self.wire.owner.ends) == (connection.end is not None)
        assert connection.end is not None or not connection.is_closed
        assert connection.n_begun == len(self.asked)
        for asked in self.asked:
            stream, sink = asked.stream, asked.sink
            assert 0 <= stream.n_unsent <= asked.upload
            assert stream.held <= 65_535
            assert asked.said.startswith(sink.body), "bytes that the upstream did not say, or not here"
            if sink.ended:
                assert asked.is_ended and sink.body == asked.said, "a reply that looks whole and is not"
            if sink.failure is not None and sink.failure.unprocessed is not None:
                assert sink.head is None, "work was done"

    def teardown(self) -> None:
        """Everybody reads on, the upstream ends what it can: nothing may be left."""
        wire = self.wire
        wire.transport.make_room(1 << 40)
        if not wire.is_closed:
            wire.pump()
        for asked in self.asked:
            asked.stream.resume()
            if self.seen(asked):
                self.answer(asked, 10, True)
        if not wire.is_closed:
            wire.pump()
        self.state_is_legal()
        assert wire.connection.n_streams == 0 or wire.is_closed
        assert wire.connection.is_closed or wire.connection.end is None


class Ngh2Machine(Http2Machine):
    engine = "ngh2"


class H2Machine(Http2Machine):
    engine = "h2"


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Ngh2Machine, H2Machine], ids=["ngh2", "h2"])
@pytest.mark.more
def test_any_order_of_events_is_legal(machine: type[Http2Machine]) -> None:
    """Each sink hears its own bytes in order, one end at most, and nothing after a cancel; room and causes add up."""
    run = machine.TestCase()
    run.settings = settings(
        max_examples=150,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
    )
    run.runTest()
