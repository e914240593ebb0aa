"""What a peer may do right but seldom, or wrong: both engines as clients of a server made of raw frames."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hpack import Decoder, NeverIndexedHeaderTuple
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.unit.protocol.http2.http2_peers import OK, PREFACE, REQUEST, Name, RawServer, Recorder, make
from velox.heads import Header, ShapeField
from velox.protocol.head_template import HeadTemplate
from velox.protocol.http2.engine import PROTOCOL_ERROR, REFUSED_STREAM, EngineError, EngineSettings

each_engine = pytest.mark.parametrize("name", ["ngh2", "h2"])
MAX_STREAMS = SettingsFrame.MAX_CONCURRENT_STREAMS
WINDOW = SettingsFrame.INITIAL_WINDOW_SIZE


FLOW_CONTROL_ERROR = 3  # RFC 9113 §7


def frames_of(data: bytes) -> list[Frame]:
    """Cut what an engine wrote into frames."""
    frames: list[Frame] = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        frames.append(frame)
        data = data[9 + length :]
    return frames


# -- what a client says first ---------------------------------------------------------------------------


@each_engine
def test_client_start_sends_preface_settings_and_window(name: Name) -> None:
    """No push, an 8 MiB window a stream and 64 MiB for all, before anything was read."""
    client, _ = make(name, EngineSettings(), client=True)
    output = client.take_output()
    assert output.startswith(PREFACE)
    settings, window = frames_of(output[len(PREFACE) :])
    assert isinstance(settings, SettingsFrame)
    assert settings.settings.items() >= {
        (SettingsFrame.ENABLE_PUSH, 0),
        (WINDOW, 8 << 20),
        (SettingsFrame.MAX_HEADER_LIST_SIZE, 64 << 10),
    }
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, (64 << 20) - 65_535)
    assert client.peer_max_streams == 100


@each_engine
def test_goaway_right_after_the_start_comes_behind_the_preface(name: Name) -> None:
    """A connection that is given up before its first write still says so in order."""
    client, _ = make(name, EngineSettings(), client=True)
    client.goaway()
    output = client.take_output()
    assert output.startswith(PREFACE)
    assert isinstance(frames_of(output[len(PREFACE) :])[-1], GoAwayFrame)


@each_engine
def test_credentials_are_never_indexed(name: Name) -> None:
    """A secret stays out of the compression table (RFC 7541 §7.1.3); its neighbours don't have to."""
    client, _ = make(name, EngineSettings(), client=True)
    client.take_output()
    secrets: list[Header] = [(b"x-api-key", b"sk-2"), (b"cookie", b"session=a-long-secret-of-the-client")]
    request = [*REQUEST, *secrets, (b"accept", b"*/*")]
    client.send_request(request, True)
    (head,) = frames_of(client.take_output())
    assert isinstance(head, HeadersFrame)
    fields = Decoder().decode(head.data, raw=True)
    assert [tuple(field) for field in fields] == request
    guarded = [field[0] for field in fields if isinstance(field, NeverIndexedHeaderTuple)]
    assert guarded == [b"authorization", b"x-api-key", b"cookie"]


@each_engine
def test_what_a_template_marks_is_never_indexed(name: Name) -> None:
    """Secrets, and what is new in each request: in the table it would push out what every request has."""
    stable = [(b"accept", b"*/*"), (b"authorization", b"Bearer k")]
    shape: list[ShapeField] = [(b"traceparent", None), *stable, (b"x", None)]
    template = HeadTemplate(shape[:3], shape)
    client, _ = make(name, EngineSettings(), client=True)
    client.take_output()
    decoder = Decoder()
    for trace in (b"00-1", b"00-2"):
        head = [*REQUEST[:4], *template.headers((trace, b"not passed"), client.mark)]
        client.send_request(head, True, is_marked=True)
        (frame,) = frames_of(client.take_output())
        assert isinstance(frame, HeadersFrame)
        fields = decoder.decode(frame.data, raw=True)
        assert [tuple(field) for field in fields[4:]] == [(b"traceparent", trace), *stable]
        guarded = [field[0] for field in fields[4:] if isinstance(field, NeverIndexedHeaderTuple)]
        assert guarded == [b"traceparent", b"authorization"]
    assert [type(field) for field in template.headers((b"00-3", b""))] == [tuple] * 3


# -- seldom, but right ----------------------------------------------------------------------------------


