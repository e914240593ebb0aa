"""What docs/tls.md and docs/unix-socket.md show is run as it stands there, with other ports, names and paths."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.tls_clients import TlsFiles, tls_connect
from tests.markdown import ROOT, blocks, commands

TLS = ROOT / "docs/tls.md"
UNIX = ROOT / "docs/unix-socket.md"
ENV = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


def settings(command: str) -> dict[str, str]:
    """Return the variables that a command sets in front of itself."""
    return dict(word.split("=", 1) for word in shlex.split(command) if word.startswith("VELOX_"))


def run_snippet(text: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=ENV | env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tls_command_serves_tls(tmp_path: Path) -> None:
    """The variables of the page's first command, with files of a test."""
    (command,) = [command for command in commands(TLS) if command.endswith("serve")]
    files = TlsFiles(tmp_path)
    env = settings(command) | {"VELOX_LISTEN": "0.0.0.0:0", "VELOX_WORKERS": "1"} | files.env()
    assert set(env) == set(settings(command)) | {"VELOX_WORKERS"}
    with VeloxProcess(env, ("serve", "--sim")) as velox, tls_connect(velox, files.context()) as secured:
        secured.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        assert secured.recv(100).startswith(b"HTTP/1.1 401 ")


def test_client_certificates_are_made_and_used_as_shown(tmp_path: Path) -> None:
    """Three commands make an authority and a certificate; the snippet gets in with it, and not without."""
    for command in commands(TLS):
        if command.startswith("openssl "):
            subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True, timeout=60)
    server = tmp_path / "server"
    server.mkdir()
    files = TlsFiles(server)
    trusted = server / "ca.pem"
    files.authority.cert_pem.write_to_path(str(trusted))
    env = {**files.env(), "VELOX_TLS_CLIENT_CA": str(tmp_path / "clients.pem"), "VELOX_WORKERS": "1"}
    (snippet,) = blocks(TLS, "python")
    with VeloxProcess(env, ("serve", "--sim")) as velox:
        text = snippet.replace("https://velox.example.com:8443", velox.base_url)
        assert run_snippet(text, tmp_path, {"SSL_CERT_FILE": str(trusted)}) == "velox-sim"
        without = "".join(line for line in text.splitlines(keepends=True) if "load_cert_chain" not in line)
        with pytest.raises(AssertionError, match="APIConnectionError"):
            run_snippet(without, tmp_path, {"SSL_CERT_FILE": str(trusted)})


def test_unix_command_and_snippet_work(tmp_path: Path) -> None:
    """The command's variable, with a path of a test; the snippet through it."""
    (command,) = [command for command in commands(UNIX) if command.endswith("serve")]
    path = tmp_path / "velox.sock"
    assert settings(command) == {"VELOX_LISTEN": "unix:/run/velox/velox.sock"}
    (snippet,) = blocks(UNIX, "python")
    with VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "1"}, ("serve", "--sim")):
        assert run_snippet(snippet.replace("/run/velox/velox.sock", str(path)), tmp_path, {}) == "velox-sim"
    until(lambda: not path.exists(), "it is removed")
