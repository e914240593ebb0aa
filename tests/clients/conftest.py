"""One gateway for all clients, and a folder for each to work in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.farm import Farm, farm


@pytest.fixture(scope="session")
def velox_farm() -> Iterator[Farm]:
    """The five upstreams behind a gateway."""
    with farm() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the client works in."""
    made = tmp_path / "work"
    made.mkdir()
    return made
