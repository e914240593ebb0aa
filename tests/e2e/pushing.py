"""Pushing a gateway as fast as it lets one: what its limits are tried with.

Knows: one connection, again and again. Does not know: how many push, who is killed meanwhile, what may come of it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Push", "push_connection"]


@dataclass
class Push:
    """What came of it. seconds: from the first request to the last reading."""

    seconds: float = 0.0
    admitted: int = 0  # requests that reached the upstream
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0  # connections that a kill broke in the middle of a request
    slowest_s: float = 0.0  # of all answers


async def push_connection(port: int, until_s: float, request: bytes, push: Push) -> None:
    """Ask again and again on one connection; a new one where the gateway's worker died."""
    while time.monotonic() < until_s:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            continue
        try:
            while (began_s := time.monotonic()) < until_s:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None, head
                await reader.readexactly(int(length[1]))
                push.statuses[int(head[9:12])] += 1
                push.slowest_s = max(push.slowest_s, time.monotonic() - began_s)
        except (ConnectionError, asyncio.IncompleteReadError):
            push.broken += 1
        finally:
            writer.close()
