"""One reply on its way down: refused heads, silence, comments, and bytes that stay as they are."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sockets.gateway.core_gateway import FakeClient, end_of, request_head
from tests.unit import virtual_time
from velox.errors import Reason
from velox.gateway.access.endpoints import Routes
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.headers import NO_ATTEMPTS, ReplyFields
from velox.gateway.reply.outcome import Complete, ErrorReply, Failed
from velox.gateway.reply.reply import AnsweringAttempt, ExpectedReply, Reply
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.types import Answers, Dialect

KEY: Final = b"sk-ours-0123456789"
SSE: Final[Header] = (b"content-type", b"text/event-stream")
PING: Final = b"8\r\n: ping\n\n\r\n"


class Listener(AnsweringAttempt):
    """The attempt whose reply it is. heads: the statuses of those that it was told of."""

    def __init__(self, secret: bytes | None = None, on_first: Callable[[], None] | None = None) -> None:
        self.secret = secret
        self.translation = None
        self.heads: list[int] = []
        self._on_first: Final = on_first

    @property
    def holds_head(self) -> bool:
        return False

    def reasons(self, named: str | None) -> bool:
        return False

    def count_call(self, tokens: Sequence[int | None], cost_nano: int | None) -> None: ...

    def on_head(self, head: ReplyHead) -> None:
        self.heads.append(head.status)

    def on_first(self, now_s: float, *, is_stream: bool) -> None:
        if self._on_first is not None:
            self._on_first()


def head(status: int = 200, *headers: Header, length: int | None = None) -> ReplyHead:
    return ReplyHead.of(status, list(headers), length)


def reply_for(
    client: FakeClient,
    *,
    method: bytes = b"POST",
    dialect: Dialect = Dialect.OPENAI,
    http_1_0: bool = False,
    filters: Sequence[ReplyFilter] = (),
    answers: Answers = Answers.ANYTHING,
) -> Reply:
    request = request_head(method, http_1_0=http_1_0)
    client.is_http_1_0 = http_1_0
    reply = Reply(
        client,
        request,
        b"vx-1",
        asyncio.get_running_loop(),
        ReplyFields(),
        filters=tuple(filters),
        expected=ExpectedReply(dialect, answers),
    )
    reply.begin(Listener(), NO_ATTEMPTS)
    return reply


def body_of(client: FakeClient) -> bytes:
    """Return the body without its chunks' frames."""
    first, _, rest = client.written.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in first:
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


class Stream:
    """An upstream's stream that counts how often it is given up."""

    n_unsent = 0

    def __init__(self) -> None:
        self.n_cancelled = 0

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None:
        self.n_cancelled += 1


class Pausing(Stream):
    """One that knows whether it is held up."""

    is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


def on_a_loop(test: Callable[[FakeClient], Awaitable[None]]) -> None:
    """Run a test whose waiting takes no time."""

    async def main() -> None:
        await test(FakeClient())

    virtual_time.run(main())


# -- heads that are refused ---------------------------------------------------------------------------------------


def test_refused_head_leaves_nothing_for_the_client() -> None:
    """The attempt ends at once with its status, its rest is given up, and the next one's reply is whole and unmixed."""

    async def test(client: FakeClient) -> None:
        reply, stream, listener = reply_for(client), Stream(), Listener(KEY)
        reply.begin(listener, NO_ATTEMPTS)
        reply.attach(stream)
        reply.on_reply(head(503, (b"x-which", b"first")), b"busy", False)
        refused = await reply.ended
        assert isinstance(refused, ErrorReply) and (refused.head.status, refused.body) == (503, None)
        reply.on_reply(None, b"more", False)
        reply.detach()
        assert (client.written, reply.started, stream.n_cancelled) == (b"", False, 1)

        reply.begin(listener, NO_ATTEMPTS)
        reply.on_reply(head(200, (b"x-which", b"second"), length=2), b"ok", True)
        await end_of(reply)
        assert listener.heads == [503, 200]
        assert client.written.endswith(b"\r\n\r\nok") and b"first" not in client.written
        assert b"x-which: second" in client.written

    on_a_loop(test)


def test_refused_head_that_is_whole_frees_its_connection() -> None:
    """A refused reply that came in one read has ended: its connection is another's by now."""

    async def test(client: FakeClient) -> None:
        reply, stream = reply_for(client), Stream()
        reply.attach(stream)
        reply.on_reply(head(429, length=0), b"", True)
        reply.detach()
        assert stream.n_cancelled == 0
        assert isinstance(await reply.ended, ErrorReply)

    on_a_loop(test)


