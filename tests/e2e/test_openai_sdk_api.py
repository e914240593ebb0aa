"""The rest of the API through the real SDK and the simulator: responses, completions, embeddings, models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.upstreams import Upstream
from tests.untrusting import NO_TRUST


@pytest.fixture(scope="module", params=["http1", "h2c"])
def velox(request: pytest.FixtureRequest, sim: Upstream) -> Iterator[VeloxProcess]:
    """A gateway of two workers in front of the simulator."""
    upstream = Upstream(sim.url, http2=request.param == "h2c")
    with VeloxProcess({**upstream.env(), "VELOX_WORKERS": "2"}) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(velox: VeloxProcess) -> openai.OpenAI:
    """The real SDK pointed at it."""
    return velox.openai()


def test_models_are_listed_and_found(sdk: openai.OpenAI) -> None:
    """GET passes, with an id in the path."""
    assert [model.id for model in sdk.models.list()] == ["velox-sim"]
    assert sdk.models.retrieve("velox-sim").id == "velox-sim"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("no-such-model")


def test_response_arrives_plain_and_streamed(sdk: openai.OpenAI) -> None:
    """The Responses API: the text of the stream is the text of its last event."""
    plain = sdk.responses.create(model="velox-sim", input="hello")
    with sdk.responses.create(model="velox-sim", input="hello", stream=True) as stream:
        events = list(stream)

    text = "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent))
    assert plain.output_text
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert text == events[-1].response.output_text


def test_completion_arrives_plain_and_streamed(sdk: openai.OpenAI) -> None:
    """The older completions API."""
    plain = sdk.completions.create(model="velox-sim", prompt="hello")
    with sdk.completions.create(model="velox-sim", prompt="hello", stream=True) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    assert plain.choices[0].text and text


def test_embeddings_arrive(sdk: openai.OpenAI) -> None:
    """One vector for each input."""
    made = sdk.embeddings.create(model="velox-sim", input=["one", "two"], encoding_format="float")

    assert [item.index for item in made.data] == [0, 1]
    assert all(item.embedding for item in made.data)


def test_usage_comes_at_the_end_of_a_stream(sdk: openai.OpenAI) -> None:
    """What a client asks for by stream_options reaches the upstream, and its answer the client."""
    with sdk.chat.completions.create(
        model="velox-sim", messages=[], stream=True, stream_options={"include_usage": True}
    ) as stream:
        *_, last = stream

    assert last.usage is not None and last.usage.completion_tokens > 0


def test_many_at_once_all_arrive(velox: VeloxProcess) -> None:
    """100 asynchronous streams over both workers: each is whole."""

    async def ask(client: openai.AsyncOpenAI) -> bool:
        stream = await client.chat.completions.create(model="velox-sim", messages=[], stream=True)
        return [chunk async for chunk in stream][-1].choices[0].finish_reason in ("stop", "length")

    async def main() -> list[bool]:
        async with openai.AsyncOpenAI(
            base_url=f"{velox.base_url}/v1",
            api_key=KEY,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20),
        ) as client:
            return await asyncio.gather(*(ask(client) for _ in range(100)))

    assert asyncio.run(main()) == [True] * 100
