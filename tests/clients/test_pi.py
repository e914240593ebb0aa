"""pi (`pi -p`): its bash, by each of its four APIs, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.pictures import BEGINS, red_square
from tests.clients.plan import Plan, Wanted
from tests.clients.running import node, package, run
from tests.clients.shown import block

# The API that its provider names, and what the address of the gateway has behind it.
APIS = {
    "chat": ("openai-completions", "/v1"),
    "responses": ("openai-responses", "/v1"),
    "messages": ("anthropic-messages", ""),
    "gemini": ("google-generative-ai", "/v1beta"),
}


def bash(command: str, result: str) -> Wanted:
    return Wanted("bash", {"command": command}, result)


PLAN = Plan(
    rounds=(
        (bash("printf alpha | tee one.txt", "alpha"), bash("printf beta | tee two.txt", "beta")),
        (bash("cat one.txt two.txt", "alphabeta"),),
    ),
    final="Both files are written.",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", APIS)
def test_tool_loop(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> None:
    """Models that reason are said to: it asks for reasoning, and sends it back."""
    pi = set_up(velox_farm, dialect, kind, folder)
    with velox_farm.playing(kind, PLAN):
        done = run([*pi, "-p", "Write both files."], folder, GATEWAY_KEY=KEY, PI_OFFLINE="1")
        assert done.returncode == 0, done.told
    assert done.stdout.strip() == PLAN.final, done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", APIS)
def test_pictures_failures_and_a_second_question(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> None:
    """Commands that print nothing or fail, a picture beside a text, another question in the same session."""
    pi = set_up(velox_farm, dialect, kind, folder)
    (folder / "red.png").write_bytes(red_square())
    plan = Plan(
        rounds=(
            (bash("true", ""), bash("echo oops; exit 3", "oops")),
            (Wanted("read", {"path": str(folder / "red.png")}, ""), bash("printf 'ü\\n'", "ü")),
        ),
        final="It is red.",
        n_questions=2,
    )
    with velox_farm.playing(kind, plan) as played:
        for question in (["-p", "Look."], ["--continue", "-p", "And again?"]):
            done = run([*pi, *question], folder, GATEWAY_KEY=KEY, PI_OFFLINE="1")
            assert done.returncode == 0, done.told
            assert done.stdout.strip() == plan.final, done.told
    assert BEGINS in json.dumps(played.requests[-1]), "the picture is there to the end"


def set_up(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> list[str]:
    """Write the file that the page shows, with one of the APIs; return how pi is called."""
    api, path = APIS[dialect]
    model = MODEL_NAMES[kind]
    shown = json.loads(block("pi", "json", velox_farm, model))
    provider = shown["providers"]["velox"]
    provider |= {"api": api, "baseUrl": f"{velox_farm.velox.base_url}{path}"}
    provider["models"][0]["input"] = ["text", "image"]
    provider["models"][0]["reasoning"] = kind in ("responses", "messages", "gemini")
    home = folder.parent / "work-home/.pi/agent"
    home.mkdir(parents=True)
    (home / "models.json").write_text(json.dumps(shown))
    return [node(), package("@mariozechner/pi-coding-agent/dist/cli.js"), "--provider", "velox", "--model", model]
