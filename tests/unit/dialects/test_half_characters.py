r"""Half a character (`\ud83d`) in what Gemini and Bedrock answer: every client's SDK reads what is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_bound import assert_cpu_below
from tests.unit.dialects.test_converse_stream import BEGIN, METADATA, STOP, event, stop
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import (
    Answer,
    ClientCall,
    Close,
    Delta,
    Event,
    Kind,
    Message,
    ModelSide,
    Open,
    Request,
    Role,
    Start,
    StopReason,
    Text,
    Thinking,
    ToolUse,
)
from velox.dialects.canonical.model import Stop as Stopped
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.json_text.surrogates import first_document, masked, unmasked, without_half, without_halves
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.streams.events import events_of
from velox.dialects.tools.tool_schema import listed_schema

HALF = rb"\ud83d"
OTHER = rb"\ude00"
CALL = ClientCall("abc", 1, "m")


def gemini(part: bytes) -> bytes:
    return b'{"candidates":[{"content":{"parts":[%b],"role":"model"},"finishReason":"STOP"}]}' % part


def gemini_model() -> GenerateModel:
    return GenerateModel(ModelFacts(), DroppedFields())


def converse_model() -> ConverseModel:
    return ConverseModel(ModelFacts(), DroppedFields())


def texts(events: list[Event]) -> list[bytes]:
    return [each.text for each in events if isinstance(each, Delta)]


def seen(stream: bytes) -> str:
    """Return the text that google-genai reads in a stream."""
    chunks = [
        types.GenerateContentResponse.model_validate(json.loads(line[6:]))
        for line in stream.splitlines()
        if line.startswith(b"data: ")
    ]
    return "".join(
        part.text or ""
        for chunk in chunks
        for candidate in chunk.candidates or ()
        for part in (candidate.content.parts if candidate.content else None) or ()
    )


def streamed(*pieces: bytes, kind: Kind = Kind.TEXT) -> bytes:
    writer = GenerateClient(CALL, DroppedFields()).stream()
    events: list[Event] = [Start("", ""), Open(0, kind), *(Delta(0, piece) for piece in pieces), Close(0)]
    return b"".join(writer.write(each) for each in events)


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (b'{"text":"a\\ud83d"}', Text(b'"a\\ud83d"')),
        (b'{"text":"a\\ud83d","thought":true}', Thinking(b'"a\\ud83d"')),
        (b'{"functionCall":{"name":"f","args":{"a":"\\ud83d"}}}', ToolUse("", "f", b'{"a":"\\ud83d"}')),
    ],
)
def test_gemini_answers_keep_a_half(part: bytes, block: Text | Thinking | ToolUse) -> None:
    assert gemini_model().answer(gemini(part)).blocks == [block]


def test_gemini_streams_keep_halves_that_meet_in_the_next_event() -> None:
    stream = gemini_model().stream()
    found = stream.feed(b"data: %b\r\n\r\n" % gemini(b'{"text":"a\\ud83d"}'))
    found += stream.feed(b"data: %b\r\n\r\n" % gemini(b'{"text":"\\ude00b"}'))

    assert texts(found) == [b'"a\\ud83d"', b'"\\ude00b"']


def test_partial_arguments_of_gemini_keep_a_half() -> None:
    args = b'{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"$.a","stringValue":"x\\ud83d"}]}}'
    (block,) = gemini_model().answer(gemini(args)).blocks

    assert isinstance(block, ToolUse) and json.loads(block.arguments) == {"a": "x\ud83d"}


@pytest.mark.parametrize(
    ("content", "block"),
    [
        (b'{"text":"a\\ud83d"}', Text(b'"a\\ud83d"')),
        (b'{"toolUse":{"toolUseId":"x","name":"f","input":{"a":"\\ud83d"}}}', ToolUse("x", "f", b'{"a":"\\ud83d"}')),
        (b'{"reasoningContent":{"reasoningText":{"text":"a\\ud83d"}}}', Thinking(b'"a\\ud83d"')),
    ],
)
def test_converse_answers_keep_a_half(content: bytes, block: Text | Thinking | ToolUse) -> None:
    body = b'{"output":{"message":{"role":"assistant","content":[%b]}},"stopReason":"end_turn"}' % content

    assert converse_model().answer(body).blocks == [block]


@pytest.mark.parametrize("delta", [b'{"text":"a%b"}', b'{"reasoningContent":{"text":"a%b"}}'])
def test_converse_streams_keep_a_half(delta: bytes) -> None:
    pieces = [
        event("contentBlockDelta", b'{"contentBlockIndex":0,"delta":%b}' % (delta % half)) for half in (HALF, OTHER)
    ]
    found = converse_model().stream().feed(b"".join([BEGIN, *pieces, stop(0), STOP, METADATA]))

    assert texts(found) == [b'"a\\ud83d"', b'"a\\ude00"']


def test_what_is_no_json_is_still_refused() -> None:
    with pytest.raises(BrokenReplyError):
        gemini_model().answer(gemini(b'{"text":"a\\ud83d'))
    with pytest.raises(BrokenReplyError):
        converse_model().answer(b'{"output":"\\ud83d"')


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.THINKING])
def test_gemini_clients_get_halves_joined_over_deltas(kind: Kind) -> None:
    """google-genai raises a ValidationError for half a character."""
    assert seen(streamed(b'"a%b"' % HALF, b'"%bb"' % OTHER, b'"c"', kind=kind)) == "a\U0001f600bc"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b'"a%b"' % HALF], "a\ufffd"),
        ([b'"a%b"' % HALF, b'"b"'], "a\ufffdb"),
        ([b'"%bb"' % OTHER], "\ufffdb"),
        ([b'"%b%b"' % (HALF, HALF), b'"%b"' % OTHER], "\ufffd\U0001f600"),
        ([b'"a\\\\ud83d"', b'"b"'], "a\\ud83db"),  # a backslash, and letters
        ([b'"a\\\\\\ud83d"', b'"\\ude00"'], "a\\\U0001f600"),
        ([b'"\\u00fc\\n"'], "ü\n"),
    ],
)
def test_gemini_clients_get_no_half(pieces: list[bytes], text: str) -> None:
    assert seen(streamed(*pieces)) == text


def test_gemini_clients_get_no_half_in_arguments() -> None:
    arguments = b'{"a":"x\\ud83d"}'
    for body in (
        streamed(json.dumps(arguments.decode()).encode(), kind=Kind.TOOL)[6:],
        GenerateClient(CALL, DroppedFields()).answer(
            Answer("", "", [ToolUse("i", "f\ud83d", arguments)], Stopped(StopReason.TOOLS))
        ),
    ):
        reply = types.GenerateContentResponse.model_validate(json.loads(body))
        assert reply.function_calls and reply.function_calls[0].args == {"a": "x\ufffd"}


def test_plain_answers_for_gemini_clients_have_no_half() -> None:
    answer = Answer("", "", [Text(b'"a\\ud83d"'), Thinking(b'"\\ude00"')], Stopped(StopReason.END))
    client = GenerateClient(CALL, DroppedFields())
    writer = client.stream()

    reply = types.GenerateContentResponse.model_validate(json.loads(client.answer(answer)))
    assert reply.text == "a\ufffd"
    assert seen(b"".join(writer.write(each) for each in events_of(answer))) == "a\ufffd\ufffd"


def test_pieces_without_a_half_stay_as_they_were() -> None:
    assert without_half(b'"a"', b"") == (b'"a"', b"")
    assert without_half(b'"a\\ud83d"', b"") == (b'"a"', HALF)
    assert without_half(b'"\\ude00"', HALF) == (b'"\\ud83d\\ude00"', b"")
    assert without_halves(b'"\\ud83d\\ude00 \\\\ud83d \\u00fc"') == b'"\\ud83d\\ude00 \\\\ud83d \\u00fc"'


def test_signature_with_a_half_comes_to_clients_of_chat() -> None:
    """A server may write what it likes there, and wants it back as it was."""
    detail = b'{"type":"reasoning.encrypted","data":"x\\ud83d","format":"f","id":"rs","index":0}'
    body = b'{"choices":[{"message":{"content":"a","reasoning_details":[%b]},"finish_reason":"stop"}]}' % detail
    answer = ChatModel(ModelFacts(), DroppedFields()).answer(body)

    written = json.loads(ChatClient(CALL, DroppedFields()).answer(answer))

    assert "x\ud83d" in written["choices"][0]["message"]["reasoning_details"][0]["data"]


@pytest.mark.parametrize("model", [ChatModel, GenerateModel, ConverseModel, MessagesModel])
def test_stop_string_with_a_half_goes_up(model: Callable[[ModelFacts, DroppedFields], ModelSide]) -> None:
    request = Request("m", [Message(Role.USER, [Text(b'"a"')])], stop=["x\ud83d"])

    assert b"x\\ud83d" in model(ModelFacts(), DroppedFields()).write(request, "m").body


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (rb'{"description":"\ud83d"}', rb'{"properties":{},"type":"object","description":"\ud83d"}'),
        (rb'{"type":"object","\ud83d":1}', rb'{"properties":{},"type":"object","\ud83d":1}'),
        (rb'{"description":"\ud83d","type":null}', rb'{"properties":{},"description":"\ud83d","type":"object"}'),
        (rb'{"\ud83d":1,"type":["object","\ud83d"]}', rb'{"properties":{},"\ud83d":1,"type":"object"}'),
    ],
)
def test_half_character_in_a_tool_schema_stands(schema: bytes, sent: bytes) -> None:
    assert listed_schema(schema) == sent


def test_tool_schema_that_is_none_for_its_half_character_is_refused() -> None:
    with pytest.raises(BadRequestError) as refused:
        listed_schema(rb'{"type":["\ud83d"]}')

    assert refused.value.param == "tools"


def test_bytes_of_converse_that_are_no_utf8_become_a_mark() -> None:
    body = (
        b'{"output":{"message":{"role":"assistant","content":[{"text":"a\xff"}]}},"stopReason":"end_turn",'
        b'"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":2}}'
    )

    answer = ChatClient(CALL, DroppedFields()).answer(converse_model().answer(body))

    assert json.loads(answer)["choices"][0]["message"]["content"] == "a\ufffd"


WRITTEN = [
    HALF,
    OTHER,
    rb"\uDBFF",
    rb"\\",
    rb"\n",
    "é".encode(),
    b"u",
    b"d83d",
    rb"\u0041",
    rb"\"",
    rb"\ue041",
    b"\xee\xa0\x80",
]
ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


@given(st.lists(st.sampled_from(WRITTEN), max_size=9))
def test_halves_are_those_of_a_reading_from_the_left(parts: list[bytes]) -> None:
    """Escape after escape: a pair, a half, or another one."""
    text = b'"' + b"".join(parts) + b'"'
    without = ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)
    mask = masked(text)

    assert without_halves(text) == without
    if mask is None:
        assert without == text or rb"\ue041" in text or b"\xee\xa0\x80" in text
    else:
        assert without_halves(mask) == mask
        assert unmasked(mask).lower() == text.lower()


@pytest.mark.parametrize("filling", [HALF, OTHER, HALF + OTHER, rb"\n", rb"\\"])
def test_long_texts_of_escapes_cost_little(filling: bytes) -> None:
    """A call for each escape took 100 to 200 ms for a megabyte."""
    text = b'"' + filling * (4_000_000 // len(filling)) + HALF + b'"'

    assert_cpu_below(0.16, lambda: masked(text))


@pytest.mark.parametrize(("n", "can_be_masked"), [(10_000, True), (10_001, False)])
def test_so_many_halves_are_masked(n: int, can_be_masked: bool) -> None:
    """Each takes a call; texts that were cut have one at each cut."""
    assert (masked(b'"' + HALF * n + b'"') is not None) is can_be_masked


@pytest.mark.parametrize(
    ("text", "is_open"), [(HALF, True), (rb"\\" + HALF, True), (rb"\\\ud83d", True), (rb"\\ud83d", False)]
)
def test_end_that_is_half_a_character(text: bytes, is_open: bool) -> None:
    """Unless its backslash is itself escaped."""
    assert without_half(b'"' + text + b'"', b"")[1] == (HALF if is_open else b"")


def test_halves_in_megabytes_are_found_wherever_they_stand() -> None:
    """A long text is gone through in slices, which cut no pair."""
    for n_before in range(12):
        text = b'"' + b"a" * n_before + (HALF + OTHER) * 60_000 + HALF + (HALF + OTHER) * 60_000 + b'"'
        lone = n_before + 1 + 12 * 60_000

        without = text[:lone] + rb"\ufffd" + text[lone + 6 :]
        assert without_halves(text) == without
        mask = masked(text)
        assert mask == text[:lone] + rb"\ue03d" + text[lone + 6 :]
        assert unmasked(mask) == text


@pytest.mark.parametrize(
    ("body", "first"),
    [
        (b'{"a":1}\n\ndata: [DONE]\n', b'{"a":1}\n\n'),
        (b'\xef\xbb\xbf {"a":1} {}', b' {"a":1} '),
        (b'{"a":"\\ud83d"}x', b'{"a":"\\ud83d"}'),
        (b'{"a":"\xff"}x', '{"a":"\ufffd"}'.encode()),
        (b'{"a":1}', None),
        (b'{"a":1} \n', None),
        (b'{"a":"\\ud83d"}', None),
        (b'{"a":', None),
        (b"", None),
        (b"data: 1", None),
        (b"[" * 100_000, None),
    ],
)
def test_json_that_a_reply_begins_with(body: bytes, first: bytes | None) -> None:
    """Some servers end a plain answer as they end a stream."""
    assert first_document(body) == first
