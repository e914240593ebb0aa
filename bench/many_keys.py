"""Keys with limits, clients that push each of them above its limit, and what of it came through: for bench.replicas.

Each key has two clients, or six. One asks a gateway chosen at random; after an answer it waits a random moment and asks
again, after a refusal half to one and a half times what Retry-After says. So a key asks for more than it may all
the time, and refusals do not swamp the machine. At the end it asks on until it is refused once more, with nothing else
under way: at that moment nothing is left to give, and what came to the upstream is compared with what may.

Times are taken where they can't flatter: what may at most from when the key's first request was sent until the last
refusal came back; what should at least from when the first one was seen until the last refused one was sent. A permit
is whole: of 35.9 there are 35.

Knows: what a client and the upstream see. Does not know: how a limit is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["GROUPS", "Connections", "Key", "Loss", "push"]

# (requests a minute, burst, how many of 200 keys).
GROUPS: Final = (
    *((30, 5, 50), (30, 40, 50), (60, 5, 31), (60, 40, 31), (120, 10, 15), (120, 40, 15)),
    *((300, 20, 6), (1200, 100, 2)),
)
# So many permits a second need more clients, where an answer takes long.
_FAST_RPM: Final = 300
# Less than any of the buckets takes to fill: a connection may wait in a killed worker's socket for the next one.
_PATIENCE_S: Final = 2.0
_DRAIN_S: Final = 10.0
_AGAIN_S: Final = 0.05
# Clients begin within this, so that the first answers are as fast as later ones.
_SPREAD_S: Final = 2.0
_ENOUGH: Final = 1.2


@dataclass(frozen=True, slots=True)
class Loss:
    """What a key may get too little, beside what its clients saw go wrong. managers: of leases that were killed."""

    shared: bool = False
    managers: int = 0


@dataclass(slots=True)
class Key:
    """One key: its limit, and what became of its requests. Times: time.monotonic()."""

    number: int
    rpm: int
    burst: int
    asked: int = 0
    refused: int = 0
    failed: int = 0  # sent, and no answer came
    others: int = 0  # neither let through nor refused by the limit
    seen: int = 0  # came to the upstream
    over: float = -1e9  # the most that was ever above burst + rate x time
    calm_s: float = 0.0  # the longest time without a refusal, since the first one
    first_sent_s: float = 0.0
    first_seen_s: float = 0.0
    last_sent_s: float = 0.0
    last_refused_s: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        """One permit comes in so long."""
        return 60 / self.rpm

    @property
    def clients(self) -> int:
        """How many ask at once."""
        return 2 if self.rpm < _FAST_RPM else 6

    def arrived(self) -> None:
        """Note a request that came to the upstream."""
        now_s = time.monotonic()
        self.first_seen_s = self.first_seen_s or now_s
        self.seen += 1
        self.over = max(self.over, self.seen - self.burst - (now_s - self.first_sent_s) / self.interval_s)

    def refusal(self, sent_s: float, got_s: float) -> None:
        """Note a refusal."""
        self.refused += 1
        if self.last_refused_s:
            self.calm_s = max(self.calm_s, sent_s - self.last_refused_s)
        self.last_sent_s, self.last_refused_s = sent_s, got_s

    @property
    def most(self) -> float:
        """What may come to the upstream."""
        return self.burst + (self.last_refused_s - self.first_sent_s) / self.interval_s

    @property
    def whole(self) -> int:
        """What should, without any loss."""
        return int(self.burst + (self.last_sent_s - self.first_seen_s) / self.interval_s)

    def least(self, loss: Loss) -> int:
        """Return what must, whatever was lost (docs/limits-replicas.md)."""
        lost = self.failed
        if loss.shared:
            block = min(self.burst // 20, int(0.1 / self.interval_s))
            lost += max(1, block) + loss.managers * (self.clients + block)
        return self.whole - lost

    @property
    def part(self) -> float:
        """What came, of what should."""
        return self.seen / self.whole

    @property
    def push(self) -> float:
        """What was asked for, of what may come."""
        return self.asked / self.most

    @property
    def asked_too_little(self) -> bool:
        """True if its bucket may have been full again meanwhile, so nothing can be said."""
        return not self.last_refused_s or self.push < _ENOUGH or self.calm_s >= self.burst * self.interval_s

    def __str__(self) -> str:
        return (
            f"key {self.number} ({self.rpm} a minute, {self.burst} at once): asked {self.asked}, let through"
            f" {self.seen} of {self.whole} (at most {self.most:.1f}), refused {self.refused}, no answer"
            f" {self.failed}, others {self.others}, {self.calm_s:.1f} s without a refusal, once {self.over:.2f} above"
        )


class Connections:
    """One client's kept connections, one to each gateway, and its requests."""

    def __init__(self, key: str, model: str, ports: Sequence[int]) -> None:
        body = b'{"model":"%b","messages":[]}' % model.encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request: Final = head.encode() + body
        self._ports: Final = ports
        self._open: Final[dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def connect(self) -> int:
        """Return a port chosen at random, with a connection open. Raises OSError."""
        port = random.choice(self._ports)
        found = self._open.get(port)
        if found is None or found[0].at_eof():
            self._drop(port)
            self._open[port] = await asyncio.open_connection("127.0.0.1", port)
        return port

    async def ask(self, port: int) -> tuple[int, float]:
        """Return status, 0 if no answer came, and in how many seconds to come back."""
        reader, writer = self._open[port]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_number(rb"\r\ncontent-length: (\d+)", head))
        except (OSError, EOFError, TimeoutError):
            self._drop(port)
            return 0, _AGAIN_S
        if b"\r\nconnection: close" in head:
            self._drop(port)
        return int(head[9:12]), _number(rb"\r\nretry-after-ms: (\d+)", head) / 1000

    def close(self) -> None:
        """Close all."""
        for port in list(self._open):
            self._drop(port)

    def _drop(self, port: int) -> None:
        found = self._open.pop(port, None)
        if found is not None:
            found[1].close()


