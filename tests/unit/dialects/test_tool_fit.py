"""Tools whose schemas a target refuses: made to fit, and the arguments of their calls given back as the client's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vendors import schemas
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, ClientSide, ModelSide
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.tools.argument_keys import ArgumentKeys, with_keys
from velox.gateway.translation.translators import GenerationTranslator
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

_CALL: Final = ClientCall("abc", 7, "m")
_NAME: Final = "look.up"  # another one at Claude, too
_LONG: Final = "a" * 65
_TAKEN: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def _facts(provider: str, model: str) -> ModelFacts:
    return facts_of(PROVIDERS[provider], model)


# Each target: what writes for it, where a schema stands in what is written, and how strict the vendor is with it.
_Target = tuple[Callable[[], ModelSide], Callable[[Any], Any], Callable[[Any], str | None]]
_TARGETS: Final[Mapping[str, _Target]] = {
    "anthropic": (
        lambda: MessagesModel(_facts("anthropic", "claude-opus-5"), DroppedFields()),
        lambda body: body["tools"][0]["input_schema"],
        schemas.claude_problem,
    ),
    "vertex": (
        lambda: MessagesModel(_facts("vertex", "claude-sonnet-4-5"), DroppedFields()),
        lambda body: body["tools"][0]["input_schema"],
        schemas.claude_problem,
    ),
    "bedrock": (
        lambda: ConverseModel(_facts("bedrock", "eu.anthropic.claude-sonnet-4-5"), DroppedFields()),
        lambda body: body["toolConfig"]["tools"][0]["toolSpec"]["inputSchema"]["json"],
        schemas.claude_problem,
    ),
    "openai": (
        lambda: ChatModel(_facts("openai", "gpt-4o"), DroppedFields()),
        lambda body: body["tools"][0]["function"]["parameters"],
        schemas.openai_problem,
    ),
    "openai responses": (
        lambda: ResponsesModel(_facts("openai", "gpt-5.2"), DroppedFields()),
        lambda body: body["tools"][0]["parameters"],
        schemas.openai_problem,
    ),
    "openrouter": (
        lambda: ChatModel(_facts("openrouter", "anthropic/claude-sonnet-4.5"), DroppedFields(), "openrouter"),
        lambda body: body["tools"][0]["function"]["parameters"],
        schemas.claude_problem,
    ),
    "gemini": (
        lambda: GenerateModel(_facts("gemini", "gemini-3-pro-preview"), DroppedFields()),
        lambda body: body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"],
        schemas.google_problem,
    ),
}
# Those that are strict with the names of properties.
_KEY_CHECKING: Final = ("anthropic", "vertex", "bedrock", "openrouter")


def _chat(schema: Any, **fields: Any) -> bytes:
    tool = {"type": "function", "function": {"name": _NAME, "description": "Looks.", "parameters": schema}}
    given = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool], **fields}
    return json.dumps(given).encode()


def _crossed(target: str, body: bytes, client: ClientSide | None = None) -> tuple[GenerationTranslator, Any]:
    """Return the translator of a request, and what goes up."""
    make, _, _ = _TARGETS[target]
    translator = GenerationTranslator(client or ChatClient(_CALL, DroppedFields()), make(), DroppedFields())
    return translator, json.loads(translator.request(body, "m"))


def _schema(target: str, schema: Any) -> Any:
    return _TARGETS[target][1](_crossed(target, _chat(schema))[1])


def _claude_answer(arguments: Any, name: str) -> bytes:
    use = {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}
    said = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_reason": "tool_use"}
    return json.dumps({**said, "content": [use], "usage": {}}).encode()


def _claude_stream(pieces: list[str], name: str) -> bytes:
    use = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    events: list[Any] = [
        {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in pieces
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _streamed_arguments(said: bytes) -> str:
    """Return the arguments of the only call in a stream of Chat Completions."""
    chunks = [json.loads(line[6:]) for line in said.split(b"\n\n") if line.startswith(b"data: {")]
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or ()]
    return "".join(call["function"].get("arguments", "") for call in deltas)


@pytest.mark.parametrize("key", ["$top", "filter[0]", _LONG, "größe", "a space", ""])
@pytest.mark.parametrize("target", _KEY_CHECKING)
def test_properties_that_claude_refuses_have_other_names_there(target: str, key: str) -> None:
    """C18: the names of a tool's properties are made to fit, as names of tools are, and are required as before."""
    schema = {"type": "object", "properties": {key: {"type": "integer"}, "ok": {}}, "required": [key]}

    found = _schema(target, schema)

    assert schemas.claude_problem(found) is None
    (their,) = [name for name in found["properties"] if name != "ok"]
    assert found["properties"][their] == {"type": "integer"}
    assert found["required"] == [their]
    assert _schema(target, schema) == found, "caches find it again"


