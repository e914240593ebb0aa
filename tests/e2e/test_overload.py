"""More than there is room for: connections, descriptors, memory, log lines. Refused in time, and well again after."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, read_reply, until
from tests.e2e.recording import Call, RecordingUpstream, healthy
from tests.e2e.tools import CHAT, Client, clients, covers, free_port, hold_chat, open_fds, reason, request_bytes

MIB = 2**20
SHORT = 'velox_worker_short_of_memory{worker="0"}'
BY_MEMORY = 'velox_worker_restarts_total{cause="memory",worker="0"}'


def simulated(**settings: str) -> VeloxProcess:
    """Return a gateway of one worker with its own simulator; still to be started."""
    env = {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    return VeloxProcess({"VELOX_WORKERS": "1", **env}, ("serve", "--sim"))


# -- connections and descriptors ------------------------------------------------------------------------------


def test_descriptors_that_run_out_are_refused_before_they_do() -> None:
    """F-58: ulimit -n 256 and 400 clients: those beyond are told, streams inside go on, there is room again later."""
    with RecordingUpstream() as upstream, upstream.playing(hold_chat):
        velox = VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}, launcher=("prlimit", "--nofile=256:256"))
        with velox, clients(velox, 8) as inside:
            velox.wait_log(lambda line: "a worker takes 96 connections" in line)
            (worker,) = velox.worker_pids()
            for client in inside:
                client.send_chat()
            upstream.wait_call(len(inside))
            with contextlib.ExitStack() as stack, ThreadPoolExecutor(16) as pool:
                crowd = [stack.enter_context(sock) for sock in pool.map(lambda _: velox.connect(), range(400))]
                n_refused = 400 - (96 - len(inside))
                velox.wait_metric('velox_shed_total{reason="conn_limit"}', lambda value: value == n_refused)
                told = [sock for sock in crowd if select.select([sock], [], [], 0)[0]]
                assert len(told) == n_refused
                assert all(is_refusal(sock) for sock in told)
                assert open_fds(worker) < 256 - 16, "the limit was never near"
            upstream.step(len(inside))
            assert [client.read().status for client in inside] == [200] * len(inside)
            until(lambda: velox.request("GET", "/v1/models").status == 200, "there is room again")
            velox.wait_access(lambda line: line["reason"] == "conn_limit")
            lines = [line for line in velox.access_log() if line["reason"] == "conn_limit"]
            # One a second, for as long as it lasted, and no line for each of the crowd.
            assert 1 <= len(lines) <= 15


def is_refusal(sock: socket.socket) -> bool:
    """True when what has come is Velox's own 503."""
    reply = read_reply(sock)
    return (reply.status, reason(reply)) == (503, "conn_limit")


@covers("VELOX_MAX_CONNECTIONS_PER_ADDRESS")
def test_max_connections_per_address_leaves_room_for_others() -> None:
    """One address may have two; another address of the same machine is served."""
    with simulated(max_connections_per_address="2", listen="0.0.0.0:0", auth="none") as velox:
        velox.base_url = velox.base_url.replace("0.0.0.0", "127.0.0.1")
        with clients(velox, 2) as inside:
            with Client(velox) as third:
                refused = read_reply(third.sock)
                assert (refused.status, reason(refused)) == (503, "conn_limit")
            with socket.create_connection(("127.0.0.1", velox.port), 10, source_address=("127.0.0.2", 0)) as other:
                other.sendall(request_bytes("GET", "/v1/models"))
                assert read_reply(other).status == 200
            inside[0].sock.close()
            until(lambda: velox.request("GET", "/v1/models").status == 200, "one has left")


# -- memory ---------------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def bodies_held(velox: VeloxProcess, n_mib: int) -> Iterator[list[Client]]:
    """Hold `n_mib` bodies of 1 MiB open, each but its last byte; they are in the worker's memory."""
    body = CHAT + b" " * (MIB - len(CHAT))
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(Client(velox, 30.0)) for _ in range(n_mib)]
        for client in held:
            client.sock.sendall(request_bytes("POST", "/v1/chat/completions", body)[:-1])
        yield held


