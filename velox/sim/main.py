"""`velox sim`: the simulator as a process of its own.

Knows: its command line, signals. Does not know: what the simulator answers, how lines are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import Callable

import uvloop

from velox.settings.parse import address, duration
from velox.sim.options import SimOptions
from velox.sim.server import start

__all__ = ["add_arguments", "read_options", "run"]

_MAX_WAIT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the simulator's options to a parser; read_options() reads what it returns."""
    default = SimOptions()
    listen, models = f"{default.host}:{default.port}", ",".join(default.models)
    add = parser.add_argument
    add(
        "--listen",
        default=listen,
        metavar="HOST:PORT",
        help="port 0 lets the kernel choose (default: %(default)s)",
    )
    add("--ttft", default="50ms", metavar="TIME", help="time to the first token (default: %(default)s)")
    add(
        "--token-rate",
        type=float,
        default=default.token_rate,
        metavar="N",
        help="tokens a second after the first, 0: as fast as the client reads (default: %(default)g)",
    )
    add(
        "--tokens",
        type=int,
        default=default.tokens,
        metavar="N",
        help="length of an answer (default: %(default)s)",
    )
    add(
        "--capacity",
        type=int,
        default=default.capacity,
        metavar="N",
        help="answers made at once at full speed, more wait in line; 0: any number (default: %(default)s)",
    )
    add("--batch-slowdown", action="store_true", help="beyond --capacity none waits, but all get slower in proportion")
    add(
        "--error-rate",
        type=float,
        default=default.error_rate,
        metavar="SHARE",
        help="share of the POST requests answered with status 500, 0 to 1 (default: %(default)g)",
    )
    add("--cert", metavar="FILE", help="certificate chain in PEM; with --key the listener speaks TLS")
    add("--key", metavar="FILE", help="private key in PEM")
    add(
        "--http2",
        action=argparse.BooleanOptionalAction,
        default=default.http2,
        help="offer HTTP/2 beside HTTP/1.1: by ALPN with TLS, else by prior knowledge (default: yes)",
    )
    add("--models", default=models, metavar="A,B", help="the models that are listed (default: %(default)s)")
    add("--seed", type=int, metavar="N", help="repeat the same ids and the same errors in every run")
    add(
        "--grace",
        default="5s",
        metavar="TIME",
        help="what running answers get at SIGTERM (default: %(default)s)",
    )


def read_options(arguments: argparse.Namespace) -> SimOptions:
    """Return the options that were given. Raises ValueError saying what is wrong with them."""
    listen = address(arguments.listen)
    if listen.kind != "tcp":
        raise ValueError("--listen: the simulator listens on HOST:PORT only")
    wait = duration(0, _MAX_WAIT_S)
    return SimOptions(
        host=listen.host,
        port=listen.port,
        ttft_s=wait(arguments.ttft),
        token_rate=arguments.token_rate,
        tokens=arguments.tokens,
        capacity=arguments.capacity,
        batch_slowdown=arguments.batch_slowdown,
        error_rate=arguments.error_rate,
        cert_file=arguments.cert,
        key_file=arguments.key,
        http2=arguments.http2,
        models=tuple(name.strip() for name in arguments.models.split(",")),
        seed=arguments.seed,
        grace_s=wait(arguments.grace),
    )


def run(options: SimOptions, announce: Callable[[str], None], *, sock: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then let running answers end; a second signal ends the process at once.

    announce: gets one line once the listener is open. sock: see server.start(), whose errors this raises too.
    """
    uvloop.run(_serve(options, announce, sock))


async def _serve(options: SimOptions, announce: Callable[[str], None], sock: socket.socket | None) -> None:
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for signum in signals:
        loop.add_signal_handler(signum, told_to_stop.set)
    server = await start(options, sock=sock)
    announce(f"velox sim listening on {server.url}")
    await told_to_stop.wait()
    for signum in signals:
        loop.remove_signal_handler(signum)
    await server.close(options.grace_s)
