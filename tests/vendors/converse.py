"""Bedrock's Converse with a model that is not Claude, as strict as it is with the turns of a conversation.

Sources: botocore's model of the service (members, types, enums, patterns, lengths), AWS's page "Use a tool to complete
an Amazon Bedrock model response", and the issues named at each rule.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.e2e.bedrock_frames import FRAMES, frame
from tests.unit.dialects.converse_shapes import faults
from tests.vendors import bedrock
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["PATH", "VENDOR", "problems", "refuse"]

PATH: Final = re.compile(r"/model/([^/]+)/(converse|converse-stream)")

_RESULTS: Final = frozenset({"toolResult", "cachePoint"})
# Claude, and Nova: recorded with a text behind results.
_TAKES_BOTH: Final = re.compile(r"anthropic\.claude|amazon\.nova")


def problems(body: Mapping[str, Any], model: str) -> Iterator[str]:
    """Yield what AWS says of a request."""
    yield from faults({**body, "modelId": model}, "ConverseRequest")
    messages = body.get("messages") or ()
    has_tools = bool((body.get("toolConfig") or {}).get("tools"))
    before: list[str] = []
    role = "assistant"
    for at, message in enumerate(messages):
        blocks = message["content"]
        if message["role"] == role:
            # genkit-ai/aws-bedrock-js-plugin#664: the first is the user's, and roles alternate.
            yield (
                "A conversation must start with a user message."
                if not at
                else "A conversation must alternate between user and assistant roles. Make sure the conversation "
                "alternates between user and assistant roles and try again."
            )
        role = message["role"]
        if not blocks:
            yield f"The content field in the Message object at messages.{at} is empty."
        for n, block in enumerate(blocks):
            if "text" in block and not block["text"].strip():
                # NousResearch/hermes-agent#55092.
                yield (
                    f"The text field in the ContentBlock object at messages.{at}.content.{n} is blank. Add text to "
                    "the text field, and try again."
                )
            result = block.get("toolResult") or {}
            if result.get("status") == "error" and not result.get("content"):
                # aws-samples/sample-multi-agent-orchestration-chat-on-agentcore#15.
                yield (
                    f"The content field at messages.{at}.content.{n}.toolResult cannot be empty when status value is "
                    "error."
                )
        uses = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if (uses or results) and not has_tools:
            # langgenius/dify#17545.
            yield ("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
        if results and not _TAKES_BOTH.search(model) and any(not block.keys() <= _RESULTS for block in blocks):
            # strands-agents/harness-sdk#1223, langchain-ai/langchain-aws#141.
            yield (
                f"messages.{at}.content: Conversation blocks and tool result blocks cannot be provided in the same "
                "turn."
            )
        if len(results) > len(before):
            # strands-agents/harness-sdk#1435.
            yield (
                f"The number of toolResult blocks at messages.{at}.content exceeds the number of toolUse blocks of "
                "previous turn."
            )
        if missing := [use for use in before if use not in results]:
            # genkit-ai/aws-bedrock-js-plugin#664.
            yield f"Expected toolResult blocks at messages.{at}.content for the following Ids: {', '.join(missing)}"
        before = uses
    if role == "assistant" and messages:
        # modelled: of models that take no beginning of an answer.
        yield "The model does not support assistant message prefill. The conversation must end with a user message."


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    path = PATH.fullmatch(request.path)
    if path is None:
        return bedrock.validation("unknown operation", 404)
    found = next(problems(request.json, urllib.parse.unquote(path[1])), None)
    return None if found is None else bedrock.validation(found)


def _answer(request: VendorRequest) -> Reply:
    usage = {"inputTokens": 9, "outputTokens": 3, "totalTokens": 12}
    if request.path.endswith("-stream"):
        events: tuple[tuple[str, dict[str, Any]], ...] = (
            ("messageStart", {"role": "assistant"}),
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hello!"}}),
            ("contentBlockStop", {"contentBlockIndex": 0}),
            ("messageStop", {"stopReason": "end_turn"}),
            ("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        )
        return Reply(200, b"".join(frame("event", name, json.dumps(each).encode()) for name, each in events), FRAMES)
    message = {"role": "assistant", "content": [{"text": "Hello!"}]}
    said = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
    return Reply(200, json.dumps(said).encode())


VENDOR: Final = Vendor("bedrock", refuse, _answer)