@pytest.mark.parametrize("target", ["openai", "openai responses", "gemini"])
def test_properties_keep_their_names_where_they_are_taken(target: str) -> None:
    """C18: GPT and Gemini take any names."""
    schema = {"type": "object", "properties": {"$top": {}, "größe": {}}, "required": ["$top"]}

    assert _schema(target, schema) == schema


def test_calls_come_back_with_the_clients_own_properties() -> None:
    """C18: of a plain answer and of a streamed one, cut anywhere; what is inside of the values stays."""
    schema = {"type": "object", "properties": {"$top": {}, "filter[0]": {}, "ok": {}}}
    translator, sent = _crossed("anthropic", _chat(schema))
    name = sent["tools"][0]["name"]
    top, nested, _ = sent["tools"][0]["input_schema"]["properties"]
    arguments = {top: {top: [1, f'"{top}":']}, "ok": top, nested: 1.50}
    own = {"$top": {top: [1, f'"{top}":']}, "ok": top, "filter[0]": 1.5}

    plain = json.loads(translator.answer(_claude_answer(arguments, name)))
    call = plain["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == (_NAME, own)

    text = json.dumps(arguments)
    for size in (1, 2, 7, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        translator, _ = _crossed("anthropic", _chat(schema, stream=True))
        stream = translator.stream()
        said = stream.feed(_claude_stream(pieces, name), end=True)
        assert stream.is_whole
        assert json.loads(_streamed_arguments(said)) == own


def test_a_call_that_is_cut_in_a_name_keeps_what_came() -> None:
    """C18: what can't be told to be a name is given out at the end."""
    schema = {"type": "object", "properties": {"$top": {}}}
    translator, sent = _crossed("anthropic", _chat(schema, stream=True))
    stream = translator.stream()

    said = stream.feed(_claude_stream(['{"t_t'], sent["tools"][0]["name"]), end=True)

    assert _streamed_arguments(said) == '{"t_t'


def test_calls_of_the_history_have_the_names_that_the_model_knows() -> None:
    """C18: it reads its own calls as it made them; those of other tools stay."""
    schema = {"type": "object", "properties": {"$top": {}}}
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": '{"$top": 5, "x": {"$top":1}}'}}
        for n, name in enumerate((_NAME, "gone"))
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": f"c{n}", "content": "r"} for n in range(2)),
    ]

    _, sent = _crossed("anthropic", _chat(schema, messages=messages))

    (their,) = sent["tools"][0]["input_schema"]["properties"]
    first, second = sent["messages"][1]["content"]
    assert first["input"] == {their: 5, "x": {"$top": 1}}
    assert second["input"] == {"$top": 5, "x": {"$top": 1}}


_CLIENTS: Final[Mapping[str, tuple[Callable[[], ClientSide], Callable[[Any], dict[str, Any]]]]] = {
    "responses": (
        lambda: ResponsesClient(_CALL, DroppedFields()),
        lambda schema: {
            "model": "m",
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "parameters": schema}],
        },
    ),
    "messages": (
        lambda: MessagesClient(_CALL, DroppedFields()),
        lambda schema: {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"name": "f", "input_schema": schema}],
        },
    ),
    "generate": (
        lambda: GenerateClient(_CALL, DroppedFields()),
        lambda schema: {
            "contents": [{"parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": schema}]}],
        },
    ),
}


@pytest.mark.parametrize("client", _CLIENTS)
def test_clients_of_all_dialects_get_their_names_back(client: str) -> None:
    """C18: from Responses, Messages and Gemini as from Chat."""
    make, body = _CLIENTS[client]
    schema = {"type": "object", "properties": {"$top": {}}}
    translator, sent = _crossed("bedrock", json.dumps(body(schema)).encode(), make())
    tool = sent["toolConfig"]["tools"][0]["toolSpec"]
    (their,) = tool["inputSchema"]["json"]["properties"]
    use = {"toolUseId": "t1", "name": tool["name"], "input": {their: 3}}
    reply = {
        "output": {"message": {"role": "assistant", "content": [{"toolUse": use}]}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    }

    said = translator.answer(json.dumps(reply).encode()).decode()

    assert "$top" in said and their not in said


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
@pytest.mark.parametrize("target", _TARGETS)
def test_branches_at_the_top_become_one_object(target: str, word: str) -> None:
    """C19: it has the properties of all of them, and requires what all do; the rest is told in the description."""
    branches = [
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "string"}}, "required": ["kind", "x"]},
        {"$ref": "#/$defs/B"},
    ]
    b = {"properties": {"kind": {"const": "b"}, "y": {"type": "number"}}, "required": ["y", "kind"]}
    schema = {word: branches, "$defs": {"B": b}}

    _, sent = _crossed(target, _chat(schema))
    found = _TARGETS[target][1](sent)

    assert _TARGETS[target][2](found) is None and word not in found
    assert found["type"] == "object" and found["required"] == ["kind"]
    assert found["properties"] == {
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "x": {"type": "string"},
        "y": {"type": "number"},
    }
    told = json.dumps(sent).replace('\\"', '"')
    assert f'Looks.\\n\\nThe arguments must also fit this JSON schema: {{"{word}":[' in told


