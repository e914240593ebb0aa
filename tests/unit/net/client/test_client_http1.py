"""A client's HTTP/1.1 connection: a request in one read, and the same request in any pieces."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import Loop, Transport
from velox.errors import Reason, VeloxError
from velox.heads import RequestHead
from velox.net.application import Client, ClientTimeouts
from velox.net.client.body_budget import FIRST_BYTES, BodyBudget
from velox.net.client.http1 import ClientHttp1Connection
from velox.net.client.ingress import Ingress
from velox.net.client.ingress_state import ABORT_S, CLOSE_S
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.protocol.http1.request import Http1Limits
from velox.types import ANYONE, Caller

BUDGET: Final = 100
LINES: Final = b"Host: a\r\nAuthorization: Bearer k\r\n"
WIRES: Final = [
    b"GET /v1/models HTTP/1.1\r\n%b\r\n" % LINES,
    b"GET /v1/models HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bContent-Length: 5\r\n\r\nhello" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bx-request-id: 7\r\nContent-Length: 12\r\n\r\nhello\r\n\r\n123" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" % LINES,
    b"POST /v1/x HTTP/1.0\r\n%bContent-Length: 3\r\n\r\nabc" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bConnection: close\r\nContent-Length: 3\r\n\r\nabc" % LINES,
    b"POST /refused HTTP/1.1\r\n%bContent-Length: 3\r\n\r\nabc" % LINES,
    b"GET /refused HTTP/1.1\r\n%b\r\n" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bContent-Length: 101\r\n\r\n%b" % (LINES, bytes(101)),
    b"POST /v1/x HTTP/1.1\r\n%bContent-Length: 99999\r\n\r\n" % LINES,
    b"POST /v1/x HTTP/1.1\r\n%bContent-Length: 05\r\n\r\nhello" % LINES,
    b"\r\n",
    b"\x00\r\n\r\n",
]


class App:
    """Answers every request, at once or in the next turn, and notes what it was asked."""

    def __init__(self, loop: Loop, *, at_once: bool) -> None:
        self._loop: Final = loop
        self._at_once: Final = at_once
        self.refuses = True
        self.asked: Final[list[tuple[RequestHead, bytes | None]]] = []
        self.refused: Final[list[Reason]] = []  # the text may say of a part what it says otherwise of the whole

    def check_head(self, head: RequestHead) -> Caller:
        if head.path == b"/refused" and self.refuses:
            raise VeloxError(Reason.UNKNOWN_ROUTE, "no such path")
        return ANYONE

    def submit(self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller) -> None:
        self.asked.append((head, None if body is None else bytes(body)))
        if self._at_once:
            self._answer(client)
        else:
            self._loop.call_soon(self._answer, client)

    def _answer(self, client: Client) -> None:
        client.release_body()
        client.begin_reply(200, [], 2, b"ok", True, has_body=True)
        client.finish()

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.refused.append(error.reason)
        client.answer(error.status, [], b"", with_body=True, close=error.close)

    def crashed(self, exc: Exception) -> None:
        raise exc


class Wire(Transport):
    """A transport that says when it was closed."""

    own: object = ("127.0.0.1", 8080)  # as getsockname() has it

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.own if name == "sockname" else default

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


class Story:
    """One connection; what came of it. knows: heads like these have come before, also those that are refused now."""

    def __init__(
        self,
        *,
        at_once: bool,
        knows: bool = False,
        guarded: frozenset[str] = frozenset(),
        own: object = None,
        budget: int = BUDGET,
        body_bytes: int = 1000,
        max_connections: int = 9,
    ) -> None:
        self._own = own
        self.tick_s = 0.0  # how much later it is each time that the clock of turns is read
        self.clock_s = 5.0
        self.loop: Final = Loop()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.app: Final = App(self.loop, at_once=at_once)
        self.budget: Final = BodyBudget(budget, 5.0, self.loop.time)
        timeouts = ClientTimeouts(10.0, 15.0, 75.0, 30.0)
        self.ingress: Final = Ingress(
            self.app,
            Http1Limits(body_bytes=body_bytes),
            timeouts,
            self.budget,
            loop,
            max_connections=max_connections,
            guarded=guarded,
            turns=TurnBudget(self.loop, self._clock),
        )
        self._connect()
        if knows:
            self.app.refuses = False
            for wire in WIRES * 4:
                self.read(wire)
                self.connection.connection_lost(None)
                self._connect()
            self.app.refuses = True
            self.app.asked.clear()
            self.app.refused.clear()

    def _clock(self) -> float:
        self.clock_s += self.tick_s
        return self.clock_s

    def _connect(self) -> None:
        self.connection = ClientHttp1Connection(self.ingress)
        self.transport = Wire()
        self.transport.own = self._own
        self.transport.protocol = self.connection
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    def read(self, data: bytes) -> None:
        """Let bytes come, and go on until nothing moves any more."""
        if self.transport.is_reading() and not self.transport.is_closed:
            self.connection.data_received(data)
        while self.loop.soon:
            self.loop.turn()

    def told(self) -> tuple[object, ...]:
        """Return what the application and the client have seen, and what is held at the end."""
        sent = bytes(self.transport.sent).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        return self.app.asked, self.app.refused, sent, self.transport.is_closed, self.budget.taken_bytes


def played(pieces: list[bytes], *, at_once: bool, knows: bool = False) -> tuple[object, ...]:
    story = Story(at_once=at_once, knows=knows)
    for piece in pieces:
        story.read(piece)
    return story.told()


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(wire)) for place in places} | {0, len(wire)})
    return [wire[begin:end] for begin, end in itertools.pairwise(ends)]


@given(
    wires=st.lists(st.sampled_from(WIRES), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 500), max_size=8),
    at_once=st.booleans(),
)
@example(wires=[WIRES[2], WIRES[2], WIRES[3]], places=[], at_once=True)
@example(wires=[WIRES[8], WIRES[2]], places=[], at_once=True)
@example(wires=[WIRES[7], WIRES[2]], places=[], at_once=False)
@pytest.mark.slow
def test_requests_in_any_pieces_get_the_answers_of_requests_in_one_read_each(
    wires: list[bytes], places: list[int], at_once: bool
) -> None:
    """Property: a request that one read holds, of a known kind, is read in fewer steps, with the same end."""
    pieces = cut(b"".join(wires), places)
    found = played(pieces, at_once=at_once)

    assert found == played(wires, at_once=at_once) == played(wires, at_once=at_once, knows=True)
    assert found == played(pieces, at_once=at_once, knows=True)


@pytest.mark.parametrize("wire", WIRES[:12])
def test_request_byte_by_byte_gets_the_answer_of_one_read(wire: bytes) -> None:
    """Each place where a read may end."""
    pieces = [wire[at : at + 1] for at in range(len(wire))]

    assert played(pieces, at_once=False) == played([wire], at_once=False)


@pytest.mark.parametrize("wire", [WIRES[2], WIRES[7], WIRES[3] + WIRES[2]])
def test_known_request_waits_for_room_as_any_other(wire: bytes) -> None:
    """The bodies of others take all there is; then the connection is served, and all of the room is free again."""
    known, unknown = Story(at_once=False, knows=True), Story(at_once=False)
    for story in (known, unknown):
        assert story.budget.take_now(BUDGET - 1)
        story.read(wire)
        assert not story.app.asked and not story.transport.sent
        story.budget.give(BUDGET - 1)
        while story.loop.soon:
            story.loop.turn()
        assert story.app.asked and story.budget.taken_bytes == 0
    assert known.told() == unknown.told()


@pytest.mark.parametrize("knows", [False, True])
def test_connection_is_ready_for_the_next_request_after_each(knows: bool) -> None:
    """Nothing of a request stays: neither its room in the budget nor its bytes."""
    story = Story(at_once=False, knows=knows)
    for n in range(1, 4):
        story.read(WIRES[3])
        assert len(story.app.asked) == n and story.connection.is_idle
        assert story.budget.taken_bytes == 0 and story.connection._request.buffered == 0
        assert story.connection.deadline_s == story.loop.now_s + 75.0


GUARDED = frozenset({"127.0.0.1", "::1"})


@pytest.mark.parametrize("wire", WIRES[:6])
@pytest.mark.parametrize("own", [("127.0.0.1", 80), ("::1", 80, 0, 0), ("10.0.0.1", 80), "/run/velox.sock", b"", None])
@pytest.mark.parametrize("guarded", [GUARDED, frozenset[str]()])
def test_host_of_a_page_is_refused_where_a_page_could_come(wire: bytes, own: object, guarded: frozenset[str]) -> None:
    """On loopback without keys, from a browser. Also if the head is known from where such a Host is served."""
    wire = wire.replace(b"Host: a\r\n", b"Host: a\r\nUser-Agent: Mozilla/5.0 (X11)\r\n")
    story = Story(at_once=True, guarded=guarded, own="/run/velox.sock")
    for _ in range(4):
        story.read(wire)
    assert len(story.app.asked) == 4
    story._own = own  # another listener of the same worker
    story._connect()
    story.read(wire)
    is_refused = bool(guarded) and isinstance(own, tuple) and own[0] in GUARDED
    assert story.app.refused == ([Reason.FORBIDDEN] if is_refused else [])
    assert len(story.app.asked) == (4 if is_refused else 5)
    served = Story(at_once=True, guarded=guarded, own=own)
    served.read(wire.replace(b"Host: a", b"Host: 127.0.0.1:8080"))
    assert len(served.app.asked) == 1


LARGE = 64 << 20
UPLOAD = b"POST /v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (LINES, LARGE)


class Uploads(Story):
    """Several connections, each with a long body that has begun."""

    def __init__(self, n: int, *, budget: int) -> None:
        super().__init__(at_once=False, budget=budget, body_bytes=LARGE)
        self.each: list[tuple[ClientHttp1Connection, Wire]] = []
        for _ in range(n):
            self._connect()
            self.each.append((self.connection, self.transport))
            self.read(UPLOAD + b"x")

    def send(self, n: int, data: bytes) -> None:
        """More of a body comes."""
        self.connection, self.transport = self.each[n]
        self.read(data)


def test_long_bodies_hold_what_has_come_of_them() -> None:
    """What they announce keeps nobody out; where no more of one fits it is refused, and what it held is free."""
    story = Uploads(4, budget=5 * FIRST_BYTES)
    assert story.budget.taken_bytes == 4 * FIRST_BYTES
    story._connect()
    story.read(WIRES[2])
    assert len(story.app.asked) == 1

    story.send(0, bytes(2 * FIRST_BYTES - 1))
    assert story.budget.taken_bytes == 5 * FIRST_BYTES and not story.app.refused
    story.send(0, b"x")
    assert story.app.refused == [Reason.OVERLOAD_MEMORY]
    assert story.budget.taken_bytes == 3 * FIRST_BYTES
    story.send(1, bytes(2 * FIRST_BYTES))
    assert story.budget.taken_bytes == 4 * FIRST_BYTES + 1, "what was taken with the head counts"


def test_long_body_gives_way_to_a_request_that_waits() -> None:
    """Also if there is room for its next byte: it holds much, and nobody knows for how long."""
    story = Uploads(2, budget=3 * FIRST_BYTES)
    story.send(0, bytes(FIRST_BYTES + 9))
    story._connect()
    body = bytes(FIRST_BYTES)
    story.read(b"POST /v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (LINES, len(body), body))
    waiting = story.connection
    assert not story.app.asked
    story.send(0, b"x")
    assert story.app.refused == [Reason.OVERLOAD_MEMORY]
    assert [body for _, body in story.app.asked] == [body] and waiting.is_idle


def test_long_body_that_is_whole_is_one_like_any_other() -> None:
    """All of it is counted, and given back with the reply."""
    story = Story(at_once=False, budget=LARGE, body_bytes=LARGE)
    body = bytes(3 * FIRST_BYTES + 7)
    story.read(b"POST /v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (LINES, len(body)))
    for at in range(0, len(body), 65_536):
        assert story.budget.taken_bytes == max(at, FIRST_BYTES)
        story.read(body[at : at + 65_536])
    assert [each for _, each in story.app.asked] == [body]
    assert story.budget.taken_bytes == 0 and story.connection.is_idle


MOST_A_TURN: Final = 32  # questions for time, of which each takes as long
N_AT_ONCE: Final = 3 * MOST_A_TURN + 5


class Crowd(Story):
    """Many connections, each of which sends something in the same turn of the loop."""

    def __init__(self, wire: bytes, *, at_once: bool = True, budget: int = BUDGET, body_bytes: int = 1000) -> None:
        super().__init__(at_once=at_once, max_connections=N_AT_ONCE + 1, budget=budget, body_bytes=body_bytes)
        self.each: list[tuple[ClientHttp1Connection, Wire]] = []
        for _ in range(N_AT_ONCE):
            self._connect()
            self.each.append((self.connection, self.transport))
        self.loop.now_s += 1.0
        self.tick_s = TURN_S / MOST_A_TURN
        self.send(wire)

    def send(self, wire: bytes) -> None:
        """Let it come from each that is read."""
        for connection, transport in self.each:
            if transport.is_reading():
                connection.data_received(wire)

    def turns(self, count: Callable[[], int] | None = None) -> list[int]:
        """Turn the loop until nothing moves any more; return the count turn by turn, of requests that were begun."""
        count = count or (lambda: len(self.app.asked))
        counts = [count()]
        while self.loop.soon:
            self.loop.turn()
            counts.append(count())
        return counts


def steps(counts: list[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise([0, *counts])]


@pytest.mark.parametrize("wire", [WIRES[0], WIRES[2], b"\r\n" + WIRES[0], WIRES[4]])
def test_requests_of_many_connections_begin_in_several_turns(wire: bytes) -> None:
    """A thousand that came together held the loop for 10 ms. Each is answered, in the order in which they came."""
    crowd = Crowd(wire)
    ended: list[int] = []
    counts = crowd.turns(lambda: ended.extend(n for n in answered(crowd) if n not in ended) or len(ended))

    assert MOST_A_TURN <= max(steps(counts)) <= MOST_A_TURN + 2
    assert ended == list(range(N_AT_ONCE))
    assert all(bytes(wire.sent).count(b" 200 ") == 1 for _, wire in crowd.each)
    assert all(connection.is_idle for connection, _ in crowd.each)


def answered(crowd: Crowd) -> list[int]:
    return [n for n, (_, wire) in enumerate(crowd.each) if wire.sent]


@pytest.mark.parametrize("wire", [WIRES[0], WIRES[2]])
def test_request_whose_client_leaves_before_its_turn_is_recorded_and_not_begun(wire: bytes) -> None:
    """It went upstream for nobody, or no line of the access log told of it. Each connection is closed."""
    crowd = Crowd(wire)
    begun = len(crowd.app.asked)
    for connection, _ in crowd.each:
        connection.eof_received()
    crowd.turns()

    assert 0 < len(crowd.app.asked) == begun < N_AT_ONCE
    assert crowd.app.refused == [Reason.CLIENT_CLOSED] * (N_AT_ONCE - begun)
    assert all(wire.is_closing() for _, wire in crowd.each[begun:])


def test_requests_sent_ahead_over_many_connections_begin_in_several_turns() -> None:
    crowd = Crowd(WIRES[0] * 3)
    counts = crowd.turns()

    assert counts[-1] == 3 * N_AT_ONCE
    assert max(steps(counts)) <= MOST_A_TURN + 2


def test_bodies_of_many_connections_are_read_in_several_turns() -> None:
    """Each was read up to 32 times in a turn, 64 KiB at a time: 30 uploads held the loop for up to 130 ms."""
    part, n_parts = bytes(64 * 1024), 4
    head = b"POST /v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (LINES, len(part) * n_parts)
    crowd = Crowd(head, at_once=False, budget=LARGE, body_bytes=LARGE)
    crowd.turns()

    left, n_read, turns = dict.fromkeys(range(N_AT_ONCE), n_parts), 0, 0
    while len(crowd.app.asked) < N_AT_ONCE:
        for n, (connection, wire) in enumerate(crowd.each):
            while left[n] and wire.is_reading():  # as the loop does
                left[n] -= 1
                connection.data_received(part)
        crowd.loop.turn()
        waiting = sum(connection._request.buffered for connection, _ in crowd.each)
        assert waiting <= N_AT_ONCE * len(part), "each is read once more at most, and then not until its turn"
        before, n_read = n_read, (n_parts * N_AT_ONCE - sum(left.values())) * len(part) - waiting
        assert n_read - before <= 2 * (MOST_A_TURN + 2) * len(part), "of what comes, and of what waits"
        turns += 1
        assert turns < n_parts * N_AT_ONCE, "it does not end"
    assert {body for _, body in crowd.app.asked} == {part * n_parts}
    crowd.turns()
    assert crowd.budget.taken_bytes == 0


def test_chunks_of_one_byte_are_read_in_several_turns() -> None:
    """Three thousand of them, more than which are refused, held the loop for 26 ms: of each connection."""
    text = bytes(range(97, 117)) * 140
    head = b"POST /v1/x HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % LINES
    wire = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    crowd = Crowd(head, at_once=False, budget=LARGE, body_bytes=LARGE)
    crowd.turns()

    crowd.send(wire)
    counts = crowd.turns(lambda: sum(len(wire) - connection._request.buffered for connection, _ in crowd.each))
    assert max(steps(counts)) <= (MOST_A_TURN + 2) * 64 * len(b"1\r\na\r\n") + 2 * len(wire)
    assert len(counts) > N_AT_ONCE * len(text) // 64 // (MOST_A_TURN + 2)
    assert [body for _, body in crowd.app.asked] == [text] * N_AT_ONCE
    crowd.turns()
    assert crowd.budget.taken_bytes == 0


def test_body_that_waits_for_its_turn_has_kept_its_pace() -> None:
    """It came in time: what counts is when it came, not when it is read."""
    crowd = Crowd(WIRES[2][:-5], at_once=False, budget=LARGE)
    crowd.turns()
    crowd.loop.now_s += 14.0
    crowd.send(b"hel")
    late, _ = crowd.each[-1]
    assert late.deadline_s > crowd.loop.now_s + 10.0
    crowd.turns()
    assert late.deadline_s > crowd.loop.now_s + 10.0
    crowd.send(b"lo")
    crowd.turns()
    assert {body for _, body in crowd.app.asked} == {b"hello"}


@pytest.mark.parametrize("n_asked", [0, 1])
def test_many_clients_that_leave_at_once_have_a_turn_each(n_asked: int) -> None:
    """A thousand that left together held the loop for 30 ms, and their upstreams' requests came on top."""
    crowd = Crowd(WIRES[0] * n_asked, at_once=False)
    while n_asked and len(crowd.app.asked) < N_AT_ONCE:
        crowd.loop.turn()
    crowd.loop.now_s += 1.0
    closed = [connection.eof_received() for connection, _ in crowd.each]

    assert closed.count(False) <= MOST_A_TURN + 2
    counts = crowd.turns(lambda: sum(wire.is_closed for _, wire in crowd.each))
    assert max(steps(counts)) <= MOST_A_TURN + 2
    assert all(wire.is_closed for (_, wire), stays in zip(crowd.each, closed, strict=True) if stays)


