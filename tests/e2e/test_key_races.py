"""A thousand races: two changes of one key, at any distance, and nothing that was revoked is accepted anywhere.

Run by `make test-more`, or by itself, which prints how many secrets were asked for and how many were alive:

    .venv/bin/python -m pytest -m more -s tests/e2e/test_key_races.py
"""

from __future__ import annotations

import contextlib
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.test_keys import ask, bearer, wait_statuses
from tests.e2e.test_managed_keys import managed
from tests.e2e.tools import CHAT, Client, request_bytes
from tests.postgres_server import postgres_server
from velox.accounts.active import caller_id_of
from velox.accounts.postgres import PostgresAccounts
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.accounts.store import AccountStore

ACTOR = "tests"
N_RACES = 1000
N_RACERS = 8
# Of each secret, while it is changed: requests, one after the other.
N_USERS, N_USES = 16, 2
N_WORKERS = 4
# docs/keys.md: a change is active within 2 s.
IN_FORCE_S = 2.0
# Between two changes of one key: below, at and above the time that the supervisor looks and the files are written.
MOST_APART_S = 0.5


class Ended(NamedTuple):
    """A race that is over. pattern: which one. dead, live: secrets that no worker, and that every worker accepts."""

    at_s: float
    pattern: str
    dead: list[str]
    live: list[str]


class Races:
    """Changes keys as others do at the same time. wait: between two changes of one key.

    used: called with each secret that there is, at once: somebody uses it while it is changed.
    """

    def __init__(self, accounts: Accounts, used: Callable[[str], None]) -> None:
        self.accounts = accounts
        self.used = used
        self.patterns: tuple[Callable[[Callable[[], None]], tuple[list[str], list[str]]], ...] = (
            self.create_delete,
            self.create_block,
            self.rotate_rotate,
            self.block_unblock_block,
            self.block_team,
        )

    def run(self, number: int) -> Ended:
        chance = random.Random(number)
        pattern = self.patterns[number % len(self.patterns)]
        dead, live = pattern(lambda: time.sleep(chance.uniform(0, MOST_APART_S)))
        return Ended(time.monotonic(), pattern.__name__, dead, live)

    def create_delete(self, wait: Callable[[], None]) -> tuple[list[str], list[str]]:
        key, secret = self.accounts.create_key({}, ACTOR)
        self.used(secret)
        wait()
        self.accounts.delete("key", key.id, ACTOR)
        return [secret], []

    def create_block(self, wait: Callable[[], None]) -> tuple[list[str], list[str]]:
        key, secret = self.accounts.create_key({}, ACTOR)
        self.used(secret)
        wait()
        self.accounts.block("key", key.id, ACTOR)
        return [secret], []

    def rotate_rotate(self, wait: Callable[[], None]) -> tuple[list[str], list[str]]:
        key, first = self.accounts.create_key({}, ACTOR)
        self.used(first)
        wait()
        _, second = self.accounts.rotate_key(key.id, 0, ACTOR)
        self.used(second)
        wait()
        _, third = self.accounts.rotate_key(key.id, 0, ACTOR)
        self.used(third)
        return [first, second], [third]

    def block_unblock_block(self, wait: Callable[[], None]) -> tuple[list[str], list[str]]:
        key, secret = self.accounts.create_key({}, ACTOR)
        self.used(secret)
        for change in (self.accounts.block, self.accounts.unblock, self.accounts.block):
            wait()
            change("key", key.id, ACTOR)
        return [secret], []

    def block_team(self, wait: Callable[[], None]) -> tuple[list[str], list[str]]:
        team = self.accounts.create_team({}, ACTOR)
        _, secret = self.accounts.create_key({"team": team.id}, ACTOR)
        self.used(secret)
        wait()
        self.accounts.block("team", team.id, ACTOR)
        return [secret], []


@contextlib.contextmanager
def gateways(folders: list[Path], **settings: str) -> Iterator[list[tuple[VeloxProcess, list[Client]]]]:
    """Run a gateway in each folder; yield them with a connection to each of their workers."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(RecordingUpstream())
        stack.enter_context(upstream.playing(healthy))
        yield [stack.enter_context(managed(upstream, folder, N_WORKERS, **settings)) for folder in folders]


def use(velox: VeloxProcess, secret: str, pauses_s: list[float]) -> None:
    """Ask with a secret, one request for each pause, which is between its head and its body: most clients send so."""
    whole = request_bytes("POST", "/v1/chat/completions", CHAT, bearer(secret))
    with Client(velox) as client:
        for pause_s in pauses_s:
            client.sock.sendall(whole[: -len(CHAT)])
            time.sleep(pause_s)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was refused by its head
                client.sock.sendall(CHAT)
            if client.read().status != 200:
                return


def chat(velox: VeloxProcess, secret: str) -> int:
    """Ask with a head that `use` has sent before, on a connection to any worker; return the status."""
    with Client(velox) as client:
        client.send("POST", "/v1/chat/completions", CHAT, bearer(secret))
        return client.read().status


def alive_of(stores: list[AccountStore], found: list[tuple[VeloxProcess, list[Client]]]) -> list[str]:
    """Race in each store; return a line for each secret that a worker is wrong about when it should know better."""
    clients = [client for _, opened in found for client in opened]
    ended: queue.Queue[Ended | None] = queue.Queue()
    wrong: list[str] = []
    asked = {"dead": 0, "live": 0}

    def check() -> None:
        while (race := ended.get()) is not None:
            time.sleep(max(0.0, race.at_s + IN_FORCE_S - time.monotonic()))
            for secrets, wanted, name in ((race.dead, 401, "dead"), (race.live, 200, "live")):
                for secret in secrets:
                    asked[name] += 1
                    n = sum(ask(client, secret) != wanted for client in clients)
                    if n:
                        wrong.append(f"{race.pattern}: a {name} key, at {n} of {len(clients)} workers")
                    if any(chat(velox, secret) != wanted for velox, _ in found):
                        wrong.append(f"{race.pattern}: a {name} key, with a head that had been let in")

    checking = threading.Thread(target=check)
    checking.start()
    users = ThreadPoolExecutor(N_USERS)
    uses = []
    chance = random.Random(0)

    def used(secret: str) -> None:
        velox, _ = chance.choice(found)
        pauses_s = [chance.uniform(0, MOST_APART_S) for _ in range(N_USES)]
        uses.append(users.submit(use, velox, secret, pauses_s))

    races = [Races(Accounts(store), used) for store in stores]
    try:
        with users, ThreadPoolExecutor(N_RACERS) as racers:
            for number in range(N_RACES):
                racers.submit(lambda number=number: ended.put(races[number % len(races)].run(number)))  # type: ignore[misc]
    finally:
        ended.put(None)
        checking.join()
    n_alive, n_workers = sum("dead" in line for line in wrong), len({client.worker() for client in clients})
    print(f"{N_RACES} races, {n_workers} workers: {n_alive} of {asked['dead']} revoked secrets alive 2 s after")
    for each in uses:
        each.result()
    assert asked["dead"] >= N_RACES and asked["live"] == N_RACES // 5
    return wrong


@pytest.mark.more
def test_revoked_key_is_dead_in_all_workers(tmp_path: Path) -> None:
    """M1: made and deleted, blocked or rotated, however soon one change follows the other."""
    with gateways([tmp_path]) as found:
        [(velox, _)] = found
        store = SqliteAccounts(tmp_path)
        assert alive_of([store], found) == []
        assert velox.metric("velox_keys") == N_RACES // 5
        assert [value for name, value in velox.metrics().items() if "key_corrections_total" in name] == [0, 0, 0]
        store.close()


@pytest.mark.more
def test_key_that_was_deleted_by_hand_is_ended_and_counted(tmp_path: Path) -> None:
    """In the database, where no change tells it. The comparison of the files with the database finds it."""
    with gateways([tmp_path]) as [(velox, clients)]:
        store = SqliteAccounts(tmp_path)
        secret = Accounts(store).create_key({"id": "shop", "name": "shop"}, ACTOR).secret
        store.close()
        wait_statuses(clients, secret, 200)
        with contextlib.closing(sqlite3.connect(tmp_path / "accounts.db")) as db, db:
            db.execute("DELETE FROM account WHERE kind = 'key'")
            db.execute("DELETE FROM digest")
        wait_statuses(clients, secret, 401)
        assert velox.metric('velox_key_corrections_total{held_by="files"}') == 1
        line = velox.wait_log(lambda line: "corrected" in line)
        assert f"key shop ({caller_id_of('shop').hex()}) was accepted, but is revoked" in line
        assert [
            velox.metric(f'velox_key_corrections_total{{held_by="{each}"}}') for each in ("supervisor", "worker")
        ] == [
            0,
            0,
        ]


@pytest.mark.more
def test_revoked_key_is_dead_at_both_gateways_of_one_database(tmp_path: Path) -> None:
    with postgres_server() as server, contextlib.ExitStack() as stack:
        url = server.database()
        folders = [tmp_path / "one", tmp_path / "other"]
        found = stack.enter_context(gateways(folders, VELOX_LEDGER_DATABASE=url))
        stores = [stack.enter_context(contextlib.closing(PostgresAccounts(url))) for _ in range(4)]
        assert alive_of([*stores], found) == []
        for velox, _ in found:
            assert velox.metric("velox_keys") == N_RACES // 5
            assert [value for name, value in velox.metrics().items() if "key_corrections_total" in name] == [0, 0, 0]
