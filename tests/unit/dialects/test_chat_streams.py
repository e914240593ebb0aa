"""Chat Completions, answers and streams: what servers send, and what clients get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.unit.dialects.assembling import assembled, events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    ClientCall,
    Close,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Kind,
    Open,
    Refusal,
    Request,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Used,
)
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import UNKNOWN_MODEL
from velox.protocol.sse_events import MOST_REPLY_BYTES

_CALL = ClientCall("abc", 7)
_TOOL = {"type": "function", "function": {"name": "f"}}


def _chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "finish_reason": finish} | ({} if delta is None else {"delta": delta})
    return b"data: " + json.dumps({"id": "x", "model": "m", "choices": [choice], **more}).encode() + b"\n\n"


def _events(*pieces: bytes) -> list[Event]:
    return events_of(ChatModel(UNKNOWN_MODEL, DroppedFields(), "row").stream(), b"".join(pieces))


_DONE = b"data: [DONE]\n\n"


def _client(*, call: ClientCall = _CALL, **fields: Any) -> ChatClient:
    client = ChatClient(call, DroppedFields())
    client.read(json.dumps({"model": "m", "messages": [], **fields}).encode())
    return client


def _chunks(events: Sequence[Event], **fields: Any) -> list[dict[str, Any]]:
    """Return the chunks that a client gets, each checked by the SDK."""
    writer = _client(**fields).stream()
    data = b"".join(writer.write(event) for event in events)
    found = []
    for line in data.split(b"\n\n"):
        if line and line != b"data: [DONE]":
            assert line.startswith(b"data: ")
            if b'{"error"' not in line and b'"custom"' not in line:
                ChatCompletionChunk.model_validate_json(line[6:], strict=True)
            found.append(json.loads(line[6:]))
    return found


def _deltas(events: Sequence[Event], **fields: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in _chunks(events, **fields) if chunk["choices"]]


_USUAL: list[Event] = [
    Start("x", "m"),
    Open(0, Kind.TEXT),
    Delta(0, b'"Hi"'),
    Close(0),
    Finish(Stop(StopReason.END)),
    Used(Usage(5, 2, 1, None, None, 1)),
    End(),
]


# -- written ----------------------------------------------------------------------------------------


def test_pitfall_01_first_chunk_has_the_role() -> None:
    """And an empty content, once."""
    deltas = _deltas(_USUAL)
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {}]


def test_pitfall_18_usage_only_when_asked_for_and_once() -> None:
    """In a chunk of its own, before [DONE]; the others say null then."""
    for asked in (False, True):
        options = {"stream_options": {"include_usage": True}} if asked else {}
        chunks = _chunks(_USUAL, stream=True, **options)
        assert [chunk.get("usage") for chunk in chunks if chunk.get("usage")] == (
            [
                {
                    "prompt_tokens": 5,
                    "completion_tokens": 2,
                    "total_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 1},
                    "completion_tokens_details": {"reasoning_tokens": 1},
                }
            ]
            if asked
            else []
        )
        assert all(("usage" in chunk) is asked for chunk in chunks)
        if asked:
            assert chunks[-1]["choices"] == []


def test_pitfall_02_tool_index_counts_tools() -> None:
    """From 0, whatever else is open; id, type and name come once."""
    events: list[Event] = [
        Start("x", "m"),
        Open(0, Kind.TEXT),
        Delta(0, b'"Hi"'),
        Close(0),
        Open(1, Kind.TOOL, "c1", "f"),
        Open(2, Kind.TOOL, "c2", "g"),
        Delta(2, rb'"{\"a\""'),
        Delta(1, rb'"{}"'),
        Delta(2, rb'":1}"'),
        Close(1),
        Close(2),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]

    calls = [call for delta in _deltas(events) for call in delta.get("tool_calls", ())]

    assert [(call["index"], call.get("id"), call["function"].get("name")) for call in calls] == [
        (0, "c1", "f"),
        (1, "c2", "g"),
        (1, None, None),
        (0, None, None),
        (1, None, None),
    ]
    assert [call["function"]["arguments"] for call in calls] == ["", "", '{"a"', "{}", ":1}"]


def test_call_is_one_chunk_for_a_client_that_reads_no_other() -> None:
    """Mistral's SDK wants a name in each chunk with calls. A custom tool comes as it does for all."""
    events: list[Event] = [
        Start("x", "m"),
        Open(0, Kind.TOOL, "c1", "f"),
        Delta(0, rb'"{\"a\""'),
        Open(1, Kind.TOOL, "c2", "g"),
        Delta(0, rb'":1}"'),
        Sign(0, Signature("google", "s")),
        Close(0),
        Close(1),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]
    written = _deltas(events, call=ClientCall("abc", 1, reads_whole_calls=True))

    calls = [call for delta in written for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]) for call in calls] == [
        (0, {"name": "f", "arguments": '{"a":1}'}),
        (1, {"name": "g", "arguments": "{}"}),
    ]
    assert calls[0]["id"].startswith("c1") and calls[0]["id"] != "c1" and calls[1]["id"] == "c2"


