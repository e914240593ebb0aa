"""The listening sockets: bound once by the supervisor, held for life, inherited by the workers.

Knows: how to bind so that workers share the load and a dead worker's queue survives it, who may connect to a unix
socket, which sockets speak TLS, and how a worker stops without losing queued connections. Does not know: what a
connection is for.

TCP: one SO_REUSEPORT socket per worker slot. The kernel spreads connections over them by hash, without a thundering
herd; because the supervisor holds each socket, a killed worker's queued connections are not reset (with sockets of the
workers' own, 25 of 40 were): another worker takes them (takeover.py), or its successor. Unix sockets have no
SO_REUSEPORT: the workers share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Final

from velox.net.client.ingress import Ingress
from velox.net.client.tls import TlsIngress
from velox.types import Address, SocketOwner

__all__ = ["BACKLOG", "BindError", "ClientListener", "Listeners", "bind_one"]

BACKLOG: Final = 4096  # the kernel caps it at net.core.somaxconn
_UNSENT_BYTES: Final = 128 * 1024  # as the dialer has it for upstreams
_OWNER_ONLY: Final = 0o600
_ALL: Final = 0o777


class BindError(Exception):
    """A listener could not be bound; the message says which, why, and what to do."""


class Listeners:
    """The data listeners: of each address, one socket per worker slot.

    mode, owner: of unix sockets. scheme: how clients speak on the TCP ones, for `url`. handed: returns the sockets of
    an address that somebody else has bound, as the version before; none: there are none. use: what its sockets are for,
    there. Raises BindError.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        n_workers: int,
        *,
        mode: int = _OWNER_ONLY,
        owner: SocketOwner | None = None,
        scheme: str = "http",
        handed: Callable[[str], Sequence[socket.socket]] = lambda _address: (),
        use: str = "clients",
    ) -> None:
        self._scheme: Final = scheme
        self._handed: Final = handed
        self._use: Final = use
        self._names: Final[list[str]] = []
        self._urls: Final[list[str]] = []
        # The file that was bound, so that no other gateway's is removed: device and inode.
        self._files: dict[str, tuple[int, int]] = {}
        # By address, then by slot, which may have several: of a time with more workers.
        self._sockets: list[list[tuple[socket.socket, ...]]] = []
        try:
            for address in addresses:
                others = (each for each in addresses if each.kind == "tcp" and not each.is_ipv6)
                is_alone = all(each.port != address.port for each in others) or not address.port
                self._bind(address, n_workers, mode, owner, v6_only=address.is_ipv6 and not is_alone)
        except BindError:
            self.close()
            raise

    def _bind(self, address: Address, n_workers: int, mode: int, owner: SocketOwner | None, *, v6_only: bool) -> None:
        name = f"{self._use} {address}"
        found = list(self._handed(name))
        self._names.append(name)
        if address.kind == "unix":
            shared = found[0] if found else _bind_unix(address, mode, owner)
            self._sockets.append([(shared,)] * n_workers)
            with contextlib.suppress(FileNotFoundError):  # of one that was handed over somebody may have removed it
                self._files[address.path] = _identity(address.path)
            self._urls.append(f"unix:{address.path}")
            return
        if found:
            host, port = found[0].getsockname()[:2]
            self._sockets.append(_spread(found, address, port, n_workers, v6_only=v6_only))
            self._urls.append(self._url(host, port))
            return
        # SO_REUSEPORT would let two gateways share a port without a word: look first.
        probe = bind_one(address, v6_only=v6_only)
        host, port = probe.getsockname()[:2]
        probe.close()
        bound = Address(kind="tcp", host=address.host, port=port)
        sockets: list[tuple[socket.socket, ...]] = []
        self._sockets.append(sockets)
        for _ in range(n_workers):
            sockets.append((bind_one(bound, reuse_port=True, v6_only=v6_only),))
        self._urls.append(self._url(host, port))

    def _url(self, host: str, port: int) -> str:
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    def __getitem__(self, slot: int) -> tuple[socket.socket, ...]:
        """Return the slot's sockets of each address."""
        return tuple(sock for sockets in self._sockets for sock in sockets[slot])

    def by_address(self) -> dict[str, tuple[int, ...]]:
        """Return the descriptors of all sockets by address, to hand them over."""
        return {
            name: tuple(sock.fileno() for sock in dict.fromkeys(sock for slot in sockets for sock in slot))
            for name, sockets in zip(self._names, self._sockets, strict=True)
        }

    def let_go(self, taken: Container[str]) -> None:
        """Close them in this process; those that another version has taken stay open there, and so do their files."""
        self._files = {path: found for path, found in self._files.items() if f"{self._use} unix:{path}" not in taken}
        self.close()

    @property
    def url(self) -> str:
        """Where clients connect; commas between several."""
        return ",".join(self._urls)

    def of_others(self, slot: int) -> dict[int, tuple[socket.socket, ...]]:
        """Return the sockets of the other slots that are not shared by all, by slot."""
        own = self[slot]
        n_slots = len(self._sockets[0]) if self._sockets else 0
        others = {n: tuple(sock for sock in self[n] if sock not in own) for n in range(n_slots) if n != slot}
        return {n: sockets for n, sockets in others.items() if sockets}

    def close_all(self) -> None:
        """In a child that accepts no client: let go of all sockets, so that they end when the supervisor ends them."""
        for sockets in self._sockets:
            for slot in sockets:
                for sock in slot:
                    sock.close()

    def close(self) -> None:
        """Refuse connections from now on. Sockets that workers still hold stay until they let go too."""
        every, self._sockets = self._sockets, []
        for sockets in every:
            for slot in sockets:
                for sock in slot:
                    sock.close()
        # Once only: the next time, the path may be another gateway's.
        files, self._files = self._files, {}
        for path, identity in files.items():
            with contextlib.suppress(OSError):
                if _identity(path) == identity:
                    Path(path).unlink()


