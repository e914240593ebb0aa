"""LangChain's agents: two calls at once, one more, the last text; structured answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.workers import CALLED, PLAN, REPORT, REPORTED, Worker, worker

# `stateless`, `kept`: Responses with `store: false`, and with `previous_response_id`.
CLIENTS = ("chat", "responses", "stateless", "kept", "anthropic", "thinking", "google")


@pytest.fixture(scope="module")
def langchain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder: Path = tmp_path_factory.mktemp("langchain")
    with worker("agents", "with_langchain.py", folder) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, langchain: Worker, kind: str, client: str, is_streamed: bool) -> None:
    """The agent's last message is the model's last text."""
    with velox_farm.playing(kind, PLAN):
        said = langchain.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=is_streamed)
    assert said == PLAN.final


@pytest.mark.parametrize("client", ["chat", "responses", "anthropic", "google"])
@pytest.mark.parametrize("way", ["report", "report-tool"])
@pytest.mark.parametrize("kind", KINDS)
def test_structured_answer(velox_farm: Farm, langchain: Worker, kind: str, client: str, way: str) -> None:
    """The answer is of the type that was asked for, by the model's own schemas and by a tool."""
    with velox_farm.playing(kind, CALLED if way == "report-tool" else REPORT):
        said = langchain.ask(f"{client}-{way}", velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED
