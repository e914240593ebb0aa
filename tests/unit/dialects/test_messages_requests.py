"""Messages: requests of other dialects as Anthropic takes them, and those of Claude Code as others do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
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
    Refusal,
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
from velox.dialects.canonical.signatures import tagged
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient

_CALL = ClientCall("0123abcd", 1_700_000_000)
_OWN = Signature("anthropic", "EqQB")
_TOOL = Tool("look", b'"Looks."', b'{"type":"object","properties":{"a":{"type":"string"}}}')


def _text(text: str, cache: CacheMark | None = None) -> Text:
    return Text(json.dumps(text).encode(), cache)


def _user(*blocks: Any) -> Message:
    return Message(Role.USER, [_text(block) if isinstance(block, str) else block for block in blocks])


def _assistant(*blocks: Any) -> Message:
    return Message(Role.ASSISTANT, [_text(block) if isinstance(block, str) else block for block in blocks])


def _system(text: str) -> Message:
    return Message(Role.SYSTEM, [_text(text)])


def _call(call_id: str, name: str = "look") -> ToolUse:
    return ToolUse(call_id, name, b'{"a":"b"}')


def _result(call_id: str, text: str = "done", **fields: Any) -> ToolResult:
    return ToolResult(call_id, [_text(text)], **fields)


def _write(request: Request, dropped: DroppedFields | None = None, **facts: Any) -> Any:
    return json.loads(MessagesModel(ModelFacts(**facts), dropped or DroppedFields()).write(request, "claude").body)


def _said(*messages: Message, dropped: DroppedFields | None = None, **facts: Any) -> Any:
    return _write(Request("m", list(messages)), dropped, **facts)["messages"]


def _read(body: dict[str, Any], dropped: DroppedFields | None = None) -> Request:
    return MessagesClient(_CALL, dropped or DroppedFields()).read(
        json.dumps({"model": "m", "max_tokens": 9, **body}).encode()
    )


# -- turns -----------------------------------------------------------------------------------------


def test_pitfall_06_parallel_results_are_one_turn_with_results_first() -> None:
    """However many messages they came in, and whatever stands between."""
    found = _said(
        _user("hi"), _assistant(_call("a"), _call("b")), _user("wait"), _user(_result("b")), _user(_result("a"), "now")
    )

    assert [turn["role"] for turn in found] == ["user", "assistant", "user"]
    assert [block.get("tool_use_id", block.get("text")) for block in found[2]["content"]] == ["b", "a", "wait", "now"]


def test_pitfall_09_openai_tool_is_written_as_anthropic_has_them() -> None:
    """A schema says that it is of an object."""
    tools = [_TOOL, Tool("bare"), Tool("untyped", b'""', b'{"properties":{}}'), Tool("null", None, b'{"type":null}')]

    found = _write(Request("m", [_user("hi")], tools=[*tools, Tool("empty", None, b"{ }", strict=True)]))["tools"]

    assert found[0] == {
        "name": "look",
        "description": "Looks.",
        "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    }
    assert found[1]["input_schema"] == {"type": "object", "properties": {}}
    assert found[2] == {"name": "untyped", "input_schema": {"type": "object", "properties": {}}}
    assert found[3]["input_schema"] == {"type": "object"}
    closed = {"type": "object", "additionalProperties": False}
    assert found[4] == {"name": "empty", "input_schema": closed, "strict": True}


def test_pitfall_09_schema_that_is_no_object_is_refused() -> None:
    """The API would say so with less words."""
    for schema in (b'{"type":"string"}', b'"text"', b"[]"):
        with pytest.raises(BadRequestError):
            _write(Request("m", [_user("hi")], tools=[Tool("t", None, schema)]))


def test_pitfall_10_signed_thinking_goes_back_as_it_came() -> None:
    """Text, signature and place."""
    body = {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm\u00fc", "signature": "EqQB"},
                    {"type": "redacted_thinking", "data": "Em4K"},
                    {"type": "text", "text": "yes"},
                ],
            },
            {"role": "user", "content": "more"},
        ]
    }

    found = _write(_read(body))["messages"]

    assert found[1] == body["messages"][1]


def test_pitfall_11_thinking_without_text_keeps_its_signature() -> None:
    """It is the usual form of newer models."""
    found = _said(_user("hi"), _assistant(Thinking(b'""', _OWN), "yes"), _user("more"))

    assert found[1]["content"][0] == {"type": "thinking", "thinking": "", "signature": "EqQB"}


def test_pitfall_14_signatures_of_others_are_dropped() -> None:
    """They would be a 400; so would reasoning that nobody signed."""
    dropped = DroppedFields()
    call = ToolUse("a", "look", b"{}", Signature("google", "x"))

    found = _said(
        _user("hi"),
        _assistant(Thinking(b'"hm"', Signature("openai", "x", "rs_1")), Thinking(b'"hm"'), call),
        _user(_result("a")),
        dropped=dropped,
    )

    assert [block["type"] for block in found[1]["content"]] == ["tool_use"]
    assert dropped.names == ("reasoning_signature",)


def test_pitfall_14_loop_of_another_provider_goes_on_without_a_budget() -> None:
    """With one, the API wants the reasoning before the last calls, which another provider signed."""
    dropped = DroppedFields()
    messages = [_user("hi"), _assistant(Thinking(b'"hm"', Signature("openai", "x")), _call("a")), _user(_result("a"))]
    request = Request("m", messages, reasoning=Reasoning("high"), max_tokens=9000)

    assert "thinking" not in _write(request, dropped, thinking="budget")
    assert "reasoning" in dropped.names
    assert _write(request, thinking="adaptive")["thinking"] == {"type": "adaptive"}
    signed = [_user("hi"), _assistant(Thinking(b'"hm"', _OWN), _call("a")), _user(_result("a"))]
    request = Request("m", signed, reasoning=Reasoning("high"), max_tokens=9000)
    assert _write(request, thinking="budget")["thinking"] == {"type": "enabled", "budget_tokens": 4096}


def test_pitfall_19_cache_marks_stay_where_they_are() -> None:
    """On tools, calls, results and texts, with their ttl."""
    mark, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    body = {
        "tools": [{"name": "look", "input_schema": {"type": "object"}, "cache_control": hour}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": hour}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}, "cache_control": mark}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "content": [{"type": "text", "text": "ok"}],
                        "cache_control": mark,
                    }
                ],
            },
        ],
    }

    found = _write(_read(body))

    assert {name: found[name] for name in body} == body


def test_pitfall_19_no_more_than_four_cache_marks() -> None:
    """The last ones reach furthest."""
    dropped = DroppedFields()
    mark = CacheMark()

    found = _said(_user(*(_text(str(n), mark) for n in range(6))), dropped=dropped)[0]["content"]

    assert [block["text"] for block in found if "cache_control" in block] == ["2", "3", "4", "5"]
    assert dropped.names == ("cache_control",)
    assert "cache_control" not in json.dumps(_said(_user(_text("a", mark)), cache_marks=False))


def test_pitfall_19_a_mark_on_a_blank_text_goes_to_the_block_before() -> None:
    """The text itself can't be sent."""
    found = _said(_user("long", _text(" ", CacheMark("1h"))))

    assert found[0]["content"] == [
        {"type": "text", "text": "long", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]


def test_pitfall_21_later_system_message_stays_in_place() -> None:
    """In front of the others it would break the prompt's cache."""
    found = _write(
        Request("m", [_system("a"), _system("b"), _user("hi"), _system("now c"), _assistant("d"), _user("e")])
    )

    assert [block["text"] for block in found["system"]] == ["a", "b"]
    assert [(turn["role"], [block["text"] for block in turn["content"]]) for turn in found["messages"]] == [
        ("user", ["hi", "now c"]),
        ("assistant", ["d"]),
        ("user", ["e"]),
    ]


def test_pitfall_22_blank_texts_are_dropped() -> None:
    """And the turns that had nothing else: their neighbours are one then."""
    found = _said(_user("a", ""), _assistant(" \n"), _user("b"), _assistant("c"), _user(_text("")), _user("d"))

    assert [[block["text"] for block in turn["content"]] for turn in found] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    "messages",
    [
        [_user("hi"), _assistant(_call("a")), _user("no result")],
        [_user("hi"), _assistant(_call("a"), _call("b")), _user(_result("a"))],
        [_user("hi"), _assistant(_call("a"))],
        [_user("hi"), _user(_result("a"))],
        [_user("hi"), _assistant(_call("a")), _user(_result("b"))],
        [],
        [_user(" ")],
    ],
)
def test_pitfall_22_calls_without_results_are_refused(messages: list[Message]) -> None:
    """With words, before anything is sent."""
    with pytest.raises(BadRequestError) as caught:
        _said(*messages)
    assert caught.value.param == "messages"


