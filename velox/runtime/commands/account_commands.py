"""The commands `velox key|team|user ACTION` and `velox audit`: managed keys, teams and users, as the API has them.

Knows: what an action does, and how an account is printed. Does not know: what a field may be (velox.accounts), or the
arguments of the commands (account_arguments.py).

A field's value is JSON's: `--models a,b` is a list, `--rpm 60` a number, `--rpm 2k` is 2000. Whoever may write the
ledger's folder may use these commands.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from velox.accounts.fields import FIELDS, RATES, time_text, view
from velox.accounts.model import Change, Kind
from velox.accounts.service import Accounts, AccountsError, Made
from velox.ledger.report import Row, lines
from velox.ledger.store import StoreError
from velox.runtime.ledger.stores import account_store
from velox.settings import Settings

__all__ = ["run_account_command"]

_LISTS: Final = frozenset({"models", "endpoints", "tags"})
_TIMES: Final = {"": 1, "k": 1000, "M": 1_000_000}
_COUNT: Final = re.compile(r"([0-9]{1,15})([kM]?)")
_BUDGET: Final = re.compile(r"([^\s{]+?) ?(usd|tokens) ?/ ?(\S+)")
_PAGE: Final = 1000
_SHOWN: Final[Mapping[Kind, Sequence[str]]] = {
    "key": ("id", "name", "hint", "team", "user", "expires", "blocked", "created"),
    "team": ("id", "name", "models", "blocked", "created"),
    "user": ("id", "name", "email", "blocked", "created"),
}


class Told(NamedTuple):
    """What a command prints. code: that it ends with. lines: on standard output; errors: on standard error."""

    code: int
    lines: Sequence[str] = ()
    errors: Sequence[str] = ()


def run_account_command(settings: Settings, arguments: argparse.Namespace) -> Told:
    """Run one. Code 1: there is no such account, or the database fails. 2: a value is wrong."""
    command = arguments.command if arguments.command == "audit" else f"{arguments.command} {arguments.action}"
    if settings.ledger is None:
        reason = "VELOX_LEDGER is not set; if a configuration file sets it, give --config"
        return Told(2, (), [f"velox {command}: there are no accounts: {reason}"])
    notes = []
    if not settings.managed_keys:
        notes.append(f"velox {command}: VELOX_MANAGED_KEYS is off: no gateway goes by these keys")
    act = _audit if arguments.command == "audit" else _ACTIONS[arguments.action]
    try:
        found = act(Accounts(account_store(settings)), arguments)
    except AccountsError as exc:
        return Told(2 if exc.code == "invalid" else 1, (), [*notes, f"velox {command}: {exc.message}"])
    except StoreError as exc:
        return Told(1, (), [*notes, f"velox {command}: {exc}"])
    if arguments.command == "key" and arguments.action in ("create", "rotate"):
        notes.append("The key is shown this once: Velox keeps its SHA-256 only.")
    return Told(0, found, notes)


# -- actions ------------------------------------------------------------------------------------------------------


def _create(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    fields = _given(asked)
    if asked.id is not None:
        fields["id"] = asked.id
    if asked.command == "team":
        return _one(view(accounts.create_team(fields, _actor())), asked)
    if asked.command == "user":
        return _one(view(accounts.create_user(fields, _actor())), asked)
    if asked.digest is not None:
        fields["digest"] = asked.digest
    return _made(accounts.create_key(fields, _actor()), asked)


def _list(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    names = ("name", "team", "user") if asked.command == "key" else ("name",)
    where = {name: value for name in names if (value := getattr(asked, name)) is not None}
    found = map(view, _all(accounts, asked.command, where))
    if asked.json:
        return [json.dumps(each) for each in found]
    return _table([{name: _cell(each[name]) for name in _SHOWN[asked.command]} for each in found])


def _show(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    return _one(view(accounts.get(asked.command, asked.id)), asked)


def _update(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    fields = {**_given(asked), **dict.fromkeys(asked.clear or ())}
    return _one(view(accounts.update(asked.command, asked.id, fields, _actor())), asked)


def _block(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    return _one(view(accounts.block(asked.command, asked.id, _actor())), asked)


def _unblock(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    return _one(view(accounts.unblock(asked.command, asked.id, _actor())), asked)


def _rotate(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    return _made(accounts.rotate_key(asked.id, asked.grace, _actor()), asked)


def _delete(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    accounts.delete(asked.command, asked.id, _actor())
    return _one({"id": asked.id, "deleted": True}, asked)


_ACTIONS: Final[Mapping[str, Callable[[Accounts, argparse.Namespace], list[str]]]] = {
    "create": _create,
    "list": _list,
    "show": _show,
    "update": _update,
    "block": _block,
    "unblock": _unblock,
    "rotate": _rotate,
    "delete": _delete,
}


def _audit(accounts: Accounts, asked: argparse.Namespace) -> list[str]:
    where = {"kind": asked.kind, "object_id": asked.id, "actor": asked.actor}
    given = {name: value for name, value in where.items() if value is not None}
    changes: Sequence[Change] = accounts.changes("", asked.limit, given).items
    told = [_told(change) for change in changes]
    if asked.json:
        return [json.dumps(each) for each in told]
    names = ("time", "actor", "action", "kind", "id")
    rows: list[Row] = [{name: _cell(each[name]) for name in names} for each in told]
    for row, change in zip(rows, changes, strict=True):
        row["changed"] = _changed(change)
    return _table(rows)


# -- values -------------------------------------------------------------------------------------------------------


def _given(asked: argparse.Namespace) -> dict[str, object]:
    """Return the fields that arguments give, as JSON has them. What can't be read is left for the service to refuse."""
    fields: dict[str, object] = {}
    for name in FIELDS[asked.command]:
        text = asked.budget if name == "budgets" else getattr(asked, name)
        if text is not None:
            fields[name] = _value(name, text)
            if fields[name] in ("", []):
                # Of a script's empty variable, most likely: a key without its team's limits, or for all models.
                message = (
                    f"--{name}: expected something; `velox {asked.command} update ID --clear {name}` takes it away"
                )
                raise AccountsError("invalid", message, name)
    return fields


