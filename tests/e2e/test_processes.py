"""A worker dies, hangs, or loses its supervisor: who notices, and how soon all is well again (F-50, F-52, F-54)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import SSE, Call, RecordingUpstream
from tests.e2e.tools import CHAT_STREAM, Client, clients, hold_chat, request_bytes, settled

# A worker is replaced within a second; the rest is for a machine that does other things too.
REPLACED_S = 5.0  # a second where nothing else runs


def counters(velox: VeloxProcess) -> dict[str, float]:
    """Return all samples that may only grow; those of single processes end with their process."""
    return {
        name: value
        for name, value in velox.metrics().items()
        if name.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket")) and "process=" not in name
    }


def is_alive(pid: int) -> bool:
    """True unless the process is gone, or a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_replaced(velox: VeloxProcess, victim: int, n_workers: int, timeout_s: float = REPLACED_S) -> None:
    """Wait until another worker serves in the place of `victim`."""
    until(lambda: not is_alive(victim), "the victim is gone")

    def all_up() -> bool:
        up = [velox.metric(f'velox_worker_up{{worker="{slot}"}}') for slot in range(n_workers)]
        pids = velox.worker_pids()  # the supervisor may not have heard of the death yet
        return sum(up) == n_workers == len(pids) and victim not in pids

    until(all_up, "the worker is replaced", timeout_s)


def test_worker_killed_under_load_breaks_only_its_own_requests() -> None:
    """F-50: requests in flight in it fail, all others go on, the next are served, within a second it is back."""
    with RecordingUpstream(http2=True) as upstream:
        settings = {**upstream.env(), "VELOX_WORKERS": "3", "VELOX_EGRESS_POOL_CONNECTIONS": "3"}
        with (
            VeloxProcess(settings) as velox,
            settled(velox),
            upstream.playing(hold_chat),
            clients(velox, 16) as all_,
        ):
            homes = {client: client.worker() for client in all_}
            victim = Counter(homes.values()).most_common(1)[0][0]
            for client in all_:
                client.send_chat()
            upstream.wait_call(len(all_))
            before = counters(velox)
            os.kill(victim, signal.SIGKILL)
            killed_s = time.monotonic()
            with contextlib.ExitStack() as stack:
                # As many as are needed that some of them land in the dead worker's queue.
                fresh = [stack.enter_context(Client(velox)) for _ in range(16)]
                assert [client.ask().status for client in fresh] == [200] * 16
                assert time.monotonic() - killed_s < REPLACED_S
            wait_replaced(velox, victim, 3)
            upstream.step(len(all_))
            for client in all_:
                if homes[client] == victim:
                    assert client.read_to_end() == b"", "a request in flight in the dead worker has no answer"
                else:
                    assert client.read().status == 200, "another worker's request goes on"
            assert (
                velox.metric('velox_worker_restarts_total{cause="signal",worker="0"}')
                + velox.metric('velox_worker_restarts_total{cause="signal",worker="1"}')
                + velox.metric('velox_worker_restarts_total{cause="signal",worker="2"}')
                == 1
            )
            after = counters(velox)
            shrunk = {name: (value, after.get(name, 0)) for name, value in before.items() if after.get(name, 0) < value}
            assert not shrunk, "a counter went back"


def test_worker_killed_upstream_is_left_at_once() -> None:
    """A dead worker's exchanges cost the upstream nothing more: their connections end with it."""
    with (
        RecordingUpstream() as upstream,
        upstream.playing(hold_chat),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox,
        Client(velox) as client,
    ):
        client.send_chat()
        call = upstream.wait_call()
        os.kill(client.worker(), signal.SIGKILL)
        killed_s = time.monotonic()
        assert upstream.wait_left(call) - killed_s < 1.0


