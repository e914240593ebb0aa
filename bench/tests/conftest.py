"""The tests of what measures are long ones: `make test-more` runs them, `make check-bench` most of them."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["pytest_collection_modifyitems"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("more")