def test_pitfall_23_turns_alternate_and_the_user_begins() -> None:
    """Messages of one role are one turn; what the assistant says first answers something."""
    found = _said(_assistant("a"), _assistant("b"), _user("c"), _user("d"))

    assert [(turn["role"], len(turn["content"])) for turn in found] == [("user", 1), ("assistant", 2), ("user", 2)]
    only = _write(Request("m", [_system("a"), _system("b")]))
    assert [block["text"] for block in only["system"]] == ["a"]
    assert only["messages"] == [{"role": "user", "content": [{"type": "text", "text": "b"}]}]


def test_calls_without_ids_get_their_results_in_order() -> None:
    """Gemini's clients often have none."""
    first, second = ToolUse("", "one", b"{}"), ToolUse("", "two", b"{}")
    found = _said(
        _user("hi"),
        _assistant(first, second),
        _user(ToolResult("", [_text("2")], "two"), ToolResult("", [_text("1")], "one")),
    )

    ids = {block["name"]: block["id"] for block in found[1]["content"]}
    assert [block["tool_use_id"] for block in found[2]["content"]] == [ids["two"], ids["one"]]
    assert len(set(ids.values())) == 2


def test_ids_that_a_server_gave_again_are_made_unique_with_their_results() -> None:
    """Some give `call_0` in each turn, or to parallel calls; Anthropic answers 400 to two calls of one id."""

    def turns(n: int) -> list[Message]:
        found = [_user("hi")]
        for k in range(n):
            found += [
                _assistant(_call("call_0"), _call("call_1")),
                _user(_result("call_1", f"b{k}"), _result("call_0")),
            ]
        return found

    def ids(found: Any, kind: str, name: str) -> list[str]:
        return [block[name] for turn in found for block in turn["content"] if block["type"] == kind]

    found = _said(
        *turns(3), _assistant(_call("call_0_2"), _call("x"), _call("x")), _user(*map(_result, ["call_0_2", "x", "x"]))
    )

    calls = ids(found, "tool_use", "id")
    assert calls == ["call_0", "call_1", "call_0_2", "call_1_2", "call_0_3", "call_1_3", "call_0_2_2", "x", "x_2"]
    results = ids(found, "tool_result", "tool_use_id")
    assert results == ["call_1", "call_0", "call_1_2", "call_0_2", "call_1_3", "call_0_3", "call_0_2_2", "x", "x_2"]
    assert found[: 1 + 2 * 2] == _said(*turns(2))  # what a cache has of it


