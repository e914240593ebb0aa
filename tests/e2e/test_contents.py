"""What a target can't take is fitted and restored, or passed over: real SDKs, against fakes that are strict."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.untrusting import NO_TRUST
from tests.vendors import anthropic as anthropics
from tests.vendors import openai as openais
from tests.vendors.vendor import SSE, as_request, playing

_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "query",
        "parameters": {
            "type": "object",
            "properties": {"$top": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}, "filter[0]": {}},
            "anyOf": [{"required": ["$top"]}, {"required": ["filter[0]"]}],
        },
    },
}


def _events(arguments: str) -> bytes:
    """Return the events of Claude that calls the tool, with its arguments in pieces of three letters."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "query", "input": {}}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    pieces = [arguments[at : at + 3] for at in range(0, len(arguments), 3)]
    events: list[Any] = [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": use},
    ]
    for piece in pieces:
        delta = {"type": "input_json_delta", "partial_json": piece}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


async def _claude(call: Call) -> None:
    """Answer as Anthropic: in a stream with a call of the first tool that has all of its properties."""
    request = as_request(call.method, call.target, call.headers, call.body)
    reply = anthropics.refuse(request)
    if reply is None and request.json.get("stream"):
        properties = request.json["tools"][0]["input_schema"]["properties"]
        await call.reply(200, SSE, _events(json.dumps(dict.fromkeys(properties, 5))))
        return
    reply = reply or anthropics.VENDOR.answer(request)
    await call.reply(reply.status, reply.fields, reply.body)


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway with a route to GPT-4o that falls back to Claude, and one to each alone."""
    with contextlib.ExitStack() as running:
        gpt = running.enter_context(RecordingUpstream(script=playing(openais.VENDOR)))
        claude = running.enter_context(RecordingUpstream(script=_claude))
        targets = {
            "gpt": {"upstream": "gpt", "model": "gpt-4o"},
            "claude": {"upstream": "claude", "model": "claude-opus-4-8"},
        }
        routes: list[Any] = [{"name": each, "match": {"models": [each]}, "to": targets[each]} for each in targets]
        both = {"to": targets["gpt"], "fallback": [targets["claude"]]}
        config = {
            "upstreams": [
                {"name": "gpt", "provider": "openai", "origin": gpt.upstream.url, "key": "env:GPT_KEY"},
                {"name": "claude", "provider": "anthropic", "origin": claude.upstream.url, "key": "env:CLAUDE_KEY"},
            ],
            "routes": [*routes, {"name": "both", "match": {"models": ["both"]}, **both}],
        }
        yield running.enter_context(routed(config, GPT_KEY="sk-0123456789", CLAUDE_KEY="sk-ant-0123456789"))


def test_tool_loop_with_a_schema_that_claude_refuses(velox: VeloxProcess) -> None:
    """C18, C19, C20: OpenAI's SDK reads a streamed call in its own names, and goes on with it."""
    http = openai.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with openai.OpenAI(base_url=f"{velox.base_url}/v1", api_key="k", max_retries=0, http_client=http) as client:
        asked: Any = [{"role": "user", "content": "Hi"}]
        with client.chat.completions.stream(model="claude", messages=asked, tools=[_TOOL]) as stream:
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls or ()
        assert json.loads(call.function.arguments) == {"$top": 5, "filter[0]": 5}

        said: Any = {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
        said["tool_calls"][0]["function"] = {"name": "query", "arguments": call.function.arguments}
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        ended = client.chat.completions.create(model="claude", messages=[*asked, said, result], tools=[_TOOL])
        assert ended.choices[0].message.content == "Hello!"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_sequences": list("abcde")}, "stop_sequences"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice",
        ),
    ],
)
def test_target_that_cant_take_a_request_is_passed_over(velox: VeloxProcess, fields: Any, param: str) -> None:
    """W9, C35: it is never asked; where it is the only one, the client reads which field it is."""
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=velox.base_url, api_key="k", max_retries=0, http_client=http) as client:
        asked: Any = {"max_tokens": 900, "messages": [{"role": "user", "content": "Hi"}], **fields}
        raw = client.messages.with_raw_response.create(model="both", **asked)
        assert raw.headers["x-velox-tried"] == "gpt=bad_request"
        (block,) = raw.parse().content
        assert block.type == "text" and block.text == "Hello!"

        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="gpt", **asked)
        assert param in json.dumps(caught.value.body)
