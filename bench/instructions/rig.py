"""A worker without sockets: its whole way of a request in one process, again and again in the same way.

It is run by bench.instructions (count.py), which says where `velox` is taken from. By itself it says nothing: it is
meant to run under valgrind, and marks where a count begins and ends. --time prints microseconds a request, or a chunk,
by the wall clock; --profile what is called how often; --stacks SECONDS samples of the stack, folded.

Knows: how a worker is put together, and what it is asked. Does not know: how a count is taken, or compared.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import logging
import os
import pstats
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.instructions.calibration import calibrate
from bench.instructions.kinds import Kind, chosen
from bench.instructions.still_loop import StillLoop
from bench.instructions.wires import Client, Http1Client, Http1Origin, Http2Client, Http2Origin
from bench.payloads import API_KEY, chat_body
from velox.observe.series import CELLS
from velox.profiling.flamegraph import folded
from velox.profiling.sampler import Sampler
from velox.profiling.samples import Profile
from velox.runtime.config_board import ConfigBoard
from velox.runtime.key_watch import KeyWatch
from velox.runtime.members import labels_of, prefix_groups, upstreams_of
from velox.runtime.process import return_large_blocks
from velox.runtime.slots import SPARES
from velox.runtime.worker import Worker
from velox.settings import Settings, load
from velox.shm.quota_memory import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus
from velox.shm.upstream_table import UpstreamTable

__all__ = ["Rig", "main", "mark"]

# As in velox/runtime/worker.py: the collector is off the path of a request there, too.
_GC_THRESHOLDS: Final = (50_000, 20, 100)
# Requests that come in one turn of the loop, as on a busy gateway.
_AT_ONCE: Final = 8
_HZ: Final = 500  # more than the kernel's clock gives
_WARM_UP: Final = 25  # rounds; until the interpreter has specialised what it runs


def settings_of(kind: Kind) -> Settings:
    """Return what the bench's gateway runs with: a key, a limit, metrics; and a key for its upstream."""
    return load(
        {
            "VELOX_LISTEN": "127.0.0.1:0",
            "VELOX_WORKERS": "1",
            "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9",
            "VELOX_UPSTREAM_HTTP2": "on" if kind.upstream == "http2" else "off",
            "VELOX_LISTEN_HTTP2": "on" if kind.client == "http2" else "off",
            "VELOX_EGRESS_POOL_CONNECTIONS": "2",
            "VELOX_RATE_LIMIT_RPM": "60000000",
            "VELOX_RATE_LIMIT_BURST": "1000000",
            "VELOX_API_KEYS": API_KEY,
            "VELOX_ACCESS_LOG": "off",
            "OPENAI_API_KEY": "sk-bench-upstream",
        },
        cores=1,
        memory_bytes=0,
    )


class Rig:
    """One worker on a loop of its own, and who talks to it."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Final = kind
        self._n_chunks = 0
        make_origin = Http2Origin if kind.upstream == "http2" else Http1Origin
        self._loop: Final = StillLoop(lambda protocol: make_origin(protocol, self._loop, lambda: self._n_chunks))
        self._loop.set_exception_handler(_give_up)
        asyncio.set_event_loop(self._loop)
        self._n_left = 0
        self._n_open = 0
        self._done: asyncio.Future[None] | None = None
        self._listener: Final = socket.socket()
        self._channel: Final = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe: Final = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._serving: Final = self._loop.create_task(self._serve(settings_of(kind)))
        self._clients: list[Client] = []
        self._loop.run_until_complete(self._connect())

    def _serve(self, settings: Settings) -> Any:
        """Put a worker together as the supervisor does; return its life."""
        segment = Segment(1, CELLS, spares=SPARES)
        table = UpstreamTable(segment.blocks)
        table.enroll(labels_of(upstreams_of(settings, None)), groups=prefix_groups(settings))
        worker = Worker(
            *(0, settings, segment, self._loop),
            block=0,
            quotas=QuotaMemory(settings.limit_buckets, segment.blocks),
            upstreams=table,
            leases=None,
            keys=KeyWatch(settings, GatewayStatus(segment), logging.getLogger("bench")),
            configuration=ConfigBoard(),
            sim_origin=None,
        )
        return worker.run([self._listener], None, self._channel[1], self._pipe[1])

    async def _connect(self) -> None:
        while self._loop.make_protocol is None:
            await asyncio.sleep(0)
        body = chat_body(stream=self._kind.stream)
        if self._kind.client == "http2":
            client = self._client(Http2Client, body)
            client.begin()
            await asyncio.sleep(0)
            self._clients = [client] * _AT_ONCE
        else:
            self._clients = [self._client(Http1Client, body) for _ in range(_AT_ONCE)]
        for _ in range(10):
            await asyncio.sleep(0)  # the pool's connections are there, and warm

    def _client(self, make: Callable[..., Any], body: bytes) -> Any:
        assert self._loop.make_protocol is not None
        protocol = self._loop.make_protocol()
        client = make(protocol, self._loop, body, self._answered)
        protocol.connection_made(client)
        return client

    def run(self, units: int, n_chunks: int = 100) -> None:
        """Ask `units` requests, some at once. n_chunks: of each answer, if it is a stream."""
        self._n_left, self._n_chunks = units, n_chunks
        self._done = self._loop.create_future()
        self._loop.call_soon(self._ask)
        self._loop.run_until_complete(self._done)

    def _ask(self) -> None:
        self._n_left -= _AT_ONCE
        self._n_open = _AT_ONCE
        for client in self._clients:
            client.ask()

    def _answered(self) -> None:
        self._n_open -= 1
        if self._n_open:
            return
        if self._n_left > 0:
            self._loop.call_soon(self._ask)
        else:
            assert self._done is not None
            # Two turns later: what the gateway does after its answer belongs to the request.
            self._loop.call_soon(self._loop.call_soon, self._done.set_result, None)


def _give_up(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End at once: a request that is not answered as it should be would be waited for without end."""
    error = context.get("exception")
    print(f"{context.get('message')}: {error}", file=sys.stderr, flush=True)
    os._exit(3)


