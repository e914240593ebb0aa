"""Whatever happens to keys, in whichever order and however fast: what is accepted is what the book says.

Accounts, files, the supervisor's look and workers are the real ones; the test says when each has its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.accounts.entries import entries_in_force
from tests.unit.gateway.access.test_gateway_routes import head
from tests.unit.runtime.keys.test_key_watch import Managed, forked
from velox.accounts.key_lines import gone_line, key_line
from velox.accounts.model import Digest, Key
from velox.accounts.service import Accounts, AccountsError
from velox.accounts.snapshot import KeySnapshot
from velox.errors import VeloxError
from velox.gateway.auth import Authenticator
from velox.observe import series
from velox.outcomes import KeyHolder
from velox.runtime.keys.corrections import KeyCorrections
from velox.runtime.keys.follower import KeyFollower
from velox.runtime.ledger.ledger_process import KeyWriter
from velox.shm.change_log import LogReader
from velox.types import KeyEntry, KeyUpdate

ME = "tests"


class World(Managed):
    """One gateway, with the workers that were forked from it, and all secrets that a key ever had."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.accounts = Accounts(self.store, lambda: self.wall_s)
        self.loop = asyncio.new_event_loop()
        self.workers: list[Worker] = []
        self.secrets: list[str] = []
        self.in_file: set[str] = set()
        self.file.write_text("another\n")
        self.settle()
        self.accounts.create_team({"id": "t"}, ME)

    def close(self) -> None:
        self.loop.close()
        self.store.close()

    def do(self, action: str, key: str = "k") -> None:
        """Make a change."""
        match action:
            case "create":
                self.secrets.append(self.accounts.create_key({"id": key, "team": "t"}, ME).secret)
            case "rotate" | "rotate-slowly":
                grace_s = 0 if action == "rotate" else 3600
                self.secrets.append(self.accounts.rotate_key(key, grace_s, ME).secret)
            case "delete":
                self.accounts.delete("key", key, ME)
            case "block":
                self.accounts.block("key", key, ME)
            case "unblock":
                self.accounts.unblock("key", key, ME)
            case "block-team":
                self.accounts.block("team", "t", ME)
            case "unblock-team":
                self.accounts.unblock("team", "t", ME)
            case _:
                raise ValueError(action)

    def fork(self) -> None:
        self.workers.append(Worker(self))

    def look(self) -> None:
        self.turns(1)
        while self.watch.is_busy:
            self.turns(1)

    def catch_up(self) -> None:
        """Give everybody a turn, as within a second at most."""
        self.write()
        self.look()
        for worker in self.workers:
            worker.follower.look()
            assert not worker.asks, "it accepts what the supervisor accepts"

    def n_corrected(self) -> list[int]:
        """Return how many keys were corrected: in files, in the supervisor, in workers."""
        first = series.KEY_CORRECTIONS.first
        return self.segment.other_metrics()[first : first + 3].tolist()

    def live(self) -> set[str]:
        """Return the secrets that the book has, and those of the file."""
        _, documents, digests = self.store.everything()
        held = {entry.digest for entry in entries_in_force(documents, digests, self.wall_s)}
        found = {secret for secret in self.secrets if hashlib.sha256(secret.encode()).digest() in held}
        return found | self.in_file

    def accepted(self) -> list[set[str]]:
        """Return the secrets that the supervisor, and with it the next worker, accepts; then those of each worker."""
        auths = (self.watch.auth, *(worker.auth for worker in self.workers))
        return [{secret for secret in self.secrets if accepts(auth, secret)} for auth in auths]


class Worker:
    """A worker as its fork leaves it. asks: for all keys."""

    def __init__(self, world: World) -> None:
        self.auth = forked(world.watch.auth)
        self.asks = False
        log = world.watch.log
        corrections = KeyCorrections(KeyHolder.WORKER, world.metrics, world.logger)
        self.follower = KeyFollower(
            *(LogReader(log, log.end), self.auth, self.auth.change, self._ask, corrections),
            *(lambda: None, world.logger, world.loop, lambda: 0.0),
        )

    def _ask(self) -> None:
        self.asks = True


def accepts(auth: Authenticator, secret: str) -> bool:
    try:
        auth.check(head(b"GET", b"/", [(b"authorization", b"Bearer " + secret.encode())]))
    except VeloxError:
        return False
    return True


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


