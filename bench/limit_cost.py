"""What limits and queue cost a request: each by itself in µs, and as a part of a whole request.

    python -m bench.limit_cost                    # about 2 minutes; writes the table of docs/limits.md
    python -m bench.limit_cost --seconds 1 --dry  # does it run? writes nothing

By themselves: the real classes, called as a worker calls them, in this process; the shared memory is real, too. Medians
of 9 runs, with the least and the greatest, of CPU time: other work on the machine adds to it only through the caches.
Whole requests: `velox serve` with one worker and nginx behind it, CPU time of all its processes for each request of
wrk, without limits and with more and more of them, in rounds side by side.

Knows: how limiter and queue are called for one request. Does not know: what they do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from bench.load import LoadError, start_wrk, wait_for
from bench.machine import Cores, pick_cores
from bench.payloads import CHAT_REPLY, chat_body
from bench.rounds import Spread, run_rounds, spread
from bench.servers import Server, Servers
from bench.wrk_requests import write_requests
from docs.tables import fill
from velox.gateway.limits.limiter import Limiter
from velox.gateway.limits.metering import metered
from velox.gateway.limits.reservation import Reservation
from velox.heads import ReplyHead
from velox.observe import series
from velox.observe.metrics import WorkerMetrics
from velox.policy.limits.estimate import NO_TOKENS, Estimator
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.queue.fair_queue import FairQueue, Outcome
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.types import BodyFields, Caller, Endpoint, Priority, Rates, Scope

__all__ = ["main"]

_PAGE: Final = Path(__file__).parent.parent / "docs/limits.md"
_RUNS: Final = 9
_ROUNDS: Final = 5
_TRIES: Final = 5
_BODY: Final = chat_body(stream=False)
_PEEK: Final = BodyFields(model="gpt-bench", max_tokens=256)
_REPLY_HEAD: Final = ReplyHead.of(200, [(b"content-type", b"application/json")], len(CHAT_REPLY))
_CALLER: Final = Caller("bench", id=b"benchkey")
# Never reached: a refusal costs something else.
_RPM: Final = Rates(rpm=60_000_000, burst=10_000_000)
_TPM: Final = Rates(tpm=100_000_000, tpm_burst=100_000_000)
_SLOTS: Final = Rates(concurrency=10_000_000)
_ALL: Final = Rates(60_000_000, 10_000_000, 100_000_000, 100_000_000, 10_000_000)
_Work = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table. settings: what velox serve gets for the same limits; None: it is not measured so."""

    what: str
    scopes: Sequence[Scope]
    rates: Rates
    settings: dict[str, str] | None = None


def _listed(rates: Rates) -> dict[str, str]:
    fields = {name: getattr(rates, name) for name in ("rpm", "burst", "tpm", "tpm_burst", "concurrency")}
    given = {name: value for name, value in fields.items() if value}
    rules = [{"per": per, **given} for per in ("gateway", "key", "model", "key+model")]
    return {"VELOX_RATE_LIMIT_RPM": "0", "VELOX_LIMITS": json.dumps(rules)}


_CASES: Final = (
    Case("no limit", (), _RPM, {"VELOX_RATE_LIMIT_RPM": "0"}),
    Case("1: requests (as by default)", (Scope.GATEWAY,), _RPM, {}),
    Case("1: tokens", (Scope.GATEWAY,), _TPM),
    Case("1: requests at a time", (Scope.GATEWAY,), _SLOTS),
    Case("4: requests, of gateway, key, model, both", tuple(Scope), _RPM, _listed(_RPM)),
    Case("12: the same, tokens and requests at a time besides", tuple(Scope), _ALL, _listed(_ALL)),
)


# -- by themselves ------------------------------------------------------------------------------------------------


def _timed(work: _Work, seconds: float) -> Spread:
    """Return the CPU time of one call in µs. work: does it so many times."""
    n = 100
    while (took_s := _cpu_s(work, n)) < seconds / _RUNS / 4:
        n *= 2
    n = max(1, round(n * seconds / _RUNS / took_s))
    return spread([_cpu_s(work, n) / n * 1e6 for _ in range(_RUNS)])


def _cpu_s(work: _Work, n: int) -> float:
    began_s = time.thread_time()
    work(n)
    return time.thread_time() - began_s


def _limiter(case: Case) -> _Work:
    """Return what takes a request through all limits of a case: in, headers of the reply, settled."""
    metrics = WorkerMetrics(memoryview(bytearray(8 * series.CELLS)).cast("Q"))
    table = QuotaTable(QuotaMemory(16384, 2), 0)
    rules = [LimitRule(f"limits[{index}]", scope, case.rates) for index, scope in enumerate(case.scopes)]
    limiter, estimator = Limiter(rules, table, 1.0, metrics.limit_counter), Estimator()

    def work(n: int) -> None:
        for _ in range(n):
            limits = limiter.limits(_CALLER, _PEEK.model)
            tokens = estimator.estimate(Endpoint.CHAT, len(_BODY), _PEEK) if limits.counts_tokens else NO_TOKENS
            reservation = limiter.admit(limits, tokens, time.monotonic_ns())
            assert isinstance(reservation, Reservation), "no quota here has anybody to ask"
            usage = None
            if tokens is not NO_TOKENS:
                meter, _, _ = metered(_BODY, _PEEK, Endpoint.CHAT)
                meter.begin(_REPLY_HEAD, is_sse=False, is_plain=True)
                meter.feed(CHAT_REPLY, True)
                usage = meter.usage(is_whole=True)
            if limits.headers is not None:
                limits.headers.lines(time.monotonic_ns())
            if not limits.is_kept:
                reservation.settle(usage, sent=True)

    return work


