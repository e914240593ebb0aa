"""How a member of an upstream is reached by a proxy. A part of the composition root.

Loaded with the first proxy that there is (on_demand.py). Knows: which setting goes to which part. Does not know: what a
proxy is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from velox.net.upstream.dialer import Dialer, DialTarget
from velox.net.upstream.interface import ReadBuffer
from velox.net.upstream.proxied import ProxiedDialer, ProxyTarget
from velox.net.upstream.resolver import Resolver
from velox.net.upstream.tls import SharedContexts
from velox.policy.routes.entries import UpstreamEntry
from velox.policy.routes.proxies import Proxy
from velox.protocol.http2.engine import EngineFactory
from velox.types import Origin

__all__ = ["proxied_dialers"]


def proxied_dialers(
    targets: Iterable[DialTarget],
    entry: UpstreamEntry,
    origin: Origin,
    proxy: Proxy,
    more: tuple[Resolver, ReadBuffer, asyncio.AbstractEventLoop, EngineFactory],
    contexts: SharedContexts,
) -> Iterator[Dialer]:
    """Yield the dialers for requests and for WebSockets: these go through a tunnel to an http origin, too.

    more: what each dialer has besides; the resolver is of the proxy's host.
    """
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    target = ProxyTarget(
        called=str(proxy),
        host=proxy.host,
        authorization=proxy.authorization,
        context=contexts.context("off", entry.ca_file) if proxy.scheme == "https" else None,
        authority=f"{host}:{origin.port}".encode("ascii"),
    )
    for each, by in zip(targets, (target, replace(target, tunnels=True)), strict=True):
        yield ProxiedDialer(each, by, *more)
