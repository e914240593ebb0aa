"""Documents and results of searches of Anthropic's clients, on models that have no place for their titles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
MODELS = [
    ("openai", "gpt-4o", ApiKind.CHAT),
    ("openai", "gpt-5.2", ApiKind.RESPONSES),
    ("gemini", "gemini-3-pro", ApiKind.GENERATE),
]


def told(asked: tuple[str, str, ApiKind], *blocks: dict[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    """Return the texts that the model gets, and what was left out."""
    provider, model, api = asked
    dropped = DroppedFields()
    client = TABLE.clients[ApiKind.MESSAGES](ClientCall("a", 1, "m"), dropped)
    written = TABLE.models[api](facts_of(PROVIDERS[provider], model), dropped, provider)
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": [*blocks]}]}
    sent = json.loads(GenerationTranslator(client, written, dropped).request(json.dumps(body).encode(), model))
    (message,) = sent.get("messages") or sent.get("contents") or sent["input"]
    parts = message.get("parts") or message["content"]
    parts = [{"text": parts}] if isinstance(parts, str) else parts
    return [part.get("text", "file") for part in parts], dropped.names


@pytest.mark.parametrize("asked", MODELS)
def test_title_and_context_of_a_text_are_told(asked: tuple[str, str, ApiKind]) -> None:
    """Before it. Citations, which no other API has, are named."""
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Once upon."}}
    hello = {"type": "text", "text": "Hi"}

    assert told(asked, document, hello) == (["Once upon.", "Hi"], ())
    texts, dropped = told(asked, document | {"title": "Tales", "context": "For children"}, hello)
    assert (texts[0].split(), texts[1], dropped) == (["Tales", "For", "children", "Once", "upon."], "Hi", ())
    assert told(asked, document | {"citations": {"enabled": True}}, hello)[1] == ("citations",)


@pytest.mark.parametrize("asked", MODELS)
def test_context_of_a_file_is_told_before_it(asked: tuple[str, str, ApiKind]) -> None:
    """As a text of its own; an empty one is none."""
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    document = {"type": "document", "source": source, "title": "a.pdf"}

    assert told(asked, document | {"context": "From me"}) == (["From me", "file"], ())
    assert told(asked, document | {"context": ""}) == (["file"], ())


@pytest.mark.parametrize("asked", MODELS)
def test_result_of_a_search_says_what_was_found_and_where(asked: tuple[str, str, ApiKind]) -> None:
    """A model that is to name its sources needs them."""
    texts = [{"type": "text", "text": "It rains."}]
    found = {"type": "search_result", "source": "https://weather.test", "title": "Weather", "content": texts}

    said, dropped = told(asked, found)
    assert " ".join(said).split() == ["Weather", "https://weather.test", "It", "rains."] and dropped == ()
