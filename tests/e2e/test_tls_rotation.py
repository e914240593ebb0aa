"""TLS over the life of a gateway: certificates that change, workers that die, drains."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import Call, RecordingUpstream, Script
from tests.e2e.tls_clients import TlsFiles, shown_digest, tls_connect, tls_sdk
from tests.e2e.upstreams import CHAT_SSE

pytestmark = pytest.mark.more

SIM = ("serve", "--sim")
MESSAGES = [{"role": "user", "content": "hi"}]
GET = b"GET /v1/models HTTP/1.1\r\nhost: velox.test\r\n\r\n"
TAKEN = 'velox_tls_certificate_reloads_total{result="taken"}'
REFUSED = 'velox_tls_certificate_reloads_total{result="refused"}'


async def held_stream(call: Call) -> None:
    """Script: the head and half of a stream, and the rest after a step of the test."""
    half = len(CHAT_SSE) // 2
    await call.head(200, [("content-type", "text/event-stream")])
    await call.data(CHAT_SSE[:half])
    await call.step()
    await call.data(CHAT_SSE[half:])
    await call.end()


class Load:
    """Threads that ask over and over, on new connections and on kept ones, until the block ends; failures: theirs."""

    def __init__(self, velox: VeloxProcess, context: ssl.SSLContext) -> None:
        self.failures: list[BaseException] = []
        self.n_answers = 0
        self._velox = velox
        self._context = context
        self._over = threading.Event()
        asked = (self._ask_anew, self._ask_anew, self._ask_on, self._stream)
        self._threads = [threading.Thread(target=self._run, args=(ask,)) for ask in asked]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except BaseException as exc:
            self.failures.append(exc)

    def _ask_anew(self) -> None:
        while not self._over.is_set():
            with tls_connect(self._velox, self._context) as secured:
                secured.sendall(GET)
                assert secured.recv(65536).startswith(b"HTTP/1.1 200 ")
                self.n_answers += 1

    def _ask_on(self) -> None:
        with tls_connect(self._velox, self._context) as secured:
            while not self._over.is_set():
                secured.sendall(GET)
                assert secured.recv(65536).startswith(b"HTTP/1.1 200 ")
                self.n_answers += 1

    def _stream(self) -> None:
        with tls_sdk(self._velox, self._context) as sdk:
            while not self._over.is_set():
                chunks = list(sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True))
                assert chunks[-1].choices[0].finish_reason == "stop"
                self.n_answers += 1


def wait_shown(velox: VeloxProcess, files: TlsFiles) -> None:
    """Wait until every worker shows the certificate of now: it takes many handshakes to meet each."""
    until(lambda: {shown_digest(velox, files.context()) for _ in range(12)} == {files.digest}, "the new one is shown")


@pytest.mark.more
def test_certificates_change_under_load_without_one_failure(tmp_path: Path) -> None:
    """New connections, kept ones and streams go on; each new certificate is shown by every worker."""
    files = TlsFiles(tmp_path)
    settings = {"VELOX_WORKERS": "2", "VELOX_RATE_LIMIT_RPM": "0"}
    with VeloxProcess({**files.env(), **settings}, SIM) as velox, Load(velox, files.context()) as load:
        first = files.digest
        for n in range(1, 5):
            files.rotate()
            velox.wait_metric(TAKEN, lambda taken, n=n: taken == n)
            wait_shown(velox, files)
        assert files.digest != first
        until(lambda: load.n_answers > 100 or bool(load.failures), "there was load", 30)
        failed = sum(n for name, n in velox.metrics().items() if name.startswith("velox_tls_handshake_failures"))
    assert load.failures == [] and failed == 0


def test_pair_that_does_not_fit_keeps_the_old_one(tmp_path: Path) -> None:
    """U12: one line in the log and a count; when the files are right again they are taken."""
    files = TlsFiles(tmp_path)
    with VeloxProcess({**files.env(), "VELOX_WORKERS": "2"}, SIM) as velox:
        shown, key = files.digest, files.key.read_bytes()
        files.rotate()
        good = files.key.read_bytes()
        files.key.write_bytes(key)
        velox.wait_metric(REFUSED, lambda n: n == 1)
        line = velox.wait_log(lambda line: "the previous one stays" in line)
        assert "VELOX_TLS_KEY" in line and "PRIVATE" not in line
        assert {shown_digest(velox, files.context()) for _ in range(8)} == {shown}
        assert velox.metric("velox_tls_certificate_not_after_seconds") > time.time()
        files.key.write_bytes(good)
        wait_shown(velox, files)
        assert velox.metric(TAKEN) == 1
        assert [line for line in velox.stderr.lines if "the previous one stays" in line] == [line]


def test_session_is_resumed_with_any_worker_and_with_a_successor(tmp_path: Path) -> None:
    """The ticket keys are the gateway's: also after a new certificate, and after a worker was killed."""
    files = TlsFiles(tmp_path)
    with VeloxProcess({**files.env(), "VELOX_WORKERS": "2"}, SIM) as velox:
        context = files.context()

        def session() -> ssl.SSLSession:
            with tls_connect(velox, context) as secured:
                secured.sendall(GET)
                secured.recv(65536)
                assert secured.session is not None
                return secured.session

        def is_resumed(kept: ssl.SSLSession) -> bool:
            with tls_connect(velox, context, kept) as secured:
                secured.sendall(GET)
                assert secured.recv(65536).startswith(b"HTTP/1.1 200 ")
                return bool(secured.session_reused)

        kept = session()
        assert all(is_resumed(kept) for _ in range(12))
        files.rotate()
        wait_shown(velox, files)
        assert all(is_resumed(kept) for _ in range(12))
        victims = velox.worker_pids()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        velox.wait_metric('velox_worker_restarts_total{cause="signal",worker="0"}', lambda n: n == 1)
        velox.wait_metric('velox_worker_restarts_total{cause="signal",worker="1"}', lambda n: n == 1)
        until(lambda: len(set(velox.worker_pids()) - set(victims)) == 2, "both have successors")
        assert all(is_resumed(kept) for _ in range(12))
        assert {shown_digest(velox, files.context()) for _ in range(12)} == {files.digest}


