"""Recorded exchanges with AI Studio and Vertex, read and written again; cut anywhere."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from google.genai import types

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    ClientCall,
    Close,
    Delta,
    End,
    Event,
    Finish,
    Lost,
    Open,
    Sign,
    Start,
    StopReason,
    Used,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.read_request import camel
from velox.dialects.generate.write_reply import GenerateClient

_ALL = [each for name in ("gemini", "vertex") for each in recorded(name, "enerateContent")]
_PLAIN = [each for each in _ALL if not each.is_stream]
_STREAMS = [each for each in _ALL if each.is_stream]
_CALL = ClientCall("abc123", 1_700_000_000, "gemini-test")
# A model that checks no signatures: what is lost is not filled in.
_FACTS = ModelFacts(thinking="thinking_budget")
_REFUSED = {"cachedContent", "modelArmorConfig", "generationConfig.responseLogprobs"}
_SKIPPED = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
_SERVER_PARTS = {"executableCode", "codeExecutionResult", "toolCall", "toolResponse"}


def test_there_are_recordings() -> None:
    """Enough of each kind for the rest of this file to say something."""
    assert len(_PLAIN) > 90
    assert len(_STREAMS) >= 10


@pytest.mark.parametrize("exchange", _ALL, ids=str)
def test_request_read_and_written_says_the_same(exchange: Exchange) -> None:
    """Gemini -> form -> Gemini equals the request, but for what the tables say is dropped or refused."""
    dropped = DroppedFields()
    try:
        request = GenerateClient(_CALL, dropped).read(exchange.body)
    except BadRequestError as exc:
        assert exc.param in _REFUSED
        return

    written = GenerateModel(_FACTS, dropped).write(request, "gemini-test")

    assert _as_written(exchange.json) == json.loads(written.body)
    assert written.names == {}


def _as_written(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request as it is expected to be written: Google's names, one turn a role, no server tools."""
    found: dict[str, Any] = {}
    contents: list[Any] = []
    for content in body["contents"]:
        parts = [_part(part) for part in content["parts"] if not _SERVER_PARTS & part.keys()]
        parts = [part for part in parts if part != {"text": ""}]
        is_result = [part for part in parts if "functionResponse" in part]
        last = contents[-1] if contents else None
        if last and last["role"] == content["role"] and not any("functionResponse" in each for each in last["parts"]):
            last["parts"] += parts
        elif parts or not contents:
            assert len(is_result) in (0, len(parts))
            contents.append({"role": content["role"], "parts": parts or [{"text": " "}]})
    for content in contents:
        if content["role"] == "model":
            content["parts"] = _joined(content["parts"])
    if "systemInstruction" in body:
        found["systemInstruction"] = {"parts": body["systemInstruction"]["parts"]}
    declarations = [each for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
    if declarations:
        found["tools"] = [{"functionDeclarations": [_declaration(each) for each in declarations]}]
    found["contents"] = contents
    calling = body.get("toolConfig", {}).get("functionCallingConfig")
    if calling and declarations:
        mode = "AUTO" if calling["mode"] == "VALIDATED" else calling["mode"]
        found["toolConfig"] = {"functionCallingConfig": {**calling, "mode": mode}}
    config = {camel(name): value for name, value in body.get("generationConfig", {}).items()}
    config = {name: value for name, value in config.items() if name != "responseModalities"}
    if config:
        found["generationConfig"] = config
    return found


def _joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a turn of the model with its texts as one: each chunk of a stream is a part of its own in histories."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and found[-1].keys() == part.keys() == {"text"}:
            found[-1] = {"text": found[-1]["text"] + part["text"]}
        else:
            found.append(part)
    return found


def _part(part: dict[str, Any]) -> dict[str, Any]:
    part = {name: value for name, value in part.items() if name != "videoMetadata"}
    if part.get("thoughtSignature") == _SKIPPED:
        del part["thoughtSignature"]
    if "fileData" in part:
        part["fileData"] = {camel(name): value for name, value in part["fileData"].items()}
    if "inlineData" in part:
        part["inlineData"]["data"] = part["inlineData"]["data"].replace("-", "+").replace("_", "/")
    return part


def _declaration(declaration: dict[str, Any]) -> dict[str, Any]:
    found = {camel(name): value for name, value in declaration.items()}
    if "parameters" in found:
        found["parametersJsonSchema"] = _lowered(found.pop("parameters"))
    return found


def _lowered(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lowered(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _lowered(value)
        for name, value in schema.items()
    }


@pytest.mark.parametrize("exchange", _PLAIN, ids=str)
def test_answer_is_written_as_the_sdk_reads_it(exchange: Exchange) -> None:
    """The official SDK reads what is written, with the texts, calls and counts of what Google sent."""
    sent = json.loads(exchange.reply)
    answer = GenerateModel(_FACTS, DroppedFields()).answer(exchange.reply)

    read = types.GenerateContentResponse.model_validate(
        json.loads(GenerateClient(_CALL, DroppedFields()).answer(answer))
    )

    assert read.candidates is not None
    assert read.candidates[0].content is not None
    parts = read.candidates[0].content.parts or []
    candidates = sent.get("candidates", [{"content": {"parts": []}}])
    expected = candidates[0]["content"].get("parts", [])
    assert [part.text for part in parts if part.text] == [part["text"] for part in expected if part.get("text")]
    calls = [part.function_call for part in parts if part.function_call]
    assert [(call.name, call.args) for call in calls] == [
        (part["functionCall"]["name"], part["functionCall"]["args"]) for part in expected if "functionCall" in part
    ]
    counts, used = sent["usageMetadata"], read.usage_metadata
    assert used is not None
    assert (used.thoughts_token_count or 0) == counts.get("thoughtsTokenCount", 0)
    assert (used.candidates_token_count or 0) == counts.get("candidatesTokenCount", 0)
    prompt = counts.get("promptTokenCount", 0) + counts.get("toolUsePromptTokenCount", 0)
    assert used.prompt_token_count == prompt
    reasons = {"STOP": ("STOP",), "SAFETY": ("SAFETY",)}
    assert read.candidates[0].finish_reason in reasons[candidates[0].get("finishReason", "SAFETY")]


def _events(data: bytes, cuts: list[int]) -> list[Event]:
    reader = GenerateModel(_FACTS, DroppedFields()).stream()
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += reader.feed(data[begin:end])
    return events + reader.end()


def _written(events: list[Event]) -> bytes:
    writer = GenerateClient(_CALL, DroppedFields()).stream()
    return b"".join([writer.write(event) for event in events])


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_45_any_cut_of_a_stream_gives_the_same_bytes(exchange: Exchange) -> None:
    """Byte by byte, in random pieces, or at once."""
    data = exchange.reply
    whole = _written(_events(data, []))
    chance = random.Random(7)

    assert whole
    assert _written(_events(data, list(range(1, len(data))))) == whole
    for _ in range(20):
        cuts = sorted(chance.sample(range(1, len(data)), min(9, len(data) - 1)))
        assert _written(_events(data, cuts)) == whole


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
@pytest.mark.slow
def test_pitfall_45_an_array_gives_the_same_events(exchange: Exchange) -> None:
    """Without alt=sse the same answers come as a JSON array."""
    texts = [line[6:] for line in exchange.reply.split(b"\r\n") if line.startswith(b"data: ")]
    array = b"[" + b",\r\n".join(texts) + b"]"

    assert _events(array, list(range(1, len(array)))) == _events(exchange.reply, [])
    assert _events(array, []) == _events(exchange.reply, [])
    for end in range(1, len(array), 7):
        assert not any(isinstance(event, End) for event in _events(array[:end], []))


@pytest.mark.slow
@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_37_a_truncated_stream_is_no_whole_one(exchange: Exchange) -> None:
    """No End before the JSON with the reason for the end is complete; and no finish either."""
    data = exchange.reply
    last = data.rindex(b'"finishReason"')
    whole_from = data.index(b"\r\n", last)

    for end in [*range(1, whole_from, 11), whole_from - 1]:
        events = _events(data[:end], [])
        assert not any(isinstance(event, End | Finish) for event in events)


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_stream_is_legal_and_the_sdk_reads_it(exchange: Exchange) -> None:
    """Every chunk is one of the SDK's; together they say what Google's chunks said."""
    events = _events(exchange.reply, [])
    _check_legal(events)

    chunks = [
        types.GenerateContentResponse.model_validate(json.loads(text.removeprefix(b"data: ")))
        for text in _written(events).split(b"\r\n\r\n")
        if text
    ]

    sent = [json.loads(line[6:]) for line in exchange.reply.split(b"\r\n") if line.startswith(b"data: ")]
    texts = [part.get("text", "") for each in sent for part in each["candidates"][0]["content"].get("parts", ())]
    parts = [part for chunk in chunks for part in (chunk.parts or ())]
    assert "".join(part.text or "" for part in parts) == "".join(texts)
    assert [part.function_call.name for part in parts if part.function_call] == [
        part["functionCall"]["name"]
        for each in sent
        for part in each["candidates"][0]["content"].get("parts", ())
        if "functionCall" in part
    ]
    assert chunks[-1].candidates is not None
    assert chunks[-1].candidates[0].finish_reason == "STOP"
    assert chunks[-1].usage_metadata is not None
    assert chunks[-1].usage_metadata.candidates_token_count == sent[-1]["usageMetadata"]["candidatesTokenCount"]


def _check_legal(events: list[Event]) -> None:
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], End)
    opened: set[int] = set()
    for event in events:
        if isinstance(event, Open):
            opened.add(event.n)
        elif isinstance(event, Delta | Sign):
            assert event.n in opened
        elif isinstance(event, Close):
            opened.remove(event.n)
        elif isinstance(event, Finish):
            assert not opened
            assert event.stop.reason in (StopReason.END, StopReason.TOOLS)
        else:
            assert isinstance(event, Start | Used | Lost | End)
