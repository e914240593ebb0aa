"""Events that look as the one before are read by their shape: they say what they say when they are decoded."""

from __future__ import annotations

import pytest

from tests.recorded import recorded
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import Delta, Event, StreamReader
from velox.dialects.chat.read_stream import ChatStreamReader
from velox.dialects.messages.read_stream import MessagesStreamReader
from velox.dialects.streams.delta_shape import DeltaShape

_CHUNK = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{%b},"finish_reason":null}]}\n\n'
_BLOCK = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"text","text":""}}\n\n'
)
_DELTA = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%b}%b}\n\n'


def _kept(data: bytes, text: bytes) -> DeltaShape:
    shape = DeltaShape()
    shape.keep(data, [Delta(3, text)])
    return shape


def _said(reader: StreamReader, parts: list[bytes]) -> list[Event]:
    """Return what is read, up to what can not be."""
    found: list[Event] = []
    try:
        for part in parts:
            found += reader.feed(part)
        found += reader.end()
    except BrokenReplyError:
        pass
    return found


@pytest.mark.parametrize("text", [b'"b"', b'"\\n\\"\\\\"', '"grün"'.encode(), b'" "'])
def test_an_event_of_the_same_shape_says_its_own_text(text: bytes) -> None:
    assert _kept(b'{"x":"a"}', b'"a"').same(b'{"x":%b}' % text) == Delta(3, text)


@pytest.mark.parametrize(
    "data",
    [
        b'{"x":""}',
        b'{"y":"b"}',
        b'{"x":"b","z":1}',
        b'{"x":"b"',
        b'{"x":"b"}{"x":"b"}',
        b'{"x":"b","x":"c"}',
        b'{"x":"\\ud83d"}',
        b'{"x":"\\q"}',
        b'{"x":"\xff"}',
        b'{"x":"\n"}',
        b'{"x":null}',
        b'{"x":["b"]}',
        b'{"x":"%b"}' % (b"b" * 5000),
        b"",
    ],
)
def test_any_other_event_is_read_in_full(data: bytes) -> None:
    assert _kept(b'{"x":"a"}', b'"a"').same(data) is None


def test_a_text_that_is_there_twice_gives_no_shape() -> None:
    assert _kept(b'{"model":"m","x":"m"}', b'"m"').same(b'{"model":"m","x":"m"}') is None


def test_a_text_that_was_put_together_gives_no_shape() -> None:
    assert _kept(b'{"x":["a","b"]}', b'"ab"').same(b'{"x":["a","b"]}') is None


def test_spaces_count_within_the_strings_of_an_event() -> None:
    assert _kept(b'{"x":"a","y":"b"}', b'"a"').same(b'{"x":"c","y":" b"}') is None


def test_padding_does_not_count() -> None:
    reader = MessagesStreamReader()
    reader.feed(_BLOCK)
    for n in range(4):
        assert reader.feed(_DELTA % (b'"hi"', b" " * n)) == [Delta(0, b'"hi"')]


def test_the_padding_of_openai_does_not_count_and_ends_where_its_field_ends() -> None:
    event = b'{"x":%b,"obfuscation":"%b"%b}'
    shape = _kept(event % (b'"a"', b"Xy1", b',"z":"b"'), b'"a"')
    for padding in (b"", b"Xy1", b"Q", b"abc0"):
        assert shape.same(event % (b'"c"', padding, b',"z":"b"')) == Delta(3, b'"c"')
    for padding in (b'","z":"c', b'"', b"a b", b"\\", b'a","q":"b'):
        assert shape.same(event % (b'"c"', padding, b',"z":"b"')) is None
    assert shape.same(event % (b'"c"', b"Xy1", b',"z":"c"')) is None
    assert shape.same(b'{"x":"c","obfuscation":"') is None
    assert shape.same(b'{"x":"c","obfuscation":",') is None


def test_the_same_event_after_another_block_was_opened_is_of_the_new_one() -> None:
    reader = ChatStreamReader("x")
    text, thought = _CHUNK % b'"content":"a"', _CHUNK % b'"reasoning_content":"t"'
    parts = [text, text, thought, thought, text, text]
    texts = [event.n for part in parts for event in reader.feed(part) if isinstance(event, Delta)]
    assert texts == [0, 0, 1, 1, 2, 2]


def test_parts_of_calls_are_read_in_full() -> None:
    """A server that repeats the name begins a second call where an object follows on a whole one."""
    call = b'"tool_calls":[{"index":0,"function":{"name":"f","arguments":%b}}]'
    parts = [_CHUNK % (call % each) for each in (b'"{\\"a\\":"', b'"1}"', b'"{\\"b\\":"', b'"2}"')]
    reader = ChatStreamReader("x")
    assert [event.n for part in parts for event in reader.feed(part) if isinstance(event, Delta)] == [0, 0, 1, 1]


def test_what_was_cut_gives_no_shape() -> None:
    """The rest of an event that began in an earlier read is no event of its own."""
    reader = ChatStreamReader("x")
    reader.feed(_CHUNK % b'"content":"a"')
    event = _CHUNK % b'"content":"b"'
    assert reader.feed(event[:40]) == []
    assert reader.feed(event[40:]) == [Delta(0, b'"b"')]
    assert reader.feed(event[40:]) == []


@pytest.mark.parametrize("provider", ["openai", "groq", "mistral", "deepseek", "openrouter", "zai", "cerebras"])
def test_recorded_streams_of_chat_say_the_same_event_by_event(provider: str) -> None:
    for each in recorded(provider, "/chat/completions", stream=True):
        events = [part + b"\n\n" for part in each.reply.split(b"\n\n") if part]
        assert _said(ChatStreamReader("x"), events) == _said(ChatStreamReader("x"), [each.reply]), each.name


def test_recorded_streams_of_messages_say_the_same_event_by_event() -> None:
    for each in recorded("anthropic", "/messages", stream=True):
        events = [part + b"\n\n" for part in each.reply.split(b"\n\n") if part]
        assert _said(MessagesStreamReader(), events) == _said(MessagesStreamReader(), [each.reply]), each.name
