"""The clients of a soak: each request at its time, whatever became of those before, and what its client saw of it.

Knows: HTTP/1.1 as a client that trusts nothing, when an end is one that may be. Does not know: what is done to the
gateway meanwhile (trouble.py), or what is thought of the figures (report.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import socket
import struct
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.tools import request_bytes
from tests.soak.lanes import LANES, Lane
from tests.soak.provider import Fault

__all__ = ["Clients", "End", "Ended", "Plan", "draw"]

# Far above every time-out of the gateway: who waits so long was forgotten.
_PATIENCE_S: Final = 30.0
_TEXTS: Final = {size: "a word " * (size // 7) for size in (70, 700, 700, 2_400, 20_000)}
_LARGE: Final = "a word " * (400_000 // 7)
# What is never the doing of an upstream or of a client.
_OWN: Final = frozenset({"internal_error", "overload_memory", "queue_full", "queue_timeout", "draining"})
_FAULTS: Final = [each for each in Fault if each not in (Fault.NONE, Fault.HUGE)]
_KEPT: Final = 64


class End(enum.StrEnum):
    """How a request ended."""

    GOOD = "answered"
    EXPECTED = "failed, as it was to"
    LEFT = "its client left"
    KILLED = "its worker was killed"
    BAD = "failed by the gateway"


@dataclass(frozen=True)
class Plan:
    """One request. fault: that the provider is asked for. leaves: its client does, at some time."""

    lane: Lane
    stream: bool
    fault: Fault
    leaves: bool
    text: str

    def bytes(self, key: str) -> bytes:
        """Return it as it goes to the gateway."""
        fault = "" if self.fault is Fault.NONE else self.fault
        request = self.lane.request(
            self.text, stream=self.stream, fault=fault, headers={"authorization": f"Bearer {key}"}
        )
        return request_bytes("POST" if request.body else "GET", request.path, request.body or None, request.headers)


def each_kind(dice: random.Random) -> list[Plan]:
    """Return a request of each kind, in any order: each way with each fault. One by one they come within the hour."""
    text = min(_TEXTS.values(), key=len)
    found = [
        Plan(lane, stream, fault, leaves=False, text=text)
        for lane in LANES
        for stream in (False, True)[: 1 + lane.streams]
        for fault in (Fault.NONE, *_FAULTS)
        if not (fault is Fault.STALL and "mirrored" in lane.name)
    ]
    dice.shuffle(found)
    return found


def draw(dice: random.Random) -> Plan:
    """Return a request: a tenth meets a fault, a twentieth of the clients leave, some are large."""
    lane = dice.choice(LANES)
    stream = lane.streams and dice.random() < 0.5
    fault = dice.choice(_FAULTS) if dice.random() < 0.1 else Fault.NONE
    if fault is Fault.STALL and "mirrored" in lane.name:
        fault = Fault.CUT  # a copy that stalls may last for five minutes
    text = _LARGE if dice.random() < 0.002 else dice.choice(list(_TEXTS.values()))
    return Plan(lane, stream, fault, fault is Fault.NONE and dice.random() < 0.05, text)


@dataclass
class Ended:
    """What came of a plan. request_id: as the gateway told it, "" where it told none."""

    plan: Plan
    end: End
    status: int = 0
    reason: str = ""
    note: str = ""
    request_id: str = ""
    at_s: float = 0.0


@dataclass
class _Reply:
    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    n_bytes: int = 0
    tail: bytes = b""
    is_framed: bool = False


class _LeftError(Exception):
    pass


class _Connection:
    """One connection; asks one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self.is_used = False

    @classmethod
    async def open(cls, port: int) -> _Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 17))

    def close(self, *, reset: bool = False) -> None:
        if reset:
            sock = self._writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def ask(self, asked: bytes, reply: _Reply, leaves_s: float | None) -> None:
        """Fill a reply. Raises _LeftError, ConnectionError, IncompleteReadError, TimeoutError."""
        try:
            async with asyncio.timeout(_PATIENCE_S if leaves_s is None else leaves_s):
                self._writer.write(asked)
                await self._read(reply)
        except TimeoutError:
            if leaves_s is None:
                raise
            raise _LeftError from None

    async def _read(self, reply: _Reply) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        reply.status = int(head[0].split(" ")[1])
        for line in head[1:]:
            name, _, value = line.partition(":")
            reply.fields[name.lower()] = value.strip()
        if reply.fields.get("transfer-encoding") == "chunked":
            while size := int((await self._reader.readuntil(b"\r\n"))[:-2], 16):
                await self._take(reply, size)
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        else:
            await self._take(reply, int(reply.fields.get("content-length", "0")))
        reply.is_framed = True

    async def _take(self, reply: _Reply, n_bytes: int) -> None:
        while n_bytes:
            piece = await self._reader.read(min(n_bytes, 1 << 16))
            if not piece:
                raise ConnectionError("closed early")
            reply.n_bytes += len(piece)
            reply.tail = (reply.tail + piece)[-200:]
            n_bytes -= len(piece)


