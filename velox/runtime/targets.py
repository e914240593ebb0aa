"""How the connections to an upstream are made, by the settings.

Knows: which settings are for connecting. Does not know: who connects, or how often.
"""

from __future__ import annotations

from dataclasses import replace

from velox.net.upstream.dialer import DialTarget
from velox.net.upstream.http2_stream import NARROW_WINDOW_BYTES
from velox.net.upstream.tls import upstream_context
from velox.policy.routes import UpstreamEntry
from velox.settings import Settings
from velox.types import Origin

__all__ = ["dial_targets"]


def dial_targets(settings: Settings, entry: UpstreamEntry, origin: Origin) -> tuple[DialTarget, DialTarget]:
    """Return the targets for requests and for WebSockets.

    A WebSocket begins on HTTP/1.1, whatever requests go over; a TLS context offers the same protocols to everybody, so
    it has another one.
    """
    files = (entry.ca_file, entry.cert_file, entry.key_file)
    is_tls = origin.scheme == "https"
    window_bytes = settings.upstream_stream_window_bytes
    target = DialTarget(
        host=origin.host,
        host_header=origin.host_header,
        http2=entry.http2,
        context=upstream_context(entry.http2, *files) if is_tls else None,
        connect_timeout_s=entry.timeouts.connect_s,
        tls_timeout_s=entry.timeouts.tls_s,
        unix_path=origin.unix_path,
        stream_window_bytes=window_bytes,
        # A client of HTTP/1.1 has one reply, which always may run ahead: nothing to widen, and no frame for it.
        narrow_window_bytes=NARROW_WINDOW_BYTES if settings.listen_http2 else window_bytes,
    )
    return target, replace(target, http2="off", context=upstream_context("off", *files) if is_tls else None)