def test_result_of_a_call_of_an_earlier_turn_is_refused() -> None:
    """Though a call of now was given that id here."""
    messages = [_user("hi"), _assistant(_call("a")), _user(_result("a")), _assistant(_call("a")), _user(_result("b"))]

    with pytest.raises(BadRequestError, match="'b' has no tool call"):
        _said(*messages)


def test_many_calls_of_one_id_take_no_longer_than_others() -> None:
    """Each number is looked for from the last one on."""
    messages = [_user("hi")]
    for _ in range(2000):
        messages += [_assistant(_call("a")), _user(_result("a"))]

    found = _said(*messages)

    assert found[-1]["content"][0]["tool_use_id"] == found[-2]["content"][0]["id"] == "a_2000"


def test_prefill_is_refused_where_the_model_has_none() -> None:
    """Older models go on with it; trailing space would be a 400."""
    messages = [_user("hi"), _assistant("The answer is \n")]

    assert _said(*messages)[1]["content"][0]["text"] == "The answer is"
    with pytest.raises(BadRequestError, match="assistant"):
        _said(*messages, prefill=False)


# -- options ---------------------------------------------------------------------------------------


def _options(dropped: DroppedFields | None = None, /, *, facts: dict[str, Any] | None = None, **fields: Any) -> Any:
    found = _write(Request("m", [_user("hi")], **fields), dropped, **(facts or {}))
    return {name: value for name, value in found.items() if name not in ("messages", "model")}


def test_pitfall_24_blank_stops_are_dropped() -> None:
    """The API refuses them."""
    dropped = DroppedFields()

    assert _options(dropped, stop=["END", " ", ""])["stop_sequences"] == ["END"]
    assert dropped.names == ("stop",)
    assert "stop_sequences" not in _options(stop=["\n"])


@pytest.mark.parametrize(
    ("max_tokens", "budget"),
    [(None, 4096), (9000, 4096), (5000, 4096), (4096, 3072), (2000, 1024), (1025, 1024), (1024, None), (1, None)],
)
def test_pitfall_25_budget_stays_below_max_tokens(max_tokens: int | None, budget: int | None) -> None:
    """1024 at least; where there is no room, the model does not reason."""
    dropped = DroppedFields()
    facts = {"thinking": "budget", "max_output": 64_000}

    found = _options(dropped, facts=facts, reasoning=Reasoning("high"), max_tokens=max_tokens)

    assert found["max_tokens"] == (64_000 if max_tokens is None else max_tokens)
    assert found.get("thinking", {}).get("budget_tokens") == budget
    assert dropped.names == (() if budget else ("reasoning",))


