"""No client and no upstream makes the others of its worker wait: a canary beside each attack.

A canary at another upstream sends a small request every few milliseconds meanwhile, and the same to a gateway that is
not attacked (canary.py). The 99th percentile is to stay within 20 ms of that one's, without what both workers waited
for a core; and the worker's memory within 8 bytes for each byte that it received. `pytest -s tests/canary` shows both.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.canary.attackers import ATTACKERS
from tests.canary.canary import Phase, attacked, attacker, beside, control, flooding
from tests.canary.floods import ANSWERS
from tests.e2e.harness import VeloxProcess

STILL_MS = 250.0  # before there was a budget for each turn, half of the requests took longer
SECONDS = 4.0
MOST_MS = 20.0
# A worker has loaded what it translates with, and threads have their stacks.
FREE_BYTES = 32 << 20
BYTES_FOR_EACH = 8
# Which clients make a flooding upstream's events be translated: the provider that it is, None: they pass.
FLOODS = [
    ("pings", "anthropic"),
    ("starts", "anthropic"),
    ("comments", "anthropic"),
    ("comments", None),
    ("empty deltas", None),
    ("texts", None),
    ("empty candidates", "gemini"),
]


@pytest.fixture(scope="module")
def idle() -> Iterator[VeloxProcess]:
    """A gateway that nobody attacks."""
    with control() as velox:
        yield velox


def check(name: str, during: Phase, idle: Phase) -> None:
    """Each is answered, none waits for the attack, and memory is in proportion to what came."""
    own_ms, idle_ms = during.own_percentile(99), idle.own_percentile(99)
    print(
        f"{name}: p50 {during.percentile(50):.1f} p99 {during.percentile(99):.1f} max {during.percentile(100):.1f} ms;"
        f" control p50 {idle.percentile(50):.1f} p99 {idle.percentile(99):.1f} ms;"
        f" without waits for a core p99 {own_ms:.1f}, control {idle_ms:.1f} ms;"
        f" {during.n_received >> 20} MiB received, memory grew by {during.grown_bytes >> 20} MiB"
    )
    assert not during.bad and not idle.bad, (during.bad, idle.bad)
    assert during.percentile(50) < STILL_MS, "most of them stood still"
    assert own_ms - idle_ms < MOST_MS
    assert during.grown_bytes < FREE_BYTES + BYTES_FOR_EACH * during.n_received


@pytest.mark.parametrize(("kind", "provider"), FLOODS)
def test_upstream_that_floods_delays_nobody_else(kind: str, provider: str | None, idle: VeloxProcess) -> None:
    """Endless small events: each connection has a budget of time for each turn of the loop."""
    with flooding(kind) as origin, attacked(origin, provider, upstream_idle_timeout="600s") as velox:
        beside(velox, idle, 0.5)
        with attacker("a stream", velox, SECONDS + 2):
            during, unharmed = beside(velox, idle, SECONDS)
    check(kind, during, unharmed)


@pytest.mark.parametrize("kind", ANSWERS)
def test_answer_that_is_too_much_delays_nobody_else(kind: str, idle: VeloxProcess) -> None:
    """Whole answers and events of megabytes, put into another API: beside the loop, and out in pieces."""
    _, is_event, provider = ANSWERS[kind]
    with flooding(kind) as origin, attacked(origin, provider) as velox:
        beside(velox, idle, 0.5)
        with attacker("a stream" if is_event else "a plain request", velox, SECONDS + 2):
            during, unharmed = beside(velox, idle, SECONDS)
    check(kind, during, unharmed)


CLIENTS = [name for name in ATTACKERS if name not in ("a stream", "a plain request")]


@pytest.mark.parametrize("name", CLIENTS)
def test_client_that_attacks_delays_nobody_else(name: str, idle: VeloxProcess) -> None:
    """Bodies and paths that are hard to read, WebSockets of tiny messages."""
    with flooding("comments") as origin, attacked(origin, "anthropic") as velox:
        beside(velox, idle, 0.5)
        with attacker(name, velox, SECONDS + 2):
            during, unharmed = beside(velox, idle, SECONDS)
    check(name, during, unharmed)
