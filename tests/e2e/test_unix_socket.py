"""A unix socket for sidecars: the OpenAI SDK through it, beside a port, and over the life of a gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.e2e.harness import KEY, VeloxProcess, read_reply, until
from tests.e2e.tls_clients import TlsFiles
from tests.e2e.tools import covers, free_port

SIM = ("serve", "--sim")
MESSAGES = [{"role": "user", "content": "hi"}]
GET = b"GET /v1/models HTTP/1.1\r\nhost: velox.test\r\n\r\n"
SOMEBODY = 4242


@pytest.fixture
def path() -> Iterator[Path]:
    """A path in a folder that everybody may enter; pytest's own are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "velox.sock"


def sdk_through(path: Path) -> openai.OpenAI:
    """Return the SDK as README shows it."""
    transport = openai.DefaultHttpxClient(transport=httpx2.HTTPTransport(uds=str(path)))
    return openai.OpenAI(base_url="http://velox/v1", api_key=KEY, max_retries=0, http_client=transport)


def ask(path: Path) -> int:
    """Return the status of a plain request."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(GET)
        return read_reply(sock).status


def test_sdk_works_through_a_unix_socket(path: Path) -> None:
    """Plain and streamed; no port is open at all."""
    with VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "2"}, SIM) as velox, sdk_through(path) as sdk:
        assert velox.base_url == f"unix:{path}"
        answer = sdk.chat.completions.create(model="velox-sim", messages=MESSAGES)
        assert answer.choices[0].message.content
        chunks = list(sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True))
        assert len(chunks) > 3 and chunks[-1].choices[0].finish_reason == "stop"


def test_async_sdk_works_through_a_unix_socket(path: Path) -> None:
    """Twenty streams side by side."""

    async def ask_once(sdk: openai.AsyncOpenAI) -> int:
        stream = await sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True)
        return len([chunk async for chunk in stream])

    async def main() -> list[int]:
        transport = openai.DefaultAsyncHttpxClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)))
        async with openai.AsyncOpenAI(
            base_url="http://velox/v1", api_key=KEY, max_retries=0, http_client=transport
        ) as sdk:
            return await asyncio.gather(*(ask_once(sdk) for _ in range(20)))

    with VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "2"}, SIM):
        counts = asyncio.run(main())
    assert len(set(counts)) == 1 and counts[0] > 3


@covers("VELOX_LISTEN")
def test_port_and_socket_side_by_side(path: Path, tmp_path: Path) -> None:
    """The port speaks TLS where that is asked for, the socket never; both are one gateway, with one limit."""
    files, port = TlsFiles(tmp_path), free_port()
    settings = {"VELOX_LISTEN": f"127.0.0.1:{port},unix:{path}", "VELOX_WORKERS": "2"}
    limit = {"VELOX_RATE_LIMIT_BURST": "2", "VELOX_RATE_LIMIT_RPM": "1"}
    with VeloxProcess({**files.env(), **settings, **limit}, SIM) as velox:
        assert velox.base_url == f"https://127.0.0.1:{port},unix:{path}"
        transport = openai.DefaultHttpxClient(verify=files.context(), trust_env=False)
        base_url = f"https://127.0.0.1:{port}/v1"
        with (
            openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, http_client=transport) as outside,
            sdk_through(path) as inside,
        ):
            assert outside.models.list().data and inside.models.list().data
            for sdk in (outside, inside):
                with pytest.raises(openai.RateLimitError):
                    sdk.models.list()
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away, and be somebody else")
@covers("VELOX_LISTEN_MODE", "VELOX_LISTEN_OWNER")
def test_mode_and_owner_let_another_user_in(path: Path) -> None:
    """The file is theirs from the first instant; without these only our own user may connect."""

    def somebody_asks() -> bool:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
                os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
                code = 0 if ask(path) == 200 else 2
            except PermissionError:
                pass
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    listen = {"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "1"}
    for more, mode, gets_in in (
        ({}, 0o600, False),
        ({"VELOX_LISTEN_MODE": "0660", "VELOX_LISTEN_OWNER": f":{SOMEBODY}"}, 0o660, True),
        ({"VELOX_LISTEN_MODE": "0666"}, 0o666, True),
        ({"VELOX_LISTEN_OWNER": f"{SOMEBODY}:{SOMEBODY}"}, 0o600, True),
    ):
        with VeloxProcess({**listen, **more}, SIM):
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert somebody_asks() == gets_in, more
            assert ask(path) == 200, "root may always"


def test_worker_that_dies_leaves_the_socket_as_it_is(path: Path) -> None:
    """The supervisor holds it: the same file, and who waits in it is served."""
    with VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "1"}, SIM) as velox:
        before = path.stat().st_ino
        (victim,) = velox.worker_pids()
        os.kill(victim, signal.SIGKILL)
        assert ask(path) == 200, "it waited for the successor"
        assert velox.worker_pids() != [victim]
        assert path.stat().st_ino == before


def test_restart_loses_no_connection_that_was_accepted(path: Path) -> None:
    """A gateway after the other on one path: the first one finishes its stream, the second one serves meanwhile."""
    settings = {"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "1"}
    with VeloxProcess(settings, SIM) as first, sdk_through(path) as sdk:
        stream = sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True)
        chunks = [next(iter(stream))]
        rest = threading.Thread(target=lambda: chunks.extend(stream))
        first.signal(signal.SIGTERM)
        until(lambda: not path.exists(), "the first one has left the path")
        with VeloxProcess(settings, SIM):
            rest.start()
            rest.join()
            assert chunks[-1].choices[0].finish_reason == "stop"
            assert first.wait() == 0
            assert ask(path) == 200, "the first one's end has not taken the second one's socket away"
