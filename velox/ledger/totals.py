"""What both stores have in common: which sums calls add to, and how a question is asked of sums.

Knows: periods, groups, and SQL that SQLite and PostgreSQL both read. Does not know: how either is opened or written.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from velox.ledger.record import KEY_ID_CHARS, LAST_S, CallRow, Flag, Kind, key_id
from velox.ledger.store import NOTHING, PERIODS, Batch, Carried, Dimension, Sums, Total, UsageQuery

__all__ = [
    "DAY_S",
    "KEPT_S",
    "KEY_NAME",
    "NOT_RECORDED",
    "US",
    "Added",
    "Row",
    "Span",
    "added",
    "carried",
    "day_s",
    "day_text",
    "key_condition",
    "spans",
    "sums_of_text",
    "sums_text",
    "total_question",
    "totals_of",
    "without_agent",
]

US: Final = 1_000_000
DAY_S: Final = 86_400
# Sums are kept this long, by period; days for ever.
KEPT_S: Final = {"minute": 2 * DAY_S, "hour": 90 * DAY_S}
# Where the name of a key begins, in a record.
KEY_NAME: Final = KEY_ID_CHARS + 1
# What no single record tells, because the ring had no room for it.
NOT_RECORDED: Final = "(not recorded)"
# Names of columns are ours in all that is put together; what others give is a parameter. `user` is a word of SQL.
_COLUMNS: Final[dict[Dimension, str]] = {
    "key": "key",
    "team": "team",
    "user": '"user"',
    "tag": "tag",
    "upstream": "upstream",
    "model": "model",
    "agent": "agent",
    "minute": "start",
    "hour": "start / 3600 * 3600",
    "day": "start / 86400 * 86400",
}
_DAY_FORM: Final = "%Y-%m-%d"
_TIME_FORM: Final = "%Y-%m-%dT%H:%MZ"
_LONGEST_FIRST: Final[Sequence[Dimension]] = ("day", "hour", "minute")
_MINUTE_S: Final = 60
_MINUTE_US: Final = _MINUTE_S * US
_ESTIMATED: Final = int(Flag.ESTIMATED)
_N_NAMED: Final = 7  # of a row of sums, before these: period, start and names
_SUMS: Final = tuple(f"sum({name})" for name in Sums._fields)

Row = tuple[Any, ...]
_Group = tuple[Any, ...]  # the minute, and the names that are counted together


class Added(NamedTuple):
    """Rows that are added to sums: period, start, names, sums. by_tag, by_agent: with that as the last name."""

    totals: list[Row]
    by_tag: list[Row]
    by_agent: list[Row]


def added(batch: Batch, calls: Sequence[CallRow], dropped: Sums) -> Added:
    """Return what a batch adds, of whose calls these count. dropped: what of the ring's was counted before."""
    by_group: dict[_Group, list[int]] = {}
    by_tag: dict[_Group, list[int]] = {}
    by_agent: dict[_Group, list[int]] = {}
    for minute, of_minute in _by_kind(calls).items():
        for kind, counted in of_minute.items():
            texts = kind.texts
            key, _, upstream, model, _, reason = texts.names
            n = counted[0]
            sums = (n, n if reason != "ok" else 0, n if int(kind.flags) & _ESTIMATED else 0, *counted[1:])
            group = (minute, key, texts.team, texts.user, upstream, model)
            _add(by_group, group, sums)
            _add(by_agent, (*group, texts.agent), sums)
            for tag in dict.fromkeys(texts.tags):
                _add(by_tag, (*group, tag), sums)
    totals, of_agents = _rows(by_group), _rows(by_agent)
    # One after the other is counted, so a call's cost may come in the batch after its number. After a power failure the
    # ring may know less than it did: then it has begun to count again from there.
    more = Sums(*(max(new - old, 0) for new, old in zip(batch.dropped, dropped, strict=True)))
    if any(more):
        lost = [
            (period, batch.time_s // seconds * seconds, NOT_RECORDED, "", "", "", "", *more)
            for period, seconds in PERIODS.items()
        ]
        totals += lost
        of_agents += map(without_agent, lost)
    return Added(totals, _rows(by_tag), of_agents)


def without_agent(row: Row) -> Row:
    """Return a row of sums as one of those by agent, of calls of which none is known."""
    return (*row[:_N_NAMED], "", *row[_N_NAMED:])


def carried(upstream: str, rows: Iterable[Carried]) -> list[Row]:
    """Return the rows of sums that another gateway recorded."""
    found: dict[tuple[str | int, ...], Sums] = {}
    for row in rows:
        for period, seconds in PERIODS.items():
            start_s = row.start_s // seconds * seconds
            group = (period, start_s, row.key, row.team, row.user, upstream, row.model)
            found[group] = row.sums.plus(found.get(group, NOTHING))
    return [(*group, *sums) for group, sums in found.items()]


class Span(NamedTuple):
    """A part of a question's time, and the period whose sums answer for it."""

    period: Dimension
    since_s: int
    until_s: int


def spans(question: UsageQuery) -> list[Span]:
    """Return which sums answer a question: the longest that fit, and none longer than the period that is asked for.

    What does not begin or end with a day is days in its middle, and hours and minutes at its ends: sums of short
    periods are not kept for long. Seconds of its begin and its end are left off.
    """
    lengths = [PERIODS[dimension] for dimension in question.by if dimension in PERIODS]
    longest = min(lengths, default=DAY_S)
    periods = [period for period in _LONGEST_FIRST if PERIODS[period] <= longest]
    since_s, until_s = (time_s // _MINUTE_S * _MINUTE_S for time_s in (question.since_s, question.until_s))
    return list(_covered(since_s, until_s, periods))


def total_question(
    question: UsageQuery,
    table: str,
    tag_table: str,
    agent_table: str,
    sums: Sequence[str] = _SUMS,
    after: Sequence[str] = (),
    most: int | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """Return SQL with `?` for each value, and the values. sums: how a database sums up each column.

    after, most: as in Store.totals(). Raises ValueError as that does.
    """
    parts = spans(question)
    columns = [_column(dimension, parts) for dimension in question.by]
    where = [_condition(dimension, value) for dimension, value in question.where]
    times = " OR ".join(["period = ? AND start >= ? AND start < ?"] * len(parts))
    conditions = [f"({times})", *(sql for sql, _ in where)]
    values = [*(value for span in parts for value in span), *(value for _, value in where)]
    if after and columns:
        conditions.append(f"({', '.join(columns)}) > ({', '.join('?' * len(columns))})")
        values += [_group_value(*each) for each in zip(question.by, after, strict=True)]
    named = (*question.by, *dict(question.where))
    if "tag" in named and "agent" in named:
        raise ValueError("there are no sums by tag and agent together")
    asked = tag_table if "tag" in named else agent_table if "agent" in named else table
    group = f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
    limit = "" if most is None or not columns else f" LIMIT {most:d}"
    select = ", ".join([*columns, *sums])
    return f"SELECT {select} FROM {asked} WHERE {' AND '.join(conditions)}{group}{limit}", tuple(values)


def _column(dimension: Dimension, parts: Sequence[Span]) -> str:
    """Return what a dimension is grouped by. Where all sums are of that period, an index has them in its order."""
    return "start" if all(span.period == dimension for span in parts) else _COLUMNS[dimension]


def _group_value(dimension: Dimension, label: str) -> str | int:
    """Return the value that has this label (totals_of()). Raises ValueError."""
    if dimension not in PERIODS:
        return label
    form = _DAY_FORM if dimension == "day" else _TIME_FORM
    return int(datetime.datetime.strptime(label, form).replace(tzinfo=datetime.UTC).timestamp())


def totals_of(question: UsageQuery, rows: Iterable[Sequence[Any]]) -> list[Total]:
    """Return what the rows of an answer say."""
    n = len(question.by)
    return [
        Total(_labels(question.by, row[:n]), Sums(*(int(value or 0) for value in row[n:])))
        for row in rows
        if row[n] is not None  # no row at all has sums of null
    ]


def key_condition(value: str) -> tuple[str, str]:
    """Return what the column `key` must be, and the value in it: by its ID, whatever its name was; else by its name."""
    id_ = key_id(value)
    return (f"substr(key, 1, {KEY_ID_CHARS}) = ?", id_) if id_ else (f"? IN (key, substr(key, {KEY_NAME + 1}))", value)


def sums_text(sums: Sums) -> str:
    """Return sums as a text."""
    return " ".join(map(str, sums))


def sums_of_text(text: str) -> Sums:
    """Read what sums_text() wrote."""
    return Sums(*map(int, text.split()))


def day_text(time_us: int) -> str:
    """Return the day of a time, in UTC; of one without a date, the last that there is."""
    return _date(time_us // US).strftime(_DAY_FORM)


def day_s(text: str) -> int:
    """Return when a day begins that day_text() wrote: Unix time in seconds."""
    return int(datetime.datetime.strptime(text, _DAY_FORM).replace(tzinfo=datetime.UTC).timestamp())


def _condition(dimension: Dimension, value: str) -> tuple[str, str]:
    return key_condition(value) if dimension == "key" else (f"{_COLUMNS[dimension]} = ?", value)


def _by_kind(calls: Iterable[CallRow]) -> dict[int, dict[Kind, list[int]]]:
    """Return sums by minute and kind: calls, of these without a price, tokens as in Sums, cost."""
    found: dict[int, dict[Kind, list[int]]] = {}
    last = -1
    of_minute: dict[Kind, list[int]] = {}
    for _, started_us, _, _, _, _, n_input, n_output, cached, written, _, reasoning, cost_nano, _, kind in calls:
        minute = started_us // _MINUTE_US
        if minute != last:
            last, of_minute = minute, found.setdefault(minute, {})
        sums = of_minute.get(kind)
        if sums is None:
            sums = of_minute[kind] = [0] * 8
        sums[0] += 1
        if cost_nano is None:
            sums[1] += 1
        else:
            sums[7] += cost_nano
        if n_input:
            sums[2] += n_input
        if n_output:
            sums[3] += n_output
        if cached:
            sums[4] += cached
        if written:
            sums[5] += written
        if reasoning:
            sums[6] += reasoning
    return found


def _add(found: dict[_Group, list[int]], group: _Group, sums: Sequence[int]) -> None:
    """Add to the sums of a group."""
    before = found.get(group)
    found[group] = list(sums) if before is None else [one + other for one, other in zip(before, sums, strict=True)]


def _rows(by_minute: Mapping[_Group, Sequence[int]]) -> list[Row]:
    """Return the rows that sums by minute add to, of each period."""
    rows: list[Row] = []
    for period, seconds in PERIODS.items():
        found: dict[_Group, Sequence[int]] = {}
        for (minute, *names), sums in by_minute.items():
            group = (minute * _MINUTE_S // seconds * seconds, *names)
            before = found.get(group)
            found[group] = sums if before is None else [one + other for one, other in zip(before, sums, strict=True)]
        rows += [(period, *group, *sums) for group, sums in found.items()]
    return rows


def _covered(since_s: int, until_s: int, periods: Sequence[Dimension]) -> Iterator[Span]:
    period, *shorter = periods
    length_s = PERIODS[period]
    first_s, last_s = -(-since_s // length_s) * length_s, until_s // length_s * length_s
    if not shorter:
        yield Span(period, since_s, until_s)
    elif first_s >= last_s:
        yield from _covered(since_s, until_s, shorter)
    else:
        if since_s < first_s:
            yield from _covered(since_s, first_s, shorter)
        yield Span(period, first_s, last_s)
        if last_s < until_s:
            yield from _covered(last_s, until_s, shorter)


def _labels(by: Sequence[Dimension], values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        _time(value, dimension) if dimension in PERIODS else str(value)
        for dimension, value in zip(by, values, strict=True)
    )


def _date(time_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(min(time_s, LAST_S), datetime.UTC)


def _time(start_s: int, period: Dimension) -> str:
    time = _date(start_s)
    return time.strftime(_DAY_FORM if period == "day" else _TIME_FORM)