def test_pitfall_25_max_tokens_is_always_there() -> None:
    """The API needs it; 0 warms the cache."""
    assert _options(facts={"max_output": 8192})["max_tokens"] == 8192
    assert _options(max_tokens=0)["max_tokens"] == 0


def test_pitfall_26_newer_models_get_neither_sampling_nor_a_budget() -> None:
    """Both would be a 400."""
    dropped = DroppedFields()
    facts = {"thinking": "adaptive", "sampling": False}

    found = _options(
        dropped, facts=facts, temperature=0.3, top_p=0.9, top_k=5, reasoning=Reasoning(budget_tokens=20_000)
    )

    assert found == {
        "max_tokens": 4096,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    }
    assert dropped.names == ("temperature", "top_p", "top_k")
    neutral = DroppedFields()
    assert "temperature" not in _options(neutral, facts=facts, temperature=1.0, top_p=1.0)
    assert neutral.names == ()


def test_fields_that_a_server_refuses_are_left_out_and_counted() -> None:
    """By their names here, or as a loss names them; others may be called otherwise."""
    wanted: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["x"],
        "user": "u",
        "tier": "default",
        "reasoning": Reasoning("low"),
    }
    refused = ("temperature", "top_k", "stop", "metadata", "service_tier", "thinking")
    dropped = DroppedFields()
    facts = {"refused": refused, "thinking": "adaptive"}

    found = _options(dropped, facts=facts, **wanted)

    assert found == {"max_tokens": 4096, "output_config": {"effort": "low"}}
    assert set(dropped.names) == {"temperature", "top_k", "stop", "user", "tier", "reasoning"}
    assert _options(facts={"renamed": (("top_k", "k"),)}, top_k=3)["k"] == 3


def test_sampling_of_older_models() -> None:
    """Up to 1, one of the two, and neither beside reasoning."""
    dropped = DroppedFields()

    assert _options(dropped, temperature=1.7)["temperature"] == 1.0
    assert dropped.names == ("temperature",)
    assert _options(temperature=0.25, top_k=3) == {"max_tokens": 4096, "temperature": 0.25, "top_k": 3}
    both = DroppedFields()
    assert "top_p" not in _options(both, temperature=0.25, top_p=0.5)
    assert both.names == ("top_p",)
    default = DroppedFields()
    assert _options(default, temperature=1, top_p=0.5) == {"max_tokens": 4096, "top_p": 0.5}
    assert _options(default, temperature=1, top_p=1) == {"max_tokens": 4096, "temperature": 1.0}
    assert default.names == ()
    thinking = DroppedFields()
    facts = {"thinking": "budget", "max_output": 8000}
    found = _options(thinking, facts=facts, temperature=0.5, top_p=0.5, top_k=1, reasoning=Reasoning("low"))
    assert not {"temperature", "top_p", "top_k"} & set(found)
    assert thinking.names == ("temperature", "top_p", "top_k")
    found = _options(facts=facts, top_p=0.96, reasoning=Reasoning("low"))
    assert found["top_p"] == 0.96


@pytest.mark.parametrize(
    ("reasoning", "way", "expected"),
    [
        (Reasoning("none"), "adaptive", {"thinking": {"type": "disabled"}}),
        (Reasoning(enabled=False), "budget", {"thinking": {"type": "disabled"}}),
        (Reasoning("none"), "none", {}),
        (Reasoning("low"), "adaptive", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        (Reasoning(enabled=True), "adaptive", {"thinking": {"type": "adaptive"}}),
        (
            Reasoning("max", summary="detailed"),
            "adaptive",
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "max"}},
        ),
        (Reasoning("high", summary="omitted"), "always", {"thinking": {"type": "adaptive", "display": "omitted"}}),
        (Reasoning("none"), "between_tools", {"thinking": {"type": "between_tools"}}),
        (Reasoning("max"), "between_tools", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}),
        (Reasoning(budget_tokens=3000), "budget", {"thinking": {"type": "enabled", "budget_tokens": 3000}}),
        (Reasoning(enabled=True), "budget", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
    ],
)
def test_reasoning_is_asked_for_as_the_model_wants(reasoning: Reasoning, way: str, expected: dict[str, Any]) -> None:
    """By effort or by tokens."""
    found = _options(facts={"thinking": way, "max_output": 64_000}, reasoning=reasoning)

    del found["max_tokens"]
    if way == "always":
        assert found.pop("output_config") == {"effort": "high"}
    assert found == expected


