"""Schemas that OpenAI takes as strict, and what becomes of others that clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.tools.strict_schema import taken_strict

_TEXT = {"type": "string"}


def _object(required: list[str], *, closed: Any = False, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": closed}


_STRICT = _object(["a", "b"], a=_TEXT, b={"type": ["integer", "null"]})
_OPTIONAL = _object(["a"], a=_TEXT, b={"type": "integer"})
_DEEP: dict[str, Any] = _TEXT
for _ in range(300):
    _DEEP = {"type": "array", "items": _DEEP}


@pytest.mark.parametrize(
    ("schema", "is_taken"),
    [
        (_STRICT, True),
        (_object([]), True),
        ({"type": "object", "additionalProperties": False}, True),
        (_object(["a"], a={"type": "array", "items": _STRICT}), True),
        (_object(["a"], a={"anyOf": [_STRICT, {"type": "null"}]}), True),
        ({**_object(["a"], a={"$ref": "#/$defs/s"}), "$defs": {"s": _STRICT}}, True),
        (_object(["not"], **{"not": _TEXT}), True),
        (_OPTIONAL, False),
        (_object(["a"], closed=True, a=_TEXT), False),
        (_object(["a"], closed=_TEXT, a=_TEXT), False),
        ({"type": "object", "properties": {"a": _TEXT}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": _TEXT}, "additionalProperties": False}, False),
        (_object(["a"], a={"type": "array", "items": _OPTIONAL}), False),
        (_object(["a"], a={"type": "array", "items": True}), False),
        (_object(["a"], a={"anyOf": [_OPTIONAL, {"type": "null"}]}), False),
        (_object(["a"], a={"type": ["object", "null"]}), False),
        (_object(["a"], a=_object(["b"], closed=True, b=_TEXT)), False),
        ({**_object(["a"], a={"$ref": "#/$defs/s"}), "$defs": {"s": _OPTIONAL}}, False),
        (_object(["a"], a={"allOf": [_TEXT]}), False),
        ({"anyOf": [_STRICT]}, False),
        (_object(["a"], a=_DEEP), False),
        ({"type": "object", "properties": [], "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": _TEXT}, "required": "a", "additionalProperties": False}, False),
        ([], False),
    ],
)
def test_schema_is_strict_if_its_objects_say_all_that_they_have(schema: Any, is_taken: bool) -> None:
    dropped = DroppedFields()

    sent = json.dumps(schema).encode()
    assert taken_strict(sent, True, dropped, "tools") == (sent, is_taken)

    assert dropped.names == (() if is_taken else ("strict",))


@pytest.mark.parametrize("strict", [None, False])
def test_what_is_not_strict_stays_so(strict: bool | None) -> None:
    dropped = DroppedFields()

    sent = json.dumps(_OPTIONAL).encode()
    assert taken_strict(sent, strict, dropped, "tools") == (sent, strict)

    assert dropped.names == ()


@pytest.mark.parametrize("schema", [b'{"type":"object"', b'{"type":"object","description":"\\ud83d"}'])
def test_schema_that_can_not_be_read_is_not_strict(schema: bytes) -> None:
    assert taken_strict(schema, True, DroppedFields(), "tools") == (schema, False)


def test_large_schema_is_read_too() -> None:
    properties = {f"property_{n}": _TEXT for n in range(2500)}
    sent = json.dumps(_object(list(properties), **properties)).encode()

    assert taken_strict(sent, True, DroppedFields(), "tools") == (sent, True)


def test_words_beside_a_reference_go_around_it() -> None:
    """OpenAI refuses any keyword beside `$ref`. Pydantic describes a nested model so."""
    described = {"$ref": "#/$defs/s", "description": "d", "title": "t"}
    around = {"anyOf": [{"$ref": "#/$defs/s"}], "description": "d", "title": "t"}
    dropped = DroppedFields()

    def schema(each: dict[str, Any]) -> dict[str, Any]:
        inside = {"anyOf": [{"type": "array", "items": each}, each]}
        return {**_object(["a", "b"], a=inside, b=_TEXT), "$defs": {"s": _object(["c"], c=each)}}

    found, strict = taken_strict(json.dumps(schema(described)).encode(), True, dropped, "tools")
    assert json.loads(found) == schema(around) and strict is True and dropped.names == ()

    sent = json.dumps(schema({**described, "minLength": 1})).encode()
    assert taken_strict(sent, True, dropped, "tools") == (sent, False) and dropped.names == ("strict",)


@pytest.mark.parametrize("api", [ChatModel, ResponsesModel])
@pytest.mark.parametrize(("schema", "strict"), [(_STRICT, True), (_OPTIONAL, False)])
def test_schemas_of_anthropics_clients_are_asked_for_as_openai_takes_them(
    api: type[ChatModel | ResponsesModel], schema: Any, strict: bool
) -> None:
    """Their answers are always strict, and there a property may be left out."""
    body = {
        "model": "m",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "x"}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "tools": [{"name": "f", "input_schema": schema, "strict": True}],
    }
    dropped = DroppedFields()
    request = MessagesClient(ClientCall("abc", 1), dropped).read(json.dumps(body).encode())

    found = json.loads(api(UNKNOWN_MODEL, dropped).write(request, "gpt").body)

    form = found["response_format"]["json_schema"] if api is ChatModel else found["text"]["format"]
    tool = found["tools"][0]["function"] if api is ChatModel else found["tools"][0]
    assert (form["schema"], form["strict"]) == (schema, strict)
    assert (tool["parameters"], tool["strict"]) == (schema, strict)
    assert dropped.names == (() if strict else ("strict",))


def test_strict_route_refuses_what_would_not_be_strict() -> None:
    with pytest.raises(BadRequestError) as caught:
        taken_strict(json.dumps(_OPTIONAL).encode(), True, DroppedFields(strict=True), "response_format")

    assert caught.value.param == "response_format"
