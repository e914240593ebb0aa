"""A connection to the admin listener of a running gateway, for commands.

Knows: TCP, TLS and unix sockets, the token, why there may be no answer, and how an error of the API (velox/admin/api)
looks. Does not know: what is asked (reload_call.py, health_call.py), or where the listener is (settings/loading.py).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any, Final

from velox.types import Address, Secret

__all__ = [
    "ASKS",
    "ELSEWHERE",
    "AdminCallError",
    "AdminCaller",
    "AdminConnection",
    "ApiRefusalError",
    "anyone",
    "only",
    "why_unreached",
]

ASKS: Final = "it asks for a token: set VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE as the gateway has it"
ELSEWHERE: Final = "if its admin listener is elsewhere, give --config, VELOX_CONFIG or --admin as the gateway has it"
_MOST_BYTES: Final = 64 * 2**20


class AdminCallError(Exception):
    """The listener could not be asked; the message says why, and what to do."""


class ApiRefusalError(Exception):
    """The API was asked, and answers with an error; the message has what it says."""


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


class AdminCaller:
    """Asks a listener as its operator. cert: file with the certificate that it shows; None: it has no TLS.

    Raises AdminCallError for a file that can't be read.
    """

    def __init__(self, address: Address, token: Secret | None, cert: str | None, timeout_s: float) -> None:
        try:
            context = None if cert is None else only(cert)
        except OSError as exc:
            raise AdminCallError(f"VELOX_ADMIN_TLS_CERT is {cert!r}: it can't be read ({exc.strerror})") from exc
        self._address: Final = address
        self._connection: Final = AdminConnection(address, context, timeout_s)
        self._headers: Final = {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Send a request without a body; return status and body of its answer. Raises AdminCallError."""
        try:
            self._connection.request(method, path, headers=self._headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as exc:
            why = why_unreached(exc)
            raise AdminCallError(f"the gateway can't be reached at {self._address} ({why}); {ELSEWHERE}") from exc

    def ask_api(self, method: str, path: str, *fields: str) -> dict[str, Any]:
        """Ask the API; return its answer, which has these fields. Raises AdminCallError, ApiRefusalError."""
        status, body = self.ask(method, path)
        if status == 401:
            raise AdminCallError(f"the gateway at {self._address} was not asked: {ASKS}")
        try:
            answer: dict[str, Any] = json.loads(body)
            if status == 200 and answer.keys() >= set(fields):
                return answer
            says = answer["error"]["message"]
        except (ValueError, TypeError, LookupError, AttributeError):
            what = f"what answers at {self._address} is no admin listener of Velox ({status}); {ELSEWHERE}"
            raise AdminCallError(what) from None
        raise ApiRefusalError(f"the gateway at {self._address} says: {says}")

    def close(self) -> None:
        """Close the connection. The next request makes another one."""
        self._connection.close()


def why_unreached(exc: OSError | http.client.HTTPException) -> str:
    """Return what is said of a request that got no answer."""
    return exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
