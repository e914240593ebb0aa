"""Thinking and sampling that a client asks of the Claude that it named, where a route asks another Claude."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.as_sent.claude_fields import fitted
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 32_000, "messages": [{"role": "user", "content": "Hi"}]}
ADAPTIVE = {"thinking": {"type": "adaptive", "display": "summarized"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 9000}}
CALL = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]}


def sent(model: str, is_renamed: bool = True, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that are other ones, or not there any more, and what was left out."""
    dropped = DroppedFields()
    given = {**ASKED, **fields}
    facts = facts_of(PROVIDERS["anthropic"], model)
    body = json.loads(fitted(json.dumps(given).encode(), (), facts, dropped, is_renamed=is_renamed).body)
    changed = {name: value for name, value in body.items() if given.get(name) != value}
    return {**changed, **{name: None for name in given if name not in body}}, dropped.names


@pytest.mark.parametrize(
    ("model", "given", "made", "lost"),
    [
        ("claude-haiku-4-5", ADAPTIVE, {"type": "enabled", "budget_tokens": 4096, "display": "summarized"}, ()),
        ("claude-haiku-4-5", BUDGET, ..., ()),
        ("claude-opus-4-8", BUDGET, {"type": "adaptive"}, ()),
        ("claude-opus-4-8", ADAPTIVE, ..., ()),
        ("claude-fable-5", {"thinking": {"type": "disabled"}}, None, ("thinking",)),
        ("claude-sonnet-5-5", {"thinking": {"type": "disabled"}}, {"type": "between_tools"}, ()),
        ("claude-opus-4-8", {"thinking": {"type": "between_tools"}}, {"type": "disabled"}, ()),
        ("claude-fable-5", {"thinking": {"type": "between_tools"}}, None, ("thinking",)),
        ("claude-haiku-4-5", {"thinking": {"type": "between_tools"}}, {"type": "disabled"}, ()),
        ("claude-3-5-haiku-20241022", ADAPTIVE, None, ("thinking",)),
        ("claude-3-5-haiku-20241022", {"thinking": {"type": "disabled"}}, None, ()),
        ("claude-opus-4-8", {"thinking": "yes"}, ..., ()),
    ],
)
def test_thinking_is_asked_for_as_the_routes_model_has_it(
    model: str, given: dict[str, Any], made: object, lost: tuple[str, ...]
) -> None:
    """K1: each answers 400 to the other's way."""
    changed, dropped = sent(model, max_tokens=8000, **given)

    assert changed == ({} if made is ... else {"thinking": made})
    assert dropped == lost


def test_model_that_the_client_named_gets_what_it_was_asked() -> None:
    """Its refusal is the client's to hear."""
    assert sent("claude-haiku-4-5", is_renamed=False, **ADAPTIVE, temperature=0.5) == ({}, ())


def test_budget_follows_the_effort_and_leaves_room() -> None:
    """An older model has no efforts: they become a budget, and come off."""
    changed, lost = sent("claude-haiku-4-5", **ADAPTIVE, output_config={"effort": "max"})
    assert changed["thinking"]["budget_tokens"] == 16_384 and changed["output_config"] is None
    assert lost == ("output_config.effort",)

    changed, _ = sent("claude-haiku-4-5", **ADAPTIVE, max_tokens=3000)
    assert changed["thinking"]["budget_tokens"] == 1976
    assert sent("claude-haiku-4-5", **ADAPTIVE, max_tokens=1000) == ({"thinking": None}, ("thinking",))


def test_budget_needs_the_thinking_before_calls_that_are_answered() -> None:
    """The API refuses it otherwise; a forced tool, too."""
    user = ASKED["messages"][0]
    bare = [user, {"role": "assistant", "content": [CALL]}, RESULT]
    thought = {"type": "thinking", "thinking": "a", "signature": "b"}
    whole = [user, {"role": "assistant", "content": [thought, CALL]}, RESULT]

    assert sent("claude-haiku-4-5", **ADAPTIVE, messages=bare) == ({"thinking": None}, ("thinking",))
    assert sent("claude-haiku-4-5", **ADAPTIVE, messages=whole)[1] == ()
    assert sent("claude-haiku-4-5", **ADAPTIVE, messages=[*bare, {"role": "user", "content": "More"}])[1] == ()
    tools = {"tools": [{"name": "look", "input_schema": {}}], "tool_choice": {"type": "any"}}
    assert sent("claude-haiku-4-5", **ADAPTIVE, **tools) == ({"thinking": None}, ("thinking",))


def test_sampling_comes_off_where_the_model_takes_none() -> None:
    changed, lost = sent("claude-opus-4-8", temperature=0.5, top_p=1, top_k=3)

    assert (changed, lost) == ({"temperature": None, "top_p": None, "top_k": None}, ("temperature", "top_k"))
    assert sent("claude-haiku-4-5", temperature=0.5) == ({}, ())
