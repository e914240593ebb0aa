"""A real outgoing proxy, tinyproxy, before upstreams: the rules of the strict fake one are those of real ones, too."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import free_port
from tests.e2e.upstreams import Certificates, make_certificates

pytestmark = pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of the upstream."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def _tinyproxy(folder: Path, login: str = "") -> Iterator[int]:
    """Run it; the value is its port. login: "USER PASSWORD" that it wants."""
    port, file = free_port(), folder / "tinyproxy.conf"
    auth = f"BasicAuth {login}\n" if login else ""
    file.write_text(f"Port {port}\nListen 127.0.0.1\nTimeout 30\nAllow 127.0.0.1\n{auth}")
    process = subprocess.Popen(
        ["tinyproxy", "-d", "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        until(lambda: _is_open(port), "tinyproxy listens")
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_upstream_is_asked_by_tinyproxy(scheme: str, http2: bool, certificates: Certificates, tmp_path: Path) -> None:
    """With credentials, by a tunnel or by absolute targets; a wrong password is told of."""
    with (
        RecordingUpstream(http2=http2, certificates=certificates if scheme == "https" else None) as upstream,
        _tinyproxy(tmp_path, "velox word") as port,
    ):
        file = tmp_path / "velox.yaml"
        own = {"name": "u", "origin": f"{scheme}://localhost:{upstream.port}", "proxy": "env:EGRESS", "connections": 1}
        own |= {"ca_file": certificates.ca_file} if scheme == "https" else {"http2": "on" if http2 else "off"}
        file.write_text(json.dumps({"upstreams": [own]}))
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1"}
        with VeloxProcess({**env, "EGRESS": f"http://velox:word@127.0.0.1:{port}"}) as velox:
            velox.wait_warm()
            assert [velox.request("POST", "/v1/chat/completions", CHAT).status for _ in range(3)] == [200] * 3
        assert upstream.calls and all("proxy-authorization" not in dict(call.headers) for call in upstream.calls)
        if scheme == "http" and not http2:
            return  # a refusal of its own passes there as the server's: a 401 with a page, which it then cuts
        with VeloxProcess({**env, "EGRESS": f"http://velox:wrong@127.0.0.1:{port}"}) as velox:
            reply = velox.request("POST", "/v1/chat/completions", CHAT)
    assert (reply.status, reply.error()["code"]) == (502, "upstream_connect")
    assert str(reply.error()["message"]).startswith(f"the proxy http://127.0.0.1:{port} does not ")
