"""What workers of several gateways know and keep together in a real PostgreSQL: rows, ends, the bound, failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.postgres_server import PostgresServer
from velox.ledger.postgres import PostgresStore
from velox.runtime.shared.answers_postgres import PostgresAnswers
from velox.runtime.shared.objects_postgres import PostgresObjects
from velox.runtime.shared.postgres_pool import PostgresPool
from velox.runtime.shared.store import StoreDownError

LAST: Final = (1 << 64) - 1
KEYS: Final = [bytes([n]) * 20 for n in range(8)]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database with the ledger's tables."""
    made = postgres.database()
    PostgresStore(made, gateway="one", days=30).close()
    return made


def run(url: str, test: Callable[[PostgresPool], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = PostgresPool(url)
        try:
            await test(pool)
        finally:
            await pool.close()
            await pool.close()

    asyncio.run(main())


def test_objects_are_numbers_of_64_bits(url: str) -> None:
    """What is known of one stays so, as in the table of objects; an old row goes."""

    async def test(pool: PostgresPool) -> None:
        objects = PostgresObjects(pool)
        await objects.write({1: (2, 3), LAST: (LAST, LAST), 1 << 63: (1, 0)})
        await objects.write({1: (7, 7), 5: (5, 5)})
        found = await objects.read((1, LAST, 1 << 63, 5, 9))
        assert found == {1: (2, 3), LAST: (LAST, LAST), 1 << 63: (1, 0), 5: (5, 5)}
        await pool.ask(lambda c: c.execute("UPDATE velox_object SET noted = noted - interval '31 days' WHERE tag = 5"))
        await asyncio.to_thread(prune, url)
        assert await objects.read((1, 5)) == {1: (2, 3)}

    run(url, test)


def prune(url: str) -> None:
    store = PostgresStore(url, gateway="one", days=30)
    store.prune(int(time.time()))
    store.close()


def test_answers_end_by_themselves(url: str) -> None:
    """As the database's clock has it; one that is asked for in the second half of its time begins anew."""

    async def test(pool: PostgresPool) -> None:
        answers = PostgresAnswers(pool, 100.0, 1 << 20)
        await answers.write({KEYS[0]: b"=text", KEYS[1]: b"@" + KEYS[0]})
        assert (await answers.read(KEYS[0]), await answers.read(KEYS[2])) == (b"=text", None)

        async def sooner(seconds: int) -> None:
            await pool.ask(lambda c: c.execute(f"UPDATE velox_answer SET until = until - interval '{seconds} s'"))

        await sooner(60)
        assert await answers.read(KEYS[0]) == b"=text"
        await sooner(60)
        assert (await answers.read(KEYS[0]), await answers.read(KEYS[1])) == (b"=text", None)
        await asyncio.to_thread(prune, url)
        (n_left,) = await pool.ask(lambda c: c.fetchrow("SELECT count(*) FROM velox_answer"))
        assert n_left == 1

    run(url, test)


def test_answers_have_a_bound_together(url: str) -> None:
    """The newest take the place of the oldest, whoever wrote them."""

    async def test(pool: PostgresPool) -> None:
        workers = [PostgresAnswers(pool, 100.0, 4000) for _ in range(2)]
        for n, key in enumerate(KEYS):
            await workers[n % 2].write({key: b"=" + b"x" * 999})
        left = [await workers[0].read(key) is not None for key in KEYS]
        assert left == [False] * 4 + [True] * 4

    run(url, test)


def test_answer_is_swapped_for_what_was_read_alone(url: str) -> None:
    """K6: of many at one instant each is made of what the one before has left."""

    async def test(pool: PostgresPool) -> None:
        answers = PostgresAnswers(pool, 100.0, 1 << 20)
        await answers.write({KEYS[0]: b"="})
        assert not await answers.swap(KEYS[0], b"=other", {KEYS[0]: b"=lost"})
        assert not await answers.swap(KEYS[7], b"=", {KEYS[7]: b"=lost"})

        async def append(letter: bytes) -> None:
            while True:
                value = await answers.read(KEYS[0])
                assert value is not None
                if await answers.swap(KEYS[0], value, {KEYS[0]: value + letter, KEYS[1]: letter}):
                    return

        await asyncio.gather(*(append(bytes([each])) for each in b"abcdefgh"))
        value = await answers.read(KEYS[0])
        assert value is not None and sorted(value[1:]) == list(b"abcdefgh")

    run(url, test)


def test_database_that_hangs_is_left(url: str, postgres: PostgresServer) -> None:
    """A question that nobody waits for any more ends its connection; the next one has another."""

    async def test(pool: PostgresPool) -> None:
        objects = PostgresObjects(pool)
        await objects.write({1: (2, 3)})
        postgres.pause()
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await objects.read((1,))
        finally:
            postgres.resume()
        assert await objects.read((1,)) == {1: (2, 3)}
        await pool.ask(lambda c: c.execute("ALTER TABLE velox_object RENAME TO elsewhere"))
        with pytest.raises(StoreDownError, match="UndefinedTableError"):
            await objects.read((1,))

    run(url, test)
