"""Counters while workers are killed: none ever falls or vanishes, and in the end they are what the clients have seen.

COUNTERS_S says for how many seconds; without it, half a minute.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.routed import named, routed

_SECONDS: Final = float(os.environ.get("COUNTERS_S", "30"))
_KILL_EACH_S: Final = 3.0
_CLIENTS: Final = 6
_TYPE: Final = re.compile(r"# TYPE (\S+) (counter|histogram)")


def counters(page: str) -> dict[str, float]:
    """Return the samples of a metrics page that must never fall: of counters and histograms.

    Not CPU: that is the kernel's, of the process that there is.
    """
    kinds = set(_TYPE.findall(page))
    counted = {name for name, kind in kinds if kind == "counter" and not name.startswith("process_")}
    counted |= {f"{name}_{part}" for name, kind in kinds if kind == "histogram" for part in ("bucket", "count", "sum")}
    found = {}
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] in counted:
            found[sample] = float(value)
    return found


def fallen(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    return [f"{name}: {value} -> {now.get(name)}" for name, value in before.items() if now.get(name, -1.0) < value]


class Clients:
    """Ask again and again, until they are told to stop. ends: by the status that they got; 0: it was cut."""

    def __init__(self, velox: VeloxProcess) -> None:
        self.ends: Final[Counter[int]] = Counter()
        self._velox: Final = velox
        self._stop: Final = threading.Event()
        self._lock: Final = threading.Lock()
        self._threads: Final = [threading.Thread(target=self._ask, args=(n,)) for n in range(_CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, n: int) -> None:
        said = [{"role": "user", "content": "hi"}]
        body = json.dumps({"model": "m", "messages": said, "max_tokens": 4, "stream": n % 2 == 0}).encode()
        while not self._stop.is_set():
            try:
                reply = self._velox.request("POST", "/v1/chat/completions", body)
                is_whole = n % 2 == 1 or reply.body.endswith(b"data: [DONE]\n\n")
                status = reply.status if is_whole or reply.status != 200 else 0
            except (OSError, AssertionError, ValueError, IndexError):  # cut: before its head, or inside
                status = 0
            with self._lock:
                self.ends[status] += 1


def test_counters_of_killed_workers_are_counted_on() -> None:
    """All that came whole is counted, also of the workers that were killed; what was cut may be."""
    rng, most_killed = random.Random(7), 0
    with (
        named("sim", sim="--ttft 5ms --token-rate 500") as sims,
        routed({"upstreams": [sims["sim"]]}, workers="2") as velox,
    ):
        before = counters(velox.admin("/metrics").body.decode())
        began_s = next_kill_s = time.monotonic()
        n_pages, seen = 0, before
        with Clients(velox) as clients:
            while time.monotonic() - began_s < _SECONDS:
                if time.monotonic() >= next_kill_s and len(velox.worker_pids()) == 2:
                    os.kill(rng.choice(velox.worker_pids()), signal.SIGKILL)
                    most_killed += 1
                    next_kill_s = time.monotonic() + _KILL_EACH_S
                now = counters(velox.admin("/metrics").body.decode())
                assert fallen(seen, now) == []
                seen, n_pages = now, n_pages + 1
        until(lambda: velox.metric("velox_inflight_requests") == 0, "nothing runs")
        last = counters(velox.admin("/metrics").body.decode())
    assert fallen(seen, last) == []
    ends = clients.ends
    n_whole, n_cut = ends[200], ends[0]
    counted = sum(value for name, value in last.items() if name.startswith("velox_requests_total{"))
    counted_ok = sum(value for name, value in last.items() if re.match(r'velox_requests_total\{.*reason="ok"', name))
    replies = sum(
        value for name, value in last.items() if name.startswith("gen_ai_server_request_duration_seconds_count")
    )
    print(
        f"{n_pages} pages, {most_killed} kills, {dict(ends)}: counted {counted:g}, ok {counted_ok:g}, timed {replies:g}"
    )
    assert most_killed >= 2 and n_whole > 100 and len(last) > 300
    # What came whole is counted, all of it; of what was cut, that whose last bytes were about to go out.
    n_all = sum(ends.values())
    assert n_all - n_cut <= counted <= n_all
    assert n_whole <= counted_ok <= n_whole + n_cut
    assert n_all - n_cut <= replies <= n_all