def test_what_has_no_counterpart_is_dropped() -> None:
    """Each is named; what says nothing is not."""
    dropped = DroppedFields()

    found = _options(
        dropped, seed=1, presence_penalty=0.5, frequency_penalty=0.5, tier="flex", cache_key="k", user="u" * 300
    )

    assert found == {"max_tokens": 4096}
    assert set(dropped.names) == {"seed", "presence_penalty", "frequency_penalty", "tier", "prompt_cache_key", "user"}
    silent = DroppedFields()
    assert _options(silent, presence_penalty=0.0, tier="default", user="u", stream=True) == {
        "max_tokens": 4096,
        "service_tier": "standard_only",
        "metadata": {"user_id": "u"},
        "stream": True,
    }
    assert silent.names == ()
    with pytest.raises(BadRequestError):
        _options(DroppedFields(strict=True), seed=1)


# -- tools -----------------------------------------------------------------------------------------


def _choice(choice: ToolChoice | None, dropped: DroppedFields | None = None, /, **fields: Any) -> Any:
    facts = fields.pop("facts", {})
    request = Request("m", [_user("hi")], tools=[_TOOL, Tool("other")], tool_choice=choice, **fields)
    return _write(request, dropped, **facts).get("tool_choice")


def test_tool_choice_is_written() -> None:
    """Each kind, and one call at a time."""
    assert _choice(None) is None
    assert _choice(ToolChoice(Choice.AUTO)) == {"type": "auto"}
    assert _choice(ToolChoice(Choice.NONE)) == {"type": "none"}
    assert _choice(ToolChoice(Choice.REQUIRED)) == {"type": "any"}
    assert _choice(ToolChoice(Choice.TOOL, "look")) == {"type": "tool", "name": "look"}
    assert _choice(None, parallel_tools=False) == {"type": "auto", "disable_parallel_tool_use": True}
    assert _choice(ToolChoice(Choice.NONE), parallel_tools=False) == {"type": "none"}
    with pytest.raises(BadRequestError) as caught:
        _choice(ToolChoice(Choice.TOOL, "absent"))
    assert caught.value.param == "tool_choice"


def test_allowed_tools_are_the_only_ones_that_are_sent() -> None:
    """There is no such choice; the meaning stays."""
    request = Request(
        "m", [_user("hi")], tools=[_TOOL, Tool("other")], tool_choice=ToolChoice(Choice.REQUIRED, allowed=("look",))
    )

    found = _write(request)

    assert [tool["name"] for tool in found["tools"]] == ["look"]
    assert found["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("facts", "effort"),
    [
        ({"thinking": "budget", "max_output": 9000}, "low"),
        ({"thinking": "always"}, ""),
        ({"thinking": "between_tools"}, ""),
        ({"thinking": "between_tools"}, "none"),
    ],
)
def test_forced_choice_is_auto_while_the_model_reasons(facts: dict[str, Any], effort: str) -> None:
    """A budget and a forced choice are a 400, and so it is for models that always reason."""
    dropped = DroppedFields()
    reasoning = Reasoning(effort) if effort else None

    found = _choice(ToolChoice(Choice.REQUIRED), dropped, facts={**facts, "forced_choice": False}, reasoning=reasoning)

    assert found == {"type": "auto"}
    assert dropped.names == ("tool_choice",)


def test_history_with_calls_declares_its_tools() -> None:
    """Some platforms refuse one without; none of them may be called."""
    found = _write(Request("m", [_user("hi"), _assistant(_call("a")), _user(_result("a"))]))

    assert [tool["name"] for tool in found["tools"]] == ["look"]
    assert found["tool_choice"] == {"type": "none"}


def test_pitfall_29_names_that_do_not_fit_are_mapped() -> None:
    """The same in tools, calls and choices, and they can be restored."""
    long, dotted = "x" * 100, "a.b/c"
    request = Request(
        "m",
        [_user("hi"), _assistant(_call("id:1", dotted)), _user(_result("id:1"))],
        tools=[Tool(long), Tool(dotted)],
        tool_choice=ToolChoice(Choice.TOOL, dotted),
    )

    written = MessagesModel(ModelFacts(), DroppedFields()).write(request, "claude")

    found = json.loads(written.body)
    names = [tool["name"] for tool in found["tools"]]
    assert [written.names[name] for name in names] == [long, dotted]
    assert all(len(name) <= 64 for name in names)
    call, result = found["messages"][1]["content"][0], found["messages"][2]["content"][0]
    assert found["tool_choice"]["name"] == call["name"] == names[1]
    assert call["id"] == result["tool_use_id"]
    assert written.ids[call["id"]] == "id:1"


