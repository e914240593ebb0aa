"""What a reply means: its words follow from its blocks; a stream says the same as a plain one, however it is cut."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.dialects.said import (
    CLIENTS,
    MODELS,
    Part,
    Read,
    plain,
    read_plain,
    read_stream,
    sse,
    streamed,
)
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.chat.read_stream import ChatStreamReader
from velox.gateway.reply.filters import FilterChain
from velox.gateway.translation.translated_reply import TranslatedReply
from velox.gateway.translation.translators import GenerationTranslator
from velox.heads import Header, ReplyHead
from velox.providers.model_facts import ModelFacts
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

_TABLE: Final = dialect_table()
_TOOLS: Final = ("look", "get_weather", "look_up")
_ASKED: Final[dict[ApiKind, dict[str, Any]]] = {
    ApiKind.CHAT: {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": name}} for name in _TOOLS],
        "stream_options": {"include_usage": True},
    },
    ApiKind.RESPONSES: {"input": "x", "tools": [{"type": "function", "name": name} for name in _TOOLS]},
    ApiKind.MESSAGES: {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": name, "input_schema": {"type": "object"}} for name in _TOOLS],
    },
    ApiKind.GENERATE: {
        "contents": [{"parts": [{"text": "x"}]}],
        "tools": [{"functionDeclarations": [{"name": name} for name in _TOOLS]}],
    },
}


def _translator(client: ApiKind, api: ApiKind) -> GenerationTranslator:
    dropped = DroppedFields()
    model = _TABLE.models[api](ModelFacts(), dropped, "openai")
    made = GenerationTranslator(_TABLE.clients[client](ClientCall("abc", 1, "m"), dropped), model, dropped)
    asked = dict(_ASKED[client])
    if client is not ApiKind.GENERATE:
        asked |= {"model": "m", "stream": True}
    made.request(json.dumps(asked).encode(), "m")
    return made


def _plain(client: ApiKind, api: ApiKind, body: bytes) -> Read:
    return read_plain(client, _translator(client, api).answer(body))


def _streamed(client: ApiKind, api: ApiKind, data: bytes, sizes: list[int] | None = None) -> Read:
    stream = _translator(client, api).stream()
    written, at = b"", 0
    for size in sizes or ():
        written += stream.feed(data[at : at + size], False)
        at += size
    written += stream.feed(data[at:], True)
    assert stream.is_whole
    return read_stream(client, written)


def _same(read: Read) -> Read:
    """Return it without what differs between writers of JSON: white space in arguments."""
    return read._replace(
        blocks=[
            (*block[:-1], json.dumps(json.loads(block[-1]))) if block[0] == "call" else block for block in read.blocks
        ]
    )


def _pieces(draw: st.DrawFn, text: str) -> tuple[str, ...]:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3)))
    ends = [0, *cuts, len(text)]
    return tuple(text[a:b] for a, b in pairwise(ends) if text[a:b])


@st.composite
def _answers(draw: st.DrawFn) -> list[Part]:
    """Texts, then calls: the order that each dialect has."""
    parts = [
        Part("text", _pieces(draw, draw(st.text('ab \n"ü\U0001f600', min_size=1, max_size=9))))
        for _ in range(draw(st.integers(0, 2)))
    ]
    for n in range(draw(st.integers(0, 3))):
        arguments = json.dumps(draw(st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), max_size=2)))
        parts.append(Part("call", _pieces(draw, arguments), draw(st.sampled_from(_TOOLS)), f"call_{n}"))
    return parts


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", MODELS)
@settings(max_examples=25, deadline=None)
@given(_answers(), st.sampled_from(["end", "tools", "length", "filter"]), st.data())
def test_a_stream_says_what_a_plain_answer_does(
    client: ApiKind, api: ApiKind, parts: list[Part], end: str, data: st.DataObject
) -> None:
    """C21, RC2: blocks, their order, ids, stop reason and usage are those of the plain reply, however it is cut."""
    order = data.draw(st.lists(st.integers(0, 2), max_size=9)) if api is ApiKind.CHAT else []
    body = streamed(api, parts, end, order)
    sizes = data.draw(st.lists(st.integers(1, len(body)), max_size=4))
    calls = [part for part in parts if part.kind == "call"]

    whole = _same(_plain(client, api, plain(api, parts, end)))
    cut = _same(_streamed(client, api, body, sizes))

    assert cut == whole
    assert whole.stop == (end if end in ("length", "filter") else "tools" if calls else "end")
    assert [block[1] for block in whole.blocks if block[0] == "call"] == [call.name for call in calls]
    assert len(set(whole.ids)) == len(calls)
    assert whole.usage == (11, 7)


_LABELS: Final[list[Header]] = [
    (b"content-type", b"application/json"),
    (b"content-type", b"text/event-stream"),
    (b"content-type", b"text/plain"),
    (b"content-encoding", b"gzip"),
    (b"content-encoding", b"deflate"),
    (b"content-encoding", b"identity"),
    (b"content-encoding", b"utf-8"),
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", [api for api in MODELS if api is not ApiKind.CONVERSE])
@settings(max_examples=25, deadline=None)
@given(
    parts=_answers(),
    asks_stream=st.booleans(),
    gets_stream=st.booleans(),
    coded=st.sampled_from([bytes, gzip.compress, zlib.compress, zstandard.compress]),
    labels=st.lists(st.sampled_from(_LABELS), max_size=2, unique_by=lambda field: field[0]),
    tail=st.sampled_from([b"", b"\n", b"data: [DONE]\n\n"]),
    data=st.data(),
)
def test_reply_means_the_same_whatever_its_label(
    client: ApiKind,
    api: ApiKind,
    parts: list[Part],
    asks_stream: bool,
    gets_stream: bool,
    coded: Callable[[bytes], bytes],
    labels: list[Header],
    tail: bytes,
    data: st.DataObject,
) -> None:
    """C24, C40: compressed or not, labelled so or not, events for a plain request and the other way round, a tail."""
    if coded is zlib.compress and (b"content-encoding", b"deflate") not in labels:
        labels = [(b"content-encoding", b"deflate")]  # of these bytes nothing but the label tells
    bugs: list[Exception] = []
    text = streamed(api, parts, "end", []) if gets_stream else plain(api, parts, "end")
    body = coded(text + tail)
    sizes = data.draw(st.lists(st.integers(1, len(body)), max_size=4))
    translator = _translator(client, api)
    reply = TranslatedReply(translator, bugs.append, is_stream=asks_stream, has_limits=False)
    chain = FilterChain((reply,), is_sse=False, is_plain=True)
    chain.begin(ReplyHead.of(200, labels, None))
    written, at = b"", 0
    for size in sizes:
        written += chain.feed(body[at : at + size], False)
        at += size
    if not chain.is_over:
        written += chain.feed(body[at:], True)

    found = read_stream(client, written) if asks_stream else read_plain(client, written)

    assert bugs == []
    assert _same(found) == _same(_plain(client, api, plain(api, parts, "end")))


# -- the word for the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("delta", "word"),
    [({"tool_calls": []}, "tool_calls"), ({}, "tool_calls"), ({}, "function_call"), ({"tool_calls": None}, "tool_use")],
)
def test_word_for_a_call_without_a_call_is_the_end_of_a_turn(client: ApiKind, delta: dict[str, Any], word: str) -> None:
    """C21: the stop reason follows from the blocks that are there, plain and streamed."""
    message = {"role": "assistant", "content": "Hi", **delta}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    choice = {"index": 0, "message": message, "finish_reason": word}
    body = json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": usage})
    stream = sse(
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": word}]},
        "[DONE]",
    )

    assert _plain(client, ApiKind.CHAT, body.encode()).stop == "end"
    assert _streamed(client, ApiKind.CHAT, stream).stop == "end"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("word", ["end_turn", "stop_sequence", "pause_turn", None, "new_word"])
def test_call_is_to_be_run_whatever_the_word_for_the_end(client: ApiKind, word: str | None) -> None:
    """C21: the other way round: agents don't run a call behind `stop`."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = {"id": "m", "model": "m", "content": [call], "stop_reason": word, "usage": usage}
    stream = sse(
        {"type": "message_start", "message": {"id": "m", "model": "m", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": word}, "usage": usage},
        {"type": "message_stop"},
    )

    assert _plain(client, ApiKind.MESSAGES, json.dumps(body).encode()).stop == "tools"
    assert _streamed(client, ApiKind.MESSAGES, stream).stop == "tools"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("details", [None, {}, {"reason": None}, {"reason": "new_word"}])
def test_incomplete_answer_without_a_known_reason_is_cut(client: ApiKind, details: object) -> None:
    """RS10: it is not whole, whatever ended it."""
    item = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    usage = {"input_tokens": 1, "output_tokens": 1}
    response = {"id": "r", "model": "m", "status": "incomplete", "incomplete_details": details, "output": [item]}
    body = {**response, "usage": usage}

    assert _plain(client, ApiKind.RESPONSES, json.dumps(body).encode()).stop == "length"
    assert _streamed(client, ApiKind.RESPONSES, sse({"type": "response.incomplete", "response": body})).stop == "length"


@pytest.mark.parametrize("client", CLIENTS)
def test_answer_that_was_filtered_whole_has_no_message(client: ApiKind) -> None:
    """RS3: Azure's choice has none; it is a filtered answer with its usage, not a broken one."""
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": {}}
    body = {"id": "c", "model": "m", "choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 0}}

    found = _plain(client, ApiKind.CHAT, json.dumps(body).encode())

    assert (found.stop, found.usage, found.ids) == ("filter", (11, 0), [])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"choices": [{"index": 0}]}])
