"""Runs `velox start`, `stop`, `restart`, `status` and `logs`.

Knows: how the parts are put together, exit codes. Does not know: other settings than where files and the admin listener
are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from velox.admin.call import AdminCaller, AdminCallError
from velox.admin.upgrades.call import UPGRADE_TIMEOUT_S, call_upgrade
from velox.runtime.commands.figures import parse_figures
from velox.runtime.daemon.logs import LogReader, Wanted, follow, last_lines, missing, shown
from velox.runtime.daemon.places import Places, places_of
from velox.runtime.daemon.restart import upgrade_by_signal
from velox.runtime.daemon.start import command_of, start
from velox.runtime.daemon.status import CODE_UNKNOWN, ask_status, status_code, status_lines, status_record
from velox.runtime.daemon.stop import stop
from velox.runtime.processes.pid_file import PidFileError, find
from velox.settings.loading import AdminPlace, admin_place

__all__ = ["run_daemon_command"]

_ASK_S: Final = 2.0
_OF_SERVE: Final = ("port", "host", "listen")

Say: TypeAlias = Callable[[str], None]


def run_daemon_command(
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    say: Say,
    tell: Say,
) -> int:
    """Run one; return its exit code. overrides: what the command line says of settings.

    say: prints a line of what was asked for. tell: one of what went wrong.
    """
    options = {"VELOX_PID_FILE": "pid_file", "VELOX_LOG_FILE": "log_file", "VELOX_ADMIN_LISTEN": "admin"}
    given = {name: getattr(arguments, field, None) for name, field in options.items()}
    overrides = {**overrides, **{name: text for name, text in given.items() if text}}
    places = places_of(environ, overrides)
    place = admin_place(environ, overrides)
    match arguments.command:
        case "start":
            return start(_serve(arguments, places), environ, places, arguments.timeout, say, tell)
        case "stop":
            timeout_s = math.inf if arguments.timeout is None else arguments.timeout
            terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
            asks = partial(_in_flight, place)
            return stop(places.pid_file, timeout_s, say, tell, is_now=arguments.now, in_flight=asks, terminal=terminal)
        case "restart":
            return _restart(arguments, environ, places, place, say, tell)
        case "status":
            return _status(arguments, places, place, say, tell)
        case _:
            return _logs(arguments, places, say, tell)


def _serve(arguments: argparse.Namespace, places: Places) -> list[str]:
    """Return the command line of the gateway."""
    words = ["serve", "--pid-file", places.pid_file, "--log-file", places.log_file]
    words += ["--sim"] if arguments.sim else []
    for name in ("config", *_OF_SERVE):
        value = getattr(arguments, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return command_of(words)


def _restart(
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    places: Places,
    place: AdminPlace,
    say: Say,
    tell: Say,
) -> int:
    try:
        pid = find(places.pid_file).pid
    except PidFileError as exc:
        tell(str(exc))
        return 1
    if not pid:
        return start(_serve(arguments, places), environ, places, arguments.timeout, say, tell)
    given = ["--sim"] if arguments.sim else []
    given += [f"--{name}" for name in _OF_SERVE if getattr(arguments, name) is not None]
    if given:
        tell(
            f"{', '.join(given)}: the running gateway (process {pid}) keeps the command line that it was started by; "
            "`velox stop` and `velox start` change it"
        )
        return 2
    if place.address is None or place.problems:
        try:
            return upgrade_by_signal(places.pid_file, places.log_file, UPGRADE_TIMEOUT_S, say, tell)
        except (PidFileError, OSError) as exc:
            tell(str(exc))
            return 1
    outcome = call_upgrade(place.address, place.token, place.cert)
    for line in outcome.lines:
        (tell if outcome.code else say)(line)
    return outcome.code


def _status(arguments: argparse.Namespace, places: Places, place: AdminPlace, say: Say, tell: Say) -> int:
    try:
        found = find(places.pid_file)
    except PidFileError as exc:
        tell(str(exc))
        return CODE_UNKNOWN
    if place.problems and not found.pid:
        for problem in place.problems:
            tell(str(problem))
        return CODE_UNKNOWN
    status = ask_status(found, None if place.problems else place)
    lines = [json.dumps(status_record(status), indent=2)] if arguments.json else None
    for line in lines or status_lines(status, found, places.pid_file):
        say(line)
    return status_code(status, found)


def _in_flight(place: AdminPlace) -> int | None:
    """Return how many requests run; None: nobody says."""
    if place.address is None:
        return None
    try:
        with contextlib.closing(AdminCaller(place.address, place.token, place.cert, _ASK_S)) as caller:
            status, body = caller.ask("GET", "/metrics")
        return int(parse_figures(body.decode(), 0.0).total("velox_inflight_requests")) if status == 200 else None
    except (AdminCallError, ValueError):
        return None


def _logs(arguments: argparse.Namespace, places: Places, say: Say, tell: Say) -> int:
    paths = arguments.file or [path for path in (places.log_file, places.access_log_file) if path]
    lacking = missing(paths)
    if lacking and not arguments.follow:
        tell(lacking)
        return 1
    slow_ms = None if arguments.slow is None else arguments.slow * 1000
    wanted = Wanted(arguments.errors, slow_ms, arguments.key, arguments.model)
    show = partial(shown, wanted=wanted, as_json=arguments.json)
    readers = [LogReader(path) for path in dict.fromkeys(paths)]
    try:
        for line in last_lines(readers, arguments.lines, show):
            say(line)
        if arguments.follow:
            follow(readers, show, say)
    except KeyboardInterrupt:
        return 0
    except OSError as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        tell(f"{exc.filename} can't be read: {exc.strerror}")
        return 1
    finally:
        for reader in readers:
            reader.close()
    return 0
