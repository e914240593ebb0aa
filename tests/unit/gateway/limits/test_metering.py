"""What an exchange is said to have used, whatever became of its reply; and what its client gets meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import pytest
import zstandard

from tests.sockets.gateway.core_gateway import end_of
from tests.sockets.gateway.reply.test_reply import Listener
from tests.unit import virtual_time
from velox.errors import Reason
from velox.gateway.limits.metering import Meter, Usage, UsageFilter, metered
from velox.gateway.reply.filters import FilterChain, ReplyFilter
from velox.gateway.reply.headers import NO_ATTEMPTS, ReplyFields
from velox.gateway.reply.reply import Reply
from velox.heads import Header, Headers, ReplyHead, RequestHead
from velox.net.application import Successor
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.json.body import BodyReader
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import BodyFields, Dialect, Endpoint

SSE: Final[Header] = (b"content-type", b"text/event-stream")
JSON: Final[Header] = (b"content-type", b"application/json")
CHUNK: Final = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
SENT: Final = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}\n\n'
DONE: Final = b"data: [DONE]\n\n"
GEMINIS_VECTOR: Final = (
    b'{"embedding":{"values":[0.5]},"usageMetadata":{"promptTokenCount":7,'
    b'"promptTokenDetails":[{"modality":"TEXT","tokenCount":7}]}}'
)
WHOLE: Final = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}'


class Client:
    """A client that notes each write."""

    address = ""
    is_write_paused = False
    chunk_writer = None
    takes_lines = False

    def __init__(self) -> None:
        self.length: int | None = None
        self.writes: Final[list[bytes]] = []
        self.last: bytes | None = None
        self.has_ended = False

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        self.length = length
        self.body(data, end)

    def body(self, data: bytes, end: bool) -> None:
        self.writes.append(data)
        self.has_ended = end

    def cut(self, last: bytes) -> None:
        self.last = last

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None: ...

    def switch(self, headers: Headers, successor: Successor) -> None: ...

    def finish(self) -> None: ...

    def release_body(self) -> None: ...


def head(status: int, *headers: Header, length: int | None = None, until_close: bool = False) -> ReplyHead:
    return ReplyHead.of(status, list(headers), length, until_close)


def replying(test: Callable[[Reply, Client], Awaitable[None]], *filters: ReplyFilter) -> None:
    """Run a test with a reply that passes these filters."""
    request = RequestHead.of(b"POST", b"/v1/chat/completions", content_length=2)

    async def main() -> None:
        client = Client()
        reply = Reply(client, request, b"vx-1", asyncio.get_running_loop(), ReplyFields(), filters=filters)
        reply.begin(None, NO_ATTEMPTS)
        await test(reply, client)

    virtual_time.run(main())


def read(
    *filters: ReplyFilter, pieces: Sequence[bytes], sse: bool = True, plain: bool = True, status: int = 200
) -> bytes:
    chain = FilterChain(filters, is_sse=sse, is_plain=plain)
    chain.begin(head(status))
    return b"".join(chain.feed(piece, False) for piece in pieces)


# -- what was used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strips", [False, True])
def test_usage_of_a_whole_stream_is_the_upstream_s(strips: bool) -> None:
    meter = Meter(is_stream=True)
    filters = (meter, UsageFilter()) if strips else (meter,)

    out = read(*filters, pieces=[CHUNK, CHUNK, USAGE, DONE])

    assert meter.usage(is_whole=True) == Usage(5, 7, True)
    assert out == (SENT * 2 + DONE if strips else CHUNK * 2 + USAGE + DONE)


def test_usage_of_a_stream_that_never_tells_is_its_events() -> None:
    """The upstream ignores the option: what it sent is counted."""
    meter = Meter(is_stream=True)

    assert read(meter, UsageFilter(), pieces=[SENT, SENT, DONE]) == SENT * 2 + DONE
    assert meter.usage(is_whole=True) == Usage(None, 3, False)


def test_usage_of_a_cut_stream_is_its_events_or_what_was_told_if_that_is_more() -> None:
    """Anthropic tells of the prompt first; vLLM may tell with each chunk."""
    meter = Meter(is_stream=True)
    read(
        meter,
        pieces=[
            b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n',
            SENT,
            SENT,
        ],
    )
    assert meter.usage(is_whole=False) == Usage(9, 3, False)

    meter = Meter(is_stream=True)
    read(meter, pieces=[USAGE, SENT])
    assert meter.usage(is_whole=False) == Usage(5, 7, False)


@pytest.mark.parametrize("padding", ["", "x" * 70_000])
def test_usage_of_a_stream_that_ends_in_an_error_is_its_events(padding: str) -> None:
    """Anthropic's beginning has the prompt, and one token of the answer: it is not how long that was."""
    usage = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}
    start = {"type": "message_start", "message": {"id": padding, "usage": usage}}
    meter = Meter(is_stream=True)
    read(meter, pieces=[b"data: %b\n\n" % json.dumps(start).encode(), *[SENT] * 50, b'data: {"type":"error"}\n\n'])

    assert meter.usage(is_whole=True) == Usage(13, 52, False)
    assert (meter.kinds().input, meter.kinds().cached) == (13, 4)


@pytest.mark.parametrize(
    ("body", "is_whole", "wanted"),
    [
        (WHOLE, True, Usage(5, 7, True)),
        (WHOLE, False, Usage(None, None, False)),
        (b'{"usage":{"prompt_tokens":8,"total_tokens":8}}', True, Usage(8, 0, True)),
        (b'{"data":[]}', True, Usage(None, None, False)),
        (b"data of a text", True, Usage(None, None, False)),
        (b'{"x', False, Usage(None, None, False)),
    ],
)
def test_usage_of_one_object_is_read_from_it(body: bytes, is_whole: bool, wanted: Usage) -> None:
    """Of one that says nothing, or was cut, the estimate stands: it is no stream, whose events could be counted."""
    meter = Meter()

    assert read(meter, pieces=[body], sse=False) == body
    assert meter.usage(is_whole=is_whole) == wanted


def test_usage_of_a_body_that_came_whole_is_read_though_its_client_left() -> None:
    """Where in it a usage stands is known at its end."""
    meter = Meter()
    chain = FilterChain((meter,), is_sse=False, is_plain=True)
    chain.begin(head(200))
    chain.feed(WHOLE, True)

    assert meter.usage(is_whole=False) == Usage(5, 7, False)


def test_error_of_the_upstream_cost_nothing() -> None:
    meter = Meter(is_stream=True)

    assert read(meter, UsageFilter(), pieces=[WHOLE], sse=False, status=429) == WHOLE
    assert meter.usage(is_whole=True) == Usage(0, 0, False)
    assert read(meter, UsageFilter(), pieces=[USAGE], status=500) == USAGE
    assert meter.usage(is_whole=True) == Usage(0, 0, False)


@pytest.mark.parametrize("coded", [gzip.compress, zlib.compress, zstandard.compress, bytes])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("size", [7, 10_000])
def test_compressed_reply_is_read_and_passes_as_it_came(
    coded: Callable[[bytes], bytes], is_stream: bool, size: int
) -> None:
    """C40: an upstream that compresses though it was asked not to is paid, too. Its label may be wrong."""
    meter = Meter(is_stream=is_stream)
    chain = FilterChain((meter, UsageFilter()), is_sse=False, is_plain=False)
    body = coded(SENT + SENT + USAGE + DONE if is_stream else WHOLE)
    chain.begin(head(200, (b"content-encoding", b"deflate")))

    out = b"".join(chain.feed(body[at : at + size], False) for at in range(0, len(body), size)) + chain.feed(b"", True)

    assert out == body
    assert meter.usage(is_whole=True) == Usage(5, 7, True)


@pytest.mark.parametrize(("label", "body"), [(True, "WHOLE"), (False, "STREAM")])
def test_reply_is_read_for_what_it_is(label: bool, body: str) -> None:
    """C24: JSON with the label of events, and the other way round."""
    meter = Meter()
    read(meter, pieces=[WHOLE] if body == "WHOLE" else [SENT, USAGE, DONE], sse=label)

    assert meter.usage(is_whole=True) == Usage(5, 7, True)