def test_parts_of_all_are_one_object_without_a_word() -> None:
    """C19: `allOf` and a reference at the top say the same when they are put together."""
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {}}, "required": ["b"]}],
        "$defs": {"Base": base},
    }

    _, sent = _crossed("anthropic", _chat(schema))

    tool = sent["tools"][0]
    assert tool["description"] == "Looks."
    assert tool["input_schema"]["properties"] == {"a": {"type": "string"}, "b": {}}
    assert sorted(tool["input_schema"]["required"]) == ["a", "b"]


def test_strict_tools_have_no_branches_either() -> None:
    """C19: `strict` made of it what is refused, too."""
    schema = {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}

    _, sent = _crossed("anthropic", _chat({}, tools=[tool]))

    assert schemas.claude_problem(sent["tools"][0]["input_schema"]) is None


def test_alternatives_of_required_names_are_told_with_the_names_of_there() -> None:
    """C18, C19: both at once."""
    schema = {
        "type": "object",
        "properties": {"$a": {}, "b": {}},
        "anyOf": [{"required": ["$a"]}, {"required": ["b"]}],
    }

    _, sent = _crossed("anthropic", _chat(schema))

    tool = sent["tools"][0]
    their, _ = tool["input_schema"]["properties"]
    assert "required" not in tool["input_schema"]
    assert f'{{"anyOf":[{{"required":["{their}"]}},{{"required":["b"]}}]}}' in tool["description"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 1}),
        ({"maximum": 2.5, "exclusiveMaximum": False}, {"maximum": 2.5}),
        ({"exclusiveMaximum": True}, {}),
        ({"items": [{"type": "string"}, {}]}, {"prefixItems": [{"type": "string"}, {}]}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "items": False}),
        ({"items": {"type": "any"}, "additionalItems": {"type": "int"}}, {"items": {}}),
        (
            {"type": "object", "properties": {"b": {"required": True}, "c": {"required": False}}},
            {"type": "object", "properties": {"b": {}, "c": {}}, "required": ["b"]},
        ),
        (
            {"properties": {"b": {"required": True, "properties": {"d": {"required": True}}}}, "required": ["c", "c"]},
            {"properties": {"b": {"properties": {"d": {}}, "required": ["d"]}}, "required": ["c", "b"]},
        ),
        (
            {"dependencies": {"a": ["b"], "b": "c", "c": {"required": ["d"]}}},
            {"dependentRequired": {"a": ["b"], "b": ["c"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
        ),
        ({"type": "any"}, {}),
        ({"type": ["STRING", "null", "null"]}, {"type": ["string", "null"]}),
        ({"type": "dict"}, {"type": "object"}),
        ({"type": "float", "description": None, "enum": None, "default": None}, {"type": "number", "default": None}),
        ({"anyOf": [{"exclusiveMinimum": False, "required": True}]}, {"anyOf": [{}]}),
    ],
)
@pytest.mark.parametrize("target", _TARGETS)
def test_older_drafts_become_the_current_one(target: str, old: Any, new: Any) -> None:
    """C20: exactly, for every target, wherever they stand."""
    found = _schema(target, {"type": "object", "properties": {"a": old}})

    assert found == {"type": "object", "properties": {"a": new}}


def test_schema_that_names_draft_4_is_none_any_more() -> None:
    """C20: its name goes with what was rewritten."""
    named = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "properties": {}}

    assert "$schema" not in _schema("anthropic", named)


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"type": "wat"}, "properties.a.type"),
        ({"minimum": "1"}, "properties.a.minimum"),
        ({"items": 5}, "properties.a.items"),
        ({"anyOf": []}, "properties.a.anyOf"),
        ({"properties": {"b": {"required": ["x", 1]}}}, "properties.a.properties.b.required"),
    ],
)
def test_what_no_draft_allows_is_refused_by_the_tools_name(wrong: Any, place: str) -> None:
    """C20: before anything is sent, so that another target may be asked."""
    with pytest.raises(BadRequestError) as caught:
        _schema("anthropic", {"type": "object", "properties": {"a": wrong}})

    assert f"'{_NAME}'" in caught.value.message and place in caught.value.message
    assert caught.value.param == "tools"
    _schema("openai", {"type": "object", "properties": {"a": wrong}})  # it may take it, or answer itself


