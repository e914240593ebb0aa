"""Gemini CLI (`gemini -p`): its shell, twice at once and once more, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.pictures import BEGINS, red_square
from tests.clients.plan import Plan, Wanted
from tests.clients.running import Finished, node, package, run
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


def gemini(farm: Farm, model: str, folder: Path, *words: str) -> Finished:
    """Run it with what docs/clients.md shows."""
    home = folder.parent / "work-home/.gemini"
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.json").write_text(block("Gemini CLI", "json", farm, model))
    command = [node(), package("@google/gemini-cli/bundle/gemini.js"), "--yolo", "-m", model]
    command += ["--output-format", "json", *words]
    return run(command, folder, **variables("Gemini CLI", farm, model), GEMINI_CLI_TRUST_WORKSPACE="true")


@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, kind: str, folder: Path) -> None:
    """Its signatures come back to Gemini; on the others there are none to lose."""
    with velox_farm.playing(kind, PLAN):
        done = gemini(velox_farm, MODEL_NAMES[kind], folder, "-p", "Write both files.")
        assert done.returncode == 0, done.told
    assert json.loads(done.stdout)["response"].endswith(PLAN.final), done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_failures(velox_farm: Farm, kind: str, folder: Path) -> None:
    """Commands that print nothing or fail, a picture beside a text.

    No second question: its `--resume` writes each result twice into the conversation, which every API refuses.
    """
    (folder / "red.png").write_bytes(red_square())
    plan = Plan(
        rounds=(
            (shell("true", ""), shell("echo oops; exit 3", "oops")),
            (Wanted("read_file", {"file_path": "red.png"}, ""), shell("printf 'ü\\n'", "ü")),
        ),
        final="It is red.",
    )
    with velox_farm.playing(kind, plan) as played:
        done = gemini(velox_farm, MODEL_NAMES[kind], folder, "-p", "Look.")
        assert done.returncode == 0, done.told
        assert json.loads(done.stdout)["response"].endswith(plan.final), done.told
    assert BEGINS in json.dumps(played.requests[-1]), "the picture is there to the end"
