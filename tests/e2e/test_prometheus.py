"""A real Prometheus scrapes running gateways: it takes each query of deploy/, and staged failures alert."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.prometheus_server import NEEDS_PROMETHEUS, PATIENCE_S, Prometheus
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import nobody, routed
from tests.unit.deploy.test_monitoring_files import queries, rules

pytestmark = [pytest.mark.more, NEEDS_PROMETHEUS]

KEY: Final = "sk-client-0123456789"
STAGED_TOGETHER: Final = frozenset(
    {"VeloxBudgetNearEnd", "VeloxRequestsFail", "VeloxUpstreamOut", "VeloxLedgerNotWritable"}
)


async def answer(call: Call) -> None:
    """Answer as a model, with a usage; the model `bad` fails."""
    if json.loads(call.body)["model"] == "bad":
        await call.reply(500, JSON, b'{"error": {"message": "no"}}')
        return
    usage = {"prompt_tokens": 95, "completion_tokens": 1, "total_tokens": 96}
    message = {"role": "assistant", "content": "Yes."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    await call.reply(200, JSON, json.dumps({"choices": [choice], "usage": usage}).encode())


def ask(velox: VeloxProcess, model: str) -> int:
    body = json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    return velox.request("POST", "/v1/chat/completions", body, headers).status


def unwritable(folder: Path) -> Path:
    """Return a ledger whose files of these days can't be written, whoever one is."""
    today = datetime.datetime.now(datetime.UTC).date()
    for n in (0, 1):
        (folder / f"calls-{today + datetime.timedelta(days=n)}.db").mkdir(parents=True)
    return folder


def test_queries_are_taken_and_staged_failures_alert(tmp_path: Path) -> None:
    """Of an upstream that is down, requests that fail, a budget near its end, a ledger that can't be written.

    Nothing else does: alerts that always fire are read by nobody.
    """
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{key: {KEY}, name: app, team: web}}\n")
    given = {"api_keys_file": str(keys), "MODEL_KEY": "sk-model-0123456789", "retries": "0"}
    budget = {"per": "team", "tokens": 200, "window": "total"}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(RecordingUpstream())
        stack.enter_context(upstream.playing(answer))
        entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        gone = {**entry, "name": "gone", "origin": stack.enter_context(nobody())}
        ways = [{"name": "gone", "match": {"models": ["gone"]}, "to": ["gone"]}, {"name": "rest", "to": ["one"]}]
        well = {"upstreams": [entry], "routes": ways[1:], "budgets": [budget]}
        ill = {"upstreams": [entry, gone], "routes": ways}
        good = stack.enter_context(routed(well, ledger=str(tmp_path / "ledger"), **given))
        bad = stack.enter_context(routed(ill, ledger=str(unwritable(tmp_path / "broken")), **given))
        targets = [velox.admin_url.removeprefix("http://") for velox in (good, bad)]
        prometheus = Prometheus(tmp_path, targets)
        stack.enter_context(prometheus.running())
        until(lambda: prometheus.has('count(up{job="velox"} == 1) == 2'), "both are scraped", PATIENCE_S)
        assert ask(good, "good") == 200

        # Each query is one for Prometheus, also where it has no result now.
        for query in (*(rule["expr"] for rule in rules()), *queries()):
            prometheus.ask("query", query=query.replace("$__rate_interval", "1m"))

        assert "VeloxBudgetNearEnd" not in prometheus.firing()
        assert ask(good, "good") == 200  # 192 tokens of 200
        until(lambda: "VeloxBudgetNearEnd" in prometheus.firing(), "the budget is near its end", PATIENCE_S)

        def fails(alert: str, model: str) -> bool:
            ask(bad, model)
            return alert in prometheus.firing()

        until(lambda: fails("VeloxRequestsFail", "bad"), "requests fail", PATIENCE_S)
        until(lambda: fails("VeloxUpstreamOut", "gone"), "an upstream is out", PATIENCE_S)
        until(lambda: fails("VeloxLedgerNotWritable", "good"), "the ledger can't be written", PATIENCE_S)
        assert not prometheus.has(
            'velox_ledger_writable == 0 unless on (instance) velox_upstream_state{upstream="gone"}'
        )
        assert prometheus.firing() >= STAGED_TOGETHER
        assert prometheus.firing() <= STAGED_TOGETHER | {"VeloxLedgerLags", "VeloxOverloaded"}
        stages = [query for query in queries() if prometheus.has(query.replace("$__rate_interval", "1m"))]
        assert len(stages) > 15, "most of the dashboard shows something"
