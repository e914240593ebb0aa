"""What `make bench` holds open while it reads a gateway's memory."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.compare.memory import Holder
from bench.load import LoadError

_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def server(reply: bytes) -> Iterator[tuple[int, list[socket.socket]]]:
    """Serve each connection its one reply; the port, and the server's ends of the connections."""
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return  # the test is over
                ends.append(end)
                end.recv(65536)
                end.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], ends
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for end in ends:
                end.close()


def test_holder_counts_the_connections_that_the_server_left_open() -> None:
    """A gateway that closes idle connections holds no memory for them: there is no figure then."""
    with server(_REPLY) as (port, ends), Holder(port) as holder:
        holder.idle(3)
        assert holder.n_open() == 3
        ends[0].shutdown(socket.SHUT_RDWR)
        assert holder.n_open() == 2


def test_holder_refused_request_ends_it_and_says_why() -> None:
    """What is held after an error is not what was asked for."""
    with (
        server(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n") as (port, _),
        Holder(port) as holder,
        pytest.raises(LoadError, match=r"connection 1 of 2: .* 503 "),
    ):
        holder.idle(2)
