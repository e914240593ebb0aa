"""TLS towards upstreams: verification is always on, and plain text is never a fallback.

Knows: trust, versions, ALPN. Does not know: which connection uses a context.
"""

from __future__ import annotations

import ssl
from typing import Literal

__all__ = ["upstream_context"]


def upstream_context(http2: Literal["auto", "on", "off"], ca_file: str | None) -> ssl.SSLContext:
    """Build the client context. `ca_file`: PEM bundle that replaces the system's trust store.

    Raises OSError or ssl.SSLError when the bundle can't be read.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    offers = {"auto": ["h2", "http/1.1"], "on": ["h2"], "off": ["http/1.1"]}
    context.set_alpn_protocols(offers[http2])
    return context
