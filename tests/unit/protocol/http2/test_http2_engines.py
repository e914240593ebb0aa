"""Both HTTP/2 engines keep the rules of velox.protocol.http2.engine.Engine, with themselves and with each other."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.unit.protocol.http2.http2_peers import OK, REQUEST, Name, Pair, Recorder, make
from velox.protocol.http2.engine import (
    CANCEL,
    REFUSED_STREAM,
    EngineError,
    EngineSettings,
    SendQueue,
)
from velox.protocol.http2.engines import engine_factory

MIB = 1 << 20
PAIRS: list[tuple[Name, Name]] = [("ngh2", "ngh2"), ("ngh2", "h2"), ("h2", "ngh2"), ("h2", "h2")]
each_pair = pytest.mark.parametrize("names", PAIRS, ids="-".join)


@each_pair
def test_exchange_with_bodies_arrives_whole_and_in_order(names: tuple[Name, Name]) -> None:
    """What one side sends is what the other side's handler gets: fields, body, end, once each."""
    pair = Pair(*names)
    stream_id = pair.exchange(b"a question", b"an answer")
    assert pair.at_server.heads[stream_id] == REQUEST
    assert pair.at_server.body(stream_id) == b"a question"
    assert pair.at_client.heads[stream_id] == OK
    assert pair.at_client.body(stream_id) == b"an answer"
    assert pair.at_server.ended == pair.at_client.ended == [stream_id]
    assert pair.at_client.resets == pair.at_server.resets == []


@each_pair
def test_exchange_without_bodies_ends_with_the_heads(names: tuple[Name, Name]) -> None:
    """A GET and a 204 carry no DATA frame; both ends are seen."""
    pair = Pair(*names)
    stream_id = pair.exchange(b"", b"")
    assert pair.at_server.ended == pair.at_client.ended == [stream_id]
    assert pair.at_client.bodies == pair.at_server.bodies == {}


@each_pair
def test_body_ended_by_empty_data_ends_once(names: tuple[Name, Name]) -> None:
    """An end that is known only after the last byte travels as an empty DATA frame."""
    pair = Pair(*names)
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, b"all there is", False)
    pair.pump()
    assert pair.at_server.ended == []
    pair.client.send_data(stream_id, b"", True)
    pair.pump()
    assert pair.at_server.body(stream_id) == b"all there is"
    assert pair.at_server.ended == [stream_id]


@each_pair
def test_exchanges_side_by_side_stay_apart(names: tuple[Name, Name]) -> None:
    """Frames of a hundred streams mix on the wire; no byte reaches another stream's handler."""
    pair = Pair(*names)
    ids = [pair.client.send_request(REQUEST, True) for _ in range(100)]
    pair.pump()
    for part in range(3):
        for stream_id in ids:
            pair.server.send_response(stream_id, OK, False) if not part else None
            pair.server.send_data(stream_id, b"%d.%d " % (stream_id, part), part == 2)
        pair.pump()
    assert {i: pair.at_client.body(i) for i in ids} == {i: b"%d.0 %d.1 %d.2 " % (i, i, i) for i in ids}


@each_pair
@pytest.mark.parametrize("sender", ["client", "server"])
def test_unacknowledged_body_stops_at_the_stream_window(names: tuple[Name, Name], sender: str) -> None:
    """The peer sends exactly the window and goes on by what is acknowledged, both ways."""
    window = 128 * 1024
    settings = EngineSettings(stream_window=window, connection_window=MIB)
    pair = Pair(*names, client_settings=settings, server_settings=settings)
    stream_id = pair.client.send_request(REQUEST, sender == "server")
    pair.pump()
    from_engine, to_engine, receiver = pair.client, pair.server, pair.at_server
    if sender == "server":
        from_engine, to_engine, receiver = pair.server, pair.client, pair.at_client
        pair.server.send_response(stream_id, OK, False)
    receiver.acknowledges = False
    body = bytes(range(256)) * 2048
    from_engine.send_data(stream_id, body, True)
    pair.pump()
    assert len(receiver.body(stream_id)) == window
    assert from_engine.queued_bytes(stream_id) == len(body) - window
    assert not from_engine.has_output
    # A window is reopened when enough of it is free (half, with libnghttp2), not for every byte.
    to_engine.acknowledge(stream_id, window)
    pair.pump()
    assert len(receiver.body(stream_id)) == 2 * window
    receiver.acknowledges = True
    to_engine.acknowledge(stream_id, window)
    pair.pump()
    assert receiver.body(stream_id) == body
    assert receiver.ended == [stream_id]


