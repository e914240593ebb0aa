"""The soak by command, for half a minute: it runs, it prints its report, and it says what it would call a failure."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.harness import REPOSITORY
from tests.soak.clients import Clients, End, Ended, Plan
from tests.soak.lanes import LANES
from tests.soak.provider import Fault
from tests.soak.report import problems, report
from tests.soak.run import Quiet, Rules, Soaked
from tests.soak.watch import Samples, growth

MIB = 1 << 20
HOUR_S = 3600


def test_short_soak_finds_nothing() -> None:
    """X16: all lanes, faults, clients that leave, kills, reloads, an upgrade."""
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--rate", "30"]

    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 problems\n" in done.stdout and "| MiB at the begin |" in done.stdout
    assert "times upgrade" in done.stdout and "reload with other keys" in done.stdout
    assert "failed by the gateway: 0, 0 in a million" in done.stdout


def test_translated_requests_leave_memory_flat() -> None:
    """From each API to another one; the collector is off."""
    for asking, to in (
        ("chat", "anthropic"),
        ("messages", "chat"),
        ("responses", "gemini"),
        ("generate", "bedrock nova"),
    ):
        command = [sys.executable, "-m", "tests.soak.translated", "--requests", "2000", "--from", asking, "--to", to]

        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)

        assert done.returncode == 0, done.stdout + done.stderr
        assert "grown by " in done.stdout


def soaked() -> Soaked:
    """Return an hour's soak of one worker, which holds the same all the time; nothing is wrong with it."""
    clients = Clients(0, "k", 1, [])
    clients.ends[End.GOOD] = 1000
    quiet = Quiet(100, {"Worker.run": 1}, {"velox_inflight_requests": 0.0})
    done = Soaked(Rules(HOUR_S, 50.0, 1), clients, NothingDone())  # type: ignore[arg-type]
    done.memory[1] = Samples("worker", [float(n) for n in range(HOUR_S)], [50 * MIB] * HOUR_S)
    done.before = done.after = quiet
    done.measured_s = 60.0
    return done


class NothingDone:
    """Trouble that was none."""

    done: dict[str, int] = {}


def test_soak_without_a_fault_has_no_problem() -> None:
    done = soaked()

    assert problems(done) == []
    assert "| worker | 50.0 | 50.0 | +0.0 | +0.00 |" in report(done)


def test_memory_that_grows_slowly_is_a_problem() -> None:
    """20 % in an hour, under noise of nearly as much; a peak alone is none."""
    done = soaked()
    done.memory[1].sizes = [50 * MIB + n * 10 * MIB // HOUR_S + n % 7 * MIB for n in range(HOUR_S)]
    assert [each.partition(":")[0] for each in problems(done)] == ["memory of a worker grows"]

    done.memory[1].sizes = [50 * MIB + (40 * MIB if 1000 < n < 1200 else 0) for n in range(HOUR_S)]
    assert problems(done) == []


def test_what_is_not_given_back_is_a_problem() -> None:
    """Descriptors, tasks, slots, records, requests, and what the log tells."""
    done = soaked()
    done.after = Quiet(120, {"Exchange._run": 20}, {"velox_inflight_requests": 1.0})
    done.lost = ["vx-1 (chat to chat)"]
    done.log = ["bug: ..."]
    done.clients.n_late = 1
    done.clients.bad.append(Ended(Plan(LANES[0], False, Fault.NONE, False, ""), End.BAD, 500))

    assert [each.partition(":")[0].partition(" (")[0] for each in problems(done)] == [
        "failed by the gateway",
        "descriptors are not given back",
        "tasks are left",
        "velox_inflight_requests is 1 when nothing runs",
        "no record of vx-1",
        "in the log",
        "1 requests could not be begun",
    ]


def test_growth_is_what_most_pairs_say() -> None:
    """Outliers at both ends don't move it."""
    sizes = [100 * MIB + 1000 * n for n in range(600)]
    sizes[0] = sizes[-1] = 500 * MIB

    assert abs(growth(Samples("x", [float(n) for n in range(600)], sizes)) - 1000) < 1
