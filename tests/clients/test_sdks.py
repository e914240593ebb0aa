"""SDKs for Node with loops of their own: the Vercel AI SDK, LangChain, and openai-agents, on each kind of upstream."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.running import NODE_MODULES, node, package, run
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