@each_pair
@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "before SETTINGS"])
@pytest.mark.parametrize("limit", [MIB, 20], ids=["at once", "in pieces"])
def test_stream_that_is_widened_takes_so_much_more(names: tuple[Name, Name], is_settled: bool, limit: int) -> None:
    """Whenever its head leaves, and whether or not the peer knows our settings by then; its neighbours' stay narrow."""
    settings = EngineSettings(stream_window=16_384, connection_window=MIB)
    pair = Pair(*names, client_settings=settings)
    if not is_settled:
        pair.client, pair.at_client = make(names[0], settings, client=True)
        pair.server, pair.at_server = make(names[1], EngineSettings(), client=False)
    pair.at_client.acknowledges = False
    narrow, wide, gone = (pair.client.send_request(REQUEST, True) for _ in range(3))
    for stream_id in wide, gone:
        pair.client.widen(stream_id, 100_000)
    pair.client.reset(gone)
    pair.client.widen(gone, 100_000)
    while pair.client.has_output:
        pair.server.receive(pair.client.take_output(limit))
    for stream_id in wide, narrow:
        pair.server.send_response(stream_id, OK, False)
        pair.server.send_data(stream_id, bytes(300_000), True)
    pair.pump()
    assert [len(pair.at_client.body(stream_id)) for stream_id in (wide, narrow)] == [116_384, 16_384]
    pair.at_client.acknowledges = True
    for stream_id, n_bytes in (wide, 116_384), (narrow, 16_384):
        pair.client.acknowledge(stream_id, n_bytes)
    pair.pump()
    assert set(pair.at_client.ended) == {wide, narrow}
    assert all(len(pair.at_client.body(stream_id)) == 300_000 for stream_id in (wide, narrow))


@each_pair
def test_stream_out_of_window_does_not_stop_its_neighbour(names: tuple[Name, Name]) -> None:
    """A client that does not read holds up its own stream only, while the connection's window lasts."""
    settings = EngineSettings(stream_window=64 * 1024, connection_window=MIB)
    pair = Pair(*names, client_settings=settings)
    pair.at_client.acknowledges = False
    slow, fast = (pair.client.send_request(REQUEST, True) for _ in range(2))
    pair.pump()
    pair.server.send_response(slow, OK, False)
    pair.server.send_data(slow, bytes(300_000), True)
    pair.pump()
    pair.server.send_response(fast, OK, False)
    pair.server.send_data(fast, b"quick", True)
    pair.pump()
    assert len(pair.at_client.body(slow)) == 64 * 1024
    assert pair.at_client.ended == [fast]


@each_pair
def test_connection_window_is_not_lost_with_streams_that_end_unacknowledged(names: tuple[Name, Name]) -> None:
    """However a stream ends, what it took from the connection's window comes back."""
    settings = EngineSettings(stream_window=256 * 1024, connection_window=512 * 1024)
    pair = Pair(*names, client_settings=settings)
    pair.at_client.acknowledges = False
    for turn in range(12):
        stream_id = pair.client.send_request(REQUEST, True)
        pair.pump()
        pair.server.send_response(stream_id, OK, False)
        pair.server.send_data(stream_id, bytes(200_000), turn % 3 == 0)
        pair.pump()
        assert len(pair.at_client.body(stream_id)) == 200_000, f"the window is gone in turn {turn}"
        if turn % 3 == 1:
            pair.client.reset(stream_id)
        elif turn % 3 == 2:
            pair.server.reset(stream_id)
        pair.pump()


