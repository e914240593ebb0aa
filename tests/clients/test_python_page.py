"""What docs/clients.md shows of Python's clients is what the programs of tests/clients/python do."""

from __future__ import annotations

import re
from pathlib import Path

from tests.clients.shown import PAGE, section

PROGRAMS = Path(__file__).parent / "python"


def test_page_shows_what_is_run() -> None:
    """Each call stands in a program, which may give it more."""
    programs = "".join(path.read_text() for path in sorted(PROGRAMS.glob("with_*.py")))
    for ours, shown in (
        ("gateway.openai", '"http://127.0.0.1:8080/v1"'),
        ("gateway.base_url", '"http://127.0.0.1:8080"'),
        ("gateway.key", "key"),
        ("gateway.model", "model"),
    ):
        programs = programs.replace(ours, shown)
    run = "".join(programs.split())
    calls = [line.partition("  #")[0].removesuffix(")") for line in section("SDKs for Python", "python").splitlines()]
    assert [call for call in calls if "".join(call.split()) not in run] == []


def test_page_names_the_versions_that_are_installed() -> None:
    """The table's versions are those of the locks."""
    locks = "".join(path.read_text() for path in sorted(PROGRAMS.glob("*.lock")))
    versions = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", locks, re.MULTILINE))
    rows = re.findall(
        r"^\| \[.*?\](?:\(#sdks-for-python\)|\(#open-webui\)).*?`(.+?)`.*? \| (\S+) \|", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) == 9
    assert dict(rows) == {name: versions[name] for name, _ in rows}
