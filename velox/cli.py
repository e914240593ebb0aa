"""The `velox` command: serve, start, stop, status, logs, init, check, top, budgets, reload, upgrade, key and others.

Knows: arguments, exit codes and what is printed where. Does not know: how any of it is done.
Exit codes: 0 done, 1 failed while running, 2 not started because of arguments or settings. `velox status` has those of
the LSB.

What a command does is imported by its function: all processes of a gateway are forked from the one that `serve` runs
in, and what the other commands need would stay in their memory (tests/e2e/test_gateway_imports.py).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO

from velox.build import DESCRIPTION

if TYPE_CHECKING:  # takes longer to load than all of Python
    from velox.admin.call import AdminCaller
    from velox.settings import Settings, SettingsError
    from velox.settings.loading import AdminPlace

__all__ = ["main"]

# Those that need no settings.
_KEY_ACTIONS: Final = ("new", "hash")
_API_TIMEOUT_S: Final = 10.0


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code. argparse leaves by SystemExit, for --help too."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(frozenset(words)).parse_args(words)
    variables = os.environ if environ is None else environ
    if arguments.command in ("serve", "sim"):
        return _run(arguments, variables)
    if sys.stdout is None:  # a secret that is made must not be lost
        print("velox: standard output is closed, and this command prints", file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of a path that the terminal's encoding has no letters for
    code = 0
    try:
        code = _run(arguments, variables)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # `velox usage --calls | head` has seen enough. Who hears of errors no more must still get a code that says so.
        code = code or int(not _is_broken(sys.stdout))
    except OSError as exc:
        if exc.filename is not None:
            raise
        print(f"velox: what this command prints could not be written: {exc.strerror}", file=sys.stderr)
        code = 1
    # What is left in the buffer goes nowhere: Python would try once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _is_broken(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    return False


def _run(arguments: argparse.Namespace, variables: Mapping[str, str]) -> int:
    if arguments.command == "sim":
        return _sim(arguments)
    if arguments.command == "key" and arguments.action in _KEY_ACTIONS:
        return _key(arguments)
    if arguments.command == "init":
        return _init(arguments)
    if arguments.command == "import" and arguments.kind != "litellm-db":
        return _import(arguments, variables)
    handed = starter_text = ""
    if arguments.command == "serve":
        from velox.runtime.processes import handover, process, starter

        process.begin()
        process.keep_modules()
        # No setting, and what this process starts must not take it for its own. One that does not know it refuses it.
        if variables is os.environ:
            handed = os.environ.pop(handover.VARIABLE, "")
            starter_text = os.environ.pop(starter.VARIABLE, "")
    overrides = {"VELOX_CONFIG": arguments.config} if arguments.config else {}
    if arguments.command == "serve":
        options = {"VELOX_LISTEN": arguments.listen, "HOST": arguments.host, "PORT": arguments.port}
        options |= {"VELOX_PID_FILE": arguments.pid_file, "VELOX_LOG_FILE": arguments.log_file}
        overrides |= {name: str(value) for name, value in options.items() if value is not None}
    if arguments.command in ("start", "stop", "restart", "status", "logs"):
        from velox.runtime.daemon.run import run_daemon_command

        say, tell = partial(print, flush=True), partial(print, f"velox {arguments.command}:", file=sys.stderr)
        return run_daemon_command(arguments, variables, overrides, say, tell)
    if arguments.command in ("reload", "upgrade"):
        return _ask_supervisor(arguments, variables, overrides)
    if arguments.command == "health":
        return _health(variables, overrides)
    if arguments.command == "budgets":
        return _budgets(arguments, variables, overrides)
    if arguments.command == "cache":
        return _purge(arguments, variables, overrides)
    if arguments.command == "top":
        return _top(arguments, variables, overrides)
    from velox.settings import SettingsError, load

    began_ns = time.time_ns()
    try:
        serves = arguments.command == "serve"
        settings = load(variables, overrides, sim=serves and arguments.sim, needs_keys=serves)
    except SettingsError as exc:
        n = len(exc.problems)
        if arguments.command == "check" and arguments.json:
            return _not_valid(exc)
        begin = "not valid" if arguments.command == "check" else "velox"
        print(f"{begin}: {n} problem{'s' * (n > 1)} in the settings, nothing was started:", file=sys.stderr)
        for problem in exc.problems:
            print(f"  {problem}", file=sys.stderr)
        return 2
    if arguments.command == "prices":
        return _prices(settings, arguments)
    if arguments.command == "usage":
        return _usage(settings, arguments)
    if arguments.command == "import":
        return _import_database(settings, arguments, variables)
    if arguments.command in ("key", "team", "user", "audit"):
        return _accounts(settings, arguments)
    if arguments.command == "check" and arguments.explain is not None:
        return _explain_losses(settings, *arguments.explain)
    if arguments.command == "check":
        return _explain(settings, arguments) if _is_question(arguments) else _check(settings, arguments)
    other = _other_than_sim(settings) if arguments.sim else ""
    if other:
        print(f"velox: --sim and {other} name two upstreams: leave one out", file=sys.stderr)
        return 2
    from velox.runtime import supervisor
    from velox.runtime.reload import ConfigSource

    again = partial(_load_again, variables, overrides, sim=arguments.sim)
    simulate = _simulate if arguments.sim else None
    return supervisor.serve(settings, ConfigSource(again, began_ns), simulate, handed, starter_text)


def _load_again(environ: Mapping[str, str], overrides: Mapping[str, str], *, sim: bool) -> Settings:
    """Read the settings while the gateway runs. Raises SettingsError."""
    from velox.settings import Problem, SettingsError, load

    settings = load(environ, overrides, sim=sim)
    other = _other_than_sim(settings) if sim else ""
    if other:
        raise SettingsError([Problem(other, "", "expected none beside --sim: both name upstreams")])
    return settings


def _other_than_sim(settings: Settings) -> str:
    """Return what names an upstream other than the built-in simulator, "" if nothing does."""
    if settings.upstreams[0].where:
        return "`upstreams` of the file"
    return "" if settings.origins["VELOX_UPSTREAM_ORIGIN"] == "default" else "VELOX_UPSTREAM_ORIGIN"


def _ask_supervisor(arguments: argparse.Namespace, environ: Mapping[str, str], overrides: Mapping[str, str]) -> int:
    """Ask the running gateway for a reload, or an upgrade.

    Exit code 1: it refuses, and goes on as before. 2: it can't be asked.
    """
    from velox.admin.reload_call import call_reload
    from velox.admin.upgrades.call import call_upgrade

    place = _admin_place(arguments.command, arguments, environ, overrides)
    if place is None:
        return 2
    assert place.address is not None, "_admin_place() has looked"
    asked = place.address, place.token, place.cert
    is_reload = arguments.command == "reload"
    outcome = call_reload(*asked, force=arguments.force) if is_reload else call_upgrade(*asked)
    print("\n".join(outcome.lines), file=sys.stderr if outcome.code else sys.stdout)
    return outcome.code


def _health(environ: Mapping[str, str], overrides: Mapping[str, str]) -> int:
    """Ask the running gateway whether it is alive. Exit code 1: no, or it is not reached. 2: it can't be asked."""
    from velox.admin.health_call import call_health
    from velox.settings.loading import admin_place

    place = admin_place(environ, overrides)
    if place.address is None:
        wrong = [str(each) for each in place.problems if each.name == "VELOX_ADMIN_LISTEN"]
        for line in wrong or ["VELOX_ADMIN_LISTEN is off, so nothing can be asked"]:
            print(f"velox health: {line}", file=sys.stderr)
        return 2
    why = call_health(place.address, has_tls=place.cert is not None)
    print(f"velox health: {why}" if why else "healthy", file=sys.stderr if why else sys.stdout)
    return 1 if why else 0


