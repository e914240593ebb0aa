"""What `velox usage` prints: sums or single calls, as a table, CSV or JSON lines.

Knows: columns, and how a cell is written safely. Does not know: where the figures are from (store.py), or arguments.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from velox.ledger.record import Call, Flag
from velox.ledger.store import Dimension, Sums, Total
from velox.types import Endpoint

__all__ = ["CALL_NAMES", "TOKEN_NAMES", "Format", "call_rows", "lines", "total_names", "total_rows"]

Format: TypeAlias = Literal["table", "csv", "jsonl"]
Row: TypeAlias = dict[str, str | int | None]

# Programs that open CSV take a cell for a formula if it begins so. A key's or a model's name is a stranger's text.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NANO: Final = 1_000_000_000
_ENDPOINTS: Final = {endpoint.value: endpoint.name.lower() for endpoint in Endpoint}
_1970: Final = datetime.datetime(1970, 1, 1)
# The columns of call_rows(), and those of total_rows() beside what it groups by.
TOKEN_NAMES: Final = (
    *("input_tokens", "output_tokens", "cached_tokens", "cache_written_tokens", "cache_written_1h_tokens"),
    *("reasoning_tokens", "audio_input_tokens", "audio_cached_tokens", "audio_output_tokens", "image_input_tokens"),
    *("image_output_tokens", "web_searches", "image_cached_tokens", "audio_ms", "characters", "pictures", "video_ms"),
    *("pages", "annotated_pages", "search_units"),
)
CALL_NAMES: Final = (
    *(
        "id",
        "attempt",
        "started_us",
        "key",
        "key_id",
        "team",
        "user",
        "tags",
        "agent",
        "endpoint",
        "path",
        "route",
        "upstream",
    ),
    *("model", "upstream_model", "answered_model", "tier", "status", "reason", "flags", "first_byte_ms", "duration_ms"),
    *TOKEN_NAMES,
    *("cost_usd", "cost_state", "price", "prices"),
)
_SUM_NAMES: Final = (
    *("calls", "errors", "estimated", "input_tokens", "output_tokens", "cached_tokens", "cache_written_tokens"),
    *("reasoning_tokens", "unpriced", "cost_usd"),
)


def total_names(by: Sequence[Dimension]) -> Sequence[str]:
    """Return the columns of total_rows()."""
    return (*by, *_SUM_NAMES)


def total_rows(by: Sequence[Dimension], totals: Iterable[Total]) -> Iterator[Row]:
    """Return one row for each group."""
    names = total_names(by)
    for total in totals:
        sums = total.sums
        tokens = (sums.input, sums.output, sums.cached, sums.cache_written, sums.reasoning)
        numbers = (sums.n, sums.n_errors, sums.n_estimated, *tokens, sums.n_unpriced)
        yield dict(zip(names, (*total.group, *numbers, _cost_of(sums)), strict=True))


def call_rows(calls: Iterable[Call]) -> Iterator[Row]:
    """Return one row for each call."""
    told: dict[Flag, str] = {}  # few calls have others than those before
    for call in calls:
        flags = told.get(call.flags)
        if flags is None:
            flags = told[call.flags] = "|".join(flag.name.lower() for flag in Flag if flag in call.flags and flag.name)
        values = (
            call.id,
            call.attempt,
            call.started_us,
            call.key,
            call.key_id,
            call.team,
            call.user,
            ",".join(call.tags),
            call.agent,
            _ENDPOINTS.get(call.endpoint, "other"),
            call.path,
            call.route,
            call.upstream,
            call.model,
            call.upstream_model,
            call.answered_model,
            call.tier,
            call.status,
            call.reason,
            flags,
            None if call.first_byte_us is None else call.first_byte_us // 1000,
            call.duration_us // 1000,
            *call.tokens,
            None if call.cost_nano is None else _usd(call.cost_nano),
            "unknown" if call.cost_nano is None else "estimated" if call.flags & Flag.ESTIMATED else "exact",
            call.price,
            call.prices,
        )
        yield dict(zip(CALL_NAMES, values, strict=True))


def lines(rows: Iterable[Row], form: Format, names: Sequence[str] = ()) -> Iterator[str]:
    """Return what is printed, line by line; a table only when all rows are there.

    names: of the columns, for CSV without a row: who reads it wants to know them then, too.
    """
    if form == "jsonl":
        yield from (json.dumps(row, ensure_ascii=False) for row in rows)
        return
    if form == "csv":
        yield from _csv(rows, names)
        return
    yield from _table(_filled([_for_people(row) for row in rows]))


def _csv(rows: Iterable[Row], names: Sequence[str] | None) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="")

    def line(values: Iterable[str | int | None]) -> str:
        text.seek(0)
        text.truncate()
        writer.writerow([_safe(value) for value in values])
        return text.getvalue()

    for row in rows:
        if names is not None:
            yield line(row)
        names = None
        yield line(row.values())
    if names:
        yield line(names)


def _safe(value: str | int | None) -> str | int:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


def _table(rows: list[Row]) -> Iterator[str]:
    if not rows:
        yield "nothing is recorded of this time"
        return
    names = list(rows[0])
    cells = [names, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(names))]
    is_number = [isinstance(rows[0][name], int) or name.endswith("usd") for name in names]
    for line in cells:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _for_people(row: Row) -> Row:
    """Return a row with the time of a call as a date and a time of day, UTC."""
    started_us = row.get("started_us")
    if not isinstance(started_us, int):
        return row
    at = _1970 + datetime.timedelta(microseconds=started_us)
    text = f"{at.isoformat(timespec='milliseconds')}Z"
    return {("started" if name == "started_us" else name): text if name == "started_us" else row[name] for name in row}


def _filled(rows: list[Row]) -> list[Row]:
    """Return rows without the columns that no row has a value in: few calls have them all."""
    empty = {name for name in (rows[0] if rows else ()) if all(row[name] in (None, "") for row in rows)}
    return [{name: value for name, value in row.items() if name not in empty} for row in rows]


def _shown(value: str | int | None) -> str:
    """Return a cell of a table, without characters that move a terminal's cursor."""
    if value is None:
        return "-"
    text = f"{value:,}" if isinstance(value, int) else value
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text or "-"


def _cost_of(sums: Sums) -> str | None:
    return None if sums.n_unpriced == sums.n and not sums.cost_nano else _usd(sums.cost_nano)


def _usd(nano: int) -> str:
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    return f"{sign}{nano // _NANO}.{nano % _NANO:09d}"
