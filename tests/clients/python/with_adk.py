"""Google's Agent Development Kit: with its own Gemini, its Claude, and LiteLLM's model for all APIs."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
from anthropic import AsyncAnthropic
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import Gemini
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel
from serving import ASKED, Gateway, look, serve

litellm.telemetry = False
# To which LiteLLM adds the last part of a path.
BASES = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def gemini(gateway: Gateway) -> Any:
    return Gemini(model=gateway.model, base_url=gateway.base_url, client_kwargs={"api_key": gateway.key})


class Claude(AnthropicLlm):
    """Its Claude, which takes the address and the key from the environment alone."""

    gateway: Any = None

    @property
    def _anthropic_client(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.gateway.base_url, api_key=self.gateway.key, max_retries=0)


def claude(gateway: Gateway) -> Any:
    return Claude(model=gateway.model, gateway=gateway)


def lite(provider: str) -> Any:
    """Return a function that makes LiteLLM's model of a provider's API."""

    def make(gateway: Gateway) -> Any:
        base = f"{gateway.base_url}{BASES[provider]}"
        return LiteLlm(f"{provider}/{gateway.model}", api_base=base, api_key=gateway.key, num_retries=0)

    return make


def loop(make: Any, schema: Any = None) -> Any:
    """Return a function that runs an agent, and returns its last text. schema: of a structured answer."""

    def run(gateway: Gateway) -> Any:
        agent = LlmAgent(
            name="weather",
            model=make(gateway),
            instruction="Be brief.",
            tools=[] if schema else [look],
            output_schema=schema,
        )

        async def ask() -> str:
            runner = InMemoryRunner(agent, app_name="weather")
            session = await runner.session_service.create_session(app_name="weather", user_id="u")
            mode = StreamingMode.SSE if gateway.is_streamed else StreamingMode.NONE
            said = ""
            async for event in runner.run_async(
                user_id="u",
                session_id=session.id,
                new_message=types.UserContent(ASKED),
                run_config=RunConfig(streaming_mode=mode),
            ):
                assert not event.error_code, (event.error_code, event.error_message)
                if event.is_final_response() and event.content:
                    said = "".join(part.text or "" for part in event.content.parts if not part.thought)
            return said

        text = asyncio.run(ask())
        return schema.model_validate_json(text).model_dump() if schema else text

    return run


makers = {
    "gemini": gemini,
    "claude": claude,
    "litellm-openai": lite("openai"),
    "litellm-anthropic": lite("anthropic"),
    "litellm-gemini": lite("gemini"),
}
serve(
    {
        **{name: loop(make) for name, make in makers.items()},
        **{f"{name}-report": loop(make, Report) for name, make in makers.items()},
    }
)
