"""A small storm over each kind of upstream connection; the large one is `python -m tests.storm`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY
from tests.postgres_server import postgres_server
from tests.storm.cancels import cancels
from tests.storm.client import Outcome, judge
from tests.storm.faults import storm
from tests.storm.ground import KINDS, Kind
from tests.storm.kills import kill_at_random
from tests.storm.plan import DONE, Fault, Plan, draw

# Another one each time would fail at times that tell nothing of what was changed; the command draws its own.
SEED = 20
CHUNKED = {"transfer-encoding": "chunked"}
TOLD = b'data: {"error":{"message":"cut","code":"upstream_truncated"}}\n\n'


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_is_cut_unseen_crossed_or_lost(kind: Kind) -> None:
    """500 streams, 30 % with a fault, some left by their clients: each answer is whole, or its client was told.

    Afterwards descriptors, streams and exchanges are back where they were, and the log tells of no bug.
    """
    passed = storm(kind, 500, SEED)
    print("\n" + passed.table())
    assert passed.problems() == []


@pytest.mark.parametrize("kind", KINDS)
def test_clients_that_leave_in_any_phase_take_their_requests_along(kind: Kind) -> None:
    """F-41 to F-43: queued, dialing, in the handshake, waiting, streaming, backing off."""
    cancelled = cancels(kind, 360)
    print("\n" + cancelled.table())
    assert cancelled.problems() == []
    # The promise is 100 ms; this machine may have other things to do.
    assert cancelled.late(1000.0, 0.5) == []


def test_command_prints_its_tables() -> None:
    """`python -m tests.storm` ends with 0 when nothing was broken."""
    command = ["-m", "tests.storm", "--streams", "60", "--cancels", "0", "--kinds", "http1", "--seed", str(SEED)]

    run = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "| all | 60 |" in run.stdout and run.stdout.rstrip().endswith("0 problems")


@pytest.mark.parametrize(
    ("body", "is_framed", "outcome"),
    [
        (Plan("m1").answer(), True, Outcome.WHOLE),
        (Plan("m1").answer()[:-1], True, Outcome.WRONG),
        (Plan("m1").piece(0) + DONE, True, Outcome.WRONG),
        (Plan("m1").piece(0) + TOLD, True, Outcome.WRONG),
        (Plan("m1").piece(0) + Plan("m1").piece(2) + TOLD, False, Outcome.WRONG),
        (Plan("m1").piece(0) + DONE + TOLD, False, Outcome.WRONG),
        (Plan("m1").piece(0), False, Outcome.MUTE),
        (b"", False, Outcome.MUTE),
        (Plan("m1").piece(0)[:-5] + TOLD, False, Outcome.MUTE),
        (Plan("m2").answer(), True, Outcome.CROSSED),
        (Plan("m1").piece(0) + Plan("m2").piece(1) + TOLD, False, Outcome.CROSSED),
        (Plan("m1").piece(0) + TOLD, False, Outcome.TOLD),
        (Plan("m1").piece(0)[:-5] + b"\n\n" + TOLD, False, Outcome.TOLD),
        (Plan("m1").answer() + TOLD, False, Outcome.TOLD),
    ],
)
def test_storm_sees_what_may_not_be(body: bytes, is_framed: bool, outcome: Outcome) -> None:
    """The judge of the storm calls each end by its name."""
    assert judge(Plan("m1"), 200, CHUNKED, body, is_framed=is_framed).outcome is outcome


def test_storm_sees_a_refusal_without_its_reason() -> None:
    """A reason in the header, not in the body; an error of another client's."""
    refused = {"content-length": "1", "x-velox-reason": "queue_full"}
    body = json.dumps({"error": {"code": "queue_full"}}).encode()
    assert judge(Plan("m1"), 503, refused, body, is_framed=True).outcome is Outcome.REFUSED
    assert judge(Plan("m1"), 503, refused, b'{"error":{"code":"x"}}', is_framed=True).outcome is Outcome.WRONG
    assert judge(Plan("m1"), 500, {}, Plan("m1").error_body(500), is_framed=True).outcome is Outcome.PASSED
    assert judge(Plan("m1"), 500, {}, Plan("m2").error_body(500), is_framed=True).outcome is Outcome.WRONG
    assert judge(Plan("m1"), 500, {"x-storm-mark": "m2"}, b"", is_framed=True).outcome is Outcome.CROSSED


def test_storm_is_as_rough_as_it_says() -> None:
    """30 % of the plans hold a fault, and every fault is among them; the same seed, the same storm."""
    plans = [draw(number, SEED) for number in range(5_000)]
    assert plans == [draw(number, SEED) for number in range(5_000)]
    n_faults = sum(plan.fault not in (Fault.NONE, Fault.SLOW, Fault.DRIP, Fault.GOAWAY) for plan in plans)
    assert 0.27 < n_faults / len(plans) < 0.33
    assert {plan.fault for plan in plans} == set(Fault) - {Fault.BACK_OFF}
    assert len({plan.mark for plan in plans}) == len(plans)


def test_case_15_random_kills_lose_and_double_no_record(tmp_path: Path) -> None:
    """Of worker, ledger and the whole gateway under load; a hundred of them: `python -m tests.storm.kills`."""
    killed = kill_at_random(12, SEED, tmp_path / "ledger")
    print("\n" + killed.table())
    assert killed.problems() == [] and len(killed.answered) > 60


def test_case_15_random_kills_of_the_database_too_lose_and_double_no_record(tmp_path: Path) -> None:
    """With records in PostgreSQL, which is killed itself or loses one of its processes."""
    with postgres_server() as server:
        killed = kill_at_random(12, SEED, tmp_path / "ledger", server)
    print("\n" + killed.table())
    assert killed.problems() == [] and len(killed.answered) > 60