@pytest.mark.parametrize(("status", "is_read"), [(503, False), (429, False), (400, True), (404, True), (422, True)])
def test_error_that_is_passed_on_is_whole_whatever_came_meanwhile(status: int, is_read: bool) -> None:
    """Until it is decided nothing of it goes out; an error whose text tells what follows is read first."""

    async def test(client: FakeClient) -> None:
        reply, stream = reply_for(client), Stream()
        reply.attach(stream)
        reply.on_reply(head(status), b"a", False)
        assert reply.ended.done() is not is_read
        reply.on_reply(None, b"b", False)
        reply.on_reply(None, b"c", True)
        refused = await reply.ended
        assert isinstance(refused, ErrorReply) and refused.body == (b"abc" if is_read else None)
        assert client.written == b""
        reply.pass_on()
        assert isinstance(await reply.ended, Complete)
        assert body_of(client) == b"abc" and stream.n_cancelled == 0

    on_a_loop(test)


def test_error_that_is_passed_on_breaks_as_its_upstream_did_meanwhile() -> None:
    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(503), b"bu", False)
        failure = UpstreamFailure(Reason.UPSTREAM_RESET, "gone")
        reply.on_failure(failure)
        assert isinstance(await reply.ended, ErrorReply)
        reply.pass_on()
        broken = await reply.ended
        assert isinstance(broken, Failed) and broken.failure is failure and reply.started

    on_a_loop(test)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_error_that_is_cut_while_it_is_read_is_passed_on_as_far_as_it_came(status: int) -> None:
    """It tells more than a 502 would. Who decides hears what has cut it."""

    async def test(client: FakeClient) -> None:
        reply, stream = reply_for(client), Stream()
        reply.attach(stream)
        reply.on_reply(head(status), b"half", False)
        failure = UpstreamFailure(Reason.UPSTREAM_RESET, "gone")
        reply.on_failure(failure)
        refused = await reply.ended
        assert isinstance(refused, ErrorReply) and (refused.body, refused.failure) == (None, failure)
        reply.pass_on()
        broken = await reply.ended
        assert isinstance(broken, Failed) and broken.failure is failure
        assert reply.started and body_of(client) == b"half"

    on_a_loop(test)


def test_error_is_passed_on_no_faster_than_its_client_reads() -> None:
    """Its client was paused before the error came, and is told so once."""

    async def test(client: FakeClient) -> None:
        reply, stream = reply_for(client), Pausing()
        reply.attach(stream)
        client.is_write_paused = True
        reply.on_reply(head(503), b"a", False)
        assert isinstance(await reply.ended, ErrorReply) and stream.is_paused
        reply.pass_on()
        assert stream.is_paused
        reply.resume()
        assert not stream.is_paused

    on_a_loop(test)


def test_error_too_long_to_be_one_is_passed_on_unread() -> None:
    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(400), b"x" * 65_000, False)
        assert not reply.ended.done()
        reply.on_reply(None, b"x" * 65_000, False)
        refused = await reply.ended
        assert isinstance(refused, ErrorReply) and refused.body is None
        reply.pass_on()
        assert reply.started and body_of(client) == b"x" * 130_000

    on_a_loop(test)


class Over(ReplyFilter):
    """A dialect whose streams are over before the upstream's is: at "!"."""

    def feed(self, data: bytes, end: bool) -> bytes:
        self.is_over = data.endswith(b"!")
        return data


@pytest.mark.parametrize(("after_s", "n_cancelled"), [(0.5, 0), (1.5, 1)])
def test_stream_that_is_over_gets_a_moment_for_its_end(after_s: float, n_cancelled: int) -> None:
    """A finished upstream has a second to end its body, so that its HTTP/1.1 connection can be used again."""

    async def test(client: FakeClient) -> None:
        reply, stream = reply_for(client, filters=[Over()]), Stream()
        reply.attach(stream)
        reply.on_reply(head(200, SSE), b"data: 1\n\n!", False)
        await end_of(reply)
        reply.detach()
        reply.detach()  # as one of two attempts is (hedging.py)
        assert body_of(client) == b"data: 1\n\n!"
        await asyncio.sleep(after_s)
        reply.on_reply(None, b"more", False)
        assert stream.n_cancelled == n_cancelled
        reply.on_reply(None, b"", True)
        await asyncio.sleep(10.0)
        assert stream.n_cancelled == n_cancelled and b"more" not in client.written

    on_a_loop(test)