def test_reply_in_a_coding_that_nobody_knows_tells_nothing() -> None:
    meter = Meter()
    chain = FilterChain((meter,), is_sse=False, is_plain=False)
    chain.begin(head(200, (b"content-encoding", b"br")))

    assert chain.feed(b"\x8b\x0f\x80\x01\x02", True) == b"\x8b\x0f\x80\x01\x02"
    assert meter.usage(is_whole=True) == Usage(None, None, False)


def test_no_reply_is_no_event_of_a_stream_and_nothing_known_of_another() -> None:
    assert Meter(is_stream=True).usage(is_whole=False) == Usage(None, 0, False)
    assert Meter().usage(is_whole=False) == Usage(None, None, False)


@pytest.mark.parametrize(("pieces", "is_whole"), [([CHUNK * 3, DONE], True), ([CHUNK * 3], False), ([], False)])
def test_few_events_tell_nothing_of_a_model_that_reasons(pieces: list[bytes], is_whole: bool) -> None:
    """What it has thought costs, and is in no event: then the estimate stands. More events than that still count."""
    meter = Meter(is_stream=True)
    if pieces:
        read(meter, pieces=pieces)
    n = sum(piece.count(b"data:") for piece in pieces)

    assert meter.usage(is_whole=is_whole, least=1024) == Usage(None, None, False)
    assert meter.usage(is_whole=is_whole, least=n) == Usage(None, n, False)


def test_usage_that_is_told_counts_however_little_it_is() -> None:
    meter = Meter(is_stream=True)
    read(meter, pieces=[CHUNK, USAGE, DONE])

    assert meter.usage(is_whole=True, least=1024) == Usage(5, 7, True)


def test_second_attempt_s_head_starts_over() -> None:
    """A head that could not be sent to the client was nobody's reply."""
    meter, usage_filter = Meter(is_stream=True), UsageFilter()
    read(meter, usage_filter, pieces=[USAGE, b"data: half"])

    read(meter, usage_filter, pieces=[SENT])

    assert not usage_filter.holds
    assert meter.usage(is_whole=True) == Usage(None, 1, False)


# -- what is asked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body", "asks"),
    [
        (Endpoint.CHAT, b'{"stream":true}', True),
        (Endpoint.COMPLETIONS, b'{"stream":true}', True),
        (Endpoint.CHAT, b'{"stream":false}', False),
        (Endpoint.CHAT, b'{"stream":true,"stream_options":{"include_usage":true}}', False),
        (Endpoint.RESPONSES, b'{"stream":true}', False),
        (Endpoint.MESSAGES, b'{"stream":true}', False),
        (Endpoint.EMBEDDINGS, b"{}", False),
    ],
)
def test_usage_is_asked_for_where_it_would_not_be_told(route: Endpoint, body: bytes, asks: bool) -> None:
    """And taken out only where Velox asked."""
    _, filters, sent = metered(body, BodyReader().read(body), route)

    assert sent is not None and (b"include_usage" in sent and sent != body) is asks
    assert (read(*filters, pieces=[USAGE]) == b"") is asks


@pytest.mark.parametrize(
    ("route", "dialect", "is_google"),
    [
        (Endpoint.GENERATE, Dialect.GOOGLE, True),
        (Endpoint.EMBEDDINGS, Dialect.GOOGLE, True),
        (Endpoint.EMBEDDINGS, Dialect.OPENAI, False),
        (Endpoint.OTHER, Dialect.GOOGLE, False),
    ],
)
def test_usage_is_looked_for_under_the_name_that_the_api_gives_it(
    route: Endpoint, dialect: Dialect, is_google: bool
) -> None:
    """Google has a path of its own for embeddings, too."""
    meter, *_ = metered(None, BodyFields("m"), route, dialect)
    reply, wanted = (GEMINIS_VECTOR, Usage(7, 0, True)) if is_google else (WHOLE, Usage(5, 7, True))

    read(meter, pieces=[reply], sse=False)

    assert meter.usage(is_whole=True) == wanted


def test_exchange_without_a_body_has_a_meter() -> None:
    meter, _, sent = metered(None, BodyReader().read(b"{}"), Endpoint.CHAT)

    assert sent is None and meter.usage(is_whole=False) == Usage(None, None, False)


# -- what the client gets ------------------------------------------------------------------------------------------