# -- forms of the answer ------------------------------------------------------------------------------


def test_schema_of_the_answer_is_fitted() -> None:
    """What the API refuses goes into descriptions; every object is closed."""
    schema = {
        "$schema": "x",
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "A number"},
            "m": {"oneOf": [{"type": "null"}]},
        },
    }

    found = _options(format=Format(json.dumps(schema).encode(), "answer"))["output_config"]["format"]

    assert found == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": "A number\n\n{minimum: 1}"},
                "m": {"anyOf": [{"type": "null"}]},
            },
            "additionalProperties": False,
        },
    }


def test_schema_that_fits_is_not_changed() -> None:
    """Not in its bytes either."""
    schema = b'{ "type":"object","properties":{}, "additionalProperties":false }'

    written = MessagesModel(ModelFacts(), DroppedFields()).write(
        Request("m", [_user("hi")], format=Format(schema)), "claude"
    )

    assert schema in written.body


def test_schema_of_a_strict_tool_is_fitted() -> None:
    """The API refuses the same keywords there. Other tools may have them; models without schemas get no `strict`."""
    schema = b'{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}'
    tools = [Tool("a", None, schema, strict=True), Tool("b", None, schema)]
    dropped = DroppedFields()

    strict, usual = _write(Request("m", [_user("hi")], tools=tools))["tools"]
    older = _write(Request("m", [_user("hi")], tools=tools), dropped, json_schema=False)["tools"]

    n = {"type": "integer", "description": "{minimum: 1}"}
    assert strict["input_schema"] == {"type": "object", "properties": {"n": n}, "additionalProperties": False}
    assert strict["strict"] is True
    assert [tool["input_schema"] for tool in (usual, *older)] == [json.loads(schema)] * 3
    assert "strict" not in older[0]
    assert dropped.names == ("strict",)


def test_schema_of_a_strict_tool_that_is_too_deep_is_refused_by_its_place() -> None:
    """And not as that of the answer."""
    schema = b'{"items":' * 101 + b"{}" + b"}" * 101

    with pytest.raises(BadRequestError, match="deep") as caught:
        _write(Request("m", [_user("hi")], tools=[Tool("a", None, schema, strict=True)]))

    assert caught.value.param == "tools"


@pytest.mark.parametrize("form", [Format(), Format(b'{"type":"object","properties":{"a":{}}}')])
def test_older_models_answer_in_json_through_a_tool(form: Format) -> None:
    """Its input is the text of the answer, plain and streamed."""
    model = MessagesModel(ModelFacts(json_schema=False), DroppedFields())

    found = json.loads(model.write(Request("m", [_user("hi")], format=form), "claude").body)

    assert found["tool_choice"] == {"type": "tool", "name": "json_answer"}
    assert found["tools"][0]["input_schema"]["type"] == "object"
    block = {"type": "tool_use", "id": "toolu_1", "name": "json_answer", "input": {"a": "\u00fc"}}
    reply = {"id": "msg_1", "model": "claude", "content": [block], "stop_reason": "tool_use"}
    answer = model.answer(json.dumps(reply, ensure_ascii=False).encode())
    assert isinstance(answer.blocks[0], Text)
    assert json.loads(json.loads(answer.blocks[0].text)) == {"a": "\u00fc"}
    assert answer.stop.reason.value == "end"


def test_json_tool_stands_beside_the_clients_tools() -> None:
    """The model answers with it, or calls one of the others."""
    request = Request("m", [_user("hi")], tools=[Tool("json_answer")], format=Format())

    found = _write(request)

    assert [tool["name"] for tool in found["tools"]] == ["json_answer", "json_answer_"]
    assert found["tool_choice"] == {"type": "any"}


# -- media -----------------------------------------------------------------------------------------


