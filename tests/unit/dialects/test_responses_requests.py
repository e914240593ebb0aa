"""Responses: what is read of a client's request, and how a model is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Block,
    CacheMark,
    Choice,
    ClientCall,
    Document,
    Format,
    Image,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Request,
    Role,
    Signature,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

_CODEX = Path(__file__).with_name("codex_request.json").read_bytes()


def _read(dropped: DroppedFields | None = None, **fields: Any) -> Request:
    body = json.dumps({"model": "m", "input": "Hi", **fields}).encode()
    return ResponsesClient(ClientCall("abc", 7), dropped or DroppedFields()).read(body)


def _written(request: Request, facts: ModelFacts = UNKNOWN_MODEL, dropped: DroppedFields | None = None) -> Any:
    return json.loads(ResponsesModel(facts, dropped or DroppedFields()).write(request, "gpt").body)


# -- Codex ------------------------------------------------------------------------------------------


def test_pitfall_40_codex_tools_become_functions_and_hosted_ones_are_dropped() -> None:
    """Refusing a tool that Codex sends by default would refuse every request."""
    dropped = DroppedFields()
    request = ResponsesClient(ClientCall("abc", 7), dropped).read(_CODEX)

    names = [tool.name for tool in request.tools]
    assert names == [
        "exec_command",
        "update_plan",
        "apply_patch",
        "mcp__tracker__get_issue",
        "tool_search",
        "local_shell",
        "mcp__calendar__create_event",
    ]
    assert b"start: begin_patch hunk+ end_patch" in (request.tools[2].description or b"")
    assert set(dropped.names) == {
        "tools.hosted",
        "input.hosted",
        "client_metadata",
        "tools.namespace.description",
    }
    assert request.verbosity == "low"


def test_input_changes_the_configuration() -> None:
    """An item of the input sets the effort or the form of the answer from there on: the last one counts."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    said = {"role": "user", "content": "a"}
    items = [
        said,
        {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        {"type": "configuration_update", "text": {"format": schema}},
        said,
    ]
    dropped = DroppedFields()

    request = _read(dropped, input=items, reasoning={"effort": "high", "summary": "auto"}, text={"verbosity": "low"})
    assert request.reasoning == Reasoning("low", summary="auto")
    assert request.format == Format(b'{"type": "object"}', "n")
    assert (request.verbosity, len(request.messages), dropped.names) == ("low", 2, ())

    back = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    assert _read(input=[said, back], text={"format": schema}).format is None
    with pytest.raises(BadRequestError) as info:
        _read(input=[said, {"type": "configuration_update", "text": {"format": 1}}])
    assert info.value.param == "input[1].text.format"


def test_codex_history_is_one_message_a_turn() -> None:
    """What the assistant thought, said and called is one message; so are the results of parallel calls."""
    request = ResponsesClient(ClientCall("abc", 7), DroppedFields()).read(_CODEX)

    roles = [message.role.value for message in request.messages]
    assert roles[:5] == ["system", "system", "user", "user", "user"]
    first, results = request.messages[5], request.messages[6]
    assert first.blocks == [
        Thinking(b'"**Planning**"', Signature("anthropic", "c2lnbmF0dXJl")),
        Text(b'"I read the file first."'),
        ToolUse("call_1", "exec_command", b'{"cmd":"cat a.py","yield_time_ms":1000}'),
        ToolUse("call_2", "mcp__tracker__get_issue", b'{"id":12345678901234567890}'),
    ]
    assert [type(block) for block in results.blocks] == [ToolResult, ToolResult]
    patch = request.messages[7].blocks[0]
    assert isinstance(patch, ToolUse)
    assert json.loads(patch.arguments)["input"].startswith("*** Begin Patch\n")


def test_codex_history_is_legal_chat() -> None:
    """Every message with calls is followed by the results of all of them."""
    request = ResponsesClient(ClientCall("abc", 7), DroppedFields()).read(_CODEX)
    messages = json.loads(ChatModel(UNKNOWN_MODEL, DroppedFields()).write(request, "m").body)["messages"]

    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message.get("tool_calls", ())}
    assert not waiting


