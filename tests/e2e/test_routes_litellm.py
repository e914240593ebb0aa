"""LiteLLM configurations from its public pages, imported, checked and serving; only the places are the simulators'."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import openai
import pytest
import yaml

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.routed import Entry, ask, ask_stream, named, shares

CONFIGS: Final = REPOSITORY / "tests/migrate/configs"
CLIENT_KEY: Final = "sk-client-of-litellm"
SECRET: Final = "sk-upstream-of-litellm"  # what stands in each variable that the import asks for
BASE: Final = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
# Velox translates no API, so their deployments are named and left out; so is one without a model.
_LEFT_OUT: Final = re.compile(r"(bedrock|sagemaker|anthropic|groq)/|azure/$")


@pytest.fixture(scope="module")
def sims() -> Iterator[dict[str, Entry]]:
    """As many places as a group of deployments has."""
    with named("one", "two", "three", "four") as running:
        yield running


def pointed(name: str, sims: Mapping[str, Entry]) -> tuple[dict[str, Any], dict[str, set[tuple[str, str]]]]:
    """Return a configuration whose deployments are at the simulators, in turn; and who answers each `model_name`.

    That is the simulator's name, and the model that it is asked for.
    """
    config: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    answers = defaultdict(set)
    places = list(sims.items())
    for n, deployment in enumerate(config["model_list"]):
        params = deployment["litellm_params"]
        if _LEFT_OUT.match(params["model"]):
            continue
        sim, entry = places[n % len(places)]
        is_azure = params["model"].startswith("azure/")
        params["api_base"] = entry["origin"] + ("/" if is_azure else "/v1")
        model = re.sub(r"^(openai|azure|hosted_vllm|mistral|text-completion-openai)/", "", params["model"])
        answers[deployment["model_name"]].add((sim, model))
    return config, dict(answers)


def velox(*words: str, **env: str) -> str:
    """Run a command of Velox, which must end well; return what it wrote."""
    command = [sys.executable, "-m", "velox", *words]
    more = {"capture_output": True, "text": True, "timeout": 60.0}
    done = subprocess.run(command, cwd=REPOSITORY, env={**BASE, **env}, check=False, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


def imported(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Import a configuration, and check what comes of it; return the settings of a gateway with it."""
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    result = folder / "velox.yaml"
    report = velox("import", "litellm", str(folder / "config.yaml"), "-o", str(result))
    wanted, found = re.search(r"set these variables:\n(.*?)\n\S", report, re.DOTALL), {"VELOX_WORKERS": "1"}
    for name in re.findall(r"^ +([A-Z0-9_]+): ", wanted[1] if wanted else "", re.MULTILINE):
        found[name] = CLIENT_KEY if name == "VELOX_API_KEYS" else SECRET
    printed = velox("check", "--config", str(result), **found)
    assert all(f"http://127.0.0.1:{entry.rpartition(':')[2]}" in printed for entry in origins(config))
    return {**found, "VELOX_CONFIG": str(result)}


def origins(config: Mapping[str, Any]) -> list[str]:
    """Return the places of the deployments that were carried over."""
    found = [deployment["litellm_params"].get("api_base", "") for deployment in config["model_list"]]
    return [re.sub(r"(/v1|/)$", "", place) for place in found if "127.0.0.1" in place]


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_configuration_of_its_pages_is_imported_and_serves(name: str, tmp_path: Path, sims: dict[str, Entry]) -> None:
    """Each model that could be carried over is answered by one of its deployments, called as it is there."""
    config, answers = pointed(name, sims)
    assert len(answers) >= 3

    with VeloxProcess(imported(tmp_path, config)) as gateway:
        sdk = gateway.openai(api_key=CLIENT_KEY)
        for model, expected in answers.items():
            wanted = "o4-mini" if model == "*" else model
            found = [ask(sdk, wanted), ask(sdk, wanted), ask_stream(sdk, wanted)]
            known = {(sim, wanted if "*" in called else called) for sim, called in expected}
            assert {(answer.sim, answer.model) for answer in found} <= known, model
            assert all(answer.text and answer.attempts == 1 for answer in found)
        for alias, model in config.get("router_settings", {}).get("model_group_alias", {}).items():
            answer = ask(sdk, alias)
            assert (answer.sim, answer.model) in answers[model]


def test_deployments_have_their_part_and_their_fallback(tmp_path: Path, sims: dict[str, Entry]) -> None:
    """By `rpm` as weight; when all of a model fail, the fallback is another model's; what is not there is not found."""
    config, _ = pointed("load_balancing.yaml", sims)
    with VeloxProcess(imported(tmp_path, config)) as gateway:
        found = shares([ask(gateway.openai(), "zephyr-beta") for _ in range(40)])
        assert found["three"] > 35  # 60000 of 60660
        with pytest.raises(openai.NotFoundError):
            ask(gateway.openai(), "zephyr-gamma")

    with named("bad", bad="--error-rate 1") as bad:
        for deployment in config["model_list"][:3]:
            deployment["litellm_params"]["api_base"] = bad["bad"]["origin"]
        (tmp_path / "velox.yaml").unlink()
        with VeloxProcess(imported(tmp_path, config)) as gateway:
            found_models = {
                (answer.sim, answer.model) for answer in (ask(gateway.openai(), "zephyr-beta") for _ in "12")
            }
            assert found_models == {("four", "gpt-4o")}