def test_answer_without_a_choice_is_a_broken_reply(client: ApiKind, body: dict[str, Any]) -> None:
    """W1: the next upstream is asked, plain as streamed."""
    with pytest.raises(BrokenReplyError):
        _translator(client, ApiKind.CHAT).answer(json.dumps({"id": "c", "model": "m", **body}).encode())
    with pytest.raises(BrokenReplyError):
        _translator(client, ApiKind.CHAT).stream().feed(sse({"id": "c", "model": "m", "choices": []}, "[DONE]"), True)


# -- names and ids of calls -----------------------------------------------------------------------------


def _call_chunks(*deltas: dict[str, Any]) -> bytes:
    chunks: list[object] = [
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]} for delta in deltas
    ]
    end = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return sse(*chunks, end, "[DONE]")


def _named(name: str, arguments: str = "", **more: Any) -> dict[str, Any]:
    return {"index": 0, "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "deltas",
    [
        [_named("get_wea", id="c1"), _named("ther", '{"city":"Oslo"}')],
        [_named("get_wea", id="c1"), _named("ther", '{"city":"Oslo"}', id="c1")],
        [_named("get_wea", id="c1"), _named("get_weather", '{"city":"Oslo"}')],
        [_named("get_wea", id="c1"), _named("get_weather", '{"city":"Oslo"}', id="c1")],
        [_named("g", id="c1"), _named("et_"), _named("weather"), _named("", '{"city":'), _named("", '"Oslo"}')],
        [_named("get_weather", id="c1"), _named("get_weather", '{"city":'), _named("get_weather", '"Oslo"}')],
        [_named("get_weather", '{"city":"Oslo"}', id="c1"), {"index": 0, "function": {"name": None}}],
    ],
)
def test_name_of_a_tool_may_come_in_pieces(client: ApiKind, deltas: list[dict[str, Any]]) -> None:
    """C41: one call, with the whole name, as OpenAI's own SDK puts it together; or with each longer name."""
    found = _same(_streamed(client, ApiKind.CHAT, _call_chunks(*deltas)))

    assert found.blocks == [("call", "get_weather", '{"city": "Oslo"}')]
    assert len(found.ids) == 1


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "deltas",
    [
        [_named("look", id="c1"), _named("get_weather")],
        [_named("look", id="c1"), _named("look_up")],
        [_named("look", "{}", id="c1"), _named("get_weather", "{}", id="c2")],
        [_named("look", "{}", id="c1"), _named("get_weather", "{}", id="c1")],
        [_named("look", "{}"), _named("look", "{}")],
    ],
)
def test_two_calls_with_one_index_stay_two(client: ApiKind, deltas: list[dict[str, Any]]) -> None:
    """C41: names that are both of tools are two calls; and no two calls have one id."""
    found = _streamed(client, ApiKind.CHAT, _call_chunks(*deltas))

    assert [block[1] for block in found.blocks] == [delta["function"]["name"] for delta in deltas]
    assert len(set(found.ids)) == 2


