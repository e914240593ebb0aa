"""LangChain's agents on models of every dialect: two calls at once, their results, an answer; plain and streamed.

langchain-google-genai is not among them: it can't be installed beside a current SDK of Google.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.test_agents import ARGUMENTS, MODELS, SCHEMA, TEXT, velox  # noqa: F401 - the gateway of the agents

messages: Any = pytest.importorskip("langchain_core.messages", reason="langchain: pip install -r requirements-dev.lock")
langchain_openai: Any = pytest.importorskip("langchain_openai")
langchain_anthropic: Any = pytest.importorskip("langchain_anthropic")

TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}}


def chat(gateway: VeloxProcess, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=model, base_url=f"{gateway.base_url}/v1", api_key=KEY, max_retries=0, stream_usage=True
    )


def responses(gateway: VeloxProcess, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=model,
        base_url=f"{gateway.base_url}/v1",
        api_key=KEY,
        max_retries=0,
        use_responses_api=True,
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
    )


def claude(gateway: VeloxProcess, model: str) -> Any:
    return langchain_anthropic.ChatAnthropic(
        model=model,
        base_url=gateway.base_url,
        api_key=KEY,
        max_retries=0,
        max_tokens=4000,
        thinking={"type": "adaptive"},
    )


@pytest.mark.parametrize("client", [chat, responses, claude])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_agent(velox: VeloxProcess, client: Any, model: str, is_streamed: bool) -> None:  # noqa: F811 - the fixture
    """The messages go back as LangChain has them, reasoning among their blocks."""
    runnable = client(velox, model).bind_tools([TOOL])

    def ask(history: list[Any]) -> Any:
        if not is_streamed:
            return runnable.invoke(history)
        chunks = list(runnable.stream(history))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return whole

    history = [messages.SystemMessage("Be brief."), messages.HumanMessage("Weather?")]
    first = ask(history)
    assert [(call["name"], call["args"]) for call in first.tool_calls] == [("weather", ARGUMENTS)] * 2
    assert len({call["id"] for call in first.tool_calls}) == 2
    assert first.usage_metadata["input_tokens"] > 0 and first.usage_metadata["output_tokens"] > 0
    results = [messages.ToolMessage("sunny", tool_call_id=call["id"]) for call in first.tool_calls]
    last = ask([*history, first, *results])
    assert not last.tool_calls and last.text == TEXT
