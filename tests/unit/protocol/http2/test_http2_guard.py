"""What a client may send before its connection ends, at each limit's edge, and with each engine behind it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from hpack import Encoder, NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2spec.talker import ACK, END_HEADERS, END_STREAM, PADDED, frame, uint32
from tests.unit.protocol.http2.http2_peers import OK, PREFACE, REQUEST, Name, Pair, Recorder, make
from tests.unit.protocol.http2.test_http2_hostile import frames_of
from velox.protocol.http2.engine import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    INGRESS_SETTINGS,
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    Engine,
)
from velox.protocol.http2.guard import Fault, FrameGuard
from velox.protocol.http2.ngh2_engine import SharedFields

each_engine = pytest.mark.parametrize("name", ["ngh2", "h2"])

BLOCK = Encoder().encode(REQUEST, huffman=False)
PING = frame(6, 0, 0, bytes(8))
HELLO = PREFACE + frame(4, 0, 0)
IDLE = {
    "ping": PING,
    "ping ack": frame(6, ACK, 0, bytes(8)),
    "settings": frame(4, 0, 0),
    "priority": frame(2, 0, 9, uint32(0) + b"\0"),
    "window": frame(8, 0, 0, uint32(1)),
    "large window": frame(8, 0, 0, uint32(2_000)),
    "empty data": frame(0, 0, 1),
    "padded data": frame(0, PADDED, 1, b"\x05" + bytes(5)),
    "unknown": frame(0xEE, 0, 0, b"x"),
}


def head(stream_id: int, *, end: bool = False, block: bytes = BLOCK, whole: bool = True) -> bytes:
    return frame(1, (END_HEADERS if whole else 0) | end, stream_id, block)


def guard(*sent: bytes) -> FrameGuard:
    """A guard that has read the preface and an open request on stream 1."""
    made = FrameGuard(100)
    assert made.read(PREFACE + head(1) + b"".join(sent), 0.0) is None
    return made


def calm(fault: Fault | None) -> bool:
    return fault is not None and fault.error_code == ENHANCE_YOUR_CALM


# -- frames that bring nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("idle", IDLE.values(), ids=IDLE)
def test_200_idle_frames_pass_and_the_next_is_one_too_many(idle: bytes) -> None:
    """Whatever brings nothing counts alike, at once or one by one."""
    made = guard()
    assert made.read(idle * 199, 0.0) is None
    assert made.read(idle, 0.0) is None
    assert calm(made.read(idle, 0.0))


def test_idle_frames_are_forgiven_at_20_a_second() -> None:
    """A client that sends PING now and then lives for ever."""
    made = guard(PING * 200)
    for second in range(1, 100):
        assert made.read(PING * 20, float(second)) is None
    assert calm(made.read(PING * 21, 100.0))


def test_a_long_pause_earns_no_more_than_the_burst() -> None:
    """What was not used does not add up."""
    made = guard()
    assert calm(made.read(PING * 201, 1e6))


def test_our_data_justifies_three_frames_each() -> None:
    """A client that answers each DATA frame of ours by two WINDOW_UPDATE and a PING is no flood."""
    made = guard(PING * 200)
    made.wrote(frame(0, 0, 1, b"event") * 50)
    assert made.read(PING * 150, 0.0) is None
    assert calm(made.read(PING, 0.0))


def test_what_our_data_justifies_is_bounded() -> None:
    """A day of answers is no licence for a flood."""
    made = guard()
    made.wrote(frame(0, 0, 1, b"event") * 100_000)
    assert calm(made.read(PING * 4_500, 0.0))


@pytest.mark.parametrize(("n_settings", "passes"), [(32, True), (33, False)])
def test_settings_have_32_entries_at_most(n_settings: int, passes: bool) -> None:
    """One frame with thousands of settings costs as much as thousands of frames."""
    made = guard()
    assert (made.read(frame(4, 0, 0, b"\0\x99\0\0\0\1" * n_settings), 0.0) is None) is passes


# -- resets ---------------------------------------------------------------------------------------------


def test_100_resets_pass_and_the_next_is_one_too_many() -> None:
    """Received ones (CVE-2023-44487)."""
    made = guard()
    sent = b"".join(head(n) + frame(3, 0, n, uint32(CANCEL)) for n in range(3, 203, 2))
    assert made.read(sent, 0.0) is None
    assert calm(made.read(head(203) + frame(3, 0, 203, uint32(CANCEL)), 0.0))


def test_resets_that_we_are_made_to_send_count_with_those_we_receive() -> None:
    """60 of one and 40 of the other are 100 (CVE-2025-8671)."""
    made = guard()
    for n in range(3, 123, 2):
        assert made.read(head(n) + frame(3, 0, n, uint32(CANCEL)), 0.0) is None
    for n in range(123, 203, 2):
        assert made.read(head(n), 0.0) is None
        made.wrote(frame(3, 0, n, uint32(PROTOCOL_ERROR)))
        assert made.fault is None
    made.wrote(frame(3, 0, 1, uint32(PROTOCOL_ERROR)))
    assert calm(made.fault)
    assert calm(made.read(PING, 0.0))


def test_resets_are_forgiven_at_33_a_second() -> None:
    """A client that cancels a lot, but no more than that, keeps its connection."""
    made = guard()
    stream_id = 1
    for second in range(50):
        for _ in range(33):
            stream_id += 2
            assert made.read(head(stream_id) + frame(3, 0, stream_id, uint32(CANCEL)), float(second)) is None


def test_a_reply_cut_by_the_upstream_is_not_the_clients_fault() -> None:
    """RST_STREAM INTERNAL_ERROR is for that."""
    made = guard()
    for n in range(3, 1_003, 2):
        assert made.read(head(n, end=True), 0.0) is None
        made.wrote(frame(3, 0, n, uint32(INTERNAL_ERROR)))
    assert made.fault is None


# -- header blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_more", "passes"), [(7, True), (8, True), (9, False)])
def test_a_block_has_8_continuations_at_most(n_more: int, passes: bool) -> None:
    """CVE-2024-27316; empty ones count."""
    made = FrameGuard(100)
    fault = made.read(PREFACE + head(1, whole=False) + frame(9, 0, 1) * n_more, 0.0)
    assert (fault is None) is passes
    assert passes or calm(fault)


@pytest.mark.parametrize(("n_bytes", "passes"), [(65_535, True), (65_536, True), (65_537, False)])
def test_a_block_has_64_kib_at_most(n_bytes: int, passes: bool) -> None:
    """Known from the frame's header, before its bytes."""
    made = FrameGuard(100)
    sent = head(1, block=bytes(16_384), whole=False) + frame(9, 0, 1, bytes(16_384)) * 2
    last = frame(9, END_HEADERS, 1, length=n_bytes - 3 * 16_384)
    assert (made.read(PREFACE + sent + last, 0.0) is None) is passes


