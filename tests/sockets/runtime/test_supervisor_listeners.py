"""The listening sockets that the supervisor holds: shared out, let go of, and taken from nobody."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from velox.runtime.processes.listeners import BindError, Listeners, bind_one
from velox.types import Address

LOOPBACK = Address(kind="tcp", host="127.0.0.1", port=0)


def port_of(listeners: Listeners) -> int:
    return int(listeners.url.rpartition(":")[2])


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_tcp_listeners_share_one_port_that_the_kernel_chose() -> None:
    """Each slot has a socket of its own, all on one port; nobody else gets that port meanwhile."""
    listeners = Listeners([LOOPBACK], 3)
    try:
        ports = {listeners[slot][0].getsockname()[1] for slot in range(3)}
        assert ports == {port_of(listeners)}
        assert len({listeners[slot][0].fileno() for slot in range(3)}) == 3
        with pytest.raises(BindError, match="Address already in use; is another Velox running there"):
            Listeners([Address(kind="tcp", host="127.0.0.1", port=port_of(listeners))], 2)
    finally:
        listeners.close()


@pytest.mark.parametrize("hosts", [("::", "0.0.0.0"), ("0.0.0.0", "::"), ("::", "127.0.0.1")])
def test_all_addresses_of_both_versions_share_one_port(hosts: tuple[str, str]) -> None:
    """However the system has it, `::` is then of its own version alone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listeners = Listeners([Address(kind="tcp", host=host, port=port) for host in hosts], 2)
    try:
        found = {each.family: each for each in listeners[0]}
        assert found[socket.AF_INET6].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()
    finally:
        listeners.close()


def test_tcp_listeners_take_connections_on_every_socket() -> None:
    """A connection lands in the queue of one of the sockets, whichever process is alive: none is refused."""
    listeners = Listeners([LOOPBACK], 2)
    clients = [socket.create_connection(("127.0.0.1", port_of(listeners))) for _ in range(40)]
    try:
        accepted = [0, 0]
        for slot in range(2):
            while True:
                try:
                    listeners[slot][0].accept()[0].close()
                except BlockingIOError:
                    break
                accepted[slot] += 1
        assert sum(accepted) == 40 and min(accepted) > 0, accepted
    finally:
        for client in clients:
            client.close()
        listeners.close()


def test_child_that_accepts_no_client_keeps_no_socket() -> None:
    """A socket that a child holds by mistake takes connections that nobody will ever serve; the last one counts too."""
    listeners = Listeners([LOOPBACK], 3)
    port = port_of(listeners)
    listeners.close_all()
    assert [listeners[slot][0].fileno() for slot in range(3)] == [-1] * 3
    listeners.close()
    assert not is_listening(port)


def test_worker_gets_the_sockets_of_the_others_but_for_what_all_share(tmp_path: Path) -> None:
    """It accepts on them while their workers do not."""
    listeners = Listeners([LOOPBACK, Address(kind="unix", path=str(tmp_path / "s"))], 3)
    assert listeners.of_others(1) == {0: (listeners[0][0],), 2: (listeners[2][0],)}
    listeners.close()
    listeners = Listeners([Address(kind="unix", path=str(tmp_path / "s"))], 3)
    assert listeners.of_others(1) == {}
    listeners.close()


def test_unix_listener_is_one_socket_for_all(tmp_path: Path) -> None:
    """Every slot has the same socket, and the admin process lets it go."""
    path = tmp_path / "velox.sock"
    listeners = Listeners([Address(kind="unix", path=str(path))], 3)
    assert listeners[0][0] is listeners[2][0]
    assert listeners.url == f"unix:{path}"
    listeners.close_all()
    assert listeners[1][0].fileno() < 0
    listeners.close()


def test_unix_listener_closed_twice_leaves_its_successors_path_alone(tmp_path: Path) -> None:
    """The supervisor closes at each turn of a drain; by then, the path may be another gateway's."""
    address = Address(kind="unix", host="", port=0, path=str(tmp_path / "velox.sock"))
    first = Listeners([address], 1)
    with pytest.raises(BindError):
        Listeners([address], 1)
    first.close()
    second = Listeners([address], 1)
    first.close()
    assert Path(address.path).exists()
    second.close()
    assert not Path(address.path).exists()


def test_unix_listener_replaces_a_dead_socket_but_no_other_file(tmp_path: Path) -> None:
    """What a killed gateway left is taken over; a file that is no socket is somebody's data."""
    dead, data = tmp_path / "dead.sock", tmp_path / "data"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    data.write_text("precious")
    bind_one(Address(kind="unix", host="", port=0, path=str(dead))).close()
    with pytest.raises(BindError, match="Address already in use"):
        bind_one(Address(kind="unix", host="", port=0, path=str(data)))
    assert data.read_text() == "precious"


def test_socket_in_a_folder_that_is_not_there_names_the_folder(tmp_path: Path) -> None:
    """As /run/velox after each start of the machine."""
    with pytest.raises(BindError, match=f"make the folder {tmp_path / 'velox'} first"):
        bind_one(Address(kind="unix", host="", port=0, path=str(tmp_path / "velox" / "velox.sock")))


def test_ipv6_listener_says_where_it_is() -> None:
    """Brackets in the address that people copy into a browser."""
    try:
        listeners = Listeners([Address(kind="tcp", host="::1", port=0)], 1)
    except BindError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    assert listeners.url.startswith("http://[::1]:")
    listeners.close()


def test_accepted_connections_hold_little_of_a_reply_in_the_kernel() -> None:
    """A client that reads nothing costs 0.3 MB of kernel memory at most, not tcp_wmem's 4 MiB."""
    listeners = Listeners([LOOPBACK], 1)
    with socket.create_connection(("127.0.0.1", port_of(listeners))):
        listeners[0][0].setblocking(True)
        accepted, _ = listeners[0][0].accept()
        accepted.setblocking(False)
        n_taken = 0
        with accepted, contextlib.suppress(BlockingIOError):
            while n_taken < 8 << 20:
                n_taken += accepted.send(bytes(65536))
        assert n_taken < 512 * 1024
    listeners.close()
