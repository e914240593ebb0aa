"""Paths that name a model, as Azure's do: it is the one that is limited, paid for and run, whatever the body names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.priced import Priced
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed

WAYS: dict[str, dict[str, str]] = {
    "as it came": {},
    "openai": {"provider": "openai"},
    "azure, dated": {"provider": "azure", "api_version": "2024-10-21"},
}
TARGETS = {
    "as it came": "/openai/deployments/own/chat/completions?api-version=1",
    "openai": "/v1/chat/completions",
    "azure, dated": "/openai/deployments/own/chat/completions?api-version=2024-10-21",
}


_CHAT = ("/v1/chat/completions", "/chat/completions", "/openai/v1/chat/completions", "/openai/chat/completions")
_MESSAGES = ("/v1/messages", "/messages", "/anthropic/v1/messages", "/anthropic/messages")


@pytest.mark.parametrize(("provider", "other"), [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages")])
def test_paths_may_come_without_a_version_or_with_a_name_before_them(provider: str, other: str, tmp_path: Path) -> None:
    """As clients of other gateways write them: the provider is asked at its own path, translated or not."""
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}).encode()
    config = tmp_path / "velox.yaml"
    with RecordingUpstream() as upstream:
        own = {"name": "u", "provider": provider, "origin": upstream.upstream.url, "key": "none"}
        config.write_text(json.dumps({"upstreams": [own]}))
        with VeloxProcess({"VELOX_CONFIG": str(config), "VELOX_WORKERS": "1"}) as velox:
            for path in (*_CHAT, *_MESSAGES):
                velox.request("POST", path, body)
                assert upstream.calls[-1].target == other, path
            n_calls = len(upstream.calls)
            for path in ("/messages/count_tokens", "/anthropic/v1/messages/count_tokens"):
                velox.request("POST", path, body)
            assert velox.request("GET", "/models").status == 200
            upstream.wait(lambda: len(upstream.calls) > n_calls or provider == "openai", "tokens are counted")
        assert {call.target.split("?")[0] for call in upstream.calls} <= {
            other,
            "/v1/models",
            "/v1/messages/count_tokens",
            "/v1/responses/input_tokens",
        }


@contextlib.contextmanager
def gateway(folder: Path, way: str) -> Iterator[tuple[VeloxProcess, RecordingUpstream]]:
    """Run one with prices, a limit for the model `own`, and a budget of three of its calls."""
    priced = Priced(folder)
    priced.prices.write_text(
        "prices:\n  - {model: own, input: 1, output: 10}\n  - {model: cheap, input: 0, output: 0}\n"
    )
    with RecordingUpstream() as upstream, upstream.playing(priced.answer):
        config = {
            "upstreams": [{"name": "one", "origin": upstream.upstream.url, "key": "env:MODEL_KEY", **WAYS[way]}],
            "budgets": [{"per": "gateway", "usd": "0.007", "window": "month"}],
            "limits": [{"per": "model", "models": ["own"], "rpm": 5, "burst": 2}],
        }
        settings = {"prices": str(priced.prices), "ledger": str(folder / "ledger"), "rate_limit_max_wait": "0"}
        with routed(config, MODEL_KEY="sk-model-0123456789", **settings) as velox:
            upstream.forget()
            yield velox, upstream


def ask(velox: VeloxProcess, path_model: str, **body: object) -> int:
    told = json.dumps({**body, "messages": [], "max_tokens": 100}).encode()
    return velox.request("POST", f"/openai/deployments/{path_model}/chat/completions?api-version=1", told).status


@pytest.mark.parametrize("way", WAYS)
def test_model_of_the_path_is_limited_paid_for_and_run(tmp_path: Path, way: str) -> None:
    with gateway(tmp_path, way) as (velox, upstream):
        assert [ask(velox, "own", model="cheap"), ask(velox, "own"), ask(velox, "own", model="cheap")] == [
            200,
            200,
            429,
        ]

        assert {call.target for call in upstream.calls} == {TARGETS[way]}
        models = [json.loads(call.body).get("model") for call in upstream.calls]
        assert models == (["cheap", None] if way == "as it came" else ["own", "own"])
        assert next(n for name, n in velox.metrics().items() if name.startswith("velox_budget_spent")) == 0.004


def test_made_up_name_in_the_path_evades_no_limit(tmp_path: Path) -> None:
    """Where a provider's path is built anew, the made-up model is what is asked for."""
    with gateway(tmp_path, "openai") as (velox, upstream):
        assert ask(velox, "made-up", model="own") == 403  # it has no price

        assert not upstream.calls
