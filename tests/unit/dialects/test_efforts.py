"""Efforts of reasoning: each model is asked for one that it has."""

from __future__ import annotations

import json

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Message, Reasoning, Request, Role, Text
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.efforts import EFFORTS, taken_effort
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.responses.read_reply import ResponsesModel


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (EFFORTS, EFFORTS),
        (("low", "medium", "high"), ("low", "low", "low", "medium", "high", "high", "high")),
        (("none", "low", "max"), ("none", "low", "low", "low", "low", "low", "max")),
        (("none", "high"), ("none", "high", "high", "high", "high", "high", "high")),
        (("high",), ("high",) * 7),
        ((), EFFORTS),
    ],
)
def test_nearest_effort_is_the_next_lower_one_or_the_lowest(taken: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Reasoning that is asked for is never switched off by it."""
    assert tuple(taken_effort(each, taken, DroppedFields()) for each in EFFORTS) == expected
    assert taken_effort("huge", taken, DroppedFields(strict=True)) == "huge"


@pytest.mark.parametrize(
    ("side", "thinking", "field"),
    [
        (MessagesModel, "adaptive", "reasoning"),
        (ChatModel, "effort", "reasoning"),
        (ResponsesModel, "effort", "reasoning"),
        (ConverseModel, "adaptive", "reasoning_effort"),
        (ConverseModel, "nova", "reasoning_effort"),
    ],
)
def test_effort_that_a_model_does_not_have_is_a_loss(
    side: type[MessagesModel | ChatModel | ResponsesModel | ConverseModel], thinking: str, field: str
) -> None:
    """Claude 4.6 answers 400 to "xhigh", most servers to all but three."""
    facts = ModelFacts(thinking=thinking, efforts=("low", "medium", "high"))

    def written(effort: str, dropped: DroppedFields) -> str:
        request = Request("m", [Message(Role.USER, [Text(b'"a"')])], reasoning=Reasoning(effort))
        return json.dumps(json.loads(side(facts, dropped).write(request, "m").body))

    for effort, taken in (("minimal", "low"), ("medium", "medium"), ("xhigh", "high")):
        dropped = DroppedFields()
        assert f'"{taken}"' in written(effort, dropped)
        assert dropped.names == (() if effort == taken else (field,))
    with pytest.raises(BadRequestError):
        written("max", DroppedFields(strict=True))