def _spread(
    found: Sequence[socket.socket], address: Address, port: int, n_workers: int, *, v6_only: bool
) -> list[tuple[socket.socket, ...]]:
    """Return the sockets of each slot, of those that somebody else has bound; further ones where they are too few.

    Where no more can be bound (the port is root's, or whoever bound it did so alone), slots share what there is. Of too
    many none is closed, for that would reset what is queued there: a slot then has several.
    """
    sockets = list(found)
    bound = Address(kind="tcp", host=address.host, port=port)
    with contextlib.suppress(BindError):
        while len(sockets) < n_workers:
            sockets.append(bind_one(bound, reuse_port=True, v6_only=v6_only))
    if len(sockets) < n_workers:
        return [(sockets[slot % len(sockets)],) for slot in range(n_workers)]
    return [tuple(sockets[slot::n_workers]) for slot in range(n_workers)]


def bind_one(address: Address, *, reuse_port: bool = False, v6_only: bool = False) -> socket.socket:
    """Bind and listen; a unix socket is its owner's only. Raises BindError.

    v6_only: `::` takes no IPv4 connections, for which there is another address; else it does as the system has it.
    """
    if address.kind == "unix":
        return _bind_unix(address, _OWNER_ONLY, None)
    family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if v6_only:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # For the connections that it accepts, which inherit it: to a client that reads nothing the kernel would
            # else take 4 MiB of a reply (tcp_wmem), as memory that the container pays for and no limit of ours sees.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        low = "; a port below 1024 needs root, or CAP_NET_BIND_SERVICE (systemd: AmbientCapabilities=)"
        hint = low if exc.errno == errno.EACCES else _in_use(exc)
        raise BindError(f"can't listen on {address}: {exc.strerror}{hint}") from exc
    return sock


def _in_use(exc: OSError) -> str:
    return "; is another Velox running there?" if exc.errno == errno.EADDRINUSE else ""


