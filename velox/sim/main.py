"""`velox sim`: the simulator as a process of its own.

Knows: its command line, signals. Does not know: what the simulator answers, how lines are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import Callable
from typing import get_args

import uvloop

from velox.settings.parse import address, duration
from velox.sim.options import DownAs, LoadMetrics, SimOptions
from velox.sim.server import start

__all__ = ["add_arguments", "read_options", "run"]

_MAX_WAIT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the simulator's options to a parser; read_options() reads what it returns."""
    default = SimOptions()
    _add_listener(parser, default)
    _add_pace(parser.add_argument_group("pace"), default)
    _add_failures(parser.add_argument_group("failures"), default)


def _add_listener(parser: argparse.ArgumentParser, default: SimOptions) -> None:
    add = parser.add_argument
    add(
        "--listen",
        default=f"{default.host}:{default.port}",
        metavar="HOST:PORT",
        help="port 0 lets the kernel choose (default: %(default)s)",
    )
    add("--name", default=default.name, help="sent with every reply as x-sim-name (default: no such header)")
    add(
        "--models",
        default=",".join(default.models),
        metavar="A,B",
        help="the models that are listed, any may be asked (default: %(default)s)",
    )
    add(
        "--load-metrics",
        choices=get_args(LoadMetrics),
        default=default.load_metrics,
        help="whose names GET /metrics has (default: %(default)s)",
    )
    add("--cert", metavar="FILE", help="certificate chain in PEM; with --key the listener speaks TLS")
    add("--key", metavar="FILE", help="private key in PEM")
    add(
        "--http2",
        action=argparse.BooleanOptionalAction,
        default=default.http2,
        help="offer HTTP/2 beside HTTP/1.1: by ALPN with TLS, else by prior knowledge (default: yes)",
    )
    add("--seed", type=int, metavar="N", help="repeat the same ids and the same failures in every run")
    add(
        "--grace",
        default="5s",
        metavar="TIME",
        help="what running answers get at SIGTERM (default: %(default)s)",
    )


def _add_pace(group: argparse._ArgumentGroup, default: SimOptions) -> None:
    add = group.add_argument
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
        "--prefill-rate",
        type=float,
        default=default.prefill_rate,
        metavar="N",
        help="tokens a second of the prompt, but for cached ones, before the first of the answer; 0: prompts take no"
        " time (default: %(default)g)",
    )
    add(
        "--prefix-cache",
        type=int,
        default=default.prefix_cache,
        metavar="TOKENS",
        help="how much of the beginnings of prompts is kept; 0: nothing (default: %(default)s)",
    )


def _add_failures(group: argparse._ArgumentGroup, default: SimOptions) -> None:
    add = group.add_argument
    add(
        "--error-rate",
        type=float,
        default=default.error_rate,
        metavar="SHARE",
        help="share of the POST requests answered with status 500, 0 to 1 (default: %(default)g)",
    )
    add(
        "--slow-rate",
        type=float,
        default=default.slow_rate,
        metavar="SHARE",
        help="share of the answers whose first token comes later (default: %(default)g)",
    )
    add("--slow-by", default="1s", metavar="TIME", help="by so much (default: %(default)s)")
    add(
        "--stall-rate",
        type=float,
        default=default.stall_rate,
        metavar="SHARE",
        help="share of the answers that never end (default: %(default)g)",
    )
    add(
        "--stall-after",
        type=int,
        default=default.stall_after,
        metavar="N",
        help="tokens of a stream until it stops; 0: it never begins, as all else that stalls (default: %(default)s)",
    )
    add("--flap", metavar="UP,DOWN", help="two times: up, then down, and again, such as 20s,5s (default: always up)")
    add(
        "--flap-as",
        choices=get_args(DownAs),
        default=default.flap_as,
        help="how it is down: a status for all, their connections reset, or the port closed (default: %(default)s)",
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
        prefill_rate=arguments.prefill_rate,
        prefix_cache=arguments.prefix_cache,
        error_rate=arguments.error_rate,
        slow_rate=arguments.slow_rate,
        slow_by_s=wait(arguments.slow_by),
        stall_rate=arguments.stall_rate,
        stall_after=arguments.stall_after,
        flap=_read_flap(arguments.flap),
        flap_as=arguments.flap_as,
        cert_file=arguments.cert,
        key_file=arguments.key,
        http2=arguments.http2,
        models=tuple(name.strip() for name in arguments.models.split(",")),
        name=arguments.name,
        load_metrics=arguments.load_metrics,
        seed=arguments.seed,
        grace_s=wait(arguments.grace),
    )


def _read_flap(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    wait = duration(0, _MAX_WAIT_S)
    up, comma, down = text.partition(",")
    if not comma:
        raise ValueError("--flap: expected two times, for example 20s,5s")
    return wait(up.strip()), wait(down.strip())


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