# Of one key, `k`, in the team `t`.
PATTERNS = (
    "create delete",
    "create block",
    "create rotate",
    "rotate rotate",
    "rotate block",
    "rotate delete",
    "block unblock block",
    "unblock block",
    "create block-team",
    "unblock-team block-team",
    "block unblock",
    "delete create",
    "delete create block",
)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("between", ["nothing", "written", "told"])
def test_changes_of_one_key_between_two_looks_count_in_their_order(world: World, pattern: str, between: str) -> None:
    """What was revoked is accepted nowhere, not by workers that are forked later either.

    between: what happens between two changes: nothing; the change is written down, so that the supervisor finds both at
    its next look; the supervisor has told the worker, which finds both at its own next look.
    """
    if pattern.startswith("unblock-team"):
        world.do("create")
        world.do("block-team")
    elif not pattern.startswith("create"):
        world.do("create")
        world.do("block" if pattern.startswith("unblock") else "rotate")
    world.catch_up()
    world.fork()

    for action in pattern.split():
        world.do(action)
        if between != "nothing":
            world.write()
        if between == "told":
            world.look()
    world.catch_up()
    world.fork()

    assert world.accepted() == [world.live()] * 3


def test_revoked_key_is_not_accepted_while_a_worker_catches_up(world: World) -> None:
    """It comes, and goes behind a thousand others. The worker reads that late, in steps, and never accepts it."""
    reads = itertools.count()
    corrections = KeyCorrections(KeyHolder.WORKER, world.metrics, world.logger)
    auth = Authenticator((), requires_keys=True)
    seen: list[bool] = []

    def change(update: KeyUpdate) -> None:
        auth.change(update)
        seen.append(accepts(auth, world.secrets[0]))

    async def main() -> None:
        loop, log = asyncio.get_running_loop(), world.watch.log
        follower = KeyFollower(
            *(LogReader(log, log.end), auth, change, lambda: None, corrections),
            *(lambda: None, world.logger, loop, lambda: next(reads) * 2e-4),
        )
        world.do("create")
        world.catch_up()
        for n in range(50):
            world.file.write_text("".join(f"other-{n}-{k}\n" for k in range(20)))
            assert world.settle() is not None
        world.do("delete")
        world.catch_up()
        follower.look()
        assert follower.is_behind, "there is more than one step to do"
        async with asyncio.timeout(20):
            while follower.is_behind:
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert len(seen) > 50 and not any(seen)


KEYS = st.integers(0, 1)
ACTIONS = st.sampled_from(sorted({*" ".join(PATTERNS).split(), "rotate-slowly"}))


class AnyOrder(RuleBasedStateMachine):
    """Any changes, with turns of everybody in between, in any order."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.world = World(Path(self.folder.name))
        self.world.catch_up()

    @rule(key=KEYS, actions=st.lists(ACTIONS, min_size=1, max_size=4), is_written=st.booleans())
    def change(self, key: int, actions: list[str], is_written: bool) -> None:
        """Change a key several times; each change is written down by the ledger's process, or only the last."""
        for action in actions:
            with contextlib.suppress(AccountsError):  # there is no such key now, or there is one already
                self.world.do(action, f"k{key}")
            if is_written:
                self.world.write()

    @rule()
    def restart_writer(self) -> None:
        """A new ledger's process writes everything anew."""
        self.world.snapshot = KeySnapshot(Path(self.folder.name) / "ledger")

    @rule()
    def look(self) -> None:
        """The supervisor looks once; of what there is it may see a part."""
        self.world.turns(1)

    @precondition(lambda self: len(self.world.workers) < 3)
    @rule()
    def fork(self) -> None:
        self.world.fork()

    @rule(worker=st.integers(0, 2))
    def follow(self, worker: int) -> None:
        for each in self.world.workers[worker : worker + 1]:
            each.follower.look()

    @rule(hours=st.sampled_from([1, 3, -1]))
    def set_clock(self, hours: int) -> None:
        """A grace or a key ends; or the clock was wrong."""
        self.world.wall_s += hours * 3600

    @rule(key=KEYS, is_there=st.booleans())
    def change_file(self, key: int, is_there: bool) -> None:
        """A file may have a managed key's secret, too: it counts before the managed one."""
        secrets = self.world.secrets
        lines = [secrets[key]] if is_there and key < len(secrets) else []
        self.world.file.write_text("".join(f"{line}\n" for line in [*lines, "another"]))
        self.world.in_file = set(lines)
        self.world.settle()

    @rule()
    def settle(self) -> None:
        world = self.world
        world.catch_up()
        assert world.accepted() == [world.live()] * (1 + len(world.workers))

    def teardown(self) -> None:
        try:
            self.settle()
            self.world.turns(100)  # everything is compared
            self.settle()
            assert self.world.n_corrected() == [0, 0, 0], self.world.lines
        finally:
            self.world.close()
            self.folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# -- comparing --------------------------------------------------------------------------------------

