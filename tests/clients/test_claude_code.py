"""Claude Code (`claude -p`): its Bash tool, twice at once and once more, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.plan import Plan, Wanted
from tests.clients.running import package, run
from tests.clients.shown import variables


def bash(command: str, result: str) -> Wanted:
    return Wanted("Bash", {"command": command, "description": "Work"}, result)


PLAN = Plan(
    rounds=(
        (bash("printf alpha | tee one.txt", "alpha"), bash("printf beta | tee two.txt", "beta")),
        (bash("cat one.txt two.txt", "alphabeta"),),
    ),
    final="Both files are written.",
)


@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, kind: str, folder: Path) -> None:
    """It prints the last text, as it does alone."""
    claude = package("@anthropic-ai/claude-code-linux-x64/claude")
    model = MODEL_NAMES[kind]
    command = [claude, "-p", "Write both files.", "--output-format", "json", "--allowedTools", "Bash"]
    with velox_farm.playing(kind, PLAN):
        done = run(command, folder, **variables("Claude Code", velox_farm, model))
        assert done.returncode == 0, done.told
    assert json.loads(done.stdout)["result"] == PLAN.final
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"
