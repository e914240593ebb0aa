"""Mistral's SDK: chat.complete() and chat.stream(), a tool loop and a structured answer."""

from __future__ import annotations

import json
from typing import Any

from mistralai.client import Mistral
from mistralai.client.models import AssistantMessage, UserMessage
from pydantic import BaseModel
from serving import ASKED, LOOK, Gateway, look, serve

TOOLS: list[Any] = [LOOK]


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


def client_of(gateway: Gateway) -> Mistral:
    return Mistral(server_url=gateway.base_url, api_key=gateway.key)


def loop(gateway: Gateway) -> Any:
    """Call the tool until the last text comes. The SDK's own message of the assistant goes back as it made it."""
    client = client_of(gateway)
    messages: list[Any] = [UserMessage(content=ASKED)]
    while True:
        if gateway.is_streamed:
            message = streamed(client.chat.stream(model=gateway.model, messages=messages, tools=TOOLS))
        else:
            reply = client.chat.complete(model=gateway.model, messages=messages, tools=TOOLS)
            message = reply.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            said = look(**json.loads(call.function.arguments))
            result = {"role": "tool", "name": "look", "tool_call_id": call.id, "content": said}
            messages.append(result)


def streamed(events: Any) -> AssistantMessage:
    """Return the message of a stream: its texts together, and each call as it came."""
    deltas = [event.data.choices[0].delta for event in events if event.data.choices]
    text = "".join(delta.content for delta in deltas if delta.content)
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    return AssistantMessage(content=text, tool_calls=calls or None)


def report(gateway: Gateway) -> Any:
    """Ask for a structured answer."""
    reply = client_of(gateway).chat.parse(
        response_format=Report, model=gateway.model, messages=[UserMessage(content=ASKED)]
    )
    return reply.choices[0].message.parsed.model_dump()


serve({"loop": loop, "report": report})
