"""The upstreams themselves: an official SDK's loop on each through Velox, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.plan import Plan, Wanted

PLAN = Plan(
    rounds=(
        (Wanted("look", {"city": "Oslo"}, "cold"), Wanted("look", {"city": "Rome"}, "warm")),
        (Wanted("look", {"city": "Lima"}, "grey"),),
    ),
    final="Oslo is cold, Rome is warm, Lima is grey.",
)
SAID = {"Oslo": "cold", "Rome": "warm", "Lima": "grey"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_openai_sdk(velox_farm: Farm, kind: str, is_streamed: bool) -> None:
    """Three answers: two calls at once, one more, the last text."""
    sdk: Any = velox_farm.velox.openai().chat.completions
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    with velox_farm.playing(kind, PLAN) as played:
        for _ in range(PLAN.n_requests):
            asked = {"model": MODEL_NAMES[kind], "messages": messages, "tools": TOOLS}
            if is_streamed:
                with sdk.stream(**asked) as stream:
                    choice = stream.get_final_completion().choices[0]
            else:
                choice = sdk.create(**asked).choices[0]
            if choice.finish_reason == "stop":
                break
            message = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
            for call in message["tool_calls"]:
                call["function"].pop("parsed_arguments", None)
            messages.append(message)
            messages += [
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": SAID[json.loads(call.function.arguments)["city"]],
                }
                for call in choice.message.tool_calls
            ]
    assert choice.message.content == PLAN.final
    assert not played.aside


@pytest.mark.parametrize("kind", KINDS)
def test_swapped_results_fail_the_test(velox_farm: Farm, kind: str) -> None:
    """What came back under the wrong call is seen, on each of them."""
    sdk: Any = velox_farm.velox.openai().chat.completions
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    with pytest.raises(AssertionError, match="the result of call 0"), velox_farm.playing(kind, PLAN):
        asked = {"model": MODEL_NAMES[kind], "tools": TOOLS}
        first = sdk.create(messages=messages, **asked).choices[0].message
        ids = [call.id for call in first.tool_calls]
        results = [
            {"role": "tool", "tool_call_id": each, "content": said}
            for each, said in zip(ids, ("warm", "cold"), strict=True)
        ]
        with pytest.raises(Exception, match="result of call 0"):
            sdk.create(messages=[*messages, first.model_dump(exclude_none=True), *results], **asked)
