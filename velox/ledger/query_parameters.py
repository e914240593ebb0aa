"""How a time and the values to group by are written, in arguments of a command and in a query of the API.

Knows: the spellings. Does not know: who asks, or what is answered.
"""

from __future__ import annotations

import datetime
import re
from typing import Final

from velox.ledger.store import DIMENSIONS, PERIODS, Dimension, UsageQuery
from velox.ledger.totals import DAY_S, KEPT_S, spans

__all__ = ["FOREVER_S", "check_kept", "check_together", "parse_dimensions", "parse_time"]

# The begin of the last day that a date can have: sums by day answer no question that ends within one.
FOREVER_S: Final = 253_402_214_400
_DAY: Final = datetime.timedelta(days=1)
_AGO: Final = re.compile(r"([0-9]{1,4})([hd])")
_PERIODS: Final = ("minute", "hour", "day")


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Return what sums are grouped by. Raises ValueError, which says what was expected."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    found: list[Dimension] = [dimension for name in names for dimension in DIMENSIONS if dimension == name]
    if len(found) != len(names) or len(set(names)) != len(names):
        raise ValueError(f"expected some of {', '.join(DIMENSIONS)}, each once, with commas between")
    if len([name for name in names if name in _PERIODS]) > 1:
        raise ValueError("expected one of minute, hour and day")
    return tuple(found)


def parse_time(text: str, now: datetime.datetime) -> int:
    """Return a Unix time: of a day, of a moment, or so long before now, from the begin of its hour or day on.

    Raises ValueError, which says what was expected.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        n = int(ago[1])
        if ago[2] == "h":
            return int((now.replace(minute=0, second=0, microsecond=0) - datetime.timedelta(hours=n)).timestamp())
        return int((now.replace(hour=0, minute=0, second=0, microsecond=0) - n * _DAY).timestamp())
    try:
        found = datetime.datetime.fromisoformat(text)
        seconds = int((found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp())
        if not 0 <= seconds <= FOREVER_S:
            raise ValueError
        return seconds
    except (ValueError, OverflowError):
        message = "expected a day (2026-11-23), a time (2026-11-23T12:00), or a time ago (24h, 30d)"
        raise ValueError(message) from None


def check_together(question: UsageQuery) -> None:
    """Raise ValueError, which says what was expected, if there are no sums of such dimensions together."""
    named = (*question.by, *dict(question.where))
    if "tag" in named and "agent" in named:
        raise ValueError("expected tag or agent: there are no sums of both; single calls have both (`--calls`)")


def check_kept(question: UsageQuery, now: datetime.datetime) -> None:
    """Raise ValueError if sums would leave something out that has no row of its own, by which it could be missed.

    It is so where a time long ago is no full hour or day: sums of so short periods are not kept that long.
    """
    row_s = min((PERIODS[dimension] for dimension in question.by if dimension in PERIODS), default=None)
    for span in spans(question):
        kept_s = KEPT_S.get(span.period)
        has_rows = PERIODS[span.period] == row_s
        if not has_rows and kept_s is not None and span.since_s < int(now.timestamp()) - kept_s:
            longer = "an hour" if span.period == "minute" else "a day"
            message = f"expected times that begin {longer} (UTC) where they are more than {kept_s // DAY_S} days ago"
            raise ValueError(f"{message}: sums by {span.period} are kept for so long")
