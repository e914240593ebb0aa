"""The helpers of the official SDKs, on models of five APIs that are as strict as their vendors: loops and structures.

Each SDK asks in its own dialect, which one of the models has, and the others are translated to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from pydantic import BaseModel

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm, farm
from tests.clients.plan import Plan, Wanted
from tests.untrusting import NO_TRUST

# Anthropic's SDK warns of models that are to end; what the fake is called is no matter.
pytestmark = pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
CITIES = {"Oslo": "cold", "Rome": "warm", "Lima": "grey"}
ASKED: Any = [{"role": "user", "content": "How is the weather?"}]
LOOP = Plan(
    rounds=(
        (Wanted("look", {"city": "Oslo"}, "cold"), Wanted("look", {"city": "Rome"}, "warm")),
        (Wanted("look", {"city": "Lima"}, "grey"),),
    ),
    final="Oslo is cold, Rome is warm, Lima is grey.",
)


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int
    is_wet: bool | None = None


class Look(BaseModel):
    """Look at the weather of a city."""

    city: str


REPORTED = Report(city="Oslo", degrees=-3, is_wet=True)
REPORT = Plan(rounds=(), final=REPORTED.model_dump_json())


def look(city: str) -> str:
    """Look at the weather of a city.

    Args:
        city: Its name.
    """
    return CITIES[city]


@pytest.fixture(scope="module")
def models() -> Iterator[Farm]:
    with farm() as running:
        yield running


@pytest.fixture(scope="module")
def gpt(models: Farm) -> openai.OpenAI:
    return models.velox.openai()


@pytest.fixture(scope="module")
def claude(models: Farm) -> Iterator[anthropic.Anthropic]:
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=models.velox.base_url, api_key=KEY, max_retries=0, http_client=http) as made:
        yield made


@pytest.fixture(scope="module")
def google(models: Farm) -> Iterator[genai.Client]:
    with genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=models.velox.base_url)) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_chat_completions_parse(models: Farm, gpt: openai.OpenAI, kind: str, is_streamed: bool) -> None:
    """A loop with strict tools of pydantic, whose arguments come parsed; then an answer of a type."""

    def ask(**more: Any) -> Any:
        asked: Any = {"model": MODEL_NAMES[kind], "messages": messages, **more}
        if not is_streamed:
            return gpt.chat.completions.parse(**asked).choices[0].message
        with gpt.chat.completions.stream(**asked) as stream:
            return stream.get_final_completion().choices[0].message

    messages = list(ASKED)
    with models.playing(kind, LOOP):
        while (message := ask(tools=[openai.pydantic_function_tool(Look, name="look")])).tool_calls:
            said = message.model_dump(exclude_none=True, exclude={"parsed"})
            for each in said["tool_calls"]:
                del each["function"]["parsed_arguments"]
            messages.append(said)
            for call in message.tool_calls:
                parsed = call.function.parsed_arguments
                assert isinstance(parsed, Look)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": CITIES[parsed.city]})
    assert message.content == LOOP.final
    messages = list(ASKED)
    with models.playing(kind, REPORT):
        assert ask(response_format=Report).parsed == REPORTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_responses_parse(models: Farm, gpt: openai.OpenAI, kind: str, is_streamed: bool) -> None:
    """The output of a type."""
    asked: Any = {"model": MODEL_NAMES[kind], "input": "How is it in Oslo?", "text_format": Report}
    with models.playing(kind, REPORT):
        if is_streamed:
            with gpt.responses.stream(**asked) as stream:
                response: Any = stream.get_final_response()
        else:
            response = gpt.responses.parse(**asked)
    assert response.output_parsed == REPORTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_responses_tool_runner(models: Farm, gpt: openai.OpenAI, kind: str, is_streamed: bool) -> None:
    """The SDK's own loop of tools, which begins calls while they come where it streams."""
    tool = openai.pydantic_function_tool(Look, name="look")
    declared: Any = {"type": "function", **tool["function"]}
    runner = ResponsesToolRunner(
        functions=[RegisteredFunction(declared, lambda arguments: CITIES[str(arguments["city"])])]
    )
    asked: Any = {"model": MODEL_NAMES[kind], "input": ASKED}
    with models.playing(kind, LOOP):
        final = runner.run(gpt, asked, stream=is_streamed, eager=is_streamed, max_steps=5)
    assert final.output_text == LOOP.final


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_messages_tool_runner(models: Farm, claude: anthropic.Anthropic, kind: str, is_streamed: bool) -> None:
    """Anthropic's loop of tools."""
    asked: Any = {"model": MODEL_NAMES[kind], "max_tokens": 900, "messages": ASKED}
    with models.playing(kind, LOOP):
        if is_streamed:
            for stream in claude.beta.messages.tool_runner(**asked, tools=[anthropic.beta_tool(look)], stream=True):
                final: Any = stream.get_final_message()
        else:
            final = claude.beta.messages.tool_runner(**asked, tools=[anthropic.beta_tool(look)]).until_done()
    assert "".join(block.text for block in final.content if block.type == "text") == LOOP.final


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_messages_parse(models: Farm, claude: anthropic.Anthropic, kind: str, is_streamed: bool) -> None:
    """The message of a type."""
    asked: Any = {"model": MODEL_NAMES[kind], "max_tokens": 900, "messages": ASKED, "output_format": Report}
    with models.playing(kind, REPORT):
        if is_streamed:
            with claude.messages.stream(**asked) as stream:
                message: Any = stream.get_final_message()
        else:
            message = claude.messages.parse(**asked)
    assert message.parsed_output == REPORTED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_automatic_function_calling(models: Farm, google: genai.Client, kind: str, is_streamed: bool) -> None:
    """Google's loop of functions, in a chat that keeps the history."""
    chat = google.chats.create(model=MODEL_NAMES[kind], config=types.GenerateContentConfig(tools=[look]))
    with models.playing(kind, LOOP):
        if is_streamed:
            texts = [chunk.text or "" for chunk in chat.send_message_stream("How is the weather?")]
            assert "".join(texts).endswith(LOOP.final)
        else:
            assert chat.send_message("How is the weather?").text == LOOP.final


@pytest.mark.parametrize("kind", KINDS)
def test_automatic_function_calling_of_the_async_client(models: Farm, kind: str) -> None:
    """The same loop, which runs calls side by side."""

    async def ask() -> str | None:
        where = types.HttpOptions(base_url=models.velox.base_url)
        async with genai.Client(api_key=KEY, http_options=where).aio as google:
            said = await google.models.generate_content(
                model=MODEL_NAMES[kind],
                contents="How is the weather?",
                config=types.GenerateContentConfig(tools=[look]),
            )
            return said.text

    with models.playing(kind, LOOP):
        assert asyncio.run(ask()) == LOOP.final


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_json_schema", [False, True], ids=["schema", "JSON schema"])
def test_response_schema(models: Farm, google: genai.Client, kind: str, is_json_schema: bool) -> None:
    """The reply of a type, which the SDK writes in Google's own schemas, or in JSON Schema."""
    config: Any = {"response_mime_type": "application/json"}
    config |= {"response_json_schema": Report.model_json_schema()} if is_json_schema else {"response_schema": Report}
    with models.playing(kind, REPORT) as played:
        said = google.models.generate_content(
            model=MODEL_NAMES[kind], contents="How is the weather?", config=types.GenerateContentConfig(**config)
        )
    parsed = said.parsed if isinstance(said.parsed, Report) else Report.model_validate_json(said.text or "")
    assert parsed == REPORTED
    assert "is_wet" in json.dumps(played.requests)
