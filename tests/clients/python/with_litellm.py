"""LiteLLM's Python SDK as a client: completion() on the APIs of OpenAI, Anthropic and Google, and responses()."""

from __future__ import annotations

import json
from typing import Any

import litellm
from pydantic import BaseModel
from serving import ASKED, LOOK, Gateway, look, serve

litellm.telemetry = False
# To which LiteLLM adds the last part of a path.
BASES = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}
TOOLS = [LOOK]


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def where(provider: str, gateway: Gateway) -> dict[str, Any]:
    base = f"{gateway.base_url}{BASES[provider]}"
    return {"model": f"{provider}/{gateway.model}", "api_base": base, "api_key": gateway.key, "num_retries": 0}


def loop(provider: str) -> Any:
    """Return a function that calls the tool until the last text comes, with completion()."""

    def run(gateway: Gateway) -> Any:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]
        while True:
            asked = {**where(provider, gateway), "messages": messages, "tools": TOOLS}
            reply = litellm.completion(**asked, stream=gateway.is_streamed)
            if gateway.is_streamed:
                reply = litellm.stream_chunk_builder(list(reply), messages=messages)
            message = reply.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                said = look(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})

    return run


def report(provider: str) -> Any:
    """Return a function that asks for a structured answer."""

    def run(gateway: Gateway) -> Any:
        messages = [{"role": "user", "content": ASKED}]
        reply = litellm.completion(**where(provider, gateway), messages=messages, response_format=Report)
        return Report.model_validate_json(reply.choices[0].message.content).model_dump()

    return run


def responses(gateway: Gateway) -> Any:
    """Call the tool until the last text comes, with responses()."""
    tools = [{"type": "function", **TOOLS[0]["function"]}]  # type: ignore[dict-item]
    items: list[Any] = [{"role": "user", "content": ASKED}]
    while True:
        reply = litellm.responses(**where("openai", gateway), input=items, tools=tools, stream=gateway.is_streamed)
        if gateway.is_streamed:
            reply = next(event.response for event in reply if event.type == "response.completed")
        output = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in reply.output]
        items += output
        calls = [item for item in output if item["type"] == "function_call"]
        if not calls:
            return "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        for call in calls:
            said = look(**json.loads(call["arguments"]))
            items.append({"type": "function_call_output", "call_id": call["call_id"], "output": said})


providers = ("openai", "anthropic", "gemini")
serve(
    {
        **{provider: loop(provider) for provider in providers},
        **{f"{provider}-report": report(provider) for provider in providers},
        "responses": responses,
    }
)
