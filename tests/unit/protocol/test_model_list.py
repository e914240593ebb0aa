"""Lists of models: what is taken of an upstream's, and what a client gets."""

from __future__ import annotations

import json

import anthropic
import orjson
import pytest
from google import genai

from velox.protocol.model_list import (
    UNKNOWN_DETAILS,
    Capabilities,
    ModelDetails,
    described,
    list_of,
    model_object,
    object_for,
    page_for,
    reading_models,
)
from velox.protocol.slices import finished
from velox.types import Dialect

VLLM = {
    "id": "meta-llama/Llama-3.1-8B",
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "vllm",
    "root": "/models/llama",
    "parent": None,
    "max_model_len": 131072,
    "permission": [{"id": "modelperm-1", "allow_sampling": True}],
}


def models_of(body: bytes, owner: str) -> dict[str, bytes]:
    return finished(reading_models(body, owner))


def a_list(*entries: object) -> bytes:
    return json.dumps({"object": "list", "data": entries}).encode()


def test_objects_pass_with_all_their_fields() -> None:
    """What a server adds is for its clients."""
    (own,) = models_of(a_list(VLLM), "one").values()

    assert orjson.loads(own) == VLLM
    assert list(orjson.loads(own)) == list(VLLM)


def test_what_an_sdk_expects_is_added() -> None:
    """Anthropic's lists, and those of small servers, have other fields."""
    anthropic = {"type": "model", "id": "claude-x", "display_name": "Claude", "created_at": "2026-01-01T00:00:00Z"}

    (own,) = models_of(a_list(anthropic), "one").values()

    assert orjson.loads(own) == {**anthropic, "object": "model", "created": 0, "owned_by": "one"}


def test_what_is_no_model_is_left_out() -> None:
    """No name, or one that no request may have; of two of a name the last counts."""
    entries = [{}, [], "x", {"id": 7}, {"id": ""}, {"id": "a\n"}, {"id": "x" * 257}, {"id": "a", "n": 1}]

    found = models_of(a_list(*entries, {"id": "a", "n": 2}, {"id": "x" * 256}), "one")

    assert list(found) == ["a", "x" * 256]
    assert orjson.loads(found["a"])["n"] == 2


def test_endless_list_has_an_end() -> None:
    """One upstream's models can't fill the memory."""
    found = models_of(a_list(*({"id": f"m{n}"} for n in range(5000))), "one")

    assert len(found) == 4096
    assert len(list(reading_models(a_list(*({"id": f"m{n}"} for n in range(5000))), "one"))) > 30  # steps


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"data":{}}', b'{"data":null}', b"<html>", b"{}x"])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        models_of(body, "one")


def test_alias_has_the_object_of_what_it_stands_for() -> None:
    """Under its own name, which is the one that a client may ask for."""
    (own,) = models_of(a_list(VLLM), "one").values()

    assert orjson.loads(model_object("fast", "one", own)) == {**VLLM, "id": "fast"}


def test_unknown_model_has_a_small_object() -> None:
    assert orjson.loads(model_object('a"b', "one")) == {"id": 'a"b', "object": "model", "created": 0, "owned_by": "one"}


def test_list_has_the_shape_of_openai() -> None:
    objects = [model_object("a", "one"), model_object("b", "one")]

    assert orjson.loads(list_of(objects)) == {"object": "list", "data": [orjson.loads(each) for each in objects]}
    assert orjson.loads(list_of([])) == {"object": "list", "data": []}


PAGE = list_of(
    [
        b'{"id":"claude-x","object":"model","created":1715367049,"owned_by":"anthropic","type":"model"}',
        b'{"id":"models-2","object":"model","created":0,"owned_by":"up","display_name":"Two"}',
    ]
)


def test_list_for_an_anthropic_client_is_one_of_its_sdk() -> None:
    """Its SDK reads each model, and that there is no further page."""
    page = json.loads(page_for(Dialect.ANTHROPIC, PAGE))

    models = [anthropic.types.ModelInfo.model_validate(entry) for entry in page["data"]]
    assert [(model.id, model.type, model.display_name) for model in models] == [
        ("claude-x", "model", "claude-x"),
        ("models-2", "model", "Two"),
    ]
    assert models[0].created_at.isoformat() == "2024-05-10T18:50:49+00:00"
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "claude-x", "models-2")


def test_list_for_a_google_client_is_one_of_its_sdk() -> None:
    """Names begin with models/, as Google's do."""
    page = json.loads(page_for(Dialect.GOOGLE, PAGE))

    assert [entry["name"] for entry in page["models"]] == ["models/claude-x", "models/models-2"]
    assert genai.types.Model.model_validate({"name": page["models"][0]["name"]}).name == "models/claude-x"


def test_list_for_an_openai_client_is_untouched() -> None:
    """The usual one."""
    assert page_for(Dialect.OPENAI, PAGE) is PAGE


def test_what_names_begin_with_at_a_provider_is_no_part_of_them() -> None:
    """Google's list in OpenAI's shape has `models/` in front of each, which no client and no route writes."""
    body = b'{"object":"list","data":[{"id":"models/gemini-9","owned_by":"google"},{"id":"gemini-8"},{"id":"models/"}]}'
    found = finished(reading_models(body, "gemini", "models/"))

    assert list(found) == ["gemini-9", "gemini-8"]
    assert json.loads(found["gemini-9"])["id"] == "gemini-9"


