"""Every recorded request of every dialect, written for every API of models: what goes up is what that API takes.

The judges are the vendors' own: the types of their SDKs, and botocore's model of Bedrock.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import botocore.session
import pytest
from anthropic.types import message_create_params
from botocore.validate import ParamValidator
from google.genai import types as google
from openai.types.chat import completion_create_params
from pydantic import TypeAdapter

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import ModelFacts
from velox.gateway.translation.translators import GenerationTranslator
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

pytestmark = pytest.mark.slow

TABLE = dialect_table()
SOURCES = [
    ("openai", ApiKind.CHAT, "/chat/completions"),
    ("groq", ApiKind.CHAT, "/chat/completions"),
    ("openrouter", ApiKind.CHAT, "/chat/completions"),
    ("deepseek", ApiKind.CHAT, "/chat/completions"),
    ("openai", ApiKind.RESPONSES, "/v1/responses"),
    ("anthropic", ApiKind.MESSAGES, "/v1/messages"),
    ("gemini", ApiKind.GENERATE, "enerateContent"),
    ("vertex", ApiKind.GENERATE, "enerateContent"),
]
REQUESTS = [
    (client, each)
    for provider, client, ending in SOURCES
    for each in recorded(provider, ending)
    if client in TABLE.clients and each.path.endswith((ending, "enerateContent")) and each.method == "POST"
]
FACTS = ModelFacts(max_output=8000)


@cache
def bedrock() -> Any:
    return botocore.session.Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_chat(body: dict[str, Any]) -> None:
    adapter(completion_create_params.CompletionCreateParams).validate_python(body)
    for message in body["messages"]:
        assert message["role"] in ("system", "developer", "user", "assistant", "tool")
    ids = [call["id"] for m in body["messages"] for call in m.get("tool_calls", ())]
    results = [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
    assert set(results) <= set(ids)


def check_messages(body: dict[str, Any]) -> None:
    adapter(message_create_params.MessageCreateParams).validate_python(body)
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "user" and body["max_tokens"] >= 1
    assert all(one != other for one, other in itertools.pairwise(roles))


def check_generate(body: dict[str, Any]) -> None:
    for content in body["contents"]:
        google.Content.model_validate(content)
        assert content["role"] in ("user", "model") and content["parts"]
    for tool in body.get("tools", ()):
        google.Tool.model_validate(tool)
    if "systemInstruction" in body:
        google.Content.model_validate(body["systemInstruction"])
    google.GenerationConfig.model_validate(body.get("generationConfig", {}))


def check_converse(body: dict[str, Any]) -> None:
    report = ParamValidator().validate({"modelId": "m", **body}, bedrock())
    assert not report.has_errors(), report.generate_report()
    roles = [message["role"] for message in body["messages"]]
    assert all(one != other for one, other in itertools.pairwise(roles))


CHECKS = {
    ApiKind.CHAT: check_chat,
    ApiKind.MESSAGES: check_messages,
    ApiKind.GENERATE: check_generate,
    ApiKind.CONVERSE: check_converse,
}


@pytest.mark.parametrize("api", sorted(CHECKS), ids=lambda api: api.name.lower())
@pytest.mark.parametrize(("client", "exchange"), REQUESTS, ids=str)
def test_request_is_one_of_the_api(client: ApiKind, exchange: Exchange, api: ApiKind) -> None:
    """Or it is refused with the field that can't be said."""
    dropped = DroppedFields()
    model = exchange.path.rpartition("/models/")[2].partition(":")[0] if client is ApiKind.GENERATE else ""
    call = ClientCall("0a1b2c", 1_790_000_000, model, "stream" in exchange.path)
    translator = GenerationTranslator(
        TABLE.clients[client](call, dropped), TABLE.models[api](FACTS, dropped, "openai"), dropped
    )
    try:
        body = translator.request(exchange.body, "the-model")
    except BadRequestError as exc:
        assert exc.message and exc.param, exchange.body
        return
    CHECKS[api](json.loads(body))
