"""Each folder of tests belongs to `make test` or to `make test-more`, and the Makefile says to which."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

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
    files = (path for top in ("tests", "bench") for path in (ROOT / top).rglob("test_*.py"))
    there = {"/".join(path.relative_to(ROOT).parts[:2]) for path in files}

    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("kind", ["unit", "sockets"])
def test_tests_stand_in_folders_of_the_packages_that_they_test(kind: str) -> None:
    """tests/unit/gateway/limits is of velox/gateway/limits; what stands in none is of velox/*.py or docs/."""
    tests = ROOT / "tests" / kind
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    modules = {"docs", *(path.stem for path in (ROOT / "velox").glob("*.py"))}
    flat = [path.name for path in tests.glob("test_*.py") if path.stem.split("_")[1] not in modules]

    assert flat == []
    # Beside velox/: deploy/, and the tools of the tests themselves.
    assert {str(each) for each in folders if not (ROOT / "velox" / each).is_dir()} <= {"deploy", "suite"}


@pytest.mark.parametrize("name", ["gateway", "policy", "bench", "sim"])
def test_every_package_has_a_command_of_its_own(name: str) -> None:
    """`make check-gateway` runs what mirrors velox/gateway, and nothing else."""
    folders = {"bench": ["bench/tests"], "sim": ["tests/sim"], "policy": ["tests/unit/policy"]}
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", f"check-{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "ARGS")},
    ).stdout

    run = shlex.split(shown)
    expected = folders.get(name, [f"tests/unit/{name}", f"tests/sockets/{name}"])
    assert [word for word in run if word.startswith(("tests/", "bench/"))] == expected


def test_every_test_is_run_by_one_command() -> None:
    """`make test` leaves out what has the marker `more`, and `make test-more` runs just that; clients are run alone."""
    makefile = (ROOT / "Makefile").read_text()

    assert '$(PYTEST) -m "not more" $(UNIT) $(SERVERS) $(ARGS)' in makefile
    assert "$(PYTEST) -m more $(MORE) $(UNIT) $(SERVERS) $(ARGS)" in makefile
    assert "$(PYTEST) -m clients $(CLIENTS) $(ARGS)" in makefile
    usual = re.findall(r"^(?:UNIT|SERVERS) := (.*)$", makefile, re.MULTILINE)
    assert sorted(f"tests/{folder}" for folder in USUAL) == sorted(" ".join(usual).split())
