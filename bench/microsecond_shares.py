"""What a sample of a gateway's CPU time is counted as: a system call, a library, a part of the interpreter, a step.

Knows: how perf writes a stack, how velox/profiling does, and which of Velox's modules does which step of a request
(docs/life-of-a-request.md). Does not know: how samples are taken, or how long anything takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["KERNEL", "LOOP", "OURS", "Place", "by_place", "by_step", "kernel_places", "place_of", "step_of"]


class Place(NamedTuple):
    """What the processor was in. group: "kernel", "loop", or "ours": the interpreter, and what our Python calls."""

    group: str
    name: str


KERNEL: Final = "kernel"
LOOP: Final = "loop"
OURS: Final = "ours"

# Some entries jump on instead of calling, and are not on the stack: then what they jump to is.
_SYSCALL: Final = re.compile(r"(?:__x64_sys|__arm64_sys|ksys|__sys|do)_(\w+)$")
_CALLS: Final = {
    "read": "reading from sockets",
    "readv": "reading from sockets",
    "recvfrom": "reading from sockets",
    "recvmsg": "reading from sockets",
    "write": "writing to sockets",
    "writev": "writing to sockets",
    "sendto": "writing to sockets",
    "sendmsg": "writing to sockets",
    "epoll_wait": "waiting for events (epoll)",
    "epoll_pwait": "waiting for events (epoll)",
    "epoll_ctl": "other system calls",
}
_OTHER_CALLS: Final = "other system calls"
_ENTRY: Final = "in and out of the kernel, interrupts"
# A part of a library's path, and what it is.
_LIBRARIES: Final = (
    ("/uvloop/", Place(LOOP, "uvloop and libuv")),
    ("/httptools/", Place(OURS, "httptools (HTTP/1.1 parser)")),
    ("csimdjson", Place(OURS, "simdjson (JSON parser)")),
    ("ngh2", Place(OURS, "ngh2 (HTTP/2)")),
    ("/orjson/", Place(OURS, "orjson")),
    ("atomicshm", Place(OURS, "atomicshm (shared counters)")),
    ("libcrypto", Place(OURS, "OpenSSL")),
    ("libssl", Place(OURS, "OpenSSL")),
    ("[vdso]", Place(OURS, "the clock (vdso)")),
    ("libc.so", Place(OURS, "libc (memory, strings, locks)")),
    ("libc-", Place(OURS, "libc (memory, strings, locks)")),
    ("_asyncio", Place(OURS, "asyncio (tasks, futures)")),
)
# Of the interpreter, as far as a build without debug symbols names its functions.
_INTERPRETER: Final = (
    (re.compile(r"_?PyEval_"), Place(OURS, "interpreter: evaluation of bytecode")),
    (re.compile(r"gc_|_?PyGC|visit_|subtract_refs|move_unreachable"), Place(OURS, "interpreter: garbage collector")),
    (
        re.compile(r"_?PyObject_(?:Malloc|Free|Calloc|Realloc|GC_|New)|PyMem_|_PyObject_GC|pymalloc"),
        Place(OURS, "interpreter: memory"),
    ),
    (
        re.compile(r"\w*(?:[Vv]ectorcall|PyObject_Call|PyFunction|method_call|PyFrame)"),
        Place(OURS, "interpreter: calls"),
    ),
)
_OBJECTS: Final = Place(OURS, "interpreter: attributes, dictionaries, bytes, numbers and all else")
_FRAME: Final = re.compile(r"^\s*[0-9a-f]+ (.*) \((.*)\)$")

_ACCOUNT: Final = "account, metrics"
# Which module does which step; the first that the name begins with. "module.Class.function" where a module does two.
_STEPS: Final = (
    ("accept, decode", "velox.net.client.plain_socket"),
    ("accept, decode", "velox.net.client.http1.RequestReader"),
    ("accept, decode", "velox.net.client.body_budget"),
    ("accept, decode", "velox.net.client.preface_detector"),
    ("accept, decode", "velox.net.client.http1.ClientHttp1Connection._"),
    ("accept, decode", "velox.net.client.http1.ClientHttp1Connection.data_received"),
    ("accept, decode", "velox.net.client.http1.ClientHttp1Connection.budget"),
    ("accept, decode", "velox.policy.pace"),
    ("accept, decode", "velox.protocol.http1.request."),
    ("accept, decode", "velox.protocol.http1.request_head"),
    ("accept, decode", "velox.protocol.heads.fields"),
    ("accept, decode", "velox.protocol.heads.target"),
    ("accept, decode", "velox.protocol.http1.chunked"),
    ("who, and where to (check of the head)", "velox.gateway.front.intake.Gateway.check_head"),
    ("who, and where to (check of the head)", "velox.gateway.auth"),
    ("who, and where to (check of the head)", "velox.gateway.access.endpoints."),
    ("who, and where to (check of the head)", "velox.policy.retries.deadline"),
    (_ACCOUNT, "velox.gateway.front.intake.Gateway.account"),
    ("queue", "velox.gateway.front.intake"),
    ("queue", "velox.policy.queue.fair_queue"),
    ("queue", "velox.policy.queue.queue_wait"),
    ("read the body", "velox.protocol.json.body"),
    ("read the body", "velox.gateway.access.access"),
    ("read the body", "velox.gateway.request.exchange.Exchange.read"),
    ("gate (limits)", "velox.gateway.limits.limiter"),
    ("gate (limits)", "velox.gateway.limits.reservation"),
    ("gate (limits)", "velox.gateway.reply.headers.RateHeaders"),
    ("gate (limits)", "velox.gateway.limits.lease_wait"),
    ("gate (limits)", "velox.gateway.request.exchange.Exchange.admit"),
    ("gate (limits)", "velox.policy.limits.quota"),
    ("gate (limits)", "velox.policy.limits.token_bucket"),
    ("gate (limits)", "velox.policy.limits.estimate"),
    ("gate (limits)", "velox.shm."),
    ("where (route, plan, balance, health)", "velox.gateway.cluster.routing"),
    ("where (route, plan, balance, health)", "velox.gateway.cluster.group"),
    ("where (route, plan, balance, health)", "velox.gateway.upstreams.member"),
    ("where (route, plan, balance, health)", "velox.policy.balance"),
    ("where (route, plan, balance, health)", "velox.policy.health"),
    ("where (route, plan, balance, health)", "velox.policy.health.breaker"),
    ("where (route, plan, balance, health)", "velox.policy.routes.match"),
    ("where (route, plan, balance, health)", "velox.policy.queue.concurrency"),
    ("where (route, plan, balance, health)", "velox.policy.routes.split"),
    ("lease of a connection", "velox.net.upstream.pool"),
    ("lease of a connection", "velox.gateway.request.exchange.Exchange.lease"),
    ("upstream: encode, send", "velox.gateway.translation.forward"),
    ("upstream: encode, send", "velox.providers"),
    ("upstream: encode, send", "velox.protocol.http1.write"),
    ("upstream: encode, send", "velox.net.upstream.http1.Http1Connection.open"),
    ("upstream: encode, send", "velox.net.upstream.http2.Http2Connection.open"),
    ("upstream: encode, send", "velox.net.upstream.http2.Http2Connection._flush"),
    ("upstream: encode, send", "velox.protocol.http2.ngh2_engine.Outbox"),
    ("upstream: receive, decode", "velox.net.upstream"),
    ("upstream: receive, decode", "velox.protocol.http1.response"),
    ("upstream: receive, decode", "velox.protocol.http2.engine"),
    ("client over HTTP/2", "velox.net.client.http2"),
    ("reply", "velox.gateway.reply.reply"),
    ("reply", "velox.net.client"),
    ("reply", "velox.protocol.sse"),
    ("reply", "velox.protocol.heads.date"),
    ("reply", "velox.gateway.reply.error_body"),
    (_ACCOUNT, "velox.gateway.recorder"),
    (_ACCOUNT, "velox.observe"),
    ("forward (exchange, attempt)", "velox.gateway"),
    ("forward (exchange, attempt)", "velox.policy"),
)
_ELSE: Final = "all else (the loop's callbacks, tasks)"
_OUTSIDE: Final = "bench."


def place_of(stack: Sequence[tuple[str, str]]) -> Place:
    """Return what a sample of perf was in. stack: (symbol, file), the function that ran first."""
    symbol, file = stack[0]
    if file.startswith("[") and file != "[vdso]":
        is_call = False
        for name, _ in reversed(stack):
            found = _SYSCALL.match(name)
            if found and found[1] in _CALLS:
                return Place(KERNEL, _CALLS[found[1]])
            is_call |= name.startswith(("__x64_sys_", "__arm64_sys_"))
        return Place(KERNEL, _OTHER_CALLS if is_call else _ENTRY)
    for part, place in _LIBRARIES:
        if part in file:
            return place
    if "python" in file.rpartition("/")[2]:
        for pattern, place in _INTERPRETER:
            if pattern.match(symbol):
                return place
        return _OBJECTS
    return Place(OURS, "other libraries")


def by_place(script: Iterable[str]) -> Counter[Place]:
    """Count the samples of `perf script -F ip,sym,dso`: stacks, each ended by an empty line."""
    places: Counter[Place] = Counter()
    stack: list[tuple[str, str]] = []
    for line in (*script, ""):
        found = _FRAME.match(line)
        if found:
            stack.append((found[1].partition("+0x")[0], found[2]))
        elif stack and not line.strip():
            places[place_of(stack)] += 1
            stack = []
    return places


def step_of(frames: Sequence[str]) -> str:
    """Return the step of a stack of Python, the outermost function first; "" for what the bench itself did.

    What runs in a library counts for the nearest of our functions that called it.
    """
    for frame in reversed(frames):
        if frame.startswith(_OUTSIDE):
            # The rig's loop is the outermost; what it plays of a client or an upstream is innermost, and is not ours.
            return "" if ".wires." in frame else _ELSE
        if frame.startswith("velox."):
            return next((step for step, name in _STEPS if frame.startswith(name)), _ELSE)
    return _ELSE


def by_step(folded: Iterable[str]) -> dict[str, float]:
    """Return the share of each step in what is ours, from folded stacks (velox/profiling/folded.py)."""
    spent: Counter[str] = Counter()
    for line in folded:
        stack, _, cost = line.rpartition(" ")
        spent[step_of(stack.split(";")[1:])] += int(cost)
    del spent[""]
    total = spent.total() or 1
    ordered = dict.fromkeys([*(step for step, _ in _STEPS if step != _ACCOUNT), _ACCOUNT, _ELSE])
    return {step: spent[step] / total for step in ordered if spent[step]}


def kernel_places(places: Mapping[Place, int]) -> list[Place]:
    """Return those that are not ours, the kernel's first, the largest first."""
    outside = [place for place in places if place.group != OURS]
    return sorted(outside, key=lambda place: (place.group != KERNEL, -places[place]))
