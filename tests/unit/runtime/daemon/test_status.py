"""`velox status`: what is printed, and the exit codes of the LSB."""

from __future__ import annotations

import json

import pytest

from velox.runtime.daemon.restart import outcome_of
from velox.runtime.daemon.status import (
    NearBudget,
    Status,
    Upstream,
    near_end,
    span,
    status_code,
    status_lines,
    status_record,
)
from velox.runtime.daemon.stop import progress_line
from velox.runtime.processes.pid_file import Found

STOPPED, DEAD, RUNS = Found(0, is_there=False), Found(0, is_there=True), Found(7, is_there=True)
WELL = Status(
    is_running=True,
    pid=7,
    version="1.2.3",
    build="plain",
    uptime_s=93_784,
    listening=("http://127.0.0.1:8080", "unix:/run/velox.sock"),
    admin="127.0.0.1:6060",
    ready=True,
    serving=2,
    workers=2,
    in_flight=3,
    queued=1,
    clients=9,
    upstreams=(Upstream("openai", "in use", 3),),
    budgets_near_end=(NearBudget("team red", "usd per month", 0.953),),
)


def test_status_is_printed_for_a_person() -> None:
    assert status_lines(WELL, RUNS, "/run/p") == [
        "velox 1.2.3 (plain) runs: process 7, up 1 d 2 h",
        "ready",
        "listening on http://127.0.0.1:8080, unix:/run/velox.sock; admin on 127.0.0.1:6060",
        "workers: 2 of 2 serve",
        "requests: 3 in flight, 1 queued, of 9 connections",
        "upstream openai: in use, 3 in flight",
        "budget near its end: team red, usd per month: 95% spent",
    ]
    sick = WELL._replace(ready=False, reasons=("no worker reaches its upstream",))
    assert status_lines(sick, RUNS, "/run/p")[1:3] == ["NOT READY:", "  no worker reaches its upstream"]
    warned = WELL._replace(reasons=("the upstream a is out",))
    assert status_lines(warned, RUNS, "/run/p")[1:3] == ["ready, but", "  the upstream a is out"]


def test_status_is_one_object_for_programs() -> None:
    found = json.loads(json.dumps(status_record(WELL)))
    assert found["upstreams"] == [{"name": "openai", "state": "in use", "in_flight": 3}]
    assert found["budgets_near_end"][0]["whose"] == "team red" and found["pid"] == 7 and found["ready"] is True


@pytest.mark.parametrize(
    ("status", "found", "code", "text"),
    [
        (WELL, RUNS, 0, "velox 1.2.3"),
        (Status(is_running=True, pid=7, why="its admin listener is off"), RUNS, 0, "nothing more is known: its admin"),
        (Status(is_running=False, pid=0), DEAD, 1, "the process that /run/p names is gone"),
        (Status(is_running=False, pid=0), STOPPED, 3, "velox does not run: nobody has /run/p"),
        # In the foreground, or below systemd.
        (WELL, STOPPED, 0, "velox 1.2.3"),
    ],
)
def test_exit_code_is_that_of_the_lsb(status: Status, found: Found, code: int, text: str) -> None:
    assert status_code(status, found) == code
    assert text in "\n".join(status_lines(status, found, "/run/p"))


def test_budgets_near_their_end_are_those_with_a_tenth_left() -> None:
    def budget(name: str, limit: str | int, left: str | int) -> dict[str, object]:
        return {"scope": "team", "name": name, "budget": "usd", "window": "day", "limit": limit, "left": left}

    found = near_end([budget("a", "10.0", "1.1"), budget("b", "10.0", "0.9"), budget("c", 100, 0), budget("d", 0, 0)])
    assert [(each.whose, round(each.spent, 2)) for each in found] == [("team c", 1.0), ("team b", 0.91)]


def test_times_have_their_two_largest_units() -> None:
    assert [span(each) for each in (0.2, 59, 61, 3661, 90_061)] == ["0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]


def test_progress_of_a_drain_is_one_line() -> None:
    assert progress_line(7, 4.9, None) == "process 7 drains: 4 s"
    assert progress_line(7, 4.9, 1) == "process 7 drains: 4 s, 1 request in flight"
    assert progress_line(7, 60.0, 2) == "process 7 drains: 60 s, 2 requests in flight"


def test_outcome_of_an_upgrade_is_found_in_the_log() -> None:
    """Where the admin listener is off, the log is all there is."""

    def line(message: str, **more: object) -> bytes:
        return json.dumps({"message": message, **more}).encode()

    done = line("upgrade: velox 2 (process 9) is the gateway now; this one ends", version="2", next_pid=9)
    assert outcome_of(done) == (True, "velox 2 serves now (process 9)")
    failed = outcome_of(line("upgrade: the next version did not get ready, this one goes on: x", error="x"))
    assert failed == (False, "no upgrade, the running gateway goes on as before: x")
    assert outcome_of(line("an upgrade is under way already")) is not None
    assert outcome_of(line("velox 2 ready in 3 ms")) is None and outcome_of(b"garbage") is None
