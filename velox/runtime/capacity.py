"""What one worker can hold, and what it does when memory gets short.

Knows: rlimits, /proc, the allocator's trim, a worker's share of a limit, and every place where a peer can make a worker
hold bytes. Does not know: how descriptors are planned, what the limits of memory mean (policy/), or how a worker is
replaced (supervisor.py).

The memory bound is not a forecast: it holds when every possible client does its worst at the same time. To grant less,
lower VELOX_MAX_CONNECTIONS, VELOX_MAX_INFLIGHT or VELOX_BODY_BUDGET, or let VELOX_MEMORY_SOFT and VELOX_MEMORY_HARD
stop it before. docs/memory.md explains each row; a test drives a worker to all of them at once and compares.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from velox.policy.resources import DescriptorPlan, GarbageWatch, MemoryState, MemoryWatch, plan_descriptors
from velox.providers.rows import PROVIDERS
from velox.runtime.buckets import table_size
from velox.runtime.on_demand import has_adapter
from velox.settings import Settings
from velox.settings.machine import most_watched_workers
from velox.shm.answer_ring import ring_bytes
from velox.shm.object_table import object_bytes
from velox.shm.status import WorkerStatus
from velox.types import NO_RATES, Scope

__all__ = [
    "LEASE_MANAGER_BYTES",
    "MemoryBound",
    "MemoryGuard",
    "MemoryRow",
    "ResidentMemory",
    "descriptors_of",
    "memory_bound",
    "memory_of",
    "open_files_limit",
    "raise_open_files",
    "share",
    "shortages",
]


def share(total: int, n_workers: int, slot: int) -> int:
    """Return the part of `total` that worker `slot` gets; the parts add up to it, and differ by at most one."""
    return total // n_workers + (1 if slot < total % n_workers else 0)


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Where there is no limit: more than any worker opens.
_UNLIMITED: Final = 1 << 30


def raise_open_files() -> None:
    """Raise the soft limit on open files to the hard one; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # a sandbox may forbid it: the soft limit is what counts then


def open_files_limit() -> int:
    """Return how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


class ResidentMemory:
    """This process's resident memory, read from one file that stays open."""

    def __init__(self) -> None:
        self._statm: Final = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._libc: Final = ctypes.CDLL(None)

    def read(self) -> int:
        """Return bytes, with the pages that are shared with the supervisor. Takes about 2 us."""
        # proc(5): size and resident set, in pages.
        return int(os.pread(self._statm, 64, 0).split(b" ", 2)[1]) * _PAGE_BYTES

    def trim(self) -> None:
        """Give what the allocator holds for later back to the kernel; a C library without that does nothing."""
        trim = getattr(self._libc, "malloc_trim", None)
        if trim is not None:
            trim(0)

    def collect(self) -> float:
        """Free what is in reference cycles; return the seconds that it took."""
        began_s = time.perf_counter()
        gc.collect()
        return time.perf_counter() - began_s

    def close(self) -> None:
        """Close the file."""
        os.close(self._statm)


def descriptors_of(settings: Settings, slot: int, limit: int) -> DescriptorPlan:
    """Return the connections that worker `slot` may have, with `limit` open files."""
    # HTTP/1.1 needs a connection for each exchange, and each member keeps some warm.
    warm = sum(len(entry.origins) * entry.connections for entry in settings.upstreams)
    upstream = share(settings.max_inflight, settings.workers, slot) + warm
    return plan_descriptors(limit, share(settings.max_connections, settings.workers, slot), upstream)


def shortages(settings: Settings, limit: int, container_bytes: int) -> Iterator[str]:
    """Yield a line for each thing that the machine grants less of than the settings ask for.

    limit: open files. container_bytes: memory; 0: without a limit.
    """
    clients, plan = share(settings.max_connections, settings.workers, 0), descriptors_of(settings, 0, limit)
    if plan.clients < clients:
        yield (
            f"{limit} open files are allowed (ulimit -n): a worker takes {plan.clients} connections of clients,"
            f" not {clients}"
        )
    most = most_watched_workers(container_bytes)
    is_default = settings.origins["VELOX_MEMORY_SOFT"] == settings.origins["VELOX_MEMORY_HARD"] == "default"
    if container_bytes and settings.workers > most and is_default:
        advise = f"set VELOX_WORKERS to {most} or less, or give it more" if most else "give it more"
        yield (
            f"the container has {container_bytes >> 20} MiB of memory, less than 128 MiB for each of"
            f" {settings.workers} workers, so VELOX_MEMORY_SOFT and VELOX_MEMORY_HARD are off and the kernel may kill"
            f" the gateway: {advise}"
        )


