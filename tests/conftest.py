"""What every test of the suite has: the watch over what gateways write, and a collector that looks at little."""

from __future__ import annotations

import gc

from tests.secret_watch import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown

__all__ = [
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]


def pytest_collection_finish() -> None:
    """Leave modules and collected tests to themselves: hundreds of tests collect garbage, each of its own objects."""
    gc.collect()
    gc.freeze()
