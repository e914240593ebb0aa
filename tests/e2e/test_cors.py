"""Web pages of elsewhere: OpenAI's SDK in a real browser, and a gateway that asks for keys."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream, healthy
from tests.e2e.tools import covers

NODE_MODULES: Final = Path(__file__).parent / "node/node_modules"
CHROMIUM: Final = shutil.which("chromium")
# No network beyond this machine, no sandbox (the tests may run as root), nothing kept.
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,900",
]
KEY: Final = "vk-of-the-page-0123456789"
# It tells the server of the page what it has seen, and then the test goes on.
PAGE: Final = """<!doctype html><script type="module">
import OpenAI from "/openai/index.mjs";
const told = {};
const client = (key) => new OpenAI({
    baseURL: "BASE/v1", apiKey: key, dangerouslyAllowBrowser: true, maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const note = async (name, work) => {
    try { told[name] = await work(); } catch (error) {
        told[name] = { status: error.status ?? null, code: error.code ?? null, kind: error.constructor.name }; }
};
await note("plain", async () => {
    const { data, response } = await client("KEY").chat.completions.create({ model: "m", messages }).withResponse();
    return { text: data.choices[0].message.content, id: response.headers.get("x-velox-request-id") };
});
await note("stream", async () => {
    let text = "";
    for await (const chunk of await client("KEY").chat.completions.create({ model: "m", messages, stream: true }))
        text += chunk.choices[0]?.delta?.content ?? "";
    return text;
});
await note("refused", () => client("wrong-key").chat.completions.create({ model: "m", messages }));
await fetch("/told", { method: "POST", body: JSON.stringify(told) });
</script>"""


class _Pages(http.server.SimpleHTTPRequestHandler):
    """Serves the page, and the SDK's files; takes what the page tells."""

    page: bytes
    told: queue.SimpleQueue[dict[str, Any]]

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(self.page, "text/html")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.told.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer(b"", "text/plain")

    def _answer(self, body: bytes, media: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextlib.contextmanager
def pages(
    make_page: str, modules: Path = NODE_MODULES
) -> Iterator[tuple[int, queue.SimpleQueue[dict[str, Any]], type[_Pages]]]:
    """Serve a page and packages on loopback; return its port and what it tells."""

    class Handler(_Pages):
        page = make_page.encode()
        told = queue.SimpleQueue()
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(modules))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], Handler.told, Handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def opened(url: str, told: queue.SimpleQueue[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Open a page in Chromium; return what it tells."""
    assert CHROMIUM is not None, "tests/install-tools.sh installs chromium"
    browser = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-port=0", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return told.get(timeout=60)
    finally:
        browser.terminate()
        browser.wait(20)


@pytest.mark.skipif(
    (CHROMIUM is None or not (NODE_MODULES / "openai").is_dir()) and os.environ.get("CI") != "true",
    reason="no Chromium, or no SDK for it: tests/install-tools.sh",
)
@pytest.mark.more
def test_openais_sdk_in_a_browser_is_answered(tmp_path: Path) -> None:
    """C17, RC8: plain, streamed, and an error that it can read, with its headers; a page of another origin: nothing."""
    with contextlib.ExitStack() as stack:
        port, told, handler = stack.enter_context(pages(""))
        env = {"VELOX_API_KEYS": KEY, "VELOX_CORS_ORIGINS": f"http://127.0.0.1:{port}", "VELOX_WORKERS": "1"}
        velox = stack.enter_context(VeloxProcess(env, ("serve", "--sim")))
        handler.page = PAGE.replace("BASE", velox.base_url).replace("KEY", KEY).encode()

        seen = opened(f"http://127.0.0.1:{port}/", told, tmp_path / "one")
        assert seen["plain"]["text"] and seen["plain"]["id"].startswith("vx-")
        assert seen["stream"]
        assert seen["refused"] == {"status": 401, "code": "auth_invalid", "kind": "AuthenticationError"}

        elsewhere = opened(f"http://localhost:{port}/", told, tmp_path / "two")
        assert {each["kind"] for each in elsewhere.values()} == {"APIConnectionError"}


@covers("VELOX_CORS_ORIGINS")
def test_page_is_asked_for_and_answered(tmp_path: Path) -> None:
    """C17, RC8: what a browser sends, without one; the question before goes nowhere, and needs no key."""
    config = tmp_path / "velox.yaml"
    config.write_text('cors: {origins: ["https://app.example", "http://localhost:*"]}\n')
    with RecordingUpstream(script=healthy) as upstream:
        env = {**upstream.env(), "VELOX_API_KEYS": KEY, "VELOX_WORKERS": "1", "VELOX_CONFIG": str(config)}
        with VeloxProcess(env) as velox:
            upstream.forget()
            for origin, status in (("https://app.example", 200), ("http://localhost:5173", 200), ("null", 403)):
                asks = {"origin": origin, "access-control-request-method": "POST"}
                reply = velox.request("OPTIONS", "/v1/chat/completions", None, asks)
                assert reply.status == status
                assert reply.header("access-control-allow-origin") == (origin if status == 200 else None)
            assert not upstream.calls
            page = {"origin": "https://app.example", "content-type": "application/json"}
            for key, status in ((KEY, 200), ("wrong", 401)):
                headers = {**page, "authorization": f"Bearer {key}"}
                reply = velox.request("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}', headers)
                assert (reply.status, reply.header("access-control-allow-origin")) == (status, page["origin"])


def test_named_page_needs_no_key_where_none_is_asked_for() -> None:
    """The operator has named it; others stay refused."""
    with RecordingUpstream(script=healthy) as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_CORS_ORIGINS": "https://app.example"}
        with VeloxProcess(env) as velox:
            for origin, status in (("https://app.example", 200), ("https://evil.example", 403)):
                reply = velox.request("GET", "/v1/models", None, {"origin": origin})
                assert reply.status == status
