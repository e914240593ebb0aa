"""Messages: streams, pitfall by pitfall; read from Anthropic, and written for its clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.dialects.assembling import assembled, events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError
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
from velox.dialects.canonical.signatures import tagged
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.read_stream import MessagesStreamReader
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.messages.write_stream import MessagesStreamWriter
from velox.protocol.sse_events import SseEvents

_CALL = ClientCall("0123abcd", 1_700_000_000)
_START = {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 9}}}
_STOP = {"type": "message_stop"}
_END = Finish(Stop(StopReason.END))


def _sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in events)


def _block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _finish(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5, **usage}}


def _read(*events: dict[str, Any]) -> list[Event]:
    return events_of(MessagesStreamReader(), _sse(*events))


def _write(*events: Event) -> list[dict[str, Any]]:
    """Return what is written, and check that blocks stand one after the other."""
    writer = MessagesStreamWriter(_CALL, "asked")
    found: list[dict[str, Any]] = []
    for name, text in SseEvents().feed(b"".join(writer.write(event) for event in events)):
        found.append(json.loads(text))
        assert found[-1]["type"].encode() == name
    opened = -1
    n_blocks = 0
    for each in found:
        match each["type"]:
            case "content_block_start":
                assert (opened, each["index"]) == (-1, n_blocks)
                opened, n_blocks = each["index"], n_blocks + 1
            case "content_block_delta":
                assert each["index"] == opened
            case "content_block_stop":
                assert each["index"] == opened
                opened = -1
            case "message_delta" | "message_stop":
                assert opened == -1
    return found


def _content(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the blocks together."""
    content: list[dict[str, Any]] = []
    for each in found:
        if each["type"] == "content_block_start":
            content.append(dict(each["content_block"]))
        elif each["type"] == "content_block_delta":
            delta = each["delta"]
            name = {"input_json_delta": "partial_json", "signature_delta": "signature"}.get(
                delta["type"], delta["type"].removesuffix("_delta")
            )
            content[-1][name] = content[-1].get(name, "") + delta[name]
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json", "") or "{}")
    return content


# -- reading ---------------------------------------------------------------------------------------


def test_pitfall_35_pings_and_unknown_things_are_skipped() -> None:
    """Events, blocks and deltas that nobody knows; also before the start."""
    answer = assembled(
        _read(
            {"type": "ping"},
            _START,
            *_block(0, {"type": "hologram", "x": 1}, {"type": "hologram_delta", "text": "no"}),
            {"type": "brand_new", "index": 0},
            *_block(
                1,
                {"type": "text", "text": ""},
                {"type": "text_delta", "text": "a"},
                {"type": "citations_delta", "citation": {}},
                {"type": "new_delta", "text": "no"},
            ),
            _finish(),
            _STOP,
        )
    )

    assert answer.blocks == [Text(b'"a"')]


def test_pitfall_03_zero_argument_tool_has_an_object() -> None:
    """No delta, or an empty one."""
    tool = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}

    for deltas in ((), ({"type": "input_json_delta", "partial_json": ""},)):
        answer = assembled(_read(_START, *_block(0, tool, *deltas), _finish("tool_use"), _STOP))
        assert answer.blocks == [ToolUse("toolu_1", "t", b"{}")]
        assert answer.stop.reason is StopReason.TOOLS


def test_input_that_comes_whole_is_not_lost() -> None:
    """Some servers put it into the start; where deltas come too, those count."""
    tool = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"a": 1}}
    delta = {"type": "input_json_delta", "partial_json": '{"a": 2}'}

    whole = assembled(_read(_START, *_block(0, tool), _finish("tool_use"), _STOP))
    both = assembled(_read(_START, *_block(0, tool, delta), _finish("tool_use"), _STOP))

    assert [json.loads(block.arguments) for block in (*whole.blocks, *both.blocks) if isinstance(block, ToolUse)] == [
        {"a": 1},
        {"a": 2},
    ]


