"""What Gemini's clients send, and what they get back: read by google-genai itself."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.genai import errors, types

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    Audio,
    Block,
    Choice,
    ClientCall,
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
    MediaKind,
    Open,
    Reasoning,
    Refusal,
    Request,
    Role,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolChoice,
    ToolResult,
    ToolUse,
    Usage,
    Used,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.streams.events import answer_of, events_of
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES

_CALL = ClientCall("abc123", 1_700_000_000, "claude-x", True)
_USER = {"role": "user", "parts": [{"text": "Hi"}]}


def _read(body: dict[str, Any], dropped: DroppedFields | None = None) -> Request:
    return GenerateClient(_CALL, dropped or DroppedFields()).read(json.dumps({"contents": [_USER], **body}).encode())


def _config(**config: Any) -> Request:
    return _read({"generationConfig": config})


# -- requests -----------------------------------------------------------------------------------------


def test_model_and_stream_are_those_of_the_path() -> None:
    """They stand nowhere in the body."""
    request = _read({"model": "models/other"})

    assert (request.model, request.stream) == ("claude-x", True)


def test_snake_case_is_read_like_camel_case() -> None:
    """Google's parser takes both, at every level; SDKs mix them."""
    camel = {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"inlineData": {"mimeType": "image/png", "data": "AAA="}},
                    {"fileData": {"mimeType": "audio/mpeg", "fileUri": "gs://b/x"}},
                ],
            },
            {"role": "model", "parts": [{"functionCall": {"name": "f"}, "thoughtSignature": "s"}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}},
        "generationConfig": {
            "maxOutputTokens": 5,
            "topP": 0.5,
            "stopSequences": ["x"],
            "responseMimeType": "application/json",
            "responseJsonSchema": {"some_key": {"a_b": 1}},
            "thinkingConfig": {"thinkingBudget": 7, "includeThoughts": True},
        },
        "serviceTier": "flex",
    }

    def snake(value: Any) -> Any:
        if isinstance(value, list):
            return [snake(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            "".join(f"_{each.lower()}" if each.isupper() else each for each in name): value[name]
            if name == "responseJsonSchema"
            else snake(value[name])
            for name in value
        }

    dropped = DroppedFields()
    assert _read(snake(camel), dropped) == _read(camel, dropped)
    assert dropped.names == ()
    request = _read(camel)
    assert request.max_tokens == 5
    assert request.format == Format(b'{"some_key": {"a_b": 1}}')
    assert request.reasoning == Reasoning(budget_tokens=7, summary="auto")
    assert request.tier == "flex"
    assert request.tool_choice == ToolChoice(Choice.REQUIRED, allowed=("f", "g"))


def test_calls_without_ids_get_the_same_ones_each_time() -> None:
    """By their place; responses are matched by name, the first open call first."""
    contents = [
        _USER,
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "f", "args": {"n": 1}}},
                {"functionCall": {"name": "g"}},
                {"functionCall": {"name": "f", "args": {"n": 2}}},
                {"functionCall": {"name": "h", "id": "own"}},
            ],
        },
        {
            "role": "function",
            "parts": [
                {"functionResponse": {"name": "g", "response": {"output": "g"}}},
                {"functionResponse": {"name": "f", "response": {"output": "1"}}},
                {"functionResponse": {"name": "f", "response": {"output": "2"}}},
                {"functionResponse": {"name": "h", "id": "own", "response": {"output": "h"}}},
            ],
        },
    ]

    request = _read({"contents": contents})
    longer = _read({"contents": [*contents, {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]})

    calls = [block.id for block in request.messages[1].blocks if isinstance(block, ToolUse)]
    results = [(block.id, block.parts) for block in request.messages[2].blocks if isinstance(block, ToolResult)]
    assert calls == ["call_1", "call_2", "call_3", "own"]
    assert results == [
        ("call_2", [Text(b'"g"')]),
        ("call_1", [Text(b'"1"')]),
        ("call_3", [Text(b'"2"')]),
        ("own", [Text(b'"h"')]),
    ]
    assert longer.messages[:3] == request.messages


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "x"}, '"x"', False),
        ({"output": {"a": 1}}, '"{\\"output\\": {\\"a\\": 1}}"', False),
        ({"error": "x"}, '"x"', True),
        ({"error": {"code": 1}}, '"{\\"code\\": 1}"', True),
        ({"result": "x"}, '"{\\"result\\": \\"x\\"}"', False),
        ({}, '"{}"', False),
    ],
)
def test_results_become_texts(response: object, text: str, is_error: bool) -> None:
    """And go back to Google as they were."""
    contents = [
        _USER,
        {"role": "model", "parts": [{"functionCall": {"name": "f", "id": "c"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "id": "c", "response": response}}]},
    ]

    request = _read({"contents": contents})

    assert request.messages[2].blocks == [ToolResult("c", [Text(text.encode())], "f", is_error)]
    written = json.loads(GenerateModel(ModelFacts(), DroppedFields()).write(request, "m").body)
    assert written["contents"][2]["parts"][0]["functionResponse"]["response"] == response


