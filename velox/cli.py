"""The `velox` command: serve, check, sim, key.

Knows: arguments, exit codes and what is printed where. Does not know: how any of it is done.
Exit codes: 0 done, 1 failed while running, 2 not started because of arguments or settings.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Mapping, Sequence

from velox import __version__
from velox.runtime.capacity import descriptors_of, memory_of
from velox.runtime.limits import open_files_limit, raise_open_files
from velox.settings import Settings, SettingsError, load
from velox.settings.certificate import CertificateError, read_certificate
from velox.settings.keys import parse_key
from velox.settings.memory_bound import KEEPER_BYTES
from velox.settings.show import effective
from velox.settings.show_limits import limit_lines
from velox.sim import main as simulator

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code. argparse leaves by SystemExit, for --help too."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "sim":
        return _sim(arguments)
    if arguments.command == "key":
        return _key(arguments)
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


def _missing_redis(settings: Settings) -> str:
    """Return why limits can't be shared with other gateways now, "" if they can or need not.

    Not for `serve`: a gateway that is restarted while Redis is away must come back, and its processes share the memory
    of the one they are forked from, to which the library would add 20 MB.
    """
    if settings.redis_url is None:
        return ""
    # Here, not above: the package redis is an extra.
    from velox.runtime.lease_redis import reachable

    why = reachable(settings.redis_url.reveal(), settings.redis_prefix, settings.redis_timeout_s)
    return "" if why is None else f"VELOX_REDIS_URL can't be used: {why}"


def _check(settings: Settings) -> int:
    missing = _missing_redis(settings)
    if missing:
        print(f"velox: {missing}", file=sys.stderr)
        return 2
    rows = effective(settings)
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    for name, value, origin in rows:
        print(f"{name:{name_width}}  {value:{value_width}}  {origin}")
    print()
    raise_open_files()
    limit = open_files_limit()
    print(f"memory: {memory_of(settings, limit)}")
    if settings.redis_url is not None:
        print(f"memory: and {KEEPER_BYTES >> 20} MiB for the keeper of leases (VELOX_REDIS_URL), one process")
    plan = descriptors_of(settings, 0, limit)
    print(f"connections: a worker takes {plan.clients} of clients, of {limit} open files")
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        print(_tls(settings, settings.tls_cert_file, settings.tls_key_file))
    for line in limit_lines(settings):
        print(line)
    print(_door(settings))
    return 0


def _door(settings: Settings) -> str:
    n = len(settings.api_keys)
    if n:
        n_limited = sum(bool(key.models) for key in settings.api_keys)
        limited = f"; {n_limited} of them may use some models only" if n_limited else ""
        return (f"clients must present one of {n} keys" if n > 1 else "clients must present the one key") + limited
    if all(address.is_loopback for address in settings.listen):
        return "clients need no key: only this machine can connect"
    return "clients need no key and can come from other machines (VELOX_AUTH=none)"


def _tls(settings: Settings, cert: str, key: str) -> str:
    try:
        found = read_certificate(cert, key, settings.tls_client_ca_file)
    except CertificateError as exc:  # changed since the settings were checked
        return str(exc)
    client = "" if settings.tls_client_ca_file is None else "; they must show one of their own"
    if found.is_expired:
        return f"WARNING: the certificate in VELOX_TLS_CERT has expired on {found.not_after}: no client will accept it"
    return f"clients are shown a certificate that is valid until {found.not_after}{client}"


def _key(arguments: argparse.Namespace) -> int:
    """Print a new key and its entry, or the entry of the key on standard input: arguments are seen by everyone (ps)."""
    if arguments.action == "new":
        key = f"vk-{secrets.token_urlsafe(32)}"  # 256 bits: the digest of such a key needs no salt
        print(f"key    {key}")
    else:
        key = sys.stdin.readline().strip()
    try:
        entry = parse_key(key)
    except ValueError as exc:
        print(f"velox key: {exc}", file=sys.stderr)
        return 2
    label = "entry  " if arguments.action == "new" else ""
    print(f"{label}sha256:{entry.digest.hex()}")
    return 0


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
    key = commands.add_parser("key", help="make a client's key, or the digest of one", allow_abbrev=False)
    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("new", help="print a random key, and its entry for VELOX_API_KEYS", allow_abbrev=False)
    actions.add_parser("hash", help="print the entry of the key on standard input", allow_abbrev=False)
    sim = commands.add_parser("sim", help="run an OpenAI-compatible simulator", allow_abbrev=False)
    simulator.add_arguments(sim)
    return parser