def test_nothing_may_come_into_the_midst_of_a_block() -> None:
    """RFC 9113 §4.3."""
    made = FrameGuard(100)
    fault = made.read(PREFACE + head(1, whole=False) + PING, 0.0)
    assert fault is not None and fault.error_code == PROTOCOL_ERROR


# -- bodies ---------------------------------------------------------------------------------------------


def test_bodies_in_crumbs_end_the_connection() -> None:
    """As for chunks: 16 KiB of frame headers are free, then a frame must carry 72 bytes for its own 9."""
    assert guard().read(frame(0, 0, 1, b"x" * 7) * 1_820, 0.0) is None
    assert calm(guard().read(frame(0, 0, 1, b"x" * 7) * 1_821, 0.0))
    assert guard().read(frame(0, 0, 1, b"x" * 72) * 50_000, 0.0) is None


def test_small_requests_are_no_crumbs() -> None:
    """Every SDK's request with a short body, in one DATA frame or in one and an empty one that ends it."""
    made = guard()
    for n in range(3, 40_003, 4):
        body = frame(0, 0, n, b"{}") + frame(0, END_STREAM, n) + head(n + 2) + frame(0, END_STREAM, n + 2, b"{}")
        assert made.read(head(n) + body, 0.0) is None


# -- streams that are over ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [frame(0, END_STREAM, 1), frame(3, 0, 1, uint32(CANCEL)), head(1, end=True)],
    ids=["ended", "reset", "trailers"],
)
@pytest.mark.parametrize("late", [frame(0, 0, 1, b"x"), head(1)], ids=["data", "headers"])
def test_a_stream_that_the_client_ended_takes_nothing_more(after: bytes, late: bytes) -> None:
    """RFC 9113 §5.1: no client does that by accident."""
    fault = guard(after).read(late, 0.0)
    assert fault is not None and fault.error_code == STREAM_CLOSED


