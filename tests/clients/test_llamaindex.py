"""LlamaIndex's FunctionAgent, with its models of OpenAI, Anthropic and Google."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.workers import CALLED, PLAN, REPORT, REPORTED, Worker, worker

CLIENTS = ("chat", "responses", "anthropic", "google")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker("llamaindex", "with_llamaindex.py", tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, program: Worker, kind: str, client: str, is_streamed: bool) -> None:
    """Two calls at once, one more, and the model's last text is the agent's."""
    with velox_farm.playing(kind, PLAN):
        said = program.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=is_streamed)
    assert said == PLAN.final


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_structured_answer(velox_farm: Farm, program: Worker, kind: str, client: str) -> None:
    """The answer is of the type that was asked for: by a tool where it does not know the model for more."""
    by_tool = client == "chat" or (client == "anthropic" and kind != "messages")
    with velox_farm.playing(kind, CALLED if by_tool else REPORT):
        said = program.ask(f"{client}-report", velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED
