"""A Redis cluster: the node that has the slot of Velox's keys is asked, whichever node the URL names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.redis_server import free_port, redis_server
from tests.e2e.watching import until
from velox.runtime.shared.answers_redis import RedisAnswers
from velox.runtime.shared.objects_redis import RedisObjects
from velox.runtime.shared.store import StoreDownError

_SLOTS: Final = 16_384
KEY: Final = b"k" * 20


def test_node_that_has_the_keys_is_asked(tmp_path: Path) -> None:
    """MOVED is followed; when that node is gone, the one of the URL is asked again."""
    buses = [free_port(), free_port()]
    options = [
        ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-config-file", str(tmp_path / f"{bus}.conf"))
        for bus in buses
    ]
    with redis_server(*options[0]) as named, redis_server(*options[1]) as owner:
        with named.client() as one, owner.client() as other:
            other.execute_command("CLUSTER ADDSLOTSRANGE", 0, _SLOTS - 1)
            one.execute_command("CLUSTER MEET", "127.0.0.1", owner.port, buses[1])

            def is_ready() -> bool:
                return all(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok" for node in (one, other))

            until(is_ready, "both nodes know the slots", 20.0)

        async def ask() -> None:
            objects, answers = RedisObjects(named.url, "velox:", 2.0), RedisAnswers(named.url, "velox:", 60.0, 2.0)
            await objects.write({1: (2, 3)})
            assert await objects.read((1, 9)) == {1: (2, 3)}
            await answers.write({KEY: b"=a"})
            assert await answers.swap(KEY, b"=a", {KEY: b"=b", b"l" * 20: b"@"})
            assert not await answers.swap(KEY, b"=a", {KEY: b"=lost"})
            assert await answers.read(KEY) == b"=b"
            owner.kill()
            for _ in range(2):  # the node that had them, then that of the URL, which names it again
                with pytest.raises(StoreDownError):
                    await answers.read(KEY)
            await objects.close()
            await answers.close()

        asyncio.run(ask())
