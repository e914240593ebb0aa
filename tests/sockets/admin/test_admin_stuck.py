"""A real admin process that is stuck in a loop: it is ended, and says where it stood."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time

from velox.admin import server
from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.observe.oplog import operations_logger
from velox.runtime.children import AdminProcess
from velox.runtime.processes.child_table import Ended
from velox.runtime.processes.crashes import CrashReports
from velox.runtime.processes.listeners import Listeners
from velox.runtime.processes.watchdog import Watchdog
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus


def goes_round() -> Readiness:
    while True:
        pass


def test_admin_process_in_a_loop_is_aborted_and_says_where() -> None:
    """Its heart beats until a page never ends."""
    segment = Segment(1, 8)
    status, reports, log = GatewayStatus(segment), CrashReports(), io.StringIO()
    logger = operations_logger(log)
    dog = Watchdog(logger)
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def serve(_: Listeners) -> int:
            def beat() -> None:
                status.admin_heartbeat_ns = time.monotonic_ns()

            app = AdminApp(metrics=lambda: b"", ready=goes_round, profiles=None)
            server.run(sock, app, beat)
            return 0

        process = AdminProcess(segment, serve, logger)
        listeners = Listeners((), 1)
        process.started(reports.fork(lambda: process.run(listeners)), time.monotonic())
        with socket.create_connection(sock.getsockname()) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert process.heartbeat_ns
        with socket.create_connection(sock.getsockname()) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until_s = time.monotonic() + 30
            while not (ended := os.waitpid(process.pid, os.WNOHANG))[0]:
                assert time.monotonic() < until_s
                time.sleep(0.05)
                dog.look(time.monotonic())
                dog.check(process, "the admin process", 1.5, time.monotonic())
    assert os.WTERMSIG(ended[1]) == signal.SIGABRT
    told = reports.take(process.pid)
    assert "in goes_round" in told
    assert "the admin process is stuck, no heartbeat for 1.5 s: aborted" in log.getvalue()
    process.ended(Ended(*ended, time.monotonic(), told), is_expected=False)
    assert (status.admin_restarts, process.heartbeat_ns, process.pid) == (1, 0, 0)
    line = json.loads(log.getvalue().splitlines()[-1])
    assert line["message"] == "the admin process died (SIGABRT); the next one starts in 0.1 s"
    assert (line["reason"], line["traceback"]) == ("stuck", told)