def test_name_in_pieces_is_bounded() -> None:
    reader = ChatStreamReader("row")
    with pytest.raises(BrokenReplyError, match="does not end"):
        for n in range(2000):
            reader.feed(_call_chunks(_named(f"x{n}y"))[: -len(_call_chunks())])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", MODELS)
def test_id_that_two_calls_have_is_given_to_one(client: ApiKind, api: ApiKind) -> None:
    """W6: Claude and OpenAI refuse the next turn of a client that has two calls with one id."""
    parts = [Part("call", ("{}",), "look", "c1"), Part("call", ("{}",), "get_weather", "c1")]

    for found in (
        _plain(client, api, plain(api, parts, "tools")),
        _streamed(client, api, streamed(api, parts, "tools", [])),
    ):
        assert len(set(found.ids)) == 2
        assert all(found.ids)


@pytest.mark.parametrize("api", [ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.CONVERSE])
def test_call_without_a_name_is_a_broken_reply(api: ApiKind) -> None:
    """A tool without a name can't be run, and no API takes it back."""
    parts = [Part("call", ("{}",), "", "c1")]

    with pytest.raises(BrokenReplyError, match="name"):
        _plain(ApiKind.CHAT, api, plain(api, parts, "tools"))
    with pytest.raises(BrokenReplyError, match="name"):
        _streamed(ApiKind.CHAT, api, streamed(api, parts, "tools", []))


