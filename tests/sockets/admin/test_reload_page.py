"""A reload is asked for at the admin listener: who may, what the supervisor is told, what the caller gets to know."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http.client import HTTPConnection
from pathlib import Path

import orjson
import pytest

from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.reload import ReloadAnswer, ReloadAnswers, ReloadPage
from velox.admin.reload_call import ReloadOutcome, call_reload
from velox.admin.server import run
from velox.observe.series import CELLS
from velox.runtime.processes.process import spawn, wake
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, WorkerState, WorkerStatus
from velox.types import Address, Secret

TOKEN = "a-token-of-the-admin"


class Gateway:
    """A supervisor's side of an admin process. It has one worker, which serves."""

    def __init__(self, sock: socket.socket, token: str | None = None) -> None:
        segment = Segment(1, CELLS)
        self.status = GatewayStatus(segment)
        self.worker = WorkerStatus(segment, 0)
        self.worker.state = WorkerState.READY
        self.worker.configuration = 1
        self.answers = ReloadAnswers()
        self.woken, self._wake = os.pipe2(os.O_NONBLOCK)
        page = ReloadPage(segment, self.answers, lambda: wake(self._wake))
        app = AdminApp(
            metrics=lambda: b"",
            ready=lambda: Readiness(alive=True, ready=True, reasons=()),
            profiles=None,
            reload=page,
            token=token,
        )
        name = sock.getsockname()
        self.address = Address("unix", path=name) if isinstance(name, str) else Address("tcp", name[0], name[1])
        self._pid = spawn(lambda: self._serve(sock, app))

    @staticmethod
    def _serve(sock: socket.socket, app: AdminApp) -> int:
        run(sock, app)
        return 0

    def close(self) -> None:
        """End the process."""
        os.kill(self._pid, 15)
        os.waitpid(self._pid, 0)
        os.close(self.woken)
        os.close(self._wake)

    def wait_asked(self, n: int) -> None:
        """Wait until it was asked so often."""
        while self.status.reloads_asked < n:
            assert select.select([self.woken], [], [], 10.0)[0], "it is woken"
            os.read(self.woken, 4096)

    def answer(self, **fields: tuple[str, ...] | float) -> None:
        """Answer all who have asked."""
        self.answers.publish(ReloadAnswer(**{"upto": self.status.reloads_asked, "configuration": 1, **fields}))  # type: ignore[arg-type]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """A gateway that asks for no token."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        running = Gateway(sock)
        yield running
        running.close()


def asking(gateway: Gateway, token: str | None = None) -> Callable[[], ReloadOutcome]:
    """Ask, in a thread; return what waits for the answer."""
    told: Future[ReloadOutcome] = Future()
    secret = None if token is None else Secret(token)
    thread = threading.Thread(target=lambda: told.set_result(call_reload(gateway.address, secret)))
    thread.start()

    def wait() -> ReloadOutcome:
        thread.join(20.0)
        return told.result(0.0)

    return wait