@each_engine
def test_reply_cut_into_single_bytes_is_read_alike(name: Name) -> None:
    """Where a read ends means nothing (F-15)."""
    peer = RawServer(name)
    stream_id = peer.request()
    reply: list[Frame] = [
        peer.head(stream_id, OK),
        peer.data(stream_id, b"one "),
        peer.data(stream_id, b"two", end_stream=True),
    ]
    for byte in b"".join(frame.serialize() for frame in reply):
        peer.client.receive(bytes([byte]))
    assert peer.at_client.heads == {stream_id: OK}
    assert peer.at_client.body(stream_id) == b"one two"
    assert peer.at_client.ended == [stream_id]


@each_engine
def test_interim_replies_are_skipped(name: Name) -> None:
    """Up to ten 1xx replies precede the final one unseen (RFC 9110 §15.2)."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(*[peer.head(stream_id, [(b":status", b"103")]) for _ in range(10)])
    peer.send(peer.head(stream_id, OK, end_stream=True))
    assert peer.at_client.heads == {stream_id: OK}
    assert peer.at_client.ended == [stream_id]


@each_engine
def test_endless_interim_replies_end_the_stream(name: Name) -> None:
    """The eleventh 1xx reply is one too many."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(*[peer.head(stream_id, [(b":status", b"103")]) for _ in range(11)])
    assert peer.at_client.resets == [(stream_id, PROTOCOL_ERROR)]
    assert any(isinstance(frame, RstStreamFrame) for frame in frames_of(peer.client.take_output()))


@each_engine
def test_trailers_end_the_stream(name: Name) -> None:
    """Trailers are dropped; their END_STREAM counts."""
    peer = RawServer(name)
    stream_id = peer.request()
    trailers = [(b"grpc-status", b"0")]
    peer.send(
        peer.head(stream_id, OK),
        peer.data(stream_id, b"all"),
        peer.head(stream_id, trailers, end_stream=True),
    )
    assert peer.at_client.heads == {stream_id: OK}
    assert peer.at_client.ended == [stream_id]


@each_engine
def test_head_request_takes_a_length_without_a_body(name: Name) -> None:
    """The content-length of a reply to HEAD announces nothing (RFC 9110 §8.6)."""
    peer = RawServer(name)
    stream_id = peer.client.send_request([(b":method", b"HEAD"), *REQUEST[1:]], True)
    peer.client.take_output()
    peer.send(peer.head(stream_id, [*OK, (b"content-length", b"512")], end_stream=True))
    assert peer.at_client.ended == [stream_id]
    assert peer.at_client.fatal == []


@each_engine
def test_padding_does_not_eat_the_window(name: Name) -> None:
    """Padding counts against the windows and is given back though nobody acknowledges it (RFC 9113 §6.9.1)."""
    peer = RawServer(name, EngineSettings(stream_window=100_000, connection_window=100_000))
    stream_id = peer.request()
    peer.send(peer.head(stream_id, OK))
    peer.client.take_output()
    window = {0: 100_000, stream_id: 100_000}
    for _ in range(2_000):
        frame = peer.data(stream_id, b"x", padding=200)
        for key in window:
            window[key] -= frame.flow_controlled_length
            assert window[key] >= 0, "the window closed"
        peer.send(frame)
        for answer in frames_of(peer.client.take_output()):
            if isinstance(answer, WindowUpdateFrame):
                window[answer.stream_id] += answer.window_increment
    assert len(peer.at_client.body(stream_id)) == 2_000