def test_media() -> None:
    """Pictures, sounds, other files; base64 of either alphabet; files of Google's are ids."""
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": "-_A="}},
        {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}},
        {"inlineData": {"mimeType": "application/pdf", "data": "AA==", "displayName": "x.pdf"}},
        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
        {"fileData": {"fileUri": "https://x.example/a.png", "mimeType": "image/png"}, "videoMetadata": {"fps": 1}},
    ]
    dropped = DroppedFields()

    blocks = _read({"contents": [{"role": "user", "parts": parts}]}, dropped).messages[0].blocks

    picture, sound, document, file, linked = blocks
    assert isinstance(picture, Image)
    assert picture.source.value == "+/A="
    assert isinstance(sound, Audio)
    assert sound.format == "wav"
    assert isinstance(document, Document)
    assert document.name == "x.pdf"
    assert isinstance(file, Document)
    assert file.source.kind is MediaKind.ID
    assert isinstance(linked, Image)
    assert linked.source.kind is MediaKind.URL
    assert dropped.names == ("video_metadata",)


@pytest.mark.parametrize(
    ("config", "reasoning"),
    [
        ({}, None),
        ({"includeThoughts": True}, Reasoning(summary="auto")),
        ({"thinkingLevel": "HIGH"}, Reasoning("high")),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None),
        ({"thinkingBudget": -1, "includeThoughts": False}, Reasoning(enabled=True, summary="omitted")),
        ({"thinkingBudget": 0}, Reasoning(enabled=False)),
        ({"thinkingBudget": "100"}, Reasoning(budget_tokens=100)),
    ],
)
def test_thinking(config: object, reasoning: Reasoning | None) -> None:
    """A level, a budget, as the model likes, not at all."""
    assert _config(thinkingConfig=config).reasoning == reasoning


@pytest.mark.parametrize(
    ("calling", "choice"),
    [
        ({}, None),
        ({"mode": "AUTO"}, ToolChoice(Choice.AUTO)),
        ({"mode": "validated", "allowedFunctionNames": ["f"]}, ToolChoice(Choice.AUTO, allowed=("f",))),
        ({"mode": "ANY"}, ToolChoice(Choice.REQUIRED)),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, ToolChoice(Choice.TOOL, "f")),
        ({"mode": "NONE", "allowedFunctionNames": ["f"]}, ToolChoice(Choice.NONE)),
    ],
)
def test_choices(calling: object, choice: ToolChoice | None) -> None:
    """Each mode."""
    assert _read({"toolConfig": {"functionCallingConfig": calling}}).tool_choice == choice