def test_google_list_is_read() -> None:
    """Of an upstream that has Google's API."""
    body = b'{"models":[{"name":"models/gemini-9","displayName":"Gemini 9"},{"name":7}]}'
    found = finished(reading_models(body, "gemini"))

    assert list(found) == ["gemini-9"]
    assert json.loads(found["gemini-9"])["id"] == "gemini-9"


DETAILS = ModelDetails(200_000, 64_000, "0.000003", "0.000015", "0.0000003", "")


def test_object_has_what_is_known_of_the_model() -> None:
    """RC11: as OpenRouter calls it; what its upstream says itself stays, and what is not known is not there."""
    plain = model_object("claude-x", "anthropic")
    full = json.loads(described(plain, DETAILS))
    assert (full["context_length"], full["max_completion_tokens"]) == (200_000, 64_000)
    assert full["pricing"] == {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"}
    assert described(plain, UNKNOWN_DETAILS) == plain
    own = b'{"id":"m","max_model_len":8192,"pricing":{"prompt":"1"}}'
    assert json.loads(described(own, DETAILS)) == {**json.loads(own), "max_completion_tokens": 64_000}


def test_each_dialect_has_limits_by_its_own_names() -> None:
    """RC11: also those that an upstream says by another one."""
    model = described(model_object("gemini-3-pro-002", "gemini"), DETAILS)
    google = json.loads(object_for(Dialect.GOOGLE, model))
    assert (google["inputTokenLimit"], google["outputTokenLimit"], google["version"]) == (200_000, 64_000, "002")
    claude = json.loads(object_for(Dialect.ANTHROPIC, model))
    assert (claude["max_input_tokens"], claude["max_tokens"]) == (200_000, 64_000)
    of_vllm = json.loads(object_for(Dialect.GOOGLE, b'{"id":"qwen3","max_model_len":32768}'))
    assert (of_vllm["inputTokenLimit"], "outputTokenLimit" in of_vllm) == (32_768, False)
    of_google = b'{"id":"g","inputTokenLimit":5,"version":"9","supportedGenerationMethods":["x"]}'
    kept = json.loads(object_for(Dialect.GOOGLE, of_google))
    assert (kept["inputTokenLimit"], kept["version"], kept["supportedGenerationMethods"]) == (5, "9", ["x"])


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("gemini-3-pro", ["generateContent", "streamGenerateContent", "countTokens"]),
        ("claude-opus-5", ["generateContent", "streamGenerateContent", "countTokens"]),
        ("gemini-embedding-001", ["embedContent", "batchEmbedContents"]),
        ("text-embedding-3-small", ["embedContent", "batchEmbedContents"]),
        ("BAAI/bge-m3", ["embedContent", "batchEmbedContents"]),
        ("gpt-image-1", []),
        ("gemini-2.5-flash-preview-tts", []),
        ("whisper-1", []),
        ("imagen-4.0-generate-001", []),
    ],
)
def test_methods_are_those_that_a_model_answers(name: str, methods: list[str]) -> None:
    """RC11: a client chooses a model by them."""
    google = json.loads(object_for(Dialect.GOOGLE, model_object(name, "it")))
    assert google["supportedGenerationMethods"] == methods


def test_codex_finds_a_list_of_its_own() -> None:
    """C15: an empty one, which it fills from its catalogue; other clients get OpenAI's alone."""
    page = list_of([model_object("m", "it")])
    asked = json.loads(page_for(Dialect.OPENAI, page, is_codex=True))
    assert asked["models"] == [] and [each["id"] for each in asked["data"]] == ["m"]
    assert page_for(Dialect.OPENAI, page) == page
    empty = json.loads(page_for(Dialect.OPENAI, list_of(()), is_codex=True))
    assert empty == {"object": "list", "data": [], "models": []}


ABLE = Capabilities(tools=True, pictures=True, schemas=True, sampling=False, efforts=("low", "high", "max"))


def test_capabilities_are_told_in_each_shape() -> None:
    """RC11: a client chooses a model by what it can do; what an upstream says itself stays."""
    model = described(model_object("claude-x", "it"), UNKNOWN_DETAILS._replace(capabilities=ABLE))

    entry = orjson.loads(model)
    assert {"tools", "reasoning", "structured_outputs"} <= set(entry["supported_parameters"])
    assert "temperature" not in entry["supported_parameters"]
    assert entry["architecture"]["input_modalities"] == ["text", "image"]
    theirs = anthropic.types.ModelInfo.model_validate_json(object_for(Dialect.ANTHROPIC, model), strict=False)
    able = theirs.capabilities
    assert able is not None and able.image_input.supported and able.thinking.types.adaptive.supported
    assert (able.effort.low.supported, able.effort.medium.supported, able.effort.max.supported) == (True, False, True)
    assert not able.server_tools.web_search.supported and not able.batch.supported
    assert json.loads(object_for(Dialect.GOOGLE, model))["thinking"] is True
    own = orjson.dumps({"id": "m", "supported_parameters": ["seed"], "architecture": {}, "reasoning_efforts": []})
    assert orjson.loads(described(own, UNKNOWN_DETAILS._replace(capabilities=ABLE))) == orjson.loads(own)


def test_nothing_is_said_of_a_model_that_is_not_known() -> None:
    """What is not known is not there, in any shape."""
    model = model_object("m", "it")
    assert described(model, UNKNOWN_DETAILS) == model
    assert "capabilities" not in json.loads(object_for(Dialect.ANTHROPIC, model))
    assert "thinking" not in json.loads(object_for(Dialect.GOOGLE, model))