@covers("VELOX_MEMORY_SOFT")
def test_memory_over_the_soft_limit_refuses_new_requests_only() -> None:
    """F-59: what is on its way passes, new requests get 503 before their bodies come, and all is well after it."""
    with simulated(memory_soft="120MiB", body_timeout="30s") as velox, Client(velox) as other:
        (worker,) = velox.worker_pids()
        assert other.ask().status == 200
        with bodies_held(velox, 100) as held:
            velox.wait_metric(SHORT, lambda value: value == 1)
            assert resident(worker) >= 120 * MIB
            refused = other.ask()
            assert (refused.status, reason(refused)) == (503, "overload_memory")
            assert (refused.header("retry-after"), refused.header("x-should-retry")) == ("1", "true")
            assert refused.header("connection") is None, "nothing of it is left unread: the connection stays"
            velox.wait_metric('velox_worker_resident_bytes{worker="0"}', lambda n: n >= 120 * MIB)
            for client in held[:10]:
                client.sock.sendall(b" ")
            assert [client.read().status for client in held[:10]] == [200] * 10
        velox.wait_metric(SHORT, lambda value: value == 0)
        assert other.ask().status == 200, "the memory was given back"
        assert velox.worker_pids() == [worker]
        velox.wait_metric('velox_shed_total{reason="overload_memory"}', lambda n: n >= 1)


def is_served(velox: VeloxProcess) -> bool:
    """True when a request is answered. There must be a ready worker at any time; at worst it says why it refuses."""
    assert velox.admin("/readyz").status == 200
    reply = velox.request("GET", "/v1/models")
    assert reply.status == 200 or reason(reply) == "overload_memory"
    return reply.status == 200


@covers("VELOX_MEMORY_HARD")
@pytest.mark.more
def test_memory_over_the_hard_limit_replaces_the_worker_without_losing_a_request() -> None:
    """F-59: the successor serves before the old one is told to leave, and that one ends what it has begun."""
    with RecordingUpstream() as upstream, upstream.playing(hold_chat):
        settings = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_BODY_TIMEOUT": "30s"}
        limits = {"VELOX_MEMORY_HARD": "120MiB", "VELOX_RATE_LIMIT_RPM": "10000"}
        with VeloxProcess({**settings, **limits}) as velox, Client(velox) as running:
            (old,) = velox.worker_pids()
            running.send_chat()
            upstream.wait_call(1)
            before = velox.metric('velox_limit_decisions_total{decision="granted",scope="gateway",unit="requests"}')
            with bodies_held(velox, 100) as held:
                # There is always one that serves, and not one connection is refused: the socket is the supervisor's.
                until(lambda: is_served(velox) and velox.metric(BY_MEMORY) == 1, "it has a successor")
                until(lambda: old not in velox.worker_pids() and len(velox.worker_pids()) == 1, "another one serves")
                assert velox.admin("/readyz").status == 200
                assert resident(old) > 0, "it lives until its clients have their answers"
                held[0].sock.sendall(b" ")
                upstream.wait_call(2)
                upstream.step(2)
                assert running.read().status == 200
                assert held[0].read().status == 200
            until(lambda: not Path(f"/proc/{old}").exists(), "the old one has left")
            velox.wait_log(lambda line: "worker 0 is replaced: it has" in line)
            velox.wait_log(lambda line: "the replaced process has exited (exit code 0)" in line)
            after = velox.metric('velox_limit_decisions_total{decision="granted",scope="gateway",unit="requests"}')
            assert after >= before + 2, "what the old one counted is not forgotten"
            assert velox.metric('velox_worker_up{worker="0"}') == 1
            assert velox.request("GET", "/v1/models").status == 200


@pytest.mark.more
def test_memory_successor_is_waited_for_until_it_has_reached_the_upstream() -> None:
    """A worker that is short of memory is better than one that has no upstream; but not for ever: 3 s."""

    async def cold(call: Call) -> None:
        if call.method == "HEAD":
            await call.step()
        await healthy(call)

    with RecordingUpstream() as upstream:
        settings = {"VELOX_WORKERS": "1", "VELOX_BODY_TIMEOUT": "30s", "VELOX_MEMORY_HARD": "120MiB"}
        with VeloxProcess({**upstream.env(), **settings, "VELOX_UPSTREAM_WARMUP_PATH": "/warm"}) as velox:
            velox.wait_warm()
            (old,) = velox.worker_pids()
            with upstream.playing(cold), bodies_held(velox, 100):
                velox.wait_log(lambda line: "worker 0 is replaced: it has" in line)
                asked_s = time.monotonic()
                while time.monotonic() - asked_s < 2:
                    assert velox.admin("/readyz").status == 200
                    assert old in velox.worker_pids()
                velox.wait_metric(BY_MEMORY, lambda value: value == 1)


