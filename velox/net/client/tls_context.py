"""What TLS is spoken with clients: certificate, versions, ciphers, protocols, sessions.

Knows: the contexts of OpenSSL. Does not know: connections (client/tls.py), or where a certificate was read.

The first context is made before the workers are forked: the keys of session tickets are in it, so a client may resume
its session with any worker, and with a successor of one that died. They live as long as the gateway. A certificate that
comes later goes into the same context, which keeps them.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

__all__ = ["ServerCertificate", "renewed_context", "server_context"]

# TLS 1.2: forward secrecy and authenticated encryption only, which is all that HTTP/2 allows (RFC 9113 §9.2.2). TLS 1.3
# has nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """What clients are shown, and what they are asked for.

    client_ca_pem: b"" when clients need no certificate. key_kind: the algorithm of the key, as its object identifier.
    not_after_s: seconds since 1970.
    """

    chain_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    client_ca_pem: bytes = field(repr=False)
    key_kind: bytes
    not_after_s: int

    @property
    def not_after(self) -> str:
        """The end of its validity, for people."""
        return datetime.fromtimestamp(self.not_after_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def is_expired(self) -> bool:
        """True when no client will accept it any more."""
        return time.time() >= self.not_after_s

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use it for the handshakes that begin from now on. Raises OSError (ssl.SSLError is one)."""
        with _as_file(self.chain_pem) as chain, _as_file(self.key_pem) as key:
            # A key that asks for a password would block on the terminal: an empty one makes it an error.
            context.load_cert_chain(chain, key, password="")
        if self.client_ca_pem:
            context.load_verify_locations(cadata=self.client_ca_pem.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_REQUIRED


def server_context(certificate: ServerCertificate, protocols: tuple[str, ...]) -> ssl.SSLContext:
    """Return the context for a certificate. protocols: for ALPN, the best first. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # A client could make us work with one small message after another.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    certificate.load_into(context)
    return context


def renewed_context(
    context: ssl.SSLContext, before: ServerCertificate, now: ServerCertificate, protocols: tuple[str, ...]
) -> ssl.SSLContext:
    """Return the context for the certificate that comes after another one: the same one, where that will do.

    OpenSSL keeps a certificate for each kind of key, and never forgets an authority: then a new context is made. It has
    other keys for tickets, and with them ends what clients could have resumed. Raises OSError.
    """
    if now.key_kind != before.key_kind or now.client_ca_pem != before.client_ca_pem:
        return server_context(now, protocols)
    now.load_into(context)
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path that holds `content`, in memory only: OpenSSL's loader takes no bytes."""
    descriptor = os.memfd_create("velox-tls")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