def test_pitfall_03_call_without_arguments_streams_an_empty_object() -> None:
    """Some servers send nothing at all."""
    events: list[Event] = [
        Start("x", "m"),
        Open(0, Kind.TOOL, "", "f"),
        Close(0),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]
    deltas = _deltas(events)
    assert [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())] == ["", "{}"]
    assert deltas[1]["tool_calls"][0]["id"] == "call_abc0"


def test_pitfall_10_signatures_come_back_from_streams_and_answers() -> None:
    """Texts in reasoning_content, signatures in reasoning_details: what a client echoes is what there was."""
    anthropic, google = Signature("anthropic", "S1=="), Signature("google", "G1==")
    events: list[Event] = [
        Start("x", "m"),
        Open(0, Kind.THINKING),
        Delta(0, b'"Let "'),
        Delta(0, '"mé"'.encode()),
        Sign(0, anthropic),
        Close(0),
        Open(1, Kind.REDACTED),
        Sign(1, Signature("anthropic", "D")),
        Close(1),
        Open(2, Kind.THINKING),
        Sign(2, Signature("anthropic", "S2")),
        Close(2),
        Open(3, Kind.THINKING),
        Delta(3, b'"more"'),
        Sign(3, Signature("openai", "E", "rs_1")),
        Close(3),
        Open(4, Kind.TEXT),
        Delta(4, b'"Hi"'),
        Sign(4, Signature("google", "G0")),
        Close(4),
        Open(5, Kind.TOOL, "c1", "f"),
        Sign(5, google),
        Delta(5, b'"{}"'),
        Close(5),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]
    blocks = assembled(events).blocks
    deltas = _deltas(events)
    streamed = {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "".join(delta.get("reasoning_content", "") for delta in deltas),
        "reasoning_details": [each for delta in deltas for each in delta.get("reasoning_details", ())],
        "tool_calls": [
            {"id": "c1__thought__G1==", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    }
    client = _client()
    plain = json.loads(client.answer(assembled(events)))["choices"][0]["message"]

    assert deltas[-4]["tool_calls"][0]["id"] == "c1__thought__G1=="
    assert {name: value for name, value in plain.items() if name != "refusal"} == streamed
    back = ChatClient(_CALL, DroppedFields()).read(json.dumps({"messages": [streamed]}).encode())
    assert back.messages[0].blocks == blocks
    del streamed["reasoning_details"]
    back = ChatClient(_CALL, DroppedFields()).read(json.dumps({"messages": [streamed]}).encode())
    assert isinstance(back.messages[0].blocks[-1], ToolUse)
    assert back.messages[0].blocks[-1].signature == google


def test_pitfall_38_refusals_and_filters() -> None:
    """A filter's explanation is a refusal beside content_filter; the model's own refusal stays one."""
    stop = Stop(StopReason.FILTER, explanation=b'"No."')
    events: list[Event] = [Start("x", "m"), Finish(stop), End()]
    assert _deltas(events)[1] == {"refusal": "No."}
    assert _chunks(events)[-1]["choices"][0]["finish_reason"] == "content_filter"
    choice = json.loads(_client().answer(Answer("x", "m", [], stop)))["choices"][0]
    assert (choice["finish_reason"], choice["message"]["refusal"]) == ("content_filter", "No.")
    own = Answer("x", "m", [Refusal(b'"Never."')], Stop(StopReason.END))
    choice = json.loads(_client().answer(own))["choices"][0]
    assert (choice["finish_reason"], choice["message"]["refusal"], choice["message"]["content"]) == (
        "stop",
        "Never.",
        None,
    )


def test_pitfall_36_error_in_a_stream_is_no_finish() -> None:
    """It is an error event; no [DONE] follows, nor anything else."""
    writer = _client().stream()
    error = ApiError(ErrorKind.OVERLOADED, 529, 'a "b"', "overloaded")
    data = b"".join(writer.write(event) for event in [*_USUAL[:3], Failed(error), *_USUAL[3:]])
    last = data.rstrip().split(b"\n\n")[-1]
    assert json.loads(last[6:]) == {
        "error": {"message": 'a "b"', "type": "server_error", "param": None, "code": "overloaded"}
    }
    assert b"[DONE]" not in data
    assert json.loads(_client().error(error)) == json.loads(last[6:])


def test_answer_has_its_own_id_where_the_upstreams_is_no_chat_id() -> None:
    """And the client's model where the upstream says none."""
    answer = Answer("msg_1", "", [Text(b'"a"'), Text(b'"b"')], Stop(StopReason.END), tier="standard_only")
    found = ChatCompletion.model_validate_json(_client().answer(answer), strict=True)
    assert (found.id, found.created, found.model) == ("chatcmpl-abc", 7, "m")
    assert found.choices[0].message.content == "ab"
    assert found.service_tier is None


def test_custom_tools_get_their_texts() -> None:
    """Plain and streamed: what stood in the one argument of the function that was told instead."""
    tools = [{"type": "custom", "custom": {"name": "sh"}}]
    call = ToolUse("c", "sh", rb'{"input":"ls \"a\""}')
    body = json.loads(_client(tools=tools).answer(Answer("x", "m", [call], Stop(StopReason.TOOLS))))
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "c", "type": "custom", "custom": {"name": "sh", "input": 'ls "a"'}}
    ]
    events: list[Event] = [
        Start("x", "m"),
        Open(0, Kind.TOOL, "c", "sh"),
        Delta(0, rb'"{\"input\":\"ls"'),
        Delta(0, rb'" \\\"a\\\"\"}"'),
        Close(0),
        Finish(Stop(StopReason.TOOLS)),
        End(),
    ]
    calls = [each for delta in _deltas(events, tools=tools) for each in delta.get("tool_calls", ())]
    assert [each["custom"]["input"] for each in calls] == ["", 'ls "a"']