def test_redirect_is_no_matter_of_opinion() -> None:
    """F-28: a redirect is an error of its own, whatever the verdict would be."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(307), b"", True)
        with pytest.raises(UpstreamFailure) as caught:
            await end_of(reply)
        assert caught.value.reason is Reason.UPSTREAM_REDIRECT

    on_a_loop(test)


# -- silence and comments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "piece", "counts"),
    [
        ([SSE], b"data: 1\n\n", True),
        ([SSE], b": ka\n\n", False),
        ([SSE], b"\r\n", False),
        ([(b"content-type", b"Text/Event-Stream; charset=utf-8")], b": ka\n\n", False),
        ([SSE, (b"content-encoding", b"gzip")], b": ka\n\n", True),
        ([(b"content-type", b"application/json")], b": ka\n\n", True),
        ([], b"\n", True),
    ],
)
def test_only_data_of_an_event_stream_ends_its_silence(headers: list[Header], piece: bytes, counts: bool) -> None:
    """F-19: comments and blank lines don't hide a stalled model; where there are no events, each byte counts."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, *headers), b"data: 0\n\n", False)
        began_s = reply.last_s
        await asyncio.sleep(5)
        reply.on_reply(None, piece, False)
        assert reply.last_s - began_s == (5 if counts else 0)
        assert body_of(client) == b"data: 0\n\n" + piece

    on_a_loop(test)


def test_comments_are_sent_in_a_silence_only() -> None:
    """One for each 15 s in which the client got nothing, of the upstream or of ours."""

    async def test(client: FakeClient) -> None:
        reply, loop = reply_for(client), asyncio.get_running_loop()
        reply.on_reply(head(200, SSE), b"", False)
        client.written = b""
        pings = []
        for second in range(1, 61):
            await asyncio.sleep(1)
            if second == 20:
                reply.on_reply(None, b"data: 1\n\n", False)
            if second == 40:
                reply.on_reply(None, b": theirs\n\n", False)
            before = client.written
            reply.keep_alive(loop.time(), 15.0)
            if client.written != before:
                assert client.written == before + PING
                pings.append(second)
        assert pings == [15, 35, 55]

    on_a_loop(test)


@pytest.mark.parametrize(
    ("data", "length", "is_sse", "paused"),
    [
        (b"data: half", None, True, False),
        (b"data: 1\n", None, True, False),
        (b"data: 1\n\n", 1000, True, False),
        (b"data: 1\n\n", None, False, False),
        (b"data: 1\n\n", None, True, True),
    ],
)
def test_no_comment_where_it_would_be_in_the_way(data: bytes, length: int | None, is_sse: bool, paused: bool) -> None:
    """Not inside an event, nor in bytes that were counted, nor in what is no stream, nor to who does not read."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, *([SSE] if is_sse else []), length=length), data, False)
        client.is_write_paused = paused
        before = client.written
        reply.keep_alive(asyncio.get_running_loop().time() + 100, 15.0)
        assert client.written == before

    on_a_loop(test)


def test_no_comment_before_the_head_nor_after_the_end() -> None:
    """The status is not committed for it, and a reply that is whole stays as it is."""

    async def test(client: FakeClient) -> None:
        reply, late_s = reply_for(client), asyncio.get_running_loop().time() + 100
        reply.keep_alive(late_s, 15.0)
        assert client.written == b""
        reply.on_reply(head(200, SSE), b"data: 1\n\n", False)
        reply.on_reply(None, b"", True)
        before = client.written
        reply.keep_alive(late_s, 15.0)
        assert client.written == before and before.endswith(b"0\r\n\r\n")

    on_a_loop(test)


def test_comment_to_a_client_of_http_1_0_has_no_frame() -> None:
    """Where the connection's close ends the reply, bytes go as they are."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client, http_1_0=True)
        reply.on_reply(head(200, SSE), b"data: 1\n\n", False)
        reply.keep_alive(asyncio.get_running_loop().time() + 100, 15.0)
        assert client.written.endswith(b"\r\n\r\ndata: 1\n\n: ping\n\n")

    on_a_loop(test)


# -- streams ----------------------------------------------------------------------------------------------------------

EVENTS: Final = (
    b'data: {"id":"1","x":"caf\xc3\xa9 \xe2\x80\xa8 \xf0\x9f\x98\x80"}\n\n: c\n\ndata: {broken\r\n\r\n'
    b'event: error\ndata: {"type":"error","error":{}}\n\ndata: {"error":{"message":"mine"}}\n\ndata: [DONE]\n\n'
)