class Begun:
    """A request that is being answered."""

    def client_gone(self, *, stalled: bool = False) -> None:
        pass

    client_paused = client_resumed = client_gone


@pytest.mark.parametrize(("begun", "each_s"), [(None, CLOSE_S), (Begun(), ABORT_S)])
def test_what_the_loop_does_to_close_connections_counts(begun: Begun | None, each_s: float) -> None:
    """It closes sockets in the turn after: of a thousand, 600 in one, for 10 ms. Our own part takes no time here."""
    crowd = Crowd(b"")
    crowd.turns()
    for connection, _ in crowd.each:
        connection._exchange = begun
    crowd.tick_s, crowd.loop.now_s = 0.0, crowd.loop.now_s + 1.0
    closed = [connection.eof_received() for connection, _ in crowd.each]

    most = round(TURN_S / each_s) + 2
    assert closed.count(False) <= most < N_AT_ONCE
    assert max(steps(crowd.turns(lambda: sum(wire.is_closed for _, wire in crowd.each)))) <= most
    assert all(wire.is_closed for (_, wire), stays in zip(crowd.each, closed, strict=True) if stays)


def test_client_that_leaves_before_its_turn_is_not_served() -> None:
    crowd = Crowd(WIRES[0])
    crowd.each[-1][0].connection_lost(None)

    assert crowd.turns()[-1] == N_AT_ONCE - 1


def test_request_that_waits_for_its_turn_is_answered_while_the_worker_drains() -> None:
    crowd = Crowd(WIRES[0])
    crowd.ingress.drain()
    last, wire = crowd.each[-1]
    assert not wire.is_closed and last.deadline_s == crowd.loop.now_s + 10.0, "as for the rest of a head"

    assert crowd.turns()[-1] == N_AT_ONCE
    assert b"connection: close" in bytes(wire.sent).lower()


def test_what_is_left_of_a_request_that_waits_for_its_turn_is_no_other_request() -> None:
    crowd = Crowd(WIRES[2][:-3])
    for connection, _ in crowd.each:
        connection.data_received(WIRES[2][-3:])

    crowd.turns()
    assert [body for _, body in crowd.app.asked] == [b"hello"] * N_AT_ONCE
