"""Worker processes for the tests of profiles: real forks on uvloop, with nothing but an agent and some work."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import uvloop

from velox.profiling.remote import ProfileAgent


async def busy_work() -> None:
    """Keep a loop busy, but let it turn."""
    while True:
        sum(range(5000))
        await asyncio.sleep(0)


def start_worker(sock: socket.socket, work: Callable[[], Awaitable[None]]) -> int:
    """Fork a process that is a worker as far as profiles go; return its id once it listens."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def main() -> None:
            ProfileAgent(sock, asyncio.get_running_loop()).start()
            os.write(tell, b"1")
            await work()

        try:
            uvloop.run(main())
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    os.close(tell)
    return pid


def stop_worker(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # the test did it
