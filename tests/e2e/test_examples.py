"""The folders of examples/: each is copied out, and run as its page says, against `velox serve --sim`.

Those that need more than the tests have installed are run with other people's clients (tests/clients/test_examples.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.markdown import ROOT

EXAMPLES = ROOT / "examples"
HERE = ("curl", "langchain", "python-anthropic", "python-openai")
WITH_CLIENTS = ("node-openai", "openai-agents", "pydantic-ai", "vercel-ai-sdk")
LOCKS = ("requirements-dev.lock", "tests/clients/python/agents.lock")


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """`velox serve --sim`."""
    with VeloxProcess(args=("serve", "--sim")) as process:
        yield process


def run(name: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a copy of its folder, with nothing of the tester's environment."""
    copy = shutil.copytree(EXAMPLES / name, folder / name)
    command = ["./run.sh"] if name == "curl" else [sys.executable, "main.py"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "VELOX_URL": url, "NO_PROXY": "*"}
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", HERE)
def test_example_prints_an_answer(velox: VeloxProcess, tmp_path: Path, name: str) -> None:
    """And ends with an error where the gateway does not answer."""
    done = run(name, tmp_path, velox.base_url)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5, done.stdout


def test_example_fails_without_a_gateway(tmp_path: Path) -> None:
    assert run("curl", tmp_path, "http://127.0.0.1:1").returncode != 0


def test_each_folder_has_a_page_and_is_run_by_a_test() -> None:
    """Also those that are listed, and no others."""
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert folders == sorted((*HERE, *WITH_CLIENTS))
    listed = re.findall(r"^\| \[[^]]+\]\(([a-z-]+)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == folders
    for name in folders:
        page = (EXAMPLES / name / "README.md").read_text()
        assert page.startswith("# ") and len(page.splitlines()) <= 8


@pytest.mark.parametrize("name", [each for each in (*HERE, *WITH_CLIENTS) if (EXAMPLES / each / "main.py").exists()])
def test_versions_are_those_that_the_tests_run(name: str) -> None:
    """Others may work; these were seen to."""
    locked = "\n".join((REPOSITORY / each).read_text() for each in LOCKS)
    for line in (EXAMPLES / name / "requirements.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        package = package.partition("[")[0]
        assert re.search(rf"^{re.escape(package)}(?:\[[a-z,]+\])?=={re.escape(version)} ", locked, re.MULTILINE), line