def test_pitfall_10_11_signatures_come_with_their_blocks() -> None:
    """Also where the text is empty, or there is none."""
    answer = assembled(
        _read(
            _START,
            *_block(
                0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "signature_delta", "signature": "S"}
            ),
            *_block(1, {"type": "redacted_thinking", "data": "D"}),
            _finish(),
            _STOP,
        )
    )

    assert answer.blocks == [
        Thinking(b'""', Signature("anthropic", "S")),
        Thinking(b'""', Signature("anthropic", "D"), is_redacted=True),
    ]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}, {}),
        ({}, {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5},
            {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5},
        ),
        ({"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}, {"input_tokens": 0}),
        ({"input_tokens": 0}, {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}),
    ],
)
def test_pitfall_16_counts_are_totals_wherever_they_stand(start: dict[str, int], end: dict[str, int]) -> None:
    """In the start only, in the end only, in both: set, never added. The prompt has its cached tokens too."""
    started = {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"output_tokens": 1, **start}}}

    answer = assembled(_read(started, _finish(None, **end), _finish("end_turn", **end), _STOP))

    assert answer.usage == Usage(12, 5, 4, 5)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"input_tokens": 34_347}, Usage(34_347, 5)),  # GLM's: its start only guesses
        ({"input_tokens": 34_347, "cache_read_input_tokens": 100}, Usage(34_447, 5, 100)),
        ({"input_tokens": 70_000}, Usage(70_000, 5)),
        ({"input_tokens": 0}, Usage(65_288, 5)),
        ({"input_tokens": None}, Usage(65_288, 5)),
    ],
)
def test_counts_at_the_end_of_a_stream_replace_those_of_its_start(end: dict[str, int], expected: Usage) -> None:
    """RS6: also where they are smaller: what is told last is what is billed."""
    started = {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 65_288}}}

    assert assembled(_read(started, _finish("end_turn", **end), _STOP)).usage == expected


def test_pitfall_36_error_in_a_stream_ends_it() -> None:
    """First of all or later: never a finish after it."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    failed = Failed(ApiError(ErrorKind.OVERLOADED, 529, "Overloaded"))

    assert _read(error, _START, _finish(), _STOP) == [failed]
    later = _read(_START, *_block(0, {"type": "text", "text": "a"}), error, _STOP)
    assert later[-1] == failed
    assert not any(isinstance(event, Finish | End) for event in later)


def test_pitfall_38_refusal_is_a_filter_with_its_explanation() -> None:
    """Not the end of a turn."""
    delta = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "bio", "explanation": "No."}}

    events = _read(_START, {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}}, _STOP)

    assert Finish(Stop(StopReason.FILTER, explanation=b'"No."')) in events


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", StopReason.END),
        ("stop_sequence", StopReason.STOP_STRING),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.CONTEXT),
        ("pause_turn", StopReason.PAUSE),
    ],
)
def test_stop_reasons_come_back_as_they_were(word: str, reason: StopReason) -> None:
    """Read and written."""
    events = _read(_START, _finish(word), _STOP)

    assert Finish(Stop(reason)) in events
    assert _write(*events)[-2]["delta"]["stop_reason"] == word


def test_unknown_stop_reason_is_told() -> None:
    """An end, with the word itself."""
    assert Finish(Stop(StopReason.END, unknown="moon")) in _read(_START, _finish("moon"), _STOP)


def test_message_stop_alone_is_no_end() -> None:
    """37: only message_delta says why the model stopped; some relays whose upstream was cut write the stop, too."""
    text = _block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"})
    cut = [_START, *text, _STOP]

    found = _read(*cut, _finish(), _STOP)

    assert not any(isinstance(event, Finish | End) for event in found)
    assert isinstance(_read(*cut[:-1], _finish(None), _STOP)[-1], End)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}],
        [*_block(0, {"type": "text", "text": ""})[:1], *_block(0, {"type": "text", "text": ""})],
        [_finish(), *_block(0, {"type": "text", "text": ""})],
        [*_block(0, {"type": "text", "text": ""}, {"type": "input_json_delta", "partial_json": "{}"})],
        [{"type": "content_block_start", "index": n, "content_block": {"type": "text"}} for n in range(129)],
        [{"type": "message_start", "message": 5}],
    ],
)
def test_streams_in_no_legal_order_are_broken(events: list[dict[str, Any]]) -> None:
    """What can't be told of is an error, not a guess."""
    with pytest.raises(BrokenReplyError):
        _read(_START, *events)


def test_pitfall_44_half_a_surrogate_pair_passes() -> None:
    """Servers cut characters between two events."""
    text = _sse(_START) + _sse(*_block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "X"})).replace(
        b'"X"', b'"\\ud83d"'
    )

    assert Delta(0, b'"\\ud83d"') in events_of(MessagesStreamReader(), text)


def test_json_through_a_tool_streams_as_text() -> None:
    """Its input is the text; the model did not stop for a tool."""
    tool = {"type": "tool_use", "id": "toolu_1", "name": "json_answer", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": text} for text in ('{"a"', ": 1}")]

    answer = assembled(
        events_of(
            MessagesStreamReader("json_answer"), _sse(_START, *_block(0, tool, *deltas), _finish("tool_use"), _STOP)
        )
    )

    assert answer.blocks == [Text(b'"{\\"a\\": 1}"')]
    assert answer.stop == Stop(StopReason.END)