def test_what_was_on_its_way_when_we_reset_a_stream_is_no_fault() -> None:
    """RFC 9113 §5.1: an upload that we have refused goes on for a round trip."""
    made = guard()
    made.wrote(frame(3, 0, 1, uint32(PROTOCOL_ERROR)))
    assert made.read(frame(0, 0, 1, bytes(1_000)) * 60 + head(1, end=True), 0.0) is None


def test_streams_that_nobody_takes_are_bounded() -> None:
    """After a GOAWAY of ours an engine ignores new streams; a client that opens them for ever is not ignored."""
    made = guard()
    assert made.read(b"".join(map(head, range(3, 401, 2))), 0.0) is None
    assert calm(made.read(head(401), 0.0))


@pytest.mark.slow
def test_the_guard_of_a_long_connection_stays_small() -> None:
    """Streams that are over are forgotten."""
    made = guard()
    tracemalloc.start()
    for n in range(3, 100_003, 2):
        assert made.read(head(n, end=True), n / 1_000) is None
        made.wrote(frame(3, 0, n, uint32(INTERNAL_ERROR)))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 32 * 1024
    assert made.n_streams == 50_001


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10, 13, 64, 1_000])
def test_how_the_bytes_are_cut_changes_nothing(size: int) -> None:
    """A frame's header may come in any pieces, both ways; the same frame is the last straw."""
    sent = PREFACE + head(1) + frame(2, 0, 9, uint32(0) + b"\0") + frame(0, 0, 1, b"x" * 99) + PING * 199
    made = FrameGuard(100)
    for at in range(0, len(sent), size):
        assert made.read(memoryview(sent)[at : at + size], 0.0) is None
    ours = frame(4, 0, 0) + frame(0, 0, 1, b"x" * 20) + frame(3, 0, 1, uint32(CANCEL)) * 100
    for at in range(0, len(ours), size):
        made.wrote(ours[at : at + size])
    assert made.fault is None
    assert made.read(PING * 3, 0.0) is None  # justified by our DATA
    assert calm(made.read(PING, 0.0))
    made.wrote(frame(3, 0, 1, uint32(CANCEL)))
    assert calm(made.fault)


# -- with an engine behind it ---------------------------------------------------------------------------


def server(name: Name) -> tuple[Engine, Recorder]:
    engine, recorder = make(name, INGRESS_SETTINGS, client=False)
    engine.receive(HELLO + frame(4, ACK, 0))
    engine.take_output()
    return engine, recorder


def rapid_reset(n: int) -> bytes:
    return head(2 * n + 1, end=True) + frame(3, 0, 2 * n + 1, uint32(CANCEL))


def made_you_reset_by_window(n: int) -> bytes:
    return head(2 * n + 1) + frame(8, 0, 2 * n + 1, uint32(0))


def made_you_reset_by_data(n: int) -> bytes:
    return head(2 * n + 1, end=True) + frame(0, 0, 2 * n + 1, b"x")


def made_you_reset_by_length(n: int) -> bytes:
    block = Encoder().encode([*REQUEST, (b"content-length", b"1")])
    return head(2 * n + 1, block=block) + frame(0, 0, 2 * n + 1, b"too much")


def malformed(n: int) -> bytes:
    return head(2 * n + 1, block=Encoder().encode([*REQUEST, (b"Upper", b"1")]))


def too_many_fields(n: int) -> bytes:
    return head(2 * n + 1, block=Encoder().encode([*REQUEST, *[(b"a", b"")] * 100]))


FLOODS = [
    rapid_reset,
    made_you_reset_by_window,
    made_you_reset_by_data,
    made_you_reset_by_length,
    malformed,
    too_many_fields,
]


@pytest.mark.slow
@each_engine
@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("per_read", [1, 500])
def test_flood_of_resets_ends_the_connection(flood: Callable[[int], bytes], per_read: int, name: Name) -> None:
    """B-45: GOAWAY, little output, and no more than a burst of work begun."""
    engine, recorder = server(name)
    for n in range(0, 1_000, per_read):
        engine.receive(b"".join(map(flood, range(n, n + per_read))))
    output = engine.take_output(1 << 24)
    assert len(recorder.fatal) == 1
    assert "GoAwayFrame" in repr(frames_of(output)[-1])
    assert len(output) < 16_384
    assert len(recorder.heads) <= 101


