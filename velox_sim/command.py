"""`velox sim`, and the simulator of `velox serve --sim`.

Knows: exit codes, and what is printed where. Does not know: what an option means (options.py).
"""

from __future__ import annotations

import argparse
import socket
import sys

from velox_sim import server
from velox_sim.options import SimOptions, read_options

__all__ = ["run_command", "serve_on"]


def run_command(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it; return the exit code. 1: it can't listen. 2: an argument can't be used."""
    try:
        options = read_options(arguments)
    except ValueError as exc:
        print(f"velox sim: {exc}", file=sys.stderr)
        return 2
    try:
        server.run(options, lambda line: print(line, flush=True))
    except OSError as exc:
        print(f"velox sim: {exc}", file=sys.stderr)
        return 1
    return 0


def serve_on(sock: socket.socket) -> None:
    """Serve with all options at their defaults on a socket bound to loopback, until a signal stops it."""
    server.run(SimOptions(port=sock.getsockname()[1]), lambda _line: None, sock=sock)