def test_media_are_written() -> None:
    """Data, URLs, own files; text documents as text."""
    found = _said(
        _user(
            Image(Media(MediaKind.DATA, "AAAA", "image/jpg")),
            Image(Media(MediaKind.URL, "https://x/y.png")),
            Document(Media(MediaKind.DATA, "AAAA", "application/pdf"), "a.pdf", b'"context"', True),
            Document(Media(MediaKind.DATA, "w7w=", "text/markdown")),
            Document(Media(MediaKind.ID, "file_011")),
            Document(Media(MediaKind.DATA, "AAAA", "image/png")),
        )
    )[0]["content"]

    assert [block["source"] for block in found] == [
        {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"},
        {"type": "url", "url": "https://x/y.png"},
        {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
        {"type": "text", "media_type": "text/plain", "data": "\u00fc"},
        {"type": "file", "file_id": "file_011"},
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    ]
    assert (found[2]["title"], found[2]["context"], found[2]["citations"]) == ("a.pdf", "context", {"enabled": True})


@pytest.mark.parametrize(
    "block",
    [
        Image(Media(MediaKind.URL, "gs://a/b.png")),
        Image(Media(MediaKind.DATA, "AAAA", "image/tiff")),
        Document(Media(MediaKind.ID, "file-openai")),
        Document(Media(MediaKind.DATA, "AAAA", "application/msword")),
        Document(Media(MediaKind.DATA, "%%%", "text/plain")),
    ],
)
def test_pitfall_27_media_that_can_not_be_sent_are_refused(block: Any) -> None:
    """Nothing is left out that the answer depends on."""
    with pytest.raises(BadRequestError):
        _said(_user(block))


def test_pitfall_28_results_may_hold_images_and_errors() -> None:
    """Anthropic takes both."""
    result = ToolResult(
        "a", [_text("see"), Image(Media(MediaKind.DATA, "AAAA", "image/png")), _text(" ")], is_error=True
    )

    found = _said(
        _user("hi"),
        _assistant(_call("a")),
        _user(
            result,
        ),
    )[2]["content"][0]

    assert [part["type"] for part in found["content"]] == ["text", "image"]
    assert found["is_error"] is True


def test_refusals_in_a_history_are_texts() -> None:
    """They are the model's words."""
    assert _said(_user("hi"), _assistant(Refusal(b'"no"')), _user("why"))[1]["content"] == [
        {"type": "text", "text": "no"}
    ]


# -- Claude Code's requests ----------------------------------------------------------------------------


def test_claude_code_request_is_read() -> None:
    """As it sends them: system blocks with marks, tools, metadata, reasoning, betas' fields."""
    dropped = DroppedFields()
    request = _read(
        {
            "system": [
                {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "More.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
            ],
            "tools": [
                {"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            ],
            "metadata": {"user_id": "user_1"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            "betas": ["claude-code-20250219"],
            "stream": True,
        },
        dropped,
    )

    assert request.messages[0].role is Role.SYSTEM
    assert [block.cache for block in request.messages[0].blocks if isinstance(block, Text)] == [
        CacheMark(),
        CacheMark("1h"),
    ]
    assert [tool.name for tool in request.tools] == ["Bash"]
    assert request.reasoning == Reasoning("medium", enabled=True)
    assert (request.user, request.stream, request.max_tokens) == ("user_1", True, 9)
    assert dropped.names == ("context_management", "server_tools")


def test_thinking_between_tools_is_read_as_off() -> None:
    """As Claude has it that can't be told "disabled"; other models have nothing nearer."""
    asked = {"thinking": {"type": "between_tools"}, "messages": [{"role": "user", "content": "hi"}]}

    assert _read(asked).reasoning == Reasoning(enabled=False)


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("bash_20250124", "bash", "command restart"),
        ("text_editor_20250124", "str_replace_editor", "command path view_range file_text old_str insert_line new_str"),
        (
            *("text_editor_20250728", "str_replace_based_edit_tool"),
            "command path view_range file_text old_str insert_line new_str insert_text",
        ),
        (
            *("memory_20250818", "memory"),
            "command path view_range file_text old_str insert_line new_str insert_text old_path new_path",
        ),
    ],
)
def test_tools_that_the_client_runs_are_functions(kind: str, name: str, arguments: str) -> None:
    """Their schemas are Anthropic's, and no field of the request. A choice of one stays."""
    dropped = DroppedFields(strict=True)
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    tools = [{"type": kind, "name": name, "cache_control": {"type": "ephemeral"}, "max_characters": 10_000}]
    choice = {"type": "tool", "name": name}

    request = MessagesClient(_CALL, dropped).read(json.dumps({**body, "tools": tools, "tool_choice": choice}).encode())

    (tool,) = request.tools
    schema = json.loads(tool.parameters or b"")
    assert (tool.name, request.tool_choice) == (name, ToolChoice(Choice.TOOL, name))
    assert [*schema["properties"]] == arguments.split() and tool.description and tool.cache
    assert ("undo_edit" in schema["properties"]["command"].get("enum", ())) is (kind == "text_editor_20250124")


def test_note_of_claude_code_for_anthropic_is_no_part_of_the_prompt() -> None:
    """It is another one in each request, and comes first: no cache would find what follows again."""
    note = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"}
    you = {"type": "text", "text": "You are Claude Code"}
    dropped = DroppedFields()

    request = _read({"system": [note, you], "messages": [{"role": "user", "content": "a"}]}, dropped)
    assert request.messages[0].blocks == [Text(b'"You are Claude Code"')]
    assert _read({"system": [note], "messages": [{"role": "user", "content": "a"}]}).messages[0].role is Role.USER
    assert dropped.names == ()


def test_blocks_of_fallbacks_and_listings_refuse_no_conversation() -> None:
    """They are in what Claude answered once, and stay in the history: another model is asked without them."""
    hop = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    listing = {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}
    call = {"type": "tool_use", "id": "t", "name": "click", "input": {}}
    state = {"type": "browser_state", "tabs": []}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}, state]}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [hop, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    dropped = DroppedFields()

    request = _read({"model": "m", "messages": messages}, dropped)
    assert request.messages[1].blocks == [Text(b'"b"')]
    assert dropped.names == ()

    messages += [{"role": "assistant", "content": [listing, call]}, {"role": "user", "content": [result]}]
    request = _read({"model": "m", "messages": messages}, dropped)
    assert request.messages[3].blocks == [ToolUse("t", "click", b"{}")]
    assert request.messages[4].blocks == [ToolResult("t", [Text(b'"ok"')])]
    assert dropped.names == ("server_tools",)


def test_thinking_between_tools_is_off() -> None:
    """It is a kind of `disabled` that only some Claudes have."""
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "thinking": {"type": "between_tools"}}

    assert _read(body).reasoning == Reasoning(enabled=False)


def test_server_tools_and_their_blocks_are_dropped() -> None:
    """Anthropic runs them."""
    dropped = DroppedFields()
    request = _read(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                        {"type": "text", "text": "found", "citations": [{"type": "x"}]},
                    ],
                },
                {"role": "user", "content": "and?"},
            ],
            "tools": [{"type": "code_execution_20250825", "name": "code_execution"}],
        },
        dropped,
    )

    assert [type(block) for block in request.messages[1].blocks] == [Text]
    assert (request.tools, request.tool_choice) == ([], None)
    assert dropped.names == ("server_tools",)


