"""What docs/limits.md shows is read, or printed, as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.markdown import ROOT, blocks, commands
from velox.cli import main
from velox.policy.spellings import filled
from velox.settings import load
from velox.settings.callers.limits import RATE_FIELDS
from velox.types import Priority, Rates, Scope

PAGE = ROOT / "docs/limits.md"
# The file of the page's first example; its lines are those that the page names.
SHORT = """limits:
  - per: model
    models:
      - llama-*
    concurrency: 8
# Keys have limits of their own, too.

api_keys:
  - name: team-a
    key: change-me
    rpm: 1200
    priority: high
"""
WRONG = """limits:
  - per: key
    keys: [team-a]
    rpm: -600

# wrong
  - per: group
    tpm: 5
  - {per: model, tpm: 6, burst: 60}
  - per: key
    rpm: 6
    keys: [team-a, team-x]
api_keys:
  - {name: team-a, key: change-me}
"""


def placed(folder: Path, content: str) -> dict[str, str]:
    """Return the variable that names a file with this content."""
    (folder / "velox.yaml").write_text(content)
    return {"VELOX_CONFIG": str(folder / "velox.yaml")}


def test_example_is_accepted_and_means_what_its_comments_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`velox check` takes the whole file as it is shown."""
    (example,) = blocks(PAGE, "yaml")
    environ = placed(tmp_path, example)

    assert main(["check"], environ) == 0

    assert capsys.readouterr().out.count("limit: ") == 7
    settings = load(environ, cores=2)
    assert [rule.scope for rule in settings.limits] == [
        *(Scope.KEY_MODEL, Scope.KEY, Scope.TEAM, Scope.GATEWAY, Scope.MODEL)
    ]
    assert [key.terms.priority for key in settings.api_keys] == [Priority.HIGH, None, Priority.LOW]


def test_lines_of_check_are_those_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Word by word; only the width of the columns follows the page."""
    environ = {**placed(tmp_path, SHORT), "VELOX_KEY_RPM": "600", "VELOX_KEY_CONCURRENCY": "20"}
    environ["VELOX_RATE_LIMIT_RPM"] = "10k"

    assert main(["check"], environ) == 0

    out = capsys.readouterr().out.replace(f"{tmp_path}/", "")
    printed = [line.split() for line in out.splitlines() if line.startswith("limit: ")]
    assert printed == [line.split() for line in blocks(PAGE, "text")[0].splitlines()]


def test_wrong_limits_are_told_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last at once; a name is looked up once all else is right."""
    (shown,) = (block.splitlines() for block in blocks(PAGE, "text") if block.startswith("velox.yaml:"))
    right = WRONG.replace("-600", "600").replace("per: group", "per: model").replace(", burst: 60", "")
    told = []
    for content in (WRONG, right):
        assert main(["check"], placed(tmp_path, content)) == 2
        told += capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines()[1:]

    assert [line.strip() for line in told] == shown


def test_command_prints_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """The list in a variable, quoted for a shell as the page has it."""
    (command,) = commands(PAGE)
    given, program, argument = shlex.split(command)
    name, _, text = given.partition("=")
    assert program.endswith("/velox")

    assert main([argument], {name: text}) == 0

    assert re.search(r"^limit: limits\[0\] .*models llama-\* +8 running", capsys.readouterr().out, re.MULTILINE)


def test_numbers_in_words_are_those_of_the_code() -> None:
    """The bursts that are not given, and the units."""
    text = " ".join(PAGE.read_text().split())

    assert "a sixth of the minute's, at least 10 and at most the minute's; that of tokens is a whole minute's" in text
    assert filled(Rates(rpm=600, tpm=7)) == Rates(600, 100, 7, 7)
    assert (filled(Rates(rpm=30)).burst, filled(Rates(rpm=3)).burst) == (10, 3)
    assert all(f"`{field}`" in text for field in RATE_FIELDS)


@pytest.mark.parametrize("field", RATE_FIELDS)
def test_bounds_are_those_shown(field: str) -> None:
    """From and to of each field are accepted; what is beyond is not."""
    row = re.search(rf"^\| .*`{field}`.* \| (\d+) \| (\d+M) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    rate = {"burst": "rpm: 1, ", "tpm_burst": "tpm: 1, "}.get(field, "")
    for n, right in ((row[1], True), (row[2], True), ("0", False), (str(int(row[2][:-1]) * 10**6 + 1), False)):
        code = main(["check"], {"VELOX_LIMITS": f"[{{per: model, {rate}{field}: {n}}}]"})
        assert code == (0 if right else 2), n