def test_metered_reply_is_one_write_for_each_read() -> None:
    """And none for a read that brought nothing for the client."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), CHUNK + CHUNK[:20], False)
        reply.on_reply(None, CHUNK[20:], False)
        reply.on_reply(None, CHUNK[:20], False)
        reply.on_reply(None, CHUNK[20:] + CHUNK + USAGE[:9], False)
        reply.on_reply(None, USAGE[9:], False)
        reply.on_reply(None, DONE, True)
        await end_of(reply)
        assert client.writes == [SENT, SENT, SENT * 2, DONE] and client.has_ended
        assert reply.bytes_out == len(SENT * 4 + DONE)

    replying(test, Meter(is_stream=True), UsageFilter())


def test_metered_stream_that_is_whole_at_once_has_its_own_length() -> None:
    """The length that is announced is that of what is sent."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), CHUNK + USAGE + DONE, True)
        await end_of(reply)
        assert client.writes == [SENT + DONE] and client.length == len(SENT + DONE)

    replying(test, Meter(is_stream=True), UsageFilter())


def test_stream_whose_length_was_announced_is_not_changed() -> None:
    """Fewer bytes than that would be a reply that is cut."""
    stream = CHUNK + USAGE + DONE
    meter = Meter(is_stream=True)

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE, length=len(stream)), stream[:30], False)
        reply.on_reply(None, stream[30:], True)
        await end_of(reply)
        assert b"".join(client.writes) == stream

    replying(test, meter, UsageFilter())
    assert meter.usage(is_whole=True) == Usage(5, 7, True)


@pytest.mark.parametrize("n_half", [0, 1, 20, len(CHUNK) - 1])
def test_cut_metered_stream_ends_with_a_whole_event_and_the_error(n_half: int) -> None:
    """Of the event that was cut the client has nothing, so no blank line is needed before the error."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), CHUNK + CHUNK[:n_half], False)
        reply.cut(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))
        assert client.writes == [SENT]
        assert client.last is not None and client.last.startswith(b'data: {"error"')

    replying(test, Meter(is_stream=True), UsageFilter())


def test_cut_metered_stream_with_an_event_that_is_too_long_gets_its_blank_line() -> None:
    """What is passed on unchanged is as half as the upstream left it."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), b"data: " + b"x" * 70_000, False)
        reply.cut(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))
        assert client.last is not None and client.last.startswith(b'\n\ndata: {"error"')

    replying(test, Meter(is_stream=True), UsageFilter())


