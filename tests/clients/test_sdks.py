"""SDKs for Node with loops of their own: the Vercel AI SDK, LangChain, and openai-agents, on each kind of upstream."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.running import NODE_MODULES, node, package, run
from tests.clients.shown import PAGE, section
from tests.clients.test_farm import PLAN

LOOPS = Path(__file__).parent / "node/loops.mjs"
NAMES = tuple(re.findall(r"^  '(.+?)': async", LOOPS.read_text(), re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["plain", "streamed"])
@pytest.mark.parametrize("name", NAMES)
def test_loop(velox_farm: Farm, name: str, mode: str, kind: str, folder: Path) -> None:
    """The SDK itself calls the tool, and asks again."""
    package("ai")
    # Node finds packages from where a file stands.
    (folder / "node_modules").symlink_to(NODE_MODULES)
    script = shutil.copy(LOOPS, folder)
    with velox_farm.playing(kind, PLAN) as played:
        done = run([node(), script, name, mode, velox_farm.velox.base_url, KEY, MODEL_NAMES[kind]], folder)
        assert done.returncode == 0, done.told
    assert done.stdout == PLAN.final
    assert not played.aside


def test_page_shows_what_is_run() -> None:
    """Each call that docs/clients.md shows stands in the script, with its address."""
    shown = [
        line.split("//  ")[0].split(" //")[0].strip() for line in section("SDKs for Node", "js").splitlines() if line
    ]
    script = LOOPS.read_text().replace("`${address}", "'http://127.0.0.1:8080").replace("`", "'")
    script = script.replace(": address", ": 'http://127.0.0.1:8080'")
    assert not [line for line in shown if " ".join(line.split()) not in " ".join(script.split())]


def test_page_names_the_versions_that_are_installed() -> None:
    """The table's versions are those of package.json."""
    asked = json.loads((LOOPS.parent / "package.json").read_text())
    versions = {**asked["dependencies"], **asked["optionalDependencies"]}
    rows = re.findall(r"^\| \[.*?\] ?\(#.*?\) `(.+?)`.*? \| (\S+) \|", PAGE.read_text(), re.MULTILINE)
    told = {name: version for name, version in rows if name in versions}
    assert told == {name: versions[name] for name in told} and len(told) == 9