def test_codex_signature_of_openai_goes_back_without_an_id() -> None:
    """Codex keeps no ids of reasoning."""
    items = [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, {"role": "assistant", "content": "Hi"}]
    written = _written(_read(input=items))

    assert written["input"][0] == {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def test_pitfall_12_encrypted_content_is_kept() -> None:
    """RS2: without its id, with which OpenAI wants the item that followed."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "So."}]}
    items = [{**item, "encrypted_content": "gAAA"}, {"role": "assistant", "content": "Hi"}]

    without_id = {name: value for name, value in items[0].items() if name != "id"}
    assert _written(_read(input=items))["input"][0] == without_id


def test_pitfall_14_signatures_of_others_are_dropped() -> None:
    """A fallback to another provider leaves them out, and says so."""
    dropped = DroppedFields()
    blocks: list[Any] = [Thinking(b'"a"', Signature("anthropic", "x")), Text(b'"b"')]
    written = _written(Request("m", [Message(Role.ASSISTANT, blocks)]), dropped=dropped)

    assert written["input"] == [{"type": "message", "role": "assistant", "content": "b"}]
    assert dropped.names == ("reasoning_signature",)


def test_reasoning_that_led_to_nothing_is_left_out() -> None:
    """OpenAI refuses a reasoning item without its following item."""
    blocks: list[Any] = [Text(b'"b"'), Thinking(b'"a"', Signature("openai", "x", "rs_1"))]
    written = _written(Request("m", [Message(Role.ASSISTANT, blocks)]))

    assert [item["type"] for item in written["input"]] == ["message"]


# -- refusals and drops -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("background", True),
        ("prompt", {"id": "pmpt_1"}),
        ("moderation", {"model": "m"}),
        ("top_logprobs", 2),
        ("include", ["message.output_text.logprobs"]),
    ],
)
def test_refused_fields_are_named(field: str, value: Any) -> None:
    """What changes an answer's meaning is refused before anything is sent."""
    with pytest.raises(BadRequestError) as caught:
        _read(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt", "metadata", "background"])
def test_null_fields_are_absent(field: str) -> None:
    """The SDK sends null for what is not set."""
    dropped = DroppedFields()
    _read(dropped, **{field: None})
    assert dropped.names == ()


def test_drops_are_counted() -> None:
    """What tunes an answer is left out, and said."""
    dropped = DroppedFields()
    _read(dropped, store=True, truncation="auto", metadata={"a": "b"}, max_tool_calls=3, anything=1)
    assert set(dropped.names) == {"store", "truncation", "metadata", "max_tool_calls", "unknown"}


def test_strict_routes_refuse_a_hosted_tool() -> None:
    """The path of the tool is in the error."""
    with pytest.raises(BadRequestError) as caught:
        _read(DroppedFields(strict=True), tools=[{"type": "code_interpreter"}])
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "bot", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "compaction", "encrypted_content": "a"}]}, "input[0]"),
        ({"input": [{"role": 4, "content": "a"}]}, "input[0].role"),
        ({"instructions": ["a"]}, "instructions"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
    ],
)
def test_bad_input_is_refused_with_its_path(fields: dict[str, Any], param: str) -> None:
    """The path is written as the client would write it."""
    with pytest.raises(BadRequestError) as caught:
        _read(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"input":"\xff"}', b'{"input":' + b"[" * 5000])
def test_pitfall_44_bodies_that_are_no_requests(body: bytes) -> None:
    """They are refused, never a crash."""
    with pytest.raises(BadRequestError):
        ResponsesClient(ClientCall("abc", 7), DroppedFields()).read(body)


def test_pitfall_44_surrogates_duplicates_and_large_integers_are_kept() -> None:
    """Texts and arguments are raw."""
    body = (
        b'{"model":"a","model":"m","input":[{"role":"user","content":"\\ud83d x"},{"type":"function_call",'
        b'"call_id":"c","name":"f","arguments":"{\\"n\\":12345678901234567890}"}]}'
    )
    request = ResponsesClient(ClientCall("abc", 7), DroppedFields()).read(body)

    assert request.model == "m"
    assert request.messages[0].blocks == [Text(b'"\\ud83d x"')]
    assert request.messages[1].blocks == [ToolUse("c", "f", b'{"n":12345678901234567890}')]


# -- fields -------------------------------------------------------------------------------------------


def test_instructions_are_the_first_system_message_and_come_back() -> None:
    """They stay a field of their own at a model of the same dialect."""
    request = _read(instructions="Be kind.", input=[{"role": "developer", "content": "Later."}])

    assert [message.role for message in request.messages] == [Role.SYSTEM, Role.SYSTEM]
    written = _written(request)
    assert written["instructions"] == "Be kind."
    assert written["input"] == [{"type": "message", "role": "system", "content": "Later."}]


def test_pitfall_21_a_later_system_message_stays_in_place() -> None:
    """Moving it would break the cache."""
    items = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]
    written = _written(_read(input=items))

    assert [each["role"] for each in written["input"]] == ["user", "system", "user"]


