"""`velox status`: one look at a running gateway, for a person or a program.

Knows: the pages of the admin listener that tell of it, and exit codes of the LSB ("Init Script Actions"). Does not
know: where the listener is.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from velox.admin.call import ASKS, AdminCaller, AdminCallError, ApiRefusalError
from velox.runtime.commands.budgets import all_budgets
from velox.runtime.commands.figures import Reading, parse_figures
from velox.runtime.processes.pid_file import Found
from velox.settings.loading import AdminPlace

__all__ = [
    "CODE_DEAD",
    "CODE_STOPPED",
    "Status",
    "ask_status",
    "near_end",
    "span",
    "status_code",
    "status_lines",
    "status_record",
]

# Program is dead and its pid file exists; program is not running; status is unknown.
CODE_DEAD: Final = 1
CODE_STOPPED: Final = 3
CODE_UNKNOWN: Final = 4
_TIMEOUT_S: Final = 10.0
# Of a budget: less than this part is left.
_NEAR_END: Final = 0.1
_MOST_BUDGETS: Final = 10


class Upstream(NamedTuple):
    """state: `in`, or what is wrong with some of its origins."""

    name: str
    state: str
    in_flight: int


class NearBudget(NamedTuple):
    """A budget of which little is left. spent: the part of it that is spent or held."""

    whose: str
    budget: str
    spent: float


class Status(NamedTuple):
    """What is known. pid: of its first process, 0: unknown. is_running: False: nobody is there.

    why: why nothing more is known; then the rest is empty. version: with its build. listening: addresses for clients.
    ready: whether it can serve. reasons: what is wrong. serving, workers: those that serve, and all.
    """

    is_running: bool
    pid: int
    why: str = ""
    version: str = ""
    build: str = ""
    uptime_s: float = 0.0
    listening: Sequence[str] = ()
    admin: str = ""
    ready: bool = False
    reasons: Sequence[str] = ()
    serving: int = 0
    workers: int = 0
    in_flight: int = 0
    queued: int = 0
    clients: int = 0
    upstreams: Sequence[Upstream] = ()
    budgets_near_end: Sequence[NearBudget] = ()


def ask_status(found: Found, place: AdminPlace | None) -> Status:
    """Return what the gateway says of itself. found: its pid file. place: of its admin listener; None: it has none.

    A gateway that no pid file names is asked as well: it may run in the foreground, or below systemd.
    """
    if place is None or place.address is None:
        return Status(bool(found.pid), found.pid, "its admin listener is off" if found.pid else "")
    try:
        with contextlib.closing(AdminCaller(place.address, place.token, place.cert, _TIMEOUT_S)) as caller:
            about = _json(caller, "/gateway")
            status, body = caller.ask("GET", "/readyz")
            ready = json.loads(body)
            figures = parse_figures(_page(caller, "/metrics").decode("utf-8", "replace"), time.monotonic())
            try:
                budgets = all_budgets(caller, {})
            except ApiRefusalError:
                budgets = []
    except AdminCallError as exc:
        return Status(bool(found.pid), found.pid, str(exc))
    except _RefusedError as exc:
        return Status(is_running=True, pid=found.pid, why=str(exc))
    except (ValueError, LookupError, TypeError):
        return Status(bool(found.pid), found.pid, f"what answers at {place.address} is no admin listener of Velox")
    return Status(
        is_running=True,
        pid=found.pid or int(about["pid"]),
        version=about["version"],
        build=about["build"],
        uptime_s=figures.total("velox_uptime_seconds"),
        listening=tuple(about["listening"]),
        admin=str(place.address),
        ready=status == 200,
        reasons=tuple(dict.fromkeys([*ready.get("reasons", ()), *about["problems"]])),
        serving=int(figures.total("velox_worker_up")),
        workers=len(figures.by("velox_worker_up", "worker")),
        in_flight=int(figures.total("velox_inflight_requests")),
        queued=int(figures.total("velox_queue_depth")),
        clients=int(figures.total("velox_client_connections")),
        upstreams=tuple(_upstreams(figures)),
        budgets_near_end=tuple(near_end(budgets)),
    )


def status_code(status: Status, found: Found) -> int:
    """Return the exit code. found: the pid file. 0: it runs; 1: its process is dead; 3: it does not run; 4: unknown."""
    if status.is_running:
        return 0
    return CODE_DEAD if found.is_there else CODE_STOPPED


def status_record(status: Status) -> dict[str, Any]:
    """Return it for programs."""
    return {
        **status._asdict(),
        "upstreams": [each._asdict() for each in status.upstreams],
        "budgets_near_end": [each._asdict() for each in status.budgets_near_end],
    }


def status_lines(status: Status, found: Found, pid_file: str) -> list[str]:
    """Return it for a person. pid_file: that was looked at."""
    if not status.is_running:
        stale = f"; the process that {pid_file} names is gone" if found.is_there else f": nobody has {pid_file}"
        return [f"velox does not run{stale}", *([status.why] if status.why else [])]
    pid = f"process {status.pid}" if status.pid else "a process without a pid file"
    if status.why:
        return [f"velox runs: {pid}", f"nothing more is known: {status.why}"]
    reasons = status.reasons
    lines = [
        f"velox {status.version} ({status.build}) runs: {pid}, up {span(status.uptime_s)}",
        f"{'ready' if status.ready else 'NOT READY'}{'' if not reasons else ', but' if status.ready else ':'}",
        *(f"  {reason}" for reason in reasons),
        f"listening on {', '.join(status.listening)}; admin on {status.admin}",
        f"workers: {status.serving} of {status.workers} serve",
        f"requests: {status.in_flight} in flight, {status.queued} queued, of {status.clients} connections",
    ]
    lines += [f"upstream {each.name}: {each.state}, {each.in_flight} in flight" for each in status.upstreams]
    lines += [
        f"budget near its end: {each.whose}, {each.budget}: {each.spent:.0%} spent" for each in status.budgets_near_end
    ]
    return lines


def span(value_s: float) -> str:
    """Return a time as a person says it: its two largest units."""
    words: list[str] = []
    left = round(value_s)
    for seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        n, left = divmod(left, seconds)
        if n or (unit == "s" and not words):
            words.append(f"{n} {unit}")
    return " ".join(words[:2])


class _RefusedError(Exception):
    """The listener is the gateway's, and tells this command nothing."""


