"""A collector of traces as strict as OTLP is: it reads what comes by the official package, and refuses all else."""

from __future__ import annotations

import gzip
import http.server
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.watching import until

__all__ = ["Collector", "attributes_of"]


def attributes_of(span: Any) -> dict[str, object]:
    """Return the attributes of a span or a resource. Asserts that no name comes twice."""
    found = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    assert len(found) == len(span.attributes)
    return found


class Collector:
    """Serves on a port of its own. status: what it answers; None: nothing, for ever. tls: it speaks it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.status: int | None = 200
        self.requests: Final[list[tuple[dict[str, str], ExportTraceServiceRequest]]] = []
        self.n_asked = 0
        self._closing: Final = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.take(self)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self._server: Final = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme: Final = "http" if tls is None else "https"
        if tls is not None:
            # A handshake that fails is an OSError of accept(), which the server passes over.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread: Final = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def take(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.n_asked += 1
        body = handler.rfile.read(int(handler.headers["content-length"]))
        if self.status is None:
            self._closing.wait()
            return
        status = self.status
        if status == 200:
            assert handler.path == "/v1/traces" and handler.headers["content-type"] == "application/x-protobuf"
            data = gzip.decompress(body) if handler.headers["content-encoding"] == "gzip" else body
            self.requests.append((dict(handler.headers.items()), ExportTraceServiceRequest.FromString(data)))
        handler.send_response(status)
        handler.send_header("content-length", "0")
        handler.end_headers()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait(self, wanted: Callable[[list[Span]], bool]) -> list[Span]:
        """Return the spans once they are as wanted."""
        until(lambda: wanted(self.spans), "spans")
        return self.spans

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
