"""Calls that are paid by something else than the tokens of their usage: sound by its length, speech by its letters,
tools that ran while a response was made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.raw_http import RawReply
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_ledger import usage
from tests.e2e.test_named_bodies import FORM, form

Entry = dict[str, Any]
PROVIDERS = ("openai", "groq", "azure", "mistral", "cohere")
DRAWN_BY_DALLE = {"created": 1, "data": [{"url": "https://x/1.png", "revised_prompt": "a cat"}]}
GPT_IMAGE_USAGE = {"total_tokens": 4170, "input_tokens": 10, "output_tokens": 4160}
GPT_IMAGE_USAGE |= {"input_tokens_details": {"text_tokens": 10, "image_tokens": 0}}
VIDEO = {"id": "video_1", "object": "video", "model": "sora-2-pro", "status": "queued", "seconds": "8"}
OCR = {"pages": [{"index": 0, "markdown": "x"}], "model": "mistral-ocr-2512", "usage_info": {"pages_processed": 29}}
RANKED = {"id": "r", "results": [{"index": 0, "relevance_score": 0.9}], "meta": {"api_version": {"version": "2"}}}
SEARCHES = {**RANKED, "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 3}}}
TOKENS = {**RANKED, "meta": {"billed_units": {"input_tokens": 2_000_000}}}
SOUND = {"type": "tokens", "input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
SOUND["input_token_details"] = {"text_tokens": 10, "audio_tokens": 90}
USED = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
NO_TOOLS = {
    "image_gen": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
    "web_search": {"num_requests": 0},
}
SEARCHED = {**NO_TOOLS, "web_search": {"num_requests": 2}}
DRAWN = {**NO_TOOLS, "image_gen": {"input_tokens": 24, "output_tokens": 7000, "total_tokens": 7024}}


class Upstreams:
    """A gateway with OpenAI, Groq, Azure, Mistral and Cohere, whose answers a test gives."""

    def __init__(self, velox: VeloxProcess) -> None:
        self.velox = velox
        self.reply: Entry | bytes = b""

    async def answer(self, call: Call) -> None:
        if not isinstance(self.reply, bytes):
            await call.reply(200, JSON, json.dumps(self.reply).encode())
            return
        await call.head(200, SSE)
        await call.data(self.reply)
        await call.end()

    def ask(self, path: str, body: bytes, reply: Entry | bytes, **headers: str) -> RawReply:
        self.reply = reply
        return self.velox.request("POST", path, body, {"x-velox-cost": "true", **headers})


@contextlib.contextmanager
def gateway(folder: Path, **more: object) -> Iterator[Upstreams]:
    with RecordingUpstream() as upstream:
        origin = upstream.upstream.url
        entries = [{"name": name, "provider": name, "origin": origin, "key": "env:MODEL_KEY"} for name in PROVIDERS]
        routes = [
            {"name": "groq", "match": {"models": ["whisper-large-v3"]}, "to": "groq"},
            {"name": "azure", "match": {"models": ["dall-e-*", "sora-*"]}, "to": "azure"},
            {"name": "mistral", "match": {"models": ["mistral-*"]}, "to": "mistral"},
            {"name": "cohere", "match": {"models": ["rerank-*"]}, "to": "cohere"},
            {"name": "rest", "to": "openai"},
        ]
        config = {"upstreams": entries, "routes": routes, **more}
        with routed(config, MODEL_KEY="sk-model-0123456789", ledger=str(folder)) as velox:
            asked = Upstreams(velox)
            with upstream.playing(asked.answer):
                yield asked


def transcribe(asked: Upstreams, model: str, reply: Entry | bytes, **fields: bytes) -> RawReply:
    parts = [("file", b"\0" * 1000), ("model", model.encode()), *fields.items()]
    return asked.ask("/v1/audio/transcriptions", form(*parts), reply, **FORM)


def test_sound_costs_by_what_its_reply_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C45, RC11: tokens, or seconds in a usage or beside the words. Of Groq's at least ten are paid. The model
    stands in the form.
    """
    event = {"type": "transcript.text.done", "text": "hi", "usage": SOUND}
    replies: list[tuple[str, Entry | bytes, str]] = [
        ("gpt-4o-transcribe", {"text": "hi", "usage": SOUND}, "0.000665000"),  # 10 at 2.50 $, 90 at 6 $, 10 at 10 $
        ("whisper-1", {"text": "hi", "usage": {"type": "duration", "seconds": 90}}, "0.009000000"),  # 0.36 $ an hour
        ("whisper-1", {"task": "transcribe", "text": "hi", "duration": 8.5}, "0.000850000"),
        ("whisper-large-v3", {"text": "hi", "duration": 3.1, "segments": []}, "0.000308333"),  # 0.111 $ an hour
        ("whisper-1", {"text": "hi"}, "unknown"),
        ("whisper-1", {"text": "hi", "duration": -1}, "unknown"),
    ]
    with gateway(tmp_path) as asked:
        for model, reply, cost in replies:
            assert transcribe(asked, model, reply).header("x-velox-cost") == cost, reply
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        assert data in transcribe(asked, "gpt-4o-transcribe", data, stream=b"true").body
    rows = usage(tmp_path, capsys, "--calls")
    assert [row["model"] for row in rows] == [*(model for model, _, _ in replies), "gpt-4o-transcribe"]
    costs = [0.000665, 0.009, 0.00085, 0.000308333, None, None, 0.000665]
    assert [row["cost_usd"] and float(row["cost_usd"]) for row in rows] == costs
    assert [row["flags"] for row in rows][:4] == ["", "", "", ""]


