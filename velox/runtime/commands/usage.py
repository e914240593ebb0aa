"""The command `velox usage`: which time and which values its arguments mean, and what it prints.

Knows: arguments. Does not know: how records are kept or written out (velox.ledger).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from velox.ledger.query_parameters import FOREVER_S, check_kept, check_together, parse_dimensions, parse_time
from velox.ledger.report import CALL_NAMES, Format, call_rows, lines, total_names, total_rows
from velox.ledger.store import Dimension, Store, UsageQuery

__all__ = ["ArgumentError", "UsageArguments", "usage_lines"]

T = TypeVar("T")


class ArgumentError(Exception):
    """An argument can't be used. The message says which, and what is expected."""


class UsageArguments(NamedTuple):
    """As they were given. key ... model: only calls with this value. calls: each call instead of sums."""

    since: str
    until: str | None
    by: str
    form: Format
    key: str | None = None
    team: str | None = None
    user: str | None = None
    tag: str | None = None
    upstream: str | None = None
    model: str | None = None
    agent: str | None = None
    calls: bool = False


def usage_lines(store: Store, asked: UsageArguments, now: datetime.datetime) -> Iterator[str]:
    """Return what is printed. Raises ArgumentError before the first line, StoreError."""
    time = partial(parse_time, now=now)
    question = UsageQuery(
        _checked("--since", asked.since, time),
        FOREVER_S if asked.until is None else _checked("--until", asked.until, time),
        () if asked.calls else _checked("--by", asked.by, parse_dimensions),
        tuple(_where(asked)),
    )
    if asked.calls:
        return lines(call_rows(store.calls(question)), asked.form, CALL_NAMES)
    _checked("--by", asked.by, lambda _: check_together(question))
    try:
        check_kept(question, now)
    except ValueError as exc:
        raise ArgumentError(f"--since, --until: {exc}") from None
    return lines(total_rows(question.by, store.totals(question)), asked.form, total_names(question.by))


def _where(asked: UsageArguments) -> Iterator[tuple[Dimension, str]]:
    given: tuple[tuple[Dimension, str | None], ...] = (
        ("key", asked.key),
        ("team", asked.team),
        ("user", asked.user),
        ("tag", asked.tag),
        ("upstream", asked.upstream),
        ("model", asked.model),
        ("agent", asked.agent),
    )
    yield from ((dimension, value) for dimension, value in given if value is not None)


def _checked(option: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except ValueError as exc:
        raise ArgumentError(f"{option} {text}: {exc}") from None