def test_googles_own_schemas_become_json_schemas() -> None:
    """Of functions and of answers."""
    schema = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}}
    expected = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}

    request = _read(
        {
            "tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}],
            "generationConfig": {"responseMimeType": "application/json", "responseSchema": schema},
        }
    )

    assert json.loads(request.tools[0].parameters or b"") == expected
    assert request.format is not None
    assert json.loads(request.format.schema or b"") == expected


def test_fields_that_only_gemini_has_are_dropped_and_said() -> None:
    """Those that tune an answer."""
    dropped = DroppedFields()

    _read(
        {
            "safetySettings": [{}],
            "labels": {"a": "b"},
            "tools": [{"googleSearch": {}}, {"code_execution": {}}],
            "generationConfig": {"mediaResolution": "LOW", "logprobs": 2, "candidateCount": 1, "whatever": 1},
            "somethingNew": 1,
            "cachedContent": None,
        },
        dropped,
    )

    assert dropped.names == ("safety_settings", "labels", "tools.hosted", "media_resolution", "logprobs", "unknown")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs"),
        ({"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"temperature": "hot"}}, "generationConfig.temperature"),
        ({"generationConfig": []}, "generationConfig"),
        ({"contents": None}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": "Hi"}, "contents"),
        ({"contents": [{"role": "assistant", "parts": []}]}, "contents[0].role"),
        ({"contents": [_USER, {"parts": [{"text": 1}]}]}, "contents[1].parts[0].text"),
        ({"contents": [_USER, {"parts": [{}, {"thought": "x"}]}]}, "contents[1].parts[1].thought"),
        ({"contents": [{"parts": [{"functionCall": {}}]}]}, "contents[0].parts[0].functionCall.name"),
        (
            {"contents": [{"parts": [{"functionCall": {"name": "f", "args": "x"}}]}]},
            "contents[0].parts[0].functionCall.args",
        ),
        ({"contents": [{"parts": [{"inlineData": {"data": "x"}}]}]}, "contents[0].parts[0].inlineData"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"tools": [{}, {"functionDeclarations": [{"name": 1}]}]}, "tools[1].functionDeclarations[0].name"),
        (
            {"tools": [{"functionDeclarations": [{"name": "f", "parameters": []}]}]},
            "tools[0].functionDeclarations[0].parameters",
        ),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}},
            "toolConfig.functionCallingConfig.mode",
        ),
    ],
)
def test_what_cannot_be_read_or_must_not_be_dropped_is_refused(body: dict[str, Any], param: str) -> None:
    """With the path of the field."""
    with pytest.raises(BadRequestError) as caught:
        _read(body)

    assert caught.value.param == param


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"contents":[{"parts":[{"text":"\xff"}]}]}', b"[" * 100_000])
def test_pitfall_44_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    """Invalid UTF-8 too, wherever it stands."""
    with pytest.raises(BadRequestError):
        GenerateClient(_CALL, DroppedFields()).read(body)


def test_pitfall_44_texts_stay_as_they_are() -> None:
    """Lone surrogates, integers of twenty digits; of two equal keys the last counts."""
    body = (
        b'{"contents":[],"contents":[{"parts":[{"text":"\\ud800"}]},'
        b'{"role":"model","parts":[{"functionCall":{"name":"f","args":{"n":12345678901234567890}}}]}]}'
    )

    messages = GenerateClient(_CALL, DroppedFields()).read(bytearray(body)).messages

    assert messages[0].blocks == [Text(b'"\\ud800"')]
    assert messages[1].blocks == [ToolUse("call_1", "f", b'{"n":12345678901234567890}')]


# -- answers ------------------------------------------------------------------------------------------

_ANTHROPIC = Signature("anthropic", "Eq+/.x=")
_REDACTED = Signature("anthropic", "hidden")
_BLOCKS: list[Block] = [
    Thinking(b'"Let me see"', _ANTHROPIC),
    Thinking(b'""', _REDACTED, is_redacted=True),
    Text(b'"Hello \\u00fc"'),
    ToolUse("toolu_1", "get_weather", b'{"city":"Paris","n":12345678901234567890}'),
    ToolUse("", "get_time", b"{}", Signature("google", "c2ln")),
]
_ANSWER = Answer("msg_1", "claude-x-1", _BLOCKS, Stop(StopReason.TOOLS), Usage(100, 50, cached=40, reasoning=20))


