"""Twenty reloads of a gateway under load, good files and bad ones in turn.

    python -m bench.reloads                                # about a minute; writes tables and picture of docs/reload.md
    python -m bench.reloads --seconds 6 --reloads 6 --dry  # does it run? writes nothing

Everything is real: three `velox sim`, `velox serve` with two workers, requests at random times, streamed and not, some
of them so long that reloads fall into them. The gateway is told by `velox reload`, by SIGHUP, or by nothing but the
file's change, in turn. A header of each answer says which configuration it comes from.

It fails (1) if a request failed, a good file was not taken, a bad one was, or a connection to the upstream that is the
same in all files was closed.

Knows: files, load, what clients and the kernel see. Does not know: how a configuration is taken over.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.chats import Mix, chats
from bench.crowd import Answer, Request, offer
from bench.machine import describe
from bench.model_servers import gateway_before, keep_to, model_servers, series, total
from bench.open_loop import percentile
from bench.payloads import CHAT_PATH
from bench.pictures import DOCS, new, write
from bench.reload_files import BAD, MARK, good
from bench.report import save
from bench.rounds import spread
from bench.simulated import Gateway
from docs.tables import fill

__all__ = ["main"]

_ROOT: Final = Path(__file__).parent.parent
_RATE: Final = 40.0
_MIX: Final = Mix((5, 60), ((200, 0.8), (8_000, 0.2)), streamed=0.7)
_LONG_RATE: Final = 2.0
_LONG: Final = Mix((250, 400))  # 4 to 7 s
_OPTIONS: Final = ("--ttft", "60ms", "--token-rate", "60", "--tokens", "400")
_SERVERS: Final = dict.fromkeys(("kept", "changed", "comes-and-goes"), _OPTIONS)
_WAYS: Final = ("velox reload", "SIGHUP", "the change alone")
_WARM_S: Final = 10.0  # long answers are as many as they get by then, and so are connections
_HEARD_S: Final = 10.0
_ESTABLISHED: Final = "01"


@dataclass(frozen=True, slots=True)
class Reload:
    """One reload. what: "good", or what is wrong with it. taken_s: until no answer came from an older one; None: never.

    said: what `velox reload` said. is_right: taken or refused as it should be.
    """

    number: int
    way: str
    what: str
    at_s: float
    taken_s: float | None
    said: str
    is_right: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Connections of the gateway to one upstream: open before the first reload, still open at the end, and made."""

    upstream: str
    n_before: int
    n_still: int
    n_new: int


class _Reloader:
    """Writes the files, tells the gateway, and looks what comes of it."""

    def __init__(self, gateway: Gateway, file: Path, origins: Mapping[str, str]) -> None:
        self._gateway: Final = gateway
        self._file: Final = file
        self._origins: Final = origins
        self._number = 0  # of the configuration that should hold

    def one(self, index: int, at_s: float) -> Reload:
        """Do one: a good file with an odd number, a bad one with an even one."""
        way = _WAYS[index % len(_WAYS)]
        what, text = "good", good(self._number + 1, self._origins)
        if index % 2:
            what, text = list(BAD.items())[index // 2 % len(BAD)]
        else:
            self._number += 1
        n_refused = self._n_refused()
        begin_s = time.monotonic()
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._file)
        code, said = self._tell(way)
        if what == "good":
            taken_s = self._wait_taken(begin_s)
            is_right = taken_s is not None and code in (None, 0)
            return Reload(index + 1, way, what, at_s, taken_s, said, is_right)
        is_refused = self._wait_refused(n_refused) and code in (None, 1)
        if code is None:
            _, said = self._tell(_WAYS[0])  # for the words
        return Reload(index + 1, way, what, at_s, None, said, is_refused and self._seen() == {str(self._number)})

    def _tell(self, way: str) -> tuple[int | None, str]:
        """Tell the gateway; return the exit code and the output of `velox reload`."""
        if way == "SIGHUP":
            os.kill(self._gateway.pid, signal.SIGHUP)
        if way != _WAYS[0]:
            return None, ""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "velox", "reload", "--admin", f"127.0.0.1:{self._gateway.admin}"],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).strip().replace(f"{self._file.parent}/", "")

    def _seen(self, n: int = 6) -> set[str]:
        """Ask on so many new connections; return which configurations the answers come from."""
        return {_mark(self._gateway.port) for _ in range(n)}

    def _wait_taken(self, begin_s: float) -> float | None:
        """Wait until all that is asked is answered by the new one; return how long after the file it was."""
        while time.monotonic() < begin_s + _HEARD_S:
            at_s = time.monotonic()
            if self._seen() == {str(self._number)}:
                return at_s - begin_s
        return None

    def _wait_refused(self, n_before: float) -> bool:
        until_s = time.monotonic() + _HEARD_S
        while self._n_refused() <= n_before:
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        return True

    def _n_refused(self) -> float:
        name = "velox_config_reloads_total"
        return total(series(self._gateway.admin, name), name, 'result="bad"')


