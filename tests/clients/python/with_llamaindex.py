"""LlamaIndex's FunctionAgent with the models of OpenAI (both APIs), Anthropic and Google."""

from __future__ import annotations

import asyncio
from typing import Any

from google.genai.types import HttpOptions
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage, LLMMetadata
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.google_genai import GoogleGenAI
from llama_index.llms.openai_like import OpenAILike
from llama_index.llms.openai_like.responses import OpenAILikeResponses
from pydantic import BaseModel
from serving import ASKED, Gateway, look, serve


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


# Of a model that it does not know.
ABLE = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 100_000}


def chat(gateway: Gateway) -> Any:
    return OpenAILike(model=gateway.model, api_base=gateway.openai, api_key=gateway.key, max_retries=0, **ABLE)


def responses(gateway: Gateway) -> Any:
    return OpenAILikeResponses(model=gateway.model, api_base=gateway.openai, api_key=gateway.key, max_retries=0, **ABLE)


class AnyClaude(Anthropic):
    """Its Anthropic, which takes no names of models but those that it knows."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=100_000,
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model,
        )


def anthropic(gateway: Gateway) -> Any:
    return AnyClaude(
        model=gateway.model, base_url=gateway.base_url, api_key=gateway.key, max_retries=0, max_tokens=4000
    )


def google(gateway: Gateway) -> Any:
    # Without `max_tokens` it asks for the model's limits when it is made.
    return GoogleGenAI(
        model=gateway.model,
        api_key=gateway.key,
        http_options=HttpOptions(base_url=gateway.base_url),
        max_tokens=4000,
        max_retries=1,
    )


def loop(make: Any) -> Any:
    """Return a function that runs an agent, and returns its last text."""

    def run(gateway: Gateway) -> str:
        tool = FunctionTool.from_defaults(look)
        agent = FunctionAgent(
            tools=[tool],
            llm=make(gateway),
            system_prompt="Be brief.",
            streaming=gateway.is_streamed,
        )

        async def ask() -> Any:
            handler = agent.run(ASKED)
            async for _ in handler.stream_events():
                pass
            return await handler

        return str(asyncio.run(ask()))

    return run


def report(make: Any) -> Any:
    """Return a function that asks for a structured answer."""

    def run(gateway: Gateway) -> Any:
        model = make(gateway).as_structured_llm(Report)
        return model.chat([ChatMessage(role="user", content=ASKED)]).raw.model_dump()

    return run


makers = {"chat": chat, "responses": responses, "anthropic": anthropic, "google": google}
serve(
    {
        **{name: loop(make) for name, make in makers.items()},
        **{f"{name}-report": report(make) for name, make in makers.items()},
    }
)
