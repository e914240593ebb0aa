"""Instructor: answers by tools and by schemas, and a second try with what was wrong with the first."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.clients.farm import KINDS, MODEL_NAMES, Farm
from tests.clients.plan import Plan, Wanted
from tests.clients.workers import REPORT, REPORTED, Worker, worker

TOO_HOT = {"city": "Oslo", "degrees": 90}
# The type's name is the tool's. What is wrong with a call comes back as its result.
TRIES = Plan(
    rounds=((Wanted("Report", TOO_HOT, "degrees"),), (Wanted("Report", REPORTED, ""),)),
    final=None,
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker("instructor", "with_instructor.py", tmp_path_factory.mktemp("client")) as running:
        yield running


# Google's refuses a text beside a call, whoever answers.
@pytest.mark.parametrize("client", ["openai-tools", "anthropic-tools"])
@pytest.mark.parametrize("kind", KINDS)
def test_second_try(velox_farm: Farm, program: Worker, kind: str, client: str) -> None:
    """The first call does not fit; it goes back with the reason, and the second one is the answer."""
    with velox_farm.playing(kind, TRIES):
        said = program.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED


@pytest.mark.parametrize("kind", KINDS)
def test_call_of_responses(velox_farm: Farm, program: Worker, kind: str) -> None:
    """The first call is the answer: for a second try it sends no call back, but a question."""
    with velox_farm.playing(kind, TRIES._replace(rounds=TRIES.rounds[1:])):
        said = program.ask("openai-responses", velox_farm.velox.base_url, MODEL_NAMES[kind])
    assert said == REPORTED


@pytest.mark.parametrize("client", ["openai-tools", "anthropic-tools", "google-tools"])
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_call(velox_farm: Farm, program: Worker, kind: str, client: str) -> None:
    """Partial answers are read from the arguments while they come."""
    plan = TRIES._replace(rounds=((Wanted("PartialReport", REPORTED, ""),),))
    with velox_farm.playing(kind, plan):
        said = program.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=True)
    assert said == REPORTED


@pytest.mark.parametrize("client", ["openai-schema", "google-schema"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_schema(velox_farm: Farm, program: Worker, kind: str, client: str, is_streamed: bool) -> None:
    """The answer's text fits the schema that was asked for, which the model was told of."""
    with velox_farm.playing(kind, REPORT) as played:
        said = program.ask(client, velox_farm.velox.base_url, MODEL_NAMES[kind], is_streamed=is_streamed)
    assert said == REPORTED
    assert "degrees" in json.dumps(played.requests)
