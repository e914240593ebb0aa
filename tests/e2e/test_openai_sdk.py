"""The real OpenAI SDK through the gateway, to each kind of upstream, with each engine, on one and three workers."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionUserMessageParam

from tests.e2e.harness import VeloxProcess
from tests.e2e.upstreams import Upstream

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say something about gateways."}]
ENGINES = ("ngh2", "h2")
# (upstream's fixture, engine or None where HTTP/1.1 is spoken)
KINDS = [
    *(("nginx_tls", engine) for engine in ENGINES),
    ("nginx_http1", None),
    *(("nghttpd", engine) for engine in ENGINES),
    ("sim", None),
    *(("sim_h2c", engine) for engine in ENGINES),
]
IDS = ["-".join(filter(None, kind)) for kind in KINDS]


@pytest.fixture(scope="module")
def sim_h2c(sim: Upstream) -> Upstream:
    """The simulator, spoken to in HTTP/2 by prior knowledge."""
    return Upstream(sim.url, http2=True)


@pytest.fixture(scope="module", params=[1, 3], ids=["1-worker", "3-workers"])
def workers(request: pytest.FixtureRequest) -> int:
    """How many workers the gateway has."""
    n: int = request.param
    return n


@pytest.fixture(scope="module", params=KINDS, ids=IDS)
def through(request: pytest.FixtureRequest, workers: int) -> Iterator[tuple[str, openai.OpenAI]]:
    """The upstream's kind, and the SDK pointed at a gateway in front of it."""
    kind, engine = request.param
    upstream: Upstream = request.getfixturevalue(kind)
    env = {**upstream.env(), "VELOX_WORKERS": str(workers), "VELOX_EGRESS_POOL_CONNECTIONS": str(workers)}
    if engine is not None:
        env["VELOX_HTTP2_ENGINE"] = engine
    with VeloxProcess(env) as velox:
        yield kind, velox.openai()


def ask(kind: str, sdk: openai.OpenAI) -> ChatCompletion:
    """Ask for a plain chat completion. nghttpd serves files, so there the path has a file's name."""
    if kind == "nghttpd":
        body = {"model": "any", "messages": MESSAGES}
        return sdk.post("/chat/completions.json", cast_to=ChatCompletion, body=body)
    return sdk.chat.completions.create(model="velox-sim", messages=MESSAGES)


def ask_streamed(kind: str, sdk: openai.OpenAI) -> openai.Stream[ChatCompletionChunk]:
    """Ask for a streamed one."""
    if kind == "nghttpd":
        body = {"model": "any", "messages": MESSAGES, "stream": True}
        stream = openai.Stream[ChatCompletionChunk]
        return sdk.post("/chat/completions.sse", cast_to=ChatCompletionChunk, body=body, stream=True, stream_cls=stream)
    return sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True)


def test_plain_chat_arrives_whole(through: tuple[str, openai.OpenAI]) -> None:
    """A plain answer reaches the SDK, on several connections of the client."""
    kind, sdk = through

    for _ in range(3):
        reply = ask(kind, sdk)

        assert reply.choices[0].message.content
        assert reply.choices[0].finish_reason in ("stop", "length")
        assert reply.usage is not None and reply.usage.completion_tokens > 0


def test_streamed_chat_arrives_whole(through: tuple[str, openai.OpenAI]) -> None:
    """A streamed answer reaches the SDK, chunk by chunk, to its proper end."""
    kind, sdk = through

    for _ in range(3):
        with ask_streamed(kind, sdk) as stream:
            chunks = list(stream)

        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert len(chunks) >= 4
        assert text
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
