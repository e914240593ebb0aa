"""One meaning of silence on all lanes: what ends the wait for the first byte, what goes on after it, what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import pytest

from tests.sockets.gateway.composed import TIMEOUTS, Composed, Stand, composed, in_order, settings_with, upstream_of
from tests.sockets.gateway.core_attempts import SILENT, attempts, status_of
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, request_head
from tests.unit import virtual_time
from velox.gateway.request.exchange import Exchange
from velox.heads import ReplyHead
from velox.policy.routes.entries import Timeouts
from velox.types import ANYONE, ApiKind

SSE: Final = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
COMMENT: Final = b": OPENROUTER PROCESSING\n\n"
FIRST_BYTE_S: Final = 20.0
IDLE_S: Final = 60.0
LIMITS: Final = replace(TIMEOUTS, first_byte_s=FIRST_BYTE_S, idle_s=IDLE_S)


def event(name: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **fields}))


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: %b\n\n" % orjson.dumps(
        {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices}
    )


PING: Final = event("ping")
KEEPALIVE: Final = event("keepalive", sequence_number=3)
RESPONSE: Final = {"id": "resp_1", "object": "response", "model": "gpt-5", "status": "in_progress", "output": []}
CREATED: Final = event("response.created", response=RESPONSE)
IN_PROGRESS: Final = event("response.in_progress", response=RESPONSE)
REASONING: Final = event("response.output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1"})
MESSAGE_START: Final = event(
    "message_start", message={"id": "msg_1", "model": "claude-opus-4-8", "usage": {"input_tokens": 1}, "content": []}
)
CHAT_ANSWER: Final = chunk({"content": "hello"}) + chunk({}, "stop") + b"data: [DONE]\n\n"
RESPONSES_ANSWER: Final = event("response.output_text.delta", output_index=1, content_index=0, delta="hello") + event(
    "response.completed", response={**RESPONSE, "status": "completed"}
)
CLAUDE_ANSWER: Final = (
    event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hello"})
    + event("content_block_stop", index=0)
    + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1})
    + event("message_stop")
)
CHAT: Final = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
RESPONSES: Final = ("/v1/responses", {"input": "a"})
MESSAGES: Final = ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "a"}]})


@dataclass(frozen=True)
class Lane:
    """A client's API at one provider. begins: what comes with the head. sign: what comes while the model thinks."""

    asked: tuple[str, dict[str, Any]]
    provider: str
    model: str
    begins: bytes
    sign: bytes
    answer: bytes
    apis: tuple[ApiKind, ...] = ()

    @property
    def body(self) -> bytes:
        return orjson.dumps({"model": self.model, "stream": True, **self.asked[1]})


LANES: Final = {
    "chat": Lane(CHAT, "openrouter", "o3", COMMENT, COMMENT, CHAT_ANSWER),
    "chat-silent": Lane(CHAT, "openai-compatible", "m", COMMENT, COMMENT, CHAT_ANSWER),
    "responses": Lane(RESPONSES, "openai", "gpt-5", CREATED + IN_PROGRESS, KEEPALIVE, RESPONSES_ANSWER),
    "responses-comments": Lane(RESPONSES, "openai", "gpt-5", CREATED + REASONING, COMMENT, RESPONSES_ANSWER),
    "messages": Lane(MESSAGES, "anthropic", "claude-opus-4-8", MESSAGE_START, PING, CLAUDE_ANSWER),
    "chat-claude": Lane(CHAT, "anthropic", "claude-opus-4-8", MESSAGE_START, PING, CLAUDE_ANSWER),
    "responses-claude": Lane(RESPONSES, "anthropic", "claude-opus-4-8", MESSAGE_START, PING, CLAUDE_ANSWER),
    "messages-gpt": Lane(MESSAGES, "openai", "gpt-5", CREATED + IN_PROGRESS, KEEPALIVE, RESPONSES_ANSWER),
    "messages-gpt-thinks": Lane(MESSAGES, "openai", "gpt-5", CREATED + REASONING, KEEPALIVE, RESPONSES_ANSWER),
    "messages-chat": Lane(MESSAGES, "mistral", "m", COMMENT, COMMENT, CHAT_ANSWER),
    "responses-chat": Lane(RESPONSES, "groq", "m", COMMENT, COMMENT, CHAT_ANSWER),
}
TRANSLATED: Final = [name for name in LANES if "-" in name and name.split("-")[1] in ("claude", "gpt", "chat")]


