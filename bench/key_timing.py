"""Whether the time of a refusal tells how near a key was: medians of keys that differ early, late, or are none (B-28).

    python -m bench.key_timing [--tries N]

Two tables: the check of a head by itself, with 1,000 active keys; and whole requests to a gateway on loopback. Tries
are taken in a random order, so that what the machine does meanwhile falls on all alike; the noise of a median is the
spread of the medians of 20 parts of its tries. A report, never a gate: a loaded machine can make any two differ.

Knows: what is presented, and how times are compared. Does not know: how a key is checked.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

from velox.errors import VeloxError
from velox.gateway.auth import Authenticator
from velox.heads import RequestHead
from velox.settings.callers.keys import parse_entries, parse_key

_RIGHT: Final = "vk-" + "a" * 40
_OTHERS: Final = "bcdefghijlmnopqrstuwxyz0123456789"
# What each kind presents, given a letter that the right key has not: never the same object twice, as where one lies in
# memory makes more of a difference than what is in it.
_PRESENTED: Final[dict[str, Callable[[str], str]]] = {
    "no key": lambda _: "",
    "first byte differs": lambda other: other + _RIGHT[1:],
    "last byte differs": lambda other: _RIGHT[:-1] + other,
    "shorter by one": lambda other: _RIGHT[:-2] + other,
    "longer by one": lambda other: _RIGHT + other,
    "nothing alike": lambda other: other * len(_RIGHT),
}
_PARTS: Final = 20
_READY: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


def head(key: str) -> RequestHead:
    """Return the head of a request that presents a key."""
    headers = [(b"user-agent", b"bench"), *([(b"authorization", f"Bearer {key}".encode())] if key else [])]
    return RequestHead.of(b"GET", b"/v1/models", headers)


def by_itself() -> Callable[[str], int]:
    """Return what measures the check alone, in nanoseconds."""
    auth = Authenticator((*parse_entries(",".join(f"vk-{n}" for n in range(999))), parse_key(_RIGHT)))

    def once(name: str) -> int:
        presented = head(_PRESENTED[name](random.choice(_OTHERS)))
        began_ns = time.perf_counter_ns()
        try:
            auth.check(presented)
        except VeloxError:
            pass
        return time.perf_counter_ns() - began_ns

    return once


def over_a_socket(port: int) -> Callable[[str], int]:
    """Return what measures a whole request on a kept connection, in nanoseconds."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def once(name: str) -> int:
        key = _PRESENTED[name](random.choice(_OTHERS))
        line = f"authorization: Bearer {key}\r\n" if key else ""
        request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\n{line}\r\n".encode()
        began_ns = time.perf_counter_ns()
        sock.sendall(request)
        reply = sock.recv(65536)
        took_ns = time.perf_counter_ns() - began_ns
        assert reply.startswith(b"HTTP/1.1 401 ") and reply.endswith(b"}"), reply
        return took_ns

    return once


def measure(once: Callable[[str], int], tries: int) -> dict[str, list[int]]:
    """Take all tries in a random order."""
    found: dict[str, list[int]] = {name: [] for name in _PRESENTED}
    order = [name for name in _PRESENTED for _ in range(tries)]
    random.shuffle(order)
    for name in order[:1000]:
        once(name)
    for name in order:
        found[name].append(once(name))
    return found


def table(found: dict[str, list[int]]) -> str:
    """Return the medians with their noise, and whether the two that matter are equal within it."""
    lines = ["| presented | median µs | noise of the median µs | middle half µs |", "|---|---|---|---|"]
    noise = {}
    for name, times in found.items():
        parts = [statistics.median(times[part::_PARTS]) for part in range(_PARTS)]
        noise[name] = statistics.stdev(parts) / _PARTS**0.5
        low, middle, high = statistics.quantiles(times, n=4)
        half = f"{low / 1000:.2f} to {high / 1000:.2f}"
        lines.append(f"| {name} | {middle / 1000:.3f} | {noise[name] / 1000:.3f} | {half} |")
    first, last = "first byte differs", "last byte differs"
    apart = abs(statistics.median(found[first]) - statistics.median(found[last]))
    # What two readings of the clock can tell apart, at least.
    both = max(3 * (noise[first] ** 2 + noise[last] ** 2) ** 0.5, 2 * _clock_step_ns())
    verdict = "equal within noise" if apart <= both else "NOT equal within noise: run it again on a quiet machine"
    return "\n".join(
        [*lines, f"first and last: {apart / 1000:.3f} µs apart, noise or clock {both / 1000:.3f} µs: {verdict}"]
    )


def _clock_step_ns() -> int:
    """Return the least time between two readings of the clock."""
    seen = sorted({time.perf_counter_ns() for _ in range(10_000)})
    return min(after - before for before, after in pairwise(seen))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.key_timing", description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=10_000, help="of each kind (default 10000)")
    tries = parser.parse_args().tries
    print(f"The check by itself, 1,000 keys, {tries} tries each:\n\n{table(measure(by_itself(), tries))}\n")
    settings = {"VELOX_LISTEN": "127.0.0.1:0", "VELOX_ADMIN_LISTEN": "off", "VELOX_WORKERS": "1"}
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    gateway = subprocess.Popen(
        [sys.executable, "-m", "velox", "serve", "--sim"],
        cwd=Path(__file__).parents[1],
        env={**environment, **settings, "VELOX_API_KEYS": _RIGHT, "VELOX_ACCESS_LOG": "off"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert gateway.stderr is not None, "it is a pipe"
        ready = next(filter(None, map(_READY.search, gateway.stderr)), None)
        if ready is None:
            raise SystemExit("the gateway did not start")
        figures = measure(over_a_socket(int(ready[1])), tries)
        print(f"Whole requests on loopback, {tries} tries each:\n\n{table(figures)}")
    finally:
        gateway.terminate()
        gateway.wait(30)


if __name__ == "__main__":
    main()
