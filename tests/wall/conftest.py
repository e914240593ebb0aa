"""What the wall's tests share: the walls and gateways of each way to speak with an upstream."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.e2e.upstreams import Certificates, make_certificates
from tests.wall.faults import EARLY, FAULTS
from tests.wall.gate import Wall, start_gate
from tests.wall.setup import Setup
from tests.wall.ways import ALL_KINDS, KINDS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the ways to speak that a test is not for: marker `ways`, else HTTP/1.1 and both HTTP/2 engines."""
    unwanted = [item for item in items if not _is_wanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]


def _is_wanted(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    if spec is None or "setup" not in spec.params:
        return True
    marker = item.get_closest_marker("ways")
    return spec.params["setup"] in (marker.args if marker else KINDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the gateways said of it."""
    report = yield
    given = getattr(item, "funcargs", {}).get("wall_of_session")
    if report.failed and isinstance(given, Wall):
        report.sections += [(f"gateway {name}", gate.story()) for name, gate in given.gates.items()]
    return report


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session", params=ALL_KINDS)
def setup(request: pytest.FixtureRequest, certificates: Certificates) -> Setup:
    """Each way to speak with an upstream."""
    return Setup(request.param, certificates)


@pytest.fixture(scope="session")
def wall_of_session(setup: Setup) -> Iterator[Wall]:
    """Two walls and two gateways for each way."""
    first, second = (setup.provider(number, FAULTS, EARLY) for number in (1, 2))
    with first, second, start_gate(setup, [first]) as alone, start_gate(setup, [first, second]) as pair:
        yield Wall(setup, first, second, alone, pair)


@pytest.fixture
def wall(wall_of_session: Wall) -> Iterator[Wall]:
    """The walls for one test; afterwards healthy requests must pass, and nothing may be left of the faults."""
    for provider in (wall_of_session.first, wall_of_session.second):
        provider.forget()
    yield wall_of_session
    for gate in wall_of_session.gates.values():
        if gate.asks:  # else the test had nothing to do with it
            gate.check_baseline()
            gate.close_asks()
    for provider in (wall_of_session.first, wall_of_session.second):
        assert not provider.failures, provider.failures
