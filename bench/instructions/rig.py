"""A worker without sockets: its whole way of a request in one process, again and again in the same way.

It is run by bench.instructions (count.py), which says where `velox` is taken from. By itself it says nothing: it is
meant to run under valgrind, and marks where a count begins and ends.

    --time            microseconds a request, or a chunk, by the wall clock
    --frames          frames, calls and objects (frames.py)
    --profile         what is called how often
    --stacks SECONDS  samples of the stack, folded

Knows: how a worker is put together, and what it is asked. Does not know: how a count is taken, or compared.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import logging
import os
import pstats
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.all_on import settings_up_to
from bench.instructions.calibration import calibrate
from bench.instructions.frames import Held, count_calls
from bench.instructions.kinds import Kind, chosen
from bench.instructions.prepared import Replies, Requests, api_keys, whole_end
from bench.instructions.still_loop import StillLoop
from bench.instructions.wires import Client, Http1Client, Http1Origin, Http2Client, Http2Origin, Upstream
from bench.observed import observability_settings
from bench.traffic import KEYS
from velox.accounts.service import Accounts
from velox.accounts.snapshot import KeySnapshot
from velox.accounts.sqlite import SqliteAccounts
from velox.observe.call_series import series_table
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.profiling.folded import folded
from velox.profiling.sampler import Sampler
from velox.profiling.samples import Profile
from velox.runtime.buckets import table_size
from velox.runtime.configuration import ConfigSnapshot
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.ledger.budget_backfill import budget_memory
from velox.runtime.processes.process import return_large_blocks
from velox.runtime.supervisor import SPARES
from velox.runtime.upstreams.members import labels_of, prefix_groups, upstreams_of
from velox.runtime.worker import Worker, WorkerContext
from velox.settings import Settings, load
from velox.shm.answer_ring import AnswerMemory
from velox.shm.object_table import ObjectMemory
from velox.shm.quota_table import QuotaMemory
from velox.shm.record_ring import RecordRing
from velox.shm.segment import Segment
from velox.shm.span_ring import span_rings
from velox.shm.status import GatewayStatus
from velox.shm.upstream_table import UpstreamTable

__all__ = ["Rig", "main", "mark"]

# As in velox/runtime/worker.py: the collector is off the path of a request there, too.
_GC_THRESHOLDS: Final = (50_000, 20, 100)
# Requests that come in one turn of the loop, as on a busy gateway.
AT_ONCE: Final = 8
_TURNS: Final = 10  # of the loop, after which everything has gone as far as it goes
_MOST_RECORDS: Final = 32768  # nobody takes them out
_SPANS_BYTES: Final = 2**27  # nor these
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_HZ: Final = 500  # more than the kernel's clock gives
# Requests before any count: until the interpreter has specialised what it runs, and the gateway has seen each of 100
# callers often enough to know which lines of a head change (with 1,280 requests it had not).
_WARM_UP: Final = {"equal": 200, "real": 1920, "hostile": 320}


def settings_of(kind: Kind, ledger: str = "", environment: Mapping[str, str] = _NOTHING) -> Settings:
    """Return what the bench's gateway runs with: keys, a limit, metrics; and a key for its upstream.

    ledger: the folder of what is kept, where anything is. environment: settings beside these.
    """
    kept = {} if not kind.keeps else {"VELOX_LEDGER": ledger}
    if kind.all_on:
        kept = settings_up_to(kind.all_on, api_keys(kind), Path(ledger))
    if kind.observes:
        kept = observability_settings(kind.observes)
    if kind.keeps in ("budgets", "managed keys"):
        rules = [{"per": per, "tokens": 10**12, "window": "month"} for per in ("gateway", "key")]
        kept["VELOX_BUDGETS"] = json.dumps(rules)
    if kind.keeps == "managed keys":
        kept |= {"VELOX_MANAGED_KEYS": "on", "VELOX_API_KEYS": ""}
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
            "VELOX_API_KEYS": api_keys(kind),
            "VELOX_ACCESS_LOG": "off",
            "OPENAI_API_KEY": "sk-bench-upstream",
            **kept,
            **environment,
        },
        cores=1,
        memory_bytes=0,
    )


class Rig:
    """One worker on a loop of its own, and who talks to it."""

    def __init__(
        self,
        kind: Kind,
        *,
        environment: Mapping[str, str] = _NOTHING,
        origin: Callable[..., asyncio.BaseTransport] | None = None,
    ) -> None:
        """environment: settings beside the usual ones. origin: makes another upstream's end of a connection."""
        self._kind: Final = kind
        self._environment: Final = environment
        make_origin = origin or (Http2Origin if kind.upstream == "http2" else Http1Origin)
        self._loop: Final = StillLoop(lambda protocol: make_origin(protocol, self._loop, self._upstream))
        self._upstream: Final = Upstream(self._loop)
        self._requests: Final = Requests(kind)
        self._replies: Final = Replies(kind)
        self._loop.set_exception_handler(_give_up)
        asyncio.set_event_loop(self._loop)
        self._n_left = 0
        self._n_open = 0
        self._done: asyncio.Future[None] | None = None
        self._listener: Final = socket.socket()
        self._channel: Final = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe: Final = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._serving: Final = self._loop.create_task(self._serve(kind))
        self._clients: list[Client] = []
        self._loop.run_until_complete(self._connect())

    def _serve(self, kind: Kind) -> Any:
        """Put a worker together as the supervisor does; return its life."""
        # The ring stays mapped when its file is gone.
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_of(kind, folder, self._environment)
            records = RecordRing(Path(folder, "0.ring"), _MOST_RECORDS) if settings.ledger else None
            return self._worker(settings, records, folder).run()

    def _worker(self, settings: Settings, records: RecordRing | None, folder: str) -> Worker:
        segment = Segment(1, CELLS, spares=SPARES)
        table = UpstreamTable(segment.blocks)
        table.enroll(labels_of(upstreams_of(settings, None)), groups=prefix_groups(settings))
        keys = KeyWatch(
            settings, GatewayStatus(segment), WorkerMetrics(segment.other_metrics()), logging.getLogger("bench")
        )
        if settings.managed_keys:
            _make_keys(folder)
            keys.look(time.monotonic())
        context = WorkerContext(
            slot=0,
            block=0,
            settings=settings,
            sockets=[self._listener],
            others_sockets={},
            channel=self._channel[1],
            notify=self._pipe[1],
            segment=segment,
            quotas=QuotaMemory(table_size(settings), segment.blocks),
            records=records,
            spans=span_rings(1, _SPANS_BYTES)[0] if settings.traces is not None else None,
            budgets=budget_memory(settings, segment.blocks) if settings.budgets else None,
            upstreams=table,
            series=series_table(segment.blocks),
            objects=ObjectMemory(1024, 1, segment.blocks),
            answers=AnswerMemory(1 << 20, 64, 1, segment.blocks),
            cache=AnswerMemory(1 << 20, 64, 1, segment.blocks),
            joins=None,
            leases=None,
            keys=keys,
            configuration=ConfigSnapshot(),
            certificates=None,
            sim_origin=None,
            # Under a counter all reads take long, and would become short; and all requests of a turn but the first one
            # would wait for the next turns.
            read_clock=lambda: 1.0,
            share_s=3600.0,
        )
        return Worker(context, self._loop)

    async def _connect(self) -> None:
        while self._loop.make_protocol is None:
            await asyncio.sleep(0)
        if self._kind.client == "http2":
            client = self._client(Http2Client)
            client.begin()
            await asyncio.sleep(0)
            self._clients = [client] * AT_ONCE
        else:
            self._clients = [self._client(Http1Client) for _ in range(AT_ONCE)]
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # the pool's connections are there, and warm

    def _client(self, make: Callable[..., Any]) -> Any:
        assert self._loop.make_protocol is not None
        protocol = self._loop.make_protocol()
        client = make(protocol, self._loop, whole_end(self._kind), self._answered)
        protocol.connection_made(client)
        return client

    def prepare(self, n_requests: int) -> None:
        """Encode what so many requests and replies take, so that run() does not."""
        self._prepared(self._requests.take(n_requests), n_requests)

    def prepare_these(self, requests: Sequence[bytes]) -> None:
        """As prepare(), of requests that were encoded elsewhere."""
        self._prepared(iter(requests), len(requests))

    def _prepared(self, requests: Iterator[Any], n_requests: int) -> None:
        for client in self._clients:
            client.requests = requests
        self._upstream.replies = self._replies.take(n_requests)

    def run(self, n_requests: int, n_chunks: int) -> None:
        """Send so many requests that were prepared, some at once. n_chunks: of each answer, if it is a stream."""
        self._n_left, self._upstream.n_chunks = n_requests, n_chunks
        self._done = self._loop.create_future()
        self._loop.call_soon(self._ask)
        self._loop.run_until_complete(self._done)

    def hold(self, before: Callable[[], None], look: Callable[[], None]) -> None:
        """Send a round of requests that was prepared: before(), and look() while the gateway waits for all answers."""
        self._upstream.hold()
        before()
        self._loop.call_soon(self._look_later, _TURNS, look)
        self.run(AT_ONCE, self._kind.chunks)

    def _look_later(self, turns: int, look: Callable[[], None]) -> None:
        if turns:
            self._loop.call_soon(self._look_later, turns - 1, look)
            return
        look()
        self._upstream.release()

    def _ask(self) -> None:
        self._n_left -= AT_ONCE
        self._n_open = AT_ONCE
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


