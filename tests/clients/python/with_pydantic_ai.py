"""Pydantic AI with the models of OpenAI (both APIs), Anthropic and Google."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from google.genai import Client
from google.genai.types import HttpOptions
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from serving import ASKED, Gateway, look, serve


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def openai_provider(gateway: Gateway) -> OpenAIProvider:
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=gateway.openai, api_key=gateway.key, max_retries=0))


def chat(gateway: Gateway) -> Any:
    return OpenAIChatModel(gateway.model, provider=openai_provider(gateway))


def responses(gateway: Gateway) -> Any:
    return OpenAIResponsesModel(gateway.model, provider=openai_provider(gateway))


def anthropic(gateway: Gateway) -> Any:
    client = AsyncAnthropic(base_url=gateway.base_url, api_key=gateway.key, max_retries=0)
    # What it knows of Claude by its name, said of any model.
    profile = AnthropicModelProfile(supports_json_schema_output=True)
    return AnthropicModel(gateway.model, provider=AnthropicProvider(anthropic_client=client), profile=profile)


def google(gateway: Gateway) -> Any:
    client = Client(api_key=gateway.key, http_options=HttpOptions(base_url=gateway.base_url))
    return GoogleModel(gateway.model, provider=GoogleProvider(client=client))


def loop(make: Any, output: Any = str) -> Any:
    """Return a function that runs an agent, and returns its output, of the type `output`."""

    def run(gateway: Gateway) -> Any:
        tools = [look] if output is str else []
        agent = Agent(make(gateway), tools=tools, instructions="Be brief.", output_type=output, retries=0)

        async def ask() -> Any:
            if not gateway.is_streamed:
                return (await agent.run(ASKED)).output
            said = None
            async with agent.run_stream_events(ASKED) as events:
                async for event in events:
                    if event.event_kind == "agent_run_result":
                        said = event.result.output
            return said

        said = asyncio.run(ask())
        return said if output is str else said.model_dump()

    return run


makers = {"chat": chat, "responses": responses, "anthropic": anthropic, "google": google}
serve(
    {
        **{name: loop(make) for name, make in makers.items()},
        **{f"{name}-report": loop(make, NativeOutput(Report)) for name, make in makers.items()},
        **{f"{name}-report-tool": loop(make, ToolOutput(Report)) for name, make in makers.items()},
    }
)
