"""The command `velox usage`: which time and which values its arguments mean, and what it prints.

Knows: arguments. Does not know: how records are kept or written out (velox.ledger).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from velox.ledger.report import Format, call_rows, lines, total_rows
from velox.ledger.store import DIMENSIONS, Dimension, Question, Store

__all__ = ["ArgumentError", "UsageArguments", "usage_lines"]

_DAY: Final = datetime.timedelta(days=1)
_AGO: Final = re.compile(r"(\d{1,4})([hd])")
_FOREVER: Final = 253_402_300_799  # the last second of the year 9999


class ArgumentError(Exception):
    """An argument can't be used. The message says which, and what is expected."""


class UsageArguments(NamedTuple):
    """As they were given. key, upstream, model: only calls with this value. calls: each call instead of sums."""

    since: str
    until: str | None
    by: str
    form: Format
    key: str | None = None
    upstream: str | None = None
    model: str | None = None
    calls: bool = False


def usage_lines(store: Store, asked: UsageArguments, now: datetime.datetime) -> Iterator[str]:
    """Return what is printed. Raises ArgumentError before the first line, StoreError."""
    question = Question(
        _time(asked.since, now, "--since"),
        _FOREVER if asked.until is None else _time(asked.until, now, "--until"),
        () if asked.calls else _dimensions(asked.by),
        tuple(_where(asked)),
    )
    if asked.calls:
        return lines(call_rows(store.calls(question)), asked.form)
    return lines(total_rows(question.by, store.totals(question)), asked.form)


def _where(asked: UsageArguments) -> Iterator[tuple[Dimension, str]]:
    if asked.key is not None:
        yield "key", asked.key
    if asked.upstream is not None:
        yield "upstream", asked.upstream
    if asked.model is not None:
        yield "model", asked.model


def _dimensions(text: str) -> tuple[Dimension, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    found: list[Dimension] = [dimension for name in names for dimension in DIMENSIONS if dimension == name]
    if len(found) != len(names) or len(set(names)) != len(names):
        raise ArgumentError(f"--by {text}: expected some of {', '.join(DIMENSIONS)}, each once, with commas between")
    if len([name for name in names if name in ("minute", "hour", "day")]) > 1:
        raise ArgumentError(f"--by {text}: expected one of minute, hour and day")
    return tuple(found)


def _time(text: str, now: datetime.datetime, option: str) -> int:
    """Return a Unix time: of a day, of a moment, or so long before now, from the begin of its hour or day on."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        n = int(ago[1])
        if ago[2] == "h":
            return int((now.replace(minute=0, second=0, microsecond=0) - datetime.timedelta(hours=n)).timestamp())
        return int((now.replace(hour=0, minute=0, second=0, microsecond=0) - n * _DAY).timestamp())
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        message = f"{option} {text}: expected a day (2026-11-23), a time (2026-11-23T12:00), or a time ago (24h, 30d)"
        raise ArgumentError(message) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp())