def _bind_unix(address: Address, mode: int, owner: SocketOwner | None) -> socket.socket:
    """Bind a path; a socket file without a listener is replaced.

    At no instant can anybody connect whom mode and owner keep out. The file is made with its mode, not given it later;
    one that gets another owner is made with no mode at all. That it does not listen yet is not enough: the kernel asks
    for the mode first, and may see the socket listen when it gets to that.
    """
    path = Path(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made = False
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _is_served(address.path):
            path.unlink()
        before = os.umask(_ALL & ~mode if owner is None else _ALL)
        try:
            sock.bind(address.path)
        finally:
            os.umask(before)
        made = True
        if owner is not None:
            _give(path, owner, mode)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        if made:
            path.unlink(missing_ok=True)
        hint = f"; make the folder {path.parent} first" if exc.errno == errno.ENOENT else _in_use(exc)
        raise BindError(f"can't listen on {address}: {exc.strerror}{hint}") from exc
    except BindError:
        sock.close()
        path.unlink(missing_ok=True)
        raise
    return sock


def _give(path: Path, owner: SocketOwner, mode: int) -> None:
    uid = -1 if owner.uid is None else owner.uid
    gid = -1 if owner.gid is None else owner.gid
    try:
        # The file itself, whatever the path leads to by then: chmod() follows symbolic links.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            itself = f"/proc/self/fd/{descriptor}"
            os.chown(itself, uid, gid)
            os.chmod(itself, mode)  # noqa: PTH101 - a descriptor
        finally:
            os.close(descriptor)
    except OSError as exc:
        hint = "; only root may give a file to another user, or to a group that it is not in itself"
        raise BindError(f"can't give unix:{path} to {owner}: {exc.strerror}{hint}") from exc


def _identity(path: str) -> tuple[int, int]:
    found = Path(path).lstat()
    return found.st_dev, found.st_ino


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except PermissionError:
            return True  # somebody else's; whether it is served can't be seen, so it is not taken away
        except OSError:
            return False
        return True


# Draining: how long connections that keep coming are still taken. A full queue takes a good second, one a turn.
_BACKLOG_S: Final = 3.0


class ClientListener:
    """The listening sockets of one worker. tls: None: none of them speaks it; else those of TCP do."""

    def __init__(self, listeners: Sequence[socket.socket], ingress: Ingress, tls: TlsIngress | None) -> None:
        self._listeners: Final = listeners
        self._ingress: Final = ingress
        self._tls: Final = tls
        self._servers: Final[list[asyncio.Server]] = []

    async def open(self) -> None:
        """Accept from now on.

        One connection a turn of the loop (libuv does no more): a burst of them holds up nobody who is being served, and
        waits in the listener's queue.
        """
        for listener in self._listeners:
            self._servers.append(await self.serve(listener))

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Accept on a socket until the server that is returned is closed; the socket stays open."""
        loop = self._ingress.loop
        # dup(): closing the server must not close what the supervisor's slot is known by in this process.
        # backlog: these listen() again, and would make the queue 100 long, too short for a burst of clients; those
        # beyond it come again after a second, or two, or four.
        sock = listener.dup()
        if listener.family == socket.AF_UNIX:
            # Its file's mode says who may connect: there is nothing that TLS would add.
            return await loop.create_unix_server(self._ingress.connection, sock=sock, backlog=BACKLOG)
        make = self._ingress.connection if self._tls is None else self._tls.connection
        return await loop.create_server(make, sock=sock, backlog=BACKLOG)

    async def leave(self) -> None:
        """Accept no more at once: whoever else has these sockets takes what is queued there."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(0)  # what is accepted becomes connections

    async def close(
        self,
        within_s: float,
        others: Sequence[socket.socket] = (),
        close_others: Callable[[], None] | None = None,
    ) -> None:
        """Take the connections that are queued, then accept no more. within_s: the most that it may take.

        others: further sockets that are served here, whose queues are taken, too. close_others: ends that.
        """
        loop = self._ingress.loop
        until_s = loop.time() + min(within_s, _BACKLOG_S)
        queues = select.poll()  # select() knows no descriptor above 1023, which many workers and addresses may reach
        for listener in (*self._listeners, *others):
            queues.register(listener, select.POLLIN)
        while queues.poll(0) and loop.time() < until_s:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        # At once: what still came into a queue that is closed would be reset.
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        if close_others is not None:
            close_others()
        await asyncio.sleep(0)  # the last ones are accepted; now they become connections