@each_engine
def test_stream_limit_lowered_in_flight_stops_new_requests_only(name: Name) -> None:
    """A server may change its mind about streams at any time, down to none (F-36)."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(SettingsFrame(0, {MAX_STREAMS: 0}))
    assert (peer.client.peer_max_streams, peer.at_client.n_settings) == (0, 2)
    with pytest.raises(EngineError):
        peer.request()
    peer.send(peer.head(stream_id, OK, end_stream=True), SettingsFrame(0, {MAX_STREAMS: 7}))
    assert peer.at_client.ended == [stream_id]
    assert peer.request() > stream_id


@each_engine
def test_window_shrunk_in_flight_holds_the_body_back(name: Name) -> None:
    """A new initial window moves open streams too, below zero if need be (RFC 9113 §6.9.2)."""
    peer = RawServer(name)
    stream_id = peer.request(end_stream=False)
    peer.client.send_data(stream_id, bytes(80_000), True)
    first = sum(len(f.data) for f in frames_of(peer.client.take_output()) if isinstance(f, DataFrame))
    assert first == 65_535
    peer.send(SettingsFrame(0, {WINDOW: 1_000}), WindowUpdateFrame(0, 1 << 20), WindowUpdateFrame(stream_id, 64_535))
    assert not any(isinstance(f, DataFrame) for f in frames_of(peer.client.take_output()))
    peer.send(WindowUpdateFrame(stream_id, 80_000))
    rest = sum(len(f.data) for f in frames_of(peer.client.take_output()) if isinstance(f, DataFrame))
    assert first + rest == 80_000


@each_engine
def test_reset_after_a_whole_reply_only_stops_the_upload(name: Name) -> None:
    """A server that has answered early may refuse the rest of the request; the reply stays whole (RFC 9113 §8.1)."""
    peer = RawServer(name)
    stream_id = peer.request(end_stream=False)
    peer.client.send_data(stream_id, bytes(200_000), False)
    peer.client.take_output()
    peer.send(peer.head(stream_id, OK, end_stream=True), RstStreamFrame(stream_id, 0))
    assert peer.at_client.ended == [stream_id]
    assert peer.at_client.resets == []
    assert peer.client.queued_bytes(stream_id) == 0
    peer.client.send_data(stream_id, b"more", True)
    assert not any(isinstance(frame, DataFrame) for frame in frames_of(peer.client.take_output()))


@each_engine
def test_goaway_of_everything_hands_every_stream_back(name: Name) -> None:
    """last=0 means that nothing was processed, not that nothing is known (F-34)."""
    peer = RawServer(name)
    ids = [peer.request() for _ in range(3)]
    peer.send(GoAwayFrame(0, 0))
    assert sorted(peer.at_client.resets) == [(stream_id, REFUSED_STREAM) for stream_id in ids]
    assert peer.at_client.goaways == [(0, 0)]
    assert peer.at_client.fatal == []


@each_engine
def test_reply_in_the_same_read_as_goaway_is_whole(name: Name) -> None:
    """The last reply of a connection ends well, and what else came with it breaks nothing."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(
        GoAwayFrame(0, stream_id),
        peer.head(stream_id, OK),
        peer.data(stream_id, b"bye", end_stream=True),
        PingFrame(0),
    )
    assert peer.at_client.body(stream_id) == b"bye"
    assert (peer.at_client.ended, peer.at_client.resets, peer.at_client.fatal) == ([stream_id], [], [])
    peer.client.take_output()


@each_engine
def test_settings_and_goaway_in_one_read_are_both_heard(name: Name) -> None:
    """A server that is on its way out when we connect says so at once; that is no fault, then or later."""
    client, at_client = make(name, EngineSettings(), client=True)
    client.take_output()
    client.receive(SettingsFrame(0).serialize() + GoAwayFrame(0, 0).serialize())
    assert (at_client.n_settings, at_client.goaways) == (1, [(0, 0)])
    client.take_output()
    client.receive(PingFrame(0).serialize())
    assert at_client.fatal == []


@each_engine
def test_settings_without_a_stream_limit_set_none(name: Name) -> None:
    """What a peer doesn't state is unlimited, and what it stated before stays (RFC 9113 §6.5)."""
    client, _ = make(name, EngineSettings(), client=True)
    assert client.peer_max_streams == 100
    client.receive(SettingsFrame(0, {WINDOW: 70_000}).serialize())
    assert client.peer_max_streams > 1 << 30
    client.receive(SettingsFrame(0, {MAX_STREAMS: 12}).serialize() + SettingsFrame(0, {WINDOW: 80_000}).serialize())
    assert client.peer_max_streams == 12


@each_engine
def test_reset_from_a_callback_drops_what_else_the_read_brought(name: Name) -> None:
    """After reset() the handler hears no more of the stream, though its frames have been read already."""

    class Impatient(Recorder):
        def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
            super().on_head(stream_id, headers, end_stream)
            self.engine.reset(stream_id)

    peer = RawServer(name)
    peer.at_client.__class__ = Impatient
    stream_id = peer.request()
    frames = [peer.data(stream_id, bytes(10_000)) for _ in range(5)]
    peer.send(peer.head(stream_id, OK), *frames, peer.data(stream_id, b"", end_stream=True))
    assert list(peer.at_client.heads) == [stream_id]
    assert (peer.at_client.bodies, peer.at_client.ended, peer.at_client.resets) == ({}, [], [])
    assert peer.at_client.fatal == []