def _write(answer: Answer) -> types.GenerateContentResponse:
    return types.GenerateContentResponse.model_validate(
        json.loads(GenerateClient(_CALL, DroppedFields()).answer(answer))
    )


def _stream(events: list[Event]) -> list[types.GenerateContentResponse]:
    writer = GenerateClient(_CALL, DroppedFields()).stream()
    texts = b"".join([writer.write(event) for event in events]).split(b"\r\n\r\n")
    assert texts.pop() == b""
    return [types.GenerateContentResponse.model_validate(json.loads(text.removeprefix(b"data: "))) for text in texts]


def _parts(*responses: types.GenerateContentResponse) -> list[types.Part]:
    return [part for response in responses for part in (response.parts or ())]


def test_answer_as_the_sdk_reads_it() -> None:
    """Texts, thoughts, calls with ids, counts."""
    read = _write(_ANSWER)

    thought, redacted, text, weather, time = _parts(read)
    assert (thought.text, thought.thought) == ("Let me see", True)
    assert redacted.thought
    assert text.text == "Hello ü"
    assert weather.function_call is not None
    assert (weather.function_call.id, weather.function_call.args) == (
        "toolu_1",
        {"city": "Paris", "n": 12345678901234567890},
    )
    assert time.function_call is not None
    assert time.function_call.id == "call_abc1234"
    assert time.thought_signature == b"sig"
    assert read.candidates is not None
    assert read.candidates[0].finish_reason == "STOP"
    assert read.response_id == "msg_1"
    assert read.model_version == "claude-x-1"
    usage = read.usage_metadata
    assert usage is not None
    assert (
        usage.prompt_token_count,
        usage.cached_content_token_count,
        usage.candidates_token_count,
        usage.thoughts_token_count,
        usage.total_token_count,
    ) == (100, 40, 30, 20, 150)


def test_stream_says_what_the_plain_answer_says() -> None:
    """The parts of all chunks are those of the answer; the reason and the counts come last, once."""
    chunks = _stream(events_of(_ANSWER))
    plain = _write(_ANSWER)

    assert [part.function_call for part in _parts(*chunks) if part.function_call] == [
        part.function_call for part in _parts(plain) if part.function_call
    ]
    for is_thought in (True, False):
        texts = [
            "".join(part.text or "" for part in _parts(*each) if bool(part.thought) is is_thought)
            for each in (chunks, [plain])
        ]
        assert texts[0] == texts[1]
    assert [part.thought_signature for part in _parts(*chunks) if part.thought_signature] == [
        part.thought_signature for part in _parts(plain) if part.thought_signature
    ]
    assert [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates][-2:] == [None, "STOP"]
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == [plain.usage_metadata]
    assert {chunk.response_id for chunk in chunks} == {"msg_1"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_pitfall_10_to_12_signatures_come_back_through_the_sdks_history(is_stream: bool) -> None:
    """The SDK decodes and encodes them as base64 and keeps each chunk as a turn: what comes back is what was sent."""
    openai = Thinking(b'"think"', Signature("openai", "enc.rypted", "rs_1.x"))
    unsaid = Thinking(b'""', Signature("anthropic", "empty"))
    answer = Answer("", "", [openai, unsaid, *_BLOCKS], Stop(StopReason.TOOLS))
    responses = _stream(events_of(answer)) if is_stream else [_write(answer)]
    history = [each.candidates[0].content for each in responses if each.candidates and each.candidates[0].content]
    body = {
        "contents": [
            _USER,
            *[content.model_dump(mode="json", exclude_none=True, by_alias=True) for content in history],
        ]
    }

    messages = _read(body).messages

    assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT]
    blocks = [block for block in messages[1].blocks if block != Text(b'""')]
    assert blocks[:4] == [openai, unsaid, *_BLOCKS[:2]]
    assert isinstance(blocks[4], Text)
    assert json.loads(blocks[4].text) == "Hello ü"
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    assert [(call.id, call.name) for call in calls] == [("toolu_1", "get_weather"), ("call_abc1236", "get_time")]
    assert calls[1].signature == Signature("google", "c2ln")


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (StopReason.END, "STOP"),
        (StopReason.STOP_STRING, "STOP"),
        (StopReason.TOOLS, "STOP"),
        (StopReason.PAUSE, "STOP"),
        (StopReason.LENGTH, "MAX_TOKENS"),
        (StopReason.CONTEXT, "MAX_TOKENS"),
        (StopReason.FILTER, "SAFETY"),
    ],
)
def test_pitfall_38_reasons(stop: StopReason, reason: str) -> None:
    """Google's words; a filter's explanation is the message."""
    answer = Answer("i", "m", [Text(b'"x"')], Stop(stop, explanation=b'"why"'))

    for response in (_write(answer), _stream(events_of(answer))[-1]):
        assert response.candidates is not None
        assert response.candidates[0].finish_reason == reason
        assert response.candidates[0].finish_message == ("why" if reason == "SAFETY" else None)