def test_worker_killed_reply_that_ends_at_close_is_reset() -> None:
    """A client of HTTP/1.0, as many a proxy is, must not take the half of a stream for the whole."""

    async def half(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(b"data: 1\n\n")
        await call.step()

    with (
        RecordingUpstream() as upstream,
        upstream.playing(half),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox,
        velox.connect() as client,
    ):
        client.sendall(request_bytes("POST", "/v1/chat/completions", CHAT_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        got = b""
        while b"data: 1\n\n" not in got:
            got += client.recv(65536)
        os.kill(velox.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            client.recv(65536)


def test_worker_killed_queued_connections_are_served_by_the_successor() -> None:
    """The supervisor holds the socket, so connections that wait in it outlive the worker. 40 of 40."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox, contextlib.ExitStack() as stack:
        (victim,) = velox.worker_pids()
        os.kill(victim, signal.SIGSTOP)
        queued = [stack.enter_context(Client(velox)) for _ in range(40)]
        for client in queued:
            client.send_chat()
        os.kill(victim, signal.SIGKILL)
        assert [client.read().status for client in queued] == [200] * 40


@pytest.mark.more
def test_worker_stuck_is_aborted_and_replaced() -> None:
    """F-52: a loop that stands still for 10 s; the other worker serves, and the pages answer, meanwhile."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim")) as velox, clients(velox, 12) as all_:
        homes = {client: client.worker() for client in all_}
        victim = homes[all_[0]]
        other = next(client for client, home in homes.items() if home != victim)
        os.kill(victim, signal.SIGSTOP)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 9:
            assert other.ask().status == 200
            assert velox.admin("/healthz").status == 200
            assert is_alive(victim), "it has 10 s"
            time.sleep(0.25)
        wait_replaced(velox, victim, 2, timeout_s=6)
        assert 9.5 < time.monotonic() - began_s < 13
        restarts = [velox.metric(f'velox_worker_restarts_total{{cause="stuck",worker="{n}"}}') for n in (0, 1)]
        assert sum(restarts) == 1
        velox.wait_log(lambda line: "is stuck, no heartbeat for 10 s" in line)
        velox.wait_log(lambda line: "Fatal Python error: Aborted" in line)  # where it stood, by faulthandler


def test_worker_that_keeps_dying_is_retried_with_back_off() -> None:
    """Deaths in a row are answered at once, then 0.1 s later, doubling; the gateway lives on."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        for _ in range(4):
            (victim,) = velox.worker_pids()
            os.kill(victim, signal.SIGKILL)
            wait_replaced(velox, victim, 1, timeout_s=10)
        waits = [line.rpartition("starts in ")[2] for line in velox.stderr.lines if "the next one starts" in line]
        assert [wait.split(" ")[0] for wait in waits] == ["0.1", "0.2", "0.4", "0.8"]
        assert velox.request("GET", "/v1/models").status == 200


def test_admin_process_killed_comes_back_and_counters_stay() -> None:
    """The figures are in shared memory: whoever shows them may die."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        served = 'velox_requests_total{class="2xx",reason="ok",route="models"}'
        velox.wait_metric(served, lambda n: n == 1)
        workers = velox.worker_pids()
        (admin,) = [pid for pid in velox.child_pids()[1:] if pid not in workers]
        os.kill(admin, signal.SIGKILL)
        until(lambda: admin not in velox.child_pids() and len(velox.child_pids()) == 3, "a new admin process")
        assert velox.metric(served) == 1
        assert velox.worker_pids() == workers, "the workers never noticed"


def test_simulator_killed_comes_back_at_the_same_address() -> None:
    """Workers know only that address. Who connects meanwhile waits in its socket, which the supervisor holds."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        workers = velox.worker_pids()
        os.kill(velox.child_pids()[0], signal.SIGKILL)
        velox.wait_log(lambda line: "the simulator died (SIGKILL); the next one starts in 0.1 s" in line)
        assert velox.request("GET", "/v1/models").status == 200
        assert velox.worker_pids() == workers


def test_sighup_to_the_group_reloads_and_ends_nothing() -> None:
    """A terminal that closes sends it to all of them, and so does `pkill -HUP velox`."""
    with (
        RecordingUpstream() as upstream,
        upstream.playing(hold_chat),
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "2"}) as velox,
        Client(velox) as client,
    ):
        children = velox.child_pids()
        client.send_chat()
        upstream.wait_call()
        os.killpg(velox.pid, signal.SIGHUP)
        velox.wait_log(lambda line: "configuration 1 is in use: nothing has changed" in line)
        upstream.step()
        assert client.read().status == 200
        assert velox.child_pids() == children


def test_supervisor_killed_everything_leaves() -> None:
    """F-54: workers, admin and simulator die with it; nothing holds the port any more."""
    with VeloxProcess({"VELOX_WORKERS": "3"}, ("serve", "--sim")) as velox, Client(velox) as client:
        assert client.ask().status == 200
        children = velox.child_pids()
        assert len(children) == 5
        velox.signal(signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in children), "all children are gone")
        # A process with threads is a zombie while its last thread closes the sockets.
        until(lambda: not _listens(velox), "nobody listens")


def _listens(velox: VeloxProcess) -> bool:
    try:
        Client(velox).sock.close()
    except ConnectionRefusedError:
        return False
    return True
