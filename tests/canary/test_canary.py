"""No client and no upstream makes the others of its worker wait: a canary beside each attack.

One step of the loop takes a few milliseconds at most, whatever comes. A canary at another upstream sends a small
request every few milliseconds meanwhile.
"""

from __future__ import annotations

import pytest

from tests.canary.attackers import ATTACKERS
from tests.canary.canary import Phase, attacked, attacker, flooding, measure

MOST_MS = 20.0
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
    """The 99th percentile stays below 20 ms, or what a machine that is busy with other things makes of it."""
    assert not before.bad and not during.bad, (before.bad, during.bad)
    assert len(during.took_ms) > 20
    most_ms = max(MOST_MS, 3 * before.percentile(99))
    assert during.percentile(99) < most_ms, f"p50 {during.percentile(50):.1f} max {during.percentile(100):.1f} ms"


@pytest.mark.parametrize(("kind", "provider"), FLOODS)
def test_upstream_that_floods_delays_nobody_else(kind: str, provider: str | None) -> None:
    """Endless small events: each connection has a budget of time for each turn of the loop."""
    with flooding(kind) as origin, attacked(origin, provider, upstream_idle_timeout="600s") as velox:
        before = measure(velox, 1.0)
        with attacker("a stream", velox, SECONDS + 2):
            during = measure(velox, SECONDS)
    check(before, during)


@pytest.mark.parametrize("name", [name for name in ATTACKERS if name != "a stream"])
def test_client_that_attacks_delays_nobody_else(name: str) -> None:
    """Bodies and paths that are hard to read, WebSockets of tiny messages."""
    with flooding("comments") as origin, attacked(origin, "anthropic") as velox:
        before = measure(velox, 1.0)
        with attacker(name, velox, SECONDS + 2):
            during = measure(velox, SECONDS)
    check(before, during)
