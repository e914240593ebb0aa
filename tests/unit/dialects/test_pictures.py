"""Pictures in answers: clients of all APIs but Messages, which has no place for them, get them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from google.genai import types
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ClientCall, ClientSide, ModelSide
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox.gateway.translation.translators import GenerationTranslator

_CALL: Final = ClientCall("vx1", 7, "m")
_PNG: Final = "iVBORw0KGgo="
_URL: Final = f"data:image/png;base64,{_PNG}"
_PART: Final = {"inlineData": {"mimeType": "image/png", "data": _PNG}}
_ITEM: Final = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": _PNG}


def _generated(*parts: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "responseId": "g", "modelVersion": "m"}


def _response(*items: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "m", "status": "completed", "output": list(items)}


def _said(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def _sse(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)


_MODELS: Final[dict[str, tuple[Callable[[DroppedFields], ModelSide], Any, bytes, Any]]] = {
    "gemini": (
        lambda dropped: GenerateModel(ModelFacts(), dropped),
        _generated({"text": "Here"}, _PART, _PART),
        _sse(
            {**_generated({"text": "Here"}), "candidates": [{"content": {"parts": [{"text": "Here"}]}}]},
            _generated(_PART, _PART),
        ),
        _generated(_PART),
    ),
    "gpt": (
        lambda dropped: ResponsesModel(ModelFacts(thinking="none"), dropped),
        _response(_said("Here"), _ITEM, _ITEM),
        _sse(
            {"type": "response.created", "response": _response()},
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Here"},
            {"type": "response.output_item.done", "output_index": 0, "item": _said("Here")},
            {"type": "response.output_item.done", "output_index": 1, "item": _ITEM},
            {"type": "response.output_item.done", "output_index": 2, "item": _ITEM},
            {"type": "response.completed", "response": _response()},
        ),
        _response(_ITEM),
    ),
}
_HI: Final = [{"role": "user", "content": "Hi"}]
_OTHERS: Final[dict[str, tuple[Callable[[DroppedFields], ClientSide], Any]]] = {
    "messages": (lambda dropped: MessagesClient(_CALL, dropped), {"model": "m", "max_tokens": 99, "messages": _HI}),
    "responses": (lambda dropped: ResponsesClient(_CALL, dropped), {"model": "m", "input": "Hi"}),
    "generate": (lambda dropped: GenerateClient(_CALL, dropped), {"contents": [{"parts": [{"text": "Hi"}]}]}),
}


_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)


def _streamed(model: str, dropped: DroppedFields, client: str) -> list[bytes]:
    """Return the data of the events that a client gets."""
    translated = _translator(model, dropped, client).stream()
    told = translated.feed(_MODELS[model][2], True)
    return [line[6:] for line in told.splitlines() if line.startswith(b"data: {")]


def _translator(model: str, dropped: DroppedFields, client: str = "chat") -> GenerationTranslator:
    make, body = _OTHERS.get(client, (lambda each: ChatClient(_CALL, each), {"model": "m", "messages": _HI}))
    translator = GenerationTranslator(make(dropped), _MODELS[model][0](dropped), dropped)
    translator.request(json.dumps(body).encode(), "m")
    return translator


@pytest.mark.parametrize("model", _MODELS)
def test_pictures_come_to_clients_of_chat(model: str) -> None:
    """As OpenRouter writes them, and OpenAI's SDK keeps them as fields that it does not know."""
    dropped = DroppedFields()
    body = _translator(model, dropped).answer(json.dumps(_MODELS[model][1]).encode())

    message: Any = ChatCompletion.model_validate_json(body).choices[0].message
    assert (message.content, dropped.names) == ("Here", ())
    assert [(each["image_url"]["url"], each["index"]) for each in message.images] == [(_URL, 0), (_URL, 1)]


@pytest.mark.parametrize("n_bytes", [1, 4096])
@pytest.mark.parametrize("model", _MODELS)
def test_pictures_come_in_streams(model: str, n_bytes: int) -> None:
    """Each in a chunk of its own, however the stream is cut."""
    dropped = DroppedFields()
    translated, streamed = _translator(model, dropped).stream(), _MODELS[model][2]
    told = b"".join(translated.feed(streamed[at : at + n_bytes], False) for at in range(0, len(streamed), n_bytes))
    told += translated.feed(b"", True)

    lines = [line[6:] for line in told.splitlines() if line.startswith(b"data: {")]
    deltas: list[Any] = [ChatCompletionChunk.model_validate_json(line).choices[0].delta for line in lines]
    assert "".join(delta.content or "" for delta in deltas) == "Here"
    urls = [each["image_url"]["url"] for delta in deltas for each in getattr(delta, "images", ())]
    assert (urls, dropped.names, translated.is_whole) == ([_URL, _URL], (), True)


@pytest.mark.parametrize("model", _MODELS)
def test_picture_alone_is_an_answer_of_chat(model: str) -> None:
    """It says something there."""
    body = _translator(model, DroppedFields()).answer(json.dumps(_MODELS[model][3]).encode())
    assert len(json.loads(body)["choices"][0]["message"]["images"]) == 1


