"""Every recorded request of every client, written for models of Bedrock: refused, or without a fault by its model.

The judge knows more than shapes: enums, patterns, turns, calls and their results, names of documents.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.recorded import recorded
from tests.unit.dialects.converse_shapes import request_faults
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, ClientSide
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.write_reply import ResponsesClient
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

_MODELS = ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.anthropic.claude-opus-4-7", "amazon.nova-pro-v1:0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "provider", "ending", "n_least"),
    [
        (ChatClient, "openai", "/chat/completions", 300),
        (ChatClient, "openrouter", "/chat/completions", 100),
        (ChatClient, "groq", "/chat/completions", 30),
        (ResponsesClient, "openai", "/responses", 350),
        (MessagesClient, "anthropic", "/v1/messages", 400),
        (GenerateClient, "gemini", "enerateContent", 200),
    ],
)
def test_recorded_requests_of_clients_are_written_without_a_fault(
    make: Callable[[ClientCall, DroppedFields], ClientSide], provider: str, ending: str, n_least: int
) -> None:
    n_written = 0
    for exchange in recorded(provider, ending, status=None):
        if "count" in exchange.path:
            continue
        for model in _MODELS:
            try:
                request = make(ClientCall("abc", 1), DroppedFields()).read(exchange.body)
                body = ConverseModel(facts_of(PROVIDERS["bedrock"], model), DroppedFields()).write(request, model).body
            except BadRequestError:
                continue
            assert request_faults(body, is_claude="claude" in model) == [], exchange.name
            n_written += 1

    assert n_written >= n_least
