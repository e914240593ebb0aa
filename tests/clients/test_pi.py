"""pi (`pi -p`): its bash, by each of its four APIs, on each kind of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.farm import KEY, KINDS, MODEL_NAMES, Farm
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
    api, path = APIS[dialect]
    model = MODEL_NAMES[kind]
    shown = json.loads(block("pi", "json", velox_farm, model))
    provider = shown["providers"]["velox"]
    provider |= {"api": api, "baseUrl": f"{velox_farm.velox.base_url}{path}"}
    provider["models"][0]["reasoning"] = kind in ("responses", "messages", "gemini")
    home = folder.parent / "work-home/.pi/agent"
    home.mkdir(parents=True)
    (home / "models.json").write_text(json.dumps(shown))
    command = [node(), package("@mariozechner/pi-coding-agent/dist/cli.js"), "--provider", "velox"]
    command += ["--model", model, "-p", "Write both files."]
    with velox_farm.playing(kind, PLAN):
        done = run(command, folder, GATEWAY_KEY=KEY, PI_OFFLINE="1")
        assert done.returncode == 0, done.told
    assert done.stdout.strip() == PLAN.final, done.told
    assert (folder / "one.txt").read_text() + (folder / "two.txt").read_text() == "alphabeta"