LEFT_S = 16  # what is compared every 15 s is found


def turns(world: World, seconds: float) -> None:
    """Let so much time go by in the supervisor and the workers, who get the keys that they ask for."""
    for _ in range(round(4 * seconds)):
        world.turns(1)
        for worker in world.workers:
            if worker.asks:
                worker.asks = False
                world.watch.publish_all()
            worker.follower.look()


def entry_of(secret: str, **fields: Any) -> KeyEntry:
    return KeyEntry(hashlib.sha256(secret.encode()).digest(), **fields)


def test_worker_ends_what_it_accepts_alone(world: World) -> None:
    """A key that it should not know, one that it lost, one with other rights: each is corrected, counted and named."""
    for name in ("lost", "limited", "kept"):
        world.secrets.append(world.accounts.create_key({"id": name, "name": name, "rpm": 5}, ME).secret)
    world.catch_up()
    world.fork()
    world.fork()
    turns(world, 1)
    wrong, right = world.workers
    lost, limited, _ = world.secrets
    world.secrets.append("sk-leftover")
    left = entry_of("sk-leftover", name="left", id=bytes(7) + b"\7")
    wrong.auth.change({left.digest: left, entry_of(lost).digest: None})
    wrong.auth.change({entry_of(limited).digest: entry_of(limited, name="limited")})

    turns(world, LEFT_S)

    assert world.accepted() == [world.live()] * 3
    assert wrong.auth.checksum == right.auth.checksum == world.watch.auth.checksum
    assert wrong.auth.caller(entry_of(limited).digest) == right.auth.caller(entry_of(limited).digest)
    assert world.n_corrected() == [0, 0, 3]
    found = {line.split(" (")[0]: line for line in world.lines if "corrected" in line}
    assert found.keys() == {"key left", "key lost", "key limited"}
    assert found["key left"] == (
        "key left (0000000000000007) was accepted, but is revoked: corrected (held by: worker)"
    )
    assert "was refused, but is active" in found["key lost"] and "had other rights" in found["key limited"]
    world.lines.clear()
    turns(world, 4 * LEFT_S)
    assert world.lines == [], "it was corrected once"


