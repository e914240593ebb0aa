"""What every test of the suite has: the watch over what gateways write."""

from tests.secret_watch import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_terminal_summary", "pytest_testnodedown"]
