"""A Responses WebSocket that Velox answers itself (responses_socket.py): what it reads, holds and waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, cast

import pytest
from websockets.frames import Frame, Opcode

from tests.unit.net.upstream_wire import KIB, MIB, Loop, Transport
from velox.errors import Reason, VeloxError
from velox.gateway.auth import Authenticator
from velox.gateway.request.tunnels import Tunnels
from velox.gateway.websocket.responses_socket import ResponsesSocket
from velox.heads import RequestHead, WebSocketOffer
from velox.net.client.body_budget import BodyBudget
from velox.net.message_budget import FREE_BYTES
from velox.net.tunnel import TunnelLimits
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.protocol.json.body import BodyReader
from velox.protocol.websocket.frames import CLOSE, PING, PONG, TEXT, frame
from velox.protocol.websocket.handshake import close_frame

LIMITS: Final = TunnelLimits(idle_s=300.0, client_write_s=30.0, min_rate_bytes=1024)
READ: Final = 64 * KIB  # of one read


class Wire(Transport):
    """What lies between the socket and its client."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == self.HIGH

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        self.is_closed = True


class AtOnce:
    """Work beside the loop, done at once."""

    async def run(self, work: Callable[[], object]) -> object:
        return work()


class AtOnceLoop(Loop):
    """Has no turns: a task is done when it is made."""

    def create_task(self, task: Coroutine[None, None, None], name: str) -> None:
        with contextlib.suppress(StopIteration):
            while True:
                task.send(None)


class Recorder:
    """Counts refusals."""

    n_refused = 0

    def next_id(self) -> bytes:
        return b"1-1"

    def refused(self, *_: object) -> None:
        self.n_refused += 1


class Limiter:
    """Lets so many refused messages pass."""

    n_left = 1 << 30

    def count_refused(self, caller: None, now_ns: int) -> None:
        if self.n_left <= 0:
            raise VeloxError(Reason.RATE_LIMITED, "later", retry_after_s=1.0)
        self.n_left -= 1


class Handshake:
    """The client that asked for the socket."""

    address = "192.0.2.7"


class Gateway:
    """The owner of a socket, as far as it is asked."""

    draining = False
    refusal: VeloxError | None = None  # of all heads

    def __init__(self, tunnels: Tunnels) -> None:
        self.loop: Final = AtOnceLoop()
        self.thread: Final = AtOnce()
        self.parts: Final = self
        self.auth: Final = Authenticator(())
        self.answers: Final = None
        self.tunnels: Final = tunnels
        self.recorder: Final = Recorder()
        self.reader: Final = BodyReader()
        self.limiter: Final = Limiter()
        self.refused: Final[list[Reason]] = []
        self.submitted: Final[list[tuple[Any, bytes]]] = []  # clients, and their requests' bodies

    def check_head(self, head: RequestHead) -> None:
        if self.refusal is not None:
            raise self.refusal

    def submit(self, client: Any, head: RequestHead, body: bytes, caller: None) -> None:
        self.submitted.append((client, body))

    def refuse(self, client: Any, head: RequestHead, error: VeloxError) -> None:
        self.refused.append(error.reason)
        client.answer(error.status, [], b"{}", with_body=True, close=error.close)


class Stand:
    """A socket after its handshake, with its transport. step_s: how long each look at a frame takes."""

    def __init__(self, tunnels: Tunnels | None = None, step_s: float = 0.0) -> None:
        self.gateway: Final = Gateway(tunnels or Tunnels(8, LIMITS))
        self.step_s = step_s
        self.spent_s = 0.0
        self.budget: Final = TurnBudget(self.gateway.loop, self._clock)
        self.n_closed = 0
        head = RequestHead.of(b"GET", b"/v1/responses", (), offer=WebSocketOffer(b"k", (), b""))
        client = cast(Any, Handshake())
        self.socket: Final = ResponsesSocket(cast(Any, self.gateway), client, head, self.budget, self._closed)
        self.wire: Final = Wire()
        self.socket.take(cast(asyncio.Transport, self.wire), b"", lambda _: None)

    def _closed(self, socket: ResponsesSocket) -> None:
        self.n_closed += 1

    def _clock(self) -> float:
        self.spent_s += self.step_s
        return self.spent_s

    def send_all(self, data: bytes, most: int = 1 << 30) -> int:
        """Send for as long as it is read; return how many bytes were."""
        n_read = 0
        while self.wire.is_reading() and not self.wire.is_closed and n_read < min(len(data), most):
            self.wire.read(data[n_read : n_read + READ])
            n_read += READ
        return n_read

    def sweep(self, after_s: float) -> None:
        """Look at it after some time."""
        self.gateway.loop.now_s += after_s
        self.socket.check(self.gateway.loop.now_s, is_short_of_memory=False)


def sent(payload: bytes, opcode: int = TEXT) -> bytes:
    """Return a client's frame, masked."""
    return Frame(Opcode(opcode), payload).serialize(mask=True)


def test_client_that_takes_nothing_is_not_read() -> None:
    """What it sends may have an answer that waits, too: those of one read wait, and what is left waits behind them."""
    stand = Stand()
    stand.wire.room = 0
    pings = sent(bytes(100), PING) * 3_000
    n_read = stand.send_all(pings)
    assert n_read < len(pings)
    assert Wire.HIGH < len(stand.wire.waiting) < Wire.HIGH + READ

    stand.wire.make_room(1 << 30)
    while n_read < len(pings):
        n_read += stand.send_all(pings[n_read:], READ)
    assert stand.wire.take() == frame(bytes(100), PONG) * 3_000, "none is lost"


# Each costs a step, and none of them makes a request: 64 KiB of them are thousands.
SMALL: Final = {
    "pings": sent(b"", PING),
    "pongs": sent(b"", PONG),
    "fragments": sent(b"{", TEXT).replace(b"\x81", b"\x01", 1) + sent(b" ", 0).replace(b"\x80", b"\x00", 1) * 9_000,
    "skipped": sent(b"x"),
}


@pytest.mark.parametrize("name", SMALL)
def test_one_read_takes_a_bounded_time_of_each_turn(name: str) -> None:
    """X9: whatever is in it: after a millisecond nothing is read, and the rest goes on in the next turn of the loop."""
    stand = Stand(step_s=TURN_S / 10)
    if name == "skipped":
        stand.socket.close(1001, "bye")
    many = SMALL[name] * (READ // len(SMALL[name]) + 1)
    stand.wire.read(many[:READ])
    n_turns = 0
    while not stand.wire.is_reading():
        began_s = stand.spent_s
        stand.gateway.loop.turn()
        assert stand.spent_s - began_s < 2 * TURN_S
        n_turns += 1
    assert n_turns > 500
    stand.gateway.loop.turn()
    assert not stand.gateway.loop.soon, "who has nothing to do asks for no turn"


def test_connections_share_the_time_of_a_turn() -> None:
    """A client with many connections has no more of it than one; they are served in turns."""
    stands = [Stand() for _ in range(20)]
    first = stands[0]
    for stand in stands[1:]:
        stand.socket._budget = first.budget  # type: ignore[misc]
    for stand in stands:
        stand.wire.read(sent(b"a", PING))
    first.gateway.loop.turn()
    first.step_s = TURN_S / 10
    for stand in stands:
        stand.wire.take()
        stand.wire.read(sent(b"a", PING) * 100)
    for _ in range(30):
        began_s = first.spent_s
        first.gateway.loop.turn()
        assert first.spent_s - began_s < 2 * TURN_S
    told = [len(stand.wire.take()) for stand in stands]
    assert min(told) > 0, "all had their turn"


def test_refused_messages_count_for_the_limits_of_the_key() -> None:
    """Each as a request; where no more are allowed, 429 is what the client reads."""
    stand = Stand()
    stand.gateway.limiter.n_left = 2
    stand.wire.read(sent(b"x") + sent(b"{}") + sent(b"x"))
    assert [told["status"] for told in messages(stand)] == [400, 400, 429]


@pytest.mark.parametrize("message", [b"", b"x", b"{}", b'{"type":"response.create","model":"a","model":"b"}'])
def test_messages_that_are_refused_again_and_again_close_the_connection(message: bytes) -> None:
    """With 1008, after 64 in a row."""
    stand = Stand()
    stand.send_all(sent(message) * 10_000)
    told = stand.wire.take()
    assert told.endswith(close_frame(1008, "too many messages in a row were refused"))
    assert told.count(b'"type":"error"') == 64


def test_requests_that_are_refused_again_and_again_close_the_connection() -> None:
    """As those with a dead key, or without a model that there is; an answer between them begins anew."""
    stand = Stand()
    stand.gateway.refusal = VeloxError(Reason.AUTH_INVALID, "no such key")
    stand.send_all(sent(asking(1)) * 63)
    stand.gateway.refusal = None
    stand.send_all(sent(asking(1)))
    turn = stand.gateway.submitted[0][0]
    turn.begin_reply(200, [(b"content-type", b"text/event-stream")], None, b"", False, has_body=True)
    turn.finish()
    stand.gateway.refusal = VeloxError(Reason.UNKNOWN_MODEL, "no such model")
    stand.send_all(sent(asking(1)) * 63)
    assert stand.wire.is_reading() and not stand.socket._is_closing
    stand.send_all(sent(asking(1)))
    assert stand.socket._is_closing


def test_field_that_stands_twice_is_refused_as_over_http() -> None:
    """A key may be for one of the two models."""
    stand = Stand()
    stand.wire.read(sent(b'{"type":"response.create","model":"a","input":"x","mod\\u0065l":"b"}'))
    assert not stand.gateway.submitted
    assert stand.gateway.refused == [Reason.DUPLICATE_KEY]


def test_pings_of_one_read_are_answered_in_one_write() -> None:
    """Tens of thousands of small objects would wait to be sent."""
    stand = Stand()
    stand.wire.read(sent(b"a", PING) + sent(b"b", PING) * 100)
    assert stand.wire.take() == frame(b"a", PONG) + frame(b"b", PONG) * 100
    assert stand.wire.n_writes == 1


def test_client_that_takes_too_little_is_ended() -> None:
    """What is written on top is no progress, and less than the rate is none either."""
    stand = Stand()
    stand.wire.room = 0
    stand.send_all(sent(bytes(100), PING) * 3_000)
    stand.sweep(29.0)
    stand.socket.send(bytes(KIB))
    assert not stand.wire.is_closed
    stand.wire.make_room(31 * KIB)
    stand.sweep(1.0)
    assert not stand.wire.is_closed, "it has taken a KiB a second"
    stand.wire.make_room(10 * KIB)
    stand.socket.send(bytes(KIB))
    stand.sweep(30.0)
    assert stand.wire.is_closed and stand.n_closed == 1


def test_nothing_is_held_after_a_protocol_error() -> None:
    """It is closed with 1002; what still comes can be no frame."""
    stand = Stand()
    stand.wire.read(b"\x81\x02hi" + b"\xff" * KIB)
    assert stand.wire.take()[2:4] == (1002).to_bytes(2)
    for _ in range(100):
        stand.wire.read(b"\xff" * READ)
    assert stand.socket._reader._data == b""
    assert stand.wire.n_writes == 1
    stand.sweep(2.0)
    assert stand.wire.is_closed


@pytest.mark.parametrize(
    ("first", "payload", "code"),
    [
        (0x88, b"", 1000),
        (0x88, (4000).to_bytes(2) + b"why", 4000),
        (0x88, b"\x03", 1002),
        (0x88, (1005).to_bytes(2), 1002),
        (0x88, (999).to_bytes(2), 1002),
        (0x83, b"", 1002),
        (0x8B, b"", 1002),
    ],
)
def test_close_frame_is_answered_with_a_code_that_may_be_sent(first: int, payload: bytes, code: int) -> None:
    """RFC 6455 §5.5.1, §7.4: its own, or 1002 where there can't be one; also for an opcode that is reserved."""
    stand = Stand()
    stand.wire.read(bytes((first, 0x80 | len(payload))) + bytes(4) + payload)
    assert close_code(stand) == code
    stand.sweep(2.0)
    assert stand.wire.is_closed


def test_close_frame_of_a_client_is_read_after_ours() -> None:
    """Messages before it are not held, and a ping has no answer any more."""
    stand = Stand()
    stand.socket.close(1001, "bye")
    closed = stand.wire.take()
    stand.wire.read(sent(b"p", PING))
    half = sent(b"m" * 50_000)
    stand.wire.read(half[:40_000])
    assert stand.socket._reader.held_bytes == 0
    stand.wire.read(half[40_000:] + sent((1001).to_bytes(2), CLOSE))
    assert stand.wire.take() == b"" and closed and stand.wire.is_closed


@pytest.mark.parametrize("more", [{}, {"generate": False}])
def test_key_is_checked_with_each_message(more: dict[str, object]) -> None:
    """It may be revoked while the connection is open; also where no model is to be asked."""
    stand = Stand()
    stand.gateway.refusal = VeloxError(Reason.AUTH_INVALID, "no such key")
    stand.wire.read(sent(asking(1, **more)))
    answer = stand.wire.take()
    told = json.loads(answer[answer.index(b"{") :])
    assert (told["type"], told["status"]) == ("error", 401)
    assert not stand.gateway.submitted and not stand.socket.messages.kept_bytes


def test_client_that_closes_its_sending_side_has_left() -> None:
    """What runs is not kept until it has taken what was written; where nothing runs, that has a little time."""
    stand = Stand()
    stand.wire.read(sent(asking(1)))
    stand.wire.room = 0
    stand.socket.send(bytes(KIB))
    assert not stand.socket.eof_received()
    assert stand.wire.is_closed and not stand.wire.waiting

    stand = Stand()
    stand.wire.room = 0
    stand.socket.send(bytes(KIB))
    assert not stand.socket.eof_received()
    stand.sweep(1.9)
    assert stand.wire.waiting
    stand.sweep(0.1)
    assert not stand.wire.waiting


def test_answers_that_wait_pause_and_go_on_with_the_client() -> None:
    """The reading stands still from the first write above the mark to the last byte but a quarter of it."""
    stand = Stand()
    stand.wire.room = 0
    stand.socket.send(bytes(Wire.HIGH))
    assert not stand.wire.is_reading()
    stand.wire.make_room(Wire.HIGH // 2)
    assert not stand.wire.is_reading()
    stand.wire.make_room(Wire.HIGH)
    assert stand.wire.is_reading()


@pytest.mark.parametrize("lane", [None, "another"])
def test_drain_ends_with_the_answers_that_run(lane: str | None) -> None:
    """At once: a client that always has a next message would else be cut in the midst of an answer."""
    stand = Stand()
    stand.wire.read(sent(asking(1)))
    stand.gateway.draining = True
    stand.wire.read(sent(asking(1) if lane is None else asking(1, stream_id=lane)))
    stand.sweep(0.25)
    assert len(stand.gateway.submitted) == 1 and not stand.wire.sent
    stand.gateway.submitted[0][0].finish()
    stand.gateway.loop.turn()
    assert len(stand.gateway.submitted) == 1
    assert stand.wire.take().endswith(close_frame(1001, "the gateway is shutting down"))


def test_message_after_the_begin_of_a_drain_has_no_answer() -> None:
    """1001 tells the client to come back elsewhere."""
    stand = Stand()
    stand.gateway.draining = True
    stand.wire.read(sent(asking(1)))
    assert not stand.gateway.submitted
    assert close_code(stand) == 1001


# -- what is held -----------------------------------------------------------------------------------------------------


class Bodies:
    """A budget of one MiB, of which a test takes some, and a socket that may hold half of it."""

    def __init__(self, limit: int = MIB, most: int = MIB // 2) -> None:
        self.now_s = 0.0
        self.budget: Final = BodyBudget(limit, 5.0, lambda: self.now_s)
        limits = replace(LIMITS, body_bytes=most, message_idle_s=15.0)
        self.stand: Final = Stand(Tunnels(8, limits, self.budget))

    def refuse_in_time(self) -> None:
        """Let those in line wait for long enough."""
        self.now_s += 5.0
        self.budget.expire()


def messages(stand: Stand) -> list[Any]:
    """Return what was sent since the last time."""
    found, told = [], stand.wire.take()
    while told:
        n_head = {126: 4, 127: 10}.get(told[1], 2)
        n_bytes = int.from_bytes(told[2:n_head]) if n_head > 2 else told[1]
        found.append(json.loads(told[n_head : n_head + n_bytes]))
        told = told[n_head + n_bytes :]
    return found


def close_code(stand: Stand) -> int:
    """Return the code of the Close frame that was sent last."""
    return int.from_bytes(stand.wire.take()[2:4])


def asking(n_bytes: int, **more: object) -> bytes:
    """Return a message of so many bytes and some more."""
    return json.dumps({"type": "response.create", "model": "m", "input": "a" * n_bytes, **more}).encode()


def test_message_takes_of_the_budget_of_bodies_as_it_comes() -> None:
    """Above what a connection may have ahead; all of it comes back with the connection's end."""
    bodies = Bodies()
    stand = bodies.stand
    wire = sent(bytes(400 * KIB))
    stand.wire.read(wire[:READ])
    assert bodies.budget.taken_bytes == 0
    for at in range(READ, 4 * READ, READ):
        stand.wire.read(wire[at : at + READ])
    assert bodies.budget.taken_bytes == pytest.approx(3 * READ, abs=20)
    stand.socket.connection_lost(None)
    assert bodies.budget.taken_bytes == 0


def test_message_over_the_largest_body_closes_the_connection() -> None:
    """VELOX_MAX_BODY: by its head, before any of it is held."""
    stand = Bodies().stand
    stand.wire.read(sent(bytes(512 * KIB + 1))[:100])
    assert close_code(stand) == 1009


def test_client_is_not_read_while_there_is_no_room() -> None:
    """It waits in line as a body does, and goes on, or is closed with 1013 when none came in time."""
    for comes in (True, False):
        bodies = Bodies()
        stand = bodies.stand
        assert bodies.budget.take_now(MIB - READ)
        n_read = stand.send_all(sent(bytes(400 * KIB))[:-1])
        assert n_read == 3 * READ, "what it may have ahead, what was left, and one more read"
        stand.sweep(29.0)
        assert not stand.wire.is_closed and not stand.wire.sent, "what is not read can't be late"
        if comes:
            bodies.budget.give(MIB - READ)
            assert stand.wire.is_reading()
            assert bodies.budget.taken_bytes == pytest.approx(2 * READ, abs=20)
        else:
            bodies.refuse_in_time()
            assert close_code(stand) == 1013
            assert bodies.budget.taken_bytes == MIB - READ


def test_message_that_never_ends_is_closed() -> None:
    """A silence, or a trickle, would hold room that others wait for."""
    for n_each, seconds in ((0, 15.0), (100, 20.0)):
        stand = Bodies().stand
        stand.wire.read(sent(bytes(400 * KIB))[:1000])
        for _ in range(int(seconds / 5)):
            assert stand.wire.n_writes == 0
            if n_each:
                stand.wire.read(bytes(n_each))
            stand.sweep(5.0)
        assert close_code(stand) == 1008


def test_request_is_held_until_it_is_answered() -> None:
    """Its body is its message's, with the conversation before it; what nobody waits for is given back."""
    bodies = Bodies()
    stand = bodies.stand
    stand.send_all(sent(asking(300 * KIB)))
    assert len(stand.gateway.submitted) == 1
    held = len(stand.gateway.submitted[0][1]) - FREE_BYTES
    assert bodies.budget.taken_bytes == held
    stand.wire.read(sent(asking(10)))
    assert bodies.budget.taken_bytes == held + len(asking(10)), "it waits for its turn"
    stand.gateway.submitted[0][0].finish()
    stand.gateway.loop.turn()
    assert len(stand.gateway.submitted) == 2
    assert bodies.budget.taken_bytes == 0


def test_conversation_over_the_largest_body_is_refused_and_the_connection_stays() -> None:
    """previous_response_id makes a request longer than its message."""
    bodies = Bodies()
    stand = bodies.stand
    stand.send_all(sent(asking(300 * KIB, generate=False)))
    prepared = re.findall(rb'"id":"(resp_\w+)"', stand.wire.take())[0].decode()
    stand.send_all(sent(asking(300 * KIB, previous_response_id=prepared)))
    told = json.loads(stand.wire.take()[4:])
    assert (told["type"], told["status"]) == ("error", 413)
    assert not stand.gateway.submitted and bodies.budget.taken_bytes == 0
    stand.send_all(sent(asking(10, previous_response_id=prepared)))
    assert len(stand.gateway.submitted) == 1


def test_request_that_finds_no_room_is_refused_and_the_connection_stays() -> None:
    """Its conversation does not fit: 503, as over HTTP."""
    bodies = Bodies()
    stand = bodies.stand
    stand.send_all(sent(asking(300 * KIB, generate=False)))
    prepared = re.findall(rb'"id":"(resp_\w+)"', stand.wire.take())[0].decode()
    assert bodies.budget.take_now(MIB - 100 * KIB)
    stand.send_all(sent(asking(10, previous_response_id=prepared)))
    told = json.loads(stand.wire.take()[4:])
    assert (told["type"], told["status"]) == ("error", 503)
    assert bodies.budget.taken_bytes == MIB - 100 * KIB
    stand.send_all(sent(asking(10)))
    assert len(stand.gateway.submitted) == 1


# -- large messages, which are read beside the loop --------------------------------------------------------------------


class LaterTask:
    """A task that is done when the test says so."""

    def __init__(self, work: Coroutine[None, None, None]) -> None:
        self._work: Final = work
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._work.close()

    def run(self) -> None:
        with contextlib.suppress(StopIteration):
            while True:
                self._work.send(None)


class LaterLoop(AtOnceLoop):
    """Keeps the tasks that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: Final[list[LaterTask]] = []

    def create_task(self, task: Coroutine[None, None, None], name: str) -> Any:
        self.tasks.append(LaterTask(task))
        return self.tasks[-1]


def later() -> tuple[Stand, list[LaterTask]]:
    stand = Stand()
    loop = LaterLoop()
    stand.gateway.loop = loop  # type: ignore[misc]
    return stand, loop.tasks


LARGE: Final = 300 * KIB


def test_large_message_is_read_beside_the_loop() -> None:
    """16 MiB were decoded three times in one turn. What came behind it waits, unread; then all goes on in order."""
    stand, tasks = later()
    stand.send_all(sent(asking(LARGE)) + sent(b"a", PING) + sent(asking(1, stream_id="b")))
    (task,) = tasks
    assert not stand.gateway.submitted and not stand.wire.is_reading() and not stand.wire.take()

    task.run()
    assert [len(body) > LARGE for _, body in stand.gateway.submitted] == [True, False]
    assert stand.wire.take() == frame(b"a", PONG) and stand.wire.is_reading()


def test_short_message_with_a_long_conversation_is_read_beside_the_loop() -> None:
    """Their sum is what is copied, sent and checked."""
    stand, tasks = later()
    stand.socket.messages._kept["resp_1"] = b'{"type":"message"}' + b" " * LARGE
    stand.send_all(sent(asking(1, previous_response_id="resp_1")))
    (task,) = tasks

    task.run()
    assert len(stand.gateway.submitted[0][1]) > LARGE


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"previous_response_id": "resp_none"}, 400),
        ({"type": "response.cancel"}, 400),
        ({"stream_id": 5}, 400),
    ],
)
def test_large_message_that_is_refused_is_read_once(more: dict[str, Any], status: int) -> None:
    """As a short one, and never in the loop's thread."""
    stand, tasks = later()
    stand.send_all(sent(asking(LARGE, **more)))
    tasks.pop().run()

    assert [told["status"] for told in messages(stand)] == [status]
    assert not stand.gateway.submitted and not tasks and stand.wire.is_reading()


def test_field_that_stands_twice_in_a_large_message_is_refused() -> None:
    stand, tasks = later()
    twice = asking(LARGE)[:-1] + b',"model":"b"}'
    stand.send_all(sent(twice))
    tasks.pop().run()
    assert stand.gateway.refused == [Reason.DUPLICATE_KEY] and not stand.gateway.submitted


def test_large_message_that_goes_on_with_a_running_answer_finds_it() -> None:
    """It waits for it in its lane: when it was read the answer was not there yet."""
    stand, tasks = later()
    stand.send_all(sent(asking(1)) + sent(asking(LARGE, previous_response_id="resp_1")))
    tasks.pop().run()
    assert len(stand.gateway.submitted) == 1
    stand.socket.messages._kept["resp_1"] = b'{"type":"message"}'
    turn = stand.gateway.submitted[0][0]
    turn.begin_reply(200, [(b"content-type", b"text/event-stream")], None, b"", False, has_body=True)
    turn.finish()
    stand.gateway.loop.turn()
    assert b'{"type":"message"}' in stand.gateway.submitted[1][1]


@pytest.mark.parametrize("end", ["lost", "closed"])
def test_client_that_leaves_while_its_message_is_read(end: str) -> None:
    """Nothing is asked for it, and nothing of it is held."""
    stand, tasks = later()
    stand.send_all(sent(asking(LARGE)))
    if end == "lost":
        stand.socket.connection_lost(None)
    else:
        stand.socket.close(1001, "bye")
    assert tasks.pop().is_cancelled
    assert not stand.gateway.submitted and stand.socket._n_held == 0
