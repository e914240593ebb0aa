"""The rate of a bucket, as the settings say it. What it gives: test_quota.py."""

from __future__ import annotations

import pytest

from velox.policy.limits.token_bucket import BucketRate


def test_rate_from_rpm_zero_is_no_limit() -> None:
    """RPM 0 switches the limit off."""
    assert BucketRate.from_rpm(0, 500, 1.0).interval_ns == 0


@pytest.mark.parametrize("rpm", [1, 7, 600, 10_000, 59_999_999, 60_000_000, 100_000_000])
def test_rate_from_rpm_is_never_above_what_was_asked(rpm: int) -> None:
    """Rounding makes a bucket slower, by less than a nanosecond a permit."""
    interval_ns = BucketRate.from_rpm(rpm, 500, 1.0).interval_ns

    assert 0 <= interval_ns * rpm - 60 * 10**9 < rpm


@pytest.mark.parametrize(("rpm", "burst", "max_wait_s"), [(-1, 1, 0.0), (1, 0, 0.0), (1, 1, -0.1)])
def test_rate_from_rpm_impossible_is_refused(rpm: int, burst: int, max_wait_s: float) -> None:
    """A bucket that can't exist is a ValueError, not a bucket that grants nothing."""
    with pytest.raises(ValueError, match="no such bucket"):
        BucketRate.from_rpm(rpm, burst, max_wait_s)
