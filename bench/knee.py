"""A model server with a knee under three times what it can serve: without a limit, with the right one, with `auto`.

    python -m bench.knee                    # about 2 minutes; writes table and picture of docs/concurrency.md
    python -m bench.knee --seconds 8 --dry  # does it run? writes nothing

Everything is real: `velox sim` with a capacity, `velox serve` with two workers, a client's connection for each request.
Requests come at random times whether or not earlier ones were answered, and ask for answers of random length. Time to
the first token counts from when a request is due to the first event of its reply, so it holds the wait in Velox's own
queue, too. What counts is the second half of each run, and of that, for times, the requests that had three seconds to
be answered at least. Throughput is the time that the answers served would have taken at full speed.

Knows: how the servers are started, and what a client sees. Does not know: how a limit is found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.open_loop import arrivals, percentile
from bench.servers import free_port, get
from bench.simulated import running
from docs.tables import fill

__all__ = ["main"]

_ROOT: Final = Path(__file__).parent.parent
_PAGE: Final = _ROOT / "docs/concurrency.md"
_PICTURE: Final = _ROOT / "docs/concurrency.svg"
_CAPACITY: Final = 16
_TTFT_S: Final = 0.1
_RATE: Final = 100.0
_LENGTHS: Final = (20, 180)  # tokens, evenly: 100 on average
_SERVICE_S: Final = _TTFT_S + (sum(_LENGTHS) / 2 - 1) / _RATE
_PEAK: Final = _CAPACITY / _SERVICE_S  # answers a second
_OVERLOAD: Final = 3.0
_SERVERS: Final = {"line": (), "batch": ("--batch-slowdown",)}
_LIMITS: Final = ("off", str(_CAPACITY), "auto")
_PATIENCE_S: Final = 3.0
# Then requests of one second count: fewer say nothing.
_LEAST_S: Final = 2 * (_PATIENCE_S + 1.0)


@dataclass
class Run:
    """What one run showed. Times are seconds from its start."""

    server: str
    limit: str
    seconds: float
    first: list[tuple[float, float]] = field(default_factory=list)  # when due, time to the first token
    waiting: list[tuple[float, float]] = field(default_factory=list)  # the same where none has come yet
    whole: list[tuple[float, float]] = field(default_factory=list)  # when an answer was whole, its time at full speed
    refused: list[tuple[float, float]] = field(default_factory=list)  # when due, time to the refusal
    limits: list[tuple[float, float, float]] = field(default_factory=list)  # when, the limit, in flight

    @property
    def half_s(self) -> float:
        return self.seconds / 2

    def row(self) -> str:
        """Return its line of the table."""
        ttft = sorted(
            [(took, "") for took in self._counted(self.first)] + [(took, "> ") for took in self._counted(self.waiting)]
        )
        p50, p99 = (f"{sign}{took:.2f} s" for took, sign in (percentile(ttft, 0.5), percentile(ttft, 0.99)))
        refusals = sorted(self._counted(self.refused))
        served_s = sum(took for at, took in self.whole if at >= self.half_s)
        limits = sorted(limit for at, limit, _ in self.limits if at >= self.half_s)
        shown = "" if self.limit == "off" else f"{limits[0]:.0f} to {limits[-1]:.0f}"
        refused = f"{percentile(refusals, 0.5) * 1e3:.0f} ms" if refusals else "none"
        n_due = len(ttft) + len(refusals)
        return (
            f"| {self.server} | {self.limit} | {served_s / self.half_s / _CAPACITY * 100:.0f} % "
            f"| {p50} | {p99} | {len(refusals) / n_due * 100:.0f} % | {refused} | {shown} |"
        )

    def _counted(self, samples: list[tuple[float, float]]) -> list[float]:
        return [took for due, took in samples if self.half_s <= due <= self.seconds - _PATIENCE_S]


def _run(server: str, limit: str, seconds: float) -> Run:
    sim, port, admin = free_port(), free_port(), free_port()
    command = ["sim", "--listen", f"127.0.0.1:{sim}", "--capacity", str(_CAPACITY), *_SERVERS[server], "--seed", "1"]
    command += ["--ttft", f"{_TTFT_S * 1e3:.0f}ms", "--token-rate", str(_RATE), "--tokens", str(_LENGTHS[1])]
    settings = {
        "VELOX_LISTEN": f"127.0.0.1:{port}",
        "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "VELOX_WORKERS": "2",
        "VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{sim}",
        "VELOX_UPSTREAM_CONCURRENCY": limit,
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_ACCESS_LOG": "off",
        "VELOX_DRAIN_TIMEOUT": "1s",
        "OPENAI_API_KEY": "sk-bench-upstream",
    }
    with (
        running([*command, "--grace", "0"], {}, sim, "/v1/models"),
        running(["serve"], settings, admin, "/readyz"),
    ):
        return asyncio.run(_offer(Run(server, limit, seconds), port, admin))


async def _offer(run: Run, port: int, admin: int) -> Run:
    loop = asyncio.get_running_loop()
    lengths = random.Random(2)
    begin_s = loop.time()
    watch = asyncio.create_task(_watch(run, admin, begin_s))
    asking = set()
    for due_s in arrivals(_PEAK * _OVERLOAD, run.seconds):
        await asyncio.sleep(max(0.0, begin_s + due_s - loop.time()))
        asking.add(asyncio.create_task(_ask(run, port, begin_s, due_s, lengths.randint(*_LENGTHS))))
    await asyncio.sleep(max(0.0, begin_s + run.seconds - loop.time()))
    for task in (watch, *asking):
        task.cancel()
    await asyncio.gather(watch, *asking, return_exceptions=True)
    for task in asking:
        if not task.cancelled() and task.exception() is not None:
            raise RuntimeError("a request failed") from task.exception()
    return run


async def _ask(run: Run, port: int, begin_s: float, due_s: float, n_tokens: int) -> None:
    """Send one request; note what comes back."""
    loop = asyncio.get_running_loop()
    has_begun = False
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        message = {"role": "user", "content": "Hello"}
        body = json.dumps({"model": "m", "stream": True, "max_tokens": n_tokens, "messages": [message]}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        status = int((await reader.readline()).split()[1])
        if status != 200:
            run.refused.append((due_s, loop.time() - begin_s - due_s))
            return
        while not (await reader.readline()).startswith(b"data: "):
            pass
        run.first.append((due_s, loop.time() - begin_s - due_s))
        has_begun = True
        rest = await reader.read()
        if b"data: [DONE]" in rest:
            run.whole.append((loop.time() - begin_s, _TTFT_S + (n_tokens - 1) / _RATE))
    except asyncio.CancelledError:
        if not has_begun:
            run.waiting.append((due_s, run.seconds - due_s))
        raise
    finally:
        writer.close()


async def _watch(run: Run, admin: int, begin_s: float) -> None:
    """Note the limit a few times a second."""
    loop = asyncio.get_running_loop()
    while True:
        _, page = await asyncio.to_thread(get, admin, "/metrics")
        found = dict(line.split(b" ", 1) for line in page.splitlines() if line.startswith(b"velox_upstream_"))
        limit, n = (float(found[b"velox_upstream_" + name]) for name in (b"concurrency_limit", b"inflight"))
        run.limits.append((loop.time() - begin_s, limit, n))
        await asyncio.sleep(0.25)


def _draw(runs: list[Run]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "velox"
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True, layout="constrained")
    colours = dict(zip(_LIMITS, ("tab:red", "tab:gray", "tab:blue"), strict=True))
    for column, server in enumerate(_SERVERS):
        above, below = rows[0][column], rows[1][column]
        above.axhline(_CAPACITY, color="black", linewidth=0.8, linestyle="dotted", label="knee")
        for run in runs:
            if run.server != server:
                continue
            if run.limit == "auto":
                above.plot([at for at, *_ in run.limits], [n for _, n, _ in run.limits], color="tab:blue", label="auto")
            points = sorted(run.first)
            below.scatter(*zip(*points, strict=True), s=3, color=colours[run.limit], label=run.limit, rasterized=True)
        above.set(title=f"server: {server}", ylabel="limit, both workers", ylim=(0, 3 * _CAPACITY))
        below.set(xlabel="seconds", ylabel="time to first token, s", yscale="log")
        above.legend(loc="upper right")
        below.legend(loc="upper left")
    figure.savefig(_PICTURE, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.seconds < _LEAST_S:
        parser.error(f"--seconds must be {_LEAST_S:g} at least: only its second half counts, less {_PATIENCE_S:g} s")
    lines = [
        "| server | limit | throughput, of the peak | TTFT p50 | p99 | refused | after (p50) | limit, least to most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    runs = []
    print("\n".join(lines))
    for server in _SERVERS:
        for limit in _LIMITS:
            runs.append(_run(server, limit, arguments.seconds))
            lines.append(runs[-1].row())
            print(lines[-1], flush=True)
    if not arguments.dry:
        _draw(runs)
        table = "\n".join(lines)
        _PAGE.write_text(fill(_PAGE.read_text(), "knee", f"{table}\n"))


if __name__ == "__main__":
    main()
