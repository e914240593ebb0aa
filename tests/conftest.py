"""What every test of the suite has: the watch over what gateways write, and a collector that looks at little."""

from __future__ import annotations

import gc
import os

from tests.secret_watch import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
from velox.settings.found import VARIABLES

__all__ = [
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

# The gateways of tests inherit the environment, and must find no keys there of whoever runs the tests.
for _name in VARIABLES:
    os.environ.pop(_name, None)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests to themselves: hundreds of tests collect garbage, each of its own objects."""
    gc.collect()
    gc.freeze()