def test_stream_that_ends_with_its_connection_inside_an_event_is_cut() -> None:
    """F-13: and the half event is not sent as the end of a reply."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE, until_close=True), CHUNK, False)
        reply.on_reply(None, CHUNK[:20], True)
        with pytest.raises(UpstreamFailure) as caught:
            await end_of(reply)
        reply.cut(caught.value)
        assert caught.value.reason is Reason.UPSTREAM_TRUNCATED
        assert b"".join(client.writes) == SENT and not client.has_ended
        assert client.last is not None and client.last.startswith(b'data: {"error"')

    replying(test, Meter(is_stream=True), UsageFilter())


def test_comment_of_velox_stands_between_events_while_half_of_one_is_held() -> None:
    """The client is between two, though the upstream is not; and half an event is no silence."""

    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), CHUNK, False)
        began_s = reply.last_s
        await asyncio.sleep(5)
        reply.on_reply(None, CHUNK[:20], False)
        assert reply.last_s == began_s + 5
        await asyncio.sleep(20)
        reply.keep_alive(asyncio.get_running_loop().time(), 15.0)
        reply.on_reply(None, CHUNK[20:], True)
        assert client.writes == [SENT, b": ping\n\n", SENT]

    replying(test, Meter(is_stream=True), UsageFilter())


def test_reply_without_a_meter_is_not_read() -> None:
    async def test(reply: Reply, client: Client) -> None:
        reply.on_reply(head(200, SSE), CHUNK[:20], False)
        reply.on_reply(None, CHUNK[20:] + USAGE, True)
        assert client.writes == [CHUNK[:20], CHUNK[20:] + USAGE]

    replying(test)


def test_error_that_is_held_for_its_key_passes_a_meter() -> None:
    """F-26 and a meter do not meet: an error has no usage."""
    meter = Meter(is_stream=True)

    async def test(reply: Reply, client: Client) -> None:
        reply.begin(Listener(secret=b"sk-ours-0123456789"), NO_ATTEMPTS)
        reply.on_reply(head(400, JSON), b'{"error":{"message":', False)
        reply.on_reply(None, b'"bad"}}', True)
        await end_of(reply)
        assert b"".join(client.writes) == b'{"error":{"message":"bad"}}'

    replying(test, meter, UsageFilter())
    assert meter.usage(is_whole=True) == Usage(0, 0, False)


def test_kinds_of_a_translated_reply_are_those_that_the_upstream_told() -> None:
    meter = Meter()
    meter.begin(ReplyHead.of(200, (JSON,), None), is_sse=False, is_plain=True)
    text = b'{"usage":{"prompt_tokens":9,"completion_tokens":1},"service_tier":"flex"}'
    meter.feed(text, True)
    assert meter.kinds() == TokenUsage(9, 1, tier="flex")
    meter.note(TokenUsage(9, 1, 4, 3, 2))
    assert meter.kinds() == TokenUsage(9, 1, 4, 3, 2)  # the tier may be what the client asked for
    assert meter.usage(is_whole=True) == Usage(9, 1, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_usage_that_a_translation_has_read_is_not_looked_for_again(size: int) -> None:
    """Only the events are counted of what it writes, for a stream that is cut."""
    meter = Meter(is_stream=True)
    meter.begin(ReplyHead.of(200, (SSE,), None), is_sse=True, is_plain=True)
    meter.note(TokenUsage(9))
    text = SENT * 3 + USAGE
    for at in range(0, len(text), size):
        assert meter.feed(text[at : at + size], False) == text[at : at + size]

    assert meter.kinds() == TokenUsage(9)
    assert meter.usage(is_whole=False) == Usage(9, 4, False)
    meter.forget()  # what it has not read is not known
    assert meter.kinds() == TokenUsage()


ITEMS: Final = (
    b'[{"candidates":[],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":1}},\r\n'
    b'{"candidates":[{"content":{"parts":[{"text":"\\"usageMetadata\\": {"}]}}]},'
    b'{"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":7,"thoughtsTokenCount":2}}]'
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_stream_of_gemini_as_an_array_tells_its_last_usage(size: int) -> None:
    """However it is cut; one that is not whole tells nothing that can be counted."""
    meter, *_ = metered(None, BodyFields(model="m", stream=True), Endpoint.GENERATE)
    head = ReplyHead.of(200, [JSON], None)
    meter.begin(head, is_sse=False, is_plain=True)
    for at in range(0, len(ITEMS), size):
        assert meter.feed(ITEMS[at : at + size], False) == ITEMS[at : at + size]
    assert meter.usage(is_whole=False) == Usage(None, None, False)
    meter.feed(b"", True)
    assert meter.usage(is_whole=True) == Usage(5, 9, True)
    assert (meter.kinds().input, meter.kinds().output, meter.kinds().reasoning) == (5, 9, 2)


def test_array_whose_last_item_is_missing_has_an_answer_of_unknown_length() -> None:
    """Items before it tell the prompt and the same as total: 0 is not what was made."""
    item = b'{"candidates":[{}],"usageMetadata":{"promptTokenCount":5,"totalTokenCount":5}}'
    for items, made in ((item, 0), (b"%b,%b" % (item, item), None), (b"%b,%b,%b" % (item, item, item), None)):
        meter, *_ = metered(None, BodyFields(model="m", stream=True), Endpoint.GENERATE)
        meter.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
        meter.feed(b"[%b]" % items, True)
        assert meter.usage(is_whole=True) == Usage(5, made, made is not None)


def test_array_that_is_none_tells_nothing() -> None:
    """It passes all the same."""
    meter, *_ = metered(None, BodyFields(model="m", stream=True), Endpoint.GENERATE)
    meter.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    assert meter.feed(b"[}", False) == b"[}"
    assert meter.feed(ITEMS, True) == ITEMS
    assert meter.usage(is_whole=True) == Usage(None, None, False)
