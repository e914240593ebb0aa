"""What `velox usage` prints, and which arguments it takes."""

from __future__ import annotations

import csv
import datetime
import json
from pathlib import Path

import pytest

from tests.unit.ledger.made import NOON_S, made_call, write, writer_of
from velox.cli import main
from velox.ledger.collector import Collector
from velox.ledger.record import Flag, row_of
from velox.ledger.report import call_rows, lines, total_rows
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, Sums, Total
from velox.runtime.commands.usage import ArgumentError, UsageArguments, usage_lines
from velox.shm.record_ring import RecordRing

NOW = datetime.datetime.fromtimestamp(NOON_S + 1800, datetime.UTC)
FORMULA = "=HYPERLINK(1) \x1b[2J"


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """Three calls, an hour apart, the earliest of a key whose name is a formula."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for n, key in enumerate(("00 ada", "00 ada", FORMULA)):
        write(writer, made_call(n, started_s=NOON_S - 3600 * n, key=key, cost_nano=None if n == 2 else 1_500))
    found = SqliteStore(tmp_path, days=30)
    Collector([RecordRing(path, 1)], found, lambda: NOON_S).collect()
    return found


def asked(**more: object) -> UsageArguments:
    return UsageArguments(**{"since": "30d", "until": None, "by": "key", "form": "table", **more})  # type: ignore[arg-type]


def test_table_is_aligned_and_safe_for_a_terminal(store: SqliteStore) -> None:
    """A cost is shown as far as prices are known, and how many calls have none."""
    first, *others = usage_lines(store, asked(), NOW)

    assert first.split() == [
        *("key", "calls", "errors", "estimated", "input_tokens", "output_tokens", "cached_tokens"),
        *("cache_written_tokens", "reasoning_tokens", "unpriced", "cost_usd"),
    ]
    assert [line.split() for line in others] == [
        ["00", "ada", "2", "0", "0", "200", "40", "80", "10", "14", "0", "0.000003000"],
        ["=HYPERLINK(1)", "?[2J", "1", "0", "0", "100", "20", "40", "5", "7", "1", "-"],
    ]
    assert len({len(line) for line in (first, *others)}) == 1


def test_table_of_calls_tells_their_times_as_people_do(store: SqliteStore) -> None:
    """CSV and JSON lines have microseconds, as the database does."""
    head, first, *_ = usage_lines(store, asked(calls=True), NOW)
    (row, *_) = map(json.loads, usage_lines(store, asked(calls=True, form="jsonl"), NOW))
    at = datetime.datetime.fromtimestamp(row["started_us"] / 1e6, datetime.UTC)
    assert head.split()[:3] == ["id", "attempt", "started"]
    assert f" {at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z " in first


def test_table_of_calls_has_no_empty_columns(store: SqliteStore) -> None:
    """Few calls have sound or pictures. CSV has the same columns each time."""
    head, *_ = usage_lines(store, asked(calls=True), NOW)
    assert "cached_tokens" in head.split() and "image_input_tokens" not in head.split()
    head, *_ = usage_lines(store, asked(calls=True, form="csv"), NOW)
    assert "image_input_tokens" in head.split(",")


@pytest.mark.parametrize("more", [{"by": "day,key"}, {"by": ""}, {"calls": True}])
def test_csv_tells_its_columns_also_of_a_time_without_calls(store: SqliteStore, more: dict[str, object]) -> None:
    """Who loads a file each night would fail at one without a line."""
    head, *rows = usage_lines(store, asked(form="csv", **more), NOW)
    assert rows
    assert list(usage_lines(store, asked(form="csv", since="2026-01-01", until="2026-01-02", **more), NOW)) == [head]
    assert not list(usage_lines(store, asked(form="jsonl", since="2026-01-01", until="2026-01-02", **more), NOW))


def test_csv_holds_no_formula(store: SqliteStore) -> None:
    """A spreadsheet shows the name, and does not run it."""
    rows = list(csv.DictReader(usage_lines(store, asked(form="csv"), NOW)))

    assert [row["key"] for row in rows] == ["00 ada", f"'{FORMULA}"]
    assert [row["cost_usd"] for row in rows] == ["0.000003000", ""]


def test_json_lines_of_calls(store: SqliteStore) -> None:
    """Oldest first, with all that is known of each."""
    rows = [json.loads(line) for line in usage_lines(store, asked(form="jsonl", calls=True), NOW)]

    assert [row["id"] for row in rows] == ["vx-0000abcd-2", "vx-0000abcd-1", "vx-0000abcd-0"]
    assert (rows[0]["cost_usd"], rows[1]["cost_usd"]) == (None, "0.000001500")
    assert (rows[0]["team"], rows[0]["user"], rows[0]["tags"]) == ("red", "ada@example.com", "batch,eu")
    assert (rows[0]["first_byte_ms"], rows[0]["duration_ms"]) == (300, 1200)


@pytest.mark.parametrize(
    ("since", "until", "n"),
    [
        ("1h", None, 2),
        ("0d", None, 3),
        ("2026-11-23", None, 3),
        ("2026-11-24", None, 0),
        ("2026-11-23T12:00", None, 1),
        ("2026-11-23T13:00+01:00", None, 1),
        ("30d", "2026-11-23T12:00", 2),
    ],
)
def test_times(store: SqliteStore, since: str, until: str | None, n: int) -> None:
    """A day and a time are UTC unless they say otherwise."""
    found = list(usage_lines(store, asked(since=since, until=until, by="", form="jsonl"), NOW))

    assert sum(json.loads(line)["calls"] for line in found) == n


@pytest.mark.parametrize("by", ["", "key", "day", "hour", "key,day"])
def test_last_24_hours_are_counted_whole(tmp_path: Path, by: str) -> None:
    """Also those of yesterday, whatever sums are grouped by; the day's name is that of yesterday."""
    store = SqliteStore(tmp_path, days=30)
    calls = [made_call(n, started_s=NOON_S - 3600 * hours) for n, hours in enumerate((1, 20, 24, 25))]
    store.add(Batch("r", len(calls), [row_of(n, call) for n, call in enumerate(calls)], {}, NOON_S))

    rows = [json.loads(line) for line in usage_lines(store, asked(since="24h", by=by, form="jsonl"), NOW)]
    assert sum(row["calls"] for row in rows) == 3
    if by == "day":
        assert [(row["day"], row["calls"]) for row in rows] == [("2026-11-22", 2), ("2026-11-23", 1)]