@pytest.mark.parametrize("model", _MODELS)
def test_pictures_come_to_clients_of_responses(model: str) -> None:
    """As items of OpenAI's tool, plain and streamed: behind the message, and in the last event once more."""
    dropped = DroppedFields()
    plain = Response.model_validate_json(
        _translator(model, dropped, "responses").answer(json.dumps(_MODELS[model][1]).encode())
    )
    events = [_EVENT.validate_json(each) for each in _streamed(model, dropped, "responses")]

    assert dropped.names == ()
    for output in (plain.output, events[-1].response.output):
        message, *pictures = output
        assert message.content[0].text == "Here"
        assert [(each.type, each.status, each.result) for each in pictures] == [
            ("image_generation_call", "completed", _PNG)
        ] * 2
        assert len({each.id for each in pictures}) == 2 and pictures[0].to_dict()["output_format"] == "png"
    kinds = [event.type.removeprefix("response.") for event in events]
    one = ["in_progress", "generating", "completed"]
    told = ["output_item.added", *(f"image_generation_call.{each}" for each in one), "output_item.done"]
    assert kinds[kinds.index("content_part.done") + 2 : -1] == told * 2
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("model", _MODELS)
def test_pictures_come_to_clients_of_gemini(model: str) -> None:
    """As data among the parts, plain and streamed."""
    dropped = DroppedFields()
    plain = _translator(model, dropped, "generate").answer(json.dumps(_MODELS[model][1]).encode())
    for answers in ([plain], _streamed(model, dropped, "generate")):
        found = [types.GenerateContentResponse.model_validate_json(each) for each in answers]
        parts = [part for each in found for part in each.candidates[0].content.parts]  # type: ignore[index, union-attr]
        assert "".join(part.text or "" for part in parts) == "Here"
        data = [part.inline_data for part in parts if part.inline_data is not None]
        assert [(each.mime_type, base64.b64encode(each.data or b"").decode()) for each in data] == [
            ("image/png", _PNG)
        ] * 2
    assert dropped.names == ()


@pytest.mark.parametrize("client", ["responses", "generate"])
@pytest.mark.parametrize("model", _MODELS)
def test_picture_alone_is_an_answer(model: str, client: str) -> None:
    """There is a place for it, so it is no empty one."""
    body = _translator(model, DroppedFields(), client).answer(json.dumps(_MODELS[model][3]).encode())
    assert body.count(_PNG.encode()) == 1


def test_pictures_of_a_stream_of_responses_are_bounded() -> None:
    """Its last event repeats them, so they are kept until then."""
    writer = _translator("gemini", DroppedFields(), "responses").stream()
    large = {"inlineData": {"mimeType": "image/png", "data": "A" * 6_000_000}}
    writer.feed(_sse(_generated(large), _generated(large)), False)
    with pytest.raises(BrokenReplyError, match="pictures are over"):
        writer.feed(_sse(_generated(large)), False)


@pytest.mark.parametrize("model", _MODELS)
def test_picture_without_a_place_is_named(model: str) -> None:
    """In Messages. Where nothing else is said, an answer without it would be an empty one."""
    client = "messages"
    dropped = DroppedFields()
    _translator(model, dropped, client).answer(json.dumps(_MODELS[model][1]).encode())
    assert dropped.names == ("answer.image",)
    with pytest.raises(BrokenReplyError, match="image alone"):
        _translator(model, DroppedFields(), client).answer(json.dumps(_MODELS[model][3]).encode())

    dropped = DroppedFields()
    translated = _translator(model, dropped, client).stream()
    translated.feed(_MODELS[model][2], True)
    assert translated.is_whole and dropped.names == ("answer.image",)


def test_pictures_are_asked_for() -> None:
    """Gemini makes them where the client wants them; no other API does in an answer."""
    body = json.dumps({"model": "m", "messages": _HI, "modalities": ["image", "text"]}).encode()
    dropped = DroppedFields()
    sent = json.loads(GenerateModel(ModelFacts(), dropped).write(ChatClient(_CALL, dropped).read(body), "m").body)
    assert sent["generationConfig"]["responseModalities"] == ["TEXT", "IMAGE"]
    for model in (
        MessagesModel(ModelFacts(), dropped),
        ResponsesModel(ModelFacts(), dropped),
        ChatModel(ModelFacts(), dropped, "vllm"),
    ):
        with pytest.raises(BadRequestError) as caught:
            model.write(ChatClient(_CALL, dropped).read(body), "m")
        assert caught.value.param == "modalities"


def test_pictures_of_earlier_answers_go_back_to_gemini_and_are_named_elsewhere() -> None:
    """A picture is changed in the next turn: Gemini gets it back. No other API takes one of the assistant's."""
    images = [{"type": "image_url", "image_url": {"url": _URL}, "index": 0}]
    made = {"role": "assistant", "content": None, "images": images}
    body = json.dumps({"model": "m", "messages": [*_HI, made, *_HI]}).encode()

    dropped = DroppedFields()
    sent = json.loads(GenerateModel(ModelFacts(), dropped).write(ChatClient(_CALL, dropped).read(body), "m").body)
    assert (sent["contents"][1], dropped.names) == ({"role": "model", "parts": [_PART]}, ())

    for make in (MessagesModel, ResponsesModel, ChatModel):
        dropped = DroppedFields()
        model: Any = make(ModelFacts(), dropped, "vllm") if make is ChatModel else make(ModelFacts(), dropped)
        written = model.write(ChatClient(_CALL, dropped).read(body), "m").body
        assert dropped.names[:1] == ("media",) and b"image" not in written and b"(a picture)" in written


@pytest.mark.parametrize(
    ("client", "body"),
    [
        ("responses", {"model": "m", "input": [*_HI, _ITEM, *_HI]}),
        ("generate", {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [_PART]}]}),
    ],
)
def test_pictures_of_earlier_answers_are_read_in_each_api(client: str, body: dict[str, Any]) -> None:
    """As of Chat Completions: for Gemini they are pictures, elsewhere named."""
    for make, names in ((GenerateModel, ()), (MessagesModel, ("media",))):
        dropped = DroppedFields()
        model: Any = make(ModelFacts(prefill=True), dropped)
        written = model.write(_OTHERS[client][0](dropped).read(json.dumps(body).encode()), "m").body
        assert (dropped.names, written.count(_PNG.encode())) == (names, 0 if names else 1)
