"""The processes that are measured, and those they talk to: started on free ports, pinned to a core, stopped by pid.

Knows: how nginx, Velox and the bench's upstream are started. Does not know: load, figures.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import orjson
import trustme

from bench.cpu import cpu_seconds, family, memory_bytes, n_writes, user_share
from bench.machine import Cores
from bench.payloads import API_KEY, CHAT_REPLY
from bench.traffic import KEYS, MODELS_REPLY, replies

__all__ = ["Certificate", "NginxUpstream", "Server", "Servers", "answers", "get"]

_START_S: Final = 10.0
_ROOT: Final = Path(__file__).parent.parent

# {...} is filled by str.format. Keep-alive never ends: a reconnect would be measured as work for a request.
_NGINX: Final = """
daemon off; worker_processes {workers}; pid {folder}/nginx.pid; error_log {folder}/error.log warn; {user}
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; default_type application/json;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; client_max_body_size 64m;
{http}
}}
"""
_NGINX_UPSTREAM: Final = """
  {maps}
  server {{
    listen 127.0.0.1:{http1}; listen 127.0.0.1:{http2} http2; listen 127.0.0.1:{tls} ssl http2;
    ssl_certificate {chain}; ssl_certificate_key {key}; ssl_protocols TLSv1.3;
    location = /status {{ stub_status; }}
    location = /v1/models {{ return 200 '{models}'; }}
    location ~ ^/(server_info|model_info|version|loads|v1/loads|metrics)$ {{ return 200 '{{}}'; }}
    location / {{ {failing} {fields} return 200 '{reply}'; }}
  }}
"""
# A provider's fields, as bench/traffic.py has them. What changes with each reply follows from nginx's own id of the
# request, from the time, and from how many requests the connection has had. `date` and `server` are nginx's own.
_REAL_MAPS: Final = """
  map $msec $ms { ~\\.(\\d+)$ $1; default 500; }
  map $request_id $ray { "~^(.{16})" $1; default 0; }
"""
_REAL_FIELDS: Final = """
      add_header openai-organization velox-bench; add_header openai-version 2020-10-01;
      add_header openai-processing-ms 1$ms; add_header x-request-id req_$request_id;
      add_header x-ratelimit-limit-requests 30000; add_header x-ratelimit-limit-tokens 150000000;
      add_header x-ratelimit-remaining-requests 2$connection_requests;
      add_header x-ratelimit-remaining-tokens 14$connection_requests$ms;
      add_header x-ratelimit-reset-requests ${ms}ms; add_header x-ratelimit-reset-tokens 1${ms}us;
      add_header set-cookie "__cf_bm=$request_id-$msec-1.0.1.1; path=/; HttpOnly; Secure; SameSite=None";
      add_header cf-cache-status DYNAMIC; add_header cf-ray $ray-FRA; add_header alt-svc 'h3=":443"; ma=86400';
"""
_N_TEXTS: Final = 20
# One in a hundred, at random: what is random is nginx's own number of the request.
_FAILING_MAP: Final = """
  split_clients "$request_id" $is_failing {{ 1% 1; * 0; }}
