"""A worker follows changes of the keys: what is revoked is gone at once, what has come comes in steps."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from itertools import count
from pathlib import Path

import pytest

from tests.unit.runtime.keys.test_key_watch import Watched, forked
from velox.outcomes import KeyHolder
from velox.runtime.keys.corrections import KeyCorrections
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.keys.follower import KeyFollower
from velox.shm.change_log import LogReader
from velox.types import KeyUpdate


class Worker:
    """What a worker that was forked before the changes knows. calls: how often it was told."""

    def __init__(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        log = watched.watch.log
        self.auth = forked(watched.watch.auth)
        self.calls = 0
        self.is_lost = self.asks = False
        reads = count()
        self.follower = KeyFollower(
            LogReader(log, log.end),
            self.auth,
            self.change,
            self.ask,
            KeyCorrections(KeyHolder.WORKER, watched.metrics, watched.logger),
            self.lost,
            logging.getLogger("test"),
            loop,
            # Some 250 frames a step: those of 20,000 keys, which are passed over for what is gone, and a quarter more.
            lambda: next(reads) * 8e-6,
        )

    def change(self, update: KeyUpdate) -> None:
        self.calls += 1
        self.auth.change(update)

    @property
    def known(self) -> set[bytes]:
        return set(self.auth.beyond(()))

    def ask(self) -> None:
        self.asks = True

    def lost(self) -> None:
        self.is_lost = True


def digests(watch: KeyWatch) -> set[bytes]:
    return {key.digest for key in watch.keys}


@pytest.mark.slow
def test_revoked_key_is_gone_at_once_and_thousands_come_in_steps(tmp_path: Path) -> None:
    """One look for the one key; many keys take several turns of the loop, and a revocation does not wait."""
    watched = Watched(tmp_path)
    names = [f"k{n}\n" for n in range(20_000)]
    watched.file.write_text("".join(names))

    async def main() -> None:
        worker = Worker(watched, asyncio.get_running_loop())
        assert watched.settle() is not None
        worker.follower.look()
        assert not digests(watched.watch) <= worker.known, "not all in one turn"
        late = hashlib.sha256(b"k19999").digest()
        assert late not in worker.known
        watched.file.write_text("".join(names[:-1]))
        assert watched.settle() is not None
        async with asyncio.timeout(20):
            while worker.follower.is_behind:
                await asyncio.sleep(0.005)
        assert worker.known == digests(watched.watch) and len(worker.known) == 19_999
        calls = worker.calls
        watched.file.write_text("".join(names[1:-1]))
        assert watched.settle() is not None
        worker.follower.look()
        assert worker.known == digests(watched.watch)
        assert worker.calls == calls + 1

    asyncio.run(main())


@pytest.mark.slow
def test_revocation_does_not_wait_for_keys_that_have_come(tmp_path: Path) -> None:
    """A key that was there is gone in the next step, though thousands came before."""
    watched = Watched(tmp_path)
    (one,) = digests(watched.watch)

    async def main() -> None:
        worker = Worker(watched, asyncio.get_running_loop())
        watched.file.write_text("one\n" + "".join(f"k{n}\n" for n in range(20_000)))
        assert watched.settle() is not None
        watched.file.write_text("".join(f"k{n}\n" for n in range(20_000)))
        assert watched.settle() is not None
        worker.follower.look()
        assert one not in worker.known and worker.follower.is_behind

    asyncio.run(main())


@pytest.mark.slow
def test_worker_that_missed_changes_is_replaced(tmp_path: Path) -> None:
    """It can't know which keys hold: nobody keeps changes for ever."""
    watched = Watched(tmp_path)

    async def main() -> None:
        worker, prompt = (Worker(watched, asyncio.get_running_loop()) for _ in range(2))
        watched.file.write_text("two\n" + "".join(f"k{n}\n" for n in range(20_000)))
        assert watched.settle() is not None
        prompt.follower.look()
        async with asyncio.timeout(30):
            while prompt.follower.is_behind:
                await asyncio.sleep(0.005)
        watched.turns(300)  # more than a minute
        watched.file.write_text("three\n")
        assert watched.settle() is not None
        for each in (worker, prompt):
            each.follower.look()
        async with asyncio.timeout(30):
            while prompt.follower.is_behind:
                await asyncio.sleep(0.005)
        assert worker.is_lost and not prompt.is_lost and prompt.known == digests(watched.watch)

    asyncio.run(main())