def _queue(depth: int, n_callers: int) -> _Work:
    """Return what takes a request through a queue in which `depth` others wait all the time."""
    queue: FairQueue[int] = FairQueue(2 * depth + 2, 1 << 40, 64, 1 << 60, 0.1)
    callers = [b"%08d" % index for index in range(n_callers)]
    items = zip(range(1 << 62), cycle(callers), strict=False)

    def work(n: int) -> None:
        for item, caller in islice(items, n):
            now_ns = time.monotonic_ns()
            _offer(queue, item, caller, now_ns)
            queue.late(now_ns)
            queue.take(1, now_ns)
            queue.serviced(150_000_000)
            queue.correct(caller, -1000, priority=Priority.NORMAL, taken_ns=now_ns)

    for item, caller in islice(items, depth):
        assert _offer(queue, item, caller, time.monotonic_ns()) is Outcome.ADMITTED, "there is room for it"
    return work


def _refusing() -> _Work:
    """Return what is refused at the door of a queue that drains, but too slowly for one more."""
    queue: FairQueue[int] = FairQueue(4096, 1 << 40, 64, 1 << 60, 0.1)
    step_ns = 1_000_000
    for item in range(64):
        _offer(queue, item, b"a", item * step_ns)
        if item % 2:
            queue.take(1, item * step_ns)

    def work(n: int) -> None:
        for item in range(64, 64 + n):
            outcome = _offer(queue, item, b"a", 64 * step_ns, patience_ns=step_ns)
            assert outcome is Outcome.TOO_LATE, "many are ahead of it"

    return work


def _offer(
    queue: FairQueue[int], item: int, caller: bytes, now_ns: int, patience_ns: int = 1_000_000_000_000_000
) -> Outcome:
    """Offer a request for a short chat."""
    verdict = queue.offer(
        item,
        now_ns,
        caller=caller,
        priority=Priority.NORMAL,
        cost=1212,
        n_bytes=len(_BODY),
        deadline_ns=now_ns + patience_ns,
    )
    return verdict.outcome


# -- whole requests -----------------------------------------------------------------------------------------------


def _whole(folder: Path, cores: Cores, seconds: float) -> dict[str, Spread]:
    """Return the CPU time of a whole request in µs, of the cases that have settings."""
    sent = write_requests(folder / "requests")
    with Servers(folder, cores) as servers:
        origin = f"http://127.0.0.1:{servers.nginx_upstream().http1}"
        started = {
            case.what: servers.velox(origin, "off", more=case.settings) for case in _CASES if case.settings is not None
        }
        measures = {what: partial(_requests, server, sent, cores.rest) for what, server in started.items()}
        figures = run_rounds(measures, _ROUNDS, seconds)
    return {what: spread([each["cpu_us"] for each in rounds]) for what, rounds in figures.items()}


def _requests(server: Server, sent: Path, core: int, seconds: float) -> dict[str, float]:
    for _ in range(_TRIES):
        load = start_wrk(server.port, sent, seconds=seconds, connections=32, core=core)
        before_s = server.cpu_s()
        done = wait_for(load, seconds=seconds)
        if done["requests"]:  # else the core was another's for all of a short run
            return {"cpu_us": (server.cpu_s() - before_s) / done["requests"] * 1e6}
    raise LoadError("no request was answered")


# -- the tables ---------------------------------------------------------------------------------------------------


def _shown(each: Spread) -> str:
    return f"{each.median:.1f} ({each.least:.1f}-{each.greatest:.1f})"


def _tables(seconds: float, whole: dict[str, Spread]) -> list[str]:
    base = whole[_CASES[0].what]
    reference = whole[_CASES[1].what].median
    limits = ["| limits | by themselves, µs | a whole request, µs | of a request |", "|---|---|---|---|"]
    for case in _CASES:
        alone = _timed(_limiter(case), seconds)
        request = whole.get(case.what)
        limits.append(
            f"| {case.what} | {_shown(alone)} | {_shown(request) if request else ''} "
            f"| {alone.median / (request or base).median * 100:.1f} % |"
        )
    queues = ["| queue | µs | of a request |", "|---|---|---|"]
    works = {
        "empty": _queue(0, 1),
        "1,024 wait, 1 caller": _queue(1024, 1),
        "1,024 wait, 1,000 callers": _queue(1024, 1000),
        "16,384 wait, 1 caller": _queue(16384, 1),
        "16,384 wait, 1,000 callers": _queue(16384, 1000),
        "refused at the door": _refusing(),
    }
    for what, work in works.items():
        alone = _timed(work, seconds)
        queues.append(f"| {what} | {_shown(alone)} | {alone.median / reference * 100:.1f} % |")
    return [*limits, "", *queues]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each line, and of each of the whole in a round")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = _whole(Path(folder), pick_cores(), arguments.seconds)
    table = "\n".join(_tables(arguments.seconds, whole))
    print(table)
    if not arguments.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), "cost", f"{table}\n"))


if __name__ == "__main__":
    main()