"""
_FAILING: Final = """if ($is_failing) { return 500 '{"error":{"message":"overloaded","type":"server_error"}}'; }"""
_NGINX_PROXY: Final = """
  proxy_ssl_trusted_certificate {authority}; proxy_ssl_verify on; proxy_ssl_name localhost; proxy_ssl_protocols TLSv1.3;
  upstream origin {{ server {origin}; keepalive 512; keepalive_requests 1000000000; keepalive_timeout 1h; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass {scheme}://origin; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering {buffering}; proxy_request_buffering {buffering};
    }}
  }}
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate for 127.0.0.1, and of the authority that signed it."""

    authority: Path
    chain: Path
    key: Path


@dataclass(frozen=True, slots=True)
class NginxUpstream:
    """The ports on which the canned reply is given."""

    http1: int
    http2: int
    tls: int


class Server:
    """One started server. port: where it takes requests. admin: Velox's admin port, else 0."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, admin: int = 0) -> None:
        self.port: Final = port
        self.admin: Final = admin
        self._process: Final = process
        self._family: list[int] = []

    def __repr__(self) -> str:
        return f"<Server pid={self._process.pid} port={self.port}>"

    @property
    def pids(self) -> list[int]:
        """The processes of this server, itself first; they are looked up once."""
        if not self._family:
            self._family = family(self._process.pid)
        return self._family

    def cpu_s(self) -> float:
        """CPU time that all processes of this server have used so far."""
        return cpu_seconds(self.pids)

    def user_system(self) -> tuple[int, int]:
        """How many ticks of CPU time all processes of this server have spent in user mode, and in the kernel."""
        return user_share(self.pids)

    def n_writes(self) -> int:
        """How often all processes of this server have written so far."""
        return n_writes(self.pids)

    def memory_bytes(self) -> int:
        """What all processes of this server hold resident; those that live now."""
        self._family = []
        return memory_bytes(self.pids)

    def check(self) -> None:
        """Raise RuntimeError if the server has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.returncode}")

    def stop(self) -> None:
        """Ask it to end; insist after 5 s, then with all the processes that it started."""
        pids = [pid for pid in family(self._process.pid) if pid != self._process.pid]
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Servers:
    """Starts servers and, as a context manager, stops them all. folder: for configurations and logs."""

    def __init__(self, folder: Path, cores: Cores) -> None:
        self._folder: Final = folder
        self._cores: Final = cores
        self._started: Final[list[Server]] = []
        self.certificate: Final = _certificate(folder)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._started):
            server.stop()

    def nginx_upstream(
        self, *, is_failing: bool = False, equal: bool = False, cores: Sequence[int] = ()
    ) -> NginxUpstream:
        """Start an nginx that answers everything as a provider does. GET /status says how much it has answered.

        is_failing: one request in a hundred gets a 500. equal: all replies are the same, byte for byte, but for the
        date. cores: a worker for each; none given: one worker.
        """
        maps, reply = _equal_reply() if equal else _real_reply()
        ports = NginxUpstream(free_port(), free_port(), free_port())
        http = _FAILING_MAP.format() * is_failing + _NGINX_UPSTREAM.format(
            maps=maps,
            fields="" if equal else _REAL_FIELDS,
            http1=ports.http1,
            http2=ports.http2,
            tls=ports.tls,
            chain=self.certificate.chain,
            key=self.certificate.key,
            reply=reply,
            models=MODELS_REPLY.decode(),
            failing=_FAILING * is_failing,
        )
        self._nginx(http, ports.http1, cores or (self._cores.rest,))
        return ports

    def nginx_proxy(
        self, origin: int, *, buffering: Literal["on", "off"], tls: bool = False, cores: Sequence[int] = ()
    ) -> Server:
        """Start the opponent: proxy_pass with kept upstream connections, which are never HTTP/2.

        cores: a worker for each; none given: one worker.
        """
        port = free_port()
        http = _NGINX_PROXY.format(
            origin=f"127.0.0.1:{origin}",
            port=port,
            buffering=buffering,
            scheme="https" if tls else "http",
            authority=self.certificate.authority,
        )
        return self._nginx(http, port, cores or (self._cores.gateway,))

    def velox(
        self,
        origin: str,
        http2: Literal["auto", "on", "off"],
        engine: Literal["ngh2", "h2"] = "ngh2",
        more: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
        *,
        tree: Path | None = None,
        within_s: float = _START_S,
    ) -> Server:
        """Start Velox with its features on: keys, limit, metrics. more: settings of this one.

        cores: a worker for each; none given: one worker. tree: the folder that `velox` is in; None: this one. within_s:
        how long it may take until it is ready.
        """
        port, admin = free_port(), free_port()
        settings = {
            "VELOX_LISTEN": f"127.0.0.1:{port}",
            "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "VELOX_WORKERS": str(len(cores) or 1),
            "VELOX_UPSTREAM_ORIGIN": origin,
            "VELOX_UPSTREAM_HTTP2": http2,
            "VELOX_HTTP2_ENGINE": engine,
            "VELOX_UPSTREAM_CA_FILE": str(self.certificate.authority),
            "VELOX_EGRESS_POOL_CONNECTIONS": "2",
            "VELOX_RATE_LIMIT_RPM": "60000000",
            "VELOX_RATE_LIMIT_BURST": "1000000",
            "VELOX_API_KEYS": ",".join((API_KEY, *KEYS)),
            "VELOX_ACCESS_LOG": "off",
            "OPENAI_API_KEY": "sk-bench-upstream",
            **(more or {}),
        }
        command = [sys.executable, "-m", "velox", "serve"]
        process = self._start(command, cores or self._cores.gateway, settings, cwd=tree or _ROOT)
        server = self._keep(Server(process, port, admin))
        _wait_until(server, lambda: answers(admin, "/readyz"), within_s)
        return server

    def folder_of(self, name: str) -> Path:
        """Make a folder for the files of one server."""
        folder = self._folder / name
        folder.mkdir()
        return folder

    def start(
        self,
        command: Sequence[str],
        port: int,
        settings: Mapping[str, str],
        log: Path,
        is_ready: Callable[[], bool],
        *,
        within_s: float = _START_S,
    ) -> Server:
        """Start any other gateway on the gateway's core. Raises RuntimeError if it ends, or is not ready in time."""
        server = self._keep(Server(self._start(list(command), self._cores.gateway, settings, log), port))
        _wait_until(server, is_ready, within_s)
        return server

    def upstream(self, *, interval_s: float, chunks: int = 100) -> tuple[Server, int]:
        """Start bench.upstream; return it (HTTP/1.1) and its port for HTTP/2."""
        server, http2, _, _ = self._upstream(interval_s, chunks, [])
        return server, http2

    def tls_upstream(self, *, interval_s: float, chunks: int = 100) -> tuple[Server, int, int, int]:
        """Start bench.upstream with TLS besides: it, and its ports for HTTP/2, HTTP/1.1 over TLS, HTTP/2 over TLS."""
        return self._upstream(interval_s, chunks, [str(self.certificate.chain), str(self.certificate.key)])

    def _upstream(self, interval_s: float, chunks: int, files: list[str]) -> tuple[Server, int, int, int]:
        port, http2, tls, tls_http2 = free_port(), free_port(), free_port(), free_port()
        command = [sys.executable, "-m", "bench.upstream", str(port), str(http2)]
        command += ["--tls", str(tls), str(tls_http2), *files] if files else []
        command += ["--interval", str(interval_s), "--chunks", str(chunks)]
        server = self._keep(Server(self._start(command, self._cores.rest, {}), port))
        _wait_until(server, lambda: answers(port, "/count"))
        return server, http2, tls, tls_http2

    def _nginx(self, http: str, port: int, cores: Sequence[int]) -> Server:
        folder = self._folder / f"nginx-{port}"
        folder.mkdir()
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, user=user, http=http, workers=len(cores)))
        command = [
            "nginx",
            "-p",
            str(folder),
            "-c",
            str(folder / "nginx.conf"),
            "-e",
            str(folder / "error.log"),
        ]
        server = self._keep(Server(self._start(command, cores, {}), port))
        _wait_until(server, lambda: _accepts(port))
        return server

    def _start(
        self,
        command: list[str],
        cores: int | Sequence[int],
        settings: Mapping[str, str],
        file: Path | None = None,
        cwd: Path = _ROOT,
    ) -> subprocess.Popen[bytes]:
        allowed = {cores} if isinstance(cores, int) else set(cores)
        # Only what is named here: a VELOX_ variable of the caller's would change what is measured.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
        with (file or self._folder / "servers.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=environment | dict(settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _settle(allowed),  # noqa: PLW1509 - no thread runs yet
            )

    def _keep(self, server: Server) -> Server:
        self._started.append(server)
        return server