class Clients:
    """All of them. kills_s: when a worker was killed, monotonic; who was being answered then is no finding."""

    def __init__(self, port: int, key: str, seed: int, kills_s: list[float]) -> None:
        self._port: Final = port
        self._key: Final = key
        self._dice: Final = random.Random(seed)
        self._kills_s: Final = kills_s
        self._free: Final[deque[_Connection]] = deque()
        self._running: Final[set[asyncio.Task[None]]] = set()
        self.ends: Final[Counter[End]] = Counter()
        self.by_fault: Final[Counter[tuple[Fault, End]]] = Counter()
        self.bad: Final[list[Ended]] = []
        self.answered: Final[dict[str, str]] = {}  # lanes of what was answered, by the request's id
        self.n_late = 0  # that were not begun, as too many waited

    @property
    def n_running(self) -> int:
        """Requests that wait for their end."""
        return len(self._running)

    async def run(self, rate: float, until_s: float, most: int = 400) -> None:
        """Begin so many a second until then."""
        next_s = time.monotonic()
        while next_s < until_s:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            next_s += 1 / rate
            if len(self._running) >= most:
                self.n_late += 1
                continue
            self._begin(draw(self._dice))

    async def sweep(self, rate: float) -> None:
        """Ask a request of each kind, so many a second: what is remembered by name is then full."""
        for plan in each_kind(self._dice):
            self._begin(plan)
            await asyncio.sleep(1 / rate)

    def _begin(self, plan: Plan) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(plan))
        self._running.add(task)
        task.add_done_callback(self._over)

    async def finish(self) -> None:
        """Wait for those that run, then close all connections."""
        if self._running:
            await asyncio.wait(self._running)
        while self._free:
            self._free.pop().close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        task.result()  # a bug of the soak's own must not pass for a finding

    async def _ask(self, plan: Plan) -> None:
        began_s = time.monotonic()
        ended = await self._ended(plan, began_s)
        ended.at_s = time.monotonic()
        was_killed = any(began_s <= kill_s + 0.5 and kill_s <= ended.at_s for kill_s in self._kills_s)
        if ended.end is End.BAD and was_killed and (not ended.status or ended.note):
            ended.end = End.KILLED
        self.ends[ended.end] += 1
        self.by_fault[plan.fault, ended.end] += 1
        if ended.end is End.BAD and len(self.bad) < 1000:
            self.bad.append(ended)
        if ended.end is End.GOOD and ended.request_id and plan.fault is Fault.NONE:
            self.answered[ended.request_id] = plan.lane.name

    async def _ended(self, plan: Plan, began_s: float) -> Ended:
        reply = _Reply()
        asked = plan.bytes(self._key)
        leaves_s = self._dice.choice((0.0005, 0.005, 0.05)) if plan.leaves else None
        connection = self._free.popleft() if self._free and self._dice.random() < 0.9 else None
        try:
            connection = connection or await _Connection.open(self._port)
            was_used, connection.is_used = connection.is_used, True
            try:
                await connection.ask(asked, reply, leaves_s)
            except (ConnectionError, asyncio.IncompleteReadError):
                if not was_used or reply.status:
                    raise
                # A kept connection was closed before a byte of the reply: clients ask again on a new one.
                connection.close()
                connection, reply = await _Connection.open(self._port), _Reply()
                connection.is_used = True
                await connection.ask(asked, reply, leaves_s)
        except _LeftError:
            assert connection is not None, "it has asked"
            connection.close(reset=self._dice.random() < 0.5)
            return Ended(plan, End.LEFT, reply.status)
        except TimeoutError:
            assert connection is not None, "it has asked"
            connection.close()
            return Ended(plan, End.BAD, reply.status, note=f"no end within {_PATIENCE_S:g} s")
        except (OSError, asyncio.IncompleteReadError) as exc:
            if connection is not None:
                connection.close()
            return self._judge(plan, reply, str(exc) or type(exc).__name__)
        if reply.fields.get("connection") == "close" or len(self._free) >= _KEPT:
            connection.close()
        else:
            self._free.append(connection)
        return self._judge(plan, reply, "")

    def _judge(self, plan: Plan, reply: _Reply, note: str) -> Ended:
        """Say how it ended. note: why it was cut."""
        reason = reply.fields.get("x-velox-reason", "")
        request_id = reply.fields.get("x-velox-request-id", "")
        found = Ended(plan, End.BAD, reply.status, reason, note, request_id)
        if plan.fault is Fault.NONE or plan.fault is Fault.SLOW:
            if reply.status == 200 and reply.is_framed:
                found.end = End.GOOD
        elif reply.status == 200 and reply.is_framed:
            found.end = End.GOOD  # another one has answered, or the error is in the answer as it came
        elif reply.status and reason not in _OWN:
            found.end = End.EXPECTED  # a whole error, or a reply that was cut for all to see
        if found.end is End.BAD and not note:
            found.note = repr(reply.tail)
        return found
