"""No client and no upstream makes the others of its worker wait: a canary beside each attack.

A canary at another upstream sends a small request every few milliseconds meanwhile. `pytest -s tests/canary` shows how
long these took; on a quiet machine the 99th percentile is to stay under 20 ms.
"""

from __future__ import annotations

import pytest

from tests.canary.attackers import ATTACKERS
from tests.canary.canary import Phase, attacked, attacker, flooding, measure
from tests.canary.floods import ANSWERS

STILL_MS = 250.0  # before there was a budget for each turn, half of the requests took longer
SECONDS = 4.0
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


def check(before: Phase, during: Phase) -> None:
    """Each is answered, and none stands still. How long they take is told, and no test's matter on a shared machine."""
    print(
        f"p50 {during.percentile(50):.1f} p99 {during.percentile(99):.1f} max {during.percentile(100):.1f} ms", end="; "
    )
    print(f"before: p50 {before.percentile(50):.1f} p99 {before.percentile(99):.1f} ms")
    assert not before.bad and not during.bad, (before.bad, during.bad)
    assert during.percentile(50) < STILL_MS, "most of them stood still"


@pytest.mark.parametrize(("kind", "provider"), FLOODS)
def test_upstream_that_floods_delays_nobody_else(kind: str, provider: str | None) -> None:
    """Endless small events: each connection has a budget of time for each turn of the loop."""
    with flooding(kind) as origin, attacked(origin, provider, upstream_idle_timeout="600s") as velox:
        before = measure(velox, 1.0)
        with attacker("a stream", velox, SECONDS + 2):
            during = measure(velox, SECONDS)
    check(before, during)


@pytest.mark.parametrize("kind", ANSWERS)
def test_answer_that_is_too_much_delays_nobody_else(kind: str) -> None:
    """Whole answers and events of megabytes, put into another API: beside the loop, and out in pieces."""
    _, is_event, provider = ANSWERS[kind]
    with flooding(kind) as origin, attacked(origin, provider) as velox:
        before = measure(velox, 1.0)
        with attacker("a stream" if is_event else "a plain request", velox, SECONDS + 2):
            during = measure(velox, SECONDS)
    check(before, during)


CLIENTS = [name for name in ATTACKERS if name not in ("a stream", "a plain request")]


@pytest.mark.parametrize("name", CLIENTS)
def test_client_that_attacks_delays_nobody_else(name: str) -> None:
    """Bodies and paths that are hard to read, WebSockets of tiny messages."""
    with flooding("comments") as origin, attacked(origin, "anthropic") as velox:
        before = measure(velox, 1.0)
        with attacker(name, velox, SECONDS + 2):
            during = measure(velox, SECONDS)
    check(before, during)
