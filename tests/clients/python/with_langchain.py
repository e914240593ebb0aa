"""LangChain's create_agent with the models of OpenAI (both APIs), Anthropic and Google."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from serving import ASKED, Gateway, look, serve


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def chat(gateway: Gateway, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=gateway.model, base_url=gateway.openai, api_key=gateway.key, max_retries=0, **more)


def responses(gateway: Gateway) -> ChatOpenAI:
    return chat(gateway, use_responses_api=True)


def stateless(gateway: Gateway) -> ChatOpenAI:
    """Return one that keeps nothing: reasoning comes encrypted."""
    more = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"}}
    return chat(gateway, use_responses_api=True, store=False, **more)


def kept(gateway: Gateway) -> ChatOpenAI:
    """Return one that names the response before, and sends what is new only."""
    return chat(gateway, use_responses_api=True, use_previous_response_id=True)


def anthropic(gateway: Gateway, **more: Any) -> ChatAnthropic:
    return ChatAnthropic(
        model=gateway.model, base_url=gateway.base_url, api_key=gateway.key, max_retries=0, max_tokens=4000, **more
    )


def thinking(gateway: Gateway) -> ChatAnthropic:
    return anthropic(gateway, thinking={"type": "enabled", "budget_tokens": 2000})


def google(gateway: Gateway) -> ChatGoogleGenerativeAI:
    return ChatGoogleGenerativeAI(
        model=gateway.model, base_url=gateway.base_url, google_api_key=gateway.key, max_retries=1
    )


def loop(make: Any) -> Any:
    """Return a function that has an agent call its tool, and returns its last text."""

    def run(gateway: Gateway) -> str:
        agent = create_agent(make(gateway), tools=[look], system_prompt="Be brief.")
        asked: Any = {"messages": [{"role": "user", "content": ASKED}]}
        if not gateway.is_streamed:
            return str(agent.invoke(asked)["messages"][-1].text)
        texts: dict[str, str] = {}
        for message, _ in agent.stream(asked, stream_mode="messages"):
            if message.type in ("ai", "AIMessageChunk"):
                texts[message.id] = texts.get(message.id, "") + message.text
        return [each for each in texts.values() if each][-1]

    return run


def report(make: Any, strategy: Any) -> Any:
    """Return a function that asks for a structured answer."""

    def run(gateway: Gateway) -> Any:
        agent = create_agent(make(gateway), tools=[], response_format=strategy(Report))
        asked: Any = {"messages": [{"role": "user", "content": ASKED}]}
        return agent.invoke(asked)["structured_response"].model_dump()

    return run


makers = {
    "chat": chat,
    "responses": responses,
    "stateless": stateless,
    "kept": kept,
    "anthropic": anthropic,
    "thinking": thinking,
    "google": google,
}
serve(
    {
        **{name: loop(make) for name, make in makers.items()},
        **{f"{name}-report": report(make, ProviderStrategy) for name, make in makers.items()},
        **{f"{name}-report-tool": report(make, ToolStrategy) for name, make in makers.items()},
    }
)