@each_pair
@pytest.mark.parametrize("limit", [100_000, 4 * (16_384 + 9), 16_384 + 9], ids=["any", "four frames", "one frame"])
def test_upload_over_all_windows_arrives_in_bounded_pieces(names: tuple[Name, Name], limit: int) -> None:
    """A large body is given out in pieces no larger than asked for and is never copied whole."""
    pair = Pair(*names, server_settings=EngineSettings(stream_window=MIB, connection_window=4 * MIB))
    body = bytes(range(256)) * (4 * MIB // 256)
    stream_id = pair.client.send_request(REQUEST, False)
    pair.pump()  # the head is out: what follows is whole frames
    tracemalloc.start()
    pair.client.send_data(stream_id, body, True)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 256 * 1024
    assert pair.client.queued_bytes(stream_id) == len(body)
    largest = 0
    while pair.client.has_output:
        piece = pair.client.take_output(limit)
        largest = max(largest, len(piece))
        pair.server.receive(piece)
        while pair.server.has_output:
            pair.client.receive(pair.server.take_output())
    assert limit // 2 < largest <= limit
    assert pair.at_server.body(stream_id) == body
    assert pair.at_server.ended == [stream_id]
    assert pair.client.queued_bytes(stream_id) == 0


@each_pair
def test_upload_that_waits_goes_on_when_told_by_on_window(names: tuple[Name, Name]) -> None:
    """A sender with a full queue hears on_window when the peer takes more."""
    pair = Pair(*names, server_settings=EngineSettings(stream_window=64 * 1024, connection_window=MIB))
    pair.at_server.acknowledges = False
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, bytes(100_000), True)
    pair.pump()
    pair.at_client.windows.clear()
    pair.server.acknowledge(stream_id, 64 * 1024)
    pair.client.receive(pair.server.take_output())
    assert stream_id in pair.at_client.windows
    pair.pump()
    assert pair.client.queued_bytes(stream_id) == 0


@each_pair
def test_end_needs_no_window(names: tuple[Name, Name]) -> None:
    """A body that filled the window to the last byte may still be ended (RFC 9113 §6.9.1).

    libnghttp2 waits for the next window all the same, which any server opens that reads what it got.
    """
    pair = Pair(*names, server_settings=EngineSettings(stream_window=70_000, connection_window=MIB))
    pair.at_server.acknowledges = False
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, bytes(70_000), False)
    pair.pump()
    assert len(pair.at_server.body(stream_id)) == 70_000
    pair.client.send_data(stream_id, b"", True)
    pair.pump()
    if names[0] == "ngh2":
        pair.server.acknowledge(stream_id, 70_000)
        pair.pump()
    assert pair.at_server.ended == [stream_id]


@each_pair
def test_acknowledging_more_than_came_opens_no_more_than_that(names: tuple[Name, Name]) -> None:
    """A caller that counts wrongly can't be made to raise, nor give the peer a larger window."""
    pair = Pair(*names, server_settings=EngineSettings(stream_window=70_000, connection_window=MIB))
    pair.at_server.acknowledges = False
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, bytes(300_000), True)
    pair.pump()
    pair.server.acknowledge(stream_id, 10**9)
    pair.pump()
    assert len(pair.at_server.body(stream_id)) == 140_000