def _page(caller: AdminCaller, path: str) -> bytes:
    status, body = caller.ask("GET", path)
    if status in (401, 403):
        raise _RefusedError(ASKS if status == 401 else "its admin listener refuses this command (403)")
    if status != 200:
        raise ValueError(status)
    return body


def _json(caller: AdminCaller, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_page(caller, path))
    return found


def _upstreams(figures: Reading) -> list[Upstream]:
    found = []
    for name in figures.by("velox_upstream_state", "upstream"):
        where = {"upstream": name}
        states = figures.by("velox_upstream_state", "state", where)
        wrong = ", ".join(state for state, n in states.items() if n and state != "in")
        running = int(figures.total("velox_upstream_inflight_requests", where))
        shown = "".join(each if each.isprintable() else "?" for each in name)
        found.append(Upstream(shown, wrong or "in use", running))
    return found


def near_end(budgets: Sequence[Mapping[str, Any]]) -> list[NearBudget]:
    found = []
    for each in budgets:
        limit, left = float(each["limit"]), float(each["left"])
        if limit and left <= limit * _NEAR_END:
            whose = f"{each['scope']} {each['name']}".strip()
            found.append(NearBudget(whose, f"{each['budget']} per {each['window']}", 1 - left / limit))
    return sorted(found, key=lambda near: -near.spent)[:_MOST_BUDGETS]