@pytest.mark.parametrize("since", ["2026-07-01T12:00", "2026-07-01"])
def test_hours_that_are_not_kept_have_no_row(store: SqliteStore, since: str) -> None:
    """They are missed by their rows: it is no wrong argument."""
    assert len(list(usage_lines(store, asked(since=since, by="hour", form="jsonl"), NOW))) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"since": "yesterday"}, "--since yesterday: expected a day"),
        ({"until": "24"}, "--until 24: expected a day"),
        ({"by": "key,teams"}, "--by key,teams: expected some of key, team"),
        ({"by": "key,key"}, "each once"),
        ({"by": "hour,day"}, "expected one of minute, hour and day"),
        ({"by": "key", "since": "2026-11-20T12:30"}, "--since, --until: expected times that begin an hour"),
        ({"by": "", "since": "2026-11-01", "until": "2026-11-20T12:30"}, "sums by minute are kept"),
        ({"by": "hour", "since": "2026-11-20T12:30"}, "expected times that begin an hour"),
        ({"by": "day", "since": "2026-07-01T12:00"}, r"begin a day"),
        ({"by": "team", "since": "2026-07-01T12:00"}, r"begin a day \(UTC\) where they are more than 90 days ago"),
    ],
)
def test_wrong_arguments_are_named(store: SqliteStore, more: dict[str, str], message: str) -> None:
    """Before anything is printed."""
    with pytest.raises(ArgumentError, match=message):
        usage_lines(store, asked(**more), NOW)


def test_nothing_is_said(store: SqliteStore) -> None:
    """Where nothing is there a table says so; CSV has its head alone, and JSON lines are none."""
    assert list(usage_lines(store, asked(model="none"), NOW)) == ["nothing is recorded of this time"]
    assert len(list(usage_lines(store, asked(model="none", form="csv"), NOW))) == 1


def test_flags_and_negative_amounts() -> None:
    """As words, in the order of their list."""
    (row,) = call_rows([made_call(1, flags=Flag.STREAM | Flag.LOST | Flag.ESTIMATED)])
    assert row["flags"] == "stream|estimated|lost"
    (row,) = total_rows(("model",), [Total(("m",), Sums(2, cost_nano=-1_500_000_000))])
    assert row["cost_usd"] == "-1.500000000"
    assert list(lines([], "csv")) == []


def test_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, also for an empty folder, which no gateway has used."""
    (tmp_path / "file").touch()
    for name, what in (
        ("nowhere", "no gateway has recorded anything yet in {}"),
        ("", "no gateway has recorded anything yet in {}"),
        ("file", "{} is no folder"),
    ):
        folder = tmp_path / name
        assert main(["usage"], {"VELOX_LEDGER": str(folder), "VELOX_AUTH": "none"}) == 1
        told = what.format(f"{folder} (VELOX_LEDGER)")
        assert capsys.readouterr().err == f"velox usage: {told}\n"


@pytest.mark.parametrize("by", ["", "key", "team,model", "day"])
def test_month_is_summed_up_from_what_is_kept_of_it(tmp_path: Path, by: str) -> None:
    """Sums by minute are gone after two days: a question without an end is not answered from them."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for days in (0, 1, 5, 20):
        write(writer, made_call(days, started_s=NOON_S - 86_400 * days))
    store = SqliteStore(tmp_path, days=30)
    Collector([RecordRing(path, 1)], store, lambda: NOON_S).collect()
    store.prune(NOON_S)

    found = [json.loads(line) for line in usage_lines(store, asked(by=by, form="jsonl"), NOW)]
    assert sum(row["calls"] for row in found) == 4
