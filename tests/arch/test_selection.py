"""Each folder of tests belongs to `make test` or to `make test-more`, and the Makefile says to which."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import USUAL

ROOT = Path(__file__).parents[2]


def test_every_folder_of_tests_is_run_by_one_command() -> None:
    """A folder that the Makefile does not name would never be run."""
    makefile = (ROOT / "Makefile").read_text()
    named = [
        folder
        for name in ("UNIT", "SERVERS", "MORE", "CLIENTS")
        for folder in re.findall(rf"^{name} := (.*)$", makefile, re.MULTILINE)[0].split()
    ]
    there = {"/".join(path.relative_to(ROOT).parts[:2]) for path in (ROOT / "tests").rglob("test_*.py")}

    assert sorted(named) == sorted(there)


def test_every_test_is_run_by_one_command() -> None:
    """`make test` leaves out what has the marker `more`, and `make test-more` runs just that; clients are run alone."""
    makefile = (ROOT / "Makefile").read_text()

    assert '$(PYTEST) -m "not more" $(UNIT) $(SERVERS) $(ARGS)' in makefile
    assert "$(PYTEST) -m more $(MORE) $(UNIT) $(SERVERS) $(ARGS)" in makefile
    assert "$(PYTEST) -m clients $(CLIENTS) $(ARGS)" in makefile
    usual = re.findall(r"^(?:UNIT|SERVERS) := (.*)$", makefile, re.MULTILINE)
    assert sorted(f"tests/{folder}" for folder in USUAL) == sorted(" ".join(usual).split())
