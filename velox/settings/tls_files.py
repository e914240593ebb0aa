"""The PEM files that connections to upstreams are made with: checked before a handshake does it.

Knows: what the TLS library makes of them. Does not know: which setting names them.
"""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["ca_problem", "certificate_problem"]


def ca_problem(path: str) -> str:
    """Return what was expected of a file of authorities, "" if it can be used."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as exc:  # ssl.SSLError is one
        return f"expected a PEM file of certificates ({exc.strerror or 'no certificate in it'})"
    return ""


def certificate_problem(cert: str, key: str | None) -> tuple[str, str]:
    """Return "cert" or "key", the file that is wrong, and what was expected of it; "", "" if they can be used.

    They must be readable and belong together. key: None: it is in the certificate's file.
    """
    for which, path in (("cert", cert), ("key", key)):
        if path is not None:
            try:
                Path(path).read_bytes()
            except OSError as exc:
                return which, f"expected a file that can be read ({exc.strerror})"
    try:
        # An empty password: a key that has one must be an error, and not ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, "")
    except ssl.SSLError as exc:
        why = (exc.reason or "no certificate in it").replace("_", " ").lower()
        return "cert", f"expected a PEM certificate and its own private key without a password ({why})"
    return "", ""
