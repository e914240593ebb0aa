"""One attack on one gateway, with healthy clients beside it: before, during, after.

Knows: the phases and what is looked at in each. Does not know: which attack, or what is thought of the figures.

Attackers are on other machines; here they share the processors with the gateway, its clients and its upstream. So they
may be run at a low priority (`yielding`), and the same attack may be made on another server while the same healthy
clients go through the gateway (machine_alone()): what that costs them is the machine's doing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.e2e.harness import REPOSITORY, START_S, LineLog, VeloxProcess
from tests.e2e.upstreams import Upstream
from tests.slow.attacks import Attack, Given
from tests.slow.healthy import Answers, Healthy

__all__ = ["Outcome", "Phase", "run", "start_upstream"]

_LOOK_S: Final = 0.1
# An attacker may take so much longer than it was told to.
_LATE_S: Final = 20.0
# Of a processor that is wanted by both, an attacker that yields gets one part in 70: 1.25 a step (sched(7)).
_NICER: Final = 19


@dataclass(frozen=True)
class Phase:
    """Healthy answers, and the most of what was seen: memory in bytes (after an attack: the last), connections.

    busy: the part of a processor that the worker used. rise_s: until nine tenths of those connections were there.
    """

    answers: Answers
    resident: int
    connections: int
    busy: float
    rise_s: float


@dataclass(frozen=True)
class Outcome:
    """What an attack did. ends: reason -> requests.

    drained_s: from the attackers' end until only healthy connections are left. still_open: connections of the
    attackers' that Velox still had when they gave up.
    """

    attack: Attack
    before: Phase
    during: Phase
    after: Phase
    ends: Mapping[str, int]
    still_open: int
    drained_s: float


@contextlib.contextmanager
def start_upstream(limit: int | None = None) -> Iterator[Upstream]:
    """Start the upstream of the attacks. limit: of its connections."""
    command = [sys.executable, "-m", "tests.slow.upstream", *([] if limit is None else [str(limit)])]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None, "it is a pipe"
    output = LineLog(process.stdout, "slow-upstream")
    try:
        yield Upstream(output.wait(lambda line: "listening on" in line, START_S).rpartition(" ")[2])
    finally:
        process.kill()
        process.wait()
        output.close()


def _yield(pid: int) -> None:
    """Let a process of ours have what the others of ours leave."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
    else:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))  # any real-time process comes before it


@contextlib.contextmanager
def _attacking(attack: Attack, given: Given, *, yielding: bool) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    attacker = subprocess.Popen(attack.command(given), cwd=REPOSITORY, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        if yielding:
            _yield(attacker.pid)
        yield attacker
    finally:
        attacker.kill()
        attacker.wait()


def machine_alone(
    attack: Attack, velox: VeloxProcess, *, n: int, seconds: int, calm_s: float, yielding: bool = False
) -> tuple[Answers, Answers]:
    """Attack a server that is not the gateway; return the healthy answers before it and during it."""
    limit = attack.env.get("VELOX_MAX_CONNECTIONS")
    with start_upstream(None if limit is None else int(limit)) as other, Healthy(velox) as healthy:
        watch = _Watch(velox, healthy)
        watch.phase(calm_s)
        before = watch.phase(calm_s)
        with _attacking(attack, Given(other.url, n, seconds), yielding=yielding) as attacker:
            return before.answers, watch.phase(seconds + _LATE_S, attacker).answers


def run(attack: Attack, velox: VeloxProcess, *, n: int, seconds: int, calm_s: float, yielding: bool = False) -> Outcome:
    """Attack with `n` connections for `seconds`; `calm_s` before and after it."""
    with Healthy(velox) as healthy:
        watch = _Watch(velox, healthy)
        watch.phase(calm_s)  # warm: connections, caches
        before = watch.phase(calm_s)
        ends = watch.ends()
        with _attacking(attack, Given(velox.base_url, n, seconds), yielding=yielding) as attacker:
            during = watch.phase(seconds + _LATE_S, attacker)
        still_open = watch.connections() - before.connections
        over_s = time.monotonic()
        while watch.connections() > before.connections and time.monotonic() < over_s + _LATE_S:
            time.sleep(_LOOK_S)
        drained_s = time.monotonic() - over_s
        healthy.take()
        after = replace(watch.phase(calm_s), resident=watch.resident())
        found = {reason: n - ends.get(reason, 0) for reason, n in watch.ends().items()}
        return Outcome(attack, before, during, after, found, still_open, drained_s)


class _Watch:
    """Looks at a gateway of one worker."""

    def __init__(self, velox: VeloxProcess, healthy: Healthy) -> None:
        self._velox: Final = velox
        self._healthy: Final = healthy
        (self._worker,) = velox.worker_pids()

    def phase(self, seconds: float, until: subprocess.Popen[bytes] | None = None) -> Phase:
        """Look for so long, or until a process has ended."""
        self._healthy.take()
        resident = 0
        connections: list[tuple[float, int]] = []
        began_s, used_s = time.monotonic(), self.used_s()
        until_s = began_s + seconds
        while time.monotonic() < until_s and (until is None or until.poll() is None):
            resident = max(resident, self.resident())
            connections.append((time.monotonic() - began_s, self.connections()))
            time.sleep(_LOOK_S)
        busy = (self.used_s() - used_s) / (time.monotonic() - began_s)
        most = max((n for _, n in connections), default=0)
        rise_s = next((at_s for at_s, n in connections if n >= 0.9 * most), 0.0)
        return Phase(self._healthy.take(), resident, most, busy, rise_s)

    def resident(self) -> int:
        """Return the worker's resident memory."""
        pages = Path(f"/proc/{self._worker}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def used_s(self) -> float:
        """Return the seconds of a processor that the worker has used."""
        # proc(5): what follows the name in parentheses starts with field 3; utime and stime are 14 and 15.
        fields = Path(f"/proc/{self._worker}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connections(self) -> int:
        """Return its connections with clients."""
        return int(self._velox.metric("velox_client_connections"))

    def ends(self) -> dict[str, int]:
        """Return how many requests ended for each reason."""
        found: dict[str, int] = {}
        for sample, value in self._velox.metrics().items():
            if sample.startswith("velox_requests_total{"):
                reason = sample.partition('reason="')[2].partition('"')[0]
                found[reason] = found.get(reason, 0) + int(value)
        return found
