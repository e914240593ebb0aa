"""What is written to Gemini, and what of its answers, streams and errors is read."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
    Close,
    Delta,
    Document,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Format,
    Image,
    Kind,
    Media,
    MediaKind,
    Message,
    Open,
    Reasoning,
    Request,
    Role,
    Sign,
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
    Used,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.schema import SubsetSchemas
from velox.protocol.sse_events import MOST_REPLY_BYTES

_LEVEL = ModelFacts(thinking="level")
_OLD = ModelFacts(thinking="thinking_budget")


def _write(request: Request, facts: ModelFacts = _LEVEL, dropped: DroppedFields | None = None) -> Any:
    return json.loads(GenerateModel(facts, dropped or DroppedFields()).write(request, "gemini-x").body)


def _asked(*messages: Message, **fields: Any) -> Request:
    return Request("m", list(messages) or [_user(Text(b'"Hi"'))], **fields)


def _user(*blocks: Block) -> Message:
    return Message(Role.USER, list(blocks))


def _said(*blocks: Block) -> Message:
    return Message(Role.ASSISTANT, list(blocks))


def _called(call_id: str, name: str, signature: Signature | None = None) -> ToolUse:
    return ToolUse(call_id, name, b'{"a":12345678901234567890}', signature)


def _result(call_id: str, text: bytes = b'"ok"', **fields: Any) -> ToolResult:
    return ToolResult(call_id, [Text(text)], **fields)


# -- requests -----------------------------------------------------------------------------------------


def test_texts_arguments_and_schemas_stay_the_bytes_that_they_were() -> None:
    """Escapes, spaces, key order, integers of twenty digits, lone surrogates (pitfall 44)."""
    schema = b'{ "type":"object", "properties":{"b":{"const":12345678901234567890},"a":{}} }'
    text = b'"\\u00fc \\ud800 \xc3\xbc"'
    body = (
        GenerateModel(_LEVEL, DroppedFields())
        .write(
            _asked(
                _user(Text(text)),
                _said(ToolUse("c", "f", b'{"b" : 1.0, "a":12345678901234567890}')),
                _user(_result("c")),
                tools=[Tool("f", b'"d\\u00e9"', schema)],
            ),
            "gemini-x",
        )
        .body
    )

    for each in (schema, text, b'{"b" : 1.0, "a":12345678901234567890}', b'"d\\u00e9"'):
        assert each in body


def test_pitfall_06_parallel_results_stand_alone_in_one_turn_in_call_order() -> None:
    """Results first, in the order of their calls, named by their calls; the user's own words in a turn after."""
    written = _write(
        _asked(
            _user(Text(b'"Hi"')),
            _said(Text(b'"Let me see"'), _called("c1", "one"), _called("c2", "two")),
            _user(Text(b'"also"'), _result("c2", b'"2"')),
            _user(_result("c1", b'"1"')),
        )
    )

    contents = written["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "user"]
    assert [
        (part["functionResponse"]["id"], part["functionResponse"]["name"], part["functionResponse"]["response"])
        for part in contents[2]["parts"]
    ] == [("c1", "one", {"output": "1"}), ("c2", "two", {"output": "2"})]
    assert contents[3]["parts"] == [{"text": "also"}]


@pytest.mark.parametrize(
    ("text", "is_error", "response"),
    [
        (b'"{\\"a\\": 1}"', False, {"a": 1}),
        (b'"{\\"a\\": 1"', False, {"output": '{"a": 1'}),
        (b'"[1]"', False, {"output": "[1]"}),
        (b'""', False, {"output": ""}),
        (b'"no such city"', True, {"error": "no such city"}),
        (b'"{\\"code\\": 1}"', True, {"error": {"code": 1}}),
    ],
)
def test_a_result_is_an_object(text: bytes, is_error: bool, response: object) -> None:
    """An object stays one; any other text is the output, or the error."""
    asked = _asked(_user(Text(b'"x"')), _said(_called("c", "f")), _user(_result("c", text, is_error=is_error)))

    assert _write(asked)["contents"][2]["parts"][0]["functionResponse"]["response"] == response


def test_pictures_of_results_stand_in_them_or_after_them() -> None:
    """Newer models take pictures in results; for others they move into the next turn."""
    picture = Image(Media(MediaKind.DATA, "AAAA", "image/jpg"))
    asked = _asked(_user(Text(b'"x"')), _said(_called("c", "f")), _user(ToolResult("c", [Text(b'"see"'), picture])))
    inline = {"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}}

    assert _write(asked)["contents"][2]["parts"][0]["functionResponse"]["parts"] == [inline]
    contents = _write(asked, ModelFacts(images_in_results=False))["contents"]
    assert "parts" not in contents[2]["parts"][0]["functionResponse"]
    assert contents[3]["parts"] == [inline]


def test_vertex_gets_no_ids() -> None:
    """Where ids are refused, names and order say what belongs together."""
    asked = _asked(_user(Text(b'"x"')), _said(_called("c", "f")), _user(_result("c")))

    written = json.dumps(_write(asked, ModelFacts(call_ids="none")))

    assert '"id"' not in written


def test_pitfall_13_signatures_of_parallel_and_sequential_calls() -> None:
    """The first call of a step has a signature, its siblings none; each step has its own."""
    one, two = Signature("google", "c2ln+/=="), Signature("google", "second")
    written = _write(
        _asked(
            _user(Text(b'"x"')),
            _said(_called("c1", "f", one), _called("c2", "f")),
            _user(_result("c1"), _result("c2")),
            _said(_called("c3", "f", two)),
            _user(_result("c3")),
        )
    )

    parts = [part for content in written["contents"] if content["role"] == "model" for part in content["parts"]]
    assert [part.get("thoughtSignature") for part in parts] == ["c2ln+/==", None, "second"]


def test_pitfall_13_a_lost_signature_is_said_to_be_lost() -> None:
    """The documented value stands in its place, only at the first call and only where the model checks."""
    asked = _asked(
        _user(Text(b'"x"')), _said(_called("c1", "f"), _called("c2", "f")), _user(_result("c1"), _result("c2"))
    )

    parts = _write(asked)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["skip_thought_signature_validator", None]
    assert not any("thoughtSignature" in part for part in _write(asked, _OLD)["contents"][1]["parts"])


def test_pitfall_14_signatures_of_other_providers_are_left_out() -> None:
    """And counted; thoughts that nobody signed are left out without a word."""
    dropped = DroppedFields()
    asked = _asked(
        _user(Text(b'"x"')),
        _said(Thinking(b'"hm"', Signature("anthropic", "x")), Thinking(b'"so"'), Text(b'"yes"')),
        _user(Text(b'"y"')),
    )

    assert _write(asked, dropped=dropped)["contents"][1]["parts"] == [{"text": "yes"}]
    assert dropped.names == ("reasoning_signature",)


def test_pitfall_21_a_later_system_message_stays_in_place() -> None:
    """Only those before all others are the instruction."""
    system = Message(Role.SYSTEM, [Text(b'"later"')])
    written = _write(
        _asked(
            Message(Role.SYSTEM, [Text(b'"a"')]),
            Message(Role.SYSTEM, [Text(b'"b"')]),
            _user(Text(b'"x"')),
            _said(Text(b'"y"')),
            system,
        )
    )

    assert written["systemInstruction"] == {"parts": [{"text": "a"}, {"text": "b"}]}
    assert written["contents"][2] == {"role": "user", "parts": [{"text": "later"}]}


def test_pitfall_22_empty_texts_and_calls_without_results() -> None:
    """Empty texts are left out, a turn never is; a call needs a result, and a result a call."""
    written = _write(_asked(_user(Text(b'""'), Text(b'"x"')), _said(Text(b'""')), _user(Text(b'"y"'))))
    assert written["contents"][0]["parts"] == [{"text": "x"}]
    assert written["contents"][1]["parts"] == [{"text": " "}]

    for messages in (
        (_user(Text(b'"x"')), _said(_called("c1", "f"), _called("c2", "f")), _user(_result("c1"))),
        (_user(Text(b'"x"')), _said(_called("c1", "f")), _user(Text(b'"go on"'))),
        (_user(_result("nobody")),),
    ):
        with pytest.raises(BadRequestError) as caught:
            _write(_asked(*messages))
        assert caught.value.param == "messages"


def test_pitfall_23_turns_alternate_and_the_user_begins() -> None:
    """Turns of one role are one; contents are never empty."""
    written = _write(_asked(_said(Text(b'"a"')), _said(Text(b'"b"')), _user(Text(b'"c"')), _user(Text(b'"d"'))))

    assert written["contents"] == [
        {"role": "user", "parts": [{"text": " "}]},
        {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "user", "parts": [{"text": "c"}, {"text": "d"}]},
    ]
    only_system = _write(_asked(Message(Role.SYSTEM, [Text(b'"s"')])))
    assert only_system["contents"] == [{"role": "user", "parts": [{"text": " "}]}]


def test_pitfall_24_to_26_stops_and_sampling() -> None:
    """Empty stops are left out; a model without sampling gets none, and that is said."""
    asked = _asked(max_tokens=5, temperature=1, top_p=0.5, top_k=3, stop=["", "x"], seed=7, presence_penalty=0.5)

    assert _write(asked)["generationConfig"] == {
        "maxOutputTokens": 5,
        "temperature": 1,
        "topP": 0.5,
        "topK": 3,
        "seed": 7,
        "presencePenalty": 0.5,
        "stopSequences": ["x"],
    }
    dropped = DroppedFields()
    config = _write(asked, ModelFacts(sampling=False, refused=("seed",)), dropped)["generationConfig"]
    assert config == {"maxOutputTokens": 5, "presencePenalty": 0.5, "stopSequences": ["x"]}
    assert dropped.names == ("temperature", "top_p", "top_k", "seed")
    with pytest.raises(BadRequestError):
        _write(asked, ModelFacts(sampling=False), DroppedFields(strict=True))


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (Image(Media(MediaKind.DATA, "AA==", "image/png")), {"inlineData": {"mimeType": "image/png", "data": "AA=="}}),
        (
            Image(Media(MediaKind.URL, "gs://b/o.png")),
            {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/o.png"}},
        ),
        (
            Image(Media(MediaKind.URL, "https://x.example/o?size=1")),
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.example/o?size=1"}},
        ),
        (
            Document(Media(MediaKind.URL, "gs://b/o.PDF?x=1.png")),
            {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://b/o.PDF?x=1.png"}},
        ),
        (
            Document(Media(MediaKind.DATA, "AA=="), "notes.csv"),
            {"inlineData": {"mimeType": "text/csv", "data": "AA=="}},
        ),
        (Document(Media(MediaKind.TEXT, "words")), {"text": "words"}),
        (Audio(Media(MediaKind.DATA, "AA=="), "mp3"), {"inlineData": {"mimeType": "audio/mp3", "data": "AA=="}}),
    ],
)
def test_pitfall_27_media_have_a_type(block: Block, part: object) -> None:
    """Said, or as its name or address says; a file at an address always has one."""
    assert _write(_asked(_user(block)))["contents"][0]["parts"] == [part]


@pytest.mark.parametrize(
    "source",
    [
        Media(MediaKind.URL, "s3://bucket/x.pdf", "application/pdf"),
        Media(MediaKind.ID, "file-123", "application/pdf"),
        Media(MediaKind.URL, "gs://bucket/unknown"),
    ],
)
def test_pitfall_27_media_that_google_cannot_read_are_refused(source: Media) -> None:
    """Before anything is sent."""
    with pytest.raises(BadRequestError):
        _write(_asked(_user(Document(source))))


def test_pitfall_29_names_that_do_not_fit_are_mapped_everywhere() -> None:
    """In declarations, calls, results and choices; the map restores them."""
    name = "mcp/server tool"
    written = GenerateModel(_LEVEL, DroppedFields()).write(
        _asked(
            _user(Text(b'"x"')),
            _said(_called("c", name)),
            _user(_result("c")),
            tools=[Tool(name), Tool("x" * 65), Tool("ok.v1:2-3")],
            tool_choice=ToolChoice(Choice.TOOL, name),
        ),
        "m",
    )

    body = json.loads(written.body)
    declared = [each["name"] for each in body["tools"][0]["functionDeclarations"]]
    assert declared[2] == "ok.v1:2-3"
    assert [written.names[each] for each in declared[:2]] == [name, "x" * 65]
    assert all(len(each) <= 64 for each in declared)
    assert body["contents"][1]["parts"][0]["functionCall"]["name"] == declared[0]
    assert body["contents"][2]["parts"][0]["functionResponse"]["name"] == declared[0]
    assert body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == [declared[0]]


@pytest.mark.parametrize(
    ("choice", "facts", "config", "lost"),
    [
        (ToolChoice(Choice.AUTO), _LEVEL, {"mode": "AUTO"}, ()),
        (ToolChoice(Choice.NONE), _LEVEL, {"mode": "NONE"}, ()),
        (ToolChoice(Choice.REQUIRED), _LEVEL, {"mode": "ANY"}, ()),
        (ToolChoice(Choice.TOOL, "f"), _LEVEL, {"mode": "ANY", "allowedFunctionNames": ["f"]}, ()),
        (
            ToolChoice(Choice.REQUIRED, allowed=("f", "g")),
            _LEVEL,
            {"mode": "ANY", "allowedFunctionNames": ["f", "g"]},
            (),
        ),
        (ToolChoice(Choice.AUTO, allowed=("f",)), _LEVEL, {"mode": "VALIDATED", "allowedFunctionNames": ["f"]}, ()),
        (ToolChoice(Choice.REQUIRED), ModelFacts(forced_choice=False), {"mode": "AUTO"}, ("tool_choice",)),
    ],
)
def test_tool_choices(choice: ToolChoice, facts: ModelFacts, config: object, lost: tuple[str, ...]) -> None:
    """Each has its mode; one that is forced where the model refuses that is dropped."""
    dropped = DroppedFields()

    written = _write(_asked(tools=[Tool("f")], tool_choice=choice), facts, dropped)

    assert written["toolConfig"]["functionCallingConfig"] == config
    assert dropped.names == lost


@pytest.mark.parametrize(
    ("reasoning", "facts", "config"),
    [
        (Reasoning("high"), _LEVEL, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        (Reasoning("max"), _LEVEL, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        (Reasoning("none"), _LEVEL, {"includeThoughts": False, "thinkingLevel": "MINIMAL"}),
        (Reasoning(enabled=False), _LEVEL, {"includeThoughts": False, "thinkingLevel": "MINIMAL"}),
        (Reasoning(enabled=True), _LEVEL, {"includeThoughts": True}),
        (Reasoning(budget_tokens=1024), _LEVEL, {"includeThoughts": True, "thinkingLevel": "LOW"}),
        (Reasoning(budget_tokens=31999), _LEVEL, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        (
            Reasoning("minimal"),
            ModelFacts(thinking="level", refused=("thinking_level.minimal",)),
            {"includeThoughts": True, "thinkingLevel": "LOW"},
        ),
        (Reasoning("medium", summary="omitted"), _OLD, {"includeThoughts": False, "thinkingBudget": 8192}),
        (Reasoning("none"), _OLD, {"includeThoughts": False, "thinkingBudget": 0}),
        (Reasoning(enabled=True), _OLD, {"includeThoughts": True, "thinkingBudget": -1}),
        (Reasoning(budget_tokens=31999), _OLD, {"includeThoughts": True, "thinkingBudget": 24576}),
        (
            Reasoning("none"),
            ModelFacts(thinking="thinking_budget", refused=("thinking_budget.0",)),
            {"includeThoughts": False, "thinkingBudget": 128},
        ),
        (Reasoning("high"), ModelFacts(thinking="none"), None),
    ],
)
def test_reasoning_by_model(reasoning: Reasoning, facts: ModelFacts, config: object) -> None:
    """A level or a budget, and whether thoughts are shown."""
    written = _write(_asked(reasoning=reasoning), facts)

    assert written.get("generationConfig", {}).get("thinkingConfig") == config


def test_structured_output_by_model() -> None:
    """The schema as it is, the subset, a JSON object, or the type alone."""
    schema = b'{"type":"object","properties":{"a":{"type":["string","null"]}},"additionalProperties":false}'
    asked = _asked(format=Format(schema))
    kind = {"responseMimeType": "application/json"}

    assert _write(asked)["generationConfig"] == {**kind, "responseJsonSchema": json.loads(schema)}
    assert _write(asked, ModelFacts(schema_keywords=False))["generationConfig"] == {
        **kind,
        "responseSchema": {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}},
    }
    assert _write(asked, ModelFacts(json_schema=False))["generationConfig"] == kind
    assert _write(_asked(format=Format()))["generationConfig"] == kind


def test_answer_in_json_beside_tools_is_asked_for_in_words_of_older_models() -> None:
    """They answer 400 to a response mime type with functions; newer ones take both."""
    facts, tools = ModelFacts(thinking="thinking_budget", json_with_tools=False), [Tool("f")]
    schema = b'{"type":"object","properties":{"a":{"type":"string"}}}'
    dropped = DroppedFields()

    told = _write(_asked(format=Format(schema), tools=tools), facts, dropped)
    alone = _write(_asked(format=Format(schema)), facts)
    newer = _write(_asked(format=Format(schema), tools=tools))

    assert "generationConfig" not in told and dropped.names == ("response_format",)
    assert schema.decode() in told["systemInstruction"]["parts"][0]["text"]
    assert alone["generationConfig"] == newer["generationConfig"]
    assert "systemInstruction" not in alone and "systemInstruction" not in newer


def test_pitfall_31_the_subset_of_a_tools_schema() -> None:
    """Where a model takes no JSON schema; one without properties is left out."""
    facts = ModelFacts(schema_keywords=False)
    tools = [
        Tool("f", None, b'{"type":"object","properties":{}}'),
        Tool(
            "g", b'"d"', b'{"$defs":{"A":{"type":"integer"}},"type":"object","properties":{"a":{"$ref":"#/$defs/A"}}}'
        ),
    ]
    schemas = SubsetSchemas()

    for _ in range(2):
        body = GenerateModel(facts, DroppedFields(), schemas).write(_asked(tools=tools), "m").body
        assert json.loads(body)["tools"][0]["functionDeclarations"] == [
            {"name": "f"},
            {
                "name": "g",
                "description": "d",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
        ]
    with pytest.raises(BadRequestError):
        _write(_asked(tools=[Tool("f", None, b"[]")]), facts)


def test_fields_without_a_counterpart_are_said() -> None:
    """Marks, keys, users, names, strict tools, tiers."""
    dropped = DroppedFields()
    request = _asked(
        Message(Role.USER, [Text(b'"x"', CacheMark("5m"))], "Ada"),
        tools=[Tool("f", strict=True)],
        parallel_tools=False,
        user="u",
        cache_key="k",
        tier="scale",
    )

    _write(request, dropped=dropped)

    assert set(dropped.names) == {"cache", "name", "strict", "parallel_tool_calls", "user", "prompt_cache_key", "tier"}
    assert _write(_asked(tier="default"))["serviceTier"] == "standard"
    assert "serviceTier" not in _write(_asked(tier="auto"))


def test_prefill_is_refused_where_the_model_cannot() -> None:
    """A trailing message of the assistant."""
    asked = _asked(_user(Text(b'"x"')), _said(Text(b'"The"')))

    assert _write(asked)["contents"][1]["role"] == "model"
    with pytest.raises(BadRequestError):
        _write(asked, ModelFacts(prefill=False))


# -- answers ------------------------------------------------------------------------------------------


def _reply(*parts: object, reason: str | None = "STOP", **fields: object) -> bytes:
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason}
    return json.dumps({"candidates": [candidate], "responseId": "r", "modelVersion": "v", **fields}).encode()


def _sse(*replies: bytes) -> bytes:
    return b"".join(b"data: " + reply + b"\r\n\r\n" for reply in replies)


def _read(data: bytes, size: int = 0) -> list[Event]:
    reader = GenerateModel(_LEVEL, DroppedFields()).stream()
    events: list[Event] = []
    for at in range(0, len(data), size or len(data)):
        events += reader.feed(data[at : at + (size or len(data))])
    return events + reader.end()


def _stop(body: bytes) -> Stop:
    return GenerateModel(_LEVEL, DroppedFields()).answer(body).stop


def test_pitfall_05_a_call_is_the_reason_for_the_end() -> None:
    """STOP says nothing of calls: whether it comes with the call, a chunk later or a chunk before."""
    call = {"functionCall": {"name": "f", "args": {"a": 1}}}
    assert _stop(_reply(call)) == Stop(StopReason.TOOLS)
    for data in (
        _sse(_reply(call)),
        _sse(_reply(call, reason=None), _reply()),
        _sse(_reply(call, reason=None), _reply({"text": ""})),
        _sse(_reply(), _reply(call, reason=None)),
    ):
        events = _read(data)
        assert events[-2:] == [Finish(Stop(StopReason.TOOLS)), End()]
        assert Delta(0, b'"{\\"a\\": 1}"') in events


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR", "ESCALATION"])
def test_pitfall_38_filters(reason: str) -> None:
    """With what Google says of it."""
    body = json.dumps({"candidates": [{"finishReason": reason, "finishMessage": "no"}]}).encode()

    assert _stop(body) == Stop(StopReason.FILTER, explanation=b'"no"')
    assert _read(_sse(body))[-2:] == [Finish(Stop(StopReason.FILTER, explanation=b'"no"')), End()]


def test_pitfall_38_a_blocked_prompt_has_no_candidates() -> None:
    """It is a filter's doing, not an empty answer."""
    body = b'{"promptFeedback":{"blockReason":"SAFETY","blockReasonMessage":"bad"},"usageMetadata":{}}'

    assert _stop(body) == Stop(StopReason.FILTER, explanation=b'"bad"')
    assert _read(_sse(body))[-2:] == [Finish(Stop(StopReason.FILTER, explanation=b'"bad"')), End()]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("MAX_TOKENS", Stop(StopReason.LENGTH)),
        ("CONTINUATION", Stop(StopReason.LENGTH)),
        ("OTHER", Stop(StopReason.END, unknown="OTHER")),
        ("SOMETHING_NEW", Stop(StopReason.END, unknown="SOMETHING_NEW")),
    ],
)
def test_other_reasons(reason: str, stop: Stop) -> None:
    """Unknown ones are the end, and said."""
    assert _stop(_reply({"text": "x"}, reason=reason)) == stop


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE"])
def test_a_broken_answer_is_an_error(reason: str) -> None:
    """Never an end: another upstream may be asked."""
    body = _reply(reason=reason)
    with pytest.raises(ReplyError) as caught:
        GenerateModel(_LEVEL, DroppedFields()).answer(body)
    assert (caught.value.error.kind, caught.value.error.status) == (ErrorKind.API, 502)

    events = _read(_sse(_reply({"text": "x"}, reason=None), body))
    assert isinstance(events[-1], Failed)


def test_pitfall_10_and_15_thoughts_and_their_signatures() -> None:
    """A thought alone opens a block; signatures stand with what they sign."""
    data = _sse(
        _reply({"text": "hm", "thought": True}, reason=None),
        _reply({"text": "so", "thought": True}, {"text": "yes"}, reason=None),
        _reply({"text": "", "thoughtSignature": "sig"}, {"functionCall": {"name": "f"}, "thoughtSignature": "call"}),
    )

    events = [event for event in _read(data) if isinstance(event, Open | Delta | Sign | Close)]

    assert events == [
        Open(0, Kind.THINKING),
        Delta(0, b'"hm"'),
        Delta(0, b'"so"'),
        Close(0),
        Open(1, Kind.TEXT),
        Delta(1, b'"yes"'),
        Sign(1, Signature("google", "sig")),
        Close(1),
        Open(2, Kind.TOOL, "", "f"),
        Sign(2, Signature("google", "call")),
        Delta(2, b'"{}"'),
        Close(2),
    ]


def test_pitfall_16_usage_is_cumulative() -> None:
    """The last count of each kind is the one; thoughts and tools' prompts are added to what they belong to."""
    usages = (
        {"promptTokenCount": 5, "thoughtsTokenCount": 3},
        {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 4, "cachedContentTokenCount": 1},
        {"promptTokenCount": 5, "candidatesTokenCount": 7, "thoughtsTokenCount": 4, "toolUsePromptTokenCount": 10},
    )
    data = _sse(*[_reply({"text": "x"}, usageMetadata=each) for each in usages])

    total = Usage()
    for event in _read(data):
        if isinstance(event, Used):
            total = event.usage.over(total)

    assert total == Usage(input=15, output=11, cached=1, reasoning=4)


def test_pitfall_32_usage_only_tail_and_array_body() -> None:
    """A last chunk with counts alone; an array cut into bytes; a byte order mark before either."""
    replies = (_reply({"text": 'a}]\\"{'}), b'{"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":4}}')

    for data in (_sse(*replies), b"[" + b"\r\n,\r\n".join(replies) + b"\n]\n"):
        for mark, size in itertools.product((b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n"), (0, 1, 2, 3, 4)):
            events = _read(mark + data, size)
            assert events[-2:] == [Finish(Stop(StopReason.END)), End()]
            assert Used(Usage(3, 4)) in events
            assert Delta(0, b'"a}]\\\\\\"{"') in events


@pytest.mark.parametrize(
    "tail",
    [
        b'{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}',
        b'{\n  "error": {\n    "code": 503,\n    "message": "overloaded",\n    "status": "UNAVAILABLE"\n  }\n}\n',
        b'[{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}]',
        b'data: {"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}\r\n\r\n',
    ],
)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_pitfall_32_and_36_an_error_at_the_end_or_alone(tail: bytes, size: int) -> None:
    """As an event or as bare JSON, after other events or as all there is: never an end, even after a reason."""
    for before in (b"", _sse(_reply({"text": "x"}, reason=None)), _sse(_reply({"text": "x"}))):
        events = _read(before + tail, size)

        assert isinstance(events[-1], Failed)
        assert events[-1].error.kind is ErrorKind.UNAVAILABLE
        assert events[-1].error.status == 503
        assert events[-1].error.message == "overloaded"
        assert not any(isinstance(event, Finish | End) for event in events)


def test_pitfall_37_no_reason_is_a_cut() -> None:
    """However cleanly the connection ended."""
    for data in (
        b"",
        b"\r\n",
        _sse(_reply({"text": "x"}, reason=None)),
        _sse(_reply({"text": "x"})) + b'data: {"candid',
        _sse(_reply({"text": "x"})) + b"dat",
        b"[" + _reply({"text": "x"}),
    ):
        assert not any(isinstance(event, End | Finish) for event in _read(data, 1))


def test_partial_arguments_are_put_together() -> None:
    """Vertex sends them so where it is asked to."""
    parts = (
        {"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "s"},
        {
            "functionCall": {
                "partialArgs": [{"jsonPath": "$.city", "stringValue": "Ber", "willContinue": True}],
                "willContinue": True,
            }
        },
        {"functionCall": {"partialArgs": [{"jsonPath": "$.city", "stringValue": "lin"}], "willContinue": True}},
        {
            "functionCall": {
                "partialArgs": [
                    {"jsonPath": "$.days[0].n", "numberValue": 2},
                    {"jsonPath": "$['a b'][1]", "boolValue": True},
                    {"jsonPath": "$.none", "nullValue": "NULL_VALUE"},
                ],
                "willContinue": True,
            }
        },
        {"functionCall": {}},
    )
    data = _sse(*[_reply(part, reason=None) for part in parts], _reply())

    events = [event for event in _read(data, 1) if isinstance(event, Open | Delta | Sign | Close | Finish)]

    assert isinstance(events[2], Delta)
    assert json.loads(json.loads(events[2].text)) == {
        "city": "Berlin",
        "days": [{"n": 2}],
        "a b": [None, True],
        "none": None,
    }
    assert [*events[:2], *events[3:]] == [
        Open(0, Kind.TOOL, "", "f"),
        Sign(0, Signature("google", "s")),
        Close(0),
        Finish(Stop(StopReason.TOOLS)),
    ]
    cut = _sse(*[_reply(part, reason=None) for part in parts[:3]], _reply())
    assert not any(isinstance(event, End) for event in _read(cut))


@pytest.mark.parametrize("path", ["city", "$", "$.a..b", "$[99999]", "$[?(@.a)]", "$" + ".a" * 65])
def test_partial_arguments_of_no_known_path_are_refused(path: str) -> None:
    """Nothing is guessed."""
    part = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": path, "stringValue": "x"}]}}

    with pytest.raises(BrokenReplyError):
        _read(_sse(_reply(part)))


def test_bounds() -> None:
    """Too many calls, too large an event: an error, and nothing is lost silently."""
    call = {"functionCall": {"name": "f", "args": {}}}
    with pytest.raises(BrokenReplyError):
        _read(_sse(_reply(*[call] * 129)))
    with pytest.raises(BrokenReplyError):
        _read(b'data: {"x":"' + b"a" * MOST_REPLY_BYTES + b'"}\r\n\r\n', 65536)
    with pytest.raises(BrokenReplyError):
        _read(b'[{"x":"' + b"a" * MOST_REPLY_BYTES + b'"}]', 65536)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"candidates":1}', b'{"candidates":[]}', b"\xff", b'{"a":"\xff"}']
)
def test_an_answer_that_is_none(body: bytes) -> None:
    """An error of dialects' own."""
    with pytest.raises((BrokenReplyError, ReplyError)):
        GenerateModel(_LEVEL, DroppedFields()).answer(body)


# -- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}, ErrorKind.INVALID),
        (401, {"code": 401, "message": "m", "status": "UNAUTHENTICATED"}, ErrorKind.AUTHENTICATION),
        (403, {"code": 403, "message": "m", "status": "PERMISSION_DENIED"}, ErrorKind.PERMISSION),
        (404, {"code": 404, "message": "m", "status": "NOT_FOUND"}, ErrorKind.NOT_FOUND),
        (429, {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}, ErrorKind.RATE_LIMIT),
        (500, {"code": 500, "message": "m", "status": "INTERNAL"}, ErrorKind.API),
        (503, {"code": 503, "message": "m", "status": "UNAVAILABLE"}, ErrorKind.UNAVAILABLE),
        (504, {"code": 504, "message": "m", "status": "DEADLINE_EXCEEDED"}, ErrorKind.TIMEOUT),
        (413, {"code": 413, "message": "m"}, ErrorKind.TOO_LARGE),
        (418, {"message": "m"}, ErrorKind.INVALID),
    ],
)
def test_errors_by_googles_status(status: int, body: dict[str, object], kind: ErrorKind) -> None:
    """Alone, or in an array as the shim of OpenAI's API sends them."""
    model = GenerateModel(_LEVEL, DroppedFields())
    for data in ({"error": body}, [{"error": body}]):
        error = model.error(status, json.dumps(data).encode())
        assert (error.kind, error.status, error.message) == (kind, status, "m")


def test_errors_say_when_to_try_again_and_that_a_key_is_wrong() -> None:
    """Google says both in details."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    body = {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}}
    error = GenerateModel(_LEVEL, DroppedFields()).error(429, json.dumps(body).encode())
    assert (error.retry_after_s, error.code) == (34.5, "resource_exhausted")

    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    body = {"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT", "details": details}}
    assert GenerateModel(_LEVEL, DroppedFields()).error(400, json.dumps(body).encode()).kind is ErrorKind.AUTHENTICATION


@pytest.mark.parametrize(
    "body", [b"", b"<html>x</html>", b"[]", b"[1]", b'{"error":"x"}', b'{"error":{"code":"x"}}', b"\xff", b"x" * 9999]
)
def test_an_error_may_be_anything(body: bytes) -> None:
    """HTML, empty, cut: its status stays, its text is cut."""
    error = GenerateModel(_LEVEL, DroppedFields()).error(502, body)

    assert error.status == 502
    assert error.message
    assert len(error.message) <= 4096