class Stage:
    """One request of a lane at an upstream that does what the test says, on a clock that takes no time."""

    def __init__(self, made: Composed, lane: Lane, first: ScriptedUpstream, other: ScriptedUpstream) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self.client: Final = FakeClient()
        self.first: Final = first
        self.other: Final = other
        self._gateway: Final = made.gateway
        head = request_head(path=lane.asked[0].encode())
        exchange = made.gateway.submit(self.client, head, lane.body, ANYONE)
        assert isinstance(exchange, Exchange)
        self._began_s: Final = self.loop.time()

    @property
    def at_s(self) -> float:
        """Seconds since the request."""
        return self.loop.time() - self._began_s

    def says(self, *pieces: bytes, end: bool = False) -> None:
        for n, piece in enumerate(pieces, 1):
            self.first.streams[0].play((None, piece, end and n == len(pieces)))

    async def begins(self, data: bytes) -> None:
        await self.passes(0.1)
        self.first.streams[0].play((SSE, b"", False))
        self.says(data)

    async def passes(self, seconds: float, sign: bytes = b"", every_s: float = 5.0) -> None:
        """Let time go by, with the gateway's own look each quarter of a second. sign: comes again and again."""
        until_s, next_s = self.loop.time() + seconds, self.loop.time() + every_s
        while self.loop.time() < until_s and not self.client.finished.is_set():
            await asyncio.sleep(0.25)
            if sign and self.loop.time() >= next_s:
                next_s += every_s
                self.says(sign)
            self._gateway.sweep(self.loop.time())
            await asyncio.sleep(0)

    async def ends(self) -> bytes:
        await asyncio.wait_for(self.client.finished.wait(), 1.0)
        return self.client.written + b"".join(last for last, _ in self.client.cuts)


def play(
    lane: Lane, test: Callable[[Stage], Awaitable[None]], *, timeouts: Timeouts = LIMITS, **settings: object
) -> None:
    """Run a test of one lane, whose fallback answers at once."""

    async def main() -> None:
        first = ScriptedUpstream(SILENT)
        other = ScriptedUpstream([(SSE, lane.begins, False), (None, lane.answer, True)])
        entries = tuple(
            replace(upstream_of(name, timeouts=timeouts), provider=lane.provider, apis=lane.apis) for name in "ab"
        )
        made_settings = settings_with(upstreams=entries, routes=(in_order("ab"),), **settings)
        with composed(made_settings, {"a": Stand(first.dial), "b": Stand(other.dial)}) as made:
            await test(Stage(made, lane, first, other))

    virtual_time.run(main())


@pytest.mark.parametrize("name", LANES)
def test_first_byte_ends_the_wait_for_it_and_signs_of_life_end_each_silence(name: str) -> None:
    """C9: 75 s of thinking with a ping, a keepalive or a comment each 5 s is no silence, whichever the two APIs are."""
    lane = LANES[name]

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(75.0, lane.sign)
        stage.says(lane.answer, end=True)
        written = await stage.ends()
        assert status_of(stage.client) == 200 and b"hello" in written, written
        assert (attempts(stage.first, stage.other), stage.client.cuts) == ([1, 0], [])

    play(lane, test)


@pytest.mark.parametrize("name", LANES)
def test_silence_after_the_first_byte_is_bounded_by_idle_alone(name: str) -> None:
    """C9: not by the wait for the first byte, which is over, and which nobody thinks of who looks for a silence."""
    lane = LANES[name]

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(IDLE_S - 1.0)
        assert (attempts(stage.first, stage.other), stage.client.cuts) == ([1, 0], [])
        await stage.passes(2.0)
        written = await stage.ends()
        if attempts(stage.first, stage.other) == [1, 1]:
            assert b"hello" in written, "nothing had gone to the client"
        else:
            assert b"the upstream sent nothing for 60 s" in written

    play(lane, test)


