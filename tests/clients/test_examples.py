"""The folders of examples/ that need frameworks: each is copied out and run against `velox serve --sim`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.running import CLIENTS, NODE_MODULES, node, run
from tests.e2e.harness import REPOSITORY, VeloxProcess

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """`velox serve --sim`."""
    with VeloxProcess(args=("serve", "--sim")) as process:
        yield process


@pytest.mark.parametrize("name", ["openai-agents", "pydantic-ai"])
def test_agent_prints_an_answer(velox: VeloxProcess, folder: Path, name: str) -> None:
    python = CLIENTS / "python/agents/bin/python"
    if not python.exists():
        pytest.skip("the agents are not installed: make test-clients")
    copy = shutil.copytree(EXAMPLES / name, folder / name)
    done = run([str(python), "main.py"], copy, VELOX_URL=velox.base_url, NO_PROXY="*")
    assert done.returncode == 0, done.told
    assert len(done.stdout.split()) > 1, done.told


@pytest.mark.parametrize("name", ["node-openai", "vercel-ai-sdk"])
def test_program_of_node_streams_an_answer(velox: VeloxProcess, folder: Path, name: str) -> None:
    """With the versions that its package.json names."""
    copy = shutil.copytree(EXAMPLES / name, folder / name)
    for package, version in json.loads((copy / "package.json").read_text())["dependencies"].items():
        installed = json.loads((NODE_MODULES / package / "package.json").read_text())
        assert installed["version"] == version, package
    (copy / "node_modules").symlink_to(NODE_MODULES)
    done = run([node(), "main.mjs"], copy, VELOX_URL=velox.base_url, NO_PROXY="*")
    assert done.returncode == 0, done.told
    assert len(done.stdout.split()) > 1, done.told
