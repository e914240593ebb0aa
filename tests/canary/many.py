"""How long the longest turn of a worker's loop takes where a gateway has very many keys, routes and models.

    python -m tests.canary.many [N]      N: keys, a tenth as many routes; 10,000 without

Each row is something that happens to a gateway, with milliseconds of the loop's own thread in the longest turn of its
worker (the least of three tries), and where a long turn was mostly seen.

Knows: what happens. Does not know: how a turn is timed (turns.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.canary.turns import longest, timed
from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream, Script
from tests.e2e.watching import until
from tests.untrusting import NO_TRUST

_TRIES: Final = 3
_ADMIN: Final = {"authorization": "Bearer admin-token-0123456789"}


def _configuration(origin: str, n: int, *, budgets: bool) -> dict[str, Any]:
    keys = [{"name": f"k{k}", "key": f"sk-of-client-{k:08d}", "rpm": 1000 + k % 7} for k in range(n)]
    routes = [{"name": f"r{k}", "match": {"models": [f"m{k}-*"]}, "to": "a"} for k in range(n // 10)]
    told: dict[str, Any] = {
        "upstreams": [{"name": "a", "origin": origin}],
        "routes": [*routes, {"name": "rest", "to": "a"}],
        "api_keys": keys,
    }
    if budgets:
        told["budgets"] = [{"per": "key", "usd": 1000, "window": "month", "unpriced": "allow"}]
    return told


def main(n: int) -> None:
    models = [{"id": f"model-{k}", "object": "model", "created": 1, "owned_by": "a"} for k in range(n)]
    listed = json.dumps({"object": "list", "data": models}).encode()
    with tempfile.TemporaryDirectory() as folder, RecordingUpstream(script=_listing(listed)) as upstream:
        path = Path(folder, "velox.yaml")
        config = _configuration(upstream.env()["VELOX_UPSTREAM_ORIGIN"], n, budgets=True)
        ledger = {"ledger": str(Path(folder, "ledger"))}
        path.write_text(yaml.safe_dump(config | ledger))
        env = {"VELOX_CONFIG": str(path), "VELOX_WORKERS": "1", "VELOX_ADMIN_TOKEN": "admin-token-0123456789"}
        with VeloxProcess(env, launcher=timed(folder)) as velox:
            (worker,) = velox.worker_pids()
            key = {"authorization": f"Bearer sk-of-client-{n - 1:08d}"}
            reloads = 0

            def reload() -> str:
                nonlocal reloads
                reloads += 1
                config["routes"][0]["name"] = f"new-{reloads}"
                path.write_text(yaml.safe_dump(config | ledger))
                os.kill(velox.pid, signal.SIGHUP)
                count = f'velox_config_reloads_total{{result="ok"}} {reloads}'
                until(lambda: count in _metrics(velox), f"reload {reloads}")
                return "reloaded"

            ways: dict[str, Callable[[], str]] = {
                "a request": lambda: _get(velox.base_url + "/v1/models/none", key),
                "list of models": lambda: _get(velox.base_url + "/v1/models", key),
                "metrics": lambda: str(len(_metrics(velox))),
                "reload": reload,
            }
            for name, way in ways.items():
                way()
                tries = []
                for _ in range(_TRIES):
                    longest(worker, folder)
                    said = way()
                    tries.append(longest(worker, folder))
                least = min(tries, key=lambda each: each.ms)
                print(f"{name:30} {said:12} {least.ms:7.1f}  {least.seen[:170]}", flush=True)


def _listing(listed: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.reply(200, [("content-type", "application/json")], listed)

    return script


def _get(url: str, headers: dict[str, str]) -> str:
    return str(httpx.get(url, headers=headers, timeout=60, verify=NO_TRUST).status_code)


def _metrics(velox: VeloxProcess) -> str:
    return httpx.get(f"{velox.admin_url}/metrics", timeout=60, headers=_ADMIN, verify=NO_TRUST).text


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