@pytest.mark.parametrize("client", [ApiKind.CHAT, ApiKind.RESPONSES])
@pytest.mark.parametrize(
    "text", ['{"city":"Os', "no JSON", '["a"]', '{"a":1}x', '{"_invalid_arguments":1}', '{"a":"\\ud83d"']
)
def test_cut_arguments_are_the_same_in_plain_and_streamed(client: ApiKind, text: str) -> None:
    """RS11: what the model wrote, where the dialect has arguments as a string."""
    parts = [Part("call", (text,), "look", "c1")]

    whole = _plain(client, ApiKind.CHAT, plain(ApiKind.CHAT, parts, "length"))

    assert whole.blocks == [("call", "look", text)]
    assert whole == _streamed(client, ApiKind.CHAT, streamed(ApiKind.CHAT, parts, "length", []))


# -- the order of blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_parallel_calls_that_interleave_are_told_one_after_the_other(client: ApiKind) -> None:
    """RC2: a client that keeps one current item gets each call's own arguments."""
    parts = [Part("call", ('{"a"', ": 1}"), "look", "c0"), Part("call", ('{"b"', ": 2}"), "get_weather", "c1")]

    found = _streamed(client, ApiKind.CHAT, streamed(ApiKind.CHAT, parts, "tools", [0, 1, 0, 1, 0, 1]))

    assert found.blocks == [("call", "look", '{"a": 1}'), ("call", "get_weather", '{"b": 2}')]
    assert found.ids[0].startswith("c0") and found.ids[1].startswith("c1")


def _gemini(*chunks: list[dict[str, Any]]) -> tuple[bytes, bytes]:
    """Return an answer of these parts, plain and as a stream of these chunks."""
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7}
    documents = [
        {"candidates": [{"index": 0, "content": {"parts": parts}}], "usageMetadata": usage} for parts in chunks
    ]
    documents[-1]["candidates"][0]["finishReason"] = "STOP"  # type: ignore[index]
    whole = {"index": 0, "content": {"parts": [part for parts in chunks for part in parts]}, "finishReason": "STOP"}
    return json.dumps({"candidates": [whole], "usageMetadata": usage}).encode(), sse(*documents)


def _content(data: bytes) -> list[str]:
    """Return the types of the blocks of a stream for a client of Messages."""
    events = [json.loads(text.split(b"data: ")[1]) for text in data.split(b"\n\n") if text]
    return [each["content_block"]["type"] for each in events if each["type"] == "content_block_start"]


_SIGNED: Final = {"text": "", "thoughtSignature": "Zm9v"}
_CALLED: Final = {"functionCall": {"id": "c", "name": "look", "args": {}}, "thoughtSignature": "YmFy"}


@pytest.mark.parametrize(
    ("chunks", "types"),
    [
        ([[{"text": "Hello"}], [_SIGNED]], ["text"]),
        ([[{"text": "Hello", "thoughtSignature": "Zm9v"}]], ["text"]),
        ([[{"text": "hm", "thought": True}], [{"text": "Hello"}], [_SIGNED]], ["thinking", "text"]),
        ([[{"text": "Hello"}], [_SIGNED], [_CALLED]], ["text", "thinking", "thinking", "tool_use"]),
        ([[_CALLED], [_SIGNED]], ["thinking", "tool_use"]),
        ([[{"text": "Hello"}], [{**_SIGNED, "thought": True}]], ["text"]),
        ([[{"text": "Hello"}], [{"text": "hm", "thought": True}]], ["text", "thinking"]),
    ],
)
def test_no_block_that_is_a_signature_only_ends_a_message_behind_its_text(
    chunks: list[list[dict[str, Any]]], types: list[str]
) -> None:
    """RC1: clients take the last block for the answer, and Google asks for no signature of a text."""
    body, stream = _gemini(*chunks)
    answer = json.loads(_translator(ApiKind.MESSAGES, ApiKind.GENERATE).answer(body))
    written = _translator(ApiKind.MESSAGES, ApiKind.GENERATE).stream().feed(stream, True)

    assert [block["type"] for block in answer["content"]] == types
    assert _content(written) == types


def test_signature_behind_a_text_of_openrouter_is_no_last_block() -> None:
    """RC1: it passes Gemini's on as encrypted reasoning behind the text."""
    detail = {"type": "reasoning.encrypted", "data": "Zm9v", "format": "google-gemini-v1", "index": 0}
    stream = sse(
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"reasoning_details": [detail]}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    )

    assert _content(_translator(ApiKind.MESSAGES, ApiKind.CHAT).stream().feed(stream, True)) == ["text"]


@pytest.mark.parametrize("client", CLIENTS)
def test_text_in_several_parts_is_one_message(client: ApiKind) -> None:
    """RC4: Google splits one text over several parts, also that of a structured answer."""
    body, _ = _gemini(
        [{"text": "A ", "thought": True}, {"text": "B", "thought": True}, {"text": '{"a": '}, {"text": '"x"}'}]
    )
    document = json.loads(_translator(client, ApiKind.GENERATE).answer(body))
    match client:
        case ApiKind.CHAT:
            message = document["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("A B", '{"a": "x"}')
        case ApiKind.RESPONSES:
            thought, answer = document["output"]
            assert thought["summary"][0]["text"] == "A B"
            assert [part["text"] for part in answer["content"]] == ['{"a": "x"}']
        case ApiKind.MESSAGES:
            assert [block.get("text") or block["thinking"] for block in document["content"]] == ["A B", '{"a": "x"}']
        case _:
            parts = document["candidates"][0]["content"]["parts"]
            assert [part["text"] for part in parts] == ["A B", '{"a": "x"}']


# -- usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "prompt"),
    [
        ({"inputTokens": 100_000, "outputTokens": 50, "totalTokens": 100_050, "cacheReadInputTokens": 90_000}, 100_000),
        ({"inputTokens": 100_000, "outputTokens": 50, "totalTokens": 190_050, "cacheReadInputTokens": 90_000}, 190_000),
        ({"inputTokens": 100_000, "outputTokens": 50, "cacheReadInputTokens": 90_000}, 190_000),
        ({"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "cacheReadInputTokens": 10}, 13),
    ],
)
def test_cached_tokens_inside_the_prompt_are_counted_once(usage: dict[str, int], prompt: int) -> None:
    """C30: where the total disproves that they stand beside it."""
    message = {"role": "assistant", "content": [{"text": "Hi"}]}
    body = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
    translator = _translator(ApiKind.CHAT, ApiKind.CONVERSE)

    translator.answer(json.dumps(body).encode())

    assert (translator.tokens.input, translator.tokens.cached) == (prompt, usage["cacheReadInputTokens"])


@pytest.mark.parametrize("api", [ApiKind.GENERATE, ApiKind.CHAT])
def test_first_event_tells_the_prompt_where_the_upstream_has_told_it(api: ApiKind) -> None:
    """C47: Gemini, and servers that count in each chunk, tell it with their first text."""
    if api is ApiKind.GENERATE:
        stream = _gemini([{"text": "Hi"}], [{"text": "!"}])[1]
    else:
        usage = {"prompt_tokens": 11, "completion_tokens": 1}
        stream = sse({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}}], "usage": usage})

    written = _translator(ApiKind.MESSAGES, api).stream().feed(stream, False)

    begun = json.loads(written.split(b"\n\n")[0].split(b"data: ")[1])
    used = begun["message"]["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (11, 0)


# -- pictures -----------------------------------------------------------------------------------------------


def _with_picture(n_bytes: int, *texts: str) -> tuple[bytes, bytes]:
    picture = {"inlineData": {"mimeType": "image/png", "data": "A" * n_bytes}}
    return _gemini(*([{"text": text}] for text in texts), [picture])


def test_picture_alone_is_no_empty_answer() -> None:
    """C42: an empty text that stopped well would be untrue: it is a reply that can't be read."""
    body, stream = _with_picture(8)
    streamed = _translator(ApiKind.MESSAGES, ApiKind.GENERATE).stream()

    with pytest.raises(BrokenReplyError, match="image alone"):
        _translator(ApiKind.MESSAGES, ApiKind.GENERATE).answer(body)
    for event in stream.split(b"\n\n"):
        assert not streamed.has_begun  # nothing has gone to the client: another upstream may be asked
        if b"STOP" in event:
            break
        assert streamed.feed(event + b"\n\n", False) == b""
    with pytest.raises(BrokenReplyError, match="image alone"):
        streamed.feed(stream, True)


@pytest.mark.parametrize("client", [ApiKind.CHAT, ApiKind.MESSAGES])
@pytest.mark.parametrize("n_bytes", [8, 33 * 1024 * 1024])
def test_picture_beside_a_text_is_carried_over_or_named_plain_and_streamed(client: ApiKind, n_bytes: int) -> None:
    """C42, C43: however large it is: one event may have what a whole reply may have."""
    body, stream = _with_picture(n_bytes, "Here:")
    plain_one, streamed_one = _translator(client, ApiKind.GENERATE), _translator(client, ApiKind.GENERATE)

    found = read_plain(client, plain_one.answer(body))

    assert found == read_stream(client, streamed_one.stream().feed(stream, True))
    assert found.blocks == [("text", "Here:")]
    lost = () if client is ApiKind.CHAT else ("answer.image",)
    assert plain_one.dropped == streamed_one.dropped == lost


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", MODELS)
def test_long_piece_of_a_text_passes(client: ApiKind, api: ApiKind) -> None:
    """C43: some servers send a whole answer in one event."""
    parts = [Part("text", ("x" * 2_500_000,))]

    assert _streamed(client, api, streamed(api, parts, "end", [])) == _plain(client, api, plain(api, parts, "end"))


@pytest.mark.parametrize("client", CLIENTS)
def test_arguments_that_only_the_last_event_tells_are_the_calls(client: ApiKind) -> None:
    """OpenRouterTeam/ai-sdk-provider#336: no delta, nothing at the end of the item, all of it in the whole answer."""
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": ""}
    said = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}
    answer = {"id": "r", "model": "m", "status": "completed", "output": [call | {"arguments": '{"a":1}'}, said]}
    at = {"output_index": 0, "item_id": "fc_1"}
    read = _streamed(
        client,
        ApiKind.RESPONSES,
        sse(
            {"type": "response.created", "response": answer | {"status": "in_progress", "output": []}},
            {"type": "response.output_item.added", **at, "item": call},
            {"type": "response.function_call_arguments.done", **at, "arguments": ""},
            {"type": "response.output_item.done", **at, "item": call},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hi"},
            {"type": "response.completed", "response": answer},
        ),
    )
    found = {(block[0], block[-1].replace(" ", "")) for block in read.blocks}
    assert found == {("call", '{"a":1}'), ("text", "Hi")}


@pytest.mark.parametrize("client", CLIENTS)
def test_stream_of_one_event_with_a_message_is_that_answer(client: ApiKind) -> None:
    """Some servers write what they have as they write a plain answer, and call it a stream."""
    message = {"role": "assistant", "content": "Hi"}
    whole = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    read = _streamed(client, ApiKind.CHAT, sse(whole) + b"data: [DONE]\n\n")
    assert read.blocks == [("text", "Hi")]

    begun = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": message}]}
    read = _streamed(client, ApiKind.CHAT, sse(begun, whole) + b"data: [DONE]\n\n")
    assert read.blocks == [("text", "Hi")], "it repeats what has come"
