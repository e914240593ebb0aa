"""Sees whether a peer does what is measured: replies of all sizes, events as they come, no one without the key.

Knows: what the bench asks of a gateway. Does not know: load, figures.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.machine import Cores
from bench.payloads import API_KEY, CHAT_PATH, CHAT_REPLY, SSE_LAST, chat_body, large_body
from bench.peers.catalogue import Origin, PeerError, peer
from bench.peers.starting import chat_status, start
from bench.servers import Servers

__all__ = ["check"]

_SIZES: Final = (750, 64_000, 2_000_000)
_CHUNKS: Final = 20
_INTERVAL_S: Final = 0.02


def check(name: str, cores: Cores) -> dict[str, str]:
    """Start a peer for each kind of upstream that it has, and say what it does. Raises PeerError."""
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), cores) as servers:
        ports = servers.nginx_upstream(equal=True)
        origin = Origin(ports.http1, ports.http2, ports.tls, servers.certificate.authority)
        found = {}
        for upstream in sorted(peer(name).upstreams):
            began_s = time.monotonic()
            gateway = start(name, servers, origin, upstream=upstream, streaming=False)
            started_s = time.monotonic() - began_s
            found[upstream] = f"{_sizes(name, gateway.port)}, ready in {started_s:.1f} s"
            gateway.stop()
        source, http2, tls, tls_http2 = servers.tls_upstream(interval_s=_INTERVAL_S, chunks=_CHUNKS)
        # A stream over each, too. TLS: HTTP/2 where the peer has it.
        tls = tls_http2 if "http2" in peer(name).upstreams else tls
        origin = Origin(source.port, http2, tls, servers.certificate.authority)
        for upstream in sorted(peer(name).upstreams):
            gateway = start(name, servers, origin, upstream=upstream, streaming=True)
            found[upstream] += f", {_stream(name, gateway.port)}"
            refusal = chat_status(gateway.port, "wrong")
            found["wrong key"] = "passed on" if refusal == 200 else f"refused: {refusal}"
            gateway.stop()
    return found


def _sizes(name: str, port: int) -> str:
    for size in _SIZES:
        body = chat_body(stream=False) if size == _SIZES[0] else large_body("image", size)
        with _ask(port, body) as reply:
            content = reply.read()
        if reply.status != 200 or b"chatcmpl-" not in content:
            raise PeerError(f"{name} answered a request of {size} bytes with {reply.status}: {content[:300]!r}")
    return "bodies to 2 MB" + (", reply as it was" if content == CHAT_REPLY else "")


def _stream(name: str, port: int) -> str:
    # The first one may find a peer that still loads what it needs for streams.
    with _ask(port, chat_body(stream=True)) as reply:
        reply.read()
    content, arrived_s = b"", []
    with _ask(port, chat_body(stream=True)) as reply:
        while piece := reply.read1():
            content += piece
            arrived_s += [time.monotonic()] * piece.count(b"data: ")
    if len(arrived_s) < _CHUNKS + 1 or not content.rstrip().endswith(SSE_LAST.rstrip()):
        raise PeerError(f"{name} passed another stream than it got: {reply.status} {content[-300:]!r}")
    longest_s = max(after - before for before, after in itertools.pairwise(arrived_s))
    # Held back until the end, or for a while, some would come at once.
    took_s = arrived_s[-1] - arrived_s[0]
    if took_s < _CHUNKS * _INTERVAL_S * 0.8:
        raise PeerError(f"{name} holds events back: {_CHUNKS} x {_INTERVAL_S:g} s came within {took_s:.3f} s")
    return f"events as they come (longest gap {longest_s * 1e3:.0f} ms of {_INTERVAL_S * 1e3:.0f})"


@contextlib.contextmanager
def _ask(port: int, body: bytes) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    try:
        connection.request("POST", CHAT_PATH, body, headers)
        yield connection.getresponse()
    finally:
        connection.close()