def test_speech_costs_by_its_letters(tmp_path: Path) -> None:
    """C45: where it is paid by them, which the request tells; where it is paid by sound, its cost is not known."""
    with gateway(tmp_path) as asked:
        for model, cost in (("tts-1", "0.000105000"), ("gpt-4o-mini-tts", "unknown")):
            body = json.dumps({"model": model, "voice": "alloy", "input": "Grüße!!"}).encode()
            assert asked.ask("/v1/audio/speech", body, {"id": "x"}).header("x-velox-cost") == cost


@pytest.mark.parametrize(
    ("tools", "cost"),
    [
        (None, "0.003150000"),  # gpt-5.2: 1.75 $ and 14 $ a million
        (NO_TOOLS, "0.003150000"),
        (SEARCHED, "0.023150000"),  # two at 0.01 $
        (DRAWN, "unknown"),  # by another model, which nobody names
    ],
)
def test_tools_of_a_response_are_in_its_cost(tmp_path: Path, tools: Entry | None, cost: str) -> None:
    """C44: plain and streamed, and never a number that leaves a picture out."""
    response = {"id": "resp_1", "object": "response", "model": "gpt-5.2", "output": [], "usage": USED}
    response |= {} if tools is None else {"tool_usage": tools}
    event = {"type": "response.completed", "response": response}
    body = json.dumps({"model": "gpt-5.2", "input": "x"}).encode()
    streamed = json.dumps({"model": "gpt-5.2", "input": "x", "stream": True}).encode()
    with gateway(tmp_path) as asked:
        assert asked.ask("/v1/responses", body, response).header("x-velox-cost") == cost
        large = {**response, "output": [{"type": "image_generation_call", "result": "A" * 300_000}]}
        assert asked.ask("/v1/responses", body, large).header("x-velox-cost") == cost
        reply = asked.ask("/v1/responses", streamed, b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n")
        assert reply.body.endswith(f": x-velox-cost {cost}\n\n".encode())


def test_picture_inside_of_a_response_does_not_make_its_words_cheaper(tmp_path: Path) -> None:
    """C44: a budget counts what is known of the cost, though the whole is not: else a picture would make it cheaper."""
    budgets = [{"per": "gateway", "usd": 1, "window": "month"}]
    used = {"input_tokens": 100_000, "output_tokens": 10_000, "total_tokens": 110_000}
    response = {"id": "resp_1", "model": "gpt-5.2", "output": [], "usage": used, "tool_usage": DRAWN}
    with gateway(tmp_path, budgets=budgets) as asked:
        body = json.dumps({"model": "gpt-5.2", "input": "x", "max_output_tokens": 16}).encode()
        assert asked.ask("/v1/responses", body, response).status == 200

        def spent() -> float:
            return next(n for name, n in asked.velox.metrics().items() if name.startswith("velox_budget_spent"))

        until(lambda: spent() == 0.175 + 0.14, "it is counted")


def priced(asked: Upstreams, path: str, reply: Entry, **request: object) -> str | None:
    return asked.ask(path, json.dumps(request).encode(), reply).header("x-velox-cost")


def test_pictures_videos_pages_and_rankings_cost_by_what_is_told_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By quality and size, seconds, pages and search units; what has no such price is unknown."""
    dalle, image, video = "/v1/images/generations", "/v1/images/edits", "/v1/videos"
    large = {"document": {"type": "document_url", "document_url": "data:application/pdf;base64," + "A" * 1_100_000}}
    with gateway(tmp_path) as asked:
        costs = [
            priced(asked, dalle, DRAWN_BY_DALLE, model="dall-e-3", prompt="cat"),
            priced(asked, dalle, DRAWN_BY_DALLE, model="dall-e-3", prompt="cat", quality="hd", size="1024x1792"),
            priced(asked, dalle, DRAWN_BY_DALLE, model="dall-e-3", prompt="cat", size="512x512"),
            priced(asked, dalle, DRAWN_BY_DALLE, model="dall-e-3", prompt="cat", quality=["hd"]),
            priced(asked, dalle, {"data": [], "usage": GPT_IMAGE_USAGE}, model="gpt-image-1", size="1024x1024"),
            priced(asked, dalle, {"data": []}, model="gpt-image-1", quality="high", size="1024x1024"),
            priced(asked, video, {**VIDEO, "size": "1280x720"}, model="sora-2-pro", prompt="cat", seconds="8"),
            priced(asked, video, {**VIDEO, "size": "1792x1024"}, model="sora-2-pro", prompt="cat", seconds="8"),
            priced(asked, video, {**VIDEO, "size": "1x1"}, model="sora-2-pro", prompt="cat"),
            priced(asked, video, {"id": "x", "object": "video"}, model="sora-2-pro", prompt="cat"),
            priced(asked, "/v1/ocr", OCR, model="mistral-ocr-2512", document={}),
            priced(asked, "/v1/ocr", OCR, model="mistral-ocr-2512", bbox_annotation_format=None),
            priced(asked, "/v1/ocr", OCR, model="mistral-ocr-2512", bbox_annotation_format={"type": "json_schema"}),
            priced(asked, "/v1/ocr", {**OCR, "pages": ["A" * 300_000]}, model="mistral-ocr-2512", **large),
            priced(asked, "/v1/ocr", OCR, model="mistral-ocr-2512", document_annotation_format={}, **large),
            priced(asked, "/v1/ocr", {"pages": []}, model="mistral-ocr-2512"),
            priced(asked, "/v2/rerank", SEARCHES, model="rerank-v3.5", query="q", documents=["a"]),
            priced(asked, "/v2/rerank", TOKENS, model="rerank-v5.0-pro", query="q", documents=["a"]),
            priced(asked, "/v2/rerank", RANKED, model="rerank-v3.5", query="q", documents=["a"]),
            priced(asked, "/v1/moderations", {"id": "m", "results": []}, model="omni-moderation-latest", input="x"),
        ]
        body = form(("image", b"\x89PNG"), ("model", b"dall-e-3"), ("size", b"1792x1024"), ("prompt", b"cat"))
        costs.append(asked.ask(image, body, DRAWN_BY_DALLE, **FORM).header("x-velox-cost"))
        body = form(("model", b"sora-2"), ("prompt", b"cat"), ("seconds", b"4"), ("size", b"720x1280"))
        reply = {**VIDEO, "model": "sora-2", "seconds": "4", "size": "720x1280"}
        costs.append(asked.ask(video, body, reply, **FORM).header("x-velox-cost"))
    known = [
        *("0.044000000", "0.132000000", "unknown", "unknown", "0.166450000", "unknown"),
        *("2.400000000; estimated", "4.000000000; estimated", "unknown", "unknown"),
        *("0.058000000", "0.058000000", "0.087000000", "0.058000000", "unknown", "unknown"),
        *("0.006000000", "0.100000000", "unknown", "0.000000000"),
        *("0.088000000", "0.400000000; estimated"),
    ]
    assert [cost and cost.replace("0.000000000; estimated", "0.000000000") for cost in costs] == known
    rows = usage(tmp_path, capsys, "--calls")
    units = ("pictures", "video_ms", "pages", "annotated_pages", "search_units")
    assert [[row[name] for name in units] for row in rows if row["status"] == 200][:2] == [[1, *[None] * 4]] * 2
    assert [(row["tier"], row["video_ms"]) for row in rows if row["video_ms"]][:2] == [
        ("video 1280x720", 8000),
        ("video 1792x1024", 8000),
    ]
    assert [row["pages"] for row in rows if row["pages"]] == [29] * 4
    assert [row["annotated_pages"] for row in rows if row["pages"]] == [None, None, 29, None]
    assert [row["search_units"] for row in rows if row["search_units"]] == [3]


@pytest.mark.parametrize(
    ("path", "request_", "reply", "fits", "spent"),
    [
        ("/v1/images/generations", {"model": "dall-e-3", "n": 1, "quality": "hd"}, DRAWN_BY_DALLE, 11, 0.968),
        ("/v1/videos", {"model": "sora-2", "seconds": "4"}, {**VIDEO, "seconds": "4", "size": "1280x720"}, 2, 0.8),
        ("/v1/ocr", {"model": "mistral-ocr-2503"}, OCR, 1, 0.029),
        ("/v2/rerank", {"model": "rerank-v3.5", "documents": ["a"] * 201}, SEARCHES, 166, 0.996),
    ],
)
def test_budget_holds_what_units_may_cost_before_the_call(
    tmp_path: Path, path: str, request_: Entry, reply: Entry, fits: int, spent: float
) -> None:
    """A strict budget of a dollar is not passed, and what its calls cost is counted."""
    budgets = [{"per": "gateway", "usd": 1, "window": "month", "strict": True}]
    body, reply = json.dumps(request_).encode(), {**reply, "model": str(request_["model"])}
    with gateway(tmp_path, budgets=budgets) as asked:
        found = [asked.ask(path, body, reply).status for _ in range(fits + 1)]
        assert found == [200] * fits + [429]

        def counted() -> float:
            return next(n for name, n in asked.velox.metrics().items() if name.startswith("velox_budget_spent"))

        until(lambda: round(counted(), 9) == spent, "it is counted")


def test_own_server_that_costs_nothing_costs_nothing_whatever_it_tells(tmp_path: Path) -> None:
    """`free: true`, also of sound and pictures whose reply tells nothing, and a budget in dollars lets them pass."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: whisper-1, free: true}\n")
    budgets = [{"per": "gateway", "usd": 1, "window": "month"}]
    with gateway(tmp_path / "ledger", budgets=budgets, prices=str(prices)) as asked:
        for fields in ({}, {"response_format": b"text"}):
            reply = transcribe(asked, "whisper-1", {"text": "hi"}, **fields)
            assert (reply.status, reply.header("x-velox-cost")) == (200, "0.000000000; estimated")
