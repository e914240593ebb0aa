"""Whatever happens to keys, in whichever order and however fast: what is accepted is what the book says.

Accounts, files, the supervisor's look and workers are the real ones; the test says when each has its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import itertools
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.test_gateway_routes import head
from tests.unit.test_key_watch import Managed
from velox.accounts.force import entries_in_force
from velox.accounts.service import Accounts, AccountsError
from velox.accounts.snapshot import KeySnapshot
from velox.errors import VeloxError
from velox.gateway.auth import Authenticator
from velox.runtime.key_follower import KeyFollower
from velox.shm.change_log import ChangeLog, LogReader
from velox.types import KeyUpdate

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
        self.workers.append(Worker(self.watch.auth, self.watch.log, self.logger, self.loop))

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
    """A worker as its fork leaves it."""

    def __init__(
        self, auth: Authenticator, log: ChangeLog, logger: logging.Logger, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.auth = copy.deepcopy(auth)
        self.follower = KeyFollower(
            LogReader(log, log.end), self.auth.change, lambda: None, logger, loop, clock=lambda: 0.0
        )


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
    auth = Authenticator((), asks=True)
    seen: list[bool] = []

    def change(update: KeyUpdate) -> None:
        auth.change(update)
        seen.append(accepts(auth, world.secrets[0]))

    async def main() -> None:
        loop, log = asyncio.get_running_loop(), world.watch.log
        follower = KeyFollower(
            LogReader(log, log.end), change, lambda: None, world.logger, loop, lambda: next(reads) * 2e-4
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
        finally:
            self.world.close()
            self.folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
