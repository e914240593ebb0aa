"""Work that is done in a thread, beside the loop (gateway/cpu_work.py)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from velox.gateway.cpu_work import TranslationThread, is_large


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
