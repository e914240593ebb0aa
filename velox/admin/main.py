"""The admin process: its own loop, until it is told to leave.

Knows: loop and signals of this process. Does not know: how it was started, or what it serves.
"""

from __future__ import annotations

import asyncio
import signal
import socket

import uvloop

from velox.admin.server import AdminApp, serve

__all__ = ["run"]


def run(sock: socket.socket, app: AdminApp) -> None:
    """Serve on a listening socket until SIGTERM, then return at once; running profiles are given up.

    SIGINT is ignored: Ctrl-C reaches the whole process group, and while workers drain somebody has to say so.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_told(sock, app))


async def _serve_until_told(sock: socket.socket, app: AdminApp) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    server = await serve(sock, app)
    await told.wait()
    server.close()
    # Connections still open end with the loop: the runner cancels what is left.
