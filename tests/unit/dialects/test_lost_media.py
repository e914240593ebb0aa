"""What a model's answer has and no other dialect a place for: pictures, sounds, sources, what hosted tools did.

It is named and counted, never left out in silence; and the rest of the answer is what it was.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.dialects.assembling import assembled
from tests.unit.dialects.assembling import events_of as read_events
from tests.unit.dialects.test_converse_stream import BEGIN, METADATA, STOP, delta, event, stop
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall, Image, Message, Request, Role, Text
from velox.dialects.streams.events import answer_of, events_of
from velox.gateway.translation.translated_reply import TranslatedReply
from velox.gateway.translation.translators import GenerationTranslator
from velox.heads import ReplyHead
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
CALL = ClientCall("abc", 1, "m")
FILMED = {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}
HI = {"type": "text", "text": "Hi"}


def generated(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": "Hi"}, *parts], "role": "model"}, "finishReason": "STOP"}]}


def chat(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hi", **more}
    return {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def message(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": "m", "model": "m", "content": [*blocks], "stop_reason": "end_turn"}


def response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    text = {"type": "output_text", "text": "Hi", **more}
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [text]}
    return {"id": "r", "model": "m", "status": "completed", "output": [said, *items]}


def converse(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}, *blocks]}},
        "stopReason": "end_turn",
    }


CITED = {"type": "url_citation", "url_citation": {"url": "https://x.test", "title": "x"}}
RUN = {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {}}
PLAIN = [
    (ApiKind.GENERATE, generated(FILMED), "answer.video"),
    (ApiKind.GENERATE, generated({"inlineData": {"data": "AA==", "mimeType": "audio/wav"}}), "answer.audio"),
    (ApiKind.GENERATE, generated({"fileData": {"mimeType": "application/pdf", "fileUri": "gs://x"}}), "answer.file"),
    (ApiKind.GENERATE, generated({"inlineData": "none"}), "answer.file"),
    (ApiKind.GENERATE, generated({"executableCode": {"language": "PYTHON", "code": "1"}}), "answer.tools.hosted"),
    (ApiKind.CHAT, chat(audio={"id": "a", "data": "AA=="}), "answer.audio"),
    (
        ApiKind.CHAT,
        chat(images=[{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]),
        "answer.image",
    ),
    (ApiKind.CHAT, chat(annotations=[{**CITED, "url_citation": None}]), "answer.citations"),
    (ApiKind.CHAT, chat(content=[HI, {"type": "image_url", "image_url": {"url": "x"}}]), "answer.image"),
    (ApiKind.CHAT, chat(content=[HI, {"type": "reference", "reference_ids": [1]}]), "answer.citations"),
    (ApiKind.MESSAGES, message(RUN, HI), "answer.tools.hosted"),
    (ApiKind.MESSAGES, message({**HI, "citations": [{"type": "char_location"}]}), "answer.citations"),
    (ApiKind.RESPONSES, response({"type": "image_generation_call", "id": "i", "result": None}), "answer.image"),
    (ApiKind.RESPONSES, response({"type": "web_search_call", "id": "w"}), "answer.tools.hosted"),
    (ApiKind.RESPONSES, response(annotations=[CITED]), "answer.citations"),
    (ApiKind.CONVERSE, converse({"image": {"format": "png", "source": {"bytes": "AA=="}}}), "answer.image"),
    (ApiKind.CONVERSE, converse({"video": {"format": "mp4"}}), "answer.video"),
    (ApiKind.CONVERSE, converse({"toolResult": {"toolUseId": "t"}}), "answer.tools.hosted"),
]
# The same where a field is there and empty, as OpenAI's API has it in each answer.
NOTHING = [
    (ApiKind.CHAT, chat(audio=None, annotations=[], images=[])),
    (ApiKind.MESSAGES, message({**HI, "citations": None})),
    (ApiKind.RESPONSES, response(annotations=[])),
    (ApiKind.GENERATE, generated({"inlineData": None})),
]


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)


def chunk(**more: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": more, "finish_reason": None}]}


CHAT_END = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
MESSAGES_END = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
BEGUN = {"type": "message_start", "message": {"id": "m", "model": "m"}}
STREAMS = [
    (ApiKind.GENERATE, lines(generated(FILMED)), "answer.video"),
    (ApiKind.CHAT, lines(chunk(content="Hi"), chunk(images=[{"type": "image_url"}]), CHAT_END), "answer.image"),
    (ApiKind.CHAT, lines(chunk(content="Hi"), chunk(audio={"data": "AA=="}), CHAT_END), "answer.audio"),
    (
        ApiKind.MESSAGES,
        lines(
            BEGUN,
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}},
            *MESSAGES_END,
        ),
        "answer.citations",
    ),
    (
        ApiKind.RESPONSES,
        lines(
            {"type": "response.created", "response": {"id": "r", "model": "m"}},
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"},
            {"type": "response.output_item.done", "output_index": 0, "item": response()["output"][0]},
            {"type": "response.output_item.done", "output_index": 1, "item": {"type": "image_generation_call"}},
            {"type": "response.completed", "response": response()},
        ),
        "answer.image",
    ),
    (
        ApiKind.CONVERSE,
        b"".join(
            [
                BEGIN,
                delta(0, text="Hi"),
                stop(0),
                event("contentBlockStart", {"contentBlockIndex": 1, "start": {"image": {"format": "png"}}}),
                stop(1),
                STOP,
                METADATA,
            ]
        ),
        "answer.image",
    ),
]


def model(api: ApiKind, dropped: DroppedFields | None = None) -> Any:
    made = TABLE.models[api](facts_of(PROVIDERS["openai"], "m"), dropped or DroppedFields(), "openai")
    made.write(Request("m", [Message(Role.USER, [Text(b'"a"')])]), "m")
    return made


@pytest.mark.parametrize(("api", "answer", "field"), PLAIN)
def test_plain_answer_names_it(api: ApiKind, answer: dict[str, Any], field: str) -> None:
    """And a stream that is made of it."""
    found = model(api).answer(json.dumps(answer).encode())

    assert found.lost == (field,)
    assert [block.text for block in found.blocks if isinstance(block, Text)] == [b'"Hi"']
    assert answer_of(events_of(found)).lost == (field,)


@pytest.mark.parametrize(("api", "answer"), NOTHING)
def test_what_is_empty_is_no_loss(api: ApiKind, answer: dict[str, Any]) -> None:
    """Nothing was said."""
    assert model(api).answer(json.dumps(answer).encode()).lost == ()


PNG = "iVBORw0K" * 250_000  # 2 MB: a picture has that in base64


@pytest.mark.parametrize(
    ("api", "stream"),
    [
        (ApiKind.GENERATE, lines(generated({"inlineData": {"mimeType": "image/png", "data": PNG}}))),
        (
            ApiKind.CHAT,
            lines(chunk(content="Hi"), chunk(images=[{"type": "image_url", "image_url": {"url": PNG}}]), CHAT_END),
        ),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_picture_of_usual_size_fails_no_stream(api: ApiKind, stream: bytes, end: bytes) -> None:
    """It comes in one event, and is carried over where it is read; else it is named."""
    stream = stream.replace(b"\n", end)
    found = assembled(read_events(model(api).stream(), stream, [65536] * (len(stream) // 65536)))

    pictures = [block.source.value for block in found.blocks if isinstance(block, Image)]
    assert (pictures, found.lost) == (([PNG], ()) if api is ApiKind.GENERATE else ([], ("answer.image",)))
    assert [block.text for block in found.blocks if isinstance(block, Text)] == [b'"Hi"']


@pytest.mark.parametrize(("api", "stream", "field"), STREAMS)
def test_stream_names_it(api: ApiKind, stream: bytes, field: str) -> None:
    """Where it stands; its text is whole."""
    found = assembled(read_events(model(api).stream(), stream))

    assert found.lost == (field,)
    assert [block.text for block in found.blocks if isinstance(block, Text)] == [b'"Hi"']


def replied(*, is_stream: bool, body: bytes, counted: list[None]) -> tuple[TranslatedReply, bytes]:
    """Give an answer of Gemini's to a client of Chat Completions, whose route is strict."""
    dropped = DroppedFields(strict=True, on_lost=lambda: counted.append(None))
    client, asked = TABLE.clients[ApiKind.CHAT](CALL, dropped), model(ApiKind.GENERATE, dropped)
    translator = GenerationTranslator(client, asked, dropped)
    translator.request(b'{"model":"m","messages":[{"role":"user","content":"a"}]}', "m")
    reply = TranslatedReply(translator, lambda exc: pytest.fail(str(exc)), is_stream=is_stream, has_limits=False)
    kind = b"text/event-stream" if is_stream else b"application/json"
    reply.begin(ReplyHead.of(200, [(b"content-type", kind)], None), is_sse=is_stream, is_plain=True)
    return reply, reply.feed(body, True)


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_is_told_and_it_is_counted_once(is_stream: bool) -> None:
    """The head of a stream is gone where the text comes first; a strict route refuses no answer that is there."""
    counted: list[None] = []
    body = json.dumps(generated(FILMED, FILMED)).encode()

    reply, written = replied(is_stream=is_stream, body=b"data: %b\n\n" % body if is_stream else body, counted=counted)

    assert b"Hi" in written and reply.released is not None
    assert dict(reply.released.headers)[b"x-velox-dropped"] == b"answer.video"
    assert len(counted) == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_end_for_an_unknown_reason_is_told(is_stream: bool) -> None:
    """The client's API has no word for it: it reads that the answer is whole, which nobody knows."""
    counted: list[None] = []
    answer = generated()
    answer["candidates"][0]["finishReason"] = "NEW_REASON"
    body = json.dumps(answer).encode()

    reply, written = replied(is_stream=is_stream, body=b"data: %b\n\n" % body if is_stream else body, counted=counted)

    assert b'"finish_reason":"stop"' in written and reply.released is not None
    assert dict(reply.released.headers)[b"x-velox-dropped"] == b"answer.stop"
    assert len(counted) == 1
