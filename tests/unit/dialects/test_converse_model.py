"""Converse as a model's API: requests that the service takes, its answers and errors read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import Exchange, recorded
from tests.unit.dialects.converse_shapes import request_faults
from tests.vendors import converse
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    Audio,
    Block,
    CacheMark,
    Choice,
    Document,
    ErrorKind,
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
    Stop,
    StopReason,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    Usage,
    Written,
)
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.converse.write_request import is_claude
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.tools.claude_schema import fitted_schema
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

CLAUDE = ModelFacts(thinking="budget", forced_choice=False)
ADAPTIVE = ModelFacts(thinking="adaptive", forced_choice=False)
PLAIN = ModelFacts(thinking="none")


def text(words: str, cache: CacheMark | None = None) -> Text:
    return Text(json.dumps(words).encode(), cache)


def user(*blocks: Block | str) -> Message:
    return Message(Role.USER, [text(each) if isinstance(each, str) else each for each in blocks])


def assistant(*blocks: Block | str) -> Message:
    return Message(Role.ASSISTANT, [text(each) if isinstance(each, str) else each for each in blocks])


def system(*blocks: Block | str) -> Message:
    return Message(Role.SYSTEM, [text(each) if isinstance(each, str) else each for each in blocks])


def written(
    *messages: Message, facts: ModelFacts = PLAIN, dropped: DroppedFields | None = None, **fields: Any
) -> tuple[Any, Written]:
    """Write a request; return its JSON, in which the service would find no fault."""
    request = Request(model="m", messages=list(messages), **fields)
    found = ConverseModel(facts, dropped or DroppedFields()).write(request, "m")
    assert request_faults(found.body, is_claude=is_claude(facts)) == []
    return json.loads(found.body), found


def dropped(*messages: Message, facts: ModelFacts = PLAIN, **fields: Any) -> tuple[str, ...]:
    dropped = DroppedFields()
    written(*messages, facts=facts, dropped=dropped, **fields)
    return dropped.names


def refused(*messages: Message, facts: ModelFacts = PLAIN, **fields: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        written(*messages, facts=facts, **fields)
    return caught.value


# -- recorded requests ----------------------------------------------------------------------------------

# What other dialects can't say, a format that is none of the service's, and the one request whose body was cut.
_UNSAID = ("guardrailConfig", "video/mp4", "systemTool", "server_tool_use", "reasoning_config", "requestMetadata")
_REQUESTS = [
    each
    for each in recorded("bedrock", "/converse", status=None)
    if not any(word in each.body.decode() for word in _UNSAID)
]


def _form(body: Any) -> Request:
    """Read a request as Converse writes it: only so are recorded ones canonical requests."""
    config = body.get("inferenceConfig", {})
    thinking = body.get("additionalModelRequestFields", {})
    reasoning = None
    if "thinking" in thinking:
        budget = thinking["thinking"].get("budget_tokens")
        reasoning = Reasoning(thinking.get("output_config", {}).get("effort"), budget, None if budget else True)
    tools: list[Tool] = []
    for each in body.get("toolConfig", {}).get("tools", []):
        if "cachePoint" in each:
            tools[-1].cache = CacheMark()
            continue
        spec = each["toolSpec"]
        description = json.dumps(spec["description"]).encode() if "description" in spec else None
        schema = json.dumps(spec["inputSchema"]["json"]).encode()
        tools.append(Tool(spec["name"], description, schema, spec.get("strict")))
    choice = None
    match body.get("toolConfig", {}).get("toolChoice"):
        case {"auto": _}:
            choice = ToolChoice(Choice.AUTO)
        case {"any": _}:
            choice = ToolChoice(Choice.REQUIRED)
        case {"tool": {"name": name}}:
            choice = ToolChoice(Choice.TOOL, name)
    form = None
    if "outputConfig" in body:
        schema = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
        description = json.dumps(schema["description"]).encode() if "description" in schema else None
        form = Format(schema["schema"].encode(), schema["name"], description)
    messages = [Message(Role.SYSTEM, _blocks(body["system"]))] if body.get("system") else []
    messages += [Message(Role(each["role"]), _blocks(each["content"])) for each in body["messages"]]
    return Request(
        "m",
        messages,
        tools=tools,
        tool_choice=choice,
        max_tokens=config.get("maxTokens"),
        temperature=config.get("temperature"),
        top_p=config.get("topP"),
        stop=config.get("stopSequences", []),
        format=form,
        reasoning=reasoning,
    )


def _blocks(content: list[Any]) -> list[Block]:
    blocks: list[Block] = []
    for each in content:
        match each:
            case {"text": words}:
                blocks.append(text(words))
            case {"cachePoint": mark}:
                last = blocks[-1]
                assert isinstance(last, Text | Document)
                last.cache = CacheMark(mark.get("ttl"))
            case {"toolUse": call}:
                blocks.append(ToolUse(call["toolUseId"], call["name"], json.dumps(call["input"]).encode()))
            case {"toolResult": result}:
                parts = _blocks(result["content"])
                blocks.append(ToolResult(result["toolUseId"], parts, is_error=result.get("status") == "error"))  # type: ignore[arg-type]
            case {"document": document}:
                source = Media(MediaKind.DATA, document["source"]["bytes"], f"x/{document['format']}")
                blocks.append(Document(source, document["name"]))
            case {"reasoningContent": {"reasoningText": said}}:
                signature = Signature("anthropic", said["signature"])
                blocks.append(Thinking(json.dumps(said["text"]).encode(), signature))
            case _:
                raise AssertionError(each)
    return blocks


def _without_defaults(body: Any) -> Any:
    for message in body["messages"]:
        for block in message["content"]:
            result = block.get("toolResult", {})
            if result.get("status") == "success":
                del result["status"]
    if body.get("system") == []:
        del body["system"]
    if body.get("inferenceConfig") == {}:
        del body["inferenceConfig"]
    body.pop("additionalModelResponseFieldPaths", None)
    if "outputConfig" in body:
        # Anthropic's own API refuses `minLength`, which the service took for Claude once: it stands in a description.
        definition = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
        definition["schema"] = json.loads(fitted_schema(definition["schema"].encode()))
    # A blank text, and with it the mark that stands behind another one: many models refuse it.
    for message in body["messages"]:
        content = message["content"]
        kept = [block for block in content if block.get("text", "x").strip()]
        message["content"] = [
            block for n, block in enumerate(kept) if len(kept) == len(content) or n == 0 or block != kept[n - 1]
        ]
    return body


@pytest.mark.parametrize("exchange", _REQUESTS, ids=str)
def test_recorded_request_is_written_as_it_was(exchange: Exchange) -> None:
    recorded_body = exchange.json
    facts = PLAIN
    if "anthropic" in exchange.url:
        is_adaptive = b'"adaptive"' in exchange.body
        facts = ADAPTIVE if is_adaptive else CLAUDE
    dropped = DroppedFields()

    found = ConverseModel(facts, dropped).write(_form(recorded_body), "m")

    assert _without_defaults(json.loads(found.body)) == _without_defaults(recorded_body)
    assert request_faults(found.body, is_claude="anthropic" in exchange.url) == []
    assert dropped.names == () and found.names == {} and found.ids == {}


# -- requests -------------------------------------------------------------------------------------------


def test_text_stays_as_it_stood() -> None:
    raw = b'"\\u00fc \\/ \\ud83d\\ude00 \xc3\xbc"'
    request = Request("m", [Message(Role.USER, [Text(raw)])])

    assert raw in ConverseModel(PLAIN, DroppedFields()).write(request, "m").body


def test_system_at_the_start_has_blocks_of_its_own() -> None:
    body, _ = written(system(text("a", CacheMark()), "b", " "), system(text("c", CacheMark("1h"))), user("x"))

    assert body["system"] == [
        {"text": "a"},
        {"cachePoint": {"type": "default"}},
        {"text": "b"},
        {"text": "c"},
        {"cachePoint": {"type": "default", "ttl": "1h"}},
    ]


def test_pitfall_21_later_system_stays_in_place() -> None:
    """21: hoisting it would change the start of the prompt, which caches go by."""
    body, _ = written(system("s"), user("a"), assistant("b"), user("c"), system("later"), user("d"))

    assert body["system"] == [{"text": "s"}]
    assert body["messages"][-1] == {"role": "user", "content": [{"text": "c"}, {"text": "later"}, {"text": "d"}]}


def test_pitfall_22_empty_text_is_dropped() -> None:
    """22: "text field is blank" is a 400."""
    body, _ = written(user("", "a", " \n"), assistant(""), user("b"))

    assert body["messages"] == [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]


def test_pitfall_22_call_without_result_is_refused_clearly() -> None:
    """22: the service's own words don't say which."""
    error = refused(user("a"), assistant(ToolUse("t1", "f", b"{}"), ToolUse("t2", "g", b"{}")), user("b"))
    assert error.param == "messages[1]" and "'f' has no result" in error.message

    error = refused(
        user("a"),
        assistant(ToolUse("t1", "f", b"{}"), ToolUse("t2", "g", b"{}")),
        user(ToolResult("t1", [])),
        assistant("x"),
    )
    assert error.param == "messages[1]" and "'g' has no result" in error.message

    error = refused(user("a"), assistant("b"), user(ToolResult("t9", [text("r")])))
    assert error.param == "messages[2].content[0]" and "'t9'" in error.message


def test_pitfall_23_same_role_turns_are_one_and_the_user_begins() -> None:
    """23: roles must alternate, and the first is the user's."""
    body, _ = written(assistant("a"), assistant("b"), user("c"), user("d"))
    assert body["messages"] == [
        {"role": "user", "content": [{"text": "."}]},
        {"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]},
        {"role": "user", "content": [{"text": "c"}, {"text": "d"}]},
    ]

    body, _ = written(system("only"))
    assert body["messages"] == [{"role": "user", "content": [{"text": "."}]}]


def test_pitfall_06_parallel_results_are_one_turn_with_results_first() -> None:
    """6: each in a message of its own is a 400."""
    calls = assistant("x", ToolUse("t1", "f", b'{"a": 1}'), ToolUse("t2", "f", b""))
    body, _ = written(
        user("a"), calls, user("and"), user(ToolResult("t1", [text("one")])), user(ToolResult("t2", [], is_error=True))
    )

    assert body["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "t1", "content": [{"text": "one"}]}},
        {"toolResult": {"toolUseId": "t2", "content": [{"text": "."}], "status": "error"}},
        {"text": "and"},
    ]
    assert body["messages"][1]["content"][1]["toolUse"]["input"] == {"a": 1}
    assert body["messages"][1]["content"][2]["toolUse"]["input"] == {}


@pytest.mark.parametrize("behind", ["text", "picture"])
def test_what_stands_behind_results_is_a_turn_of_its_own_where_the_model_wants_that(behind: str) -> None:
    """A turn of Llama's has results or other blocks; a short one of the assistant's goes between."""
    model = "us.meta.llama4-maverick-17b-instruct-v1:0"
    picture = Image(Media(MediaKind.DATA, base64.b64encode(b"png").decode(), "image/png"))
    tools = [Tool("f")]

    def request(name: str) -> dict[str, Any]:
        body, _ = written(
            user("a"),
            assistant(ToolUse("t", "f", b"{}")),
            user(ToolResult("t", [text("see")])),
            user("and" if behind == "text" else picture),
            facts=facts_of(PROVIDERS["bedrock"], name),
            tools=tools,
        )
        return body

    body = request(model)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert list(converse.problems(body, model)) == []
    assert len(request("us.amazon.nova-pro-v1:0")["messages"]) == 3, "it takes both"


def test_calls_without_ids_go_by_their_names_in_order() -> None:
    body, found = written(
        user("a"),
        assistant(ToolUse("", "f", b"{}"), ToolUse("", "g", b"{}"), ToolUse("", "f", b"{}")),
        user(ToolResult("", [text("1")], "f"), ToolResult("", [text("2")], "f"), ToolResult("", [text("3")], "g")),
    )

    calls = [block["toolUse"]["toolUseId"] for block in body["messages"][1]["content"]]
    results = [block["toolResult"]["toolUseId"] for block in body["messages"][2]["content"]]
    assert len(set(calls)) == 3 and results == [calls[0], calls[2], calls[1]]
    assert found.ids == {}


def test_ids_that_a_server_gave_again_are_made_unique_with_their_results() -> None:
    """Some give `call_0` in each turn, or to parallel calls. Ids stay as long as the service takes them."""
    long = "i" * 64
    said: list[Message] = [user("a")]
    for _ in range(2):
        said += [
            assistant(ToolUse("call_0", "f", b"{}"), ToolUse(long, "g", b"{}"), ToolUse("call_0", "h", b"{}")),
            user(*(ToolResult(each, [text(each)]) for each in ("call_0", long, "call_0"))),
        ]

    body, _ = written(*said)

    calls = [part["toolUse"]["toolUseId"] for n in (1, 3) for part in body["messages"][n]["content"]]
    results = [part["toolResult"]["toolUseId"] for n in (2, 4) for part in body["messages"][n]["content"]]
    assert calls == results
    assert calls[:4] == ["call_0", long, "call_0_2", "call_0_3"] and calls[5] == "call_0_4"
    assert len(set(calls)) == 6 and len(calls[4]) <= 64


def test_pitfall_24_blank_stops_are_left_out() -> None:
    """24: "stop_sequences: each must contain non-whitespace"."""
    dropped = DroppedFields()
    body, _ = written(user("a"), dropped=dropped, stop=["", " ", "\n", "END"])

    assert body["inferenceConfig"] == {"stopSequences": ["END"]} and dropped.names == ("stop",)


def test_pitfall_25_max_tokens_absent_or_not_over_the_budget() -> None:
    """25: 1024 <= budget < max_tokens; nothing is needed where none is said."""
    asked = Reasoning(effort="high")
    body, _ = written(user("a"), facts=CLAUDE, reasoning=asked)
    assert body["additionalModelRequestFields"]["thinking"] == {"type": "enabled", "budget_tokens": 4096}
    assert "inferenceConfig" not in body

    body, _ = written(user("a"), facts=CLAUDE, reasoning=asked, max_tokens=2000)
    assert body["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 1999

    body, _ = written(user("a"), facts=CLAUDE, reasoning=Reasoning(budget_tokens=100))
    assert body["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 1024

    dropped = DroppedFields()
    body, _ = written(user("a"), facts=CLAUDE, dropped=dropped, reasoning=asked, max_tokens=1024)
    assert "additionalModelRequestFields" not in body and dropped.names == ("reasoning_effort",)

    dropped = DroppedFields()
    body, _ = written(user("a"), dropped=dropped, max_tokens=0)
    assert body["inferenceConfig"] == {"maxTokens": 1} and dropped.names == ("max_tokens",)


def test_pitfall_26_sampling_and_budget_where_the_model_refuses_them() -> None:
    """26: newer models answer 400 to temperature, top_p, top_k, and to a budget."""
    facts = ModelFacts(thinking="adaptive", sampling=False)
    dropped = DroppedFields()
    body, _ = written(
        user("a"),
        facts=facts,
        dropped=dropped,
        temperature=0.5,
        top_p=0.5,
        top_k=5,
        reasoning=Reasoning(budget_tokens=3000),
    )

    assert "inferenceConfig" not in body
    assert body["additionalModelRequestFields"] == {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
    }
    assert dropped.names == ("temperature", "top_p", "top_k")


def test_sampling_fits_the_service_and_thinking() -> None:
    body, _ = written(user("a"), temperature=0.5, top_p=0.25, top_k=5, max_tokens=10)
    assert body["inferenceConfig"] == {"maxTokens": 10, "temperature": 0.5, "topP": 0.25}
    assert body["additionalModelRequestFields"] == {"top_k": 5}

    dropped = DroppedFields()
    body, _ = written(user("a"), dropped=dropped, temperature=1.7)
    assert body["inferenceConfig"] == {"temperature": 1.0} and dropped.names == ("temperature",)

    body, _ = written(
        user("a"), facts=ModelFacts(sampling=False), dropped=DroppedFields(strict=True), temperature=1.0, top_p=1
    )
    assert "inferenceConfig" not in body
    dropped = DroppedFields()
    body, _ = written(user("a"), facts=CLAUDE, dropped=dropped, temperature=0.5, top_p=0.5)
    assert body["inferenceConfig"] == {"temperature": 0.5} and dropped.names == ("top_p",)
    for top_p in (0.5, 1.0):
        body, _ = written(user("a"), facts=CLAUDE, dropped=DroppedFields(strict=True), temperature=1.0, top_p=top_p)
        assert body["inferenceConfig"] == {"topP": top_p}
    body, _ = written(user("a"), temperature=1.0, top_p=0.5)
    assert body["inferenceConfig"] == {"temperature": 1.0, "topP": 0.5}

    dropped = DroppedFields()
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 5, "reasoning": Reasoning(enabled=True)}
    body, _ = written(user("a"), facts=CLAUDE, dropped=dropped, **settings)
    assert body["inferenceConfig"] == {"topP": 0.95} and dropped.names == ("top_k",)


@pytest.mark.parametrize(
    ("facts", "asked", "fields"),
    [
        (ADAPTIVE, Reasoning(None, 500), {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        (ADAPTIVE, Reasoning(effort="xhigh"), {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}),
        (
            ADAPTIVE,
            Reasoning(enabled=True, summary="auto"),
            {"thinking": {"type": "adaptive", "display": "summarized"}},
        ),
        (ADAPTIVE, Reasoning(enabled=False), {"thinking": {"type": "disabled"}}),
        (CLAUDE, Reasoning(effort="none"), None),
        (CLAUDE, Reasoning(enabled=True), {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (ModelFacts(thinking="reasoning_effort"), Reasoning(effort="high"), {"reasoning_effort": "high"}),
        (ModelFacts(thinking="reasoning_config"), Reasoning(effort="low"), {"reasoning_config": "low"}),
        (
            ModelFacts(thinking="nova"),
            Reasoning(effort="medium"),
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}},
        ),
    ],
)
def test_reasoning_is_asked_for_as_the_model_takes_it(facts: ModelFacts, asked: Reasoning, fields: Any) -> None:
    dropped = DroppedFields()
    body, _ = written(user("a"), facts=facts, dropped=dropped, reasoning=asked)

    assert body.get("additionalModelRequestFields") == fields and dropped.names == ()


def test_nova_takes_no_limits_at_its_highest_effort() -> None:
    """Its service answers 400 to maxTokens, temperature and topP then."""
    facts = ModelFacts(thinking="nova", efforts=("low", "medium", "high"))
    for effort, taken, lost in (
        ("medium", {"maxTokens": 9, "temperature": 1.0, "topP": 0.5, "stopSequences": ["x"]}, ()),
        ("high", {"stopSequences": ["x"]}, ("max_tokens", "temperature", "top_p")),
    ):
        dropped = DroppedFields()
        options: dict[str, Any] = {"max_tokens": 9, "temperature": 1.0, "top_p": 0.5, "stop": ["x"]}
        body, _ = written(user("a"), facts=facts, dropped=dropped, reasoning=Reasoning(effort=effort), **options)
        assert body["inferenceConfig"] == taken and dropped.names == lost


def test_model_that_always_thinks_is_not_told_to_stop() -> None:
    """Its service answers 400 to that, and to a forced choice."""
    facts, tools = ModelFacts(thinking="always", forced_choice=False), [Tool("f")]
    forced = ToolChoice(Choice.REQUIRED)
    dropped = DroppedFields()
    body, _ = written(user("a"), facts=facts, dropped=dropped, tools=tools, tool_choice=forced)
    assert body["toolConfig"]["toolChoice"] == {"auto": {}} and dropped.names == ("tool_choice",)

    dropped = DroppedFields()
    body, _ = written(user("a"), facts=facts, dropped=dropped, reasoning=Reasoning(enabled=False), temperature=0.5)
    assert "additionalModelRequestFields" not in body and dropped.names == ("reasoning_effort", "temperature")
    body, _ = written(user("a"), facts=facts, reasoning=Reasoning(effort="low"))
    assert body["additionalModelRequestFields"]["output_config"] == {"effort": "low"}


def test_model_that_thinks_between_tools_is_told_so_in_place_of_off() -> None:
    """Its service answers 400 to "disabled", and to a forced choice in any case."""
    facts, tools = ModelFacts(thinking="between_tools", forced_choice=False), [Tool("f")]
    for asked, fields in (
        (None, None),
        (Reasoning(effort="none"), {"thinking": {"type": "between_tools"}}),
        (Reasoning(effort="max"), {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}),
    ):
        dropped = DroppedFields()
        forced = ToolChoice(Choice.REQUIRED)
        body, _ = written(user("a"), facts=facts, dropped=dropped, tools=tools, tool_choice=forced, reasoning=asked)
        assert body.get("additionalModelRequestFields") == fields
        assert body["toolConfig"]["toolChoice"] == {"auto": {}} and dropped.names == ("tool_choice",)


def test_reasoning_is_dropped_where_the_model_has_none() -> None:
    assert dropped(user("a"), reasoning=Reasoning(effort="low")) == ("reasoning_effort",)
    assert dropped(user("a"), reasoning=Reasoning(effort="none")) == ()


def test_pitfall_14_foreign_and_missing_signatures_are_left_out() -> None:
    """14: a signature of another provider is a 400; so is unsigned thinking."""
    mine, theirs = Signature("anthropic", "sig"), Signature("google", "g")
    message = assistant(
        Thinking(b'"a"', mine),
        Thinking(b'""', mine),
        Thinking(b'""', Signature("anthropic", "cmVk"), is_redacted=True),
        Thinking(b'""', Signature("anthropic", "no base64!"), is_redacted=True),
        Thinking(b'"b"', theirs),
        Thinking(b'"c"', None),
        "x",
    )
    dropped = DroppedFields()
    body, _ = written(user("q"), message, user("r"), facts=CLAUDE, dropped=dropped)
    assert body["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "a", "signature": "sig"}}},
        {"reasoningContent": {"reasoningText": {"text": "", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": "cmVk"}},
        {"text": "x"},
    ]
    assert dropped.names == ("reasoning_signature",)

    body, _ = written(user("q"), message, user("r"), facts=PLAIN)
    assert body["messages"][1]["content"] == [{"text": "x"}]


@pytest.mark.parametrize(
    ("model", "goes_back"), [("openai.gpt-5.6", True), ("us.openai.gpt-5.6", True), ("amazon.nova-pro-v1:0", False)]
)
def test_sealed_reasoning_of_openais_models_goes_back_to_them(model: str, goes_back: bool) -> None:
    """vercel/ai#19062: they go on with it. Another model could not read it; what is not sealed is not signed either."""
    sealed = Thinking(b'""', Signature("bedrock", "cmVk"), is_redacted=True)
    said = assistant(sealed, Thinking(b'"b"', Signature("bedrock", "cmVk")), Thinking(b'"c"', None), "x")
    dropped = DroppedFields()
    body = json.loads(ConverseModel(PLAIN, dropped).write(Request(model, [user("q"), said, user("r")]), model).body)
    reasoned = [{"reasoningContent": {"redactedContent": "cmVk"}}] if goes_back else []
    assert body["messages"][1]["content"] == [*reasoned, {"text": "x"}]
    assert dropped.names == ("reasoning_signature",)


def test_thinking_is_off_where_the_calls_before_were_made_without_it() -> None:
    """After a fallback in the middle of a tool's loop Claude would answer 400."""
    tools, asked = [Tool("f")], Reasoning(effort="high")
    unsigned = (user("q"), assistant(ToolUse("t", "f", b"{}")), user(ToolResult("t", [text("r")])))
    dropped = DroppedFields()
    body, _ = written(*unsigned, facts=CLAUDE, dropped=dropped, tools=tools, reasoning=asked)
    assert "additionalModelRequestFields" not in body and dropped.names == ("reasoning_effort",)

    signed = Thinking(b'"a"', Signature("anthropic", "sig"))
    body, _ = written(
        user("q"),
        assistant(signed, ToolUse("t", "f", b"{}")),
        user(ToolResult("t", [text("r")])),
        facts=CLAUDE,
        tools=tools,
        reasoning=asked,
    )
    assert body["additionalModelRequestFields"]["thinking"]["type"] == "enabled"


def test_pitfall_19_cache_marks_are_the_next_sibling() -> None:
    """19: on tools, calls, results, beside texts, with their time; inside a result it would be a 400."""
    mark, long = CacheMark(), CacheMark("1h")
    body, _ = written(
        user(text("a", long), text("", mark)),
        assistant(ToolUse("t", "f", b"{}", cache=mark)),
        user(ToolResult("t", [text("r", mark)]), text("b", mark)),
    )
    tools = written(user("a"), tools=[Tool("f", cache=mark), Tool("g", cache=long)])[0]["toolConfig"]["tools"]

    point, long_point = {"cachePoint": {"type": "default"}}, {"cachePoint": {"type": "default", "ttl": "1h"}}
    first, second, third = (message["content"] for message in body["messages"])
    assert first == [{"text": "a"}, long_point]
    assert second[1:] == [point]
    assert third == [{"toolResult": {"toolUseId": "t", "content": [{"text": "r"}]}}, point, {"text": "b"}, point]
    assert [next(iter(tool)) for tool in tools] == ["toolSpec", "cachePoint", "toolSpec", "cachePoint"]
    assert tools[3] == long_point

    dropped = DroppedFields()
    body, _ = written(user(text("a", mark)), facts=ModelFacts(cache_marks=False), dropped=dropped)
    assert body["messages"][0]["content"] == [{"text": "a"}] and dropped.names == ("cache_control",)


def test_last_four_cache_marks_are_those_that_stay() -> None:
    """C26: "A maximum of 4 blocks with cache_control may be provided": tools come first, the system, then messages."""
    mark, long = CacheMark(), CacheMark("1h")
    dropped = DroppedFields()
    body, _ = written(
        system(text("s", mark)),
        user(text("a", mark), text("b", mark)),
        assistant(text("c", mark)),
        user(text("d", mark)),
        tools=[Tool("f", cache=long), Tool("g", cache=mark)],
        cache=long,
        dropped=dropped,
    )

    assert "cachePoint" not in json.dumps(body["toolConfig"]) + json.dumps(body["system"])
    assert [json.dumps(message).count("cachePoint") for message in body["messages"]] == [2, 1, 1]
    assert dropped.names == ("cache_control",)

    body, _ = written(user(text("a", mark)), tools=[Tool(name, cache=mark) for name in ("f", "g", "h", "i")])
    tools = [next(iter(tool)) for tool in body["toolConfig"]["tools"]]
    assert tools == ["toolSpec", *["toolSpec", "cachePoint"] * 3]
    assert json.dumps(body["messages"]).count("cachePoint") == 1


def test_cache_marks_are_left_out_where_the_model_refuses_them() -> None:
    """Nova takes them behind texts, and answers 400 to others."""
    mark = CacheMark()
    places = ("tools", "tool_calls", "tool_results")
    facts = ModelFacts(refused=tuple(f"{place}.cache_control" for place in places))
    dropped = DroppedFields()
    body, _ = written(
        user(text("a", mark)),
        assistant(ToolUse("t", "f", b"{}", cache=mark)),
        user(ToolResult("t", [text("r", mark)])),
        facts=facts,
        dropped=dropped,
        tools=[Tool("f", cache=mark)],
        cache=mark,
    )

    assert json.dumps(body).count("cachePoint") == 1 and dropped.names == ("cache_control",)
    assert body["messages"][0]["content"][1] == {"cachePoint": {"type": "default"}}


def test_pitfall_20_top_level_cache_mark_goes_to_the_last_block() -> None:
    """20: the service has none for all of a request."""
    point = {"cachePoint": {"type": "default", "ttl": "5m"}}
    body, _ = written(system("s"), user("a", "b"), cache=CacheMark("5m"))
    assert body["messages"][0]["content"] == [{"text": "a"}, {"text": "b"}, point]
    assert "cache_control" not in body

    body, _ = written(
        user("a"), assistant(ToolUse("t", "f", b"{}")), user(ToolResult("t", [text("r")])), cache=CacheMark("5m")
    )
    assert body["messages"][2]["content"][1] == point

    body, _ = written(user(text("a", CacheMark())), cache=CacheMark())
    assert len(body["messages"][0]["content"]) == 2

    marks = [text(f"{n}", CacheMark()) for n in range(4)]
    assert dropped(user(*marks), user("z"), cache=CacheMark()) == ("cache_control",)


def test_pitfall_27_pictures_are_bytes_or_in_s3() -> None:
    """27: no URL is fetched here."""
    data = base64.b64encode(b"png").decode()
    body, _ = written(
        user(
            Image(Media(MediaKind.DATA, data, "image/png")),
            Image(Media(MediaKind.DATA, data, "image/jpg"), detail="auto"),
            Image(Media(MediaKind.URL, "s3://bucket/cat.webp")),
        )
    )
    assert body["messages"][0]["content"] == [
        {"image": {"format": "png", "source": {"bytes": data}}},
        {"image": {"format": "jpeg", "source": {"bytes": data}}},
        {"image": {"format": "webp", "source": {"s3Location": {"uri": "s3://bucket/cat.webp"}}}},
    ]

    error = refused(user("a", Image(Media(MediaKind.URL, "https://example.com/cat.png"))))
    assert error.param == "messages[0].content[1]" and "s3://" in error.message
    assert "files" in refused(user(Image(Media(MediaKind.ID, "file_1", "image/png")))).message
    assert "png, jpeg" in refused(user(Image(Media(MediaKind.DATA, data, "image/tiff")))).message
    assert dropped(user(Image(Media(MediaKind.DATA, data, "image/png"), detail="high"))) == ("detail",)


def test_pitfall_28_picture_in_a_result() -> None:
    """28: where the model takes none there, it follows the results."""
    data = base64.b64encode(b"png").decode()
    history = (
        user("a"),
        assistant(ToolUse("t", "f", b"{}")),
        user(ToolResult("t", [text("see"), Image(Media(MediaKind.DATA, data, "image/png"))])),
    )
    picture = {"image": {"format": "png", "source": {"bytes": data}}}

    body, _ = written(*history)
    assert body["messages"][2]["content"][0]["toolResult"]["content"] == [{"text": "see"}, picture]

    body, _ = written(*history, facts=ModelFacts(images_in_results=False))
    assert body["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "t", "content": [{"text": "see"}]}},
        picture,
    ]


def test_documents_have_names_of_their_own_and_a_text_beside_them() -> None:
    data = base64.b64encode(b"pdf").decode()
    body, _ = written(
        user(
            Document(Media(MediaKind.DATA, data, "application/pdf"), "Q3  report_v2.pdf"),
            Document(Media(MediaKind.DATA, data, None), "Q3 report_v2.pdf", context=b'"from me"', citations=True),
            Document(Media(MediaKind.TEXT, "W\u00f6rter"), None, cache=CacheMark()),
            Document(Media(MediaKind.URL, "s3://bucket/a.docx")),
        )
    )

    content = body["messages"][0]["content"]
    assert content[0]["document"] == {"format": "pdf", "name": "Q3 report-v2-pdf", "source": {"bytes": data}}
    assert content[1]["document"] == {
        "format": "pdf",
        "name": "Q3 report-v2-pdf 2",
        "source": {"bytes": data},
        "context": "from me",
        "citations": {"enabled": True},
    }
    assert base64.b64decode(content[2]["document"]["source"]["bytes"]).decode() == "W\u00f6rter"
    assert content[3] == {"cachePoint": {"type": "default"}}
    assert content[4]["document"]["format"] == "docx" and content[4]["document"]["name"] == "Document 2"
    assert content[5] == {"text": "."}
    assert "docx" in refused(user(Document(Media(MediaKind.DATA, data, "application/zip"), "a.zip"))).message


def test_video_is_a_block() -> None:
    """Other dialects have it as a file; it needs no text beside it."""
    film, far = Media(MediaKind.DATA, "AAAA", "video/3gpp"), Media(MediaKind.URL, "s3://bucket/a.mp4", "video/mp4")
    body, _ = written(user(Document(film), Document(far)))

    assert body["messages"][0]["content"] == [
        {"video": {"format": "three_gp", "source": {"bytes": "AAAA"}}},
        {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/a.mp4"}}}},
    ]
    assert "by URL" in refused(user(Document(Media(MediaKind.URL, "https://x/a", "video/mp4")))).message


def test_sound_is_a_block() -> None:
    body, _ = written(user("a", Audio(Media(MediaKind.DATA, "UklG"), "wav")))

    assert body["messages"][0]["content"][1] == {"audio": {"format": "wav", "source": {"bytes": "UklG"}}}


def test_tools_and_choices() -> None:
    tools = [Tool("f", b'"does"', b'{"type": "object", "x": 12345678901234567890}', True), Tool("g", b'" "')]
    found = Request("m", [user("a")], tools=tools, tool_choice=ToolChoice(Choice.TOOL, "g"))
    body = ConverseModel(PLAIN, DroppedFields()).write(found, "m").body
    assert b'{"type": "object", "x": 12345678901234567890}' in body
    config = json.loads(body)["toolConfig"]
    assert config["tools"][0]["toolSpec"]["strict"] is True
    assert config["tools"][1] == {"toolSpec": {"name": "g", "inputSchema": {"json": {"type": "object"}}}}
    assert config["toolChoice"] == {"tool": {"name": "g"}}

    choices: dict[Choice, Any] = {Choice.AUTO: {"auto": {}}, Choice.REQUIRED: {"any": {}}}
    for choice, written_choice in choices.items():
        json_body, _ = written(user("a"), tools=tools, tool_choice=ToolChoice(choice))
        assert json_body["toolConfig"]["toolChoice"] == written_choice

    json_body, _ = written(user("a"), tools=tools, tool_choice=ToolChoice(Choice.REQUIRED, allowed=("g",)))
    assert [tool["toolSpec"]["name"] for tool in json_body["toolConfig"]["tools"]] == ["g"]


def test_choice_of_none_has_no_counterpart() -> None:
    choice, tools = ToolChoice(Choice.NONE), [Tool("f")]
    body, _ = written(user("a"), tools=tools, tool_choice=choice, dropped=DroppedFields(strict=True))
    assert "toolConfig" not in body

    history = (user("a"), assistant(ToolUse("t", "f", b"{}")), user(ToolResult("t", [])))
    dropped = DroppedFields()
    body, _ = written(*history, tools=tools, tool_choice=choice, dropped=dropped)
    assert "toolChoice" not in body["toolConfig"] and dropped.names == ("tool_choice",)


def test_forced_choice_is_none_while_it_thinks() -> None:
    dropped = DroppedFields()
    body, _ = written(
        user("a"),
        facts=CLAUDE,
        dropped=dropped,
        tools=[Tool("f")],
        tool_choice=ToolChoice(Choice.REQUIRED),
        reasoning=Reasoning(effort="low"),
    )

    assert body["toolConfig"]["toolChoice"] == {"auto": {}} and dropped.names == ("tool_choice",)


def test_tools_of_the_history_are_declared_where_the_request_has_none() -> None:
    body, _ = written(user("a"), assistant(ToolUse("t", "f", b"{}")), user(ToolResult("t", [text("r")])))

    assert body["toolConfig"] == {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}


def test_pitfall_29_names_and_ids_that_do_not_fit_are_mapped() -> None:
    """29: the same for the call, its result and the tool, and told for the way back."""
    name, call = "mcp.server/" + "x" * 70, "call|" + "y" * 70
    body, found = written(
        user("a"),
        assistant(ToolUse(call, name, b"{}")),
        user(ToolResult(call, [text("r")])),
        tools=[Tool(name)],
        tool_choice=ToolChoice(Choice.TOOL, name),
    )

    mapped = body["toolConfig"]["tools"][0]["toolSpec"]["name"]
    use = body["messages"][1]["content"][0]["toolUse"]
    assert mapped == use["name"] == body["toolConfig"]["toolChoice"]["tool"]["name"] != name
    assert use["toolUseId"] == body["messages"][2]["content"][0]["toolResult"]["toolUseId"]
    assert found.names == {mapped: name} and found.ids == {use["toolUseId"]: call}


def test_structured_output_is_a_text_format() -> None:
    schema = b'{"type":"object","properties":{"a":{"const":12345678901234567890}}}'
    body, _ = written(user("a"), format=Format(schema, "my schema!", b'"it"', True))

    assert body["outputConfig"]["textFormat"] == {
        "type": "json_schema",
        "structure": {"jsonSchema": {"schema": schema.decode(), "name": "my_schema_", "description": "it"}},
    }


def test_schemas_are_fitted_for_claude() -> None:
    """The service refuses keywords like `minimum` for it, in the answer's schema and in those of strict tools."""
    schema = b'{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}'
    tools = [Tool("a", None, schema, strict=True), Tool("b", None, schema)]
    n = {"type": "integer", "description": "{minimum: 1}"}
    fitted = {"type": "object", "properties": {"n": n}, "additionalProperties": False}

    for facts, expected in ((CLAUDE, fitted), (ADAPTIVE, fitted), (PLAIN, json.loads(schema))):
        body, _ = written(user("a"), facts=facts, format=Format(schema), tools=tools)

        assert json.loads(body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]) == expected
        strict, usual = (tool["toolSpec"] for tool in body["toolConfig"]["tools"])
        assert (strict["inputSchema"]["json"], strict["strict"]) == (expected, True)
        assert usual["inputSchema"]["json"] == json.loads(schema)


@pytest.mark.parametrize(
    "facts", [ModelFacts(thinking="adaptive", refused=("tools.strict",)), ModelFacts(json_schema=False)]
)
def test_strict_is_left_out_where_the_model_refuses_it(facts: ModelFacts) -> None:
    """Agents' SDKs set it on each tool: a 400 to it would be one to each of their requests."""
    schema, dropped = b'{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}', DroppedFields()
    body, _ = written(user("a"), facts=facts, dropped=dropped, tools=[Tool("a", None, schema, strict=True)])

    tool = {"name": "a", "inputSchema": {"json": json.loads(schema)}}
    assert body["toolConfig"]["tools"] == [{"toolSpec": tool}] and dropped.names == ("strict",)

    dropped = DroppedFields()
    body, _ = written(user("a"), facts=facts, dropped=dropped, tools=[Tool("a", None, schema, strict=False)])
    assert body["toolConfig"]["tools"] == [{"toolSpec": tool}] and dropped.names == ()


@pytest.mark.parametrize(
    ("facts", "schema"), [(PLAIN, None), (ModelFacts(thinking="none", json_schema=False), b'{"a":1}')]
)
def test_json_object_is_a_tool_whose_arguments_are_the_answer(facts: ModelFacts, schema: bytes | None) -> None:
    model = ConverseModel(facts, DroppedFields())
    found = model.write(Request("m", [user("a")], format=Format(schema)), "m")
    assert request_faults(found.body) == []
    config = json.loads(found.body)["toolConfig"]
    assert config["toolChoice"] == {"tool": {"name": "json_answer"}}
    assert config["tools"][0]["toolSpec"]["inputSchema"]["json"] == {"type": "object", **({"a": 1} if schema else {})}

    answer = model.answer(
        _answer([{"toolUse": {"toolUseId": "t", "name": "json_answer", "input": {"b": "\u00fc"}}}], "tool_use")
    )

    assert answer.stop == Stop(StopReason.END)
    assert [json.loads(json.loads(block.text)) for block in answer.blocks if isinstance(block, Text)] == [
        {"b": "\u00fc"}
    ]


def test_json_object_beside_tools_is_asked_for_in_words() -> None:
    dropped = DroppedFields()
    body, _ = written(user("a"), dropped=dropped, tools=[Tool("f")], format=Format())
    assert "JSON object" in body["system"][-1]["text"] and dropped.names == ("response_format",)

    facts = ModelFacts(json_schema=False)
    body, _ = written(user("a"), facts=facts, tools=[Tool("f")], format=Format(b'{"type":"object"}'))
    assert body["system"][-1]["text"].endswith('Its JSON schema is: {"type":"object"}')


def test_what_has_no_counterpart_is_dropped_and_told() -> None:
    assert dropped(
        Message(Role.USER, [Text(b'"a"', citations=b"[]")], "bob"),
        seed=1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        user="u",
        cache_key="k",
        parallel_tools=False,
        tier="scale",
    ) == (
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "user",
        "prompt_cache_key",
        "parallel_tool_calls",
        "name",
        "citations",
        "service_tier",
    )
    with pytest.raises(BadRequestError, match="seed has no counterpart"):
        written(user("a"), dropped=DroppedFields(strict=True), seed=1)


def test_tier_goes_where_the_service_has_it() -> None:
    assert written(user("a"), tier="flex")[0]["serviceTier"] == {"type": "flex"}
    assert "serviceTier" not in written(user("a"), tier="auto")[0]


def test_last_message_of_the_assistant_is_refused_where_the_model_refuses_it() -> None:
    error = refused(user("a"), assistant("b"), facts=ModelFacts(prefill=False))
    assert error.param == "messages[1]"
    assert len(written(user("a"), assistant("b"))[0]["messages"]) == 2


def test_refusal_in_the_history_is_text() -> None:
    body, _ = written(user("a"), assistant(Refusal(b'"no"')), user("b"))

    assert body["messages"][1]["content"] == [{"text": "no"}]


def test_bytes_of_a_request_are_the_same_each_time() -> None:
    """Caches go by them."""
    request = Request("m", [system("s"), user("a")], tools=[Tool("a.b"), Tool("c")], temperature=0.1)
    first = ConverseModel(PLAIN, DroppedFields()).write(request, "m").body

    assert first == ConverseModel(PLAIN, DroppedFields()).write(request, "m").body


_TEXTS = st.sampled_from([b'"a"', b'""', b'" "', b'"\\u00e4"'])
_MARKS = st.none() | st.builds(CacheMark, st.sampled_from([None, "5m", "1h"]))
_NAMES = st.sampled_from(["f", "g.h", "x" * 80, "\u00fc", ""])
_BLOCKS = st.one_of(
    st.builds(Text, _TEXTS, _MARKS),
    st.builds(ToolUse, _NAMES, _NAMES, st.sampled_from([b"{}", b""]), st.none(), _MARKS),
    st.builds(ToolResult, _NAMES, st.lists(st.builds(Text, _TEXTS, _MARKS), max_size=2), st.none() | _NAMES),
    st.builds(Thinking, _TEXTS, st.none() | st.just(Signature("anthropic", "s")), st.booleans()),
    st.builds(Image, st.builds(Media, st.sampled_from(MediaKind), st.sampled_from(["", "aaaa", "s3://buc/a.png"]))),
    st.builds(Document, st.builds(Media, st.just(MediaKind.TEXT), st.just("words")), st.none() | _NAMES),
    st.builds(Refusal, _TEXTS),
)


@given(
    st.lists(st.builds(Message, st.sampled_from(Role), st.lists(_BLOCKS, max_size=3)), max_size=5),
    st.sampled_from([PLAIN, CLAUDE, ADAPTIVE]),
    st.none() | st.builds(Reasoning, st.sampled_from([None, "low", "none"]), st.none() | st.integers(0, 9000)),
    st.none() | st.builds(ToolChoice, st.sampled_from(Choice), st.just("f"), st.sampled_from([(), ("f",)])),
    st.none() | st.just(Format()) | st.just(Format(b"{}")),
)
def test_any_request_is_refused_or_one_that_the_service_takes(
    messages: list[Message],
    facts: ModelFacts,
    reasoning: Reasoning | None,
    choice: ToolChoice | None,
    form: Format | None,
) -> None:
    request = Request("m", messages, tools=[Tool("f")], reasoning=reasoning, tool_choice=choice, format=form)
    try:
        found = ConverseModel(facts, DroppedFields()).write(request, "m")
    except BadRequestError:
        return
    assert request_faults(found.body, is_claude=facts is not PLAIN) == []


# -- answers --------------------------------------------------------------------------------------------


def _answer(content: list[Any], stop: str = "end_turn", **more: Any) -> bytes:
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
    output = {"message": {"role": "assistant", "content": content}}
    return json.dumps(
        {"output": output, "stopReason": stop, "usage": usage, "metrics": {"latencyMs": 1}, **more}
    ).encode()


def _read(content: list[Any], stop: str = "end_turn", facts: ModelFacts = CLAUDE, **more: Any) -> Answer:
    return ConverseModel(facts, DroppedFields()).answer(_answer(content, stop, **more))


_ANSWERS = [each for each in recorded("bedrock", "/converse") if not each.is_stream]


@pytest.mark.parametrize("exchange", _ANSWERS, ids=str)
def test_recorded_answer_is_read(exchange: Exchange) -> None:
    facts = CLAUDE if "anthropic" in exchange.url else PLAIN
    said = json.loads(exchange.reply)

    answer = ConverseModel(facts, DroppedFields()).answer(exchange.reply)

    again = []
    for block in answer.blocks:
        match block:
            case Text():
                again.append({"text": json.loads(block.text)})
            case ToolUse():
                again.append({"toolUse": (block.id, block.name, json.loads(block.arguments))})
            case Thinking():
                again.append({"thinking": (json.loads(block.text), block.signature and block.signature.value)})
    expected: list[Any] = []
    for each in said["output"]["message"]["content"]:
        if "text" in each:
            expected.append(each)
        elif each.get("toolUse", {}).get("type") != "server_tool_use" and "toolUse" in each:
            use = each["toolUse"]
            expected.append({"toolUse": (use["toolUseId"], use["name"], use["input"])})
        elif "reasoningContent" in each:
            words = each["reasoningContent"]["reasoningText"]
            expected.append({"thinking": (words["text"], words.get("signature"))})
    assert again == expected
    usage = said["usage"]
    assert answer.usage.input is not None and answer.usage.output is not None
    assert answer.usage.input + answer.usage.output == usage["totalTokens"]
    assert answer.usage.cached == usage.get("cacheReadInputTokens")
    assert answer.stop.unknown is None


@pytest.mark.parametrize(
    ("word", "stop"),
    [
        ("end_turn", Stop(StopReason.END)),
        ("tool_use", Stop(StopReason.END)),  # nothing is called
        ("max_tokens", Stop(StopReason.LENGTH)),
        ("model_context_window_exceeded", Stop(StopReason.CONTEXT)),
        ("stop_sequence", Stop(StopReason.STOP_STRING)),
        ("content_filtered", Stop(StopReason.FILTER)),
        ("guardrail_intervened", Stop(StopReason.FILTER)),
        ("newer_word", Stop(StopReason.END, unknown="newer_word")),
    ],
)
def test_pitfall_38_stop_reasons(word: str, stop: Stop) -> None:
    """38: what was filtered is no usual end."""
    assert _read([{"text": "a"}], word).stop == stop


def test_stop_sequence_is_told_where_it_is_known() -> None:
    model = ConverseModel(CLAUDE, DroppedFields())
    body = model.write(Request("m", [user("a")], stop=["X", "Y"]), "m").body
    assert json.loads(body)["additionalModelResponseFieldPaths"] == ["/stop_sequence"]
    answer = model.answer(_answer([], "stop_sequence", additionalModelResponseFields={"stop_sequence": "Y"}))
    assert answer.stop == Stop(StopReason.STOP_STRING, "Y")

    model = ConverseModel(PLAIN, DroppedFields())
    model.write(Request("m", [user("a")], stop=["X"]), "m")
    assert model.answer(_answer([], "stop_sequence")).stop == Stop(StopReason.STOP_STRING, "X")


@pytest.mark.parametrize("word", ["malformed_model_output", "malformed_tool_use"])
def test_broken_output_is_an_error(word: str) -> None:
    with pytest.raises(ReplyError) as caught:
        _read([], word)
    assert caught.value.error.status == 502 and caught.value.error.code == word


def test_answer_has_reasoning_with_its_signature_and_cited_text() -> None:
    answer = _read(
        [
            {"reasoningContent": {"reasoningText": {"text": "", "signature": "s"}}},
            {"reasoningContent": {"redactedContent": "cmVk"}},
            {"citationsContent": {"content": [{"text": "a "}, {"text": "b"}], "citations": []}},
            {"newer": {}},
        ],
        serviceTier={"type": "priority"},
    )

    assert answer.blocks == [
        Thinking(b'""', Signature("anthropic", "s")),
        Thinking(b'""', Signature("anthropic", "cmVk"), is_redacted=True),
        Text(b'"a b"'),
    ]
    assert answer.tier == "priority"


def test_usage_has_the_cache_in_its_input() -> None:
    usage = {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 1815,
        "cacheReadInputTokens": 1000,
        "cacheWriteInputTokens": 800,
        "cacheReadInputTokenCount": 1000,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 300}, {"ttl": "5m", "inputTokens": 500}],
    }
    assert _read([], usage=usage).usage == Usage(1810, 5, 1000, 800, 300)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"output":{}}', b'{"output":{},"stopReason":"end_turn"}', b"\xff", b"[" * 5000]
)
def test_broken_answer_is_told(body: bytes) -> None:
    with pytest.raises(BrokenReplyError):
        ConverseModel(PLAIN, DroppedFields()).answer(body)


@given(st.sampled_from(_ANSWERS), st.data())
def test_mutated_answer_raises_nothing_else(exchange: Exchange, data: st.DataObject) -> None:
    reply = bytearray(exchange.reply)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(reply) - 1))
        reply[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b'"', b"{", b"\xff", b"null", b"1"])
        )
    try:
        ConverseModel(PLAIN, DroppedFields()).answer(bytes(reply))
    except (BrokenReplyError, ReplyError):
        pass


