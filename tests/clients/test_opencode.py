"""opencode (`opencode run`): its bash, by each package of the AI SDK that it brings, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
from tests.clients.pictures import BEGINS, red_square
from tests.clients.plan import Plan, Wanted
from tests.clients.running import package, run
from tests.clients.shown import block

# The package that its provider names, and what the address of the gateway has behind it.
PACKAGES = {
    "chat": ("@ai-sdk/openai-compatible", "/v1"),
    "responses": ("@ai-sdk/openai", "/v1"),
    "messages": ("@ai-sdk/anthropic", "/v1"),
    "gemini": ("@ai-sdk/google", "/v1beta"),
}


def bash(command: str, result: str) -> Wanted:
    return Wanted("bash", {"command": command, "description": "Work"}, result)


PLAN = Plan(
    rounds=(
        (bash("printf alpha | tee one.txt", "alpha"), bash("printf beta | tee two.txt", "beta")),
        (bash("cat one.txt two.txt", "alphabeta"),),
    ),
    final="Both files are written.",
)


def set_up(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> None:
    """Write the file that docs/clients.md shows, with one of the packages."""
    npm, path = PACKAGES[dialect]
    model = MODEL_NAMES[kind]
    shown = json.loads(block("opencode", "json", velox_farm, model))
    provider = shown["provider"]["velox"]
    provider["npm"] = npm
    provider["options"]["baseURL"] = f"{velox_farm.velox.base_url}{path}"
    provider["models"][model] = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    (folder / "opencode.json").write_text(json.dumps(shown))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", PACKAGES)
def test_tool_loop(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> None:
    """Each package writes the conversation in a dialect of its own."""
    set_up(velox_farm, dialect, kind, folder)
    command = [package("opencode-linux-x64/bin/opencode"), "run", "Write both files."]
    with velox_farm.playing(kind, PLAN):
        done = run(command, folder, GATEWAY_KEY=KEY, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1")
        assert done.returncode == 0, done.told
    assert done.stdout.strip().endswith(PLAN.final), done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", PACKAGES)
def test_pictures_failures_and_a_second_question(velox_farm: Farm, dialect: str, kind: str, folder: Path) -> None:
    """Commands that print nothing or fail, a picture beside a text, another question in the same session."""
    set_up(velox_farm, dialect, kind, folder)
    (folder / "red.png").write_bytes(red_square())
    plan = Plan(
        rounds=(
            (bash("true", ""), bash("echo oops; exit 3", "oops")),
            (Wanted("read", {"filePath": str(folder / "red.png")}, ""), bash("printf 'ü\\n'", "ü")),
        ),
        final="It is red.",
        n_questions=2,
    )
    env = {"GATEWAY_KEY": KEY, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    with velox_farm.playing(kind, plan) as played:
        for words in (("Look.",), ("--continue", "And again?")):
            done = run([package("opencode-linux-x64/bin/opencode"), "run", *words], folder, **env)
            assert done.returncode == 0 and done.stdout.strip().endswith(plan.final), done.told
    assert BEGINS in json.dumps(played.requests[-1]), "the picture is there to the end"
