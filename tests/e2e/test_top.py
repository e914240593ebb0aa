"""`velox top` beside a running gateway: printed once, and on a terminal until q is pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.tools import CHAT, Client
from tests.patience import PATIENCE_S

TOKEN = "an-admin-token-of-a-test"
COMMAND = [sys.executable, "-m", "velox", "top"]


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway on the simulator, with a token."""
    with VeloxProcess({"VELOX_WORKERS": "2", "VELOX_ADMIN_TOKEN": TOKEN}, ("serve", "--sim")) as running:
        yield running


def environment(velox: VeloxProcess, **more: str) -> dict[str, str]:
    """Return what the command is given to find the gateway."""
    listen = velox.admin_url.removeprefix("http://")
    return {**os.environ, "VELOX_ADMIN_LISTEN": listen, "VELOX_ADMIN_TOKEN": TOKEN, "TERM": "xterm", **more}


def test_once_prints_what_the_gateway_does(velox: VeloxProcess) -> None:
    """For scripts, and where the output is no terminal: no colours, no control characters."""
    with Client(velox) as client:
        assert client.ask("POST", "/v1/chat/completions", CHAT).status == 200
    done = subprocess.run(
        COMMAND, cwd=REPOSITORY, env=environment(velox), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("velox ") and "\x1b" not in done.stdout
    assert re.search(r"(?m)^default +in use +0 ", done.stdout)
    assert len(re.findall(r"(?m)^[01] +serving +[0-9]+ MiB", done.stdout)) == 2


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"VELOX_ADMIN_TOKEN": "another-token-of-this-test"}, 1, "it asks for a token: set VELOX_ADMIN_TOKEN"),
        ({"VELOX_ADMIN_LISTEN": "127.0.0.1:1"}, 1, "can't be reached at 127.0.0.1:1"),
        ({"VELOX_ADMIN_LISTEN": "off"}, 2, "VELOX_ADMIN_LISTEN is off"),
        ({"VELOX_ADMIN_LISTEN": "nowhere"}, 2, "VELOX_ADMIN_LISTEN"),
    ],
)
def test_gateway_that_can_not_be_asked_is_told(velox: VeloxProcess, more: dict[str, str], code: int, text: str) -> None:
    """With what to do about it."""
    done = subprocess.run(
        [*COMMAND, "--once"],
        cwd=REPOSITORY,
        env=environment(velox, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code and text in done.stderr and done.stdout == ""


def test_terminal_is_drawn_until_q_and_given_back(velox: VeloxProcess) -> None:
    """More than one screen; afterwards the cursor and the first screen are there again."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(COMMAND, cwd=REPOSITORY, env=environment(velox), stdin=follower, stdout=follower)
    os.close(follower)
    seen = b""

    def read_until(wanted: bytes, times: int = 1) -> None:
        nonlocal seen
        while seen.count(wanted) < times:
            assert select.select([leader], [], [], PATIENCE_S)[0], seen
            seen += os.read(leader, 65536)

    try:
        read_until(b"\x1b[H", 2)
        os.write(leader, b"q")
        read_until(b"\x1b[?1049l")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l") and b"serving" in seen
