"""A fake Bedrock for agents: Converse by a script of its own, Claude's invoke by the simulator inside AWS frames.

Each request must have the signature that botocore makes, and the shape that botocore's model of the service gives it.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, Script
from tests.unit.dialects.converse_shapes import faults
from tests.unit.dialects.test_converse_frames import frame_of
from tests.untrusting import NO_TRUST

FRAMES: Final = (("content-type", "application/vnd.amazon.eventstream"),)
THOUGHT: Final = {"text": "Ask twice."}
SIGNED: Final = {**THOUGHT, "signature": "c2lnbmF0dXJl"}  # Claude's, and no other model's
USAGE: Final = {"inputTokens": 9, "outputTokens": 5, "totalTokens": 14}


def bedrock_agent(messages_url: str, arguments: dict[str, Any], text: str, is_signed: Callable[[Call], bool]) -> Script:
    """Return the script.

    messages_url: of a server of Anthropic's API, which answers invoke. arguments: of the two calls of Converse. text:
    of its last answer.
    """

    async def answer(call: Call) -> None:
        assert is_signed(call), "its signature is another one than botocore's"
        _, _, segment, operation = call.target.split("/")
        model = urllib.parse.unquote(segment)
        if operation.startswith("invoke"):
            await _invoke(call, model, messages_url)
            return
        blocks, stop = _converse(json.loads(call.body), model, arguments, text)
        if operation == "converse-stream":
            await call.reply(200, FRAMES, _streamed(blocks, stop))
            return
        message = {"role": "assistant", "content": blocks}
        body = {"output": {"message": message}, "stopReason": stop, "usage": USAGE, "metrics": {"latencyMs": 1}}
        assert not faults(body, "ConverseResponse")
        await call.reply(200, JSON, json.dumps(body).encode())

    return answer


def _converse(asked: Any, model: str, arguments: dict[str, Any], text: str) -> tuple[list[Any], str]:
    """Return the blocks of the answer and why it ends. Fails for what Bedrock would refuse."""
    is_claude = "anthropic" in model
    found = faults({**asked, "modelId": model}, "ConverseRequest")
    assert not found, found
    last = asked["messages"][-1]["content"]
    if not any("toolResult" in block for block in last):
        tools = [tool["toolSpec"]["name"] for tool in asked["toolConfig"]["tools"] if "toolSpec" in tool]
        calls = [
            {"toolUse": {"toolUseId": f"tooluse_{n}", "name": tools[n % len(tools)], "input": arguments}}
            for n in range(2)
        ]
        return [{"reasoningContent": {"reasoningText": SIGNED if is_claude else THOUGHT}}, *calls], "tool_use"
    used = asked["messages"][-2]["content"]
    thoughts = [block["reasoningContent"]["reasoningText"] for block in used if "reasoningContent" in block]
    # A client may have lost it. Claude takes that where it has no budget to reason with.
    thinking = asked.get("additionalModelRequestFields", {}).get("thinking", {})
    is_wanted = is_claude and (thoughts or thinking.get("type") == "enabled")
    assert thoughts == ([SIGNED] if is_wanted else []), "signed reasoning comes back as it was, other reasoning not"
    ids = [block["toolUse"]["toolUseId"] for block in used if "toolUse" in block]
    assert [block["toolResult"]["toolUseId"] for block in last if "toolResult" in block] == ids
    assert asked["toolConfig"]["tools"], "history with calls needs the tools"
    return [{"text": text}], "end_turn"


def _streamed(blocks: list[Any], stop: str) -> bytes:
    """Write the frames of a stream. Text has no contentBlockStart, as Bedrock's has none."""
    frames = [_event("messageStart", {"role": "assistant"})]
    for n, block in enumerate(blocks):
        if "toolUse" in block:
            use = block["toolUse"]
            begun = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            frames.append(_event("contentBlockStart", {"contentBlockIndex": n, "start": begun}))
            whole = json.dumps(use["input"])
            deltas = [{"toolUse": {"input": piece}} for piece in (whole[:7], whole[7:])]
        elif "text" in block:
            deltas = [{"text": piece} for piece in (block["text"][:5], block["text"][5:])]
        else:
            thought = block["reasoningContent"]["reasoningText"]
            deltas = [{"reasoningContent": {name: value}} for name, value in thought.items()]
        frames += [_event("contentBlockDelta", {"contentBlockIndex": n, "delta": delta}) for delta in deltas]
        frames.append(_event("contentBlockStop", {"contentBlockIndex": n}))
    frames.append(_event("messageStop", {"stopReason": stop}))
    frames.append(_event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}))
    return b"".join(frames)


async def _invoke(call: Call, model: str, messages_url: str) -> None:
    """Have a request answered by a server of Anthropic's API, and put its events into frames."""
    asked = json.loads(call.body)
    assert asked.pop("anthropic_version") == "bedrock-2023-05-31"
    assert "model" not in asked and "stream" not in asked
    is_stream = call.target.endswith("-with-response-stream")
    async with httpx.AsyncClient(verify=NO_TRUST, trust_env=False) as client:
        body = {**asked, "model": model, "stream": is_stream}
        reply = await client.post(messages_url, json=body, headers={"anthropic-version": "2023-06-01"})
    if not is_stream or reply.status_code != 200:
        await call.reply(reply.status_code, JSON, reply.content)
        return
    lines = [line.removeprefix(b"data: ") for line in reply.content.splitlines() if line.startswith(b"data: ")]
    events = [json.dumps({"bytes": base64.b64encode(line).decode()}).encode() for line in lines]
    await call.reply(200, FRAMES, b"".join(_frame("chunk", event) for event in events))


def _event(name: str, payload: dict[str, Any]) -> bytes:
    return _frame(name, json.dumps(payload).encode())


def _frame(name: str, payload: bytes) -> bytes:
    return frame_of(payload, **{":event-type": name, ":content-type": "application/json", ":message-type": "event"})