def test_answer_in_json_has_the_current_draft_too() -> None:
    """C20: of the schema of an answer as of a tool."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
        "a": {"type": "number", "minimum": 1, "exclusiveMinimum": True}}}}}  # fmt: skip
    _, sent = _crossed("openai", _chat({}, response_format=form))

    schema = sent["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["a"] == {"type": "number", "exclusiveMinimum": 1}


def test_schema_that_fits_stays_as_it_stood() -> None:
    """Byte for byte, spaces and order too: caches go by it."""
    text = '{"type": "object",  "properties": {"b": {"type":"string"}, "a": {"minimum": 1.0}}, "required":["b"]}'
    body = _chat({"x": 1}).replace(b'{"x": 1}', text.encode())
    for target, (make, _, _) in _TARGETS.items():
        translator = GenerationTranslator(ChatClient(_CALL, DroppedFields()), make(), DroppedFields())
        assert text.encode() in translator.request(body, "m"), target


# -- any schema ---------------------------------------------------------------------------------------------

_KEYS: Final = st.sampled_from(["a", "b", "$top", "filter[0]", "größe", "x y", _LONG, "t_top", "type", ""])
_WORDS: Final = st.sampled_from(
    ["string", "number", "object", "array", "null", "any", "STRING", "float", ["string", "null"], ["object", "any"]]
)


def _more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _WORDS,
            "properties": st.dictionaries(_KEYS, inner, max_size=4),
            "required": st.one_of(st.booleans(), st.lists(_KEYS, max_size=3), st.none()),
            "items": st.one_of(inner, some),
            "additionalItems": st.one_of(inner, st.booleans()),
            "additionalProperties": st.one_of(inner, st.booleans()),
            "exclusiveMinimum": st.one_of(st.booleans(), st.integers(0, 9)),
            "minimum": st.integers(0, 9),
            "description": st.one_of(st.none(), st.just("d")),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=3),
            "dependencies": st.dictionaries(
                _KEYS, st.one_of(inner, st.lists(_KEYS, max_size=2, unique=True)), max_size=2
            ),
            "$ref": st.sampled_from(["#/$defs/A", "#/$defs/nothing", "#/properties/$top", "#"]),
            "enum": st.lists(st.sampled_from([1, "a", None]), min_size=1, unique=True),
            "default": st.one_of(st.none(), st.dictionaries(_KEYS, st.integers(), max_size=2)),
        },
    )


_SCHEMAS: Final = st.recursive(st.just({}), _more, max_leaves=8)


@settings(max_examples=150)
@given(
    inner=_SCHEMAS,
    definition=_SCHEMAS,
    target=st.sampled_from(sorted(_TARGETS)),
    sizes=st.lists(st.integers(1, 9), max_size=20),
)
def test_any_schema_fits_every_vendor_and_arguments_come_back(
    inner: dict[str, Any], definition: dict[str, Any], target: str, sizes: list[int]
) -> None:
    """A tool with any schema goes up in a form that the vendor takes, or not at all; its calls have the own names."""
    schema = {**inner, "$defs": {"A": definition}}
    try:
        translator, sent = _crossed(target, _chat(schema))
    except BadRequestError as exc:
        assert "tool" in exc.message
        return
    found = _TARGETS[target][1](sent)

    assert _TARGETS[target][2](found) is None, found
    if target not in ("anthropic", "vertex"):
        return
    arguments = {name: {name: "$top"} for name in found.get("properties", {})}
    name = sent["tools"][0]["name"]
    call = json.loads(translator.answer(_claude_answer(arguments, name)))["choices"][0]["message"]["tool_calls"][0]
    own = json.loads(call["function"]["arguments"])
    assert list(own.values()) == list(arguments.values())
    for theirs, ours in zip(arguments, own, strict=True):
        assert ours == theirs or _TAKEN.fullmatch(ours) is None
        assert any(ours in each for each in _names_in(schema))

    text, pieces = json.dumps(arguments), list[str]()
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    stream = translator.stream()
    said = stream.feed(_claude_stream([*pieces, text], name), end=True)
    assert json.loads(_streamed_arguments(said)) == own


def _names_in(value: Any) -> list[dict[str, Any]]:
    """Return all objects of properties in a schema."""
    if isinstance(value, list):
        return [found for each in value for found in _names_in(each)]
    if not isinstance(value, dict):
        return []
    own = value.get("properties")
    return [*([own] if isinstance(own, dict) else []), *(found for each in value.values() for found in _names_in(each))]


# -- the text of arguments ----------------------------------------------------------------------------------


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from('kx"\\é'), inner, max_size=3),
        max_leaves=10,
    ),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
    size=st.integers(1, 5),
)
def test_only_the_names_of_the_outermost_object_change(
    value: Any, indent: int | None, escaped: bool, size: int
) -> None:
    """Cut anywhere, written in any way; and nothing of any other JSON."""
    text = json.dumps({"k": value, "y": value}, indent=indent, ensure_ascii=escaped)
    keys = ArgumentKeys({"k": "größer $", "x": "z"})

    said = "".join(keys.feed(text[at : at + size]) for at in range(0, len(text), size)) + keys.end()

    assert json.loads(said) == {"größer $": value, "y": value}
    whole = json.dumps(value if isinstance(value, list) else [value]).encode()
    assert with_keys(whole, {"k": "n", "x": "z"}) == whole


def test_name_that_does_not_end_is_held_within_bounds() -> None:
    """A model that writes no JSON can't fill the memory."""
    keys = ArgumentKeys({"k": "n"})

    said = keys.feed('{"' + "a" * 100_000)

    assert len(said) > 80_000
    assert keys.end() == ""


