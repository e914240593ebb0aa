"""Runs as bench.compare writes them, made up but plausible: whole, short, with peers that are missing or refused.

Knows: the JSON's form, and about how gateways differ. The same call makes the same run.
"""

from __future__ import annotations

import math
import random
from typing import Any

__all__ = ["FAST", "run", "smoke"]

# name -> (kind, µs a request, µs a chunk, added ms, MB at rest, s to start)
SUBJECTS: dict[str, tuple[str, float, float, float, float, float]] = {
    "direct": ("direct", 0.0, 0.0, 0.0, 0.0, 0.0),
    "nginx": ("proxy", 16.8, 8.4, 0.10, 5.2, 0.02),
    "HAProxy": ("proxy", 21.0, 9.1, 0.11, 12.0, 0.05),
    "Envoy": ("proxy", 62.0, 19.0, 0.19, 38.0, 0.4),
    "vllm-router": ("llm", 95.0, 14.0, 0.25, 22.0, 0.3),
    "sglang-router": ("llm", 118.0, 15.0, 0.29, 24.0, 0.4),
    "smg": ("llm", 131.0, 16.5, 0.31, 41.0, 0.6),
    "Portkey": ("llm", 780.0, 120.0, 1.9, 92.0, 1.1),
    "LiteLLM": ("llm", 8100.0, 2400.0, 21.0, 410.0, 9.5),
    "Velox": ("velox", 42.0, 9.0, 0.22, 52.0, 0.2),
    "Velox, HTTP/2 up": ("velox", 45.0, 10.5, 0.25, 52.0, 0.2),
    "Velox, HTTP/2 over TLS up": ("velox", 54.0, 13.0, 0.28, 53.0, 0.2),
    "Velox, 2 workers": ("velox", 44.0, 9.5, 0.2, 70.0, 0.3),
}
FAST = ("direct", "nginx", "HAProxy", "Velox")
MISSING = {"Envoy": "PeerError: no wheel <for> this | platform:\n    pip said [no](such) thing"}


def run(kind: str = "bench", *, rounds: int = 5, missing: tuple[str, ...] = (), seed: int = 1) -> dict[str, Any]:
    """Return a run: JSON at saturation, two streams, two rates; LiteLLM and Portkey are refused at the high one."""
    chance = random.Random(seed)
    names = [name for name in SUBJECTS if name not in missing]
    slow = {"LiteLLM", "Portkey"} & set(names)
    cells = [
        _cell("json-750B", "JSON, 750 B, 32 connections", names, rounds, chance),
        _cell("sse-burst", "SSE, 32 streams, as fast as the upstream writes", names, rounds, chance, stream=True),
        _cell("sse-paced", "SSE, 150 streams, a chunk each 10 ms", names, rounds, chance, stream=True),
        _cell("open-100", "JSON, 750 B, 100 requests/s", names, rounds, chance, rate=100),
        _cell("open-4000", "JSON, 750 B, 4,000 requests/s", [*names], rounds, chance, rate=4000, refused=slow),
        _cell("json-equal", "The same with equal heads", names, rounds, chance, heads="equal"),
    ]
    return {
        "format": 1,
        "kind": kind,
        "machine": {
            "cpu": "Some CPU @ 2.0GHz",
            "cores": 2,
            "kernel": "6.1.0",
            "python": "3.11.2",
            "python_build": "'--enable-optimizations' '--with-lto'",
            "commit": "abc1234",
            "modified": False,
            "load_average": [0.5, 0.4, 0.3],
        },
        "date": "2026-11-22",
        "seconds": 2.0,
        "rounds": rounds,
        "subjects": {
            name: {"kind": SUBJECTS[name][0], "package": f"PyPI {name.lower()} 1.2.3", "features": "key asked, log off"}
            for name in names
        },
        "missing": {name: MISSING.get(name, "it did not start") for name in missing},
        "cells": cells,
        "memory": {name: _memory(name, chance) for name in names if name not in ("direct", "LiteLLM")},
        "memory_refused": {"LiteLLM": "only 250 of 1000 were answered in 60 s"} if "LiteLLM" in names else {},
        "cores": {
            "nginx": [[1, 52_000.0], [2, 61_000.0]],
            "Velox": [[1, 21_000.123456], [2, 30_500.0]],
        },
    }


def smoke() -> dict[str, Any]:
    """Return the shortest run: one round of two cells, few subjects, no memory, one worker, no latencies."""
    whole = run("smoke", rounds=1, missing=tuple(name for name in SUBJECTS if name not in FAST))
    whole["cells"] = whole["cells"][:2]
    return whole | {"memory": {}, "cores": {}}


def _cell(
    cell: str,
    title: str,
    names: list[str],
    rounds: int,
    chance: random.Random,
    *,
    stream: bool = False,
    rate: float | None = None,
    refused: set[str] | frozenset[str] = frozenset(),
    heads: str = "real",
) -> dict[str, Any]:
    served = [name for name in names if name not in refused]
    return {
        "id": cell,
        "title": title,
        "workload": {
            "heads": heads,
            "body_bytes": 750,
            "stream": stream,
            "connections": 32,
            "upstream": "http1",
            "load": "open" if rate else "closed",
            "rate": rate,
            "interval_s": 0.01 if "paced" in cell else 0.0,
            "upstream_errors": 0.0,
            "large_beside": False,
        },
        "rounds": {name: [_figures(name, chance, stream=stream, rate=rate) for _ in range(rounds)] for name in served},
        "latencies_ms": {name: _quantiles(name, chance) for name in served} if rate else {},
        "refused": {name: "it serves 120 requests/s at most" for name in names if name in refused},
    }


def _figures(name: str, chance: random.Random, *, stream: bool, rate: float | None) -> dict[str, float]:
    _, request_us, chunk_us, added_ms, _, _ = SUBJECTS[name]
    noise = chance.lognormvariate(0.0, 0.04)
    cost = (chunk_us * (1.0 if not stream else 1.9) if stream else request_us) * noise
    found: dict[str, float] = {"errors": 0}
    if name != "direct":
        found |= {"cpu_us": cost, "cpu_user_us": cost * 0.62, "cpu_system_us": cost * 0.38, "busy": 0.987}
    if not rate:
        found["per_s"] = 1e6 / max(cost, 12.0)
    if stream:
        found |= {"ttfe_p50_ms": 0.2 + added_ms * noise, "gap_p99_ms": 1.5 + 3 * added_ms * noise}
        if name != "direct":
            found["chunks_per_write"] = 1.1 * noise
    else:
        for key, factor in (("p50_ms", 1.0), ("p90_ms", 1.5), ("p99_ms", 2.2), ("p999_ms", 5.0)):
            found[key] = (0.13 + added_ms * noise) * factor
    return found


def _quantiles(name: str, chance: random.Random) -> list[float]:
    middle = 0.13 + SUBJECTS[name][3]
    values = sorted(middle * 0.75 * math.exp(chance.expovariate(1 / 0.3)) for _ in range(5000))
    return [values[min(4999, int(share * 5) - 1)] for share in range(1, 1001)]


def _memory(name: str, chance: random.Random) -> dict[str, Any]:
    _, _, _, _, rest_mb, start_s = SUBJECTS[name]
    streams = [[n, rest_mb * (1 + n / 2000 * chance.uniform(0.8, 1.2))] for n in (0, 250, 500, 1000)]
    start = [start_s * chance.uniform(0.9, 1.2) for _ in range(5)]
    return {"rest_mb": rest_mb, "idle_kb_per_connection": 1.5 + rest_mb / 20, "streams": streams, "start_s": start}
