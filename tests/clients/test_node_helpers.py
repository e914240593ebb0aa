"""The helpers of the official SDKs for Node, on each kind of upstream: loops of tools, and answers of a type."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.running import NODE_MODULES, node, package, run
from tests.clients.workers import PLAN, REPORT, REPORTED

HELPERS = Path(__file__).parent / "node/helpers.mjs"
NAMES = tuple(re.findall(r"^  '(.+?)': async", HELPERS.read_text(), re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["plain", "streamed"])
@pytest.mark.parametrize("name", NAMES)
def test_helper(velox_farm: Farm, name: str, mode: str, kind: str, folder: Path) -> None:
    """The last text of the plan, or the answer as its type has it."""
    package("openai")
    # Node finds packages from where a file stands.
    (folder / "node_modules").symlink_to(NODE_MODULES)
    script = shutil.copy(HELPERS, folder)
    is_parsed = name.endswith("parse")
    with velox_farm.playing(kind, REPORT if is_parsed else PLAN):
        done = run([node(), script, name, mode, velox_farm.velox.base_url, KEY, MODEL_NAMES[kind]], folder)
        assert done.returncode == 0, done.told
    if is_parsed:
        assert json.loads(done.stdout) == REPORTED
    else:
        assert done.stdout.endswith(str(PLAN.final))
