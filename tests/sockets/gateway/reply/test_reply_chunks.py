"""A chunk that goes from the upstream's read to the client's write unread, and when it must not."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sockets.gateway.core_gateway import FakeClient, end_of
from tests.sockets.gateway.reply.test_reply import KEY, SSE, Listener, body_of, head, on_a_loop, reply_for
from tests.unit import virtual_time
from velox.errors import Reason
from velox.gateway.limits.metering import Meter
from velox.gateway.reply.headers import NO_ATTEMPTS
from velox.gateway.reply.reply import Reply
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol import sse
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.response import lone_chunk

EVENT: Final = b'data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"a"}}]}\n\n'
ANTHROPIC: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0}\n\n'
ERROR: Final = b'data: {"error":{"message":"out of memory"}}\n\n'


def give(reply: Reply, data: bytes) -> bool:
    """Give a reply one chunk as a connection does; return whether it took the short way."""
    chunk = http1_write.chunk(data)
    at = lone_chunk(chunk)
    if at and reply.on_chunk(chunk, at):
        return True
    reply.on_reply(None, data, False)
    return False


def test_usual_events_take_the_short_way() -> None:
    """They reach the client as they came, they count, and they are a sign of life."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT, False)
        began = len(client.written)
        await asyncio.sleep(3.0)
        assert give(reply, EVENT) and give(reply, ANTHROPIC)
        assert client.written[began:] == http1_write.chunk(EVENT) + http1_write.chunk(ANTHROPIC)
        assert reply.bytes_out == 2 * len(EVENT) + len(ANTHROPIC)
        assert reply.last_s == asyncio.get_running_loop().time()
        reply.on_reply(None, b"data: [DONE]\n\n", True)
        await end_of(reply)
        assert body_of(client) == 2 * EVENT + ANTHROPIC + b"data: [DONE]\n\n"

    on_a_loop(test)


@pytest.mark.parametrize(
    "data",
    [
        sse.COMMENT * 3,
        ERROR,
        EVENT + EVENT,
        EVENT[:-1],
        EVENT[:-1] + b"x",
        b'data: {"object":"x","choices":[]}\n\n',
        b"data: [DONE]\n\n",
        b": a comment before\n" + ERROR,
    ],
)
def test_all_else_is_looked_at(data: bytes) -> None:
    """Comments, errors, several events, parts of one, and what models do not send."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT, False)
        assert not give(reply, data)
        assert body_of(client) == EVENT + data
        assert reply.n_stream_errors == (b"error" in data)

    on_a_loop(test)


def test_event_that_goes_on_inside_another_is_looked_at() -> None:
    """Between two events only does one begin."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT + b"data: a\n", False)
        assert not give(reply, EVENT)
        assert give(reply, EVENT), "which ended it"

    on_a_loop(test)


def test_first_bytes_of_the_answer_are_told_of() -> None:
    """A stream that began with its head alone, or with a comment, has not begun to think."""

    async def test(client: FakeClient) -> None:
        reply, told = reply_for(client), list[float]()
        reply.begin(Listener(on_first=lambda: told.append(asyncio.get_running_loop().time())), NO_ATTEMPTS)
        reply.on_reply(head(200, SSE), sse.COMMENT, False)
        await asyncio.sleep(2.0)
        assert not give(reply, EVENT)
        assert told == [asyncio.get_running_loop().time()]
        assert give(reply, EVENT) and len(told) == 1

    on_a_loop(test)


def test_replies_that_leave_in_another_way_have_no_short_one() -> None:
    """No chunks to an HTTP/1.0 client, none where a length was announced, and what is no event stream is not ours."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client, http_1_0=True)
        reply.on_reply(head(200, SSE), EVENT, False)
        assert not give(reply, EVENT) and client.written.endswith(EVENT + EVENT)
        for answer in (head(200, SSE, length=1000), head(200, (b"content-type", b"text/plain"))):
            reply = reply_for(client)
            reply.on_reply(answer, EVENT, False)
            assert not give(reply, EVENT)
        reply = reply_for(client, method=b"HEAD")
        reply.on_reply(head(200, SSE), b"", False)
        written = client.written
        assert not give(reply, EVENT) and client.written == written

    on_a_loop(test)


def test_metered_stream_is_read() -> None:
    """Where tokens are counted no chunk passes unread."""

    async def test(client: FakeClient) -> None:
        meter = Meter(is_stream=True)
        reply = reply_for(client, filters=[meter])
        reply.on_reply(head(200, SSE), EVENT, False)
        assert not give(reply, EVENT) and not give(reply, EVENT)
        assert meter.usage(is_whole=False).output == 3

    on_a_loop(test)


def test_error_that_comes_as_a_stream_does_not_show_our_key() -> None:
    """Whatever type an error reply has, its body is looked through."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.begin(Listener(secret=KEY), NO_ATTEMPTS)
        # So much that it begins to go on; what stays back is one event, so that the client stands between two.
        kept = b'data: {"id":12}\n\n'
        assert len(kept) == len(KEY) - 1
        reply.on_reply(head(401, SSE), EVENT * 1100 + kept, False)
        reply.pass_on()
        assert body_of(client) == EVENT * 1100
        assert not give(reply, EVENT)
        give(reply, b'data: {"id":"' + KEY + b'"}\n\n')
        give(reply, EVENT)
        assert KEY not in client.written

    on_a_loop(test)


