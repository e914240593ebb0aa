"""The end of a gateway: SIGTERM, Ctrl-C, impatience (F-55, F-56)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import SSE, Call, RecordingUpstream
from tests.e2e.test_ledger import n_kept
from tests.e2e.tools import (
    CHAT_STREAM,
    Client,
    clients,
    covers,
    hold_chat,
    reason,
    request_bytes,
    wait_admitted,
    wait_warm,
)
from tests.e2e.upstreams import CHAT_SSE

_FIRST_EVENT = CHAT_SSE[: CHAT_SSE.index(b"\n\n") + 2]


async def one_event_then_wait(call: Call) -> None:
    """Script: a streamed answer stops after its first event until the test's step; the rest is answered at once."""
    if "chat/completions" not in call.target or b'"stream": true' not in call.body:
        await hold_chat(call)
        return
    await call.head(200, SSE)
    await call.data(_FIRST_EVENT)
    await call.step()
    await call.data(CHAT_SSE[len(_FIRST_EVENT) :])
    await call.end()


@contextlib.contextmanager
def streaming(velox: VeloxProcess, upstream: RecordingUpstream, n: int) -> Iterator[list[Client]]:
    """Hold `n` streams open, each after its first event."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(Client(velox)) for _ in range(n)]
        for client in opened:
            client.send_chat(CHAT_STREAM)
        for client in opened:
            client.read_until(_FIRST_EVENT)
        upstream.wait_call(n)
        yield opened


def is_refused(velox: VeloxProcess) -> bool:
    """True when nobody takes a connection; one that is taken must be served."""
    try:
        with Client(velox) as client, contextlib.suppress(ConnectionError):
            client.ask()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it was in the queue of a socket that closed
    return False


def sigterm(velox: VeloxProcess) -> None:
    """What a container runtime sends: to the supervisor only."""
    velox.signal(signal.SIGTERM)


def ctrl_c(velox: VeloxProcess) -> None:
    """What a terminal sends: to every process of the group."""
    os.killpg(velox.pid, signal.SIGINT)


@pytest.mark.parametrize("tell", [sigterm, ctrl_c])
def test_stop_with_running_streams_finishes_them(tell: Callable[[VeloxProcess], None]) -> None:
    """F-55: streams end as if nothing were, no new connection is taken, /readyz says why, exit code 0."""
    with RecordingUpstream(http2=True) as upstream, upstream.playing(one_event_then_wait):
        settings = {**upstream.env(), "VELOX_WORKERS": "2"}
        with VeloxProcess(settings) as velox:
            with clients(velox, 4) as idle, streaming(velox, upstream, 10) as streams:
                tell(velox)
                until(
                    lambda: velox.admin("/readyz").status == 503,
                    "/readyz says that the gateway is leaving",
                    2,
                )
                assert "draining" in velox.admin("/readyz").body.decode()
                assert velox.admin("/healthz").status == 200, "alive: a restart now would break the streams"
                until(lambda: is_refused(velox), "new connections are refused", 2)
                for client in idle:
                    assert client.read_to_end() == b"", "an idle connection is closed"
                upstream.step(len(streams))
                for client in streams:
                    rest = client.read_to_end()
                    assert b"data: [DONE]" in rest and rest.endswith(b"0\r\n\r\n"), "the stream is whole"
            assert velox.wait(5) == 0
            velox.wait_log(lambda line: "drained" in line)


def test_sigterm_with_requests_on_idle_connections_answers_those_that_came_before() -> None:
    """A request that was sent before SIGTERM is answered, and told that its connection ends with it."""
    with (
        RecordingUpstream() as upstream,
        upstream.playing(hold_chat),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox,
    ):
        with Client(velox) as client:
            wait_admitted(client, upstream, 1)
            sigterm(velox)
            until(lambda: is_refused(velox), "the worker has heard of it", 2)
            upstream.step()
            reply = client.read()
            assert (reply.status, reply.header("connection")) == (200, "close")
        assert velox.wait(5) == 0


def test_sigterm_with_connections_in_the_listeners_queue_serves_them() -> None:
    """F-55: who connected before SIGTERM is served, though no worker had accepted the connection yet. 20 of 20."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        wait_warm(velox)
        (worker,) = velox.worker_pids()
        with contextlib.ExitStack() as stack:
            os.kill(worker, signal.SIGSTOP)
            queued = [stack.enter_context(Client(velox)) for _ in range(20)]
            for client in queued:
                client.send_chat()
            sigterm(velox)
            velox.wait_log(lambda line: "draining" in line)
            os.kill(worker, signal.SIGCONT)
            assert [client.read().status for client in queued] == [200] * 20
        assert velox.wait(5) == 0