def _mark(port: int) -> str:
    """Ask for one token; return which configuration the answer comes from."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        body = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}'
        connection.request("POST", CHAT_PATH, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        return reply.headers.get(MARK, f"none ({reply.status})")
    finally:
        connection.close()


def _connections(port: int) -> set[int]:
    """Return the local ports from which connections to a port of loopback are open: /proc/net/tcp."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == _ESTABLISHED and int(remote.partition(":")[2], 16) == port:
            found.add(int(local.partition(":")[2], 16))
    return found


def _due(seconds: float) -> list[Request]:
    """Return the load: short answers, and long ones that end with it."""
    long = [each._replace(kind="long") for each in chats("m", _LONG_RATE, max(0.5, seconds - 6.0), _LONG, seed=2)]
    return [*chats("m", _RATE, seconds, _MIX), *long]


def _reload_on(
    reloader: _Reloader, seconds: float, n: int, ports: Mapping[str, int]
) -> tuple[list[Reload], list[Kept]]:
    """Do all of them, evenly over the time of the load."""
    begin_s = time.monotonic()
    warm_s = min(_WARM_S, seconds / 4)
    keep_to(warm_s, begin_s)
    before = {name: _connections(port) for name, port in ports.items()}
    done = []
    for index in range(n):
        keep_to(warm_s + index * (seconds - warm_s) / n, begin_s)
        done.append(reloader.one(index, time.monotonic() - begin_s))
        print(_line(done[-1]), file=sys.stderr, flush=True)
    after = {name: _connections(port) for name, port in ports.items()}
    kept = [
        Kept(name, len(before[name]), len(before[name] & now), len(now - before[name])) for name, now in after.items()
    ]
    return done, kept


def _line(each: Reload) -> str:
    shown = f"taken after {each.taken_s:.2f} s" if each.taken_s is not None else "refused"
    return f"reload {each.number}, {each.way}, {each.what}: {shown if each.is_right else 'WRONG ' + each.said}"


def _table(reloads: Sequence[Reload], kept: Sequence[Kept], answers: Sequence[Answer]) -> list[str]:
    goods = [each for each in reloads if each.what == "good"]
    bads = [each for each in reloads if each.what != "good"]
    failed = [each for each in answers if each.status != 200]
    spanned = [
        each
        for each in answers
        if each.status == 200 and any(each.due_s < one.at_s < each.due_s + each.took_s for one in goods)
    ]
    lines = ["| what | found |", "|---|---|"]
    lines.append(f"| good files taken | {sum(each.is_right for each in goods)} of {len(goods)} |")
    for way in _WAYS:
        taken_s = [each.taken_s for each in goods if each.way == way and each.taken_s is not None]
        if taken_s:
            each = spread(taken_s)
            times = f"{each.median:.2f} s ({each.least:.2f} to {each.greatest:.2f})"
            lines.append(f"| ... by all workers after the file was written, by {way} | {times} |")
    lines.append(f"| bad files refused, and the configuration before them kept | {_right(bads)} of {len(bads)} |")
    lines.append(f"| requests that failed, of {len(answers)} | {len(failed)} |")
    lines.append(f"| answers that were under way when a good file was taken, and came whole | {len(spanned)} |")
    for name, calm in (("within 1 s of a reload", False), ("at other times", True)):
        times_s = _first_tokens(answers, reloads, calm=calm)
        if times_s:
            shown = " and ".join(f"{percentile(times_s, share) * 1e3:.0f} ms" for share in (0.5, 0.99))
            lines.append(f"| time to the first token of streams, p50 and p99, {name} | {shown} |")
    for pool in kept:
        told = f"{pool.n_before} before, {pool.n_still} of them still there, {pool.n_new} new"
        lines.append(f"| connections to `{pool.upstream}` | {told} |")
    return lines