# -- read -------------------------------------------------------------------------------------------


def test_pitfall_05_calls_with_finish_stop_are_tool_calls() -> None:
    """Google's and other servers say stop."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    answer = assembled(_events(_chunk({"tool_calls": [call]}), _chunk({}, "stop"), _DONE))
    assert answer.stop == Stop(StopReason.TOOLS)
    body = {"choices": [{"finish_reason": "stop", "message": {"tool_calls": [call]}}]}
    plain = ChatModel(UNKNOWN_MODEL, DroppedFields()).answer(json.dumps(body).encode())
    assert plain.stop == Stop(StopReason.TOOLS)


@pytest.mark.parametrize(
    "entries",
    [
        # As OpenAI has it, interleaved.
        [(0, "a", "f", ""), (1, "b", "f", ""), (0, None, None, '{"x"'), (1, None, None, "{}"), (0, None, None, ":1}")],
        # Ollama: always 0, whole calls.
        [(0, "a", "f", '{"x":1}'), (0, "b", "f", "{}")],
        # No index.
        [(None, "a", "f", '{"x"'), (None, None, None, ":1}"), (None, "b", "f", "{}")],
        # Id and name in every part.
        [(0, "a", "f", '{"x"'), (0, "a", "f", ":1}"), (1, "b", "f", "{}")],
        # Another id in every part, without a name (vLLM).
        [(0, "a", "f", '{"x"'), (0, "z", None, ":1}"), (1, "b", "f", "{}")],
        # No id, always 0, the same name (Google's server): two objects are two calls.
        [(0, "", "f", '{"x":1}'), (0, "", "f", "{}")],
        # The arguments are an object.
        [(0, "a", "f", {"x": 1}), (1, "b", "f", {})],
    ],
)  # fmt: skip
def test_pitfall_08_calls_are_told_apart(entries: list[tuple[int | None, str | None, str | None, Any]]) -> None:
    """Whatever a server leaves out."""
    chunks = []
    for index, call_id, name, arguments in entries:
        call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        chunks.append(_chunk({"tool_calls": [{key: value for key, value in call.items() if value is not None}]}))

    answer = assembled(_events(*chunks, _chunk({}, "tool_calls"), _DONE))

    calls = [block for block in answer.blocks if isinstance(block, ToolUse)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("f", {"x": 1}), ("f", {})]
    assert [call.id for call in calls] == [entries[0][1], [entry[1] for entry in entries if entry[2]][-1]]


def test_pitfall_07_empty_contents_between_parts_of_a_call_change_nothing() -> None:
    """They neither close the call nor open a text."""
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"x"'}}], "content": ""}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}], "content": None}
    answer = assembled(_events(_chunk(call), _chunk({"content": ""}), _chunk(more), _chunk({}, "tool_calls"), _DONE))
    assert answer.blocks == [ToolUse("c", "f", b'{"x":1}')]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_pitfall_15_chunk_with_reasoning_alone_opens_a_block(field: str) -> None:
    """And the text that follows closes it."""
    events = _events(_chunk({field: "why", "content": ""}), _chunk({"content": "so"}), _chunk({}, "stop"), _DONE)
    assert events[1:6] == [Open(0, Kind.THINKING), Delta(0, b'"why"'), Close(0), Open(1, Kind.TEXT), Delta(1, b'"so"')]


def test_openrouters_entries_are_reasoning_with_signatures() -> None:
    """The text beside them is the same once more; a signature may come alone."""
    first = {"reasoning": "why", "reasoning_details": [{"type": "reasoning.text", "text": "why", "index": 0}]}
    second = {"reasoning_details": [{"type": "reasoning.text", "signature": "S", "format": "f", "index": 0}]}
    third = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "D", "format": "g", "id": "r", "index": 1}]}
    answer = assembled(_events(*(_chunk(each) for each in (first, second, third)), _chunk({}, "stop"), _DONE))
    assert answer.blocks == [
        Thinking(b'"why"', Signature("row", "f:S")),
        Thinking(b'""', Signature("row", "g:D", "r"), is_redacted=True),
    ]


def test_pitfall_16_usage_is_a_total_wherever_it_stands() -> None:
    """On every chunk, on the last with choices, in x_groq, alone at the end; DeepSeek's and Mistral's names."""
    small, large = {"prompt_tokens": 3, "completion_tokens": 1}, {"prompt_tokens": 3, "completion_tokens": 2}
    answer = assembled(_events(_chunk({"content": "a"}, usage=small), _chunk({}, "stop", usage=large), _DONE))
    assert answer.usage == Usage(3, 2)
    answer = assembled(_events(_chunk({"content": "a"}), _chunk({}, "stop", x_groq={"usage": large}), _DONE))
    assert answer.usage == Usage(3, 2)
    alone = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_cache_hit_tokens":1}}\n\n'
    assert assembled(_events(_chunk({"content": "a"}, "stop"), alone, _DONE)).usage == Usage(3, 2, 1)
    more = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 9, "num_cached_tokens": 1}
    assert assembled(_events(_chunk({}, "stop", usage=more), _DONE)).usage == Usage(3, 6, 1, reasoning=4)
    assert assembled(_events(_chunk({}, "stop", usage={"prompt_tokens": "x"}), _DONE)).usage == Usage()


def test_pitfall_34_azures_streams() -> None:
    """The first chunk has no choices and no id, a choice may have no delta, filters come last."""
    first = b'data: {"choices":[],"created":0,"id":"","model":"","prompt_filter_results":[{"prompt_index":0}]}\n\n'
    last = b'data: {"choices":[{"index":0,"finish_reason":null,"content_filter_offsets":{}}],"id":"","model":""}\n\n'
    answer = assembled(_events(first, _chunk({"content": "a"}), _chunk({}, "stop"), last, _DONE))
    assert (answer.id, answer.model, answer.blocks) == ("x", "m", [Text(b'"a"')])


def test_pitfall_35_comments_and_unknown_events_are_nothing() -> None:
    """Nor are unknown fields."""
    noise = b": OPENROUTER PROCESSING\n\nretry: 5\n\nevent: ping\ndata: {}\n\n"
    answer = assembled(
        _events(noise, _chunk({"content": "a", "audio": None, "odd": 1}), noise, _chunk({}, "stop"), _DONE)
    )
    assert answer.blocks == [Text(b'"a"')]


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'data: {"error":{"message":"m","code":429}}\n\n', 429),
        (b'data: {"error":{"message":"m","code":"502"}}\n\n', 502),
        (b'data: {"error":{"message":"m","type":"rate_limit_error"}}\n\n', 429),
        (b'data: {"error":"m"}\n\n', 500),
        (b'event: error\ndata: {"error":{"message":"m","status_code":400,"code":"tool_use_failed"}}\n\n', 400),
        (b'event: error\ndata: {"message":"m","type":"overloaded_error"}\n\n', 529),
        (b'event: error\ndata: m\n\n', 500),
        (b'data: {"choices":[{"index":0,"error":{"message":"m","code":503},"finish_reason":"error"}]}\n\n', 503),
        (b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"insufficient_system_resource"}]}\n\n', 503),
    ],
)  # fmt: skip
def test_pitfall_36_errors_in_streams_are_read(event: bytes, status: int) -> None:
    """As the first event, and later; after one there is nothing."""
    for before in (b"", _chunk({"content": "a"})):
        events = _events(before, event, _chunk({}, "stop"), _DONE)
        assert isinstance(events[-1], Failed)
        assert events[-1].error.status == status
        assert events[-1].error.message


def test_pitfall_32_bare_error_at_the_end_is_read() -> None:
    """Google's server ends a stream that breaks so: with JSON outside of any event."""
    for bare in (
        b'{"error":{"code":503,"message":"m"}}',
        b'[{\n  "error": {\n    "code": 503,\n    "message": "m"\n  }\n}]\n',
    ):
        events = _events(_chunk({"content": "a"}), _chunk({}, "stop"), bare)
        assert isinstance(events[-1], Failed)
        assert (events[-1].error.status, events[-1].error.message) == (503, "m")