def _number(pattern: bytes, head: bytes) -> int:
    found = re.search(pattern, head)
    return 0 if found is None else int(found[1])


async def push(keys: Sequence[Key], ports: Sequence[int], seconds: float) -> None:
    """Push all keys for so long."""
    async with asyncio.TaskGroup() as running:
        for key in keys:
            running.create_task(_push_key(key, ports, time.monotonic() + seconds))


async def _push_key(key: Key, ports: Sequence[int], until_s: float) -> None:
    seconds = until_s - time.monotonic()
    await asyncio.sleep(random.uniform(0, min(_SPREAD_S, seconds / 8)))
    clients = [Connections(f"vk-bench-key-{key.number}", str(key.number), ports) for _ in range(key.clients)]
    with contextlib.ExitStack() as closing:
        for client in clients:
            closing.callback(client.close)
        async with asyncio.TaskGroup() as running:
            for client in clients:
                running.create_task(_push_client(key, client, until_s, seconds))
        await _drain(key, clients[0])


async def _push_client(key: Key, client: Connections, until_s: float, seconds: float) -> None:
    """Ask until then. In a run of few seconds waits are short, so that the burst is used up soon in it."""
    longest_s = min(key.interval_s / 2, seconds / key.burst / 4)
    while time.monotonic() < until_s:
        status, back_s = await _ask(key, client)
        if status == 200:
            await asyncio.sleep(min(random.expovariate(4 / key.interval_s), longest_s))
        else:
            await asyncio.sleep(min(back_s, seconds / 20) * random.uniform(0.5, 1.5))


async def _drain(key: Key, client: Connections) -> None:
    until_s = time.monotonic() + _DRAIN_S
    while (status := (await _ask(key, client))[0]) != 429 and time.monotonic() < until_s:
        if status != 200:
            await asyncio.sleep(_AGAIN_S)


async def _ask(key: Key, client: Connections) -> tuple[int, float]:
    try:
        port = await client.connect()
    except OSError:
        return 0, _AGAIN_S
    sent_s = time.monotonic()
    key.first_sent_s = key.first_sent_s or sent_s
    key.asked += 1
    status, back_s = await client.ask(port)
    got_s = time.monotonic()
    if not status:
        key.failed += 1
        return 0, back_s
    key.times_s.append(got_s - sent_s)
    if status == 429:
        key.refusal(sent_s, got_s)
    elif status != 200:
        key.others += 1
        back_s = _AGAIN_S
    return status, back_s