def _equal_reply() -> tuple[str, str]:
    return "", CHAT_REPLY.decode()


def _real_reply() -> tuple[str, str]:
    """Return maps and the body of a reply: its id is nginx's of the request, which chooses one of many texts, too."""
    bodies = [orjson.loads(reply.body) for reply in itertools.islice(replies(), _N_TEXTS)]
    texts = [body["choices"][0]["message"]["content"] for body in bodies]
    share = f"{100 // _N_TEXTS}%"
    choices = "".join(f'{share} "{text}"; ' for text in texts[:-1]) + f'* "{texts[-1]}";'
    body = bodies[0] | {"id": "chatcmpl-$request_id"}
    body["choices"][0]["message"]["content"] = "$text"
    return _REAL_MAPS + 'split_clients "$request_id" $text { ' + choices + " }", orjson.dumps(body).decode()


def free_port() -> int:
    """Return a port of loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> tuple[int, bytes]:
    """GET from a server on loopback. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def answers(port: int, path: str) -> bool:
    """Return True when a server on loopback answers with 200."""
    try:
        return get(port, path)[0] == 200
    except OSError:
        return False


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _settle(cores: set[int]) -> None:
    """What a server's process does before it becomes the server: thousands of connections need as many open files."""
    os.sched_setaffinity(0, cores)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _wait_until(server: Server, is_ready: Callable[[], bool], within_s: float = _START_S) -> None:
    until_s = time.monotonic() + within_s
    while not is_ready():
        server.check()
        if time.monotonic() > until_s:
            raise RuntimeError(f"{server!r} was not ready in {within_s:g} s; see servers.log")
        time.sleep(0.02)


def _certificate(folder: Path) -> Certificate:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    files = Certificate(folder / "ca.pem", folder / "chain.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(files.authority)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files.chain, append=True)
    issued.private_key_pem.write_to_path(files.key)
    return files
