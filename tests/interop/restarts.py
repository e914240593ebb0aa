"""Restarts each real upstream under running streams and counts what became of them.

Knows: servers, ways to restart them, clients, what an answer should be. Does not know: how a server is configured or
restarted (servers.py).

    python -m tests.interop.restarts                        # 500 streams, every server, way and engine; prints a table
    python -m tests.interop.restarts --streams 50 --server nginx --engine ngh2

While the streams run, and while the server restarts, other clients keep asking for short answers. A restart in good
order must fail none of either, unless it leaves nobody on the port. A server that is killed cuts its streams: each
client must be able to tell.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import request_bytes
from tests.e2e.upstreams import make_certificates, start_sim
from tests.interop.crowd import Answer, Asked, ask, chat, text_of
from tests.interop.process import Limits, Server
from tests.interop.servers import HUGE, SERVERS

__all__ = ["ENGINES", "KILL", "Outcome", "gateway_env", "plan", "restart"]

ENGINES: Final = ("ngh2", "h2", "http1")
KILL: Final = "SIGKILL, start"
# Longer than any stream here lasts; one that is still open then hangs.
_HANG_S: Final = 60.0
_N_PASSERS_BY: Final = 2
_EVERY_S: Final = 0.01
_ENDED: Final = 'velox_upstream_connections_ended_total{cause="'


@dataclass(frozen=True)
class Outcome:
    """What became of the streams of one restart, and of the short requests beside them.

    told: streams whose client was told that they were cut, by the reason given. silent: those that look whole and are
    not, are another client's, or never ended. asked, failed: short requests; failures by what they were told.
    ended: why the gateway gave up connections to the server.
    """

    server: str
    way: str
    engine: str
    n_streams: int
    n_whole: int
    told: Mapping[str, int]
    silent: tuple[str, ...]
    n_asked: int
    failed: Mapping[str, int]
    ended: Mapping[str, int]

    @property
    def is_good(self) -> bool:
        """True when nothing was lost that the restart could have kept, and nobody was deceived."""
        if self.silent:
            return False
        if self.way == KILL:
            return self.n_whole + sum(self.told.values()) == self.n_streams
        has_gap = self.way in SERVERS[self.server].gaps
        return self.n_whole == self.n_streams and set(self.failed) <= ({"upstream_connect"} if has_gap else set())

    def row(self) -> str:
        """Return it as a row of the table."""
        n_failed = self.n_streams - self.n_whole
        explained = _counts(self.told) if n_failed else ""
        if self.silent:
            explained += f" NOT TOLD: {self.silent[0]}"
        asked = f"{self.n_asked}, {sum(self.failed.values())} failed"
        asked += f" ({_counts(self.failed)})" if self.failed else ""
        cells = (self.server, self.way, self.engine, self.n_streams, n_failed, explained, asked, _counts(self.ended))
        return "| " + " | ".join(str(cell) for cell in cells) + " |"


HEADER: Final = (
    "| Server | Restart | engine | Streams | Failed | client got | short requests meanwhile | connections closed |\n"
    "|---|---|---|---|---|---|---|---|"
)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


def plan(servers: tuple[str, ...] = tuple(SERVERS), engines: tuple[str, ...] = ENGINES) -> Iterator[tuple[str, ...]]:
    """Yield every (server, way, engine) there is."""
    for name in servers:
        for way in (*SERVERS[name].ways, KILL):
            for engine in engines:
                if SERVERS[name].is_proxy or engine != "http1":
                    yield name, way, engine


def gateway_env(server: Server, engine: str, **more: str) -> dict[str, str]:
    """Return the settings of a gateway in front of a server. engine: of HTTP/2, or "http1"."""
    env = {**server.upstream.env(), "VELOX_RATE_LIMIT_RPM": "0", **more}
    if engine == "http1":
        return {**env, "VELOX_UPSTREAM_HTTP2": "off"}
    return {**env, "VELOX_HTTP2_ENGINE": engine}


def restart(server: Server, way: str, engine: str, velox: VeloxProcess, n_streams: int) -> Outcome:
    """Run the streams, restart the server, see all of them end."""
    velox.wait_warm()
    before = _ended(velox)
    cue = _Cue()
    # The clients have a thread of their own. Not the server: Envoy ends when the thread that started it does.
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        result = clients.submit(asyncio.run, _run(server, way, engine, velox, n_streams, cue))
        cue.running.wait()
        try:
            if not result.done():
                server.kill() if way == KILL else server.restart(way)
        finally:
            cue.restarted.set()
        outcome = result.result()
    if way != KILL:
        server.wait_retired()
    after = _ended(velox)
    ended = {cause: int(n - before[cause]) for cause, n in after.items() if n > before[cause]}
    return Outcome(**{**vars(outcome), "ended": ended})


class _Cue:
    """What the clients' thread and the server's tell each other. running: all streams have begun."""

    def __init__(self) -> None:
        self.running: Final = threading.Event()
        self.restarted: Final = threading.Event()


async def _run(server: Server, way: str, engine: str, velox: VeloxProcess, n_streams: int, cue: _Cue) -> Outcome:
    request = _LONG if server.is_proxy else _FILE
    model = asyncio.create_task(ask(int(server.behind.rpartition(":")[2]), _LONG))  # what a whole answer is
    restarted, over = asyncio.Event(), asyncio.Event()
    pause = None if server.is_proxy else restarted.wait
    streams = [Asked() for _ in range(n_streams)]
    running = [asyncio.create_task(ask(velox.port, request, stream, pause)) for stream in streams]
    try:
        for stream in streams:
            await stream.began.wait()
        n_early = sum(stream.ended for stream in streams)
        assert n_early == 0, f"{n_early} streams ended before the restart: they must be longer"
    finally:
        cue.running.set()
    # nghttpd has nothing short to say while its clients hold back, and does not restart in good order.
    short = asyncio.create_task(_pass_by(velox.port, over if server.is_proxy else None))
    await asyncio.to_thread(cue.restarted.wait)
    restarted.set()
    done, hanging = await asyncio.wait(running, timeout=_HANG_S)
    over.set()
    for task in hanging:
        task.cancel()
    answers = [task.result() for task in running if task in done]
    judge = _Judge(text_of((await model).body)[0] if server.is_proxy else "")
    verdicts = [judge.verdict(answer) for answer in answers] + ["hangs"] * len(hanging)
    passed_by = await short
    return Outcome(
        server.name,
        way,
        engine,
        n_streams,
        n_whole=verdicts.count(""),
        told=collections.Counter(answer.told for answer in answers if answer.told),
        silent=tuple(verdict for verdict in verdicts if verdict and verdict != "told"),
        n_asked=len(passed_by),
        failed=collections.Counter(
            answer.told or f"status {answer.status}" for answer in passed_by if not answer.looks_whole
        ),
        ended={},
    )


async def _pass_by(port: int, over: asyncio.Event | None) -> list[Answer]:
    """Ask for short answers until it is over, and once more; for none without an event."""
    answers: list[Answer] = []

    async def walk(over: asyncio.Event) -> None:
        while not over.is_set():
            answers.append(await ask(port, _SHORT))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _EVERY_S)
        answers.append(await ask(port, _SHORT))

    if over is not None:
        await asyncio.gather(*(walk(over) for _ in range(_N_PASSERS_BY)))
    return answers


_SHORT: Final = chat(stream=False, max_tokens=1)
_LONG: Final = chat(stream=True)
_FILE: Final = request_bytes("GET", "/v1/huge.json", None, {"connection": "close"})


class _Judge:
    """Says of an answer whether it is whole, was told as cut, or deceives its client."""

    def __init__(self, text: str) -> None:
        """text: what a streamed answer says; "" where the answer is the file HUGE."""
        self._text: Final = text
        self._ids: Final[set[str]] = set()

    def verdict(self, answer: Answer) -> str:
        """Return "" for whole, "told", or what is wrong."""
        if not answer.looks_whole:
            return "told" if answer.told else f"status {answer.status}, {answer.body[-100:]!r}"
        if not self._text:
            return "" if answer.body == HUGE else f"looks whole with {len(answer.body)} bytes"
        try:
            text, number = text_of(answer.body)
        except (AssertionError, ValueError, KeyError) as exc:
            return f"looks whole: {exc!r}"
        if text != self._text or number in self._ids:
            return f"another answer: {number} {text[-50:]!r}"
        self._ids.add(number)
        return ""


def _ended(velox: VeloxProcess) -> dict[str, float]:
    found = velox.metrics().items()
    return {name.removeprefix(_ENDED).removesuffix('"}'): n for name, n in found if name.startswith(_ENDED)}


def main() -> None:
    """Restart all that the command line names; print the table; fail when a restart did what it must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.restarts", description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=500, metavar="N", help="default: %(default)s")
    parser.add_argument("--server", action="append", choices=tuple(SERVERS), help="may be given again; default: all")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be given again; default: all")
    arguments = parser.parse_args()
    servers, engines = tuple(arguments.server or SERVERS), tuple(arguments.engine or ENGINES)
    n_bad = 0
    print(HEADER, flush=True)
    # 8 seconds each: all have begun before the first ends, on a slow machine too.
    with (
        tempfile.TemporaryDirectory() as folder,
        start_sim("--token-rate", "5", "--tokens", "40") as sim,
    ):
        certificates = make_certificates(Path(folder))
        for name, way, engine in plan(servers, engines):
            with (
                SERVERS[name](sim, certificates, Limits()) as server,
                VeloxProcess(gateway_env(server, engine, VELOX_WORKERS="2")) as velox,
            ):
                outcome = restart(server, way, engine, velox, arguments.streams)
            print(outcome.row(), flush=True)
            n_bad += not outcome.is_good
    raise SystemExit(f"{n_bad} restarts lost what they must not" if n_bad else 0)


if __name__ == "__main__":
    main()
