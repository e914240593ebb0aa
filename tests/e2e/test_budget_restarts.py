"""Budgets after a restart at which the ledger can't be read: what is spent stays so, what nobody knows is refused."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.priced import COST_NANO, Priced, ask_held, reply_held
from tests.e2e.tools import covers
from tests.postgres_server import postgres_server

STRICT = {"per": "gateway", "usd": "0.02", "window": "total", "strict": True}
N_FIT = 9


@pytest.fixture
def priced(tmp_path: Path) -> Priced:
    return Priced(tmp_path)


def use_up(velox: VeloxProcess, n: int = N_FIT) -> None:
    """Spend all of the strict budget; so many calls are left of it."""
    statuses: list[int] = []
    while not statuses or statuses[-1] == 200:
        statuses.append(ask_held(velox))
    assert statuses == [200] * n + [429]


def budgets_of(velox: VeloxProcess) -> list[dict[str, str]]:
    found = velox.admin("/api/v1/budgets").json()["data"]
    assert isinstance(found, list)
    return found


def is_used_up(velox: VeloxProcess) -> bool:
    return ask_held(velox) == 429


def kill_all(velox: VeloxProcess) -> None:
    """End all of a gateway's processes at once: none of them writes anything more."""
    for pid in (velox.pid, *velox.child_pids()):
        os.kill(pid, signal.SIGSTOP)
    velox.kill()


def break_ledger(folder: Path) -> None:
    """Put something in place of the database that no database can be."""
    for path in folder.glob("ledger.db*"):
        if path.is_file():
            path.unlink()
    (folder / "ledger.db").mkdir(exist_ok=True)


def mend_ledger(folder: Path, kept: Path) -> None:
    (folder / "ledger.db").rmdir()
    for path in kept.glob("ledger.db*"):
        shutil.copy(path, folder)


def has_saved(folder: Path) -> Callable[[], bool]:
    since_ns = time.time_ns()
    path = folder / "budgets.snapshot"
    return lambda: path.exists() and path.stat().st_mtime_ns > since_ns


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.more), "kill"])
def test_used_up_budget_stays_so_without_its_database(priced: Priced, how: str) -> None:
    """M8: it goes on with what was saved, and what the rings had since, in a second start as well."""
    folder = priced.folder / "ledger"
    with priced.running([STRICT]) as velox:
        assert ask_held(velox) == 200
        until(has_saved(folder), "it is saved")
        use_up(velox, N_FIT - 1)
        n_calls = priced.n_calls
        if how == "stop":
            assert velox.stop() == 0
        else:
            kill_all(velox)
    break_ledger(folder)
    for _ in range(2):
        with priced.running([STRICT]) as velox:
            reply = reply_held(velox)
            assert reply.status == 429 and reply.error()["code"] == "insufficient_quota"
            assert velox.metric("velox_budgets_unread") == 1
            kill_all(velox)
    assert priced.n_calls == n_calls


@covers("VELOX_BUDGETS_UNREAD")
@pytest.mark.parametrize(
    ("setting", "strict", "usual"),
    [
        ("strict", 503, 200),
        pytest.param("refuse", 503, 503, marks=pytest.mark.more),
        pytest.param("allow", 200, 200, marks=pytest.mark.more),
    ],
)
def test_budget_that_nobody_knows_refuses_where_it_is_to(priced: Priced, setting: str, strict: int, usual: int) -> None:
    """The client is told why, and when to come back; it goes on by itself as soon as the ledger can be read."""
    folder, kept = priced.folder / "ledger", priced.folder / "kept"
    usually = {**STRICT, "strict": False}
    with priced.running([STRICT]) as velox:
        use_up(velox)
    shutil.copytree(folder, kept)
    for budget, status in ((STRICT, strict), (usually, usual)):
        for lost in (*folder.glob("*.ring"), *folder.glob("budgets.*")):
            lost.unlink()
        break_ledger(folder)
        with priced.running([budget], budgets_unread=setting) as velox:
            reply = reply_held(velox)
            assert reply.status == status
            assert velox.metric("velox_budgets_unread") == 1
            assert {each["state"] for each in budgets_of(velox)} <= {"unread"}
            if status == 503:
                assert reply.header("x-velox-reason") == "limits_unavailable" and reply.header("retry-after") == "5"
                assert "before the gateway started can't be read yet" in str(reply.error()["message"])
                mend_ledger(folder, kept)
                until(partial(is_used_up, velox), "it is read", 20)
                assert velox.metric("velox_budgets_unread") == 0


@pytest.mark.more
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_used_up_budget_stays_so_while_postgresql_is_down(priced: Priced, how: str) -> None:
    """Also what was spent while it was down already, over three restarts; and when it is back, all is in it."""
    with postgres_server() as server:
        more: dict[str, Any] = {"ledger_database": server.database()}
        wide = {**STRICT, "usd": "0.08"}
        n_fit, folder = 39, priced.folder / "ledger"
        with priced.running([wide], **more) as velox:
            assert [ask_held(velox) for _ in range(5)] == [200] * 5
            until(has_saved(folder), "it is saved")
            server.stop()
            assert [ask_held(velox) for _ in range(5)] == [200] * 5
            (velox.stop if how == "stop" else lambda: kill_all(velox))()
        for _ in range(3):
            with priced.running([wide], **more) as velox:
                assert [ask_held(velox) for _ in range(5)] == [200] * 5
                kill_all(velox)
        with priced.running([wide], **more) as velox:
            until(lambda: ask_held(velox) == 429, "it is used up")
            assert velox.metric("velox_budgets_unread") == 1
            assert n_fit - 2 <= priced.n_calls <= n_fit, "each call counts once, but for one at the moment of a look"
            server.start()
            until(lambda: velox.metric("velox_budgets_unread") == 0, "it is read", 60)
            [ask_held(velox) for _ in range(20)]
            (told,) = budgets_of(velox)
            # A call whose gateway was killed before it was recorded counts as it was held.
            assert priced.n_calls * COST_NANO <= round(float(told["spent"]) * 1e9) <= 80_000_000
            assert n_fit - 1 <= priced.n_calls <= n_fit


@pytest.mark.more
def test_gateway_that_knows_nothing_refuses_while_postgresql_is_down(priced: Priced) -> None:
    """As one that was moved to another machine: no snapshot, no rings."""
    with postgres_server() as server:
        more: dict[str, Any] = {"ledger_database": server.database()}
        with priced.running([STRICT], **more) as velox:
            use_up(velox)
        n_calls = priced.n_calls
        server.stop()
        shutil.rmtree(priced.folder / "ledger")
        with priced.running([STRICT, {"per": "gateway", "usd": 5, "window": "day"}], **more) as velox:
            assert ask_held(velox) == 503
            server.start()
            until(partial(is_used_up, velox), "it is read", 60)
        assert priced.n_calls == n_calls
