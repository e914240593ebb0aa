"""The OpenAI Agents SDK, on both APIs of OpenAI."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel
from serving import ASKED, Gateway, look, serve

set_tracing_disabled(True)


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def client(gateway: Gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.openai, api_key=gateway.key, max_retries=0)


def chat(gateway: Gateway) -> dict[str, Any]:
    return {"model": OpenAIChatCompletionsModel(gateway.model, client(gateway))}


def responses(gateway: Gateway) -> dict[str, Any]:
    return {"model": OpenAIResponsesModel(gateway.model, client(gateway))}


def stateless(gateway: Gateway) -> dict[str, Any]:
    """Return a model and settings with which nothing is kept."""
    settings = ModelSettings(
        store=False, response_include=["reasoning.encrypted_content"], reasoning=Reasoning(effort="low")
    )
    return {**responses(gateway), "model_settings": settings}


def loop(make: Any, output: Any = None, **more: Any) -> Any:
    """Return a function that runs an agent, and returns its last output. output: the type of it. more: of the run."""

    def run(gateway: Gateway) -> Any:
        tools = [] if output else [function_tool(look)]
        agent = Agent("weather", instructions="Be brief.", tools=tools, output_type=output, **make(gateway))

        async def ask() -> Any:
            if not gateway.is_streamed:
                return (await Runner.run(agent, ASKED, **more)).final_output
            result = Runner.run_streamed(agent, ASKED, **more)
            async for _ in result.stream_events():
                pass
            return result.final_output

        said = asyncio.run(ask())
        return said.model_dump() if output else said

    return run


makers = {"chat": chat, "responses": responses, "stateless": stateless}
serve(
    {
        **{name: loop(make) for name, make in makers.items()},
        "kept": loop(responses, auto_previous_response_id=True),
        **{f"{name}-report": loop(make, Report) for name, make in makers.items()},
    }
)