@each_engine
@pytest.mark.parametrize("idle", IDLE.values(), ids=IDLE)
def test_flood_without_reading_ends_the_connection(idle: bytes, name: Name) -> None:
    """B-47: the answers that wait are few when it ends."""
    engine, recorder = server(name)
    engine.receive(head(1))
    for _ in range(1_000):
        engine.receive(idle * 10)
    assert len(recorder.fatal) == 1
    assert len(engine.take_output(1 << 24)) < 8_192


@each_engine
def test_header_bomb_ends_the_connection_with_a_word(name: Name) -> None:
    """B-46: 1,900 one-byte references to a field (CVE-2026-47774): GOAWAY ENHANCE_YOUR_CALM."""
    engine, recorder = server(name)
    engine.receive(head(1, block=BLOCK + b"\x40\x01a\x00" + b"\xbe" * 1_900))
    last = frames_of(engine.take_output())[-1]
    assert "error_code=11" in repr(last)
    assert recorder.heads == {} and len(recorder.fatal) == 1


@each_engine
@pytest.mark.parametrize(("n_crumbs", "passes"), [(95, True), (96, False)])
def test_each_crumb_of_a_cookie_is_a_field(n_crumbs: int, passes: bool, name: Name) -> None:
    """With the request's five fields they are 100 (CVE-2026-49975)."""
    engine, recorder = server(name)
    crumbs = [(b"cookie", b"%d=" % n) for n in range(n_crumbs)]
    engine.receive(head(1, block=Encoder().encode([*REQUEST, *crumbs])))
    assert (1 in recorder.heads) is passes
    assert recorder.resets == ([] if passes else [(1, PROTOCOL_ERROR)])


@each_engine
def test_a_reset_stream_is_told_before_the_next_is_admitted(name: Name) -> None:
    """So that its work can be cancelled first."""

    class Teller(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.story: list[str] = []

        def on_head(self, stream_id: int, headers: object, end_stream: bool) -> None:
            self.story.append(f"head {stream_id}")

        def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
            self.story.append(f"reset {stream_id}")

    engine, recorder = server(name)
    recorder.__class__ = Teller
    recorder.story = []  # type: ignore[attr-defined]
    engine.receive(b"".join(map(rapid_reset, range(3))))
    assert recorder.story == [  # type: ignore[attr-defined]
        *("head 1", "reset 1", "head 3", "reset 3", "head 5", "reset 5")
    ]


@pytest.mark.slow
@each_engine
def test_a_reader_that_answers_every_event_keeps_its_connection(name: Name) -> None:
    """A stream of an hour, each event answered by two small WINDOW_UPDATE (B-50's honest sister)."""
    engine, recorder = server(name)
    engine.receive(head(1, end=True))
    engine.send_response(1, OK, False)
    updates = frame(8, 0, 1, uint32(20)) + frame(8, 0, 0, uint32(20))
    for _ in range(5_000):
        engine.send_data(1, b"data: {}\n\n", False)
        engine.take_output()
        engine.receive(updates)
    assert recorder.fatal == []


@each_engine
def test_a_window_of_one_byte_is_served_byte_by_byte(name: Name) -> None:
    """B-50: slow, but whole, and the WINDOW_UPDATE frames are justified."""
    engine, recorder = server(name)
    engine.receive(frame(4, 0, 0, b"\0\4" + uint32(1)) + head(1, end=True))
    engine.send_response(1, OK, False)
    engine.send_data(1, bytes(1_000), True)
    n_bytes = 0
    while n_bytes < 1_000:
        came = [it for it in frames_of(engine.take_output()) if type(it).__name__ == "DataFrame"]
        assert [len(it.data) for it in came] == [1]
        n_bytes += 1
        engine.receive(frame(8, 0, 1, uint32(1)))
    assert recorder.fatal == []


@each_engine
@pytest.mark.slow
def test_honest_load_passes_the_guard(name: Name) -> None:
    """Thousands of exchanges within one second, some cancelled: an SDK's client is never taken for a flood."""
    pair = Pair(name, name, server_settings=INGRESS_SETTINGS)
    for n in range(1_500):
        pair.exchange()
        if n % 20 == 0:
            pair.client.reset(pair.client.send_request(REQUEST, True))
            pair.pump()
    assert pair.at_client.fatal == pair.at_server.fatal == []


@pytest.mark.slow
@each_engine
@pytest.mark.parametrize("flood", FLOODS)
def test_what_a_flood_left_is_freed_without_the_collector(flood: Callable[[int], bytes], name: Name) -> None:
    """A worker collects garbage seldom: a closed engine must leave none, or each flood adds a megabyte."""
    gc.collect()
    gc.disable()
    try:
        engine, recorder = server(name)
        for n in range(0, 400, 100):
            engine.receive(b"".join(map(flood, range(n, n + 100))))
        engine.take_output()
        engine.close()
        del recorder.engine, recorder, engine
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("n_changes", "passes"), [(2, True), (3, False)])
def test_table_size_changes_twice_in_a_block_at_most(n_changes: int, passes: bool) -> None:
    """RFC 7541 §4.2; with h2, 64 KiB of such changes would take 70 ms."""
    engine, recorder = server("h2")
    engine.receive(head(1, block=b"\x20" * n_changes + BLOCK))
    assert (1 in recorder.heads) is passes
    assert bool(recorder.fatal) is not passes


