"""The command lines of `velox start`, `stop`, `restart`, `status` and `logs`.

Knows: what each takes. Does not know: what it does (run.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from velox.settings import parse

__all__ = ["COMMANDS", "add_daemon_arguments", "add_serve_arguments"]

COMMANDS: Final = ("start", "stop", "restart", "status", "logs")
_MOST_PORT: Final = 65535
_MOST_LINES: Final = 1_000_000
_WAIT: Final = parse.duration(0.0, 86_400.0)
_START: Final = "60s"


def add_serve_arguments(command: argparse.ArgumentParser) -> None:
    """Add what a gateway is told by its command line."""
    command.add_argument("--sim", action="store_true", help="use the built-in simulator as upstream")
    command.add_argument("--port", type=_port, metavar="N", help="port for clients; overrides that of VELOX_LISTEN")
    command.add_argument("--host", metavar="IP", help="address for clients: 0.0.0.0 for all of this machine's")
    command.add_argument("--listen", metavar="ADDRESSES", help="addresses for clients; overrides VELOX_LISTEN")
    _add_pid_file(command)
    command.add_argument("--log-file", metavar="FILE", help="file of the logs; overrides VELOX_LOG_FILE")


def _add_pid_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pid-file", metavar="FILE", help="file with its process id; overrides VELOX_PID_FILE")


def add_daemon_arguments(
    start: argparse.ArgumentParser,
    stop: argparse.ArgumentParser,
    restart: argparse.ArgumentParser,
    status: argparse.ArgumentParser,
    logs: argparse.ArgumentParser,
) -> None:
    """Add the arguments of these commands but --config and --admin, which others have, too."""
    for command in (start, restart):
        add_serve_arguments(command)
        command.add_argument(
            "--timeout", type=_duration, default=_START, metavar="TIME", help=f"until it is ready ({_START})"
        )
    _add_pid_file(stop)
    stop.add_argument("--timeout", type=_duration, metavar="TIME", help="that is waited for (as long as it takes)")
    stop.add_argument("--now", action="store_true", help="cut what runs, instead of draining")
    _add_pid_file(status)
    status.add_argument("--json", action="store_true", help="for programs")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what comes, over rotations")
    logs.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="of the end (20)")
    logs.add_argument("--errors", action="store_true", help="only what did not end well")
    logs.add_argument("--slow", type=_duration, metavar="TIME", help="only requests that took so long: 500ms, 2s")
    logs.add_argument("--key", metavar="NAME", help="only requests of this client key: its name or id")
    logs.add_argument("--model", metavar="NAME", help="only requests for this model, as clients name it")
    logs.add_argument("--json", action="store_true", help="lines as they stand in the file")
    logs.add_argument(
        "--file", action="append", metavar="FILE", help="another one than the settings say; may be repeated"
    )
    logs.add_argument("--log-file", metavar="FILE", help="file of the logs; overrides VELOX_LOG_FILE")


def _port(text: str) -> int:
    """Return a port. argparse shows the error."""
    if text.isascii() and text.isdecimal() and int(text) <= _MOST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a port from 0 to {_MOST_PORT}; addresses go to --listen")


def _shown(read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r}: {exc}") from exc


def _duration(text: str) -> float:
    return _shown(_WAIT, text)


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= _MOST_LINES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of lines, {_MOST_LINES} at most")
