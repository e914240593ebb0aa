"""Streams of Converse: recorded ones, any cut, exceptions, broken ones."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    Close,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Format,
    Kind,
    Lost,
    Message,
    Open,
    Request,
    Role,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    StreamReader,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Used,
)
from velox.dialects.converse.frames import Frames
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.streams.events import answer_of

_STREAMS = recorded("bedrock", "converse-stream")
CLAUDE = ModelFacts(thinking="adaptive")
USAGE = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()


def frame(payload: Any, **headers: str) -> bytes:
    head = b"".join(_header(":" + name.replace("_", "-"), value) for name, value in headers.items())
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    lengths = struct.pack(">II", 16 + len(head) + len(body), len(head))
    start = lengths + struct.pack(">I", zlib.crc32(lengths)) + head + body
    return start + struct.pack(">I", zlib.crc32(start))


def event(name: str, payload: Any) -> bytes:
    return frame(payload, event_type=name, content_type="application/json", message_type="event")


def delta(index: int, **said: Any) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": index, "delta": said, "p": "abc"})


def start(index: int, **tool: str) -> bytes:
    return event("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": tool}})


def stop(index: int) -> bytes:
    return event("contentBlockStop", {"contentBlockIndex": index})


BEGIN = event("messageStart", {"role": "assistant"})
STOP = event("messageStop", {"stopReason": "end_turn"})
METADATA = event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}})
TAIL = [Finish(Stop(StopReason.END)), Used(Usage(3, 4)), End()]


def reader(facts: ModelFacts = CLAUDE) -> StreamReader:
    return ConverseModel(facts, DroppedFields()).stream()


def events(*frames: bytes) -> list[Event]:
    return reader().feed(b"".join(frames))


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_recorded_stream_is_the_answer_that_it_tells(exchange: Exchange) -> None:
    read = reader()
    found = read.feed(exchange.reply)
    assert read.end() == []

    answer = answer_of(found)

    texts: dict[int, str] = {}
    tools: dict[int, Any] = {}
    usage: Any = None
    for each in Frames().feed(exchange.reply):
        payload = json.loads(each.payload)
        index = payload.get("contentBlockIndex")
        tool = payload.get("start", {}).get("toolUse")
        if tool and tool.get("type") != "server_tool_use":
            tools[index] = (tool["toolUseId"], tool["name"])
        said = payload.get("delta", {})
        texts[index] = texts.get(index, "") + (said.get("text") or said.get("toolUse", {}).get("input") or "")
        usage = payload.get("usage", usage)
    assert [json.loads(block.text) for block in answer.blocks if isinstance(block, Text)] == [
        words for index, words in texts.items() if words and index not in tools and not words.startswith('{"snippet')
    ]
    assert [
        (block.id, block.name, block.arguments.decode()) for block in answer.blocks if isinstance(block, ToolUse)
    ] == [(*tool, texts[index]) for index, tool in tools.items()]
    assert answer.usage == Usage(usage["inputTokens"], usage["outputTokens"])
    assert answer.stop == Stop(StopReason.TOOLS if tools else StopReason.END)


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_45_any_cut_gives_the_same_events(exchange: Exchange) -> None:
    """45: byte by byte, and in random parts."""
    whole = reader().feed(exchange.reply)
    by_bytes = reader()
    assert [each for byte in exchange.reply for each in by_bytes.feed(bytes([byte]))] == whole

    chance = random.Random(45)
    for _ in range(10):
        read, at, found = reader(), 0, []
        while at < len(exchange.reply):
            n = chance.randint(1, 700)
            found += read.feed(exchange.reply[at : at + n])
            at += n
        assert found == whole


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_37_cut_stream_is_no_end(exchange: Exchange) -> None:
    """37: wherever it is cut."""
    whole = reader().feed(exchange.reply)
    assert isinstance(whole[-1], End)

    read = reader()
    for at in range(len(exchange.reply) - 1):
        found = read.feed(exchange.reply[at : at + 1])
        assert not any(isinstance(each, End) for each in found)
    assert read.end() == []


def test_pitfall_33_text_has_no_start() -> None:
    """33: its first delta opens it; without any there is no block."""
    found = events(BEGIN, delta(0, text="a"), delta(0, text="b"), stop(0), stop(1), STOP, METADATA)

    assert found == [
        Start("", ""),
        Open(0, Kind.TEXT),
        Delta(0, b'"a"'),
        Delta(0, b'"b"'),
        Close(0),
        *TAIL,
    ]


def test_text_of_a_delta_stays_as_it_stood() -> None:
    raw = b'{"contentBlockIndex":0,"delta":{"text":"\\u00fc\\/\\ud83d\\ude00"}}'

    assert events(BEGIN, event("contentBlockDelta", raw))[2] == Delta(0, b'"\\u00fc\\/\\ud83d\\ude00"')


def test_pitfall_10_reasoning_has_its_signature_before_it_is_closed() -> None:
    """10: streamed signatures, also in parts."""
    found = events(
        BEGIN,
        delta(0, reasoningContent={"text": "hm"}),
        delta(0, reasoningContent={"signature": "abc"}),
        delta(0, reasoningContent={"signature": "def"}),
        stop(0),
        delta(1, text="a"),
        STOP,
        METADATA,
    )

    assert found[1:6] == [
        Open(0, Kind.THINKING),
        Delta(0, b'"hm"'),
        Sign(0, Signature("anthropic", "abcdef")),
        Close(0),
        Open(1, Kind.TEXT),
    ]
    assert answer_of(found).blocks == [Thinking(b'"hm"', Signature("anthropic", "abcdef")), Text(b'"a"')]


def test_pitfall_11_signature_without_text_is_a_block() -> None:
    """11: Claude may keep its words to itself."""
    found = events(
        BEGIN, delta(0, reasoningContent={"text": ""}), delta(0, reasoningContent={"signature": "s"}), stop(0)
    )

    assert found[1:] == [Open(0, Kind.THINKING), Sign(0, Signature("anthropic", "s")), Close(0)]


def test_pitfall_15_reasoning_alone_opens_a_block() -> None:
    """15: of models that don't sign."""
    found = reader(ModelFacts(thinking="none")).feed(BEGIN + delta(0, reasoningContent={"text": "hm"}) + stop(0))

    assert found[1:] == [Open(0, Kind.THINKING), Delta(0, b'"hm"'), Close(0)]