def test_supervisor_ends_what_it_accepts_alone_and_workers_that_were_forked_with_it(world: World) -> None:
    """As it was with two changes within one look: the next workers have the key, too."""
    world.do("create")
    world.catch_up()
    turns(world, LEFT_S)
    world.secrets.append("sk-leftover")
    left = entry_of("sk-leftover", name="left")
    world.watch.auth.change({left.digest: left, entry_of(world.secrets[0]).digest: None})
    world.fork()
    assert world.accepted() == [{"sk-leftover"}] * 2

    turns(world, LEFT_S)

    assert world.accepted() == [world.live()] * 2 and world.live() == {world.secrets[0]}
    assert world.n_corrected() == [0, 2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("n_others", [0, 600])
def test_supervisor_ends_what_the_files_do_not_say(world: World, n_others: int) -> None:
    """Something that it has read stands in them no longer. What changes while it compares is no mistake."""
    for n in range(n_others):
        world.accounts.create_key({"id": f"other-{n}"}, ME)
    world.do("create")
    world.catch_up()
    turns(world, LEFT_S)
    before = world.changes.read_bytes()
    forge(world, "sk-forged")
    world.look()
    assert world.accepted() == [world.live() | {"sk-forged"}]
    nothing = gone_line("nobody").ljust(len(world.changes.read_bytes()) - len(before) - len("01234567\n"))
    world.changes.write_bytes(before + b"%08x%b\n" % (zlib.crc32(nothing), nothing))

    for n in range(LEFT_S):
        turns(world, 1)
        world.accounts.update("key", "k", {"rpm": n + 1}, ME)
        world.do("rotate")
        world.catch_up()
    turns(world, LEFT_S)

    assert world.accepted() == [world.live()]
    assert world.n_corrected() == [0, 1, 0]
    assert sum("key forged" in line and "(held by: supervisor)" in line for line in world.lines) == 1


def forge(world: World, secret: str) -> None:
    """Write a line into the file of changes that no account has."""
    world.secrets.append(secret)
    key = Key(id="forged", name="forged", created_s=1, updated_s=1)
    line = key_line(key, None, None, [Digest(entry_of(secret).digest, key.id, None)])
    with world.changes.open("ab") as file:
        file.write(b"%08x%b\n" % (zlib.crc32(line), line))


class Writer:
    """The part of the ledger's process that writes keys down, and its time."""

    def __init__(self, world: World) -> None:
        self._world = world
        corrections = KeyCorrections(KeyHolder.FILES, world.metrics, world.logger)
        self._writer = KeyWriter(world.settings, Path(world.settings.ledger or ""), corrections, world.logger)
        self._now_s = 1000.0

    def run(self, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self._now_s += 0.1
            self._writer.turn(self._now_s)
            self._world.turns(1)

    def close(self) -> None:
        self._writer.close()


def delete_by_hand(world: World) -> None:
    with sqlite3.connect(world.settings.ledger + "/accounts.db") as db:  # type: ignore[operator]
        db.execute("DELETE FROM account WHERE kind = 'key' AND id = 'k'")
        db.execute("DELETE FROM digest WHERE key = 'k'")
    db.close()


def block_by_hand(world: World) -> None:
    with sqlite3.connect(world.settings.ledger + "/accounts.db") as db:  # type: ignore[operator]
        (document,) = db.execute("SELECT document FROM account WHERE kind = 'key' AND id = 'k'").fetchone()
        blocked = msgspec.structs.replace(msgspec.json.decode(document, type=Key), is_blocked=True)
        db.execute("UPDATE account SET document = ? WHERE kind = 'key'", (msgspec.json.encode(blocked),))
    db.close()


def restore_and_go_on(world: World) -> None:
    """An older state of the database, in which other changes have been made since: their numbers are known already."""
    with sqlite3.connect(world.settings.ledger + "/accounts.db") as db:  # type: ignore[operator]
        db.execute("DELETE FROM account WHERE kind = 'key' AND id = 'k'")
        db.execute("DELETE FROM digest WHERE key = 'k'")
        db.execute("DELETE FROM change WHERE object_id = 'k'")
        db.execute("UPDATE sqlite_sequence SET seq = seq - 1")
    db.close()
    world.accounts.create_team({"id": "other"}, ME)


@pytest.mark.parametrize("by_hand", [delete_by_hand, block_by_hand, restore_and_go_on])
def test_ledger_process_ends_what_the_database_does_not_say(world: World, by_hand: Callable[[World], None]) -> None:
    """No change tells it: a database that was edited or restored."""
    writer = Writer(world)
    world.do("create")
    writer.run(1)
    assert world.accepted() == [set(world.secrets)]
    by_hand(world)
    assert world.live() == set()

    writer.run(2 * LEFT_S)

    assert world.accepted() == [set()] and world.n_corrected() == [1, 0, 0]
    assert sum("was accepted, but is revoked: corrected (held by: files)" in line for line in world.lines) == 1
    writer.close()


@pytest.mark.slow
def test_ledger_process_ends_what_the_database_does_not_say_in_any_number(world: World) -> None:
    """Keys that it takes away and keys that it lost, among more than are compared in one turn."""
    writer = Writer(world)
    for n in range(600):
        world.accounts.create_key({"id": f"other-{n}"}, ME)
    writer.run(4)
    whole = world.changes.read_bytes()
    forge(world, "sk-forged")
    writer.run(1)
    assert world.accepted() == [{"sk-forged"}]

    writer.run(2 * LEFT_S)

    assert world.accepted() == [set()] and world.n_corrected() == [1, 0, 0]
    lines = whole.splitlines(keepends=True)
    world.changes.write_bytes(b"".join(lines[: len(lines) // 2]))
    writer.run(2 * LEFT_S)
    assert len(world.watch.keys) == 601
    writer.close()


def test_damaged_files_of_keys_are_written_anew(world: World) -> None:
    """While the ledger's process runs, not only at its next start."""
    writer = Writer(world)
    world.do("create")
    writer.run(LEFT_S)
    content = world.path.read_bytes()
    world.path.write_bytes(content[:-1] + b"x")

    writer.run(2 * LEFT_S)

    assert any("the files of managed keys are damaged, they are written anew" in line for line in world.lines)
    assert world.accepted() == [world.live()] == [set(world.secrets)] and world.n_corrected() == [0, 0, 0]
    writer.close()


def test_changes_behind_a_damaged_line_are_taken(world: World) -> None:
    """The file was cut inside of a line, and the next ones follow: a key that is blocked there is none."""
    writer = Writer(world)
    world.do("create")
    writer.run(LEFT_S)
    world.changes.write_bytes(world.changes.read_bytes()[:-3])
    writer.run(1)
    world.do("block")

    writer.run(2 * LEFT_S)

    assert world.accepted() == [world.live()] == [set()]
    assert sum("a line is damaged, all is read again" in line for line in world.lines) == 1
    writer.close()
