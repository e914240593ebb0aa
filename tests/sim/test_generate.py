"""The simulator answers Google's real SDK: texts, functions, structured output, thoughts, counts, errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest
from google import genai
from google.genai import errors, types

from tests.sim.harness import FAST, with_sim
from tests.untrusting import NO_TRUST
from velox_sim.options import SimOptions
from velox_sim.server import SimServer

TALK: Final = replace(FAST, tokens=5, models=("alpha",))
ASKED: Final = "What is the weather?"
SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
}
FITTING: Final = {"city": "simulated", "days": 2}
TOOLS: Final[Any] = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name="get_weather", parameters_json_schema=SCHEMA),
            types.FunctionDeclaration(
                name="other",
                parameters=types.Schema(
                    type=types.Type.OBJECT, properties={"a": types.Schema(type=types.Type.BOOLEAN)}
                ),
            ),
        ]
    )
]


def with_genai(options: SimOptions, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Run `talk` with an SDK client of a simulator."""

    async def connected(sim: SimServer) -> None:
        for version in ("v1", "v1beta"):
            options = types.HttpOptions(base_url=sim.url, api_version=version)
            async with genai.Client(api_key="x", http_options=options).aio as sdk:
                await talk(sdk)

    with_sim(options, connected)


def test_text_plain_and_streamed() -> None:
    """The same text, with counts that are totals, and a finish reason at the end."""

    async def talk(sdk: Any) -> None:
        config = types.GenerateContentConfig(system_instruction="Be brief.")
        plain = await sdk.models.generate_content(model="m", contents=ASKED, config=config)
        stream = await sdk.models.generate_content_stream(model="m", contents=ASKED, config=config)
        chunks = [chunk async for chunk in stream]
        assert plain.text == "".join(chunk.text or "" for chunk in chunks)
        assert plain.candidates[0].finish_reason == types.FinishReason.STOP
        assert [chunk.candidates[0].finish_reason for chunk in chunks][-2:] == [None, types.FinishReason.STOP]
        assert plain.usage_metadata == chunks[-1].usage_metadata
        assert plain.usage_metadata.total_token_count == 8 + 5
        cut = types.GenerateContentConfig(max_output_tokens=2)
        answer = await sdk.models.generate_content(model="m", contents=ASKED, config=cut)
        assert answer.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS

    with_genai(TALK, talk)


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3-pro"])
def test_function_loop_with_thoughts(model: str) -> None:
    """The call is signed; it goes back unchanged; after the result comes a text."""

    async def talk(sdk: Any) -> None:
        config = types.GenerateContentConfig(
            tools=TOOLS,
            thinking_config=types.ThinkingConfig(include_thoughts=True),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        first = await sdk.models.generate_content(model=model, contents=ASKED, config=config)
        stream = await sdk.models.generate_content_stream(model=model, contents=ASKED, config=config)
        streamed = [part async for chunk in stream for part in chunk.candidates[0].content.parts]
        for parts in (first.candidates[0].content.parts, streamed):
            assert parts[0].thought and parts[0].text
            (call,) = [part for part in parts if part.function_call]
            assert (call.function_call.name, call.function_call.args) == ("get_weather", FITTING)
            assert call.thought_signature
        assert first.usage_metadata.thoughts_token_count > 0
        result = types.Part.from_function_response(name="get_weather", response={"result": "sunny"})
        history = [
            types.UserContent(ASKED),
            first.candidates[0].content,
            types.Content(role="user", parts=[result]),
        ]
        last = await sdk.models.generate_content(model=model, contents=history, config=config)
        assert last.text and not last.function_calls
        history[1] = types.ModelContent([types.Part.from_function_call(name="get_weather", args={})])
        if "3" in model:
            with pytest.raises(errors.ClientError, match="thought_signature"):
                await sdk.models.generate_content(model=model, contents=history, config=config)
        history[1].parts[0].thought_signature = b"wrong"
        with pytest.raises(errors.ClientError, match="signature"):
            await sdk.models.generate_content(model=model, contents=history, config=config)
        with pytest.raises(errors.ClientError, match="number of function response parts"):
            await sdk.models.generate_content(model=model, contents=history[:2], config=config)

    with_genai(TALK, talk)


def test_function_choice() -> None:
    """One by its name, declared in OpenAPI's way; none."""

    async def talk(sdk: Any) -> None:
        async def ask(**choice: Any) -> Any:
            config = types.GenerateContentConfig(
                tools=TOOLS,
                tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(**choice)),
                automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            )
            return await sdk.models.generate_content(model="m", contents=ASKED, config=config)

        named = await ask(mode="ANY", allowed_function_names=["other"])
        assert (named.function_calls[0].name, named.function_calls[0].args) == ("other", {"a": True})
        assert (await ask(mode="NONE")).text

    with_genai(TALK, talk)


def test_structured_output_fits_its_schema() -> None:
    """In both kinds of schema, and any JSON."""

    async def talk(sdk: Any) -> None:
        openapi = types.Schema(type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)})
        for fields, wanted in (
            ({"response_json_schema": SCHEMA}, FITTING),
            ({"response_schema": openapi}, {"city": "simulated"}),
            ({}, {"answer": "simulated"}),
        ):
            config = types.GenerateContentConfig(response_mime_type="application/json", **fields)
            answer = await sdk.models.generate_content(model="m", contents=ASKED, config=config)
            assert json.loads(answer.text) == wanted

    with_genai(TALK, talk)


def test_counts_models_and_errors() -> None:
    """In Google's shapes."""

    async def talk(sdk: Any) -> None:
        assert (await sdk.models.count_tokens(model="m", contents=ASKED)).total_tokens == 5
        options = types.HttpOptions(api_version="v1beta")
        models = await sdk.models.list(config=types.ListModelsConfig(http_options=options))
        assert [model.name async for model in models] == ["models/alpha"]
        with pytest.raises(errors.ClientError) as caught:
            await sdk.models.generate_content(model="m", contents=[types.Content(role="user", parts=[])])
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")

    async def failing(sdk: Any) -> None:
        with pytest.raises(errors.ServerError) as caught:
            await sdk.models.generate_content(model="m", contents=ASKED)
        assert (caught.value.code, caught.value.status) == (500, "INTERNAL")

    with_genai(TALK, talk)
    with_genai(replace(TALK, error_rate=1.0), failing)


def test_stream_without_sse_is_one_array() -> None:
    """As Google streams where nobody asks for events; with tools, too."""

    async def talk(sim: SimServer) -> None:
        tools = [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": SCHEMA}]}]
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url, trust_env=False) as client:
            for extra in ({}, {"tools": tools}):
                body = {"contents": [{"role": "user", "parts": [{"text": ASKED}]}], **extra}
                reply = await client.post("/v1beta/models/m:streamGenerateContent", json=body)
                chunks = reply.json()
                assert len({chunk["responseId"] for chunk in chunks}) == 1
                assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"

    with_sim(TALK, talk)
