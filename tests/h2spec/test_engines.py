"""The cases of h2spec, and more, with each engine in memory."""

from __future__ import annotations

import pytest

from tests.h2spec.engine_line import EngineLine
from tests.h2spec.messages import BEYOND, MESSAGES
from tests.h2spec.table import ALL_CASES, EngineName
from tests.h2spec.talker import Case

each_engine = pytest.mark.parametrize("name", ["ngh2", "h2"])
_IDS = [case.id for case in ALL_CASES]


@each_engine
@pytest.mark.parametrize("case", ALL_CASES, ids=_IDS)
def test_case_goes_as_wanted(case: Case, name: EngineName) -> None:
    """What h2spec 2.6 asks of a server is what it gets, or the connection's end where the stream's would do (B-44)."""
    verdict = case.run(EngineLine(name))
    assert verdict.is_right, f"{case.what}: wanted {case.wanted.words}, got {verdict.got}"


@each_engine
@pytest.mark.parametrize("case", [*MESSAGES[:-1], *BEYOND], ids=lambda case: case.id)
def test_malformed_request_reaches_nobody(case: Case, name: EngineName) -> None:
    """A request that is none ends its stream, and the application never hears of it (B-48, B-49)."""
    line = EngineLine(name)
    verdict = case.run(line)
    assert verdict.is_right and not verdict.is_stricter, "a stream of a bad request costs the others their connection"
    assert line.n_requests == 0


def test_cases_have_ids_of_their_own() -> None:
    """A case that is there twice by mistake hides another."""
    assert len(set(_IDS)) == len(_IDS) == len(ALL_CASES)
