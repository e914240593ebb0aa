"""Our own attackers, each in a process of its own: what slowhttptest has not, and what ends how.

    python -m tests.slow.attackers KIND PORT CONNECTIONS SECONDS       prints a JSON object at the end

Knows: how each kind behaves on its connections. Does not know: Velox. One thread and a poll over all connections; a
connection that is ended is not made again, but for the flood, which comes back at once.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["KINDS"]

_HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
_CHUNKED: Final = _HEAD + b"transfer-encoding: chunked\r\n\r\n"
_GET_LARGE: Final = b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n"
_ROUND_S: Final = 0.5


@dataclass
class Kind:
    """first: what is sent at once. again: what each round. reads: bytes a round; 0: never."""

    first: bytes = b""
    again: bytes = b""
    reads: int = 65536
    receive_bytes: int = 0
    comes_back: bool = False


KINDS: Final[dict[str, Kind]] = {
    "flood": Kind(comes_back=True),
    "idle": Kind(),
    "chunks": Kind(first=_CHUNKED, again=b"1\r\nx\r\n"),
    "never-reads": Kind(first=_GET_LARGE, reads=0, receive_bytes=1024),
    "reads-a-trickle": Kind(first=_GET_LARGE, reads=16, receive_bytes=1024),
    "ahead": Kind(first=_GET_LARGE * 8000, reads=0, receive_bytes=1024),
}


@dataclass
class Attack:
    """The connections of one kind."""

    kind: Kind
    port: int
    open: dict[int, tuple[socket.socket, float]] = field(default_factory=dict)
    n_opened: int = 0
    n_refused: int = 0  # told 503
    n_timed_out: int = 0  # told 408
    n_ended: int = 0  # closed by the other side
    longest_s: float = 0.0

    def connect(self) -> None:
        """Open one connection more."""
        sock = socket.socket()
        if self.kind.receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.kind.receive_bytes)
        sock.settimeout(5)
        try:
            sock.connect(("127.0.0.1", self.port))
            sock.setblocking(False)
            self.open[sock.fileno()] = (sock, time.monotonic())
            self.n_opened += 1
            if self.kind.first:
                sock.send(self.kind.first)
        except OSError:
            sock.close()
            self.open.pop(sock.fileno(), None)

    def end(self, descriptor: int) -> None:
        """The other side has closed."""
        sock, since_s = self.open.pop(descriptor)
        self.n_ended += 1
        self.longest_s = max(self.longest_s, time.monotonic() - since_s)
        sock.close()

    def look(self, wait_s: float) -> None:
        """Read where something has come, as this kind reads, and note who was ended."""
        poll = select.poll()
        for descriptor in self.open:
            poll.register(descriptor, select.POLLIN if self.kind.reads > 16 else 0)
        for descriptor, event in poll.poll(wait_s * 1000):
            if event & (select.POLLHUP | select.POLLERR):
                self.note(descriptor)
                self.end(descriptor)
            elif not self.note(descriptor):
                self.end(descriptor)

    def note(self, descriptor: int) -> bool:
        """Read; False at the end."""
        try:
            data = self.open[descriptor][0].recv(self.kind.reads or 65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.n_refused += data.startswith(b"HTTP/1.1 503 ")
        self.n_timed_out += data.startswith(b"HTTP/1.1 408 ")
        return bool(data)

    def send(self) -> None:
        """Send what is due each round, and read what a trickle reads."""
        for descriptor, (sock, _) in [*self.open.items()]:
            with contextlib.suppress(BlockingIOError):
                try:
                    if self.kind.again:
                        sock.send(self.kind.again)
                    if 0 < self.kind.reads <= 16 and not self.note(descriptor):
                        self.end(descriptor)
                except OSError as exc:
                    if isinstance(exc, BlockingIOError):
                        continue
                    self.note(descriptor)
                    self.end(descriptor)


def run(kind: Kind, port: int, n: int, seconds: float, now: Callable[[], float] = time.monotonic) -> Attack:
    """Attack for so long; return what happened."""
    attack, until_s = Attack(kind, port), now() + seconds
    while attack.n_opened < n and now() < until_s:
        attack.connect()
    next_s = now() + _ROUND_S
    while now() < until_s:
        attack.look(max(0.0, min(next_s, until_s) - now()))
        while kind.comes_back and len(attack.open) < n and now() < next_s:
            attack.connect()
        if now() >= next_s:
            next_s += _ROUND_S
            attack.send()
    return attack


def main() -> int:
    """Read the command line, attack, print."""
    name, port, n, seconds = sys.argv[1:]
    attack = run(KINDS[name], int(port), int(n), float(seconds))
    found = {
        "opened": attack.n_opened,
        "refused": attack.n_refused,
        "timed_out": attack.n_timed_out,
        "ended": attack.n_ended,
        "open": len(attack.open),
        "longest_s": round(attack.longest_s, 1),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
