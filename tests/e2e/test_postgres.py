"""Gateways that share a PostgreSQL: records of both, keys of either, and what happens while it is away."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.raw_http import RawReply
from tests.e2e.routed import MESSAGES, named, routed
from tests.e2e.test_ledger import Row
from tests.e2e.tools import covers
from tests.markdown import ROOT, blocks, commands
from tests.postgres_server import PostgresServer, postgres_server
from velox.accounts.postgres import PostgresAccounts
from velox.accounts.service import Accounts
from velox.cli import main
from velox.ledger.postgres import PostgresStore

ACTOR = "tests"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that a test may stop."""
    with postgres_server() as running:
        yield running


@contextlib.contextmanager
def gateways(folders: list[Path], database: str, **more: str) -> Iterator[list[VeloxProcess]]:
    with contextlib.ExitStack() as stack:
        sims = stack.enter_context(named("sim", sim="--ttft 0 --token-rate 0"))
        config = {"upstreams": [sims["sim"]], "routes": [{"name": "all", "to": "sim"}]}
        yield [
            stack.enter_context(routed(config, ledger=str(folder), ledger_database=database, **more))
            for folder in folders
        ]


@contextlib.contextmanager
def accounts_in(database: str) -> Iterator[Accounts]:
    with contextlib.closing(PostgresAccounts(database)) as store:
        yield Accounts(store)


def usage(folder: Path, database: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Row]:
    capsys.readouterr()
    environ = {"VELOX_LEDGER": str(folder), "VELOX_LEDGER_DATABASE": database, "VELOX_API_KEYS": KEY}
    assert main(["usage", "--format", "jsonl", *arguments], environ) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def n_kept(server: PostgresServer, database: str) -> int:
    try:
        return int(server.sql(database, "SELECT count(*) FROM velox_call")[0][0])
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return -1


def status(velox: VeloxProcess, secret: str = KEY) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    reply: RawReply = velox.request("POST", "/v1/chat/completions", BODY, headers=headers)
    return reply.status