def post(gateway: Gateway, method: str = "POST", **headers: str) -> tuple[int, bytes]:
    """Send one request for /reload."""
    connection = HTTPConnection(gateway.address.host, gateway.address.port, timeout=20)
    try:
        connection.request(method, "/reload", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_changes_are_told_when_all_workers_have_followed(gateway: Gateway) -> None:
    """Exit code 0; what needs a restart is named."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.worker.configuration = 2
    gateway.answer(configuration=2, changes=("upstream b: added", "route r: changed"), restart=("workers", "pin_cpus"))
    assert told() == ReloadOutcome(
        0,
        (
            "configuration 2 is in use:",
            "  upstream b: added",
            "  route r: changed",
            "needs a restart, or `velox upgrade`, which refuses nothing: workers, pin_cpus",
        ),
    )


def test_changes_that_were_taken_before_are_told_with_their_age(gateway: Gateway) -> None:
    """The file's change was seen before the command came."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.answer(changes=("upstream b: added",), age_s=2.4)
    assert told() == ReloadOutcome(0, ("configuration 1 is in use, taken 2 s ago:", "  upstream b: added"))


def test_worker_that_does_not_follow_is_named(gateway: Gateway) -> None:
    """After five seconds; one that is not there begins with the new configuration anyway."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.answer(configuration=2, changes=("upstream b: added",))
    assert told().lines[-1] == "not yet in use by worker 0"


def test_nothing_changed_is_told(gateway: Gateway) -> None:
    """It is no failure."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.answer()
    assert told() == ReloadOutcome(0, ("configuration 1 is in use: nothing has changed",))


def test_problems_are_told_all_of_them(gateway: Gateway) -> None:
    """Exit code 1."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.answer(problems=("velox.yaml:3: a", "velox.yaml:4: b"))
    head = "2 problems in the configuration, number 1 stays in use:"
    assert told() == ReloadOutcome(1, (head, "  velox.yaml:3: a", "  velox.yaml:4: b"))


def test_answer_to_an_earlier_one_is_none(gateway: Gateway) -> None:
    """What was read before it was asked may be older than what the caller has written."""
    first = asking(gateway)
    gateway.wait_asked(1)
    second = asking(gateway)
    gateway.wait_asked(2)
    gateway.answer(upto=1)
    assert first().code == 0
    gateway.answer(upto=2, problems=("late",))
    assert second().code == 1


def test_gateway_that_leaves_says_so(gateway: Gateway) -> None:
    """While it is waited for, and before."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.status.draining = True
    assert told().code == 1
    assert "503: the gateway is draining" in call_reload(gateway.address, None).lines[0]


def test_crowd_that_asks_is_bounded(gateway: Gateway) -> None:
    """The ninth is told to come back."""
    waiting = [asking(gateway) for _ in range(8)]
    gateway.wait_asked(8)
    assert "429" in call_reload(gateway.address, None).lines[0]
    gateway.answer()
    assert {each().code for each in waiting} == {0}


def test_only_a_post_that_no_page_sent_is_taken(gateway: Gateway) -> None:
    """A link and a form in a browser can do nothing; nor can HEAD."""
    assert post(gateway, "GET") == (405, b"only POST is served here\n")
    assert post(gateway, "HEAD")[0] == post(gateway, "PUT")[0] == 405
    assert post(gateway, origin="http://evil.example")[0] == 403
    assert post(gateway, origin="null")[0] == 403
    assert post(gateway, host="evil.example")[0] == 403
    assert gateway.status.reloads_asked == 0


def test_token_is_asked_for_where_there_is_one() -> None:
    """As for all pages but probes. The command says what is missing, and shows nothing of it."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        gateway = Gateway(sock, TOKEN)
        assert post(gateway)[0] == 401
        wrong = call_reload(gateway.address, Secret("another"))
        assert wrong.code == 2 and "VELOX_ADMIN_TOKEN" in wrong.lines[0] and "another" not in wrong.lines[0]
        told = asking(gateway, TOKEN)
        gateway.wait_asked(1)
        gateway.answer()
        assert told().code == 0
        assert gateway.status.reloads_asked == 1
        gateway.close()


def test_unix_socket_is_asked_too(tmp_path: Path) -> None:
    """As VELOX_ADMIN_LISTEN has it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "admin.sock"))
        sock.listen()
        gateway = Gateway(sock)
        told = asking(gateway)
        gateway.wait_asked(1)
        gateway.answer()
        assert told().code == 0
        gateway.close()


def test_gateway_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    """Nothing listens, or something else does."""
    absent = Address("unix", path=str(tmp_path / "absent.sock"))
    assert call_reload(absent, None) == ReloadOutcome(
        2,
        (
            f"the gateway can't be reached at {absent} (No such file or directory); if its admin listener is elsewhere,"
            " give --config, VELOX_CONFIG or --admin as the gateway has it",
        ),
    )
    with socket.create_server(("127.0.0.1", 0)) as sock:
        threading.Thread(target=_hang_up, args=(sock,)).start()
        address = Address("tcp", *sock.getsockname())
        assert call_reload(address, None).code == 2


@pytest.mark.parametrize("body", [b"<!doctype html>", b"[]", b"5", b'{"configuration": 1}', b'{"configuration"'])
def test_other_server_that_answers_is_exit_code_2(body: bytes) -> None:
    """Some say 200 to whatever is asked."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=_say, args=(sock, body))
        thread.start()
        outcome = call_reload(Address("tcp", *sock.getsockname()), None)
        thread.join()

    assert outcome.code == 2
    assert "is no admin listener of Velox" in outcome.lines[0]


def _say(sock: socket.socket, body: bytes) -> None:
    connection, _ = sock.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def _hang_up(sock: socket.socket) -> None:
    client, _ = sock.accept()
    client.close()


def test_many_lines_are_cut_and_counted(gateway: Gateway) -> None:
    """Nobody reads ten thousand."""
    told = asking(gateway)
    gateway.wait_asked(1)
    gateway.answer(problems=tuple(f"p{n}" for n in range(10_000)))
    lines = told().lines
    assert (len(lines), lines[-1]) == (1002, "  and 9000 more")


def test_answer_is_json_for_programs(gateway: Gateway) -> None:
    """422 for a configuration that can't be used."""
    result: Future[tuple[int, bytes]] = Future()
    thread = threading.Thread(target=lambda: result.set_result(post(gateway)))
    thread.start()
    gateway.wait_asked(1)
    gateway.answer(problems=("p",), restart=())
    thread.join(20.0)
    status, body = result.result(0.0)
    assert status == 422
    assert orjson.loads(body) == {
        "result": "bad",
        "configuration": 1,
        "age_s": 0.0,
        "changes": [],
        "needs_restart": [],
        "problems": ["p"],
        "waits_for": [],
    }
