"""How the wall counts what a worker holds open."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.wall.gate import inodes_to

ROW = "{n:4d}: 0100007F:{here:04X} 0100007F:{there:04X} 01 00000000:00000000 00:00000000 00000000  0  0 {inode} 1"


def test_row_that_the_kernel_gives_twice_is_one_connection() -> None:
    """As it does while connections come and go: a baseline that counted both was too low for good."""
    rows = [(0, 5000, 80, 7), (1, 5001, 443, 8), (2, 80, 5002, 9), (3, 5000, 80, 7)]
    table = "\n".join(ROW.format(n=n, here=here, there=there, inode=inode) for n, here, there, inode in rows)

    assert inodes_to({80, 443}, table) == {"7", "8"}


def test_connection_is_found_from_the_side_that_dialed() -> None:
    """In the kernel's own table."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as dialed:
            (inode,) = inodes_to({port}, Path("/proc/net/tcp").read_text())
            assert Path(f"/proc/self/fd/{dialed.fileno()}").readlink().name == f"socket:[{inode}]"