@each_engine
@pytest.mark.parametrize("end_only", [False, True])
def test_output_taken_from_a_callback_skips_a_stream_that_is_reset_in_the_same_read(name: Name, end_only: bool) -> None:
    """A handler may write at once, when the engine knows already of a reset that the handler will hear of next."""

    class Hasty(Recorder):
        def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
            super().on_head(stream_id, headers, end_stream)
            self.engine.send_data(uploading, b"" if end_only else b"more", True)
            frames_of(self.engine.take_output())

    peer = RawServer(name)
    first, uploading = peer.request(), peer.request(end_stream=False)
    if not end_only:
        peer.client.send_data(uploading, bytes(200_000), False)
    peer.client.take_output()
    peer.at_client.__class__ = Hasty
    peer.send(WindowUpdateFrame(0, 200_000), peer.head(first, OK, end_stream=True), RstStreamFrame(uploading, 8))
    assert peer.at_client.ended == [first]
    assert peer.at_client.resets == [(uploading, 8)]
    assert (peer.client.queued_bytes(uploading), peer.client.has_output) == (0, False)


# -- wrong ----------------------------------------------------------------------------------------------

BAD_HEADS: list[tuple[str, list[Header]]] = [
    ("no status", [(b"x-request-id", b"r")]),
    ("two statuses", [(b":status", b"200"), (b":status", b"200")]),
    ("connection header", [*OK, (b"connection", b"close")]),
    ("transfer-encoding", [*OK, (b"transfer-encoding", b"chunked")]),
    ("upper-case name", [*OK, (b"X-Upper", b"1")]),
    ("line feed in a value", [*OK, (b"x", b"a\r\nset-cookie: b")]),
    ("NUL in a value", [*OK, (b"x", b"a\x00b")]),
    ("empty name", [*OK, (b"", b"a")]),
    ("two lengths", [*OK, (b"content-length", b"1"), (b"content-length", b"2")]),
    ("pseudo header of a request", [*OK, (b":path", b"/")]),
    ("pseudo header after a field", [(b"x", b"y"), (b":status", b"200")]),
]


@each_engine
@pytest.mark.parametrize("headers", [h for _, h in BAD_HEADS], ids=[n for n, _ in BAD_HEADS])
def test_malformed_head_never_reaches_the_handler(name: Name, headers: list[Header]) -> None:
    """A field that could mean something else in HTTP/1.1 ends the stream or the connection, in the same read (F-29)."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(peer.head(stream_id, headers, end_stream=True))
    assert peer.at_client.heads == {}
    assert peer.at_client.ended == []
    assert peer.at_client.resets == [(stream_id, PROTOCOL_ERROR)] or len(peer.at_client.fatal) == 1


@each_engine
@pytest.mark.parametrize("body", [b"123", b"1234567"], ids=["short", "long"])
def test_body_unlike_its_length_does_not_end_well(name: Name, body: bytes) -> None:
    """A reply that is shorter or longer than it said is cut, not complete (F-13)."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.send(peer.head(stream_id, [*OK, (b"content-length", b"5")]), peer.data(stream_id, body, end_stream=True))
    assert peer.at_client.ended == []
    assert peer.at_client.resets == [(stream_id, PROTOCOL_ERROR)] or len(peer.at_client.fatal) == 1


@each_engine
def test_too_many_header_fields_end_the_stream_only(name: Name) -> None:
    """201 fields are refused; the sibling on the connection is not hurt."""
    peer = RawServer(name)
    bad, good = peer.request(), peer.request()
    peer.send(peer.head(bad, [*OK, *[(b"x", b"y")] * 199], end_stream=True), peer.head(good, OK, end_stream=True))
    assert peer.at_client.resets == [(bad, PROTOCOL_ERROR)]
    assert peer.at_client.ended == [good]


@each_engine
def test_header_bomb_ends_the_connection(name: Name) -> None:
    """A block of one-byte references that unpacks to more than 64 KiB is not kept (CVE-2026-47774)."""
    peer = RawServer(name)
    stream_id = peer.request()
    frame = peer.head(stream_id, [*OK, *[(b"bomb", b"x" * 4_000)] * 20])
    assert len(frame.serialize()) < 5_000
    peer.send(frame)
    assert len(peer.at_client.fatal) == 1
    assert peer.at_client.heads == {}


