"""The one form of times in the logs: RFC 3339 in UTC, in milliseconds.

Knows: that form. Does not know: a clock.
"""

from __future__ import annotations

import datetime

__all__ = ["log_time"]


def log_time(unix_s: float) -> str:
    """Return a time as the logs have it: `2026-01-31T12:00:00.250Z`. unix_s: seconds since 1970."""
    text = datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="milliseconds")
    return f"{text.removesuffix('+00:00')}Z"