def test_unknown_fields_are_dropped_and_counted() -> None:
    """Of whatever name: the list of dropped fields is closed."""
    dropped = DroppedFields()

    _read({"messages": [{"role": "user", "content": "hi", "new": 1}], "brand_new": {"a": 1}}, dropped)

    assert dropped.names == ("unknown",)


def _one(block: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [block]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
            "messages[0].content[0].source.url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].text",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]}
                ]
            },
            "messages[0].content[0].input",
        ),
        ({"messages": [], "tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"messages": [], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"messages": [], "thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"messages": [], "container": "container_1"}, "container"),
        ({"messages": [], "max_tokens": "9"}, "max_tokens"),
        ({"messages": [], "output_config": {"format": {"type": "text"}}}, "output_config.format"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    """With the path that the client would write."""
    with pytest.raises(BadRequestError) as caught:
        _read(fields)
    assert caught.value.param == param


def test_signature_of_another_provider_is_read_with_its_tag() -> None:
    """Reasoning of OpenAI's; Google's of calls and texts, which stand in blocks of their own."""

    def thinking(signature: Signature, text: str = "") -> dict[str, str]:
        return {"type": "thinking", "thinking": text, "signature": tagged(signature)}

    content = [
        thinking(Signature("openai", "enc", "rs_1"), "hm"),
        thinking(Signature("google", "AAA=", "call_1")),
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {}},
        thinking(Signature("google", "BBB=")),
        {"type": "redacted_thinking", "data": tagged(_OWN, is_redacted=True)},
    ]

    blocks = _read({"messages": [{"role": "assistant", "content": content}]}).messages[0].blocks

    assert blocks == [
        Thinking(b'"hm"', Signature("openai", "enc", "rs_1")),
        ToolUse("call_1", "look", b"{}", Signature("google", "AAA=")),
        Text(b'""', signature=Signature("google", "BBB=")),
        Thinking(b'""', _OWN, is_redacted=True),
    ]