@pytest.mark.more
def test_memory_replaced_again_goes_back_to_the_first_seat() -> None:
    """A slot has two blocks of shared memory, which take turns; a stop in the middle of it ends them all."""
    with simulated(memory_hard="110MiB", body_timeout="30s", drain_timeout="1s") as velox:
        for n in (1, 2):
            with bodies_held(velox, 100):
                # The second time after 10 s: a worker that can't help its memory is not replaced all the time.
                velox.wait_metric(BY_MEMORY, lambda value, n=n: value == n, 20.0)  # type: ignore[misc]
        with bodies_held(velox, 100):
            velox.signal(signal.SIGTERM)
            assert velox.wait() == 0


# -- a log that nobody reads ----------------------------------------------------------------------------------


# Standard output is one end of a pipe or socket pair. The gateway itself has the other end, and never reads it.
_UNREAD = (
    "import os, socket, sys; ours, theirs = {}; os.set_inheritable(ours, True); os.dup2(theirs, 1);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_PIPE, _SOCKET = "os.pipe()", "[each.detach() for each in socket.socketpair()]"


@pytest.mark.parametrize("made", [_PIPE, _SOCKET], ids=["pipe", "socket"])
def test_log_that_nobody_reads_stops_no_request(made: str) -> None:
    """F-60: standard output is full; lines are dropped and counted, and every request is answered."""
    settings = {"VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all", "VELOX_RATE_LIMIT_RPM": "0"}
    unread = (sys.executable, "-c", _UNREAD.format(made))
    with VeloxProcess(settings, ("serve", "--sim"), launcher=unread) as velox, Client(velox) as client:
        target = "/v1/models/" + "m" * 240
        deadline_s = time.monotonic() + 60
        while velox.metric("velox_log_dropped_total") == 0:
            assert time.monotonic() < deadline_s
            for _ in range(250):
                assert client.ask("GET", target).status in (200, 404)
        assert client.ask().status == 200


def test_log_on_a_full_disk_stops_no_request() -> None:
    """F-60: each write fails."""
    settings = {"VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}
    redirect = ("sh", "-c", 'exec "$@" >/dev/full', "sh")
    with VeloxProcess(settings, ("serve", "--sim"), launcher=redirect) as velox, Client(velox) as client:
        for _ in range(5):
            assert client.ask().status == 200
        velox.wait_metric("velox_log_dropped_total", lambda value: value >= 5)


def test_operations_log_that_nobody_reads_stops_no_process() -> None:
    """F-60: standard error is a pipe that is full. The supervisor and a worker have something to say, and go on."""
    dead = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{free_port()}"}
    with VeloxProcess(dead) as velox, velox.stderr.unread(), _kept_full(velox.pid):
        (first,) = velox.worker_pids()
        velox.signal(signal.SIGHUP)
        velox.wait_metric("velox_log_dropped_total", lambda value: value >= 1)
        n_before = velox.metric("velox_log_dropped_total")
        os.kill(first, signal.SIGKILL)
        until(lambda: velox.worker_pids() not in ([], [first]), "a worker in the place of the one that was killed")
        # The supervisor tells that one has died, the other that it has no connection to the upstream.
        velox.wait_metric("velox_log_dropped_total", lambda value: value >= n_before + 2)
        assert velox.request("GET", "/v1/models").status == 502
        velox.signal(signal.SIGTERM)
        assert velox.wait() == 0


@contextlib.contextmanager
def _kept_full(pid: int) -> Iterator[None]:
    """Keep the pipe full that is a process's standard error: its reader takes a last piece before it stops."""
    writer = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    is_over = threading.Event()

    def fill() -> None:
        while not is_over.wait(0.001):
            with contextlib.suppress(BlockingIOError):
                while os.write(writer, b"full\n"):
                    pass

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        os.close(writer)