def test_unknown_facts_change_no_tool() -> None:
    """A server that nobody knows gets the schema in the current draft, and all else of it as it was."""
    schema = {"anyOf": [{"properties": {"$a": {}}}], "type": "object", "properties": {"b": {"type": "any"}}}
    translator = GenerationTranslator(
        ChatClient(_CALL, DroppedFields()), ChatModel(UNKNOWN_MODEL, DroppedFields()), DroppedFields()
    )

    sent = json.loads(translator.request(_chat(schema), "m"))

    assert sent["tools"][0]["function"]["parameters"] == {**schema, "properties": {"b": {}}}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("depth", [300, 900])
@pytest.mark.parametrize("target", _TARGETS)
def test_values_that_nest_deeply_are_no_faults_of_ours(target: str, depth: int, strict: bool) -> None:
    """A default is no schema, and may be as deep as JSON is read: it goes up, or is a 400."""
    deep = "[" * depth + "]" * depth
    schema = f'{{"type":"object","properties":{{"$top":{{"type":"any","default":{deep}}}}}}}'
    tool = {"type": "function", "function": {"name": _NAME, "strict": strict, "parameters": {"x": 1}}}
    body = _chat({}, tools=[tool]).replace(b'{"x": 1}', schema.encode())
    translator = GenerationTranslator(ChatClient(_CALL, DroppedFields()), _TARGETS[target][0](), DroppedFields())
    try:
        assert deep.encode() in translator.request(body, "m").replace(b" ", b"")
    except BadRequestError as exc:
        assert exc.param in ("tools", "")


@pytest.mark.parametrize("width", [20, 60])
def test_alternatives_that_double_are_bounded(width: int) -> None:
    """A few references stand for thousands of parts, in each of 300 tools: all are too many, or the first is."""
    doubled = {name: {"anyOf": [{"$ref": f"#/$defs/{to}"}] * width} for name, to in (("A", "B"), ("B", "C"))}
    definitions = {**doubled, "C": {"properties": {"x": {}}}}
    several = [{"title": f"{width}.{n}", **doubled["A"], "$defs": definitions} for n in range(300)]
    functions = [{"name": f"f{n}", "parameters": each} for n, each in enumerate(several)]
    body = _chat({}, tools=[{"type": "function", "function": each} for each in functions])
    began = time.thread_time()

    with pytest.raises(BadRequestError) as caught:
        _crossed("anthropic", body)

    assert caught.value.param == "tools"
    assert time.thread_time() - began < 1


def test_large_schemas_are_gone_through_within_bounds() -> None:
    """Those over a megabyte in one request go up as they stand."""
    wide = {"type": "object", "properties": {f"$p{n}": {"description": "x" * 400} for n in range(1500)}}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": wide}} for n in range(2)]

    _, sent = _crossed("anthropic", _chat({}, tools=tools))

    first, second = (tool["input_schema"]["properties"] for tool in sent["tools"])
    assert "$p0" not in first and "$p0" in second
