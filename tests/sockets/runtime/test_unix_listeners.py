"""Unix sockets of the data listener: who may connect, from the first instant, and whose file is removed."""

from __future__ import annotations

import os
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.runtime.processes.listeners import BindError, Listeners
from velox.types import Address, SocketOwner

SOMEBODY = 65_534  # nobody, on every Linux


@pytest.fixture
def path() -> Iterator[Path]:
    """A path in a folder that everybody may enter; pytest's own are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "velox.sock"


def address(path: Path) -> Address:
    return Address("unix", path=str(path))


def can_connect(path: Path, uid: int, gid: int) -> bool:
    """Connect as somebody else: in a child, which gives up being root."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666, 0o777, 0o000])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_file_has_the_mode_whatever_the_umask_is(path: Path, mode: int, umask: int) -> None:
    """And the process's own umask is what it was."""
    before = os.umask(umask)
    try:
        listeners = Listeners([address(path)], 1, mode=mode)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        listeners.close()
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_nobody_else_gets_in_at_any_instant(path: Path) -> None:
    """Somebody who tries all the time while the socket is bound, given away and removed, again and again."""
    over = threading.Event()
    modes: set[int] = set()

    def look() -> None:
        while not over.is_set():
            try:
                modes.add(stat.S_IMODE(path.stat().st_mode))
            except FileNotFoundError:
                pass

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            Listeners([address(path)], 1, mode=0o640, owner=SocketOwner("", os.getuid(), os.getgid())).close()
    finally:
        over.set()
        thread.join()
    assert modes <= {0, 0o640}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_file_has_its_owner_before_anybody_can_connect(path: Path) -> None:
    """A member of our own group tries all the time, while the file is made for another group, again and again."""
    pid = os.fork()
    if pid == 0:
        got_in = False
        try:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            while os.getppid() != 1 and not got_in and path.parent.exists():
                with socket.socket(socket.AF_UNIX) as client:
                    got_in = client.connect_ex(str(path)) == 0
        finally:
            os._exit(1 if got_in else 0)
    for _ in range(2000):
        Listeners([address(path)], 1, mode=0o660, owner=SocketOwner("", None, 4242)).close()
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not done, f"it got in: {status}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_mode_and_owner_say_who_may_connect(path: Path) -> None:
    """The owner, a member of the group, and others; root may always."""
    cases = (
        (0o600, SocketOwner("", SOMEBODY, None), (True, False, False)),
        (0o660, SocketOwner("", None, 4242), (False, True, False)),
        (0o666, None, (True, True, True)),
        (0o600, None, (False, False, False)),
    )
    for mode, owner, expected in cases:
        listeners = Listeners([address(path)], 1, mode=mode, owner=owner)
        try:
            who = ((SOMEBODY, SOMEBODY), (4343, 4242), (4444, 4444))
            assert tuple(can_connect(path, uid, gid) for uid, gid in who) == expected, oct(mode)
        finally:
            listeners.close()


def test_owner_that_can_not_be_given_is_a_clear_error_and_leaves_nothing(path: Path) -> None:
    """A service that is not root may give the file to its own groups only."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:
                path.parent.chmod(0o777)
                os.setgroups([])
                os.setresgid(4242, 4242, 4242)
                os.setresuid(4242, 4242, 4242)
            Listeners([address(path)], 1, owner=SocketOwner("root:root", 0, 0))
        except BindError as exc:
            if "to root:root" in str(exc) and "only root" in str(exc) and not path.exists():
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_several_addresses_are_bound_or_none(tmp_path: Path) -> None:
    """What was bound before the one that can't be is given back: port and file."""
    path, busy = tmp_path / "velox.sock", tmp_path / "busy.sock"
    first = Listeners([Address("tcp", "127.0.0.1", 0), address(busy)], 2, scheme="https")
    tcp, unix = first.url.split(",")
    assert tcp.startswith("https://127.0.0.1:") and unix == f"unix:{busy}"
    assert [sock.family for sock in first[1]] == [socket.AF_INET, socket.AF_UNIX]
    try:
        with pytest.raises(BindError, match=r"busy\.sock"):
            Listeners([address(path), address(busy)], 2)
        assert not path.exists() and busy.exists()
    finally:
        first.close()
    assert not busy.exists()


def test_file_of_a_successor_is_not_removed(path: Path) -> None:
    """Somebody replaced the file while we ran: it is theirs now."""
    first = Listeners([address(path)], 1)
    path.unlink()
    second = Listeners([address(path)], 1)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_socket_that_may_not_be_asked_is_not_taken_away(path: Path) -> None:
    """It may be served: the file stays, and the start fails."""
    first = Listeners([address(path)], 1, mode=0o600)
    path.parent.chmod(0o777)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresuid(4242, 4242, 4242)
            Listeners([address(path)], 1)
        except BindError as exc:
            code = 0 if "Address already in use" in str(exc) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert can_connect(path, 0, 0)
    first.close()