def mark() -> None:
    """Divide the count here: count.py has valgrind look for this call, which nothing else makes."""
    os.getpriority(os.PRIO_PROCESS, 0)


def runs(kind: Kind) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """Return what warms up, and two runs of which the second one has `kind.units` more of what is counted."""
    if not kind.client:
        return partial(calibrate, 20), partial(calibrate, kind.units), partial(calibrate, 2 * kind.units)
    rig = Rig(kind)
    if kind.stream:
        n_streams = _AT_ONCE
        n_chunks = kind.units // n_streams
        return (
            partial(rig.run, n_streams, 60),
            partial(rig.run, n_streams, n_chunks),
            partial(rig.run, n_streams, 2 * n_chunks),
        )
    return partial(rig.run, _WARM_UP * _AT_ONCE), partial(rig.run, kind.units), partial(rig.run, 2 * kind.units)


def timed(kind: Kind, repeats: int = 12) -> float:
    """Return microseconds a unit: the least of many runs."""
    warm_up, one, two = runs(kind)
    warm_up()
    least = [float("inf"), float("inf")]
    for _ in range(repeats):
        for at, run in enumerate((one, two)):
            began_s = time.perf_counter()
            run()
            least[at] = min(least[at], time.perf_counter() - began_s)
    return (least[1] - least[0]) / kind.units * 1e6


def _stacks(kind: Kind, seconds: float) -> None:
    """Print the stacks of one kind, sampled as a worker is (velox/profiling), a line each."""
    warm_up, one, _ = runs(kind)
    warm_up()
    sampler = Sampler()
    until_s = time.monotonic() + seconds
    sampler.start(_HZ)
    while time.monotonic() < until_s:
        one()
    samples = sampler.stop()
    sys.stdout.write(folded(Profile({"rig": samples}, (), 0, round(seconds * 1e9), _HZ)))


def _profile(kind: Kind) -> None:
    """Print the functions of one kind by their own time, with the number of calls a unit."""
    warm_up, one, _ = runs(kind)
    warm_up()
    profile = cProfile.Profile()
    profile.runcall(one)
    print(f"{kind.name}: {kind.units} units")
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions.rig")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--stacks", type=float, default=0.0)
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    return_large_blocks()
    for kind in chosen(options.words):
        if options.stacks:
            _stacks(kind, options.stacks)
            continue
        if options.profile:
            _profile(kind)
            continue
        if options.time:
            print(f"{timed(kind):8.2f} µs  {kind.name}")
            continue
        warm_up, one, two = runs(kind)
        warm_up()
        mark()
        one()
        mark()
        two()
        mark()
    sys.stdout.flush()
    # Not a proper end: what follows is no part of any count, and under valgrind it takes its time.
    os._exit(0)


if __name__ == "__main__":
    main()
