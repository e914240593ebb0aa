"""Each attack, shortened: healthy clients are served throughout, memory stays bounded, and nothing is left of it.

How fast healthy clients are served meanwhile is no test's matter on a shared machine: `python -m tests.slow` tells it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.upstreams import Upstream
from tests.slow.attacks import ATTACKS, Attack
from tests.slow.run import run, start_upstream

N = 300
SHORT = {
    "VELOX_HEADER_TIMEOUT": "2s",
    "VELOX_BODY_TIMEOUT": "2s",
    "VELOX_CLIENT_WRITE_TIMEOUT": "2s",
    "VELOX_KEEPALIVE_TIMEOUT": "2s",
}
# Of one attacking connection: twice what docs/memory.md counts for its replies, and for what it sends ahead.
EACH_BYTES = 600 * 1024


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """A small answer to everything, 1 MiB below /large."""
    with start_upstream() as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_attack_is_survived_and_leaves_nothing_behind(attack: Attack, upstream: Upstream) -> None:
    """F-45, F-46, F-58: no healthy request fails; the attackers are ended; memory and connections come back."""
    if not attack.is_here:
        pytest.skip(f"{attack.tool} is not installed (tests/install-tools.sh)")
    settings = {**upstream.env(), **SHORT, "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0", **attack.env}
    with VeloxProcess(settings) as velox, velox.still_healthy():
        outcome = run(attack, velox, n=N, seconds=attack.least_s, calm_s=1.0)

    for phase in (outcome.before, outcome.during, outcome.after):
        assert phase.answers.took_ms and not phase.answers.bad
    n_wanted = min(N, int(attack.env.get("VELOX_MAX_CONNECTIONS", N)))
    assert outcome.during.connections >= 0.5 * n_wanted, "the attack was one"
    assert outcome.during.resident < outcome.before.resident + N * EACH_BYTES
    assert outcome.after.connections <= outcome.before.connections + 1
    assert sum(outcome.ends.get(reason, 0) for reason in attack.reasons) >= (0.9 * N if attack.reasons else 0)
