"""One worker's upstreams and gateway on real upstreams, whose configuration a test replaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from tests.e2e.recording import RecordingUpstream
from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import Composed
from tests.sockets.gateway.core_attempts import BODY
from tests.sockets.gateway.core_gateway import FakeClient, request_head
from velox.gateway.request.exchange import Exchange
from velox.gateway.upstreams.member import Member
from velox.heads import Header, WebSocketOffer
from velox.runtime.upstreams.members import MemberMaker
from velox.settings import Settings, load
from velox.types import ANYONE

__all__ = ["Bed", "bed", "lines_of", "settings_of", "upstream"]


def upstream(name: str, *servers: RecordingUpstream, more: str = "") -> str:
    """Return a line of `upstreams`. more: other fields of it."""
    origins = ", ".join(f'"http://127.0.0.1:{server.port}"' for server in servers)
    return f"  - {{name: {name}, origin: [{origins}], http2: off, keys: [env:KEY]{more}}}"


def settings_of(folder: Path, upstreams: list[str], routes: list[str], **env: str) -> Settings:
    """Return settings of a file with these lines."""
    file = folder / "velox.yaml"
    file.write_text("\n".join(["upstreams:", *upstreams, "routes:", *(f"  - {{{line}}}" for line in routes), ""]))
    return load({"VELOX_CONFIG": str(file), "KEY": "sk-a", "KEY2": "sk-b", **env}, cores=1)


class Bed(Composed):
    """One with real sockets."""

    def replace(self, settings: Settings) -> None:
        """Work with other settings."""
        self.enroll(settings)
        self.gateway.routing = self.manager.replace(settings)

    def tick(self) -> None:
        """Do what a worker does now and then."""
        self.gateway.sweep(self.loop.time())
        self.manager.tick(self.loop.time())

    def member(self, name: str) -> Member:
        """Return the first member of an upstream."""
        return next(member for member in self.manager.members if member.name == name)

    def running(self) -> list[int]:
        """Return the requests in flight by row, of all that ever had one."""
        return [self.table.inflight(row) for row, _, _ in self.table.labels()]

    def ask(self, *headers: Header, offer: WebSocketOffer | None = None) -> tuple[FakeClient, Exchange]:
        """Send a request that is not refused at once; return its client, and what it became."""
        client, exchange = self._submit(headers, offer)
        assert exchange is not None
        return client, exchange

    async def answer(self, *headers: Header) -> bytes:
        """Send a request; return all of its reply."""
        client, _ = self._submit(headers)
        async with asyncio.timeout(PATIENCE_S):
            await client.finished.wait()
        return client.written

    def _submit(
        self, headers: Sequence[Header], offer: WebSocketOffer | None = None
    ) -> tuple[FakeClient, Exchange | None]:
        client, head = FakeClient(), request_head(b"GET" if offer else b"POST", more=headers, offer=offer)
        return client, self.gateway.submit(client, head, None if offer else BODY, ANYONE)

    async def until_warm(self) -> None:
        """Wait until each member has a connection that idles."""
        await self.eventually(lambda: all(member.pool.is_warm for member in self.manager.members))

    async def eventually(self, condition: Callable[[], object]) -> None:
        """Tick until it is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.tick()
                await asyncio.sleep(0.002)


@contextlib.contextmanager
def bed(folder: Path, settings: Settings, maker: type[MemberMaker] = MemberMaker) -> Iterator[Bed]:
    """A worker for the block, whose log is the file `log`. maker: of its members."""
    log_fd = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    made = Bed(settings, None, log_fd, maker=maker)
    made.manager.start()
    try:
        yield made
    finally:
        made.manager.close()
        os.close(log_fd)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return what was logged."""
    return [orjson.loads(line) for line in (folder / "log").read_bytes().splitlines()]