def test_successor_shows_the_last_good_certificate(tmp_path: Path) -> None:
    """What is in the files when it starts may be bad, or gone."""
    files = TlsFiles(tmp_path)
    with VeloxProcess({**files.env(), "VELOX_WORKERS": "1"}, SIM) as velox:
        files.rotate()
        wait_shown(velox, files)
        files.key.unlink()
        velox.wait_metric(REFUSED, lambda n: n == 1)
        (victim,) = velox.worker_pids()
        os.kill(victim, signal.SIGKILL)
        until(lambda: velox.worker_pids() not in ([], [victim]), "it has a successor")
        assert shown_digest(velox, files.context()) == files.digest


def test_stop_lets_streams_end_over_tls(tmp_path: Path) -> None:
    """The stream ends whole; nobody new gets in; the exit code is 0."""
    files = TlsFiles(tmp_path)
    with gateway(files, held_stream) as (upstream, velox), tls_sdk(velox, files.context()) as sdk:
        iterator = iter(sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        first = next(iterator)
        velox.signal(signal.SIGTERM)
        velox.wait_log(lambda line: "draining" in line)
        until(lambda: _is_refused(velox), "nobody new gets in")
        upstream.step()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in (first, *iterator))
        assert text == "Hello from afar."
        assert velox.wait() == 0


def test_client_that_leaves_over_tls_cancels_the_call(tmp_path: Path) -> None:
    """The SDK closes its stream, and the provider's call ends."""
    files = TlsFiles(tmp_path)
    with gateway(files, held_stream) as (upstream, velox), tls_sdk(velox, files.context()) as sdk:
        stream = sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        next(iter(stream))
        stream.close()
        call = upstream.calls[-1]
        until(lambda: call.left_s > 0, "the call was cancelled")


def test_upstream_that_cuts_its_stream_is_an_error_over_tls(tmp_path: Path) -> None:
    """F-14: what the SDK got looks cut, never whole."""

    async def cut(call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream")])
        await call.data(CHAT_SSE[: CHAT_SSE.index(b"\n\n") + 2])
        call.cut()

    files = TlsFiles(tmp_path)
    with gateway(files, cut) as (_, velox), tls_sdk(velox, files.context()) as sdk:
        with pytest.raises(openai.APIError) as raised:
            list(sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        assert raised.value.code == "upstream_truncated"


@contextlib.contextmanager
def gateway(files: TlsFiles, script: Script) -> Iterator[tuple[RecordingUpstream, VeloxProcess]]:
    """A gateway of one worker that speaks TLS, before an upstream that does as it is told."""
    with (
        RecordingUpstream(http2=False) as upstream,
        upstream.playing(script),
        VeloxProcess({**upstream.env(), **files.env(), "VELOX_WORKERS": "1"}) as velox,
    ):
        yield upstream, velox


def _is_refused(velox: VeloxProcess) -> bool:
    try:
        velox.connect(1.0).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it was in the kernel's line when the port was closed
    return False