def test_connection_after_a_worker_has_stopped_accepting_goes_to_one_that_has_not() -> None:
    """Its socket is gone, so the kernel gives it no connection that nobody would answer. 20 of 20."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim")) as velox:
        wait_warm(velox)
        slow, quick = velox.worker_pids()
        with contextlib.ExitStack() as stack:
            os.kill(slow, signal.SIGSTOP)
            sigterm(velox)
            until(lambda: quick not in velox.worker_pids(), "the other one has left")
            late = [stack.enter_context(Client(velox)) for _ in range(20)]
            for client in late:
                client.send_chat()
            os.kill(slow, signal.SIGCONT)
            assert [client.read().status for client in late] == [200] * 20
        assert velox.wait(5) == 0


def test_sigterm_to_the_group_is_a_usual_stop(tmp_path: Path) -> None:
    """As some supervisors of services send it: no process is said to have died, and what a stream cost is kept."""
    folder = tmp_path / "ledger"
    with (
        RecordingUpstream() as upstream,
        upstream.playing(one_event_then_wait),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "2", "VELOX_LEDGER": str(folder)}) as velox,
    ):
        with streaming(velox, upstream, 1) as (stream,):
            children = velox.child_pids()
            os.killpg(velox.pid, signal.SIGTERM)
            velox.wait_log(lambda line: "draining" in line)
            # A worker without requests leaves; what keeps records is replaced, and so is the admin process.
            until(lambda: len(set(velox.child_pids()) - set(children)) == 2, "there is another one of each")
            ready = velox.admin("/readyz")
            assert ready.status == 503 and "draining" in ready.body.decode()
            upstream.step()
            assert stream.read_to_end().endswith(b"0\r\n\r\n"), "the stream is whole"
        assert velox.wait(5) == 0
        assert not [line for line in velox.stderr.lines if "died" in line or '"error"' in line]
    assert n_kept(folder) == 1


@covers("VELOX_DRAIN_TIMEOUT")
def test_drain_window_exceeded_tells_every_client_and_leaves() -> None:
    """F-56: a stream gets an error event and no clean end, who had no answer yet a 503, also from the queue; exit 0."""
    settings = {"VELOX_WORKERS": "1", "VELOX_DRAIN_TIMEOUT": "500ms", "VELOX_MAX_INFLIGHT": "2"}
    with (
        RecordingUpstream(http2=True) as upstream,
        upstream.playing(one_event_then_wait),
        VeloxProcess({**upstream.env(), **settings}) as velox,
        Client(velox) as waiting,
        Client(velox) as queued,
        streaming(velox, upstream, 1) as (stream,),
    ):
        wait_admitted(waiting, upstream, 2)
        queued.send_chat()
        velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 1)
        told_s = time.monotonic()
        sigterm(velox)
        rest = stream.read_to_end()
        assert time.monotonic() - told_s > 0.5, "it had its window"
        assert json.loads(rest[rest.index(b"data: ") + 6 :].split(b"\n")[0])["error"]["code"] == "draining"
        assert b"[DONE]" not in rest and not rest.endswith(b"0\r\n\r\n"), "it does not look complete"
        # The upstream may be at work on the one that waits for it; the queued one never reached it.
        for client, is_safe in ((waiting, "false"), (queued, "true")):
            reply = client.read()
            assert (reply.status, reason(reply)) == (503, "draining")
            assert reply.header("x-should-retry") == is_safe
        for call in upstream.calls:
            upstream.wait_left(call)
        assert velox.wait(10) == 0


def test_crowd_in_the_listeners_queue_takes_nothing_of_the_time_to_tell_clients() -> None:
    """F-56: accepting a long queue is part of the window; a stream is told in time, before the worker is killed."""
    settings = {"VELOX_WORKERS": "1", "VELOX_DRAIN_TIMEOUT": "200ms"}
    with (
        RecordingUpstream() as upstream,
        upstream.playing(one_event_then_wait),
        VeloxProcess({**upstream.env(), **settings}) as velox,
        streaming(velox, upstream, 1) as (stream,),
        contextlib.ExitStack() as stack,
    ):
        (worker,) = velox.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        for _ in range(min(4000, int(Path("/proc/sys/net/core/somaxconn").read_text()))):
            stack.enter_context(velox.connect()).sendall(request_bytes("GET", "/v1/models"))
        sigterm(velox)
        velox.wait_log(lambda line: "draining" in line)
        os.kill(worker, signal.SIGCONT)
        assert b'"code":"draining"' in stream.read_to_end()
        assert velox.wait(10) == 0


def test_second_sigterm_ends_at_once() -> None:
    """Whoever asks twice does not want to wait for the streams."""
    with (
        RecordingUpstream() as upstream,
        upstream.playing(one_event_then_wait),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "2"}) as velox,
        streaming(velox, upstream, 2),
    ):
        sigterm(velox)
        velox.wait_log(lambda line: "draining" in line)
        sigterm(velox)
        assert velox.wait(10) == 0, "the window is longer"


def test_sigterm_while_a_worker_hangs_leaves_when_the_window_is_over() -> None:
    """One stuck worker does not keep the gateway from leaving."""
    settings = {"VELOX_WORKERS": "2", "VELOX_DRAIN_TIMEOUT": "200ms"}
    with VeloxProcess(settings, ("serve", "--sim")) as velox:
        os.kill(velox.worker_pids()[0], signal.SIGSTOP)
        sigterm(velox)
        assert velox.wait(10) == 0
        velox.wait_log(lambda line: "worker 0 died during shutdown (SIGKILL)" in line)


@pytest.mark.more
def test_worker_that_hangs_in_a_long_drain_is_aborted() -> None:
    """After 10 s, as at any other time: nobody waits for the end of the window."""
    with VeloxProcess({"VELOX_WORKERS": "2", "VELOX_DRAIN_TIMEOUT": "10m"}, ("serve", "--sim")) as velox:
        os.kill(velox.worker_pids()[0], signal.SIGSTOP)
        sigterm(velox)
        assert velox.wait(30) == 0
        line = json.loads(velox.wait_log(lambda line: "worker 0 died during shutdown (SIGABRT)" in line))
        assert line["reason"] == "stuck" and "Fatal Python error: Aborted" in line["traceback"]


def test_unix_socket_of_a_gateway_that_left_is_gone(tmp_path: Path) -> None:
    """No stale file is left, and a successor that already has the path keeps it."""
    path = tmp_path / "velox.sock"
    settings = {"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "2"}
    with (
        RecordingUpstream() as upstream,
        upstream.playing(one_event_then_wait),
        VeloxProcess({**upstream.env(), **settings}) as velox,
        streaming(velox, upstream, 1) as (stream,),
    ):
        sigterm(velox)
        until(lambda: not path.exists(), "the path is free", 2)
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            upstream.step()
            assert stream.read_to_end().endswith(b"0\r\n\r\n")
            stream.sock.close()
            assert velox.wait(5) == 0
            assert path.exists(), "the successor's path was taken away"
