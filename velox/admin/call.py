"""A connection to the admin listener of a running gateway, for commands.

Knows: TCP, TLS and unix sockets. Does not know: what is asked (reload_call.py, health_call.py), or where the listener
is (settings/loading.py).
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Final

from velox.types import Address

__all__ = ["AdminConnection", "anyone", "only"]


def anyone() -> ssl.SSLContext:
    """Return a context that trusts whoever answers: for questions with nothing secret in them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def only(cert: str) -> ssl.SSLContext:
    """Return a context that trusts this certificate only, whatever name the listener is reached by."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cert)
    return context


class AdminConnection(http.client.HTTPConnection):
    """To an address as the settings have it, a unix socket too. Where others may come from, this machine's loopback."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
        # A Host that every admin listener takes.
        super().__init__(host or "localhost", address.port or None, timeout=timeout_s)
        self._address: Final = address
        self._tls: Final = tls
        self._timeout_s: Final = timeout_s

    def connect(self) -> None:
        """Connect, as the library asks."""
        if self._address.kind == "tcp":
            super().connect()
            if self._tls is not None:
                self.sock = self._tls.wrap_socket(self.sock)
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._address.path)
