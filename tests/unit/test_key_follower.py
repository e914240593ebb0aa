"""A worker follows changes of the keys: what is revoked is gone at once, what has come comes in steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.unit.test_key_watch import Watched
from velox.runtime.credentials import KeyWatch
from velox.runtime.key_follower import KeyFollower
from velox.types import KeyEntry


class Worker:
    """What a worker that was forked before the changes knows. calls: how often it was told."""

    def __init__(self, folder: Path, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        self.watch = self.forked(watched.watch)
        self.known = {key.digest for key in watched.watch.keys}
        self.calls = 0
        self.is_lost = False
        self.follower = KeyFollower(self.watch, self.change, self.lost, logging.getLogger("test"), loop)

    @staticmethod
    def forked(watch: KeyWatch) -> KeyWatch:
        copy = KeyWatch.__new__(KeyWatch)
        copy.__dict__.update(watch.__dict__)
        # Its memory is shared; what was read of it is each process's own.
        copy._snapshot = type(watch._snapshot).__new__(type(watch._snapshot))  # type: ignore[misc]
        copy._snapshot._memory = watch._snapshot._memory  # type: ignore[misc]
        copy._snapshot._seen = watch._snapshot._seen
        return copy

    def change(self, gone: Iterable[bytes], come: Iterable[KeyEntry]) -> None:
        self.calls += 1
        self.known.difference_update(gone)
        self.known.update(key.digest for key in come)

    def lost(self) -> None:
        self.is_lost = True


def digests(watch: KeyWatch) -> set[bytes]:
    return {key.digest for key in watch.keys}


def test_revoked_key_is_gone_at_once_and_thousands_come_in_steps(tmp_path: Path) -> None:
    """One look, one call for the one key; many keys take several turns of the loop, and a revocation does not wait."""
    watched = Watched(tmp_path)
    names = [f"k{n}\n" for n in range(20_000)]
    watched.file.write_text("".join(names))

    async def main() -> None:
        worker = Worker(tmp_path, watched, asyncio.get_running_loop())
        assert watched.settle() is not None
        worker.follower.look()
        assert not digests(watched.watch) <= worker.known, "not all in one turn"
        watched.file.write_text("".join(names[1:]))
        assert watched.settle() is not None
        worker.follower.look()
        async with asyncio.timeout(20):
            while "left=0" not in repr(worker.follower):
                await asyncio.sleep(0.005)
        assert worker.known == digests(watched.watch) and len(worker.known) == 19_999
        calls = worker.calls
        watched.file.write_text("".join(names[2:]))
        assert watched.settle() is not None
        worker.follower.look()
        assert worker.known == digests(watched.watch)
        assert worker.calls == calls + 1

    asyncio.run(main())


@pytest.mark.parametrize(("n_changes", "is_lost"), [(64, False), (65, True)])
def test_worker_that_missed_changes_is_replaced(tmp_path: Path, n_changes: int, is_lost: bool) -> None:
    """It can't know which keys hold. The log of changes is bounded."""
    watched = Watched(tmp_path)

    async def main() -> None:
        worker = Worker(tmp_path, watched, asyncio.get_running_loop())
        for n in range(n_changes):
            watched.file.write_text(f"key-{n}\n")
            assert watched.settle() is not None
        worker.follower.look()
        assert worker.is_lost == is_lost
        async with asyncio.timeout(30):  # on a busy machine it takes more than one step
            while not is_lost and worker.known != digests(watched.watch):
                await asyncio.sleep(0)

    asyncio.run(main())