def test_fields_that_came_before_are_in_memory_once() -> None:
    """B-46: 100 heads of 100 bytes on the wire that unpack to 30 KiB each take a tenth of it together."""
    engine, recorder = server("ngh2")
    encoder = Encoder()
    for n in range(100):
        engine.receive(head(2 * n + 1, block=encoder.encode([*REQUEST, *[(b"a", b"x" * 3_000)] * 10])))
    fields = {id(field) for fields in recorder.heads.values() for field in fields}
    # Those of the first eight streams are each their own: that is not worth the work.
    assert len(recorder.heads) == 100 and len(fields) <= 9 * (len(REQUEST) + 10)


@pytest.mark.slow
def test_shared_fields_are_bounded_and_keep_what_must_not_be_indexed() -> None:
    """No more than one head's worth is known at a time; a field that is marked stays marked."""
    shared = SharedFields()
    for n in range(1_000):
        shared.share([(b"x", b"%d" % n * 100)])
    assert "bytes>" in repr(shared)
    marked = NeverIndexedHeaderTuple(b"authorization", b"secret")
    assert shared.share([(b"authorization", b"secret")])[0] == marked
    assert type(shared.share([marked])[0]) is NeverIndexedHeaderTuple
    tracemalloc.start()
    for n in range(10_000):
        shared.share([(b"x", b"%5d" % n * 100)])
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 64 * 1024


def test_a_closed_window_costs_no_copy_of_what_waits() -> None:
    """What waits for a window is held once: ngh2 gets a kilobyte of it, not a slice."""
    engine, _ = server("ngh2")
    engine.receive(frame(4, 0, 0, b"\0\4" + uint32(0)) + b"".join(head(2 * n + 1, end=True) for n in range(100)))
    bodies = [bytes([n]) * 131_072 for n in range(100)]
    tracemalloc.start()
    for n, body in enumerate(bodies):
        engine.send_response(2 * n + 1, OK, False)
        engine.send_data(2 * n + 1, body, False)
    engine.take_output()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 400 * 1024
    assert engine.queued_bytes(1) == 131_072


_FRAMES = st.builds(
    frame,
    st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xEE]),
    st.sampled_from([0, 1, 4, 5, 8, 0x25, 0x2D, 0xFF]),
    st.sampled_from([0, 1, 1, 2, 3, 5, 7, 2**31 - 1, 2**32 - 1]),
    st.one_of(st.just(BLOCK), st.just(uint32(0)), st.just(bytes(8)), st.binary(max_size=40)),
)


@pytest.mark.slow
@each_engine
@settings(max_examples=300, deadline=None)
@given(sent=st.lists(_FRAMES, max_size=30), cuts=st.lists(st.integers(1, 200), max_size=20))
def test_whatever_a_client_sends_nothing_is_raised(name: Name, sent: list[bytes], cuts: list[int]) -> None:
    """Frames right and wrong, cut anywhere: the handler hears a story that makes sense (Recorder), then nothing."""
    engine, recorder = server(name)
    wire = b"".join(sent)
    for n, size in enumerate([*cuts, len(wire)]):
        engine.receive(wire[:size], n / 10)
        wire = wire[size:]
        if recorder.fatal:
            heads = dict(recorder.heads)
            engine.receive(head(99), n / 10)
            assert recorder.heads == heads and len(recorder.fatal) == 1
        frames_of(engine.take_output())
    engine.close()
