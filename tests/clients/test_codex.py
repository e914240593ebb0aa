"""Codex (`codex exec`): by server-sent events and by WebSocket, with the tools of a model that it does not know.

For models that it knows it declares one tool, `exec`, which runs JavaScript; here by their names, whatever answers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import CODEX_NAMES, KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.pictures import BEGINS, red_square
from tests.clients.plan import Plan, Wanted
from tests.clients.running import Finished, node, package, run
from tests.clients.shown import block

FINAL = "Both files are written."


def shell(command: str, result: str) -> Wanted:
    return Wanted("exec_command", {"cmd": command}, result)


def script(name: str, command: str, result: str) -> Wanted:
    return Wanted(name, {"input": f"text((await tools.exec_command({{cmd: {command!r}}})).output)"}, result)


SHELL = Plan(
    rounds=(
        (shell("printf alpha | tee one.txt", "alpha"), shell("printf beta | tee two.txt", "beta")),
        (shell("cat one.txt two.txt", "alphabeta"),),
    ),
    final=FINAL,
)


def code_plan(name: str) -> Plan:
    """Return a plan for `exec`, which is called once at a time."""
    return Plan(
        rounds=(
            (script(name, "printf alpha | tee one.txt", "alpha"),),
            (script(name, "printf beta | tee two.txt", "beta"),),
            (script(name, "cat one.txt two.txt", "alphabeta"),),
        ),
        final=FINAL,
    )


def codex(farm: Farm, model: str, folder: Path, *words: str, websocket: bool) -> Finished:
    """Run it with the file that docs/clients.md shows."""
    home = folder.parent / "codex"
    home.mkdir(exist_ok=True)
    shown = block("Codex", "toml", farm, model)
    switched = shown.replace("supports_websockets = true", f"supports_websockets = {str(websocket).lower()}")
    (home / "config.toml").write_text(switched)
    command = [node(), package("@openai/codex/bin/codex.js"), "exec", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", *(words or ("Write both files.",))]
    done = run(command, folder, CODEX_HOME=str(home), GATEWAY_KEY=KEY, RUST_LOG="tungstenite::protocol=trace")
    # It would fall back to server-sent events in silence.
    assert ("tungstenite::protocol: Received message" in done.stderr) == websocket, done.told
    return done


@pytest.mark.parametrize("websocket", [False, True], ids=["sse", "websocket"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "responses"])
def test_tool_loop(velox_farm: Farm, kind: str, folder: Path, websocket: bool) -> None:
    """A model that it does not know: two commands at once, then one more."""
    with velox_farm.playing(kind, SHELL):
        done = codex(velox_farm, MODEL_NAMES[kind], folder, websocket=websocket)
        assert done.returncode == 0, done.told
    assert done.stdout.strip() == FINAL, done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"


@pytest.mark.parametrize("websocket", [False, True], ids=["sse", "websocket"])
@pytest.mark.parametrize("kind", KINDS)
def test_code_mode(velox_farm: Farm, kind: str, folder: Path, websocket: bool) -> None:
    """A name that it knows, on each kind: the custom tool `exec` of a namespace, which stands in the input."""
    plan = code_plan("exec" if kind == "responses" else "functions__exec")
    with velox_farm.playing(kind, plan):
        done = codex(velox_farm, CODEX_NAMES.get(kind, MODEL_NAMES[kind]), folder, websocket=websocket)
        assert done.returncode == 0, done.told
    assert done.stdout.strip() == FINAL, done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"


@pytest.mark.parametrize("websocket", [False, True], ids=["sse", "websocket"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "responses"])
def test_pictures_failures_and_a_second_question(velox_farm: Farm, kind: str, folder: Path, websocket: bool) -> None:
    """Commands that print nothing or fail, a picture beside a text, another question in the same session."""
    (folder / "red.png").write_bytes(red_square())
    plan = Plan(
        rounds=(
            (shell("true", ""), shell("echo oops; exit 3", "oops")),
            (Wanted("view_image", {"path": str(folder / "red.png")}, ""), shell("printf 'ü\\n'", "ü")),
        ),
        final="It is red.",
        n_questions=2,
    )
    with velox_farm.playing(kind, plan) as played:
        for words in (("Look.",), ("resume", "--last", "And again?")):
            done = codex(velox_farm, MODEL_NAMES[kind], folder, *words, websocket=websocket)
            assert done.returncode == 0 and done.stdout.strip() == plan.final, done.told
    assert BEGINS in json.dumps(played.requests[-1]), "the picture is there to the end"
