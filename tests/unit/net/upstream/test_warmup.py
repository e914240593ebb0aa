"""A warm-up whose answer and whose time-out come in the same turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit import virtual_time
from tests.unit.net.upstream.pool_bench import WARMUP
from tests.unit.net.upstream.test_upstream_http1 import Line
from velox.net.upstream.connecting import Warmup


@pytest.mark.parametrize("is_answer_first", [True, False])
def test_answer_at_the_last_moment_ends_nobody_elses_exchange(is_answer_first: bool) -> None:
    """HTTP/1.1: with the answer the connection is free for the next exchange, which is not the warm-up's to cancel."""

    async def main() -> None:
        line = Line()
        warmup = Warmup.begin(line.connection, WARMUP)
        assert warmup is not None
        others = []

        def answer() -> None:
            line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            others.append(line.open())

        loop = asyncio.get_running_loop()
        at_s = loop.time() + 1
        if is_answer_first:
            loop.call_at(at_s, answer)
        waiting = asyncio.create_task(warmup.wait_reply(1.0))
        await asyncio.sleep(0)
        if not is_answer_first:
            loop.call_at(at_s, answer)
        await waiting
        await asyncio.sleep(1)
        line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        assert others[0].ended and others[0].body == b"hi"

    virtual_time.run(main())