def _value(name: str, text: Any) -> object:
    if name == "budgets":
        return [_budget(each) for each in text]
    if name in _LISTS:
        return [each.strip() for each in text.split(",") if each.strip()]
    if name in RATES:
        match = _COUNT.fullmatch(text)
        return text if match is None else int(match[1]) * _TIMES[match[2]]
    return _json(text) if name == "metadata" else text


def _budget(text: str) -> object:
    match = _BUDGET.fullmatch(text)
    if match is not None:
        return {match[2]: match[1], "window": match[3]}
    found = _json(text)
    if not isinstance(found, dict):
        raise AccountsError(
            "invalid", "--budget: expected `20 usd/month`, `2M tokens/day` and the like, or its fields as JSON"
        )
    return found


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _all(accounts: Accounts, kind: Kind, where: Mapping[str, str]) -> Iterator[Any]:
    cursor = ""
    while True:
        page = accounts.page(kind, cursor, _PAGE, where)
        yield from page.items
        if not page.cursor:
            return
        cursor = page.cursor


def _actor() -> str:
    """Return who runs the command, for the audit."""
    try:
        return f"{getpass.getuser()}, velox command"
    except (KeyError, OSError):  # a user without a name, as in many containers
        return "velox command"


# -- printing -----------------------------------------------------------------------------------------------------


def _one(account: Mapping[str, object], asked: argparse.Namespace) -> list[str]:
    if asked.json:
        return [json.dumps(account)]
    shown = {name: _cell(value) for name, value in account.items() if value not in (None, [], {})}
    width = max(map(len, shown))
    return [f"{name.ljust(width)}  {value}" for name, value in shown.items()]


def _made(made: Made, asked: argparse.Namespace) -> list[str]:
    secret: dict[str, object] = {"key": made.secret} if made.secret else {}
    return _one({**secret, **view(made.key)}, asked)


def _table(rows: Sequence[Row]) -> list[str]:
    return list(lines(rows, "table")) if rows else ["there is none"]


def _cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if isinstance(value, list) and all(isinstance(each, dict) and "window" in each for each in value):
        return ", ".join(map(_budget_cell, value))
    return json.dumps(value)


def _budget_cell(budget: Mapping[str, object]) -> str:
    """Return a budget as `--budget` takes it, and what else it has."""
    unit = "usd" if budget.get("usd") is not None else "tokens"
    more = [
        str(name) if value is True else f"{name} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in budget.items()
        if name not in ("usd", "tokens", "window") and value not in (None, False, [], "")
    ]
    return " ".join([f"{budget[unit]} {unit}/{budget['window']}", *([f"({', '.join(more)})"] if more else [])])


def _told(change: Change) -> dict[str, object]:
    return {
        "number": change.number,
        "time": time_text(change.time_s),
        "actor": change.actor,
        "action": change.action,
        "kind": change.kind,
        "id": change.object_id,
        "before": change.before,
        "after": change.after,
    }


def _changed(change: Change) -> str:
    """Return the names of the fields that a change has changed."""
    before, after = change.before, change.after
    if before is None or after is None:
        return ""
    return ",".join(name for name in after if name != "updated" and after[name] != before.get(name))