# -- writing ---------------------------------------------------------------------------------------


def test_pitfall_08_overlapping_calls_stand_one_after_the_other() -> None:
    """The second waits until the first is whole, however their parts come."""
    found = _write(
        Start("chatcmpl-1", "gpt"),
        Open(0, Kind.TOOL, "call_a", "one"),
        Open(1, Kind.TOOL, "call_b", "two"),
        Delta(1, b'"{\\"b\\""'),
        Delta(0, b'"{\\"a\\""'),
        Open(2, Kind.TEXT),
        Delta(1, b'":2}"'),
        Delta(0, b'":1}"'),
        Delta(2, b'"text"'),
        Close(1),
        Close(0),
        Delta(2, b'" more"'),
        Close(2),
        Finish(Stop(StopReason.TOOLS)),
        Used(Usage(10, 3)),
        End(),
    )

    assert _content(found) == [
        {"type": "tool_use", "id": "call_a", "name": "one", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_b", "name": "two", "input": {"b": 2}},
        {"type": "text", "text": "text more"},
    ]


def test_pitfall_08_what_waits_is_bounded() -> None:
    """In bytes and in blocks."""
    writer = MessagesStreamWriter(_CALL, "m")
    writer.write(Open(0, Kind.TOOL, "a", "a"))
    writer.write(Open(1, Kind.TOOL, "b", "b"))
    with pytest.raises(BrokenReplyError):
        for _ in range(50):
            writer.write(Delta(1, b'"' + b"x" * 100_000 + b'"'))
    writer = MessagesStreamWriter(_CALL, "m")
    with pytest.raises(BrokenReplyError):
        for n in range(200):
            writer.write(Open(n, Kind.TOOL, "a", "a"))


def test_pitfall_17_message_delta_has_the_counts_without_the_cache() -> None:
    """It waits for them, and repeats those of the prompt."""
    writer = MessagesStreamWriter(_CALL, "m")
    early = b"".join(writer.write(event) for event in (Start("", ""), Open(0, Kind.TEXT), Close(0), _END))

    late = writer.write(Used(Usage(100, 7, 60, 30, 10, 2))) + writer.write(End())

    assert b"message_delta" not in early
    assert json.loads(SseEvents().feed(late)[0][1])["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 60,
        "output_tokens": 7,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 10},
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_pitfall_37_stream_without_an_end_has_no_finish() -> None:
    """Cut after the finish, or failed: neither is a clean end."""
    events = (Start("", ""), Open(0, Kind.TEXT), Delta(0, b'"a"'), Close(0), _END)

    assert [each["type"] for each in _write(*events)][-1] == "content_block_stop"
    failed = _write(*events, Failed(ApiError(ErrorKind.RATE_LIMIT, 429, "slow")), End())
    assert failed[-1] == {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}


def test_pitfall_13_signature_of_a_call_goes_before_it() -> None:
    """As a block that agents send back. One of a text follows it, if a call does: Claude thinks before it calls."""
    google = Signature("google", "AAA=")
    found = _content(
        _write(
            Open(0, Kind.TOOL, "call_1", "t"),
            Sign(0, google),
            Delta(0, b'"{}"'),
            Close(0),
            Open(1, Kind.TEXT),
            Delta(1, b'"a"'),
            Sign(1, google),
            Close(1),
            Open(2, Kind.TOOL, "call_2", "t"),
            Delta(2, b'"{}"'),
            Close(2),
            _END,
            End(),
        )
    )

    bound = tagged(Signature("google", "AAA=", "call_1"))
    assert [block["type"] for block in found] == ["thinking", "tool_use", "text", "thinking", "tool_use"]
    assert (found[0]["thinking"], found[0]["signature"]) == ("", bound)
    assert found[3]["signature"] == tagged(google)
    body = {"model": "m", "messages": [{"role": "assistant", "content": found}]}
    blocks = MessagesClient(_CALL, DroppedFields()).read(json.dumps(body).encode()).messages[0].blocks
    assert blocks == [
        ToolUse("call_1", "t", b"{}", google),
        Text(b'"a"'),
        Text(b'""', signature=google),
        ToolUse("call_2", "t", b"{}"),
    ]


def test_pitfall_12_signature_of_openai_keeps_its_item() -> None:
    """Streamed and plain; redacted reasoning too."""
    openai = Signature("openai", "enc", "rs_1")
    events = (
        Open(0, Kind.THINKING),
        Delta(0, b'"hm"'),
        Sign(0, openai),
        Close(0),
        Open(1, Kind.REDACTED),
        Sign(1, openai),
        Close(1),
        Open(2, Kind.REDACTED),
        Close(2),
        _END,
        End(),
    )
    plain = Answer("", "", [Thinking(b'"hm"', openai), Thinking(b'""', openai, True)], Stop(StopReason.END))

    streamed = _content(_write(*events))

    assert streamed == json.loads(MessagesClient(_CALL, DroppedFields()).answer(plain))["content"]
    body = {"model": "m", "messages": [{"role": "assistant", "content": streamed}]}
    blocks = MessagesClient(_CALL, DroppedFields()).read(json.dumps(body).encode()).messages[0].blocks
    assert blocks == plain.blocks


def test_pitfall_15_reasoning_opens_a_thinking_block_at_once() -> None:
    """The client sees it before there is any text."""
    found = _write(Start("", ""), Open(0, Kind.THINKING), Delta(0, b'"hm"'))

    assert [each["type"] for each in found] == ["message_start", "content_block_start", "content_block_delta"]
    assert found[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}


def test_pitfall_38_refusal_and_filter_are_refusals() -> None:
    """The model's own words, and a filter's."""
    words = (Open(0, Kind.REFUSAL), Delta(0, b'"I won\'t."'), Close(0), _END, End())
    filtered = (Open(0, Kind.TEXT), Close(0), Finish(Stop(StopReason.FILTER, explanation=b'"Why."')), End())

    assert _write(*words)[-2]["delta"]["stop_reason"] == "refusal"
    assert _content(_write(*words)) == [{"type": "text", "text": "I won't."}]
    delta = _write(*filtered)[-2]["delta"]
    assert delta["stop_reason"] == "refusal"
    assert delta["stop_details"] == {"type": "refusal", "category": None, "explanation": "Why."}
    plain = Answer("", "", [Refusal(b'"No."')], Stop(StopReason.END))
    assert json.loads(MessagesClient(_CALL, DroppedFields()).answer(plain))["stop_reason"] == "refusal"


def test_ids_are_made_where_there_are_none() -> None:
    """Of the answer and of calls; never another dialect's id of an answer."""
    found = _write(Start("chatcmpl-1", ""), Open(0, Kind.TOOL, "", "t"), Close(0), _END, End())
    plain = json.loads(
        MessagesClient(_CALL, DroppedFields()).answer(Answer("", "m", [ToolUse("", "t", b"")], Stop(StopReason.END)))
    )

    assert found[0]["message"]["id"] == plain["id"] == "msg_0123abcd"
    assert found[0]["message"]["model"] == "asked"
    assert (
        _content(found) == plain["content"] == [{"type": "tool_use", "id": "toolu_0123abcd0", "name": "t", "input": {}}]
    )


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_errors_have_anthropics_shape(kind: ErrorKind) -> None:
    """With a type of its list, which is read as the same kind."""
    body = MessagesClient(_CALL, DroppedFields()).error(ApiError(kind, kind.value, 'a "b"'))

    found = MessagesModel(ModelFacts(), DroppedFields()).error(kind.value, body)

    assert json.loads(body)["type"] == "error"
    assert found.message == 'a "b"'
    assert found.kind is (ErrorKind.OVERLOADED if kind is ErrorKind.UNAVAILABLE else kind)


_N = st.integers(0, 3)
_EVENTS = st.one_of(
    st.builds(Open, _N, st.sampled_from(Kind), st.sampled_from(["", "a"]), st.just("t")),
    st.builds(Delta, _N, st.sampled_from([b'"a"', b'"{}"'])),
    st.builds(Sign, _N, st.sampled_from([Signature("anthropic", "s"), Signature("google", "s")])),
    st.builds(Close, _N),
    st.just(Start("i", "m")),
    st.just(Used(Usage(1, 2))),
    st.just(_END),
)


@given(st.lists(_EVENTS, max_size=30))
@example([Open(1, Kind.TEXT, "", "t"), Open(0, Kind.TEXT, "", "t"), Close(0), Delta(0, b'"a"')])
@example([Open(1, Kind.TEXT, "", "t"), Open(0, Kind.TEXT, "", "t"), Close(0), Close(0)])
def test_whatever_the_order_blocks_stand_one_after_the_other(events: list[Event]) -> None:
    """No order of events makes a stream that a client can't read."""
    assert _write(*events, End())[-1] == _STOP