def test_pitfall_37_end_without_done_needs_a_finish_reason_and_a_whole_event() -> None:
    """Many servers leave [DONE] out; a stream that was cut is no end."""
    whole = [_chunk({"content": "a"}), _chunk({}, "stop")]
    assert assembled(_events(*whole)).stop == Stop(StopReason.END)
    assert assembled(_events(whole[0], _DONE)).stop == Stop(StopReason.END)
    assert not any(isinstance(event, End | Finish) for event in _events(whole[0]))
    usage = _chunk({}, usage={"prompt_tokens": 1})
    for cut in range(1, len(usage) - 2):
        assert not any(isinstance(event, End | Finish) for event in _events(*whole, usage[:cut]))
    with pytest.raises(BrokenReplyError):
        _events(_DONE)


def test_pitfall_38_finish_reasons_are_read() -> None:
    """Those of all servers; an unknown one is told."""
    for word, stop in {
        "length": Stop(StopReason.LENGTH),
        "model_length": Stop(StopReason.CONTEXT),
        "content_filter": Stop(StopReason.FILTER),
        "eos": Stop(StopReason.END),
        "odd": Stop(StopReason.END, unknown="odd"),
    }.items():
        assert assembled(_events(_chunk({"content": "a"}, word), _DONE)).stop == stop
    body = {"choices": [{"finish_reason": "stop", "stop_reason": "END", "message": {"content": "a"}}]}
    answer = ChatModel(UNKNOWN_MODEL, DroppedFields()).answer(json.dumps(body).encode())
    assert answer.stop == Stop(StopReason.STOP_STRING, "END")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"message":"m","code":402},"user_id":"u"}', 402),
        (b'{"choices":[{"error":{"message":"m","code":"rate_limit_exceeded"}}]}', 429),
        (b'{"choices":[{"finish_reason":"error","message":{"content":""}}]}', 500),
    ],
)
def test_error_in_a_200_is_an_error(body: bytes, status: int) -> None:
    """OpenRouter's."""
    with pytest.raises(ReplyError) as caught:
        ChatModel(UNKNOWN_MODEL, DroppedFields()).answer(body)
    assert caught.value.error.status == status


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices":[]}', b'{"choices":[{"index":0}]}', b"<html>"])
def test_answer_without_a_message_is_broken(body: bytes) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(BrokenReplyError):
        ChatModel(UNKNOWN_MODEL, DroppedFields()).answer(body)