def test_nothing_follows_what_ended_the_reply() -> None:
    """After a failure, or the client's leave, the connection may bring more for a turn."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT, False)
        reply.on_failure(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut"))
        written = client.written
        assert not give(reply, EVENT) and client.written == written

    on_a_loop(test)


def test_client_that_reads_slowly_is_written_to_in_the_usual_way() -> None:
    """What waits for it is counted there. Once it has caught up the short way is open again."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        client.is_write_paused = True
        reply.on_reply(head(200, SSE), EVENT, False)
        reply.pause()
        assert not give(reply, EVENT), "it was behind before the reply began"
        for _ in range(2):
            client.is_write_paused = False
            reply.resume()
            assert give(reply, EVENT)
            client.is_write_paused = True
            reply.pause()
            assert not give(reply, EVENT)
        assert body_of(client) == EVENT * 6

    on_a_loop(test)


def test_catching_up_opens_no_way_that_was_closed() -> None:
    """Tokens are counted, errors are looked through, and who waits for the first bytes hears of them, all the same."""

    async def test(client: FakeClient) -> None:
        metered = reply_for(client, filters=[Meter(is_stream=True)])
        metered.on_reply(head(200, SSE), EVENT, False)
        guarded = reply_for(client)
        guarded.begin(Listener(secret=KEY), NO_ATTEMPTS)
        guarded.on_reply(head(401, SSE), EVENT * 1100, False)
        waited_for = reply_for(client)
        waited_for.begin(Listener(), NO_ATTEMPTS)
        waited_for.on_reply(head(200, SSE), b"", False)
        for reply in (metered, guarded, waited_for):
            reply.pause()
            reply.resume()
            assert not give(reply, EVENT)

    on_a_loop(test)


def test_client_that_has_left_is_not_written_to() -> None:
    """Its transport is closed, and uvloop's raises; the exchange ends a turn later, and a chunk may come before."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT, False)
        reply.client_gone()
        chunk = http1_write.chunk(EVENT)
        assert not reply.on_chunk(chunk, lone_chunk(chunk))

    on_a_loop(test)


def test_catching_up_does_not_revive_a_reply_that_has_failed() -> None:
    """Its exchange may need some turns to end it."""

    async def test(client: FakeClient) -> None:
        reply = reply_for(client)
        reply.on_reply(head(200, SSE), EVENT, False)
        reply.pause()
        reply.on_failure(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut"))
        reply.resume()
        written = client.written
        assert not give(reply, EVENT) and client.written == written

    on_a_loop(test)


PIECES: Final = st.one_of(
    st.sampled_from([EVENT, ANTHROPIC, ERROR, sse.COMMENT, b"data: [DONE]\n\n", EVENT * 2, EVENT[:20], EVENT[20:]]),
    st.text('d:at {"ier\r\n', min_size=1, max_size=30).map(str.encode),
    st.text("x", min_size=1, max_size=40).map(lambda text: b'data: {"id"' + text.encode() + b"\n\n"),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_the_short_way_changes_nothing(pieces: list[bytes]) -> None:
    """The client gets the same bytes, and the same is known of the stream, as if each chunk had been looked at."""

    async def play(*, may_be_short: bool) -> tuple[object, ...]:
        client = FakeClient()
        reply, told = reply_for(client), list[int]()
        reply.begin(Listener(on_first=lambda: told.append(len(client.written))), NO_ATTEMPTS)
        reply.on_reply(head(200, SSE), b"", False)
        heard = []
        for piece in pieces:
            await asyncio.sleep(1.0)
            if may_be_short:
                give(reply, piece)
            else:
                reply.on_reply(None, piece, False)
            heard.append(reply.last_s)
        assert reply._watch is not None
        return body_of(client), reply.bytes_out, reply.n_stream_errors, reply._watch.between, told, heard

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        looked_at = await play(may_be_short=False)
        spent_s = loop.time() - began_s
        short = await play(may_be_short=True)
        assert short[:-1] == looked_at[:-1]
        before, after = looked_at[-1], short[-1]
        assert isinstance(before, list) and isinstance(after, list)
        assert [round(each - spent_s, 6) for each in after] == [round(each, 6) for each in before]

    virtual_time.run(main())
