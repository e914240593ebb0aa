"""What TLS is spoken with clients: versions, ciphers, protocols, sessions.

Knows: the contexts of OpenSSL. Does not know: connections (client/tls.py), or files.

The first context is made before the workers are forked: the keys of session tickets are in it, so a client may resume
its session with any worker, and with a successor of one that died. They live as long as the gateway. A certificate that
comes later goes into the same context, which keeps them.
"""

from __future__ import annotations

import ssl
from typing import Final, Protocol

__all__ = ["Certificate", "renewed_context", "server_context"]

# TLS 1.2: forward secrecy and authenticated encryption only, which is all that HTTP/2 allows (RFC 9113 §9.2.2). TLS 1.3
# has nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class Certificate(Protocol):
    """A certificate with its private key, as they were read and checked.

    key_kind: the algorithm of the key. client_ca_pem: b"" when clients need no certificate.
    """

    @property
    def key_kind(self) -> bytes: ...

    @property
    def client_ca_pem(self) -> bytes: ...

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use it for the handshakes that begin from now on. Raises OSError (ssl.SSLError is one)."""


def server_context(certificate: Certificate, protocols: tuple[str, ...]) -> ssl.SSLContext:
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
    context: ssl.SSLContext, before: Certificate, now: Certificate, protocols: tuple[str, ...]
) -> ssl.SSLContext:
    """Return the context for the certificate that comes after another one: the same one, where that will do.

    OpenSSL keeps a certificate for each kind of key, and never forgets an authority: then a new context is made. It has
    other keys for tickets, and with them ends what clients could have resumed. Raises OSError.
    """
    if now.key_kind != before.key_kind or now.client_ca_pem != before.client_ca_pem:
        return server_context(now, protocols)
    now.load_into(context)
    return context