@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        (429, b'{"error":{"message":"m","type":"requests","code":"rate_limit_exceeded"}}', "m", ErrorKind.RATE_LIMIT),
        (400, b'[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]', "m", ErrorKind.INVALID),
        (422, b'{"detail":[{"loc":["a"],"msg":"b"}]}', '[{"loc":["a"],"msg":"b"}]', ErrorKind.INVALID),
        (404, b'{"detail":"m"}', "m", ErrorKind.NOT_FOUND),
        (500, b'{"error":"m"}', "m", ErrorKind.API),
        (502, b"<html>bad</html>", "<html>bad</html>", ErrorKind.UNAVAILABLE),
        (503, b"", "the upstream answered with status 503 and an empty body", ErrorKind.UNAVAILABLE),
        (400, b"\xff\xfe{", "\ufffd\ufffd{", ErrorKind.INVALID),
        (418, b'{"x":', 'the upstream', ErrorKind.INVALID),
        (500, b"x" * 9999, "x" * 4096, ErrorKind.API),
    ],
)  # fmt: skip
def test_error_bodies_of_any_kind_are_read(status: int, body: bytes, message: str, kind: ErrorKind) -> None:
    """FastAPI's, Google's, Ollama's, HTML, nothing, cut ones."""
    error = ChatModel(UNKNOWN_MODEL, DroppedFields()).error(status, body, {})
    assert error.message.startswith(message)
    assert len(error.message) <= 4096
    assert (error.status, error.kind) == (status, kind)