@pytest.mark.parametrize("name", ["responses-comments", "messages-gpt-thinks"])
def test_reasoning_that_has_begun_is_work(name: str) -> None:
    """C9: as a `thinking` block of Claude is. The client has the head, and no other attempt follows."""
    lane = LANES[name]

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(1.5)
        assert stage.client.written.startswith(b"HTTP/1.1 200 ")

    play(lane, test, timeouts=replace(LIMITS, first_event_s=5.0))


@pytest.mark.parametrize(
    ("asked", "model", "stream", "thinks"),
    [
        (CHAT, "gpt-4o", True, False),
        (CHAT, "gpt-5", True, True),
        (CHAT, "gpt-4o", False, True),
        (RESPONSES, "o3", False, True),
        (("/v1/embeddings", {"input": "a"}), "text-embedding-3-small", False, False),
    ],
)
def test_first_byte_of_who_may_think_before_it_is_waited_for_longer(
    asked: tuple[str, dict[str, Any]], model: str, stream: bool, thinks: bool
) -> None:
    """C9: a plain answer comes when the model is done. A server that says nothing of a usual stream is left early."""
    lane = Lane(asked, "openai", model, b"", b"", b"")
    body = orjson.dumps({"model": model, "stream": stream, **asked[1]})

    async def test(stage: Stage) -> None:
        await stage.passes(FIRST_BYTE_S + 1.0)
        assert attempts(stage.first) == [1] and stage.first.n_open == int(thinks)
        if thinks:
            await stage.passes(600.0 - FIRST_BYTE_S - 2.0)
            assert stage.first.n_open == 1
            await stage.passes(2.0)
            assert stage.first.n_open == 0

    class Plain(Lane):
        @property
        def body(self) -> bytes:
            return body

    play(Plain(**vars(lane)) if not stream else lane, test, timeouts=replace(LIMITS, thinking_s=600.0))


@pytest.mark.parametrize("sign", [b"", COMMENT])
def test_text_of_a_chat_that_stalls_is_cut_though_comments_come(sign: bytes) -> None:
    """F-19: a model thinks before its text, and not inside it."""
    lane = LANES["chat"]

    async def test(stage: Stage) -> None:
        await stage.begins(chunk({"content": "hello " * 500}))
        await stage.passes(39.0, sign)
        assert stage.client.cuts == []
        await stage.passes(2.0, sign)
        assert b"upstream_idle_timeout" in await stage.ends()

    play(lane, test, timeouts=replace(LIMITS, stall_s=40.0))


def test_pause_between_the_items_of_an_answer_that_is_put_into_chat_is_no_stall() -> None:
    """C9: its model may think again after 2 KiB of what it thought, as it may where the client speaks its API."""
    thoughts = event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="so " * 1500)

    async def test(stage: Stage) -> None:
        await stage.begins(CREATED + REASONING + thoughts)
        await stage.passes(50.0)
        stage.says(RESPONSES_ANSWER, end=True)
        assert b"hello" in await stage.ends()

    lane = Lane(CHAT, "vllm", "gpt-oss", b"", b"", b"", apis=(ApiKind.RESPONSES,))
    play(lane, test, timeouts=replace(LIMITS, stall_s=40.0))


# -- preludes --------------------------------------------------------------------------------------------