def test_round_trip_of_fields() -> None:
    """Read and written again, they are the same."""
    properties = {"a": {"type": "integer", "maximum": 12345678901234567890}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    fields: dict[str, Any] = {
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "name": "f", "description": "D", "parameters": schema, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        "reasoning": {"effort": "high", "summary": "auto"},
        "user": "u",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "stream": True,
    }
    written = _written(_read(**fields))

    assert {name: written[name] for name in fields} == fields
    assert written["input"] == [{"type": "message", "role": "user", "content": "Hi"}]
    assert written["store"] is False
    assert written["include"] == ["reasoning.encrypted_content"]


def test_round_trip_of_parts() -> None:
    """Pictures and files by data and URL; a cache mark where the model takes it."""
    mark = {"mode": "explicit", "ttl": "12h"}
    parts = [
        {"type": "input_text", "text": "a", "prompt_cache_breakpoint": mark},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "file_url": "https://x/y.pdf"},
    ]
    request = _read(input=[{"type": "message", "role": "user", "content": parts}])

    assert request.messages[0].blocks == [
        Text(b'"a"', CacheMark("1h")),
        Image(Media(MediaKind.URL, "https://x/y.png"), "low"),
        Image(Media(MediaKind.DATA, "AAAA", "image/png")),
        Document(Media(MediaKind.DATA, "AAAA", "application/pdf"), "a.pdf"),
        Document(Media(MediaKind.URL, "https://x/y.pdf")),
    ]
    facts = ModelFacts(renamed=(("prompt_cache_breakpoint", "prompt_cache_breakpoint"),))
    assert _written(request, facts)["input"][0]["content"] == parts


@pytest.mark.parametrize("api", [ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE, ApiKind.CONVERSE])
@pytest.mark.parametrize("verbosity", [False, True])
def test_verbosity_goes_up_where_a_model_takes_it(api: ApiKind, verbosity: bool) -> None:
    """From both of OpenAI's APIs to both; elsewhere it is counted."""
    said = [
        ResponsesClient(ClientCall("abc", 7), DroppedFields()).read(
            b'{"model":"m","input":"Hi","text":{"verbosity":"low"}}'
        ),
        ChatClient(ClientCall("abc", 7), DroppedFields()).read(
            b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"verbosity":"low"}'
        ),
    ]
    for request in said:
        dropped = DroppedFields()
        model = dialect_table().models[api](ModelFacts(verbosity=verbosity), dropped, "openai")

        body = json.loads(model.write(request, "m").body)

        found = body.get("verbosity") or body.get("text", {}).get("verbosity")
        is_taken = verbosity and api in (ApiKind.CHAT, ApiKind.RESPONSES)
        assert (found, dropped.names) == (("low", ()) if is_taken else (None, ("verbosity",)))


def test_mark_on_a_text_of_the_assistant_is_counted() -> None:
    """OpenAI has marks on what comes in only."""
    facts = ModelFacts(renamed=(("prompt_cache_breakpoint", "prompt_cache_breakpoint"),))
    dropped = DroppedFields()
    blocks: list[Block] = [Text(b'"a"', CacheMark())]

    body = ResponsesModel(facts, dropped).write(Request("m", [Message(Role.ASSISTANT, blocks)]), "m").body

    assert b"prompt_cache_breakpoint" not in body and dropped.names == ("cache",)


def test_tool_choices() -> None:
    """A custom or a namespaced tool is chosen by the function that stands for it."""
    tools = [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]}]
    chosen = {"type": "function", "name": "f", "namespace": "ns"}

    assert _read(tools=tools, tool_choice=chosen).tool_choice == ToolChoice(Choice.TOOL, "ns__f")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [chosen]}
    assert _read(tools=tools, tool_choice=allowed).tool_choice == ToolChoice(Choice.REQUIRED, None, ("ns__f",))


