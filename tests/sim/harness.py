"""What the simulator's tests share: a simulator for the time of a test, and its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

import h2.config
import h2.connection
import h2.events
import openai
import uvloop

from velox_sim.options import SimOptions
from velox_sim.server import SimServer, start

# No waiting, and three tokens to an answer.
FAST: Final = SimOptions(port=0, ttft_s=0, token_rate=0, tokens=3, seed=1)
POST: Final = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")]


def with_sim(options: SimOptions, talk: Callable[[SimServer], Awaitable[None]]) -> None:
    """Run `talk` with a simulator."""

    unhandled: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        async with await start(options) as sim:
            await talk(sim)

    uvloop.run(asyncio.wait_for(main(), 20))
    assert not unhandled


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time-out is the whole test's."""
    while not holds():
        await asyncio.sleep(0.001)


def with_sdk(options: SimOptions, talk: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    """Run `talk` with an SDK client of a simulator; nothing is retried."""

    async def connected(sim: SimServer) -> None:
        async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="sk-x", max_retries=0) as client:
            await talk(client)

    with_sim(options, connected)


class Peer:
    """A client on the `h2` library that gives no window back unless told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2: Final = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.bodies: Final[dict[int, bytes]] = {}
        self.ended: Final[set[int]] = set()
        self.resets: Final[dict[int, int]] = {}
        self.has_goaway = False
        self._reader: Final = reader
        self._writer: Final = writer

    @classmethod
    async def connect(cls, sim: SimServer) -> Peer:
        """Connect and send the preface."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", sim.port))
        peer.h2.initiate_connection()
        peer.flush()
        return peer

    def flush(self) -> None:
        """Write what the engine has to say."""
        self._writer.write(self.h2.data_to_send())

    def ask(self, *, stream: bool = True) -> int:
        """Send a completion request; return the id of its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        body = json.dumps({"model": "any", "prompt": "", "stream": stream}).encode()
        self.h2.send_headers(stream_id, [*POST, (b":path", b"/v1/completions")])
        self.h2.send_data(stream_id, body, end_stream=True)
        self.flush()
        return stream_id

    async def read(self) -> bool:
        """Read once; False at the end of the connection."""
        data = await self._reader.read(1 << 20)
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.has_goaway = True
        self.flush()
        return bool(data)

    async def read_until(self, holds: Callable[[], bool]) -> None:
        """Read until a condition holds."""
        while not holds():
            assert await self.read(), "the connection ended early"

    async def read_frame(self) -> tuple[int, int, bytes]:
        """Read one frame past the library, which can't read on after a GOAWAY; return type, flags, payload."""
        head = await self._reader.readexactly(9)
        return head[3], head[4], await self._reader.readexactly(int.from_bytes(head[:3], "big"))

    def close(self) -> None:
        """Leave."""
        self._writer.close()
