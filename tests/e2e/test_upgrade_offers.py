"""Clients that offer HTTP/2 with each request, as they are by default: they are served over HTTP/1.1."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.tools import CHAT
from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE, find_tool

JDK_CLIENT = REPOSITORY / "tests/e2e/java/JdkClient.java"
OFFERED = {"upgrade", "http2-settings", "connection", "expect"}


@pytest.fixture(scope="module")
def recording() -> Iterator[RecordingUpstream]:
    """An upstream that records what reaches it."""
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module", params=["off", "on"], ids=["http1", "http2 on the same port"])
def velox(recording: RecordingUpstream, request: pytest.FixtureRequest) -> Iterator[VeloxProcess]:
    """A gateway in front of it."""
    with VeloxProcess({**recording.env(), "VELOX_WORKERS": "1", "VELOX_LISTEN_HTTP2": request.param}) as running:
        running.wait_warm()
        yield running


def shows_no_offer(calls: list[Call]) -> bool:
    """True when nothing of an offer went up."""
    return not any(name in OFFERED for call in calls for name, _ in call.headers)


def run(*command: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.slow
@pytest.mark.more
def test_jdk_client_with_its_defaults_is_served(recording: RecordingUpstream, velox: VeloxProcess) -> None:
    """java.net.http.HttpClient, with and without bodies, with Expect, streamed, many at a time."""
    find_tool("javac")  # `java FILE.java` needs the compiler, which a JRE does not have
    recording.forget()

    printed = run(find_tool("java"), str(JDK_CLIENT), velox.base_url)

    n_chat, n_events = len(CHAT_JSON), len(CHAT_SSE)
    assert printed.splitlines() == [
        "get 200 HTTP_1_1 27",
        f"post 200 HTTP_1_1 {n_chat}",
        f"chunked 200 HTTP_1_1 {n_chat}",
        f"expect 200 HTTP_1_1 {n_chat}",
        f"stream 200 HTTP_1_1 {n_events}",
        "large 200 HTTP_1_1 27",
        "many 20",
    ]
    assert [len(call.body) for call in recording.calls[:6]] == [0, 27, 27, 27, 41, 300_000]
    assert shows_no_offer(recording.calls)


def test_curl_that_offers_http2_is_served(recording: RecordingUpstream, velox: VeloxProcess, tmp_path: Path) -> None:
    """`curl --http2`, with a body of each kind, and twice on one connection."""
    curl = (find_tool("curl"), "--http2", "--silent", "--show-error", "--noproxy", "*", "--fail")
    chat = f"{velox.base_url}/v1/chat/completions"
    large = tmp_path / "large"
    large.write_bytes(bytes(2_000_000))
    recording.forget()

    shown = run(*curl, "--include", f"{velox.base_url}/v1/models")
    post = (*curl, "--header", "Content-Type: application/json", "--data", CHAT.decode())
    answers = [
        run(*post, chat),
        run(*post, "--header", "Transfer-Encoding: chunked", chat),
        run(*post, "--header", "Expect: 100-continue", chat),
        run(*post, chat, chat),
    ]
    run(*curl, "--upload-file", str(large), f"{velox.base_url}/v1/files")

    assert shown.startswith("HTTP/1.1 200 OK\n")
    assert answers == [CHAT_JSON.decode()] * 3 + [CHAT_JSON.decode() * 2]
    assert [len(call.body) for call in recording.calls] == [0, *[len(CHAT)] * 5, 2_000_000]
    assert shows_no_offer(recording.calls)