def test_pitfall_38_a_refusal_is_a_text_that_safety_ended() -> None:
    """The model's own words stay."""
    answer = Answer("i", "m", [Refusal(b'"I will not"')], Stop(StopReason.END))

    for responses in ([_write(answer)], _stream(events_of(answer))):
        assert "".join(part.text or "" for part in _parts(*responses)) == "I will not"
        assert responses[-1].candidates is not None
        assert responses[-1].candidates[0].finish_reason == "SAFETY"
        assert responses[-1].candidates[0].finish_message == "I will not"


def test_an_empty_answer_stays_in_the_sdks_history() -> None:
    """It has a content with a part."""
    answer = Answer("", "", [], Stop(StopReason.FILTER))

    for response in (_write(answer), _stream(events_of(answer))[-1]):
        assert [part.text for part in _parts(response)] == [""]
        assert (response.model_version, response.response_id) == ("claude-x", "abc123")


def test_pitfall_03_and_08_overlapping_calls_come_whole_and_in_their_order() -> None:
    """Nothing of a call is told before its end; no arguments are an empty object; broken ones are kept."""
    events: list[Event] = [
        Start("i", "m"),
        Open(0, Kind.TOOL, "a", "f"),
        Delta(0, b'"{\\"x\\":"'),
        Open(1, Kind.TOOL, "b", "g"),
        Delta(1, b'"{\\"y"'),
        Open(2, Kind.TOOL, "c", "h"),
        Delta(0, b'" 1}"'),
        Close(2),
        Close(0),
        Close(1),
        Finish(Stop(StopReason.TOOLS)),
        Used(Usage(1, 2)),
        End(),
    ]

    calls = [part.function_call for part in _parts(*_stream(events)) if part.function_call]

    assert [(call.id, call.args) for call in calls] == [
        ("c", {}),
        ("a", {"x": 1}),
        ("b", {"_invalid_arguments": '{"y'}),
    ]


def test_pitfall_36_and_37_an_error_or_a_cut_is_never_an_end() -> None:
    """An error is an event that the SDK raises; a cut leaves the reason out."""
    writer = GenerateClient(_CALL, DroppedFields()).stream()
    begun: list[Event] = [Start("i", "m"), Open(0, Kind.TEXT), Delta(0, b'"x"'), Close(0), Finish(Stop(StopReason.END))]
    written = b"".join([writer.write(event) for event in begun])

    failed = writer.write(Failed(ApiError(ErrorKind.OVERLOADED, 529, 'too "much"')))

    assert b"finishReason" not in written
    assert failed.startswith(b'data: {"error":')
    body = json.loads(failed.removeprefix(b"data: "))
    error = errors.ServerError(503, body)
    assert (error.code, error.status, error.message) == (503, "UNAVAILABLE", 'too "much"')