@given(places=st.lists(st.integers(1, len(EVENTS) - 1), max_size=len(EVENTS)))
def test_any_split_of_a_stream_gives_the_same_bytes(places: list[int]) -> None:
    """F-14 to F-17: nothing is decoded, gathered or dropped; errors inside are counted all the same."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        cuts = sorted({0, len(EVENTS), *places})
        reply.on_reply(head(200, SSE), b"", False)
        for start, end in itertools.pairwise(cuts):
            reply.on_reply(None, EVENTS[start:end], end == len(EVENTS))
        await end_of(reply)
        assert client.written.endswith(b"0\r\n\r\n")
        assert body_of(client) == EVENTS
        assert (reply.bytes_out, reply.n_stream_errors) == (len(EVENTS), 2)

    on_a_loop(test)


@given(cut_at=st.integers(0, len(EVENTS)))
def test_error_event_stands_for_itself_wherever_a_stream_is_cut(cut_at: int) -> None:
    """F-13, F-14: what came, then a blank line unless one was there, then the error; no last chunk."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENTS[:cut_at], False)
        reply.cut(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut"))
        ((last, reset),) = client.cuts
        client.written += last
        kept, rest = body_of(client)[:cut_at], body_of(client)[cut_at:]
        between = not kept or re.sub(rb"\r\n?", b"\n", kept).endswith(b"\n\n")
        assert kept == EVENTS[:cut_at]
        assert rest.startswith((b"" if between else b"\n\n") + b'data: {"error":{"message":"cut"')
        assert rest.endswith(b"}\n\n") and not reset
        assert not client.written.endswith(b"0\r\n\r\n")

    on_a_loop(test)


@pytest.mark.parametrize(
    ("path", "first"),
    [
        (b"/v1/messages", b'event: error\ndata: {"type":"error","error":{'),
        (b"/anthropic/v1/messages", b'event: error\ndata: {"type":"error","error":{'),
        (b"/v1/threads/t/messages", b'data: {"error":{'),
        (b"/v1/chat/completions", b'data: {"error":{'),
    ],
)
def test_error_event_is_in_the_dialect_of_the_path(path: bytes, first: bytes) -> None:
    """The Anthropic SDK reads `event: error`, OpenAI's read `data.error`."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client, dialect=Routes(("*",)).facts(path).dialect)
        reply.on_reply(head(200, SSE), b"data: 1\n\n", False)
        reply.cut(UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, "silent"))
        ((last, _),) = client.cuts
        assert last.partition(b"\r\n")[2].startswith(first)

    on_a_loop(test)


def test_compressed_stream_is_cut_without_a_word() -> None:
    """Plain bytes inside a compressed stream would be a decoder's error, or worse, text."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE, (b"content-encoding", b"gzip")), b"\x1f\x8b", False)
        reply.cut(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut"))
        assert client.cuts == [(b"", False)]

    on_a_loop(test)


def test_what_another_velox_says_of_itself_does_not_pass() -> None:
    """An upstream may be one, and of another version; its simulator's fields are no secret."""

    async def test(client: FakeClient) -> None:
        theirs = [(b"x-velox-%b" % name, b"theirs") for name in (b"cost", b"estimated", b"budget-reset", b"anything")]
        reply_for(client).on_reply(head(200, *theirs, (b"x-sim-request-id", b"sim-1"), length=2), b"ok", True)
        assert b"theirs" not in client.written and b"x-sim-request-id: sim-1" in client.written

    on_a_loop(test)


@given(
    fields=st.lists(
        st.sampled_from([(b"x-a", b"1"), (b"date", b"now"), (b"set-cookie", b"a=1"), (b"content-type", b"text/plain")])
    ),
    status=st.sampled_from([200, 201, 204, 304, 404, 599]),
    length=st.sampled_from([None, 2]),
    end=st.booleans(),
    http_1_0=st.booleans(),
)
def test_head_as_lines_is_the_head_as_pairs(
    fields: list[Header], status: int, length: int | None, end: bool, http_1_0: bool
) -> None:
    """An HTTP/1.1 client gets the same bytes whether the head is built line by line or as a whole."""

    async def test(client: FakeClient) -> None:
        written = []
        for takes_lines in (True, False):
            other = FakeClient()
            other.takes_lines = takes_lines  # type: ignore[misc]
            reply = reply_for(other, http_1_0=http_1_0)
            reply.on_reply(head(status, *fields, length=length), b"ok", end)
            written.append(re.sub(rb"date: [^\r]*GMT", b"date: then", other.written))
        assert written[0] == written[1]

    on_a_loop(test)
