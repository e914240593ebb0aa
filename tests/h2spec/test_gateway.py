"""The cases of h2spec, and more, with a real gateway: what it answers, and that no bad request goes upstream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.recording import RecordingUpstream
from tests.h2spec.gateway_line import serving
from tests.h2spec.messages import BEYOND, MESSAGES
from tests.h2spec.table import H2SPEC_CASES, Connect, EngineName
from tests.h2spec.talker import Case


@dataclass(frozen=True)
class Served:
    """A gateway and what is behind it."""

    connect: Connect
    upstream: RecordingUpstream


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """One gateway for each engine."""
    name: EngineName = request.param
    with RecordingUpstream() as upstream, serving(name, upstream) as connect:
        yield Served(connect, upstream)


@pytest.mark.parametrize("case", H2SPEC_CASES, ids=lambda case: case.id)
def test_case_goes_as_wanted(case: Case, served: Served) -> None:
    """What h2spec 2.6 asks of a server is what it gets, or the connection's end where the stream's would do (B-44)."""
    verdict = case.run(served.connect())
    assert verdict.is_right, f"{case.what}: wanted {case.wanted.words}, got {verdict.got}"


@pytest.mark.parametrize("case", [*MESSAGES[:-1], *BEYOND], ids=lambda case: case.id)
def test_malformed_request_is_reset_and_goes_nowhere(case: Case, served: Served) -> None:
    """RST_STREAM PROTOCOL_ERROR, the connection goes on, and the upstream never hears of it (B-48, B-49)."""
    served.upstream.forget()
    verdict = case.run(served.connect())
    assert verdict.is_right and not verdict.is_stricter, f"wanted {case.wanted.words}, got {verdict.got}"
    assert served.upstream.calls == []
