"""A load that goes on whatever happens to the gateway: requests at a fixed rate, streams and WebSockets all the time.

Nothing is tried again: a connection that is refused, reset or closed without an answer is a failure, and so is an
answer that is cut or has another status than 200. Idle connections are used again, as SDKs do.

Knows: HTTP/1.1 as a client, the realtime API, what came of each exchange. Does not know: what is done to the gateway.

    with SteadyLoad(velox.port, rate=100, streams=10, websockets=3) as load:
        ...
    assert load.failures == []
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Final, Self

import websockets.asyncio.client

from tests.patience import PATIENCE_S

__all__ = ["SteadyLoad"]

_BODY: Final = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
# After that SDKs no longer trust an idle connection; below the gateway's own time for one.
_IDLE_S: Final = 2.0
_WEBSOCKET_TURNS: Final = 4
_PAUSE_S: Final = 0.02


class CutError(Exception):
    """The connection ended within an exchange, or before its answer."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader: Final = reader
        self.writer: Final = writer
        self.idle_since_s = 0.0


class SteadyLoad:
    """See the top of this file. done: exchanges by kind. failures: of each what it was, and what went wrong."""

    def __init__(self, port: int, *, rate: float, streams: int = 0, websockets: int = 0) -> None:
        self._port: Final = port
        self._rate: Final = rate
        self._n_streams: Final = streams
        self._n_websockets: Final = websockets
        self._idle: Final[list[_Connection]] = []
        self._stopping = False
        self._thread: Final = threading.Thread(target=lambda: asyncio.run(self._run()), name="steady load")
        self.done: Final[Counter[str]] = Counter()
        self.failures: Final[list[str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping = True
        self._thread.join(4 * PATIENCE_S)
        assert not self._thread.is_alive(), "an exchange has not ended"

    async def _run(self) -> None:
        tasks = [asyncio.ensure_future(self._again("stream", self._stream)) for _ in range(self._n_streams)]
        tasks += [asyncio.ensure_future(self._again("websocket", self._websocket)) for _ in range(self._n_websockets)]
        running: set[asyncio.Future[None]] = set()
        due_s = time.monotonic()
        while not self._stopping:
            task = asyncio.ensure_future(self._noted("request", self._request))
            running.add(task)
            task.add_done_callback(running.discard)
            due_s += 1 / self._rate
            await asyncio.sleep(due_s - time.monotonic())
        await asyncio.gather(*tasks, *running)
        for connection in self._idle:
            connection.writer.close()

    async def _again(self, kind: str, work: object) -> None:
        while not self._stopping:
            await self._noted(kind, work)

    async def _noted(self, kind: str, work: object) -> None:
        assert callable(work)
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await work()
        except Exception as exc:
            self.failures.append(f"{kind} after {time.monotonic() - began_s:.2f} s: {exc!r}")
        else:
            self.done[kind] += 1

    async def _request(self) -> None:
        while self._idle and time.monotonic() - self._idle[0].idle_since_s > _IDLE_S:
            self._idle.pop(0).writer.close()
        connection = self._idle.pop() if self._idle else await self._connect()
        await self._exchange(connection, _BODY, b'"finish_reason"')

    async def _stream(self) -> None:
        await self._exchange(await self._connect(), {**_BODY, "stream": True}, b"data: [DONE]")

    async def _connect(self) -> _Connection:
        return _Connection(*await asyncio.open_connection("127.0.0.1", self._port))

    async def _exchange(self, connection: _Connection, asked: object, end: bytes) -> None:
        """Ask on a connection; it is idle after that, unless it was said to end."""
        body = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: velox.test\r\ncontent-length: {len(body)}\r\n"
        connection.writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        try:
            answer = (await connection.reader.readuntil(b"\r\n\r\n")).lower()
            text = await _body(connection.reader, answer)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            connection.writer.close()
            raise CutError(f"{exc!r} on a connection that was {'idle' if connection.idle_since_s else 'new'}") from exc
        if b"connection: close" in answer:
            connection.writer.close()
        else:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        assert answer.startswith(b"http/1.1 200 "), answer + text
        assert end in text, f"it is cut: {text[-200:]!r}"

    async def _websocket(self) -> None:
        url = f"ws://127.0.0.1:{self._port}/v1/realtime?model=m"
        async with websockets.asyncio.client.connect(url) as ws:
            assert json.loads(await ws.recv())["type"] == "session.created"
            for _ in range(_WEBSOCKET_TURNS):
                await ws.send('{"type": "response.create"}')
                while json.loads(await ws.recv())["type"] != "response.done":
                    pass
                await asyncio.sleep(_PAUSE_S)


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head:
        n_bytes = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")
        )
        return await reader.readexactly(n_bytes)
    text = b""
    while n_bytes := int(await reader.readuntil(b"\r\n"), 16):
        text += (await reader.readexactly(n_bytes + 2))[:-2]
    with contextlib.suppress(asyncio.IncompleteReadError):
        await reader.readexactly(2)
    return text
