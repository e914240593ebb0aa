"""The `velox` command: serve, check, sim.

Knows: arguments, exit codes and what is printed where. Does not know: how any of it is done.
Exit codes: 0 done, 1 failed while running, 2 not started because of arguments or settings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from velox import __version__
from velox.settings import Settings, SettingsError, load
from velox.settings.show import effective
from velox.sim import main as simulator

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code. argparse leaves by SystemExit, for --help too."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "sim":
        return _sim(arguments)
    overrides = {"VELOX_CONFIG": arguments.config} if arguments.config else {}
    try:
        settings = load(os.environ if environ is None else environ, overrides)
    except SettingsError as exc:
        n = len(exc.problems)
        print(f"velox: {n} problem{'s' * (n > 1)} in the settings, nothing was started:", file=sys.stderr)
        for problem in exc.problems:
            print(f"  {problem}", file=sys.stderr)
        return 2
    if arguments.command == "check":
        return _check(settings)
    return _serve(settings, sim=arguments.sim)


def _serve(settings: Settings, *, sim: bool) -> int:
    if sim and settings.origins["VELOX_UPSTREAM_ORIGIN"] != "default":
        print(
            "velox: --sim and VELOX_UPSTREAM_ORIGIN name two upstreams: leave one out",
            file=sys.stderr,
        )
        return 2
    # Here, not above: the gateway is loaded by the one command that runs it.
    from velox.runtime import supervisor

    return supervisor.serve(settings, sim=sim)


def _check(settings: Settings) -> int:
    rows = effective(settings)
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    for name, value, origin in rows:
        print(f"{name:{name_width}}  {value:{value_width}}  {origin}")
    print(f"\n{_door(settings)}")
    return 0


def _door(settings: Settings) -> str:
    n = len(settings.api_key_digests)
    if n:
        return f"clients must present one of {n} keys" if n > 1 else "clients must present the one key"
    if settings.listen.is_loopback:
        return "clients need no key: only this machine can connect"
    return "clients need no key and can come from other machines (VELOX_AUTH=none)"


def _sim(arguments: argparse.Namespace) -> int:
    try:
        options = simulator.read_options(arguments)
    except ValueError as exc:
        print(f"velox sim: {exc}", file=sys.stderr)
        return 2
    try:
        simulator.run(options, lambda line: print(line, flush=True))
    except OSError as exc:
        print(f"velox sim: {exc}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="velox",
        description="An LLM inference gateway. Its settings come from the environment and a YAML file.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"velox {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the gateway", allow_abbrev=False)
    serve.add_argument("--sim", action="store_true", help="with the built-in simulator as upstream")
    check = commands.add_parser("check", help="print the settings and their sources", allow_abbrev=False)
    for command in (serve, check):
        command.add_argument("--config", metavar="FILE", help="YAML file; beats VELOX_CONFIG")
    sim = commands.add_parser("sim", help="run an OpenAI-compatible simulator", allow_abbrev=False)
    simulator.add_arguments(sim)
    return parser
