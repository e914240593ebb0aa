"""How long an answer may be: no longer than the model can make it."""

from __future__ import annotations

from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Message, Reasoning, Request, Role, Text
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.responses.read_reply import ResponsesModel


@pytest.mark.parametrize("side", [ChatModel, ResponsesModel, MessagesModel, GenerateModel, ConverseModel])
def test_answer_is_not_asked_to_be_longer_than_the_model_makes_it(side: Any) -> None:
    """Older models answer 400 to what Claude Code asks for by itself."""
    facts = ModelFacts(max_output=500, most_output=4096, thinking="budget")

    def written(asked: int | None, dropped: DroppedFields, **fields: Any) -> bytes:
        request = Request("m", [Message(Role.USER, [Text(b'"a"')])], max_tokens=asked, **fields)
        body: bytes = side(facts, dropped).write(request, "m").body
        return body

    for asked, lost in ((4096, ()), (4097, ("max_tokens",)), (64_000, ("max_tokens",))):
        dropped = DroppedFields()
        assert b":4096" in written(asked, dropped)
        assert dropped.names == lost
    assert b"4096" not in written(None, DroppedFields(strict=True))
    with pytest.raises(BadRequestError):
        written(5000, DroppedFields(strict=True))
    if side in (MessagesModel, ConverseModel):
        assert b"9000" not in written(64_000, DroppedFields(), reasoning=Reasoning(budget_tokens=9000))
