"""Metrics by route, upstream and model, of a gateway of two workers."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import covers
from tests.e2e.upstreams import chat_chunk

KEY = "sk-client-0123456789"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
TTFT = "gen_ai_server_time_to_first_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"

Labels = dict[str, str]


async def answer(call: Call) -> None:
    """Answer as a model, in the form that is asked for."""
    if not json.loads(call.body).get("stream"):
        await call.reply(200, JSON, json.dumps({"choices": [], "usage": USAGE}).encode())
        return
    await call.head(200, SSE)
    await call.data(chat_chunk("word "))
    await call.data(b'data: {"choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % json.dumps(USAGE).encode())
    await call.end()


def settings(folder: Path, upstream: RecordingUpstream, **more: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file of two routes, and the other settings."""
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{key: {KEY}, name: app, team: red}}\n")
    entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
    routes = [
        {"name": "fast", "match": {"models": ["fast"]}, "to": [{"upstream": "one", "model": "house-model"}]},
        {"name": "rest", "to": ["one"]},
    ]
    given = {"api_keys_file": str(keys), "ledger": str(folder / "ledger"), "MODEL_KEY": "sk-model-0123456789"}
    return {"upstreams": [entry], "routes": routes}, {**given, "workers": "2", **more}


def ask(velox: VeloxProcess, model: str, *, stream: bool = False) -> int:
    """Ask a model; return the status."""
    body = json.dumps({"model": model, "messages": [], "stream": stream}).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    return velox.request("POST", "/v1/chat/completions", body, headers).status


def series(velox: VeloxProcess, name: str) -> list[tuple[Labels, float]]:
    """Return the series of a metric."""
    found = velox.metrics().items()
    return [(dict(re.findall(r'(\w+)="(.*?)"', key)), value) for key, value in found if key.partition("{")[0] == name]


def by(velox: VeloxProcess, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric's series by some of their labels."""
    return {tuple(each.get(label, "") for label in labels): value for each, value in series(velox, name)}


def test_streams_and_plain_replies_of_a_model_are_counted_apart(tmp_path: Path) -> None:
    """U9: with route, upstream and model as configuration or price table have it; what is unknown is `other`."""
    with RecordingUpstream() as upstream, upstream.playing(answer):
        config, more = settings(tmp_path, upstream)
        with routed(config, **more) as velox:
            for model, stream, n in (
                ("fast", True, 3),
                ("fast", False, 2),
                ("gpt-4o", True, 1),
                ("GPT-4o\u202e", False, 1),
            ):
                for _ in range(n):
                    assert ask(velox, model, stream=stream) == 200
            assert velox.request("POST", "/v1/chat/completions", b"{").status == 401

            def is_counted() -> bool:
                return sum(by(velox, f"{TTFT}_count", "route_name", "model", "stream").values()) == 7

            until(is_counted, "all are")
            kinds = by(velox, f"{TTFT}_count", "route", "route_name", "upstream", "model", "stream")
            assert kinds == {
                ("chat", "fast", "one", "house-model", "yes"): 3,
                ("chat", "fast", "one", "house-model", "no"): 2,
                ("chat", "rest", "one", "gpt-4o", "yes"): 1,
                ("chat", "rest", "one", "other", "no"): 1,
            }
            assert not any({"team", "key"} & labels.keys() for labels, _ in series(velox, f"{TTFT}_count"))
            durations = by(velox, f"{DURATION}_count", "route", "model", "stream")
            assert durations[("chat", "house-model", "yes")] == 3 and durations[("chat", "gpt-4o", "yes")] == 1
            assert (
                max(float(labels["le"]) for labels, _ in series(velox, f"{DURATION}_bucket") if labels["le"] != "+Inf")
                == 1800
            )
            tokens = by(velox, "velox_model_tokens_total", "model", "stream", "kind")
            assert tokens[("house-model", "yes", "input")] == 300 and tokens[("house-model", "no", "cached")] == 80
            assert by(velox, "velox_model_unpriced_requests_total", "model", "stream") == {
                ("house-model", "yes"): 3,
                ("house-model", "no"): 2,
                ("other", "no"): 1,
            }
            ((cost, usd),) = by(velox, "velox_model_cost_usd_total", "model", "stream").items()
            assert cost == ("gpt-4o", "yes") and 0.0001 < usd < 0.01
            each = by(velox, "gen_ai_server_time_per_output_token_seconds_count", "model", "stream")
            assert each == {("house-model", "yes"): 3, ("gpt-4o", "yes"): 1}
            usage = by(velox, "gen_ai_client_token_usage_sum", "model", "stream", "gen_ai_token_type")
            assert usage[("gpt-4o", "yes", "output")] == 10


def test_counters_survive_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Its successor counts on; nothing is counted twice, and no series is there twice."""
    with RecordingUpstream() as upstream, upstream.playing(answer):
        config, more = settings(tmp_path, upstream)
        with routed(config, **{**more, "workers": "1"}) as velox:
            assert [ask(velox, "fast") for _ in range(3)] == [200] * 3
            until(lambda: by(velox, f"{TTFT}_count", "model") == {("house-model",): 3}, "counted")
            (pid,) = velox.worker_pids()
            os.kill(pid, signal.SIGKILL)
            until(
                lambda: velox.worker_pids() not in ([], [pid]) and velox.metric('velox_worker_up{worker="0"}') == 1,
                "up",
            )
            assert by(velox, f"{TTFT}_count", "model") == {("house-model",): 3}
            assert [ask(velox, "fast"), ask(velox, "gpt-4o")] == [200] * 2
            until(lambda: by(velox, f"{TTFT}_count", "model") == {("house-model",): 4, ("gpt-4o",): 1}, "counts on")


@covers("VELOX_METRIC_MODELS", "VELOX_METRIC_LABELS")
def test_models_are_bounded_and_labels_of_the_caller_are_there_when_asked_for(tmp_path: Path) -> None:
    """The first model keeps its name; the others are `other`."""
    with RecordingUpstream() as upstream, upstream.playing(answer):
        config, more = settings(tmp_path, upstream, metric_models="1", metric_labels="team,key")
        with routed(config, **{**more, "workers": "1"}) as velox:
            assert [ask(velox, model) for model in ("fast", "gpt-4o", "gpt-4o-mini", "fast")] == [200] * 4

            def counts() -> list[tuple[tuple[str, ...], float]]:
                return sorted(by(velox, f"{TTFT}_count", "model", "team", "key").items())

            until(lambda: counts() == [(("house-model", "red", "app"), 2), (("other", "red", "app"), 2)], "bounded")
