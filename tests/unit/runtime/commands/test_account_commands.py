"""The commands for managed keys, teams and users: what they print, and what they refuse."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox.accounts.fields import FIELDS
from velox.cli import main
from velox.runtime.commands.account_arguments import add_account_arguments

PAGE = Path(__file__).parents[4] / "docs/keys.md"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def velox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its code, standard output and standard error."""

    def run(*arguments: str, **more: str) -> tuple[int, str, str]:
        environ = {"VELOX_LEDGER": str(tmp_path / "ledger"), "VELOX_MANAGED_KEYS": "on", **more}
        capsys.readouterr()
        code = main(arguments, environ)
        return code, *capsys.readouterr()

    return run


def made(velox: Run, *arguments: str) -> dict[str, Any]:
    code, out, _ = velox(*arguments, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.slow
def test_every_field_is_given_and_taken_away(velox: Run) -> None:
    """By its option, as JSON has it."""
    made(velox, "team", "create", "--id", "web")
    made(velox, "user", "create", "--id", "ada", "--email", "ada@example.com")
    options = {
        "name": ("shop", "shop"),
        "team": ("web", "web"),
        "user": ("ada", "ada"),
        "role": ("team_admin", "team_admin"),
        "expires": ("2040-01-31", "2040-01-31T00:00:00Z"),
        "models": ("a, b*", ["a", "b*"]),
        "endpoints": ("inference,/v1/files*", ["inference", "/v1/files*"]),
        "tags": ("eu,us", ["eu", "us"]),
        "priority": ("low", "low"),
        "metadata": ('{"a": [1]}', {"a": [1]}),
        "rpm": ("2k", 2000),
        "burst": ("20", 20),
        "tpm": ("2M", 2_000_000),
        "tpm_burst": ("5k", 5000),
        "concurrency": ("7", 7),
    }
    assert {*options, "budgets"} == set(FIELDS["key"])
    given = [part for name, (text, _) in options.items() for part in (f"--{name.replace('_', '-')}", text)]
    budgets = ["--budget", "20.5 usd/month", "--budget", '{"tokens": "2M", "window": "24h", "strict": true}']
    key = made(velox, "key", "create", "--id", "k", *given, *budgets)
    assert {name: key[name] for name in options} == {name: wanted for name, (_, wanted) in options.items()}
    assert [(each.get("usd"), each.get("tokens"), each["strict"]) for each in key["budgets"]] == [
        ("20.5", None, False),
        (None, 2_000_000, True),
    ]
    assert key["key"].startswith("sk-") and "key" not in made(velox, "key", "show", "k")

    cleared = [part for name in (*options, "budgets") for part in ("--clear", name)]
    bare = made(velox, "key", "update", "k", *cleared)
    assert {name: bare[name] or None for name in FIELDS["key"]} == dict.fromkeys(FIELDS["key"])


@pytest.mark.slow
def test_secret_is_shown_once_and_changes_are_kept(velox: Run) -> None:
    """When the key is made and when it is rotated; the audit has none of it."""
    key = made(velox, "key", "create", "--id", "k")
    code, out, err = velox("key", "rotate", "k", "--grace", "60")
    assert code == 0 and "shown this once" in err
    again = re.search(r"^key +(sk-\S+)$", out, re.MULTILINE)
    assert again is not None and again[1] != key["key"]
    for action in ("block", "unblock", "delete"):
        assert velox("key", action, "k")[0] == 0
    code, out, _ = velox("audit", "--json")
    assert [json.loads(line)["action"] for line in out.splitlines()] == [
        *("delete", "unblock", "block", "rotate", "create")
    ]
    assert key["key"] not in out and again[1] not in out
    assert "velox command" in velox("audit", "--kind", "key", "--limit", "1")[1]
    assert velox("key", "list") == (0, "there is none\n", "")


def test_budgets_of_a_key_are_shown_as_they_are_given(velox: Run) -> None:
    """U14: no JSON among the lines for people."""
    made(
        velox,
        "key",
        "create",
        "--id",
        "k",
        "--budget",
        "20.5 usd/month",
        "--budget",
        '{"tokens": "2M", "window": "24h"}',
    )
    code, out, _ = velox("key", "show", "k")
    (line,) = [line for line in out.splitlines() if line.startswith("budgets ")]
    assert code == 0
    assert line.split(maxsplit=1)[1].startswith("20.5 usd/month (zone UTC") and "2000000 tokens/1d" in line


@pytest.mark.parametrize("text", ["200usd/month", "200 usd / month", "200 usd/month"])
def test_budget_of_a_command_is_written_as_that_of_a_file(velox: Run, text: str) -> None:
    """With and without spaces."""
    assert [(each["usd"], each["window"]) for each in made(velox, "key", "create", "--budget", text)["budgets"]] == [
        ("200", "month")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["key", "create", "--rpm", "many"], 2, "velox key create: rpm: expected a whole number from 1 to 60000000"),
        (["key", "create", "--team", "none"], 2, "velox key create: team: there is no such team"),
        (["key", "create", "--budget", "20 usd"], 2, "velox key create: --budget: expected `20 usd/month`"),
        (["key", "create", "--budget", "20/month"], 2, "velox key create: --budget: expected `20 usd/"),
        (["key", "create", "--budget", "20 usd/fortnight"], 2, "velox key create: budgets.window: expected"),
        (["key", "create", "--metadata", "[1]"], 2, "velox key create: metadata: expected an object"),
        (["key", "update", "none", "--rpm", "1"], 1, "velox key update: there is no such key"),
        (["team", "delete", "none"], 1, "velox team delete: there is no such team"),
        (["key", "rotate", "k", "--grace", "-1"], 2, "velox key rotate: grace: expected 0 to"),
        (["audit", "--limit", "0"], 2, "velox audit: limit: expected 1 to"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(velox: Run, arguments: list[str], code: int, message: str) -> None:
    """And nothing is made or changed."""
    made(velox, "key", "create", "--id", "k")
    before = velox("audit")[1]
    found = velox(*arguments)
    assert found[:2] == (code, "") and found[2].startswith(message)
    assert velox("audit")[1] == before


@pytest.mark.parametrize("text", ["", " ", ","])
@pytest.mark.parametrize("name", ["models", "endpoints", "tags", "team", "user", "name"])
def test_empty_variable_of_a_script_takes_no_limit_away(velox: Run, name: str, text: str) -> None:
    """Neither is a key made that has none."""
    made(velox, "team", "create", "--id", "web")
    made(velox, "key", "create", "--id", "k", "--team", "web", "--models", "gpt-4o")
    before = velox("key", "list", "--json")
    for action in (("create",), ("update", "k")):
        code, _, error = velox("key", *action, f"--{name}", text)
        assert code == 2 and name in error
    assert "--clear models" in velox("key", "update", "k", "--models", "")[2]
    assert velox("key", "list", "--json") == before


@pytest.mark.parametrize(
    ("text", "seconds"), [("3600", 3600), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)]
)
def test_grace_of_a_rotation_is_a_time(text: str, seconds: int) -> None:
    """With a unit, as all times; a number alone is one of seconds, as it was."""
    key = argparse.ArgumentParser()
    others = (argparse.ArgumentParser() for _ in range(3))
    add_account_arguments(key.add_subparsers(), *others)
    assert key.parse_args(["rotate", "k", "--grace", text]).grace == seconds


def test_grace_that_is_no_time_is_refused_with_what_it_may_be(velox: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """By argparse, before anything is opened."""
    with pytest.raises(SystemExit):
        velox("key", "rotate", "k", "--grace", "soon")
    assert "--grace: 'soon': expected a time such as 3600, 90s, 30m, 12h or 7d\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["key", "team", "user"])
def test_file_is_named_after_the_action_of_each_kind(velox: Run, tmp_path: Path, kind: str) -> None:
    """That of teams and users before it, too, as it was; the one after it counts."""
    path = tmp_path / "velox.yaml"
    path.write_text(f"ledger: {tmp_path / 'other'}\nmanaged_keys: on\n")
    given = ("--config", str(path))
    nothing = {"VELOX_LEDGER": "", "VELOX_MANAGED_KEYS": ""}

    assert velox(kind, "create", "--id", "a", *given, **nothing)[0] == 0
    assert "\na " in velox(kind, "list", *given, **nothing)[1]
    if kind != "key":
        assert "\na " in velox(kind, *given, "list", **nothing)[1]
        assert velox(kind, "--config", "none", "list", *given, **nothing)[0] == 0


def test_where_there_is_no_ledger_it_says_what_to_set(velox: Run) -> None:
    """No folder; keys that no gateway goes by."""
    assert velox("team", "list", VELOX_LEDGER="", VELOX_MANAGED_KEYS="") == (
        *(2, ""),
        "velox team list: there are no accounts: VELOX_LEDGER is not set;"
        " if a configuration file sets it, give --config\n",
    )
    code, _, err = velox("team", "list", VELOX_MANAGED_KEYS="off")
    assert code == 0 and "VELOX_MANAGED_KEYS is off" in err


@pytest.mark.slow
def test_commands_of_the_page(velox: Run) -> None:
    """Each, in its order."""
    shown = re.findall(r"^velox (?:team|key|user|audit) (?!hash|new|--help).*$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 6
    for line in shown:
        code, out, _ = velox(*shlex.split(line, comments=True)[1:])
        assert code == 0 and out
