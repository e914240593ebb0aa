"""The server of a case as it is for users: `velox serve` with VELOX_LISTEN_HTTP2=on, before the scripted upstream.

Knows: how it is started, sockets. Does not know: the cases.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.h2spec.table import Connect, EngineName

__all__ = ["SocketLine", "serving"]

# How long a server that says nothing is listened to. Cases end by what comes; only one that goes wrong waits so long.
_SILENCE_S: Final = 5.0


class SocketLine:
    """See tests.h2spec.talker.Line."""

    def __init__(self, sock: socket.socket, host: bytes) -> None:
        self.host = host
        self._socket: Final = sock
        sock.settimeout(_SILENCE_S)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def read(self) -> bytes | None:
        try:
            return self._socket.recv(1 << 16)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@contextlib.contextmanager
def serving(name: EngineName, upstream: RecordingUpstream) -> Iterator[Connect]:
    """Start a gateway whose clients speak HTTP/2 with this engine; yield what connects to it."""
    env = {"VELOX_LISTEN_HTTP2": "on", "VELOX_HTTP2_ENGINE": name, "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
    with contextlib.ExitStack() as open_things:
        velox = open_things.enter_context(VeloxProcess({**upstream.env(), **env}))
        host = velox.base_url.removeprefix("http://").encode()

        def connect() -> SocketLine:
            return SocketLine(open_things.enter_context(velox.connect()), host)

        yield connect