def _right(reloads: Sequence[Reload]) -> int:
    return sum(each.is_right for each in reloads)


def _first_tokens(answers: Sequence[Answer], reloads: Sequence[Reload], *, calm: bool) -> list[float]:
    return sorted(
        each.first_s
        for each in answers
        if each.status == 200
        and each.kind != "whole"
        and calm is not any(one.at_s <= each.due_s < one.at_s + 1.0 for one in reloads)
    )


def _said(reloads: Sequence[Reload]) -> list[str]:
    """Return the table of what was said of bad files."""
    lines = ["| the file has | what `velox reload` says |", "|---|---|"]
    for each in reloads:
        if each.said and each.what != "good":
            shown = "; ".join(line.strip() for line in each.said.splitlines()[1:])
            lines.append(f"| {each.what} | {shown} |")
    return lines


def _draw(reloads: Sequence[Reload], answers: Sequence[Answer], seconds: float) -> None:
    figure, (axes,) = new(1, width=10.0)
    points = sorted((each.due_s, each.first_s) for each in answers if each.status == 200 and each.kind != "whole")
    axes.scatter([at for at, _ in points], [took for _, took in points], s=3, color="tab:blue", rasterized=True)
    for what, colour in ((True, "tab:green"), (False, "tab:red")):
        for index, each in enumerate(one for one in reloads if (one.what == "good") is what):
            label = f"a {'good' if what else 'bad'} file" if index == 0 else None
            axes.axvline(each.at_s, color=colour, linewidth=0.8, linestyle="dashed", label=label)
    axes.set(xlabel="seconds", ylabel="time to first token, s", ylim=(0, None), xlim=(0, seconds))
    axes.legend(loc="upper right")
    write(figure, "reloads")


def main() -> int:
    """Measure, print, write; return 1 if it did not go as it must."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70.0, help="of load")
    parser.add_argument("--reloads", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for the raw figures")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    with (
        tempfile.TemporaryDirectory() as folder,
        model_servers(_SERVERS) as servers,
        ThreadPoolExecutor(1) as thread,
    ):
        origins = {name: server.origin for name, server in servers.items()}
        file = Path(folder) / "velox.yaml"
        file.write_text(good(0, origins))
        with gateway_before(file) as gateway:
            ports = {name: server.port for name, server in servers.items()}
            offer(gateway.port, chats("m", _RATE, 1.0, _MIX), 64)
            reloader = _Reloader(gateway, file, origins)
            doing = thread.submit(_reload_on, reloader, seconds, arguments.reloads, ports)
            answers = offer(gateway.port, _due(seconds), 128)
            reloads, kept = doing.result()
    tables = {"reloads": _table(reloads, kept, answers), "refused": _said(reloads)}
    text = "\n\n".join("\n".join(table) for table in tables.values())
    print(text)
    failed = [each for each in answers if each.status != 200]
    for each in failed[:10]:
        print(each, file=sys.stderr)
    if not arguments.dry:
        _draw(reloads, answers, seconds)
        page = DOCS / "reload.md"
        for mark, table in tables.items():
            page.write_text(fill(page.read_text(), mark, "\n".join(table) + "\n"))
        fields = ("kind", "due_s", "first_s", "took_s", "status", "reason", "upstream", "attempts")
        document: dict[str, object] = {
            "machine": describe(),
            "reloads": [asdict(each) for each in reloads],
            "connections": [asdict(each) for each in kept],
            "fields": fields,
            "answers": [[getattr(each, name) for name in fields] for each in answers],
        }
        save(arguments.out, "reloads", document, text)
    is_kept = all(each.n_still == each.n_before for each in kept if each.upstream == "kept")
    return 1 if failed or not all(each.is_right for each in reloads) or not is_kept else 0


if __name__ == "__main__":
    sys.exit(main())
