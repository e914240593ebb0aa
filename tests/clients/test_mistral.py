"""Mistral's SDK, whose messages have a field of their own, and which reads a streamed call in one piece only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.workers import PLAN, REPORT, REPORTED, Worker, worker


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker("mistral", "with_mistral.py", tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_tool_loop(velox_farm: Farm, program: Worker, kind: str, is_streamed: bool) -> None:
    """Two calls at once, one more, and the model's last text: OpenAI refuses `prefix`, and its calls come in pieces."""
    with velox_farm.playing(kind, PLAN):
        said = program.ask("loop", velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=is_streamed)
    assert said == PLAN.final


@pytest.mark.parametrize("kind", KINDS)
def test_structured_answer(velox_farm: Farm, program: Worker, kind: str) -> None:
    """The answer is of the type that was asked for."""
    with velox_farm.playing(kind, REPORT):
        said = program.ask("report", velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED
