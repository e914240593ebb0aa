"""The listening sockets: bound once by the supervisor, held for life, inherited by the workers (R-PROC-1).

Knows: how to bind so that workers share the load and a dead worker's queue survives it. Does not know: who accepts.

TCP: one SO_REUSEPORT socket a worker slot. The kernel spreads connections over them by hash, without a thundering
herd; because the supervisor holds each socket, a killed worker's queued connections wait for its successor
(with sockets of the workers' own, 25 of 40 were reset). Unix sockets know no SO_REUSEPORT: the workers share one.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path
from typing import Final

from velox.settings import Address

__all__ = ["BindError", "Listeners", "bind_one"]

_BACKLOG: Final = 4096  # the kernel caps it at net.core.somaxconn


class BindError(Exception):
    """A listener could not be bound; the message says which, why, and what to do."""


class Listeners:
    """The data listener: one socket per worker slot."""

    def __init__(self, address: Address, n_workers: int) -> None:
        self._address: Final = address
        if address.kind == "unix":
            shared = bind_one(address)
            self._sockets: list[socket.socket] = [shared] * n_workers
        else:
            # SO_REUSEPORT would let two gateways share a port without a word: look first.
            probe = bind_one(address)
            port = probe.getsockname()[1]
            probe.close()
            bound = Address(kind="tcp", host=address.host, port=port)
            self._sockets = [bind_one(bound, reuse_port=True) for _ in range(n_workers)]

    def __getitem__(self, slot: int) -> socket.socket:
        return self._sockets[slot]

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self._address.kind == "unix":
            return f"unix:{self._address.path}"
        host, port = self._sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close_others(self, slot: int | None) -> None:
        """In a child: let go of all sockets but the slot's, so that they end when the supervisor ends them."""
        kept = None if slot is None else self._sockets[slot]
        for sock in self._sockets:
            if sock is not kept:
                sock.close()

    def close(self) -> None:
        """Refuse connections from now on. Sockets that workers still hold stay until they let go too."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            sock.close()
        # Once only: the next time, the path may be another gateway's.
        if sockets and self._address.kind == "unix":
            with contextlib.suppress(FileNotFoundError):
                Path(self._address.path).unlink()


def bind_one(address: Address, *, reuse_port: bool = False) -> socket.socket:
    """Bind and listen. Raises BindError."""
    if address.kind == "unix":
        return _bind_unix(address)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        hint = "; is another Velox running there?" if exc.errno == errno.EADDRINUSE else ""
        raise BindError(f"can't listen on {address}: {exc.strerror}{hint}") from exc
    return sock


def _bind_unix(address: Address) -> socket.socket:
    """Bind a path; a socket file that nobody listens on any more is replaced."""
    path = Path(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _is_served(address.path):
            path.unlink()
        sock.bind(address.path)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        raise BindError(f"can't listen on {address}: {exc.strerror}") from exc
    return sock


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