def test_pitfall_44_half_characters_of_a_server_pass() -> None:
    """Halves of a pair in two chunks are one character for who joins them; broken UTF-8 shows a mark."""
    first, second = (
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % half for half in (rb"\ud83d", rb"\ude00")
    )
    answer = assembled(_events(first, second, _chunk({}, "stop"), _DONE))
    assert answer.blocks == [Text(rb'"\ud83d\ude00"')]
    assert json.loads(_client().answer(answer))["choices"][0]["message"]["content"] == "\U0001f600"
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"\xe2\x82"}}]}\n\n'
    assert assembled(_events(broken, _chunk({}, "stop"), _DONE)).blocks == [Text('"\ufffd"'.encode())]


def test_bounds_are_errors() -> None:
    """More calls, larger events and larger inputs than there can be."""
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    chunks = [_chunk({"tool_calls": [{**call, "index": n, "id": f"c{n}"}]}) for n in range(129)]
    assert len(_events(*chunks[:128])) > 0
    with pytest.raises(BrokenReplyError):
        _events(*chunks)
    with pytest.raises(BrokenReplyError):
        _events(b"data: " + b"x" * (MOST_REPLY_BYTES + 1))
    writer = _client(tools=[{"type": "custom", "custom": {"name": "sh"}}]).stream()
    writer.write(Open(0, Kind.TOOL, "c", "sh"))
    with pytest.raises(BrokenReplyError):
        for _ in range(65):
            writer.write(Delta(0, b'"' + b"x" * 65536 + b'"'))


def test_several_choices_of_a_server_are_one() -> None:
    """The first."""
    other = b'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\n\n'
    assert assembled(_events(_chunk({"content": "a"}), other, _chunk({}, "stop"), _DONE)).blocks == [Text(b'"a"')]


def test_request_is_a_request() -> None:
    """The client's side reads before it writes."""
    assert isinstance(ChatClient(_CALL, DroppedFields()).read(b'{"messages":[]}'), Request)
