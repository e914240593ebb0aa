"""Reloads of files that were cut off at a byte by chance, under requests that never pause.

    python -m tests.e2e.cut_files                        # 300 files: about five minutes; prints what was found
    python -m tests.e2e.cut_files --reloads 40 --mark    # files with the end mark, of which none may be taken

A gateway of two workers with two complete files in turn. Both name the same two upstreams. After each complete file
comes one that was cut off, by the command's way, by SIGHUP, or by nothing but the file's change.

Nothing else may be asked, and three witnesses would see it: a name server of our own, which is asked for every name
that an origin has; listeners at every port that is a beginning of an upstream's, at 80, and at 443, where the built-in
default leads (root and mount namespaces: names.py); and the upstreams, which see the Host of each request.

Knows: files, a load, what was seen. Does not know: how a configuration is read.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.names import NameServer
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, wait_warm

__all__ = ["DEFAULT", "NAMES", "Listeners", "Outcome", "own_address", "run"]

NAMES: Final = ("first", "second")
DEFAULT: Final = "api.openai.com"  # where requests go that no upstream is named for
_MARK: Final = "end: true\n"
_BODIES: Final = (CHAT, CHAT_STREAM, CHAT.replace(b'"m"', b'"gpt-4o"'))
_TAKEN: Final = " is in use: "
_ENDS: Final = (_TAKEN, "the configuration can't be used")
_LATE_S: Final = 30.0
_PAUSE_S: Final = 0.004  # of a client between two requests
_KEPT_CALLS: Final = 5_000


@dataclass
class Outcome:
    """What was seen. statuses: of answers, 0 for a connection that was lost. sources: the upstreams that they name.
    reasons: of those that Velox gave by itself.

    hosts: of the requests that the upstreams got. asked: of the name server. n_elsewhere: connections to other ports.
    """

    n_cut: int = 0
    n_taken: int = 0
    n_complete: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)
    asked: frozenset[str] = frozenset()
    n_elsewhere: int = 0
    seconds: float = 0.0

    @property
    def n_answers(self) -> int:
        """Return how many answers there were."""
        return sum(self.statuses.values())

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        yield f"files cut off            {self.n_cut}, of which {self.n_taken} were taken"
        yield f"complete files taken     {self.n_complete}"
        yield f"requests                 {self.n_answers} in {self.seconds:.0f} s, by status {dict(self.statuses)}"
        yield f"refused by Velox         {dict(self.reasons)}"
        yield f"got by the upstreams     {dict(self.hosts)}"
        yield f"names asked for          {', '.join(sorted(self.asked))}"
        yield f"connections elsewhere    {self.n_elsewhere}"


class Listeners:
    """Ports of one address where nobody may connect. They count who does, and close."""

    def __init__(self, address: str, ports: Collection[int]) -> None:
        self.n_connections = 0
        self._sockets: Final = [socket.create_server((address, port)) for port in sorted(ports)]
        self._selector: Final = selectors.DefaultSelector()
        self._awake, self._waker = socket.socketpair()
        for sock in (*self._sockets, self._awake):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread: Final = threading.Thread(target=self._run, name="listeners", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._waker.close()
        self._thread.join(_LATE_S)
        for sock in (*self._sockets, self._awake):
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._awake:
                    return
                assert isinstance(key.fileobj, socket.socket), "only sockets are registered"
                key.fileobj.accept()[0].close()
                self.n_connections += 1


class _Load:
    """Clients that ask some hundred times a second, each on one connection as long as that lasts."""

    def __init__(self, velox: VeloxProcess, outcome: Outcome) -> None:
        self._velox: Final = velox
        self._outcome: Final = outcome
        self._lock: Final = threading.Lock()
        self._is_over: Final = threading.Event()
        self._counts: Final = [0] * len(_BODIES)
        self._threads: Final = [threading.Thread(target=self._ask, args=(n,)) for n in range(len(_BODIES))]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(_LATE_S)

    def wait_each(self, n: int) -> None:
        """Wait until every client has had `n` answers more."""
        wanted = [count + n for count in self._counts]
        until(lambda: all(a >= b for a, b in zip(self._counts, wanted, strict=True)), "each has an answer", _LATE_S)

    def _ask(self, number: int) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(ConnectionError), Client(self._velox, _LATE_S) as client:
                while not self._is_over.wait(_PAUSE_S):
                    reply = client.ask("POST", "/v1/chat/completions", _BODIES[number])
                    source, reason = reply.header("x-velox-upstream"), reply.header("x-velox-reason")
                    self._note(number, reply.status, source or "", reason or "")
                continue
            self._note(number, 0, "", "")

    def _note(self, number: int, status: int, source: str, reason: str) -> None:
        outcome = self._outcome
        with self._lock:
            self._counts[number] += 1
            outcome.statuses[status] += 1
            outcome.sources.update([source] if source else [])
            outcome.reasons.update([reason] if reason else [])


class _Reloader:
    """Writes files, has them read, and waits for the end of that."""

    def __init__(self, velox: VeloxProcess, file: Path, chance: random.Random) -> None:
        self._velox: Final = velox
        self._file: Final = file
        self._chance: Final = chance

    def cut(self, content: str) -> bool:
        """Write a file that was cut off; return True if it was taken."""
        n_before = self._n_said(*_ENDS)
        self._write(content)
        until(lambda: self._n_said(*_ENDS) > n_before, "the file was read", _LATE_S)
        return not self._velox.metric("velox_config_bad")

    def complete(self, content: str) -> None:
        """Write a complete file, and wait until all workers have it.

        On a busy machine it may be read once before it is written, as what it was when it was opened.
        """
        n_before = self._n_said(_TAKEN)
        self._write(content)
        until(lambda: self._n_said(_TAKEN) > n_before, "the file was taken", _LATE_S)
        number = self._velox.metric("velox_config_generation")
        for worker in range(2):
            self._velox.wait_metric(f'velox_worker_configuration{{worker="{worker}"}}', lambda found: found == number)

    def _write(self, content: str) -> None:
        if self._chance.random() < 0.5:
            self._file.write_text(content)
        else:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(content)
            fresh.replace(self._file)
        way = self._chance.choice(("command", "signal", "file"))
        if way == "command":
            connection = http.client.HTTPConnection(self._velox.admin_url.removeprefix("http://"), timeout=_LATE_S)
            with contextlib.closing(connection):
                connection.request("POST", "/reload")
                connection.getresponse().read()
        elif way == "signal":
            self._velox.signal(signal.SIGHUP)

    def _n_said(self, *words: str) -> int:
        return sum(any(each in line for each in words) for line in self._velox.stderr.lines)


def own_address() -> str:
    """Return a loopback address that no other process of the tests uses."""
    pid = os.getpid()
    return f"127.{54 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255 or 1}"


def files(ports: Sequence[int], *, mark: bool) -> tuple[str, str]:
    """Return two complete files with the same upstreams."""
    one, two = (f"http://{name}.test:{port}" for name, port in zip(NAMES, ports, strict=True))
    end = _MARK if mark else ""
    return (
        "upstreams:\n"
        f"  - name: first\n    origin: {one}\n    keys: [env:KEY_FIRST]\n    timeouts: {{first_byte: 20s}}\n"
        f"  - name: second\n    origin: {two}\n    weight: 2\n"
        "routes:\n"
        "  - name: chat\n    match: {models: [gpt-4o]}\n    to: first\n    fallback: [second]\n"
        "  - name: rest\n    to: [second, first]\n    balance: least_inflight\n"
        f"limits:\n  - {{per: gateway, rpm: 60000000}}\naccess_log: all\n{end}",
        "access_log: all\nlimits:\n  - {per: gateway, rpm: 6000000}\n"
        "routes:\n  - {name: chat, to: [first, second], match: {models: [gpt-4o]}}\n  - {name: rest, to: first}\n"
        "upstreams:\n"
        f"  - {{name: second, origin: {two}, connections: 2}}\n"
        f"  - {{keys: [env:KEY_FIRST], name: first, origin: {one}}}\n{end}",
    )


def run(n_reloads: int, *, mark: bool, seed: int) -> Outcome:
    """Have so many cut files read, each after a complete one; return what was seen."""
    chance, outcome = random.Random(seed), Outcome()
    with contextlib.ExitStack() as stack:
        address = own_address()
        names = stack.enter_context(NameServer())
        servers = [stack.enter_context(RecordingUpstream(host=address)) for _ in NAMES]
        ports = [server.port for server in servers]
        begun = {int(str(port)[:n]) for port in ports for n in range(1, len(str(port)))}
        elsewhere = stack.enter_context(Listeners(address, {80, 443, *begun} - set(ports)))
        for name in (*(f"{name}.test" for name in NAMES), DEFAULT):
            names.answer(name, address)
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "velox.yaml"
        texts = files(ports, mark=mark)
        file.write_text(texts[0])
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "2", "KEY_FIRST": "sk-first", "VELOX_DNS_REFRESH": "1s"}
        velox = stack.enter_context(VeloxProcess(env, launcher=names.launcher()))
        wait_warm(velox)
        begin_s = time.monotonic()
        with _Load(velox, outcome) as load:
            load.wait_each(3)
            reloader = _Reloader(velox, file, chance)
            for n in range(n_reloads):
                text = chance.choice(texts)
                outcome.n_taken += reloader.cut(text[: chance.randrange(len(text))])
                outcome.n_cut += 1
                load.wait_each(2)
                reloader.complete(texts[n % 2])
                outcome.n_complete += 1
                for server in servers:
                    if len(server.calls) > _KEPT_CALLS or n == n_reloads - 1:
                        outcome.hosts.update(_hosts(server))
            load.wait_each(2)
        for server in servers:
            outcome.hosts.update(_hosts(server))
        outcome.seconds = time.monotonic() - begin_s
        outcome.asked, outcome.n_elsewhere = names.asked(), elsewhere.n_connections
    return outcome


def _hosts(server: RecordingUpstream) -> Iterator[str]:
    """Return the hosts of the requests so far, and forget those."""
    calls = server.calls
    server.forget()
    return (call.header("host") or "" for call in calls)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return 1 if anything was seen that must not be."""
    parser = argparse.ArgumentParser(description="Reloads of files that were cut off, under load.")
    parser.add_argument("--reloads", type=int, default=300, help="how many cut files (300)")
    parser.add_argument("--mark", action="store_true", help="complete files end with the mark `end: true`")
    parser.add_argument("--seed", type=int, default=1, help="of the places of the cuts (1)")
    given = parser.parse_args(arguments)
    outcome = run(given.reloads, mark=given.mark, seed=given.seed)
    print("\n".join(outcome.lines()))
    unnamed = outcome.asked - {f"{name}.test" for name in NAMES}
    is_bad = bool(outcome.n_elsewhere or unnamed or (given.mark and outcome.n_taken))
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
