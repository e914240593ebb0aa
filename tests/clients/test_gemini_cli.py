"""Gemini CLI (`gemini -p`): its shell, twice at once and once more, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.plan import Plan, Wanted
from tests.clients.running import node, package, run
from tests.clients.shown import block, variables


def shell(command: str, result: str) -> Wanted:
    return Wanted("run_shell_command", {"command": command, "description": "Work"}, result)


PLAN = Plan(
    rounds=(
        (shell("printf alpha | tee one.txt", "alpha"), shell("printf beta | tee two.txt", "beta")),
        (shell("cat one.txt two.txt", "alphabeta"),),
    ),
    final="Both files are written.",
)


@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, kind: str, folder: Path) -> None:
    """Its signatures come back to Gemini; on the others there are none to lose."""
    home = folder.parent / "work-home/.gemini"
    home.mkdir(parents=True)
    model = MODEL_NAMES[kind]
    (home / "settings.json").write_text(block("Gemini CLI", "json", velox_farm, model))
    command = [node(), package("@google/gemini-cli/bundle/gemini.js"), "-p", "Write both files.", "--yolo"]
    command += ["-m", model, "--output-format", "json"]
    with velox_farm.playing(kind, PLAN):
        shown = variables("Gemini CLI", velox_farm, model)
        done = run(command, folder, **shown, GEMINI_CLI_TRUST_WORKSPACE="true")
        assert done.returncode == 0, done.told
    assert json.loads(done.stdout)["response"].endswith(PLAN.final), done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"
