"""A conversation that is too long for the model, as each server says it: agents of every dialect understand it."""

from __future__ import annotations

import json

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
VLLM = "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens."
NEWER_VLLM = "The decoder prompt (length 9000) is longer than the maximum model length of 4096."
SGLANG = "The input (9000 tokens) is longer than the model's context length (4096 tokens)."
ANTHROPIC = "prompt is too long"
GEMINI = "The input token count (9000) exceeds the maximum number of tokens allowed (4096)."
SAID = [
    (ApiKind.CHAT, {"error": {"message": VLLM, "type": "BadRequestError", "param": None, "code": 400}}),
    (ApiKind.CHAT, {"object": "error", "message": NEWER_VLLM, "type": "BadRequestError", "code": 400}),
    (ApiKind.CHAT, {"object": "error", "message": SGLANG, "type": "BadRequestError", "param": None, "code": 400}),
    (ApiKind.RESPONSES, {"error": {"message": VLLM, "type": "invalid_request_error"}}),
    (
        ApiKind.MESSAGES,
        {"type": "error", "error": {"type": "invalid_request_error", "message": f"{ANTHROPIC}: 9"}},
    ),
    (ApiKind.GENERATE, {"error": {"code": 400, "message": GEMINI, "status": "INVALID_ARGUMENT"}}),
    (ApiKind.CONVERSE, {"message": "Input is too long for requested model."}),
]


def answered(client: ApiKind, api: ApiKind, status: int, body: bytes) -> bytes:
    """Return what a client gets for an error of a model of another API."""
    dropped = DroppedFields()
    model = TABLE.models[api](facts_of(PROVIDERS["openai-compatible"], "m"), dropped, "openai-compatible")
    translator = GenerationTranslator(TABLE.clients[client](ClientCall("abc", 1, "m"), dropped), model, dropped)
    return translator.error(translator.read_error(status, [], body))


@pytest.mark.parametrize(("api", "error"), SAID)
def test_it_has_the_name_that_agents_look_for(api: ApiKind, error: dict[str, object]) -> None:
    """OpenAI's code, and Anthropic's words."""
    body = json.dumps(error).encode()

    for client in (ApiKind.CHAT, ApiKind.RESPONSES):
        assert json.loads(answered(client, api, 400, body))["error"]["code"] == "context_length_exceeded"
    message = json.loads(answered(ApiKind.MESSAGES, api, 400, body))["error"]["message"]
    assert message.startswith("prompt is too long") and message.count("prompt is too long") == 1


def test_other_errors_have_no_such_name() -> None:
    """Nor one of another status that has the words."""
    for status, said in ((400, "a tool has no name"), (500, VLLM)):
        body = json.dumps({"error": {"message": said}}).encode()
        assert json.loads(answered(ApiKind.CHAT, ApiKind.CHAT, status, body))["error"]["code"] is None
        assert "prompt is too long" not in answered(ApiKind.MESSAGES, ApiKind.CHAT, status, body).decode()