def _make_keys(folder: str) -> None:
    """Make the callers' keys by the service that the API makes them by, and write them down as the ledger does."""
    store = SqliteAccounts(Path(folder))
    accounts = Accounts(store)
    for at, key in enumerate(KEYS):
        accounts.create_key({"name": f"bench-{at}", "key": key}, "bench")
    KeySnapshot(Path(folder)).turn(store)
    store.close()


def _give_up(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End at once: a request that is not answered as it should be would be waited for without end."""
    error = context.get("exception")
    print(f"{context.get('message')}: {error}", file=sys.stderr, flush=True)
    os._exit(3)


def mark() -> None:
    """Divide the count here: count.py has valgrind look for this call, which nothing else makes."""
    os.getpriority(os.PRIO_PROCESS, 0)


@dataclass(frozen=True, slots=True)
class Run:
    """Work to count. prepare: makes what the work needs, before each time it is done."""

    prepare: Callable[[], object]
    work: Callable[[], object]

    def __call__(self) -> None:
        self.prepare()
        self.work()


def runs(kind: Kind, rig: Rig | None = None) -> tuple[Run, Run, Run]:
    """Return what warms up, and two runs of which the second one has `kind.units` more of what is counted."""
    if kind.translation:
        # Here, as what is loaded moves the other counts: CPython keeps the methods of all types in one small table.
        from bench.instructions.translations import work_of

        work = work_of(kind)
        return _repeated(work, 16), _repeated(work, kind.units), _repeated(work, 2 * kind.units)
    if not kind.client:
        return _calibration(20), _calibration(kind.units), _calibration(2 * kind.units)
    rig = rig or Rig(kind)

    def asked(n_requests: int, n_chunks: int) -> Run:
        return Run(partial(rig.prepare, n_requests), partial(rig.run, n_requests, n_chunks))

    if kind.counts_chunks:
        n_chunks = kind.units // AT_ONCE
        return asked(AT_ONCE, 60), asked(AT_ONCE, n_chunks), asked(AT_ONCE, 2 * n_chunks)
    return asked(_WARM_UP[kind.heads], kind.chunks), asked(kind.units, kind.chunks), asked(2 * kind.units, kind.chunks)


def _calibration(n: int) -> Run:
    return Run(lambda: None, partial(calibrate, n))


def _repeated(work: Callable[[], object], n: int) -> Run:
    def again() -> None:
        for _ in range(n):
            work()

    return Run(lambda: None, again)


def timed(kind: Kind, repeats: int = 12) -> float:
    """Return microseconds a unit: the least of many runs."""
    warm_up, one, two = runs(kind)
    warm_up()
    least = [float("inf"), float("inf")]
    for _ in range(repeats):
        for at, run in enumerate((one, two)):
            run.prepare()
            began_s = time.perf_counter()
            run.work()
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


def _print_frames(kind: Kind, most: int = 25) -> None:
    """Print what one kind takes in frames, calls and objects; and its frames by how often they are entered."""
    rig = Rig(kind) if kind.client else None
    warm_up, one, two = runs(kind, rig)
    warm_up()
    counts = []
    for run in (one, two):
        run.prepare()
        counts.append(count_calls(run.work))
    less, more = counts
    print(kind.name)
    print(f"{(more.n_frames - less.n_frames) / kind.units:8.1f}  frames")
    print(f"{(more.n_c_calls - less.n_c_calls) / kind.units:8.1f}  calls of C")
    print(f"{(more.n_constructors - less.n_constructors) / kind.units:8.1f}  constructors among the frames")
    if rig is not None and not kind.counts_chunks:
        rig.prepare(2 * AT_ONCE)
        held = Held()
        rig.hold(held.before, held.look)
        print(f"{held.tracked.total() / AT_ONCE:8.1f}  tracked objects in flight")
        print(f"{held.n_ours / AT_ONCE:8.1f}  of them of velox")
        print(f"{held.blocks / AT_ONCE:8.1f}  blocks of memory in flight")
        for name, n in held.tracked.most_common():
            if n >= AT_ONCE:
                print(f"{n / AT_ONCE:12.1f}  {name}")
    for name, n in (more.frames - less.frames).most_common(most):
        print(f"{n / kind.units:12.2f}  {name}")


def _profile(kind: Kind) -> None:
    """Print the functions of one kind by their own time, with the number of calls a unit."""
    warm_up, one, _ = runs(kind)
    warm_up()
    one.prepare()
    profile = cProfile.Profile()
    profile.runcall(one.work)
    print(f"{kind.name}: {kind.units} units")
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions.rig")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--frames", action="store_true")
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
        if options.frames:
            _print_frames(kind)
            continue
        if options.time:
            print(f"{timed(kind):8.2f} µs  {kind.name}")
            continue
        warm_up, one, two = runs(kind)
        warm_up()
        for run in (one, two):
            run.prepare()
            gc.collect()  # else a collection may fall into one of the two runs, as it comes
            mark()
            run.work()
            mark()
    sys.stdout.flush()
    if not (options.time or options.frames or options.profile or options.stacks):
        # Not a proper end: what follows is no part of any count, and under valgrind it takes its time.
        os._exit(0)


if __name__ == "__main__":
    main()
