"""Ten minutes before four model servers of different speed: one is well, one flaps, one fails, one stalls.

    python -m bench.fleet                     # about 17 minutes; writes tables and picture of docs/fleet.md
    python -m bench.fleet --seconds 10 --dry  # does it run? writes nothing

Everything is real: four `velox sim`, of which one is killed or asked to leave and comes back, one answers 30 % of its
requests with a 500, and one is stopped for a while (SIGSTOP); `velox serve` with two workers. Requests come at random
times whether or not earlier ones were answered: streamed and not, with small and large prompts. Times count from when
a request was due. After that, all four get the same load with a hedge for a fifth of the time, and each alone for a
tenth, with the same faults.

It fails (1) if a client saw a failure, before the first byte of its answer, while all four were behind the gateway.

Knows: load, servers, what clients see. Does not know: how a failure is hidden.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.chats import Mix, chats
from bench.crowd import Answer, offer
from bench.fleet_faults import FaultPlan, Story, watched
from bench.machine import describe
from bench.model_servers import ModelServer, gateway_before, model_servers, series, total
from bench.open_loop import percentile
from bench.pictures import DOCS, new, write
from bench.report import save
from bench.rounds import spread
from bench.simulated import Gateway
from docs.tables import fill

__all__ = ["main"]

_RATE: Final = 25.0
_MIX: Final = Mix((5, 60), ((200, 0.70), (4_000, 0.25), (60_000, 0.05)), streamed=0.7)
_WORKERS: Final = 2
_N_CONNECTIONS: Final = 128
_WARM_S: Final = 3.0
_CLASSES: Final = ("--capacity", "64", "--prefill-rate", "30000")
_SERVERS: Final = {
    "steady": ("--ttft", "150ms", "--token-rate", "50", *_CLASSES),
    "flapping": ("--ttft", "60ms", "--token-rate", "100", *_CLASSES),
    "failing": ("--ttft", "100ms", "--token-rate", "80", "--error-rate", "0.3", *_CLASSES),
    "stalling": ("--ttft", "80ms", "--token-rate", "60", *_CLASSES),
}
# Routes to all of them: how they hedge.
_OF_ALL: Final = {"fleet": "", "fleet-hedged": "{after: p95, at_most: 5%}"}
# Three of four are ill: a request may well meet two of them.
_SETTINGS: Final = {"VELOX_RETRIES": "2"}
_TIMEOUTS: Final = "{connect: 1s, first_byte: 5s}"
_BIN_S: Final = 5.0
_COLOURS: Final = {
    "steady": "tab:green",
    "flapping": "tab:blue",
    "failing": "tab:orange",
    "stalling": "tab:purple",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One load through one route. attempts: at upstreams. retries: and hedges, by kind, those that there were."""

    route: str
    seconds: float
    answers: Sequence[Answer]
    story: Story
    attempts: float
    retries: Mapping[str, float]

    @property
    def unbegun(self) -> list[Answer]:
        """Failures before the first byte of a body that is the answer."""
        return [each for each in self.answers if each.status != 200 and not _has_begun(each)]

    @property
    def cut(self) -> list[Answer]:
        """Answers that had begun and did not come whole: nobody can take back what was sent."""
        return [each for each in self.answers if each.status != 200 and _has_begun(each)]

    def times(self, *, first: bool) -> list[float]:
        """Return the times to the first token, of streams, or else to the end, ordered."""
        whole = [each for each in self.answers if each.status == 200]
        if first:
            return sorted(each.first_s for each in whole if each.kind == "streamed")
        return sorted(each.took_s for each in whole)

    def row(self) -> str:
        """Return its line of the table."""
        n = len(self.answers)
        times = " | ".join(
            f"{percentile(values, share) * 1e3:.0f} ms" if values else ""
            for values in (self.times(first=True), self.times(first=False))
            for share in (0.5, 0.99, 0.999)
        )
        failed = f"{len(self.unbegun)} ({100 * len(self.unbegun) / n:.2g} %) | {len(self.cut)}"
        return f"| {self.route} | {n} | {failed} | {self.attempts / n:.3f} | {times} |"


def _has_begun(answer: Answer) -> bool:
    # Of a refusal the body is no answer; its status is told.
    return answer.status == 0 and answer.first_s > 0.0


def _file(servers: Mapping[str, ModelServer]) -> str:
    lines = ["upstreams:"]
    lines += [
        f"  - {{name: {name}, origin: '{server.origin}', timeouts: {_TIMEOUTS}}}" for name, server in servers.items()
    ]
    lines.append("routes:")
    for route, to in (*((name, ", ".join(servers)) for name in _OF_ALL), *((name, name) for name in servers)):
        hedge = f", hedge: {_OF_ALL[route]}" if _OF_ALL.get(route) else ""
        lines.append(f"  - {{name: {route}, match: {{models: [{route}]}}, to: [{to}], balance: peak_ewma{hedge}}}")
    return "\n".join(lines) + "\n"


def _run(route: str, gateway: Gateway, servers: Mapping[str, ModelServer], seconds: float) -> Run:
    due = chats(route, _RATE, seconds, _MIX, seed=len(route))
    offer(gateway.port, chats(route, _RATE, min(_WARM_S, seconds / 4), _MIX, seed=99), _N_CONNECTIONS)
    before = series(gateway.admin)
    flapping, stalling = (servers[name] if route in (*_OF_ALL, name) else None for name in ("flapping", "stalling"))
    plan = FaultPlan().shrunk(seconds)
    with watched(gateway.admin, list(servers), plan, flapping, stalling) as story:
        answers = offer(gateway.port, due, _N_CONNECTIONS, patience_s=60.0, tell=_Progress(route, seconds))
    after = series(gateway.admin)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    retries = {name: n for name, n in grown.items() if name.startswith(("velox_retries", "velox_hedges")) and n}
    run = Run(route, seconds, answers, story, total(grown, "velox_upstream_attempts_total"), retries)
    print(f"{run.row()} {retries}", file=sys.stderr, flush=True)
    return run


class _Progress:
    """Says now and then how far a run is."""

    def __init__(self, route: str, seconds: float) -> None:
        self._route: Final = route
        self._seconds: Final = seconds
        self._next_s = 0.0

    def __call__(self, now_s: float, answers: Sequence[Answer]) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + 10.0
        bad = Counter(f"{each.status} {each.reason}" for each in answers if each.status != 200)
        line = f"{self._route}: {now_s:.0f} s of {self._seconds:.0f}, {len(answers)} answers"
        print(f"{line}, failed: {dict(bad) or 'none'}", file=sys.stderr, flush=True)


def _outage_rows(run: Run) -> list[str]:
    """Return the table of what servers that went away cost."""
    lines = [
        "| what happened | times | nothing more was sent there after | sent there while it was away "
        "| all workers use it again after | it has half of its usual requests after |",
        "|---|---|---|---|---|---|",
    ]
    for server, how, words in (
        ("flapping", "crash", "it is killed, and back after 20 s"),
        ("flapping", "leave", "it is asked to end, and back after 20 s"),
        ("stalling", "stall", "it says nothing for 20 s"),
    ):
        outages = [each for each in run.story.outages if each.server == server and each.how == how]
        if outages:
            out = _shown([run.story.out_after_s(each) for each in outages])
            back = _shown([run.story.back_after_s(each, _WORKERS) for each in outages])
            sent = spread([run.story.n_sent(each) for each in outages])
            n_sent = f"{sent.median:.0f} ({sent.least:.0f} to {sent.greatest:.0f})"
            half = _shown([run.story.half_after_s(each) for each in outages])
            lines.append(f"| {server}: {words} | {len(outages)} | {out} | {n_sent} | {back} | {half} |")
    return lines


def _shown(times_s: Sequence[float | None]) -> str:
    known = [each for each in times_s if each is not None]
    if not known:
        return "not seen"
    each = spread(known)
    unseen = f", {len(times_s) - len(known)} not seen" if len(known) < len(times_s) else ""
    return f"{each.median:.1f} s ({each.least:.1f} to {each.greatest:.1f}{unseen})"


def _failure_rows(runs: Sequence[Run]) -> list[str]:
    """Return the table of what clients saw fail, by reason."""
    lines = ["| behind the gateway | what the client saw | when | answers |", "|---|---|---|---|"]
    for run in runs:
        for when, answers in (("before the first byte", run.unbegun), ("after it", run.cut)):
            for (status, reason), n in sorted(Counter((each.status, each.reason) for each in answers).items()):
                seen = f"{status} {reason}".strip() if status else reason
                lines.append(f"| {run.route} | {seen} | {when} | {n} |")
        if not (run.unbegun or run.cut):
            lines.append(f"| {run.route} | nothing that failed | | 0 |")
    return lines


