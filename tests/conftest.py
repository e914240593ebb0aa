"""What every test of the suite has: the watch over what gateways write, and a collector that looks at little."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres_server import PostgresServer, postgres_server
from tests.secret_watch import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
from velox.settings.routing.found import VARIABLES

__all__ = [
    "USUAL",
    "postgres",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

# The gateways of tests inherit the environment, and must find no keys there of whoever runs the tests.
for _name in VARIABLES:
    os.environ.pop(_name, None)


# A machine that is busy finds nothing wrong: no example has a time limit, and none is slow to make.
settings.register_profile("velox", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velox")

# Folders of which `make test` runs what has not the marker `more`.
USUAL = ("arch", "unit", "migrate", "sockets", "sim", "e2e")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that runs all the time. A test that stops one has its own (postgres_server())."""
    with postgres_server() as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in a folder that `make test` does not run, as single long tests elsewhere are."""
    here = Path(__file__).parent
    usual = {here / folder for folder in USUAL}
    for item in items:
        if here in item.path.parents and usual.isdisjoint(item.path.parents):
            item.add_marker("clients" if here / "clients" in item.path.parents else "more")


def pytest_collection_finish() -> None:
    """Leave modules and collected tests to themselves: hundreds of tests collect garbage, each of its own objects."""
    gc.collect()
    gc.freeze()