def test_errors_in_googles_shape() -> None:
    """With what field was wrong and when to try again."""
    client = GenerateClient(_CALL, DroppedFields())

    bad = json.loads(client.error(ApiError(ErrorKind.INVALID, 400, "m", param="contents[0]")))["error"]
    limited = json.loads(client.error(ApiError(ErrorKind.RATE_LIMIT, 429, "m", retry_after_s=1.5)))["error"]

    assert (bad["code"], bad["status"]) == (400, "INVALID_ARGUMENT")
    assert bad["details"][0]["fieldViolations"] == [{"field": "contents[0]", "description": "m"}]
    assert limited["status"] == "RESOURCE_EXHAUSTED"
    assert limited["details"][0]["retryDelay"] == "1.5s"
    for kind in ErrorKind:
        assert json.loads(client.error(ApiError(kind, kind.value, "m")))["error"]["status"]


def test_bounds() -> None:
    """Of open blocks and of bytes that wait."""
    writer = GenerateClient(_CALL, DroppedFields()).stream()
    with pytest.raises(BrokenReplyError):
        for n in range(129):
            writer.write(Open(n, Kind.TOOL, "", "f"))
    writer = GenerateClient(_CALL, DroppedFields()).stream()
    writer.write(Open(0, Kind.TOOL, "", "f"))
    with pytest.raises(BrokenReplyError):
        for _ in range(MOST_WAITING_BYTES // 65536 + 1):
            writer.write(Delta(0, b'"' + b"x" * 65536 + b'"'))


def test_a_signature_alone_closes_its_block() -> None:
    """A text that came in pieces, then its signature: Google's goes out as it is."""
    events: list[Event] = [
        Start("i", "m"),
        Open(0, Kind.TEXT),
        Delta(0, b'"x"'),
        Sign(0, Signature("google", base64.b64encode(b"sig").decode())),
        Close(0),
        Finish(Stop(StopReason.END)),
        End(),
    ]

    assert [part.thought_signature for part in _parts(*_stream(events))] == [None, b"sig", None]
    assert answer_of(events).blocks == [Text(b'"x"', signature=Signature("google", "c2ln"))]


def test_array_has_the_same_items_as_the_events() -> None:
    """It is closed by the end of a whole answer alone."""
    answer = Answer("a", "m", [Text(b'"Hi\\n"'), ToolUse("c", "f", b'{"a":1}')], Stop(StopReason.TOOLS))
    call = ClientCall("0a", 1, "m", stream=True)
    events = GenerateClient(call, DroppedFields()).stream()
    array = GenerateClient(ClientCall("0a", 1, "m", stream=True, is_array=True), DroppedFields()).stream()
    sent = b"".join(events.write(event) for event in events_of(answer))
    pieces = [array.write(event) for event in events_of(answer)]

    assert json.loads(b"".join(pieces)) == [json.loads(line[6:]) for line in sent.split(b"\r\n") if line]
    for n in range(1, len(pieces)):
        with pytest.raises(ValueError):
            json.loads(b"".join(pieces[:n]) or b"[")


def test_array_is_not_closed_after_an_error() -> None:
    """So that nobody takes it for whole."""
    array = GenerateClient(ClientCall("0a", 1, "m", stream=True, is_array=True), DroppedFields()).stream()
    events: list[Event] = [Start("a", "m"), Open(0, Kind.TEXT), Delta(0, b'"Hi"')]
    events.append(Failed(ApiError(ErrorKind.UNAVAILABLE, 503, "Busy")))
    text = b"".join(array.write(event) for event in events)
    with pytest.raises(ValueError):
        json.loads(text)
    assert json.loads(text + b"]")[1]["error"]["code"] == 503