@covers("VELOX_LEDGER_DATABASE")
def test_gateways_record_into_one_database(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each call once; `velox usage` of either shows all; nothing but what waits is in the folders."""
    database, folders = server.database(), [tmp_path / "one", tmp_path / "other"]
    with gateways(folders, database) as running:
        for n, velox in enumerate(running):
            for _ in range(3 + n):
                velox.openai().chat.completions.create(model=f"m-{n}", messages=MESSAGES)
        until(lambda: n_kept(server, database) == 7, "all are kept")

    for folder in folders:
        by_model = {row["model"]: row["calls"] for row in usage(folder, database, capsys, "--by", "model")}
        assert by_model == {"m-0": 3, "m-1": 4}
        assert len(usage(folder, database, capsys, "--calls")) == 7
        assert not list(folder.glob("*.db*"))
    assert len({row[0] for row in server.sql(database, "SELECT DISTINCT gateway FROM velox_call")}) == 2


def test_case_16_database_that_is_away_loses_no_record(server: PostgresServer, tmp_path: Path) -> None:
    """It is killed, stopped and frozen under load: requests pass, readiness stays, and afterwards each has its row."""
    database, folder = server.database(), tmp_path / "ledger"
    with gateways([folder], database) as (velox,):
        ended, answered = threading.Event(), [0] * 3

        def ask(client: int) -> None:
            while not ended.is_set():
                assert status(velox) == 200
                answered[client] += 1

        clients = [threading.Thread(target=ask, args=(n,)) for n in range(len(answered))]
        for client in clients:
            client.start()
        for away in (server.kill, server.stop, server.pause):
            until(lambda: n_kept(server, database) > 0, "some are kept")
            away()
            before = sum(answered)
            until(lambda before=before: sum(answered) > before + 20, "requests pass meanwhile")  # type: ignore[misc]
            # Until: just after the start it may say that no upstream is connected.
            until(lambda: velox.admin("/readyz").status == 200, "readiness stays")
            if away == server.pause:
                server.resume()
            else:
                velox.wait_log(lambda line: "records can't be stored: PostgreSQL at 127.0.0.1" in line)
                server.start()
                velox.wait_log(lambda line: "ledger: records can be stored again" in line)
        ended.set()
        for client in clients:
            client.join()
        until(lambda: n_kept(server, database) == sum(answered), "each answer has its row")
        assert velox.metric("velox_ledger_dropped_total") == 0
    sums = server.sql(database, "SELECT sum(n) FROM velox_total WHERE period = 'day'")
    assert sums[0][0] == sum(answered) == n_kept(server, database)


def test_keys_made_at_one_gateway_hold_at_the_other(server: PostgresServer, tmp_path: Path) -> None:
    """Made, blocked, deleted. While the database is away, and after a restart then, what held last holds."""
    database, folders = server.database(), [tmp_path / "one", tmp_path / "other"]
    with gateways(folders, database, managed_keys="on", api_keys="") as running, accounts_in(database) as accounts:
        key, secret = accounts.create_key({"name": "shop"}, ACTOR)
        _, other = accounts.create_key({}, ACTOR)
        for velox in running:
            until(lambda velox=velox: status(velox, secret) == 200, "the key holds")  # type: ignore[misc]
        accounts.block("key", key.id, ACTOR)
        for velox in running:
            until(lambda velox=velox: status(velox, secret) == 401, "it is blocked")  # type: ignore[misc]
        server.stop()
        for velox in running:
            velox.wait_log(lambda line: "managed keys can't be read: PostgreSQL at 127.0.0.1" in line)
            assert (status(velox, secret), status(velox, other)) == (401, 200)
    with gateways(folders, database, managed_keys="on", api_keys="") as running:
        for velox in running:
            assert (status(velox, secret), status(velox, other)) == (401, 200)
        server.start()
        with accounts_in(database) as accounts:
            accounts.unblock("key", key.id, ACTOR)
        for velox in running:
            until(lambda velox=velox: status(velox, secret) == 200, "it holds again")  # type: ignore[misc]


def test_check_tells_what_is_wrong_with_the_database(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And never shows its password."""
    database = server.database()
    environ = {"VELOX_LEDGER": str(tmp_path), "VELOX_API_KEYS": KEY}
    assert main(["check"], {**environ, "VELOX_LEDGER_DATABASE": database}) == 0
    # C31: what Prisma and others write into such a URL.
    of_prisma = f"{database}?schema=public&connection_limit=5&pgbouncer=true&connect_timeout=10&channel_binding=prefer"
    assert main(["check"], {**environ, "VELOX_LEDGER_DATABASE": of_prisma}) == 0
    assert main(["usage"], {**environ, "VELOX_LEDGER_DATABASE": database}) == 1
    assert "start its gateway once" in capsys.readouterr().err
    for wrong, told in (
        (database.replace("pw-of-the-ledger", "pw-of-somebody"), "password authentication failed"),
        (f"{database}x", "does not exist"),
        ("postgresql://host", "expected postgresql://USER:PASSWORD@HOST[:PORT]/NAME"),
        (f"{database}?pool_mode=transaction", "expected no parameter `pool_mode`"),
    ):
        assert main(["check"], {**environ, "VELOX_LEDGER_DATABASE": wrong}) == 2
        shown = capsys.readouterr().err
        assert told in shown and "pw-of" not in shown, shown
    environ.pop("VELOX_LEDGER")
    assert main(["check"], {**environ, "VELOX_LEDGER_DATABASE": database}) == 2
    assert "expected VELOX_LEDGER with it" in capsys.readouterr().err


def test_commands_of_the_page(server: PostgresServer, tmp_path: Path) -> None:
    """They make what a gateway needs; the query that is shown runs on its tables."""
    page = ROOT / "docs/postgres.md"
    *make, check = commands(page)
    for command in make:
        subprocess.run(["bash", "-c", f"{server.bin}/{command}"], env=server.environ(), check=True, timeout=60)
    words = dict(word.split("=", 1) for word in check.split() if "=" in word)
    environ = {**words, "VELOX_LEDGER": str(tmp_path), "VELOX_API_KEYS": KEY}
    environ["VELOX_LEDGER_DATABASE"] = environ["VELOX_LEDGER_DATABASE"].replace(
        "db.example.com", f"127.0.0.1:{server.port}"
    )
    assert main(check.split()[-1:], environ) == 0
    PostgresStore(environ["VELOX_LEDGER_DATABASE"], gateway="g", days=30).close()
    (query,) = blocks(page, "sql")
    assert server.sql(environ["VELOX_LEDGER_DATABASE"], query) == []