def test_redacted_reasoning_is_one_value() -> None:
    a, b = (base64.b64encode(part).decode() for part in (b"one!", b"two"))
    both = base64.b64encode(b"one!two").decode()

    for parts, value in (((a,), a), ((a, b), both)):
        deltas = [delta(0, reasoningContent={"redactedContent": part}) for part in parts]
        found = events(BEGIN, *deltas, stop(0))
        assert found[1:] == [Open(0, Kind.REDACTED), Sign(0, Signature("anthropic", value)), Close(0)]


def test_kinds_that_change_within_an_index_are_blocks_of_their_own() -> None:
    found = events(BEGIN, delta(0, reasoningContent={"text": "hm"}), delta(0, text="a"), stop(0))

    assert found[1:] == [
        Open(0, Kind.THINKING),
        Delta(0, b'"hm"'),
        Close(0),
        Open(1, Kind.TEXT),
        Delta(1, b'"a"'),
        Close(1),
    ]


def test_pitfall_02_parallel_tools_are_told_apart() -> None:
    """2: numbers in the canonical model count blocks; those of the service's own tools have none."""
    server = {"toolUseId": "s", "name": "nova", "type": "server_tool_use"}
    found = events(
        BEGIN,
        start(0, **server),
        delta(0, toolUse={"input": '{"x":1}'}),
        stop(0),
        event("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolResult": {"toolUseId": "s"}}}),
        delta(1, toolResult=[{"text": "r"}]),
        stop(1),
        start(2, toolUseId="t1", name="f"),
        start(3, toolUseId="t2", name="g"),
        delta(3, toolUse={"input": "{}"}),
        delta(2, toolUse={"input": '{"a":'}),
        delta(2, toolUse={"input": "1}"}),
        stop(2),
        event("messageStop", {"stopReason": "tool_use"}),
        METADATA,
    )

    answer = answer_of(found)
    assert answer.blocks == [ToolUse("t1", "f", b'{"a":1}'), ToolUse("t2", "g", b"{}")]
    assert answer.stop == Stop(StopReason.TOOLS)
    opened = [each.n for each in found if isinstance(each, Open)]
    assert opened == [0, 1]


