"""Embeddings of a model with OpenAI's API, for a client of Gemini (dialects/embeddings/gemini_clients.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types as google
from openai.types import embedding_create_params
from pydantic import TypeAdapter

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.embeddings.gemini_clients import GoogleEmbeddings, with_embedding_model
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.write_reply import GenerateClient

RECORDED = recorded("gemini", ":batchEmbedContents")
A: dict[str, Any] = {"content": {"parts": [{"text": "a"}]}}
TWO_SIZES = json.dumps({"requests": [A, {**A, "outputDimensionality": 2}]}).encode()
PARAMS: TypeAdapter[Any] = TypeAdapter(embedding_create_params.EmbeddingCreateParams)


def translator_of(dropped: DroppedFields | None = None) -> GoogleEmbeddings:
    dropped = dropped or DroppedFields()
    client = GenerateClient(ClientCall("0a1b2c", 1, "m"), dropped)
    return GoogleEmbeddings(client, ChatModel(ModelFacts(), dropped), dropped)


def ask(*texts: str, **more: Any) -> bytes:
    return json.dumps({"requests": [{"content": {"parts": [{"text": text}]}, **more} for text in texts]}).encode()


def told(*vectors: list[float]) -> bytes:
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 3}}).encode()


@pytest.mark.parametrize("exchange", RECORDED, ids=str)
def test_recorded_request_is_one_of_openai(exchange: Exchange) -> None:
    """The texts in their order, or a refusal of what is no text."""
    try:
        body = json.loads(translator_of().request(exchange.body, "text-embedding-3"))
    except BadRequestError as exc:
        assert exc.param
        return
    PARAMS.validate_python(body)
    asked = exchange.json["requests"]
    assert body["input"] == ["".join(part["text"] for part in each["content"]["parts"]) for each in asked]


def test_answers_are_in_the_order_of_the_texts() -> None:
    """By their index, with their numbers as they stood; Google's SDK reads them."""
    made = translator_of()
    made.request(ask("a", "b", outputDimensionality=2), "m")
    data = b'{"data":[{"index":1,"embedding":[0.30,4]},{"index":0,"embedding":[1e-9,2]}]}'

    body = made.answer(data)

    assert body == b'{"embeddings":[{"values":[1e-9,2]},{"values":[0.30,4]}]}'
    found = google.EmbedContentResponse.model_validate_json(body).embeddings
    assert found is not None and [each.values for each in found] == [[1e-9, 2.0], [0.3, 4.0]]


def test_one_text_gets_one_vector() -> None:
    """embedContent: parts are one text."""
    made = translator_of()
    sent = json.loads(made.request(b'{"content":{"parts":[{"text":"a "},{"text":"b"}]},"taskType":"X"}', "m"))

    assert (sent["input"], made.dropped) == (["a b"], ("task_type",))
    assert json.loads(made.answer(told([1.0]))) == {"embedding": {"values": [1.0]}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"requests":[]}', "requests"),
        (b"{}", "content.parts"),
        (b'{"requests":[{"content":{"parts":[{"inlineData":{}}]}}]}', "requests[0].content.parts"),
        (b'{"requests":[{"content":{"parts":7}}]}', "requests[0].content.parts"),
        (b"[", ""),
        (
            ask("a").replace(b'"content"', b'"outputDimensionality":2,"content"')[:-2] + b"," + ask("b")[14:],
            "requests[1]",
        ),
    ],
)
def test_what_can_not_be_embedded_is_refused(body: bytes, param: str) -> None:
    """With the field."""
    with pytest.raises(BadRequestError) as raised:
        translator_of().request(body, "m")
    assert raised.value.param.startswith(param)


@pytest.mark.parametrize(
    "reply", [b"", b"{}", told(), told([1.0], [2.0]), b'{"data":[{"embedding":"AAAA"}]}', b"<html>"]
)
def test_reply_that_is_no_vector_for_each_text_is_broken(reply: bytes) -> None:
    """Nothing is guessed."""
    made = translator_of()
    made.request(ask("a"), "m")

    with pytest.raises(BrokenReplyError):
        made.answer(reply)


def test_each_text_names_the_model_of_an_alias() -> None:
    """Google refuses one that differs from the path's; all else stays as it stood."""
    first = b'{"model":"models/mine","content":{"parts":[{"text":"model \\u00e9"}]},"x":1.50}'
    body = b'{"requests": [%b,{"content":{}}]}' % first
    changed = with_embedding_model(body, "gemini-embedding-001")
    assert [each["model"] for each in json.loads(changed)["requests"]] == ["models/gemini-embedding-001"] * 2
    assert b'{"parts":[{"text":"model \\u00e9"}]},"x":1.50' in changed
    assert json.loads(with_embedding_model(b'{"content":{}}', "m")) == {"content": {}}
    for wrong in (b"{", b'{"requests":3}', b'{"requests":["a"]}'):
        with pytest.raises(BadRequestError):
            with_embedding_model(wrong, "m")
    single = with_embedding_model(
        b'{"content":{"parts":[{"text":"a"}]}, "model":"models/mine"}', "gemini-embedding-001"
    )
    assert json.loads(single) == {"model": "models/gemini-embedding-001", "content": {"parts": [{"text": "a"}]}}
