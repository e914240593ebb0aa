"""Web pages and a gateway on loopback that asks for no key: what a browser sends for a page of elsewhere is refused."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, read_reply
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.tools import reason

FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt-image-1\r\n--x--\r\n'
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"}
DISGUISED = {"user-agent": "curl/8.0", "accept-language": "*"}
OURS = {"OPENAI_API_KEY": "sk-of-the-gateway", "VELOX_WORKERS": "1"}


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """An upstream that records; healthy."""
    with RecordingUpstream() as running, running.playing(healthy):
        yield running


def form(velox: VeloxProcess, **headers: str) -> tuple[int, str | None]:
    """Send a form, which needs no leave of the server's (CORS)."""
    media = {"content-type": "multipart/form-data; boundary=x"}
    reply = velox.request(
        "POST", "/v1/images/edits", FORM, media | {"host": velox.base_url.rpartition("/")[2]} | headers
    )
    return reply.status, None if reply.status == 200 else reason(reply)


def test_page_from_elsewhere_gets_nothing_without_a_key(upstream: RecordingUpstream) -> None:
    """Not the first time, and not when its head is known; a page of this machine is served."""
    with VeloxProcess({**upstream.env(), **OURS}) as velox:
        for _ in range(6):
            assert form(velox, origin="https://evil.example") == (403, "forbidden")
            assert form(velox, origin="null") == (403, "forbidden")
            assert form(velox, origin="http://localhost:3000") == (200, None)
            assert form(velox) == (200, None)
        assert len(upstream.calls) == 12


def test_name_of_a_page_is_no_name_of_ours(upstream: RecordingUpstream) -> None:
    """DNS rebinding: the browser takes the page and the gateway for one, and sends the page's name."""
    names = {"localhost:80": 200, "app.localhost": 200, "[::1]:80": 200, "GW.example.": 200, socket.gethostname(): 200}
    names |= {"host.docker.internal": 200, "evil.example": 403, "evil.example:8080": 403}
    with VeloxProcess({**upstream.env(), **OURS, "VELOX_HOSTS": "gw.example"}) as velox:
        for _ in range(4):
            for name, status in names.items():
                assert form(velox, host=name, **BROWSER)[0] == status, name
                assert form(velox, host=name, **DISGUISED)[0] == status, "Firefox lets a page choose this name"
                assert form(velox, host=name)[0] == 200, "no browser, so no page"


def test_where_a_key_is_asked_for_pages_may_ask(upstream: RecordingUpstream) -> None:
    """The key is what tells who may; the name does not matter then, as it does not beyond loopback."""
    page = {"origin": "https://ui.example", "host": "gw.example", **BROWSER}
    with VeloxProcess({**upstream.env(), **OURS, "VELOX_API_KEYS": "vk-1"}) as velox:
        assert form(velox, **page) == (401, "auth_invalid")
        assert form(velox, authorization="Bearer vk-1", **page) == (200, None)
    port = {"VELOX_LISTEN": "0.0.0.0:0", "VELOX_AUTH": "none"}
    with VeloxProcess({**upstream.env(), **OURS, **port}) as velox:
        assert form(velox, host="gw", **BROWSER) == (200, None)
        assert form(velox, **page) == (403, "forbidden")


def test_unix_socket_has_no_name(upstream: RecordingUpstream) -> None:
    """No page gets there, also if there is a port beside it, and its heads are the same."""
    head = b"GET /v1/models HTTP/1.1\r\nhost: any.name\r\nuser-agent: Mozilla/5.0 (X11)\r\n\r\n"
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "velox.sock")
        with VeloxProcess({**upstream.env(), **OURS, "VELOX_LISTEN": f"unix:{path},127.0.0.1:0"}) as velox:
            address = velox.base_url.rpartition("/")[2].partition(":")
            for _ in range(4):
                for family, where, status in (
                    (socket.AF_UNIX, path, 200),
                    (socket.AF_INET, ("127.0.0.1", int(address[2])), 403),
                ):
                    with socket.socket(family) as sock:
                        sock.settimeout(10)
                        sock.connect(where)
                        sock.sendall(head)
                        assert read_reply(sock).status == status


@pytest.mark.parametrize("keys", [{}, {"VELOX_API_KEYS": "vk-0123456789"}])
def test_probes_at_the_clients_port_are_answered_here(upstream: RecordingUpstream, keys: dict[str, str]) -> None:
    """C33, C34: without a key, whether keys are asked for or not; no provider is asked with its own."""
    with VeloxProcess({**upstream.env(), **OURS, **keys}) as velox:
        upstream.forget()
        for _ in range(3):  # the head is known then
            for path in ("/", "/api/hello", "/health", "/healthz", "/readyz", "/health/liveliness", "/v1/health"):
                assert velox.request("GET", path).status == 200, path
                assert velox.request("HEAD", path).body == b""
        refused = velox.request("POST", "/api/event_logging/batch", b"{}", {"content-type": "application/json"})
        assert refused.status == (401 if keys else 404)
        assert not upstream.calls