# -- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "kind", "told"),
    [
        ("ValidationException", 400, ErrorKind.INVALID, 400),
        ("AccessDeniedException", 403, ErrorKind.PERMISSION, 403),
        ("UnrecognizedClientException", 403, ErrorKind.AUTHENTICATION, 403),
        ("ExpiredTokenException", 403, ErrorKind.AUTHENTICATION, 403),
        ("ResourceNotFoundException", 404, ErrorKind.NOT_FOUND, 404),
        ("ModelTimeoutException", 408, ErrorKind.TIMEOUT, 408),
        ("ThrottlingException", 429, ErrorKind.RATE_LIMIT, 429),
        ("ModelNotReadyException", 429, ErrorKind.RATE_LIMIT, 429),
        ("ServiceQuotaExceededException", 400, ErrorKind.RATE_LIMIT, 429),
        ("ModelErrorException", 424, ErrorKind.API, 502),
        ("ModelStreamErrorException", 424, ErrorKind.API, 502),
        ("InternalServerException", 500, ErrorKind.API, 500),
        ("ServiceUnavailableException", 503, ErrorKind.UNAVAILABLE, 503),
        ("NewerException", 418, ErrorKind.INVALID, 418),
    ],
)
def test_pitfall_42_errors_by_their_name(name: str, status: int, kind: ErrorKind, told: int) -> None:
    """42: the name stands in a header, or in the body of what stands before the service."""
    model = ConverseModel(PLAIN, DroppedFields())
    for error in (
        model.error(status, b'{"message":"why"}', {"x-amzn-errortype": f"{name}:http://internal.amazon.com/"}),
        model.error(status, b'{"Message":"why","__type":"com.amazon.coral.service#%b"}' % name.encode()),
    ):
        assert (error.kind, error.status, error.message) == (kind, told, "why")


@pytest.mark.parametrize(
    "exchange", [each for each in recorded("bedrock", "", status=None) if each.status >= 400], ids=str
)
def test_recorded_error_is_read(exchange: Exchange) -> None:
    error = ConverseModel(PLAIN, DroppedFields()).error(exchange.status, exchange.reply, exchange.headers)

    assert error.kind is ErrorKind.INVALID and error.message == json.loads(exchange.reply)["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the upstream answered 503"),
        (b"{}", "the upstream answered 503"),
        (b"<html>" + b"x" * 9000, "<html>" + "x" * 4090),
        (b"\xff", "\ufffd"),
        (b'{"message":5}', '{"message":5}'),
    ],
)
def test_error_may_be_anything(body: bytes, message: str) -> None:
    error = ConverseModel(PLAIN, DroppedFields()).error(503, body)

    assert (error.kind, error.status, error.message) == (ErrorKind.UNAVAILABLE, 503, message)


@given(st.integers(100, 599), st.binary(max_size=60), st.dictionaries(st.just("x-amzn-errortype"), st.text(max_size=9)))
def test_error_never_raises(status: int, body: bytes, headers: dict[str, str]) -> None:
    ConverseModel(PLAIN, DroppedFields()).error(status, body, headers)
