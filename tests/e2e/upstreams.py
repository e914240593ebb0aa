"""Real servers as upstreams, each a child process on a free loopback port: nginx, nghttpd, Velox's simulator.

Knows: how each is configured, started and ended. Does not know: Velox, or what a test asks. The scripted upstream,
which misbehaves on demand and records what it gets, is in recording.py.

    with start_sim() as sim, start_nginx(sim.url, certificates) as nginx:
        VeloxProcess(nginx.env())
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.e2e.fork_server import fork_server
from tests.e2e.harness import START_S, LineLog

__all__ = [
    "CHAT_JSON",
    "CHAT_SSE",
    "Certificates",
    "Upstream",
    "accepts",
    "find_tool",
    "make_certificates",
    "nghttpd_command",
    "start_nghttpd",
    "start_nginx",
    "start_sim",
]

_TRIES: Final = 5  # a port that was free may be taken before the server binds it

CHAT_JSON: Final = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"canned","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello from afar."},"finish_reason":"stop","logprobs":null}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}'
)


def chat_chunk(text: str, finish: str | None = None) -> bytes:
    """Return one event of a streamed chat completion."""
    reason = b"null" if finish is None else b'"%b"' % finish.encode()
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"canned",'
        b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (text.encode(), reason)
    )


CHAT_SSE: Final = (
    chat_chunk("Hello ") + chat_chunk("from ") + chat_chunk("afar.") + chat_chunk("", "stop") + b"data: [DONE]\n\n"
)


@dataclass(frozen=True)
class Certificates:
    """A certificate for 127.0.0.1 and localhost, and the authority that signed it. Paths of PEM files."""

    ca_file: str
    cert_file: str
    key_file: str

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        """Return a server's context that offers `protocols` by ALPN."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        context.set_alpn_protocols(list(protocols))
        return context


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and a certificate signed by it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    for index, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(str(cert), append=index > 0)
    issued.private_key_pem.write_to_path(str(key))
    return Certificates(str(ca), str(cert), str(key))


@dataclass(frozen=True)
class Upstream:
    """A running server. url: its origin; ca_file: "" for plain text; http2: it needs prior knowledge."""

    url: str
    ca_file: str = ""
    http2: bool = False

    def env(self) -> dict[str, str]:
        """Return the settings that point a gateway at it."""
        env = {"VELOX_UPSTREAM_ORIGIN": self.url}
        if self.ca_file:
            env["VELOX_UPSTREAM_CA_FILE"] = self.ca_file
        if self.http2:
            env["VELOX_UPSTREAM_HTTP2"] = "on"
        return env


@contextlib.contextmanager
def start_sim(*options: str, http2: bool = False) -> Iterator[Upstream]:
    """Start `velox sim`: 8 tokens as fast as they go, unless `options` say otherwise. http2: prior knowledge (h2c)."""
    quick = ("--listen", "127.0.0.1:0", "--ttft", "1ms", "--token-rate", "0", "--tokens", "8")
    process = fork_server().start(("sim", *quick, *options), os.environ)
    output, errors = LineLog(process.stdout, "sim-stdout"), LineLog(process.stderr, "sim-stderr")
    try:
        line = output.wait(lambda line: "listening on" in line, START_S)
        yield Upstream(line.rpartition(" ")[2], http2=http2)
    finally:
        process.kill()
        process.wait()
        output.close()
        errors.close()


@contextlib.contextmanager
def start_nginx(behind: str, certificates: Certificates | None) -> Iterator[Upstream]:
    """Start nginx, with TLS and HTTP/2 where `certificates` are given, else plain HTTP/1.1.

    It passes everything on to the origin `behind`, without buffering replies, as a provider's front door does.
    """
    server = find_tool("nginx")
    with tempfile.TemporaryDirectory() as folder:

        def command(port: int) -> Sequence[str]:
            listen = f"127.0.0.1:{port}"
            if certificates is not None:
                listen += f" ssl http2; ssl_certificate {certificates.cert_file}"
                listen += f"; ssl_certificate_key {certificates.key_file}"
            config = Path(folder, "nginx.conf")
            config.write_text(_NGINX.format(folder=folder, listen=listen, behind=behind.removeprefix("http://")))
            return [server, "-p", folder, "-c", str(config), "-e", f"{folder}/error.log"]

        with _served(command) as port:
            if certificates is None:
                yield Upstream(f"http://127.0.0.1:{port}")
            else:
                yield Upstream(f"https://127.0.0.1:{port}", certificates.ca_file)


_NGINX: Final = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    upstream behind {{ server {behind}; keepalive 32; }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextlib.contextmanager
def start_nghttpd(
    certificates: Certificates, *options: str, files: dict[str, bytes] | None = None
) -> Iterator[Upstream]:
    """Start nghttpd (HTTP/2 over TLS) over a folder of files; a POST gets the file of its path as well.

    Beside `files` there are chat/completions.json and .sse below /v1, and /v1/models for the warm-up.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = nghttpd_command(certificates, Path(folder), *options, files=files)
        with _served(command) as port:
            yield Upstream(f"https://127.0.0.1:{port}", certificates.ca_file)


def nghttpd_command(
    certificates: Certificates, folder: Path, *options: str, files: dict[str, bytes] | None = None
) -> Callable[[int], Sequence[str]]:
    """Write the files that nghttpd serves (see start_nghttpd); return the command for a port."""
    server = find_tool("nghttpd")
    types = folder / "types"
    types.write_text("application/json json\ntext/event-stream sse\n")
    canned = {
        "v1/chat/completions.json": CHAT_JSON,
        "v1/chat/completions.sse": CHAT_SSE,
        "v1/models": b"{}",
    }
    for name, content in (canned | (files or {})).items():
        path = folder / "htdocs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def command(port: int) -> Sequence[str]:
        tls = (certificates.key_file, certificates.cert_file)
        where = ("-a", "127.0.0.1", "-d", str(folder / "htdocs"), f"--mime-types-file={types}")
        return [server, *where, *options, str(port), *tls]

    return command


@contextlib.contextmanager
def _served(command: Callable[[int], Sequence[str]]) -> Iterator[int]:
    """Run a server that cannot choose a port itself; yield the port once it accepts."""
    for _ in range(_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            command(port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            if accepts(port, process):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"it does not start: {command(port)}")


def accepts(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server takes connections; False when it has ended instead."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.005)  # a server gives no other sign that it listens
        else:
            return process.poll() is None
    return False


def find_tool(name: str) -> str:
    """Return a server's path; without it the test is skipped, and with CI=true it fails."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed: tests/install-tools.sh")
    if found is None:
        pytest.skip(f"{name} is not installed: tests/install-tools.sh")
    return found