def test_pitfall_03_tool_without_arguments_is_closed_without_a_delta() -> None:
    """3: the writers make {} of it."""
    found = events(BEGIN, start(0, toolUseId="t", name="f"), delta(0, toolUse={"input": ""}), stop(0))

    assert found[1:] == [Open(0, Kind.TOOL, "t", "f"), Close(0)]


def test_pitfall_16_usage_counts_the_cache_in() -> None:
    """16: it comes once, at the end; the second names of the cache's counts are no more of them."""
    usage = {**USAGE, "cacheReadInputTokens": 10, "cacheReadInputTokenCount": 10, "cacheWriteInputTokens": 5}
    found = events(BEGIN, STOP, event("metadata", {"usage": usage}))

    assert [each for each in found if isinstance(each, Used)] == [Used(Usage(18, 4, 10, 5))]


def test_metadata_may_come_first_and_the_end_is_said_once() -> None:
    found = events(BEGIN, METADATA, STOP, METADATA, STOP)

    assert found == [Start("", ""), Used(Usage(3, 4)), Finish(Stop(StopReason.END)), End()]


def test_blocks_that_were_not_stopped_are_closed() -> None:
    assert events(BEGIN, delta(0, text="a"), STOP)[-2:] == [Close(0), Finish(Stop(StopReason.END))]


@pytest.mark.parametrize("word", ["malformed_model_output", "malformed_tool_use"])
def test_broken_output_is_no_finish(word: str) -> None:
    found = events(BEGIN, delta(0, text="a"), event("messageStop", {"stopReason": word}), METADATA)

    assert isinstance(found[-1], Failed) and found[-1].error.code == word


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("throttlingException", ErrorKind.RATE_LIMIT, 429),
        ("modelStreamErrorException", ErrorKind.API, 502),
        ("internalServerException", ErrorKind.API, 500),
        ("validationException", ErrorKind.INVALID, 400),
        ("serviceUnavailableException", ErrorKind.UNAVAILABLE, 503),
        ("newerException", ErrorKind.API, 500),
    ],
)
def test_pitfall_36_exception_ends_the_stream(name: str, kind: ErrorKind, status: int) -> None:
    """36: as first event and later; nothing follows, no finish is made up."""
    exception = frame(
        {"message": "why"}, exception_type=name, content_type="application/json", message_type="exception"
    )

    for before in ([], [BEGIN, delta(0, text="a")]):
        found = events(*before, exception, STOP, METADATA)
        failed = found[-1]
        assert isinstance(failed, Failed)
        assert (failed.error.kind, failed.error.status, failed.error.message) == (kind, status, "why")
        assert not any(isinstance(each, Finish | End) for each in found)


def test_error_of_the_transport_ends_the_stream() -> None:
    error = frame(b"", message_type="error", error_code="InternalError", error_message="it broke")

    failed = events(BEGIN, error)[-1]
    assert isinstance(failed, Failed) and failed.error.message == "it broke"


def test_pitfall_35_unknown_events_and_deltas_are_skipped() -> None:
    """35: newer ones are none of ours."""
    found = events(
        BEGIN,
        event("newer", {"x": 1}),
        delta(0, citation={"title": "t"}),
        delta(0, newer={}),
        event("contentBlockStart", {"contentBlockIndex": 0, "start": {"image": {"format": "png"}}}),
        delta(0, image={"source": {"bytes": ""}}),
        stop(0),
        STOP,
        METADATA,
    )

    assert found == [Start("", ""), Lost("answer.citations"), Lost("answer.image"), *TAIL]


