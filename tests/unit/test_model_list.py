"""Lists of models: what is taken of an upstream's, and what a client gets."""

from __future__ import annotations

import json

import orjson
import pytest

from velox.gateway.steps import finished
from velox.protocol.model_list import list_of, model_object, reading_models

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