def memory_of(settings: Settings, limit: int) -> MemoryBound:
    """Return the bound for the worker with the largest shares, the first one."""
    plan = descriptors_of(settings, 0, limit)
    inflight = share(settings.max_inflight, settings.workers, 0)
    queued = share(settings.queue_depth, settings.workers, 0)
    return memory_bound(settings, plan.clients, plan.upstream, inflight, queued)


_KIB: Final = 1024
_MIB: Final = 1024 * 1024

# Interpreter, modules, shared memory: 33 MiB measured, 45 with dialects, clouds, TLS and a ledger; and what the
# allocator keeps for later.
_PROCESS: Final = 48 * _MIB
# A TLS context with the system's authorities: 0.8 MiB measured, of 144 of them. All members that show the same
# certificate share two (net/upstream/tls.py), and each has two of its own without them: 13 KiB measured.
_AUTHORITIES: Final = 1 * _MIB
_CONTEXTS: Final = 2 * 16 * _KIB
# Heads that were remembered, with their plans and templates (protocol/heads/memory.py, gateway/front/intake.py,
# forward.py): 27 MiB measured, of 9,000 callers that each send 60 fields of their own to eight upstreams.
_REMEMBERED: Final = 40 * _MIB
# Protocol, transport, reader, timers of a connection.
_CONNECTION: Final = 8 * _KIB
# What may come ahead of its turn before reading stops (net/client/http1.py), and the read that goes over it
# (net/client/plain_socket.py, net/client/tls.py). A head that is not whole is less than that.
_AHEAD: Final = 64 * _KIB
_READ: Final = 64 * _KIB
# OpenSSL's own of a connection, with a record each way; and its two BIOs, which grow by a third ahead and never shrink.
_TLS: Final = 80 * _KIB + 2 * 88 * _KIB
# A reply that is not taken: the client's write buffer, and what was under way from the upstream (docs/flow-control.md).
_UNSENT: Final = 64 * _KIB
_UPSTREAM_READ: Final = 128 * _KIB
_UPSTREAM_TLS_READ: Final = 256 * _KIB
# The loop's own, of a reply whose chunks have come alone until then (net/upstream/http1.py); uvloop has it fixed.
_UPSTREAM_LARGE_READ: Final = 250 * _KIB
# Over HTTP/2 all streams of a connection together (client/reply_buffer_budget.py), beside the transport's 64 KiB and
# the slice that goes over it; and what one read brings on top. An upstream that speaks HTTP/2 can't be held at once: a
# window of each stream comes whatever is held, a whole one of so many of them, and a narrow one of the others.
_REPLIES_HTTP2: Final = 2 * _MIB
_STREAMS: Final = 100
_STREAMS_AHEAD: Final = 16
_NARROW_WINDOW: Final = 16 * _KIB
# And a connection: a window of bodies that wait for room in the budget, frames and tables
# (docs/http2-ingress.md).
_HTTP2: Final = 1024 * _KIB + 256 * _KIB
# A request that waits or runs: a head of 32 KiB as read, as fields, and as sent; its task. 105 KiB measured.
_EXCHANGE: Final = 112 * _KIB
# What is kept of a reply for its usage (protocol/usage/reader.py): 128 KiB, over-allocated by an eighth.
_USAGE: Final = 144 * _KIB
# A body that comes in pieces grows by an eighth ahead of time (CPython's bytearray).
_GROWTH: Final = 9 / 8
# Of each upload the HTTP/2 engine holds one slice as a copy.
_SLICE: Final = 64 * _KIB
# WebSockets of the Responses API that a worker answers itself (sockets.py, responses_socket.py): the
# conversations of all of them, and requests of each beside each other.
_CONVERSATIONS: Final = 256 * _MIB
_TURNS: Final = 16
# What is kept of relayed WebSockets for their traces (observe/traces/socket_capture.py): 32 MiB, over-allocated.
_SOCKET_CONTENT: Final = 36 * _MIB
# A connection to the upstream: its objects; over HTTP/2 an engine and a write buffer with one turn's slices.
_UPSTREAM: Final = 16 * _KIB
_UPSTREAM_HTTP2: Final = 320 * _KIB
_STREAMS_UPSTREAM: Final = 100  # fewer than most upstreams allow
# A key: as an entry, and as who has it; 560 bytes measured. All processes share them, and each counts them as its own.
_KEY: Final = 768
# The table of quotas: its rows (shm/quota_table.py), all of which count in each worker that touched them. A worker
# keeps the limits of callers and models at hand (gateway/limits/limiter.py); one with a limit takes 3.2 KiB, with two
# 5.0 KiB, measured; limits whose set was forgotten are kept as well.
_LINE: Final = 64
_KEPT: Final = 8192
# What a worker counts for itself, where the table has no room (shm/quota_table.py).
_ALONE: Final = 1 * _KIB
_MOST_ALONE: Final = 4096
_KEPT_EACH: Final = 3 * _KIB // 2
_KEPT_LIMIT: Final = 2 * _KIB
# Copies for mirrors (mirror.py): so many, and so many bytes of bodies, each perhaps with another model in it.
_MIRRORED: Final = 256
_MIRRORED_BODIES: Final = 2 * 64 * _MIB
# No worker's: the lease manager, 38 MiB measured, and what it notes of each row that has a lease.
LEASE_MANAGER_BYTES: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One place: `count` of it, `each_bytes` at most."""

    what: str
    each_bytes: int
    count: int

    @property
    def n_bytes(self) -> int:
        """Return the most that all of them hold."""
        return self.each_bytes * self.count


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """All places of one worker."""

    rows: tuple[MemoryRow, ...]

    @property
    def n_bytes(self) -> int:
        """Return the bound."""
        return sum(row.n_bytes for row in self.rows)

    def __str__(self) -> str:
        rows = sorted((row for row in self.rows if row.n_bytes), key=lambda row: -row.n_bytes)
        parts = ", ".join(f"{row.what} {_shown(row.n_bytes)}" for row in rows)
        return f"at most {_shown(self.n_bytes)} a worker: {parts}"


def memory_bound(settings: Settings, clients: int, upstream: int, inflight: int, queued: int) -> MemoryBound:
    """Add up what one worker can be made to hold.

    clients, upstream: connections (policy/resources.py). inflight, queued: the worker's share of what may
    run and wait. The kernel's socket buffers are not in it: about 0.3 MB of a reply for each client that reads nothing.
    """
    tls = settings.tls_cert_file is not None
    kinds = [(entry.http2, origin.scheme == "https") for entry in settings.upstreams for origin in entry.origins]
    per_client = _CONNECTION + _AHEAD + _READ + (_TLS if tls else 0)
    window = settings.upstream_stream_window_bytes
    is_always_http1 = all(http2 == "off" or (http2 == "auto" and not is_tls) for http2, is_tls in kinds)
    streams = clients * _STREAMS if settings.listen_http2 else clients
    tunnels = min(-(-settings.max_tunnels // settings.workers), clients)
    turns = (_TURNS - 1) * tunnels if _answers_sockets(settings) else 0  # beside a first one
    exchanges = min(streams + turns, inflight + queued)
    passes_by = any(not is_tls and http2 != "on" for http2, is_tls in kinds)
    under_way = max(_UPSTREAM_LARGE_READ if passes_by else _UPSTREAM_READ, window)
    reply = _UNSENT + under_way
    if settings.listen_http2:
        windows = _STREAMS_AHEAD * window + (_STREAMS - _STREAMS_AHEAD) * _NARROW_WINDOW
        more = _UPSTREAM_READ if is_always_http1 else windows
        reply = max(reply, 2 * _UNSENT + _REPLIES_HTTP2 + more)
    records = any(is_tls and http2 != "on" for http2, is_tls in kinds)
    body = round(settings.body_budget_bytes * _GROWTH)
    rows = [
        MemoryRow("the process itself", _PROCESS, 1),
        MemoryRow("cache of heads", _REMEMBERED, 1),
        MemoryRow("request bodies", body, 1),
        MemoryRow("data that clients send ahead", per_client, clients),
        MemoryRow("unread replies", reply, clients),
        MemoryRow("waiting and running requests", _EXCHANGE, exchanges),
        MemoryRow("WebSockets", 2 * (_UNSENT + _READ), tunnels),
        MemoryRow("conversations of WebSockets", _CONVERSATIONS, min(turns, 1)),
        MemoryRow("more replies of WebSockets", under_way, min(turns, inflight)),
    ]
    if settings.traces is not None and settings.traces_content:
        rows.append(MemoryRow("content of WebSockets", _SOCKET_CONTENT, 1))
    if (
        settings.ledger
        or any(rule.rates.tpm for rule in settings.limit_rules)
        or any(key.terms.rates.tpm for key in settings.api_keys)
    ):
        rows.append(MemoryRow("replies whose usage is read", _USAGE, exchanges))
    if settings.listen_http2:
        rows.append(MemoryRow("HTTP/2 with clients", _HTTP2, clients))
    if records:
        rows.append(MemoryRow("held TLS records of upstreams", _UPSTREAM_TLS_READ, min(upstream, exchanges)))
    if is_always_http1:
        rows.append(MemoryRow("connections to the upstream", _UPSTREAM, min(upstream, exchanges)))
    else:
        n_uploads = min(exchanges, settings.body_budget_bytes // _SLICE)
        rows.append(MemoryRow("slices of uploads", _SLICE, n_uploads))
        n_warm = sum(entry.connections * len(entry.origins) for entry in settings.upstreams)
        n_connections = min(upstream, n_warm + -(-exchanges // _STREAMS_UPSTREAM))
        rows.append(MemoryRow("connections to the upstream", _UPSTREAM_HTTP2, n_connections))
    secured = [entry for entry in settings.upstreams for origin in entry.origins if origin.scheme == "https"]
    trusting = [entry for entry in secured if entry.ca_file is None]
    shared = {(http2, entry.cert_file, entry.key_file) for entry in trusting for http2 in (entry.http2, "off")}
    rows.append(MemoryRow("authorities that upstreams are checked by", _AUTHORITIES, len(shared)))
    rows.append(MemoryRow("TLS contexts of upstreams", _CONTEXTS, len(secured)))
    rows.append(MemoryRow("keys of clients", _KEY, len(settings.api_keys)))
    has_places = sum(max(1, len(entry.keys)) for entry in settings.upstreams) > 1
    if has_places or len({key.caller_name for key in settings.api_keys}) > 1:
        # Two blocks a worker: a process that replaces another one writes its own.
        n_bytes = object_bytes(settings.object_rows, settings.workers, 2 * settings.workers)
        rows.append(MemoryRow("the table of objects", n_bytes, 1))
    if settings.kept_bytes and any(map(has_adapter, settings.upstreams)):
        n_bytes = ring_bytes(settings.kept_bytes, settings.kept_answers, settings.workers, 2 * settings.workers)
        rows.append(MemoryRow("kept answers", n_bytes, 1))
    if settings.cache_bytes and any(route.cache is not None for route in settings.routes):
        n_bytes = ring_bytes(settings.cache_bytes, settings.cache_answers, settings.workers, 2 * settings.workers)
        rows.append(MemoryRow("answers of the cache", n_bytes, 1))
    if settings.join_bytes and any(route.join is not None for route in settings.routes):
        rows.append(MemoryRow("replies of joined calls", settings.join_bytes, 1))
    rows += _of_limits(settings)
    if any(target.naming is not None for route in settings.routes for target in route.targets):
        # The body as it came stays for another attempt; two attempts at a time may name two models.
        n_attempts = 1 + any(route.hedge is not None for route in settings.routes)
        rows.append(MemoryRow("bodies with a renamed model", body, n_attempts))
    if any(route.mirror is not None for route in settings.routes):
        rows.append(MemoryRow("copies for mirrors", _EXCHANGE + _MIRRORED_BODIES // _MIRRORED, _MIRRORED))
    return MemoryBound(tuple(rows))


def _answers_sockets(settings: Settings) -> bool:
    """Say whether WebSockets of the Responses API are answered by the worker."""
    return any(has_adapter(entry) and not PROVIDERS[entry.provider].sockets for entry in settings.upstreams)


def _of_limits(settings: Settings) -> list[MemoryRow]:
    """Return what limits of keys and models take; those of the gateway alone are a few rows."""
    rules = [rule for rule in settings.limit_rules if rule.rates != NO_RATES]
    own = any(key.terms.rates != NO_RATES for key in settings.api_keys)
    if not own and all(rule.scope is Scope.GATEWAY for rule in rules):
        return []
    # Blocks: two of each worker, and one of the process that is none.
    row_bytes = _LINE * (1 + -(-2 * (2 * settings.workers + 1) // 8)) + 8
    n_rows = table_size(settings).rows_used(has_models=any(rule.is_open_ended for rule in rules))
    n_limits = 3 * own + sum(
        bool(n) for rule in rules for n in (rule.rates.rpm, rule.rates.tpm, rule.rates.concurrency)
    )
    return [
        MemoryRow("the table of limits", row_bytes, n_rows),
        MemoryRow("limits without a bucket", _ALONE, _MOST_ALONE),
        MemoryRow("cached limits of callers and models", _KEPT_EACH + (n_limits + 1) * _KEPT_LIMIT, _KEPT),
    ]


def _shown(n_bytes: int) -> str:
    if n_bytes >= 1 << 30:
        return f"{n_bytes / (1 << 30):.1f} GiB"
    return f"{-(-n_bytes // _MIB)} MiB"


# Trimming takes 0.6 ms for each MiB that it gives back (the kernel clears pages), so it is not done at every look, and
# never while there is memory enough: what the allocator keeps it will need again.
_LOOKS_PER_TRIM: Final = 5


class _Memory(Protocol):
    def read(self) -> int: ...

    def trim(self) -> None: ...

    def collect(self) -> float: ...


class MemoryGuard:
    """Of one worker. refuse: new requests, from now on or no longer. wake: the supervisor."""

    def __init__(
        self,
        watch: MemoryWatch,
        memory: _Memory,
        status: WorkerStatus,
        logger: logging.Logger,
        *,
        refuse: Callable[[bool], None],
        wake: Callable[[], None],
    ) -> None:
        self._watch: Final = watch
        self._memory: Final = memory
        self._status: Final = status
        self._logger: Final = logger
        self._refuse: Final = refuse
        self._wake: Final = wake
        self._garbage: Final = GarbageWatch()
        self._state = MemoryState.FINE
        self._n_looks = 0
        self._next_trim = 0
        self._is_logged = False

    def __repr__(self) -> str:
        return f"<MemoryGuard {self._state.name}>"

    def look(self, *, is_idle: bool) -> None:
        """Read, judge, act; four times a second. is_idle: nothing runs that could give memory back."""
        self._n_looks += 1
        n_bytes = self._memory.read()
        is_over = self._watch.is_over(n_bytes)
        if self._garbage.is_due(n_bytes, self._n_looks, is_idle=is_idle, is_over=is_over):
            took_s = self._memory.collect()
            n_bytes = self._memory.read()
            self._garbage.collected(n_bytes, self._n_looks, took_s)
        if is_over and self._n_looks >= self._next_trim:
            # Perhaps it is only what the allocator keeps for later.
            self._next_trim = self._n_looks + _LOOKS_PER_TRIM
            self._memory.trim()
            n_bytes = self._memory.read()
        self._status.resident_bytes = n_bytes
        state = self._watch.look(n_bytes, is_idle=is_idle)
        if state is self._state:
            return
        self._state = state
        short = state is not MemoryState.FINE
        if short != self._status.refuses:
            self._status.refuses = short
            self._refuse(short)
        if short and not self._is_logged:
            # Once: around the limit it goes up and down. The metrics show how long it lasts.
            self._is_logged = True
            self._logger.warning(
                "memory limit reached, new requests are refused: %(memory_mib)d MiB (VELOX_MEMORY_*)",
                {"memory_mib": n_bytes >> 20},
            )
        if state is MemoryState.FULL:
            # Not taken back: a worker that was over the hard limit once is replaced, even if it gets better.
            self._status.wants_successor = True
            self._wake()