def test_answer_by_a_tool_is_streamed_as_text() -> None:
    model = ConverseModel(ModelFacts(thinking="none"), DroppedFields())
    model.write(Request("m", [Message(Role.USER, [Text(b'"a"')])], format=Format()), "m")

    found = model.stream().feed(
        b"".join(
            [
                BEGIN,
                start(0, toolUseId="t", name="json_answer"),
                delta(0, toolUse={"input": '{"a"'}),
                delta(0, toolUse={"input": ":1}"}),
                stop(0),
                event("messageStop", {"stopReason": "tool_use"}),
                METADATA,
            ]
        )
    )

    answer = answer_of(found)
    assert answer.stop == Stop(StopReason.END)
    assert [json.loads(block.text) for block in answer.blocks if isinstance(block, Text)] == ['{"a":1}']


@pytest.mark.parametrize(
    "wrong",
    [
        delta(0, toolUse={"input": "{}"}),
        delta(0, text=5),
        delta(0, reasoningContent={"text": []}),
        event("contentBlockDelta", b"{"),
        event("contentBlockDelta", b"\xff"),
        event("contentBlockDelta", {"delta": {}}),
        event("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t"}}}),
        event("messageStop", {}),
        event("metadata", {"usage": 5}),
        STOP + STOP,
        STOP + delta(0, text="a"),
        delta(0, reasoningContent={"redactedContent": "?"})
        + delta(0, reasoningContent={"redactedContent": "?"})
        + stop(0),
    ],
)
def test_events_in_no_legal_order_or_form_are_told(wrong: bytes) -> None:
    with pytest.raises(BrokenReplyError):
        events(BEGIN, wrong)


def test_bounds_of_open_blocks_and_signatures() -> None:
    frames = [start(n, toolUseId=f"t{n}", name="f") for n in range(128)]
    assert len(events(BEGIN, *frames)) == 129
    with pytest.raises(BrokenReplyError, match="more than 128 blocks"):
        events(BEGIN, *frames, start(128, toolUseId="t", name="f"))

    part = delta(0, reasoningContent={"signature": "x" * 2**18})
    assert len(events(BEGIN, *[part] * 4)) == 2
    with pytest.raises(BrokenReplyError, match="signature"):
        events(BEGIN, *[part] * 4, delta(0, reasoningContent={"signature": "x"}))


_FRAMES = st.sampled_from(
    [
        BEGIN,
        delta(0, text="a"),
        delta(1, text="b"),
        delta(0, reasoningContent={"text": "r"}),
        delta(0, reasoningContent={"signature": "s"}),
        delta(1, reasoningContent={"redactedContent": "cmVk"}),
        start(0, toolUseId="t", name="f"),
        start(1, toolUseId="u", name="g", type="server_tool_use"),
        delta(0, toolUse={"input": "{"}),
        delta(1, toolUse={"input": "}"}),
        stop(0),
        stop(1),
        STOP,
        METADATA,
    ]
)


@given(st.lists(_FRAMES, max_size=12))
def test_events_of_any_stream_are_in_order(frames: list[bytes]) -> None:
    """Each block is opened once, with the next number, filled, and closed, before the one finish."""
    try:
        found = events(*frames)
    except BrokenReplyError:
        return
    opened: set[int] = set()
    n_opened = 0
    for n, each in enumerate(found):
        match each:
            case Open():
                assert each.n == n_opened
                n_opened += 1
                opened.add(each.n)
            case Delta() | Sign():
                assert each.n in opened
            case Close():
                opened.remove(each.n)
            case Finish():
                assert not opened
            case End():
                assert n == len(found) - 1
                assert sum(isinstance(other, Finish) for other in found) == 1
                assert any(isinstance(other, Used) for other in found)


@given(st.sampled_from(_STREAMS), st.data())
def test_mutated_payload_raises_nothing_else(exchange: Exchange, data: st.DataObject) -> None:
    read = reader()
    for each in Frames().feed(exchange.reply)[:40]:
        payload = bytearray(each.payload)
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(payload) - 1))
            payload[at : at + 2] = data.draw(st.sampled_from([b"", b'"', b"{", b"\xff", b"null", b"9", b"-"]))
        try:
            read.feed(event(each.name.decode(), bytes(payload)))
        except BrokenReplyError:
            return