@each_engine
@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"\x00" * 64,
        b"\x16\x03\x03" + bytes(range(100)),
        PushPromiseFrame(1, 2, b"\x82", flags=["END_HEADERS"]).serialize(),
        DataFrame(99, b"x").serialize(),
        WindowUpdateFrame(0, 2**31 - 1).serialize(),
    ],
    ids=["http/1.1", "zeros", "tls", "push", "idle stream", "window overflow"],
)
def test_garbage_is_fatal_once_and_says_goodbye(name: Name, garbage: bytes) -> None:
    """A peer that doesn't speak HTTP/2 costs the connection: one on_fatal, a GOAWAY, then silence."""
    peer = RawServer(name)
    stream_id = peer.request()
    peer.client.receive(garbage)
    assert len(peer.at_client.fatal) == 1
    assert isinstance(frames_of(peer.client.take_output())[-1], GoAwayFrame)
    peer.client.receive(garbage)
    peer.client.send_data(stream_id, b"x", True)
    peer.client.acknowledge(stream_id, 1)
    peer.client.reset(stream_id)
    peer.client.ping()
    peer.client.goaway()
    with pytest.raises(EngineError):
        peer.client.send_request(REQUEST, True)
    assert (peer.client.take_output(), peer.client.has_output) == (b"", False)
    assert len(peer.at_client.fatal) == 1


@each_engine
def test_window_of_a_stream_that_overflows_ends_the_stream(name: Name) -> None:
    """RFC 9113 §6.9.1: the stream is reset, the others go on. libnghttp2 ends the connection, which is allowed too."""
    peer = RawServer(name)
    stream_id, other = peer.request(), peer.request()
    peer.send(WindowUpdateFrame(stream_id, 2**31 - 1))
    sent = frames_of(peer.client.take_output())
    if name == "ngh2":
        assert isinstance(sent[-1], GoAwayFrame)
        return
    (reset,) = sent
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code, peer.at_client.fatal) == (stream_id, FLOW_CONTROL_ERROR, [])
    peer.send(peer.head(other, OK, end_stream=True))
    assert other in peer.at_client.heads


def test_data_before_garbage_in_one_read_is_delivered() -> None:
    """What came before the fault is passed on and may be acknowledged (ngh2; h2 loses it with the connection)."""
    peer = RawServer("ngh2")
    stream_id = peer.request()
    peer.send(peer.head(stream_id, OK), peer.data(stream_id, b"so far"), WindowUpdateFrame(0, 2**31 - 1))
    assert peer.at_client.body(stream_id) == b"so far"
    assert len(peer.at_client.fatal) == 1


@each_engine
def test_more_data_than_the_window_is_not_taken(name: Name) -> None:
    """Flow control is a limit, not a wish (RFC 9113 §6.9): the handler gets no byte beyond it."""
    peer = RawServer(name, EngineSettings(stream_window=70_000, connection_window=1 << 20))
    peer.at_client.acknowledges = False
    stream_id = peer.request()
    peer.send(peer.head(stream_id, OK))
    for _ in range(10):
        peer.send(peer.data(stream_id, bytes(10_000)))
    assert len(peer.at_client.body(stream_id)) == 70_000
    assert peer.at_client.resets or peer.at_client.fatal


@each_engine
@pytest.mark.parametrize(
    "frame", [PingFrame(0, b"12345678"), SettingsFrame(0, {MAX_STREAMS: 9})], ids=["ping", "settings"]
)
@pytest.mark.parametrize("per_read", [1, 100])
def test_control_flood_without_reading_is_bounded(name: Name, frame: Frame, per_read: int) -> None:
    """A peer that makes us answer and doesn't read is cut off; our output stays below 64 KiB (F-39, B-47)."""
    peer = RawServer(name)
    peer.client.take_output()
    for _ in range(20_000 // per_read):
        peer.send(*[frame] * per_read)
    assert len(peer.at_client.fatal) == 1
    assert len(peer.client.take_output(1 << 24)) <= 100_000


@each_engine
def test_priority_and_unknown_frames_are_ignored(name: Name) -> None:
    """RFC 9113 §5.5: what is not known is skipped."""
    peer = RawServer(name)
    stream_id = peer.request()
    unknown = b"\x00\x00\x03\xee\x00\x00\x00\x00\x00abc"
    peer.send(PriorityFrame(stream_id, depends_on=0, stream_weight=15))
    peer.client.receive(unknown)
    peer.send(peer.head(stream_id, OK, end_stream=True))
    assert peer.at_client.ended == [stream_id]
