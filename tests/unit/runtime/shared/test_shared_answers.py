"""Kept answers that gateways have together, over a store in memory: their order, what is changed at once, a bound."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import pytest

from velox.gateway.answers.values import AnswersDownError, Changed
from velox.runtime.shared.answers import AnswerSharing
from velox.runtime.shared.objects import ObjectSharing
from velox.runtime.shared.store import StoreDownError

LOG: Final = logging.getLogger("test")
OWNER: Final = "a"


class Store:
    """A store in memory. pauses: turns of the loop that each question takes. is_down: nothing is answered."""

    name = "the store"

    def __init__(self, pauses: int = 0) -> None:
        self.values: dict[bytes, bytes] = {}
        self.pauses = pauses
        self.is_down = False
        self.n_asked = 0

    async def _pause(self) -> None:
        self.n_asked += 1
        if self.is_down:
            raise StoreDownError("gone")
        for _ in range(self.pauses):
            await asyncio.sleep(0)

    async def read(self, digest: bytes) -> bytes | None:
        await self._pause()
        return self.values.get(digest)

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        await self._pause()
        self.values.update(values)

    async def swap(self, digest: bytes, value: bytes, values: Mapping[bytes, bytes]) -> bool:
        await self._pause()
        if self.values.get(digest) != value:
            return False
        self.values.update(values)
        return True

    async def close(self) -> None:
        pass


def run(test: Callable[[Callable[[Store], AnswerSharing]], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(lambda store: AnswerSharing(store, 5.0, asyncio.get_running_loop(), LOG))

    asyncio.run(main())


def adding(more: bytes) -> Callable[[bytes], Changed]:
    return lambda text: Changed([(("conv_1",), text + more)])


def test_changes_at_one_instant_are_all_there() -> None:
    """K6: of two workers, each of which changes what it has read."""

    async def test(make: Callable[[Store], AnswerSharing]) -> None:
        store = Store(pauses=3)
        one, other = make(store), make(store)
        one.put(OWNER, ("conv_1",), b"")
        await asyncio.sleep(0)
        assert await one.get(OWNER, "conv_1") == b""
        changes = [(one, other)[n % 2].change(OWNER, "conv_1", adding(b"%d," % n)) for n in range(10)]
        assert all(await asyncio.gather(*changes))
        found = await other.get(OWNER, "conv_1")
        assert found is not None and sorted(found.strip(b",").split(b",")) == [b"%d" % n for n in range(10)]

    run(test)


def test_who_asks_reads_what_was_kept_here_before() -> None:
    """The store may be told of it later; what is kept of one id is told in its order."""

    async def test(make: Callable[[Store], AnswerSharing]) -> None:
        store = Store(pauses=5)
        one = make(store)
        for n in range(20):
            one.put(OWNER, ("resp_1", "msg_1"), b"%d" % n)
            await asyncio.sleep(0)  # the turn of the loop in which a client is told
        assert await one.get(OWNER, "resp_1") == b"19"
        assert await one.get(OWNER, "msg_1") == b"19"

        async def change() -> None:
            assert await one.change(OWNER, "resp_1", lambda text: Changed([(("resp_1",), text + b"!")]))

        one.begin(OWNER, "resp_1", change)
        one.begin(OWNER, "resp_1", change)
        await asyncio.sleep(0)
        assert await one.get(OWNER, "resp_1") == b"19!!"
        await one.forget(OWNER, ("resp_1", "msg_1"))
        assert (await one.get(OWNER, "resp_1"), await one.get(OWNER, "msg_1")) == (b"", b"")
        assert not await one.change(OWNER, "resp_1", adding(b"x"))

    run(test)


def test_store_that_failed_is_not_asked_by_each_request() -> None:
    """After a failure nobody waits for the next one, for a second; what is put meanwhile is not told."""

    async def test(make: Callable[[Store], AnswerSharing]) -> None:
        store = Store()
        one = make(store)
        store.is_down = True
        for _ in range(5):
            with pytest.raises(AnswersDownError):
                await one.get(OWNER, "resp_1")
        with pytest.raises(AnswersDownError):
            await one.change(OWNER, "resp_1", adding(b"x"))
        one.put(OWNER, ("resp_1",), b"lost")
        await one.close()
        assert store.n_asked == 1 and not store.values

    run(test)


class Rows:
    """A store of objects that is slow: what waits meanwhile is told at one go."""

    name = "the store"

    def __init__(self) -> None:
        self.told: list[dict[int, tuple[int, int]]] = []
        self.go_on = asyncio.Event()
        self.fails = 0

    async def read(self, tags: object) -> dict[int, tuple[int, int]]:
        raise StoreDownError("gone")

    async def write(self, rows: Mapping[int, tuple[int, int]]) -> None:
        await self.go_on.wait()
        if self.fails:
            self.fails -= 1
            raise StoreDownError("gone")
        self.told.append(dict(rows))

    async def close(self) -> None:
        pass


def test_objects_are_told_in_few_questions() -> None:
    """And of a store that is away nothing is known."""

    async def main() -> None:
        rows = Rows()
        sharing = ObjectSharing(rows, 5.0, asyncio.get_running_loop(), LOG)
        for n in range(100):
            sharing.put(n, 1, 2)
            await asyncio.sleep(0)
        rows.go_on.set()
        await sharing.close()
        assert len(rows.told) == 2 and sum(map(len, rows.told)) == 100
        assert await sharing.get((1, 2)) == {}

    asyncio.run(main())


def test_object_that_could_not_be_told_is_told_again() -> None:
    """A second later; meanwhile more may come."""

    async def main() -> None:
        rows, loop = Rows(), asyncio.get_running_loop()
        rows.fails = 1
        rows.go_on.set()
        sharing = ObjectSharing(rows, 5.0, loop, LOG)
        sharing.put(1, 1, 2)
        await asyncio.sleep(0)
        sharing.put(2, 1, 2)
        began_s = loop.time()
        while not rows.told and loop.time() - began_s < 10:
            await asyncio.sleep(0.01)
        assert rows.told == [{1: (1, 2), 2: (1, 2)}]
        rows.fails = 10
        sharing.put(3, 1, 2)
        await asyncio.sleep(0)
        began_s = loop.time()
        await ObjectSharing(rows, 0.1, loop, LOG).close()
        await sharing.close()
        assert loop.time() - began_s < 8 and len(rows.told) == 1

    asyncio.run(main())
