"""How many tokens a Gemini reply says it took (protocol/usage/reader.py), in every recorded one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.recorded import Exchange, recorded
from velox.protocol.usage.reader import GOOGLE_KEY, BodyUsage, StreamUsage

RECORDED = [each for name in ("gemini", "vertex") for each in recorded(name, "enerateContent")]
PLAIN = [each for each in RECORDED if not each.is_stream]
STREAMS = [each for each in RECORDED if each.is_stream]


def told(usage: dict[str, Any]) -> tuple[int | None, int | None]:
    prompt = usage.get("promptTokenCount")
    parts = [usage[name] for name in ("candidatesTokenCount", "thoughtsTokenCount") if name in usage]
    more = usage.get("toolUsePromptTokenCount", 0)
    if not parts and prompt is not None and "totalTokenCount" in usage:
        parts = [usage["totalTokenCount"] - prompt - more]
    return None if prompt is None else prompt + more, sum(parts) if parts else None


def read(reader: BodyUsage | StreamUsage, reply: bytes, seed: int) -> tuple[int | None, int | None]:
    chance, at = random.Random(seed), 0
    while at < len(reply):
        n = chance.choice((1, 7, 100, 5000))
        reader.feed(reply[at : at + n])
        at += n
    return reader.tokens()


@pytest.mark.parametrize("exchange", PLAIN, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_plain_reply_is_counted_however_it_is_cut(exchange: Exchange, seed: int) -> None:
    """By its own usageMetadata, reasoning with the answer."""
    expected = told(json.loads(exchange.reply).get("usageMetadata", {}))

    assert read(BodyUsage(GOOGLE_KEY), exchange.reply, seed) == expected


@pytest.mark.parametrize("exchange", STREAMS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_stream_is_counted_by_its_last_totals(exchange: Exchange, seed: int) -> None:
    """They are totals, repeated in each event."""
    last: dict[str, Any] = {}
    for line in exchange.reply.splitlines():
        if line.startswith(b"data: "):
            last = {**last, **json.loads(line[6:]).get("usageMetadata", {})}

    assert read(StreamUsage(GOOGLE_KEY), exchange.reply, seed) == told(last)


@pytest.mark.parametrize(("total", "made"), [(14, 0), (24, 10), (9, 0)])
def test_answer_without_a_count_is_what_the_total_has_more(total: int, made: int) -> None:
    """As one that Google's filters took away, which costs nothing: it must not be charged as it was guessed."""
    usage = {"promptTokenCount": 10, "toolUsePromptTokenCount": 4, "totalTokenCount": total}
    body = json.dumps({"candidates": [{"finishReason": "SAFETY"}], "usageMetadata": usage}).encode()
    reader, stream = BodyUsage(GOOGLE_KEY), StreamUsage(GOOGLE_KEY)
    reader.feed(body)
    stream.feed(b"data: " + body + b"\r\n\r\n")

    assert (reader.tokens(), reader.kinds().output) == ((14, made), made)
    assert (stream.tokens(), stream.kinds().output) == ((14, made), made)


@pytest.mark.parametrize("end", [b"", b'data: {"error":{"code":503,"status":"UNAVAILABLE","message":"x"}}\n\n'])
def test_stream_whose_last_event_is_missing_has_an_answer_of_unknown_length(end: bytes) -> None:
    """Events before it tell the prompt and the same as total (recorded): 0 is not what was made."""
    usage = {"promptTokenCount": 10, "totalTokenCount": 10}
    parts = [{"text": "hi"}]
    event = json.dumps({"candidates": [{"content": {"parts": parts}}], "usageMetadata": usage}).encode()
    stream = StreamUsage(GOOGLE_KEY)
    stream.feed(b"data: %b\n\n" % event * 5 + end)

    assert (stream.tokens(), stream.kinds().output) == ((10, None), None)

    stream.feed(b"data: %b\n\n" % event.replace(b'"total', b'"candidatesTokenCount": 7, "total'))
    assert (stream.tokens(), stream.kinds().output) == ((10, 7), 7)


def test_total_does_not_take_from_an_answer_that_was_counted() -> None:
    stream = StreamUsage(GOOGLE_KEY)
    for usage in ({"totalTokenCount": 10}, {"candidatesTokenCount": 5, "totalTokenCount": 15}, {"totalTokenCount": 10}):
        stream.feed(b"data: %b\n\n" % json.dumps({"usageMetadata": {"promptTokenCount": 10, **usage}}).encode())

    assert stream.tokens() == (10, 5)


@pytest.mark.parametrize(
    "exchange", [each for each in recorded("gemini", "mbedContent") if b"usageMetadata" in each.reply], ids=str
)
def test_embedding_has_a_prompt_and_no_answer(exchange: Exchange) -> None:
    """Its details are spelled otherwise than those of an answer."""
    reader = BodyUsage(GOOGLE_KEY)
    n = json.loads(exchange.reply)["usageMetadata"]["promptTokenCount"]

    assert read(reader, exchange.reply, 0) == (n, 0)
    assert (reader.kinds().input, reader.kinds().output) == (n, 0)


def test_pictures_that_were_embedded_are_told() -> None:
    details = [{"modality": "TEXT", "tokenCount": 2}, {"modality": "IMAGE", "tokenCount": 258}]
    reader = BodyUsage(GOOGLE_KEY)
    reader.feed(json.dumps({"usageMetadata": {"promptTokenCount": 260, "promptTokenDetails": details}}).encode())

    assert (reader.kinds().input, reader.kinds().image_input) == (260, 258)


def test_arguments_that_the_model_made_are_no_usage() -> None:
    """Only the top level counts."""
    call = {"functionCall": {"name": "f", "args": {"usageMetadata": {"promptTokenCount": 0}}}}
    reply = {"candidates": [{"content": {"parts": [call]}}], "usageMetadata": {"promptTokenCount": 5}}
    for document in (reply, dict(reversed(reply.items()))):
        body = json.dumps(document).encode()
        reader = BodyUsage(GOOGLE_KEY)
        reader.feed(body)
        stream = StreamUsage(GOOGLE_KEY)
        stream.feed(b"data: " + body + b"\r\n\r\n")
        assert (reader.tokens(), stream.tokens()) == ((5, None), (5, None))