@each_pair
@pytest.mark.parametrize("piece", [16 * MIB, 16_000], ids=["whole", "in pieces"])
def test_large_upload_does_not_hold_up_a_small_request(names: tuple[Name, Name], piece: int) -> None:
    """Beside a body that fills the pipe, a small one's bytes leave within the next 320 KiB."""
    settings = EngineSettings(stream_window=32 * MIB, connection_window=64 * MIB)
    pair = Pair(*names, server_settings=settings)
    large = pair.client.send_request(REQUEST, False)
    for _ in range(16 * MIB // piece):
        pair.client.send_data(large, bytes(piece), False)
    pair.server.receive(pair.client.take_output(100_000))
    small = pair.client.send_request(REQUEST, False)
    pair.client.send_data(small, b"hello", True)
    for _ in range(5):
        pair.server.receive(pair.client.take_output(64 * 1024))
    assert pair.at_server.ended == [small]


@each_pair
def test_many_small_pieces_behind_a_closed_window_keep_their_order(names: tuple[Name, Name]) -> None:
    """A body that comes in pieces, faster than the peer takes it, stays in order; sizes add up."""
    pair = Pair(*names, server_settings=EngineSettings(stream_window=64 * 1024, connection_window=MIB))
    stream_id = pair.client.send_request(REQUEST, False)
    pieces = [bytes([n % 251]) * (1000 + n) for n in range(600)]
    for piece in pieces:
        pair.client.send_data(stream_id, piece, False)
    assert pair.client.queued_bytes(stream_id) == sum(map(len, pieces))
    pair.client.send_data(stream_id, b"", True)
    pair.pump()
    assert pair.at_server.body(stream_id) == b"".join(pieces)
    assert pair.at_server.ended == [stream_id]


@pytest.mark.parametrize("n_bytes", [0, 1, 64 << 10, (64 << 10) + 1, 300_000])
@each_pair
def test_body_that_goes_with_the_head_arrives_whole(names: tuple[Name, Name], n_bytes: int) -> None:
    """In one call, of whatever size; with an end, and with more to follow."""
    pair = Pair(*names)
    body = bytes(range(256)) * (n_bytes // 256) + bytes(n_bytes % 256)
    ended = pair.client.send_request(REQUEST, True, body)
    open_ended = pair.client.send_request(REQUEST, False, body)
    pair.client.send_data(open_ended, b"more", True)
    pair.pump()
    assert pair.at_server.body(ended) == body
    assert pair.at_server.body(open_ended) == body + b"more"
    assert sorted(pair.at_server.ended) == [ended, open_ended]


@each_pair
def test_finish_lets_go_of_what_is_left_of_a_request(names: tuple[Name, Name]) -> None:
    """A reply that came before the request's end: its rest is not sent, and the peer hears so. Else nothing happens."""
    pair = Pair(*names, server_settings=EngineSettings(stream_window=64 * 1024, connection_window=MIB))
    pair.at_server.acknowledges = False
    early = pair.client.send_request(REQUEST, True, bytes(300_000))
    usual = pair.client.send_request(REQUEST, True, b"all of it")
    pair.pump()
    for stream_id in (early, usual):
        pair.server.send_response(stream_id, OK, False)
        pair.server.send_data(stream_id, b"enough", True)
    pair.pump()
    assert pair.client.queued_bytes(early)
    for stream_id in (early, usual, 99):
        pair.client.finish(stream_id)
        pair.client.finish(stream_id)
    pair.pump()
    assert pair.client.queued_bytes(early) == 0
    assert pair.at_server.resets == [(early, CANCEL)]
    assert sorted(pair.at_client.ended) == [early, usual] and pair.at_client.resets == []


@each_pair
def test_reset_by_server_reaches_the_client_once(names: tuple[Name, Name]) -> None:
    """RST_STREAM carries its code to the handler; siblings go on."""
    pair = Pair(*names)
    refused, sibling = (pair.client.send_request(REQUEST, True) for _ in range(2))
    pair.pump()
    pair.server.reset(refused, REFUSED_STREAM)
    pair.server.send_response(sibling, OK, True)
    pair.pump()
    assert pair.at_client.resets == [(refused, REFUSED_STREAM)]
    assert pair.at_client.ended == [sibling]
    assert pair.at_server.resets == []


@each_pair
def test_reset_by_client_stops_both_sides(names: tuple[Name, Name]) -> None:
    """After reset() nothing of the stream reaches the handler that asked for it, and its queue is gone."""
    pair = Pair(*names)
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, b"begin", False)
    pair.pump()
    pair.server.send_response(stream_id, OK, False)
    pair.server.send_data(stream_id, b"late", False)
    pair.client.send_data(stream_id, bytes(MIB), True)
    pair.client.reset(stream_id)
    assert pair.client.queued_bytes(stream_id) == 0
    pair.pump()
    assert pair.at_server.resets == [(stream_id, CANCEL)]
    assert pair.at_client.heads == {}
    assert pair.at_client.resets == []
    assert pair.at_server.body(stream_id) == b"begin"
    pair.exchange()


@each_pair
def test_server_hears_that_its_client_is_gone(names: tuple[Name, Name]) -> None:
    """A cancelled request reaches the server's handler though the request itself was whole."""
    pair = Pair(*names)
    stream_id = pair.client.send_request(REQUEST, True)
    pair.pump()
    pair.client.reset(stream_id)
    pair.pump()
    assert pair.at_server.ended == [stream_id]
    assert pair.at_server.resets == [(stream_id, CANCEL)]


@each_pair
def test_reset_before_the_request_left_harms_nothing(names: tuple[Name, Name]) -> None:
    """A client may be gone before its request was even written."""
    pair = Pair(*names)
    stream_id = pair.client.send_request(REQUEST, False)
    pair.client.send_data(stream_id, b"never mind", True)
    pair.client.reset(stream_id)
    pair.pump()
    assert pair.at_server.ended == []
    assert pair.at_client.fatal == pair.at_server.fatal == []
    pair.exchange()


@pytest.mark.slow
@each_pair
def test_cancel_storm_leaves_the_connection_usable(names: tuple[Name, Name]) -> None:
    """500 cancelled streams, five times what may be open at once, and the next exchange passes (F-43)."""
    pair = Pair(*names)
    for _ in range(50):
        ids = [pair.client.send_request(REQUEST, True) for _ in range(10)]
        pair.pump()
        for stream_id in ids:
            pair.server.send_response(stream_id, OK, False)
            pair.server.send_data(stream_id, b"data", False)
        pair.pump()
        for stream_id in ids:
            pair.client.reset(stream_id)
        pair.pump()
    stream_id = pair.exchange()
    assert pair.at_client.body(stream_id) == b"pong"
    assert len(pair.at_server.resets) == 500


@each_pair
def test_verbs_on_a_stream_that_is_over_do_nothing(names: tuple[Name, Name]) -> None:
    """The stream may end in the read before a caller uses it: that is no error."""
    pair = Pair(*names)
    stream_id = pair.exchange()
    for engine in (pair.client, pair.server):
        engine.send_data(stream_id, b"late", True)
        engine.send_response(stream_id, OK, True)
        engine.acknowledge(stream_id, 100)
        engine.reset(stream_id)
        assert engine.queued_bytes(stream_id) == 0
        assert not engine.has_output
    pair.exchange()


@each_pair
def test_request_above_the_peers_stream_limit_is_refused(names: tuple[Name, Name]) -> None:
    """Neither engine queues silently above MAX_CONCURRENT_STREAMS; a stream that ends makes room (F-36)."""
    pair = Pair(*names, server_settings=EngineSettings(max_streams_local=2))
    assert pair.at_client.n_settings == 1
    assert pair.client.peer_max_streams == 2
    first, _ = (pair.client.send_request(REQUEST, True) for _ in range(2))
    with pytest.raises(EngineError, match="no more streams"):
        pair.client.send_request(REQUEST, True)
    pair.pump()
    pair.server.send_response(first, OK, True)
    pair.pump()
    assert pair.client.send_request(REQUEST, True) > 0


@each_pair
def test_goaway_lets_open_streams_finish_and_refuses_new_ones(names: tuple[Name, Name]) -> None:
    """A server that leaves answers what it has taken on; then no stream can be opened (F-33)."""
    pair = Pair(*names)
    stream_id = pair.client.send_request(REQUEST, True)
    pair.pump()
    pair.server.send_response(stream_id, OK, False)
    pair.server.goaway()
    pair.pump()
    assert pair.at_client.goaways == [(stream_id, 0)]
    with pytest.raises(EngineError):
        pair.client.send_request(REQUEST, True)
    pair.server.send_data(stream_id, b"the rest", True)
    pair.pump()
    assert pair.at_client.body(stream_id) == b"the rest"
    assert pair.at_client.ended == [stream_id]
    assert pair.at_client.fatal == []


@each_pair
def test_goaway_hands_back_streams_the_server_never_saw(names: tuple[Name, Name]) -> None:
    """A request that crossed a GOAWAY on the wire is refused, so it may be sent elsewhere (F-34)."""
    pair = Pair(*names)
    seen = pair.client.send_request(REQUEST, True)
    pair.pump()
    pair.server.goaway()
    unseen = pair.client.send_request(REQUEST, False)
    pair.client.send_data(unseen, bytes(20 * MIB), True)
    while pair.client.has_output:
        pair.client.take_output()  # lost: the server had said goodbye
    assert pair.client.queued_bytes(unseen) > 0
    pair.client.receive(pair.server.take_output())
    assert pair.at_client.resets == [(unseen, REFUSED_STREAM)]
    assert pair.client.queued_bytes(unseen) == 0
    pair.server.send_response(seen, OK, True)
    pair.client.receive(pair.server.take_output())
    assert pair.at_client.ended == [seen]


@each_pair
def test_ping_is_answered(names: tuple[Name, Name]) -> None:
    """ping() finds out whether the peer lives."""
    pair = Pair(*names)
    pair.client.ping()
    pair.pump()
    assert (pair.at_client.n_pongs, pair.at_server.n_pongs) == (1, 0)


@each_pair
def test_answers_sent_from_within_the_handler_arrive(names: tuple[Name, Name]) -> None:
    """Verbs may be called from a callback, where the engine is in the middle of a read."""

    class Echo(Recorder):
        def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
            super().on_data(stream_id, data, end_stream)
            if end_stream:
                self.engine.send_response(stream_id, OK, False)
                self.engine.send_data(stream_id, self.body(stream_id), True)

    pair = Pair(*names)
    pair.at_server = Echo()
    pair.at_server.engine = pair.server = engine_factory(names[1])(pair.at_server, EngineSettings(), False)
    pair.server.start()
    pair.at_client = Recorder()
    pair.at_client.engine = pair.client = engine_factory(names[0])(pair.at_client, EngineSettings(), True)
    pair.client.start()
    ids = [pair.client.send_request(REQUEST, False) for _ in range(5)]
    for stream_id in ids:
        pair.client.send_data(stream_id, bytes([stream_id]) * 200_000, True)
    pair.pump()
    assert [pair.at_client.body(i) for i in ids] == [bytes([i]) * 200_000 for i in ids]


@pytest.mark.slow
@each_pair
@pytest.mark.more
def test_thousands_of_exchanges_leave_nothing_behind(names: tuple[Name, Name]) -> None:
    """An engine that lives for days grows by nothing from one exchange to the next."""
    pair = Pair(*names)

    def run(n: int) -> int:
        for turn in range(n):
            stream_id = pair.client.send_request(REQUEST, False)
            pair.client.send_data(stream_id, bytes(70_000 if turn % 50 == 0 else 100), True)
            pair.pump()
            if turn % 5 == 0:
                (pair.client if turn % 2 else pair.server).reset(stream_id)
            else:
                pair.server.send_response(stream_id, OK, False)
                pair.server.send_data(stream_id, b"answer", True)
            pair.pump()
            pair.at_client.forget()
            pair.at_server.forget()
        pair.at_client.resets.clear()
        pair.at_server.resets.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(2_200)  # h2 remembers its last 1,000 streams
        after = run(3_000)
    finally:
        tracemalloc.stop()
    assert after - before < 3_000 * 16


def test_send_queue_cuts_without_copying_what_stays() -> None:
    """The pieces of a queue are the bytes that went in, cut at the limit; a whole chunk is handed over as it is."""
    queue = SendQueue()
    small, large = b"abc", bytes(range(256)) * 10
    queue.push(small, False)
    queue.push(large, True)
    assert queue.take(10) is small
    assert (queue.take(1000), queue.n_bytes) == (large[:1000], 1560)
    assert queue.take(1560) == large[1000:]
    assert (queue.take(1), queue.n_bytes, queue.ended) == (b"", 0, True)
