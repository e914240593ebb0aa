"""What is recorded of a call is what the vendor charges, however its request and its reply are written."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.exam import replies, requests
from tests.e2e.exam.paper import Exam


def test_replies_are_recorded_as_a_bookkeeper_reads_them(tmp_path: Path) -> None:
    """Tokens by kind, tier, model and cost to the nano-dollar, wherever in a reply they stand."""
    assert Exam(tmp_path).problems(replies.CASES) == []


def test_requests_are_recorded_as_they_are_charged_or_refused(tmp_path: Path) -> None:
    """No way to write a request hides what it costs."""
    assert Exam(tmp_path).problems(requests.CASES) == []


def test_clients_that_leave_are_recorded_as_they_are_charged(tmp_path: Path) -> None:
    """Where their streams are read on, in each API."""
    assert Exam(tmp_path).problems(requests.LEAVING, usage_drain="all") == []
