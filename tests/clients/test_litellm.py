"""LiteLLM's Python SDK as a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.workers import PLAN, REPORT, REPORTED, Worker, worker

CLIENTS = ("openai", "responses", "anthropic", "gemini")
# Else LiteLLM asks elsewhere for a list of prices, when it is imported.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker("adk", "with_litellm.py", tmp_path_factory.mktemp("client"), **OFFLINE) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, program: Worker, kind: str, client: str, is_streamed: bool) -> None:
    """Two calls at once, one more, and the model's last text is the agent's."""
    with velox_farm.playing(kind, PLAN):
        said = program.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=is_streamed)
    assert said == PLAN.final


@pytest.mark.parametrize("client", ("openai", "anthropic", "gemini"))
@pytest.mark.parametrize("kind", KINDS)
def test_structured_answer(velox_farm: Farm, program: Worker, kind: str, client: str) -> None:
    """The answer is of the type that was asked for."""
    with velox_farm.playing(kind, REPORT):
        said = program.ask(f"{client}-report", velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED
