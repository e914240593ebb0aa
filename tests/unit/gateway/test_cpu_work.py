"""Work that is done in a thread, beside the loop (gateway/cpu_work.py)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from velox.gateway.cpu_work import TranslationThread, is_large
from velox.net.turn_budget import TurnBudget


def test_the_loop_goes_on_meanwhile() -> None:
    """The work waits here for what only the loop does."""
    goes_on = threading.Event()

    async def main() -> bool:
        asyncio.get_running_loop().call_soon(goes_on.set)
        return await TranslationThread().run(lambda: goes_on.wait(20))

    assert asyncio.run(main())


def test_one_piece_of_work_after_the_other() -> None:
    done: list[int] = []

    async def main() -> None:
        thread = TranslationThread()
        await asyncio.gather(*(thread.run(lambda n=n: done.append(n)) for n in range(20)))  # type: ignore[misc]

    asyncio.run(main())

    assert done == list(range(20))


def test_errors_come_back() -> None:
    async def main() -> None:
        await TranslationThread().run(lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_clients_have_less_of_each_turn_while_there_is_work() -> None:
    """Also while the second of two is under way, and none the less where one fails."""
    shares: list[float] = []

    async def main() -> None:
        turns = TurnBudget(asyncio.get_running_loop(), share_s=1.0)
        thread = TranslationThread(turns)
        works = [lambda: shares.append(turns.share_s), lambda: 1 // 0, lambda: shares.append(turns.share_s)]
        await asyncio.gather(*map(thread.run, works), return_exceptions=True)
        shares.append(turns.share_s)

    asyncio.run(main())

    assert shares == [0.25, 0.25, 1.0]


@pytest.mark.parametrize(
    ("body", "large"),
    [
        (b"{}", False),
        (b"," * 16_384, False),
        (b'{"a":1},' * 2_001 + b" " * 16_384, True),
        (rb"\ud83d" * 1_000 + b" " * 16_384, False),
        (rb"\ud83d" * 999 + rb"\uDC00" * 2 + b" " * 16_384, True),
        (rb"\u00e9" * 9_000, False),
        (b"a" * 200_000, False),
        (b"a" * 262_145, True),
    ],
)
def test_large_is_what_takes_long(body: bytes, large: bool) -> None:
    """Few bytes of text take no time; few bytes of values do."""
    assert is_large([body]) is large
    assert is_large([bytearray(body[:9]), body[9:]]) is large
