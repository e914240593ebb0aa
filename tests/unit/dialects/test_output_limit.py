"""How long an answer may be: no longer than the model can make it."""

from __future__ import annotations

from typing import Any

import pytest

from velox.dialects.canonical.losses import BadRequestError, Losses
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

    def written(asked: int | None, losses: Losses, **fields: Any) -> bytes:
        request = Request("m", [Message(Role.USER, [Text(b'"a"')])], max_tokens=asked, **fields)
        body: bytes = side(facts, losses).write(request, "m").body
        return body

    for asked, lost in ((4096, ()), (4097, ("max_tokens",)), (64_000, ("max_tokens",))):
        losses = Losses()
        assert b":4096" in written(asked, losses)
        assert losses.dropped == lost
    assert b"4096" not in written(None, Losses(strict=True))
    with pytest.raises(BadRequestError):
        written(5000, Losses(strict=True))
    if side in (MessagesModel, ConverseModel):
        assert b"9000" not in written(64_000, Losses(), reasoning=Reasoning(budget_tokens=9000))
