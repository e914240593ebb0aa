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
    """A gateway with OpenAI and Groq, whose answers a test gives."""

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
        entries = [
            {"name": name, "provider": name, "origin": origin, "key": "env:MODEL_KEY"} for name in ("openai", "groq")
        ]
        routes = [
            {"name": "groq", "match": {"models": ["whisper-large-v3"]}, "to": "groq"},
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
        for model, cost in (("tts-1", "0.000105000; estimated"), ("gpt-4o-mini-tts", "unknown")):
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