def preludes(n_bytes: int) -> tuple[bytes, bytes]:
    """Return two events that repeat a request of so many bytes together, as OpenAI's do."""
    more = {**RESPONSE, "instructions": "x" * (n_bytes // 2)}
    return event("response.created", response=more), event("response.in_progress", response=more)


@pytest.mark.parametrize("n_bytes", [200, 66_000, 300_000, 1_000_000])
@pytest.mark.parametrize("named", [True, False])
def test_preludes_of_any_size_count_as_nothing(n_bytes: int, named: bool) -> None:
    """C25: they repeat the request's tools and instructions; who is silent behind them has not begun."""
    lane = LANES["responses"]

    async def test(stage: Stage) -> None:
        pieces = [piece if named else piece[piece.index(b"\n") + 1 :] for piece in preludes(n_bytes)]
        await stage.begins(b"")
        for piece in pieces:
            for at in range(0, len(piece), 16_384):
                stage.says(piece[at : at + 16_384])
        await stage.passes(1.5)
        assert not stage.client.written
        await stage.passes(1.0)
        written = await stage.ends()
        assert b"hello" in written and len(written) < 4000, "the fallback's"
        assert attempts(stage.first, stage.other) == [1, 1]

    play(lane, test, timeouts=replace(LIMITS, first_event_s=2.0))


@pytest.mark.parametrize("n_bytes", [200, 66_000, 300_000])
def test_stream_that_ends_behind_its_preludes_is_asked_for_elsewhere(n_bytes: int) -> None:
    """C25: nothing has gone to the client, so a cut there is not its affair."""
    lane = LANES["responses"]

    async def test(stage: Stage) -> None:
        await stage.begins(b"")
        stage.says(*preludes(n_bytes), b"", end=True)
        await stage.passes(1.0)
        assert b"hello" in await stage.ends()
        assert attempts(stage.first, stage.other) == [1, 1]

    play(lane, test, timeouts=replace(LIMITS, first_event_s=2.0))


# -- our comments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("first_event_s", [0.0, 30.0])
def test_comments_are_sent_before_the_first_event_too(name: str, first_event_s: float) -> None:
    """W8, C49: that is the longest silence there is. The head goes out with the first; no other attempt follows."""
    lane = LANES[name]

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(1.0)
        await stage.passes(6.5)
        written = stage.client.written
        assert written.startswith(b"HTTP/1.1 200 ") and 3 <= written.count(b": ping\n\n") <= 4, written
        stage.says(lane.answer, end=True)
        assert b"hello" in await stage.ends()

    play(lane, test, timeouts=replace(LIMITS, first_event_s=first_event_s), sse_keepalive_s=2.0)


@pytest.mark.parametrize("name", ["chat-claude", "messages-gpt", "responses-claude"])
def test_pings_that_the_client_does_not_get_are_a_silence_for_it(name: str) -> None:
    """C49's kind: the upstream's pings keep its own connection open, and not the client's, who reads another API."""
    lane = LANES[name]

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(9.0, lane.sign, every_s=1.0)
        assert stage.client.written.count(b": ping\n\n") >= 3

    play(lane, test, sse_keepalive_s=2.0)


@pytest.mark.parametrize("name", TRANSLATED)
def test_error_after_our_first_comment_is_an_event_of_the_stream(name: str) -> None:
    """C49: the status has gone out; the client's SDK raises on the event, and nobody else is asked."""
    lane = LANES[name]
    error = event("error", error={"type": "overloaded_error", "code": "server_error", "message": "Overloaded"})
    if lane.answer is CHAT_ANSWER:
        error = b'data: {"error":{"message":"Overloaded","code":503}}\n\n'

    async def test(stage: Stage) -> None:
        await stage.begins(lane.begins)
        await stage.passes(4.0)
        stage.says(error, end=True)
        await stage.passes(0.5)
        written = await stage.ends()
        assert status_of(stage.client) == 200 and b"Overloaded" in written
        assert attempts(stage.first, stage.other) == [1, 0]

    play(lane, test, sse_keepalive_s=2.0)


def test_no_comment_before_the_upstream_has_answered() -> None:
    """C49: it may still answer with an error, whose status the client's SDK acts upon."""
    lane = LANES["messages-gpt"]

    async def test(stage: Stage) -> None:
        await stage.passes(10.0)
        assert not stage.client.written
        stage.first.streams[0].play((ReplyHead.of(429, [], 2), b"{}", True))
        await stage.passes(0.5)
        assert b"hello" in await stage.ends() and attempts(stage.first, stage.other) == [1, 1]

    play(lane, test, sse_keepalive_s=2.0)