def _draw(run: Run) -> None:
    figure, (rates, times) = new(1, rows=2, height=7.0)
    n_bins = max(1, round(run.seconds / _BIN_S))
    at_s = [(index + 0.5) * run.seconds / n_bins for index in range(n_bins)]
    below = [0.0] * n_bins
    bins: list[list[float]] = [[] for _ in range(n_bins)]
    counts = {name: [0.0] * n_bins for name in _SERVERS}
    for each in run.answers:
        index = min(n_bins - 1, int(each.due_s / run.seconds * n_bins))
        if each.status == 200 and each.upstream in counts:
            counts[each.upstream][index] += n_bins / run.seconds
        if each.status == 200 and each.kind == "streamed":
            bins[index].append(each.first_s)
    for name, values in counts.items():
        above = [one + more for one, more in zip(below, values, strict=True)]
        rates.fill_between(at_s, below, above, label=name, color=_COLOURS[name], alpha=0.7, linewidth=0)
        below = above
    rates.set(ylabel="answers a second, by server", ylim=(0, 1.5 * _RATE), xlim=(0, run.seconds))
    known = [(at, sorted(values)) for at, values in zip(at_s, bins, strict=True) if values]
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        times.plot([at for at, _ in known], [percentile(values, share) for _, values in known], label=label)
    times.set(ylabel="time to first token, s", yscale="log", xlabel="seconds", xlim=(0, run.seconds))
    for outage in run.story.outages:
        for axes in (rates, times):
            axes.axvspan(outage.from_s, outage.until_s, color=_COLOURS[outage.server], alpha=0.15, linewidth=0)
    for axes in (rates, times):
        axes.legend(loc="upper right", ncols=4, fontsize=8)
    write(figure, "fleet")


def _document(runs: Sequence[Run], seconds: float) -> dict[str, object]:
    fields = ("kind", "due_s", "first_s", "took_s", "status", "reason", "upstream", "attempts")
    return {
        "machine": describe(),
        "seconds": seconds,
        "fields": fields,
        "runs": [
            {
                "route": run.route,
                "attempts": run.attempts,
                "retries": dict(run.retries),
                "outages": [asdict(outage) for outage in run.story.outages],
                "looks": [asdict(look) for look in run.story.looks],
                "answers": [[getattr(answer, name) for name in fields] for answer in run.answers],
            }
            for run in runs
        ],
    }


def main() -> int:
    """Measure, print, write; return 1 if a client of all four saw a failure that could have been hidden."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="before all four; each alone gets a tenth")
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for the raw figures")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    options = {name: [*given, "--seed", str(seed)] for seed, (name, given) in enumerate(_SERVERS.items())}
    with model_servers(options) as servers, gateway_before(_file(servers), _SETTINGS) as gateway:
        runs = [_run("fleet", gateway, servers, seconds)]
        runs.append(_run("fleet-hedged", gateway, servers, max(1.0, seconds / 5)))
        runs += [_run(name, gateway, servers, max(1.0, seconds / 10)) for name in servers]
    heads = "| behind the gateway | requests | failed before the first byte | cut after it | attempts for a request "
    lines = [
        heads + "| first token, p50 | p99 | p99.9 | whole answer, p50 | p99 | p99.9 |",
        "|---" * 11 + "|",
        *(run.row() for run in runs),
    ]
    tables = {"fleet": lines, "outages": _outage_rows(runs[0]), "failures": _failure_rows(runs)}
    text = "\n\n".join("\n".join(table) for table in tables.values())
    print(text)
    if not arguments.dry:
        _draw(runs[0])
        page = DOCS / "fleet.md"
        for mark, table in tables.items():
            page.write_text(fill(page.read_text(), mark, "\n".join(table) + "\n"))
        save(arguments.out, "fleet", _document(runs, seconds), text)
    return 1 if runs[0].unbegun or runs[1].unbegun else 0


if __name__ == "__main__":
    sys.exit(main())
