"""Claude Code (`claude -p`): its Bash tool, twice at once and once more, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.pictures import BEGINS, red_square
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


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_failures_and_a_second_question(velox_farm: Farm, kind: str, folder: Path) -> None:
    """Commands that print nothing or fail, a picture beside a text, another question in the same session."""
    claude = package("@anthropic-ai/claude-code-linux-x64/claude")
    (folder / "red.png").write_bytes(red_square())
    written = {"file_path": str(folder / "three.txt"), "content": 'grün "3"\n'}
    plan = Plan(
        rounds=(
            (bash("true", ""), bash("echo oops; exit 3", "oops")),
            (Wanted("Read", {"file_path": str(folder / "red.png")}, ""), bash("printf 'ü\\n'", "ü")),
            (Wanted("Write", written, ""),),
        ),
        final="It is red.",
        n_questions=2,
    )
    tools = ["--output-format", "json", "--allowedTools", "Bash,Read,Write"]
    with velox_farm.playing(kind, plan) as played:
        for question in (["-p", "Look."], ["-p", "--continue", "And again?"]):
            env = variables("Claude Code", velox_farm, MODEL_NAMES[kind])
            done = run([claude, *question, *tools], folder, **env)
            assert done.returncode == 0, done.told
            assert json.loads(done.stdout)["result"] == plan.final
    assert (folder / "three.txt").read_text() == 'grün "3"\n'
    assert BEGINS in json.dumps(played.requests[-1]), "the picture is there to the end"