def test_names_of_namespaces_never_meet() -> None:
    """Two tools that would have the same name stay apart."""
    tools = [
        {"type": "function", "name": "a__b"},
        {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
        {"type": "function", "name": "a__b"},
    ]
    assert [tool.name for tool in _read(tools=tools).tools] == ["a__b", "a__b_"]


# -- to models ----------------------------------------------------------------------------------------


def test_strict_is_false_unless_it_is_asked_for() -> None:
    """Absent means true to Responses, and false in other dialects."""
    written = _written(Request("m", [Message(Role.USER, [Text(b'"a"')])], tools=[Tool("f")]))
    assert written["tools"] == [
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ]


def test_stop_strings_are_refused() -> None:
    """The model would go on where it was to stop."""
    with pytest.raises(BadRequestError) as caught:
        _written(Request("m", [Message(Role.USER, [Text(b'"a"')])], stop=["x"]))
    assert caught.value.param == "stop"


def test_pitfall_29_names_that_do_not_fit_are_mapped_and_said() -> None:
    """Calls and declarations are mapped alike."""
    name = "a.b/" + "c" * 80
    messages = [
        Message(Role.ASSISTANT, [ToolUse("i" * 70, name, b"{}")]),
        Message(Role.USER, [ToolResult("i" * 70, [Text(b'"r"')])]),
    ]
    written = ResponsesModel(UNKNOWN_MODEL, DroppedFields()).write(Request("m", messages, tools=[Tool(name)]), "gpt")
    body = json.loads(written.body)

    fitted = body["tools"][0]["name"]
    assert len(fitted) <= 64
    assert written.names == {fitted: name}
    assert body["input"][0]["name"] == fitted
    assert body["input"][0]["call_id"] == body["input"][1]["call_id"]
    assert list(written.ids.values()) == ["i" * 70]


def test_calls_without_ids_get_some() -> None:
    """Gemini's have none; their results are found by the names."""
    messages = [
        Message(Role.ASSISTANT, [ToolUse("", "f", b"{}"), ToolUse("", "g", b"{}")]),
        Message(Role.USER, [ToolResult("", [Text(b'"2"')], "g"), ToolResult("", [Text(b'"1"')], "f")]),
    ]
    items = _written(Request("m", messages))["input"]
    assert [(each["type"], each["call_id"]) for each in items] == [
        ("function_call", "call_0"),
        ("function_call", "call_1"),
        ("function_call_output", "call_1"),
        ("function_call_output", "call_0"),
    ]


def test_few_tokens_are_raised() -> None:
    """Fewer than 16 are a 400 at OpenAI."""
    dropped = DroppedFields()
    request = Request("m", [Message(Role.USER, [Text(b'"a"')])], max_tokens=1, reasoning=Reasoning(budget_tokens=5000))
    written = _written(request, dropped=dropped)
    assert written["max_output_tokens"] == 16
    assert written["reasoning"] == {"effort": "medium"}
    assert dropped.names == ("max_tokens",)


@pytest.mark.parametrize("model", [ResponsesModel, ChatModel])
def test_long_user_ids_are_hashed(model: type[ResponsesModel | ChatModel]) -> None:
    """OpenAI refuses more than 64 characters; Claude Code's have about 150. The same user stays the same."""
    for length, is_same in ((64, True), (65, False)):
        request = Request("m", [Message(Role.USER, [Text(b'"a"')])], user="u" * length, cache_key="k" * length)
        written = json.loads(model(UNKNOWN_MODEL, DroppedFields()).write(request, "gpt").body)
        assert len(written["user"]) == len(written["prompt_cache_key"]) == 64
        assert (written["user"] == request.user) is is_same
        assert (written["prompt_cache_key"] == request.cache_key) is is_same


def test_models_that_do_not_sample_or_reason() -> None:
    """What they refuse is dropped."""
    dropped = DroppedFields()
    request = _read(temperature=0.1, reasoning={"effort": "low"})
    written = _written(request, ModelFacts(sampling=False, thinking="none"), dropped)
    assert "temperature" not in written
    assert "reasoning" not in written
    assert "include" not in written
    assert dropped.names == ("temperature", "reasoning")