def _top(arguments: argparse.Namespace, environ: Mapping[str, str], overrides: Mapping[str, str]) -> int:
    """Show what the running gateway does, until q or Ctrl-C. Exit code 1: it is not reached. 2: it can't be asked."""
    from velox.admin.call import AdminCallError
    from velox.runtime.commands.top import show_top

    place = _admin_place("top", arguments, environ, overrides)
    if place is None:
        return 2
    assert place.address is not None, "_admin_place() has looked"
    try:
        show_top(place, place.address, sys.stdout, is_once=arguments.once or not sys.stdout.isatty())
    except AdminCallError as exc:
        print(f"velox top: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _budgets(arguments: argparse.Namespace, environ: Mapping[str, str], overrides: Mapping[str, str]) -> int:
    """Print what is left of budgets. Returns as _ask_api() does."""
    from velox.runtime.commands.budgets import budget_lines

    asked = {name: text for name in ("scope", "name") if (text := getattr(arguments, name)) is not None}
    ask = partial(budget_lines, asked=asked, as_json=arguments.json)
    return _ask_api("budgets", ask, _admin_place("budgets", arguments, environ, overrides))


def _purge(arguments: argparse.Namespace, environ: Mapping[str, str], overrides: Mapping[str, str]) -> int:
    """Take answers out of the cache. Returns as _ask_api() does."""
    from velox.runtime.commands.cache import asked_of, purge_lines

    ask = partial(purge_lines, asked=asked_of(arguments), as_json=arguments.json)
    return _ask_api("cache", ask, _admin_place("cache", arguments, environ, overrides))


def _ask_api(command: str, ask: Callable[[AdminCaller], list[str]], place: AdminPlace | None) -> int:
    """Print the lines that ask() makes of an answer. Exit code 1: the gateway refuses. 2: it can't be asked."""
    from velox.admin.call import AdminCaller, AdminCallError, ApiRefusalError

    if place is None:
        return 2
    assert place.address is not None, "_admin_place() has looked"
    try:
        with contextlib.closing(AdminCaller(place.address, place.token, place.cert, _API_TIMEOUT_S)) as caller:
            lines = ask(caller)
    except (AdminCallError, ApiRefusalError) as exc:
        print(f"velox {command}: {exc}", file=sys.stderr)
        return 1 if isinstance(exc, ApiRefusalError) else 2
    for line in lines:
        print(line)
    return 0


def _admin_place(
    command: str, arguments: argparse.Namespace, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> AdminPlace | None:
    """Return where the admin listener is; None where it can't be asked, which is told."""
    from dataclasses import replace

    from velox.settings.loading import admin_place

    setting = "VELOX_ADMIN_LISTEN"
    given, name = ({setting: arguments.admin}, "--admin") if arguments.admin else ({}, setting)
    place = admin_place(environ, {**overrides, **given})
    if place.address is not None and not place.problems:
        return place
    wrong = [str(replace(each, name=name) if each.name == setting else each) for each in place.problems]
    number = {"reload": "SIGHUP", "upgrade": "SIGUSR2"}.get(command)
    otherwise = f"{name} is off" + ("" if number is None else f": send {number} to the supervisor instead")
    for line in wrong or [otherwise]:
        print(f"velox {command}: {line}", file=sys.stderr)
    return None


def _missing_redis(settings: Settings) -> str:
    """Return why limits can't be shared with other gateways now, "" if they can or need not.

    Not for `serve`: a gateway that is restarted while Redis is away must come back, and its processes share the memory
    of the one they are forked from, to which the library would add 20 MB.
    """
    if settings.redis_url is None:
        return ""
    from velox.runtime.leases.lease_redis import reachable

    url, has_budgets = settings.redis_url.reveal(), settings.ledger is not None
    why = reachable(url, settings.redis_prefix, settings.redis_timeout_s, has_budgets=has_budgets)
    return "" if why is None else f"VELOX_REDIS_URL can't be used: {why}"


def _missing_database(settings: Settings) -> str:
    """Return why the database of the ledger can't be used now, "" if it can or need not. Not for `serve`, as Redis."""
    if settings.ledger_database is None:
        return ""
    from velox.ledger.postgres_database import reachable

    why = reachable(settings.ledger_database.reveal())
    return "" if why is None else f"VELOX_LEDGER_DATABASE can't be used: {why}"


def _not_valid(error: SettingsError) -> int:
    """Print for programs what is wrong."""
    import json

    print(json.dumps({"valid": False, "problems": [str(problem) for problem in error.problems]}, indent=2))
    return 2


def _check(settings: Settings, arguments: argparse.Namespace) -> int:
    import json

    from velox.runtime.commands.check import check_lines, check_report

    missing = _missing_redis(settings) or _missing_database(settings)
    if missing and arguments.json:
        print(json.dumps({"valid": False, "problems": [missing]}, indent=2))
        return 2
    if missing:
        print(f"velox: {missing}", file=sys.stderr)
        return 2
    now_s = int(time.time())
    if arguments.json:
        print(json.dumps(check_report(settings, os.environ, now_s=now_s), indent=2))
    else:
        print("\n".join(check_lines(settings, os.environ, shows_all=arguments.all, now_s=now_s)))
    return 0


def _prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what calls to a model cost. Exit code 1: no upstream has a price for it. 2: an argument can't be used."""
    import datetime
    import json

    from velox.ledger.query_parameters import parse_time
    from velox.runtime.priced import price_answers, price_lines
    from velox.settings.problems import unknown

    names = [entry.name for entry in settings.upstreams]
    if arguments.upstream is not None and arguments.upstream not in names:
        print(f"velox prices: --upstream: {unknown('upstream', arguments.upstream, names)}", file=sys.stderr)
        return 2
    now = datetime.datetime.now(datetime.UTC)
    try:
        at_s = int(now.timestamp()) if arguments.at is None else parse_time(arguments.at, now)
    except ValueError as exc:
        print(f"velox prices: --at {arguments.at}: {exc}", file=sys.stderr)
        return 2
    answers = price_answers(
        settings, arguments.model, arguments.upstream, arguments.tier, at_s, answered=arguments.answered
    )
    print(json.dumps(answers, indent=2) if arguments.json else "\n".join(price_lines(answers)))
    return 0 if any(answer["price"] is not None for answer in answers) else 1


def _is_question(arguments: argparse.Namespace) -> bool:
    return any(given is not None for given in (arguments.model, arguments.path, arguments.header, arguments.key))


def _explain_losses(settings: Settings, name: str, dialect: str) -> int:
    """Print what a route loses of a dialect. Exit code 2: there is no such route, or dialect."""
    from velox.runtime.commands.translation_losses import DIALECTS, loss_lines
    from velox.settings.problems import unknown

    route = next((each for each in settings.routes if each.name == name), None)
    expected = "" if route is not None else unknown("route", name, [each.name for each in settings.routes])
    if dialect not in DIALECTS:
        expected = f"expected a dialect: {', '.join(DIALECTS)}"
    if expected or route is None:
        print(f"velox check: --explain ROUTE DIALECT: {expected}", file=sys.stderr)
        return 2
    for line in loss_lines(settings, route, dialect):
        print(line)
    return 0


def _explain(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what the gateway would do with a request. Exit code 1: it would refuse it."""
    from velox.runtime.commands.explain import ExplainedRequest, entry_of_key, entry_of_name, explain, read_headers

    try:
        headers = read_headers(arguments.header or ())
    except ValueError as exc:
        print(f"velox check: --header NAME:VALUE: {exc}", file=sys.stderr)
        return 2
    key = None
    if arguments.key == "-":
        try:
            key = entry_of_key(settings, sys.stdin.readline().strip())
        except ValueError as exc:
            print(f"velox check: --key -: {exc} on standard input", file=sys.stderr)
            return 2
        if key is None and settings.requires_keys:
            print("caller: none, the gateway does not know this key")
            print("refused with 401 auth_invalid: no valid API key was given; send Authorization: Bearer KEY")
            return 1
    elif arguments.key is not None:
        key = entry_of_name(settings, arguments.key)
        if key is None:
            print("velox check: --key is the name of a key, and no key has this one", file=sys.stderr)
            return 2
    given = {"path": arguments.path} if arguments.path else {}
    asked = ExplainedRequest(arguments.model, headers=headers, key=key, now_s=int(time.time()), **given)
    is_forwarded, lines = explain(settings, asked)
    print("\n".join(lines))
    return 0 if is_forwarded else 1


def _accounts(settings: Settings, arguments: argparse.Namespace) -> int:
    """Make, change or list managed keys, teams and users."""
    from velox.runtime.commands.account_commands import run_account_command

    told = run_account_command(settings, arguments)
    for line in told.lines:
        print(line)
    for line in told.errors:
        print(line, file=sys.stderr)
    return told.code


def _key(arguments: argparse.Namespace) -> int:
    """Print a new key and its entry, or the entry of the key on standard input: arguments are seen by everyone (ps)."""
    import secrets

    from velox.settings.callers.keys import parse_key

    if arguments.action == "new":
        key = f"vk-{secrets.token_urlsafe(32)}"  # 256 bits: the digest of such a key needs no salt
        print(f"key    {key}")
    else:
        key = sys.stdin.readline().strip()
    try:
        entry = parse_key(key, spaced=True)
    except ValueError as exc:
        print(f"velox key: {exc}", file=sys.stderr)
        return 2
    label = "entry  " if arguments.action == "new" else ""
    print(f"{label}sha256:{entry.digest.hex()}")
    return 0


def _sim(arguments: argparse.Namespace) -> int:
    from velox_sim.command import run_command

    return run_command(arguments)


def _simulate(sock: socket.socket) -> None:
    """Be the simulator of `serve --sim`. Imported here, in a process of its own: no other needs it."""
    from velox_sim.command import serve_on

    serve_on(sock)


def _init(arguments: argparse.Namespace) -> int:
    """Write a file to begin with. Who gives no argument is asked, on a terminal."""
    from velox.runtime.commands.init import run_init

    given = {name: getattr(arguments, name) for name in ("provider", "listen", "ledger")}
    asks = sys.stdin is not None and sys.stdin.isatty() and not any(given.values())
    try:
        code, lines = run_init(arguments.file, given, input if asks else None)
    except (EOFError, KeyboardInterrupt):
        print("\nvelox init: nothing was written", file=sys.stderr)
        return 1
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


def _import(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from velox_migrate.command import run_file

    return run_file(arguments, environ)


def _import_database(settings: Settings, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from velox.runtime.ledger.stores import account_store, record_store
    from velox_migrate.command import run_database
    from velox_migrate.import_db import OpenStores

    return run_database(settings, OpenStores(account_store, record_store), arguments, environ)


def _usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what was recorded, or write it elsewhere. Exit code 1: it can't be done. 2: an argument can't be used."""
    import datetime

    from velox.ledger.store import StoreError
    from velox.runtime.commands.export import ExportError, TargetError, export
    from velox.runtime.commands.usage import ArgumentError, UsageArguments, usage_lines
    from velox.runtime.ledger.stores import record_store

    if arguments.calls and arguments.by is not None:
        print("velox usage: --by has no effect: --calls prints each call, not sums", file=sys.stderr)
    arguments.by = "day" if arguments.by is None else arguments.by
    arguments.form = arguments.form or ("table" if arguments.to is None else "jsonl")
    asked = UsageArguments(**{name: getattr(arguments, name) for name in UsageArguments._fields})
    try:
        if arguments.rebuild:
            from velox.runtime.commands.rebuild import rebuild

            rebuild(settings, print)
            return 0
        store = record_store(settings, is_reader=True, without_room=True)
        try:
            lines = usage_lines(store, asked, datetime.datetime.now(datetime.UTC))
            if arguments.to is not None:
                tell = partial(print, "velox usage:", file=sys.stderr)
                tell(f"{export(lines, arguments.to, tell):,} lines are in {arguments.to}")
                return 0
            for line in lines:
                print(line)
        finally:
            store.close()
    except (StoreError, ExportError, ArgumentError, TargetError) as exc:
        name = f"--to {arguments.to}: " if isinstance(exc, TargetError) else ""
        print(f"velox usage: {name}{exc}", file=sys.stderr)
        return 2 if isinstance(exc, (ArgumentError, TargetError)) else 1
    return 0


class _CommandParser(argparse.ArgumentParser):
    """Refuses what it does not know itself: the parser of the whole command line would show how that is used."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known, rest


def _parser(words: frozenset[str]) -> argparse.ArgumentParser:
    """Return a parser for a command line of these words: commands that are none of them have no arguments there."""
    parser = argparse.ArgumentParser(
        prog="velox",
        description="An LLM inference gateway. Its settings come from the environment and a YAML file.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"velox {DESCRIPTION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser)
    serve = commands.add_parser("serve", help="run the gateway", allow_abbrev=False)
    start = commands.add_parser("start", help="run the gateway as a daemon, once it is ready", allow_abbrev=False)
    stop = commands.add_parser("stop", help="have the daemon drain, and wait for its end", allow_abbrev=False)
    restart = commands.add_parser(
        "restart", help="start the daemon, or upgrade the one that runs: nothing is refused", allow_abbrev=False
    )
    status = commands.add_parser("status", help="print how the running gateway is", allow_abbrev=False)
    logs = commands.add_parser("logs", help="print the end of the daemon's logs", allow_abbrev=False)
    check = commands.add_parser(
        "check", help="validate the settings; print those that were set, and what follows", allow_abbrev=False
    )
    init = commands.add_parser("init", help="write a configuration file to begin with", allow_abbrev=False)
    init.add_argument(
        "file", nargs="?", default="velox.yaml", metavar="FILE", help="default: velox.yaml; never replaced"
    )
    init.add_argument("--provider", metavar="NAMES", help="who answers: openai,anthropic or http://HOST:PORT (openai)")
    init.add_argument("--listen", metavar="ADDRESSES", help="where clients connect (127.0.0.1:8080)")
    init.add_argument("--ledger", metavar="FOLDER", help="where calls are recorded; no: nowhere (no)")
    reload = commands.add_parser(
        "reload", help="make the running gateway read its configuration again", allow_abbrev=False
    )
    reload.add_argument(
        "--force", action="store_true", help="accept a file that removes all upstreams or routes with traffic"
    )
    upgrade = commands.add_parser(
        "upgrade", help="start the installed version in the place of the running one", allow_abbrev=False
    )
    health = commands.add_parser("health", help="ask the running gateway whether it is alive", allow_abbrev=False)
    top = commands.add_parser("top", help="show what the running gateway does, once a second", allow_abbrev=False)
    top.add_argument("--once", action="store_true", help="print it once; so it is where the output is no terminal")
    budgets = commands.add_parser("budgets", help="print what is left of each budget", allow_abbrev=False)
    budgets.add_argument("--scope", metavar="SCOPE", help="only of these: gateway, key, team, user, tag or model")
    budgets.add_argument("--name", metavar="NAME", help="only of this key, team, user, tag or model: its id or name")
    budgets.add_argument("--json", action="store_true", help="for programs, as /api/v1/budgets has them")
    cache = commands.add_parser("cache", help="take answers out of the response cache", allow_abbrev=False)
    if "cache" in words:
        from velox.runtime.commands.cache import add_cache_arguments

        add_cache_arguments(cache)
    prices = commands.add_parser("prices", help="print what calls to a model cost", allow_abbrev=False)
    prices.add_argument("model", metavar="MODEL", help="name of the model, as the upstream calls it")
    prices.add_argument("--upstream", metavar="NAME", help="at this upstream only")
    prices.add_argument("--tier", metavar="TIER", default="", help="service tier: batch, flex, priority, fast")
    prices.add_argument("--answered", metavar="MODEL", default="", help="the model that a reply tells")
    prices.add_argument("--at", metavar="TIME", help="of a call at this time: a day, or a time of RFC 3339 (now)")
    prices.add_argument("--json", action="store_true", help="for programs")
    if not words.isdisjoint(("serve", "start", "stop", "restart", "status", "logs")):
        from velox.runtime.daemon.arguments import add_daemon_arguments, add_serve_arguments

        add_serve_arguments(serve)
        add_daemon_arguments(start, stop, restart, status, logs)
    for command in (reload, upgrade, top, budgets, stop, restart, status):
        command.add_argument(
            "--admin", metavar="ADDRESS", help="address of the admin listener; overrides VELOX_ADMIN_LISTEN"
        )
    for command in (serve, start, stop, restart, status, logs, check, reload, upgrade, health, top, budgets, prices):
        command.add_argument("--config", metavar="FILE", help="YAML file; overrides VELOX_CONFIG")
    check.add_argument("--all", action="store_true", help="print every setting, not only those that were set")
    check.add_argument("--json", action="store_true", help="all of it, for programs")
    check.add_argument(
        "--model", metavar="NAME", help="explain what the gateway would do with a request for this model"
    )
    check.add_argument("--path", metavar="PATH", help="path of the request (default: /v1/chat/completions)")
    check.add_argument("--header", metavar="NAME:VALUE", action="append", help="header of the request; may be repeated")
    check.add_argument(
        "--key", metavar="NAME", help="name of the client key of the request; -: read the key from stdin"
    )
    check.add_argument(
        "--explain", nargs=2, metavar=("ROUTE", "DIALECT"), help="what requests of a dialect would lose on a route"
    )
    _add_usage(commands)
    _add_accounts(commands, words)
    importer = commands.add_parser(
        "import", help="take over another proxy's configuration, or its keys", allow_abbrev=False
    )
    if "import" in words:
        from velox_migrate.arguments import add_arguments as add_import_arguments

        add_import_arguments(importer)
    sim = commands.add_parser("sim", help="run an OpenAI-compatible simulator", allow_abbrev=False)
    if "sim" in words:
        from velox_sim.options import add_arguments

        add_arguments(sim)
    return parser


def _add_accounts(commands: argparse._SubParsersAction[_CommandParser], words: frozenset[str]) -> None:
    key = commands.add_parser("key", help="make, change and list client keys", allow_abbrev=False)
    team, user = (
        commands.add_parser(name, help=f"make, change and list {name}s of managed keys", allow_abbrev=False)
        for name in ("team", "user")
    )
    audit = commands.add_parser("audit", help="list who changed which key, team or user", allow_abbrev=False)
    if words.isdisjoint(("key", "team", "user", "audit")):
        return
    from velox.runtime.commands.account_arguments import add_account_arguments

    actions = key.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("new", help="print a new key, and its entry for VELOX_API_KEYS", allow_abbrev=False)
    actions.add_parser("hash", help="print the entry of the key on standard input", allow_abbrev=False)
    add_account_arguments(actions, team, user, audit)


def _add_usage(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    usage = commands.add_parser("usage", help="print what calls of upstreams took", allow_abbrev=False)
    usage.add_argument("--config", metavar="FILE", help="YAML file; overrides VELOX_CONFIG")
    usage.add_argument("--since", default="30d", metavar="TIME", help="a day, a time, or 24h or 30d ago (default: 30d)")
    usage.add_argument("--until", metavar="TIME", help="before this time (default: now)")
    usage.add_argument(
        "--by", metavar="NAMES", help="key, team, user, tag, upstream, model, agent, minute, hour, day (default: day)"
    )
    usage.add_argument("--key", metavar="KEY", help="only of this key: its name, or as `--by key` shows it")
    usage.add_argument("--team", metavar="TEAM", help="only of this team's keys")
    usage.add_argument("--user", metavar="USER", help="only of this user's keys")
    usage.add_argument("--tag", metavar="TAG", help="only of calls with this tag")
    usage.add_argument("--upstream", metavar="NAME", help="only of this upstream")
    usage.add_argument("--model", metavar="NAME", help="only of this model, as clients name it")
    usage.add_argument("--agent", metavar="NAME", help="only of this family of programs, as `--by agent` shows it")
    usage.add_argument("--calls", action="store_true", help="each call instead of sums, for as long as they are kept")
    usage.add_argument(
        "--format", dest="form", choices=("table", "csv", "jsonl"), help="default: table, and jsonl with --to"
    )
    usage.add_argument(
        "--rebuild", action="store_true", help="mend the files of a gateway that is stopped, and print what was lost"
    )
    usage.add_argument("--to", metavar="FILE", help="write into this file, compressed if its name ends with .gz")
