"""Listening sockets that systemd has bound before it started this process (sd_listen_fds(3)).

The socket unit stays bound while the service is restarted: connections that come meanwhile wait.

Knows: the variables, and which socket has which address. Does not know: what listens there.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final, Self

__all__ = ["Activation", "ActivationError"]

_FIRST: Final = 3
_PID, _NUMBER, _NAMES = "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"


class ActivationError(Exception):
    """A socket that was given can't be used. The message says which, why, and what to do."""


class Activation:
    """The sockets by address, as a setting names it."""

    def __init__(self, sockets: Mapping[str, socket.socket]) -> None:
        self._sockets: Final = dict(sockets)

    def __repr__(self) -> str:
        return f"<Activation {sorted(self._sockets)}>"

    @classmethod
    def of(cls, environ: MutableMapping[str, str], pid: int) -> Self:
        """Return those of a process, and take the variables away: no other process is meant. Raises ActivationError."""
        given, number, _ = (environ.pop(name, "") for name in (_PID, _NUMBER, _NAMES))
        if given != str(pid) or not number.isdigit():
            return cls({})
        try:
            sockets = [socket.socket(fileno=fd) for fd in range(_FIRST, _FIRST + int(number))]
        except OSError as exc:
            raise ActivationError(f"{_NUMBER} is {number}, but not all of these are sockets: {exc.strerror}") from exc
        return cls({_address(sock): sock for sock in map(_checked, sockets)})

    def sockets(self, name: str) -> Sequence[socket.socket]:
        """Return the socket of an address, none: there is none. name: what for, and the address."""
        found = self._sockets.pop(name.rpartition(" ")[2], None)
        return () if found is None else (found,)

    @property
    def unused(self) -> tuple[str, ...]:
        """The addresses that nobody has asked for."""
        return tuple(self._sockets)


def _checked(sock: socket.socket) -> socket.socket:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        raise ActivationError(
            f"systemd hands over descriptor {sock.fileno()}, which is no TCP socket: "
            "expected ListenStream=IP:PORT; name unix sockets in VELOX_LISTEN"
        )
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
