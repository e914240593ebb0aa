"""The arguments of `velox key|team|user ACTION` and `velox audit`.

Knows: their names, and what --help says of them. Does not know: what a command does (account_commands.py), so that the
commands which need no accounts load none of that.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from velox.accounts.fields import FIELDS, Field
from velox.accounts.model import KINDS, Kind

__all__ = ["add_account_arguments", "seconds"]

_ACTIONS: Final = ("create", "list", "show", "update", "block", "unblock", "rotate", "delete")
_ABOUT: Final[Mapping[str, str]] = {
    "create": "make a {}",
    "list": "list all of them, or some",
    "show": "print one",
    "update": "change the fields that are given",
    "block": "refuse all requests with it",
    "unblock": "accept requests with it again",
    "rotate": "give a key a new secret",
    "delete": "delete it",
}
_TIME: Final = re.compile(r"(-?[0-9]{1,9})([smhd]?)")
_UNITS: Final[Mapping[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

_Parsers: TypeAlias = Any  # argparse's special object of parsers, which has no public name


def add_account_arguments(
    key_actions: _Parsers, team: argparse.ArgumentParser, user: argparse.ArgumentParser, audit: argparse.ArgumentParser
) -> None:
    """Add the arguments to the parsers of the commands. key_actions: those that `velox key` has."""
    _add_actions(key_actions, "key")
    pairs: tuple[tuple[Kind, argparse.ArgumentParser], ...] = (("team", team), ("user", user))
    for kind, parser in pairs:
        _add_actions(parser.add_subparsers(dest="action", required=True, metavar="ACTION"), kind)
        _add_config(parser)
    audit.add_argument("--kind", choices=KINDS, help="only changes of these")
    audit.add_argument("--id", metavar="ID", help="only of this one")
    audit.add_argument("--actor", metavar="NAME", help="only by this one")
    audit.add_argument("--limit", type=int, default=100, metavar="N", help="so many, the last first (100)")
    audit.add_argument("--json", action="store_true", help="print lines of JSON, with what was before and after")
    _add_config(audit)


def seconds(text: str) -> int:
    """Read a time in whole units, such as 90s, 12h or 7d; a number alone is one of seconds. argparse names the text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 3600, 90s, 30m, 12h or 7d")
    return int(match[1]) * _UNITS[match[2]]


def _add_config(parser: argparse.ArgumentParser, *, is_again: bool = False) -> None:
    """is_again: before the action it may stand too, and without one here that one counts."""
    default = argparse.SUPPRESS if is_again else None
    parser.add_argument("--config", metavar="FILE", default=default, help="YAML file; overrides VELOX_CONFIG")


def _add_actions(actions: _Parsers, kind: Kind) -> None:
    for action in _ACTIONS:
        if action == "rotate" and kind != "key":
            continue
        parser = actions.add_parser(action, help=_ABOUT[action].format(kind), allow_abbrev=False)
        if action == "create":
            parser.add_argument("--id", metavar="ID", help="one is made if none is given")
            if kind == "key":
                parser.add_argument("--digest", metavar="SHA256", help="of a key that clients have already")
        elif action != "list":
            parser.add_argument("id", metavar="ID", help=f"of the {kind}")
        if action in ("create", "update"):
            _add_fields(parser, kind, is_new=action == "create")
        if action == "list":
            for name in ("name", "team", "user") if kind == "key" else ("name",):
                parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only those of this {name}")
        if action == "rotate":
            parser.add_argument(
                "--grace",
                type=seconds,
                default=0,
                metavar="TIME",
                help="how long the former one is accepted too, such as 12h or 7d (default: 0)",
            )
        parser.add_argument("--json", action="store_true", help="print JSON")
        _add_config(parser, is_again=kind != "key")


def _help(field: Field) -> str:
    return f"{field.about} (with commas between)" if field.is_list else field.about


def _add_fields(parser: argparse.ArgumentParser, kind: Kind, *, is_new: bool) -> None:
    for name, field in FIELDS[kind].items():
        if name == "budgets":
            example = "a budget such as `20 usd/month` or `2M tokens/day`, or its fields as JSON; may be repeated"
            parser.add_argument("--budget", action="append", metavar="BUDGET", help=example)
        else:
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, dest=name, metavar=name.upper(), help=_help(field))
    if not is_new:
        names = [*FIELDS[kind]]
        parser.add_argument("--clear", action="append", choices=names, metavar="FIELD", help="take a field away")
