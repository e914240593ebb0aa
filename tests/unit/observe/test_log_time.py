"""The form of times in the logs."""

from __future__ import annotations

from datetime import UTC, datetime

from velox.observe.log_time import log_time


def test_time_is_rfc_3339_in_utc_with_milliseconds() -> None:
    """Also of a whole second, and whatever zone the machine is in."""
    assert log_time(1769860800.25) == "2026-01-31T12:00:00.250Z"
    assert log_time(0) == "1970-01-01T00:00:00.000Z"
    assert datetime.fromisoformat(log_time(1769860800.25)) == datetime.fromtimestamp(1769860800.25, UTC)
