"""The store in SQLite: one file a day for calls, one for sums.

Knows: the files, their tables, and in which order they are written. Does not know: rings (collector.py), or who asks.

    ledger.db               sums by minute, hour and day; up to which record each ring is safe; names of records
    calls-2026-11-23.db     the calls that began on that day (UTC), and up to which record of each ring it has them

SQLite does not commit several files at once when they have write-ahead logs [1]. So each file keeps its own positions,
in the transaction of what they cover: the files of days are written first, ledger.db last. What comes again after a
crash is left out by those that have it. Only then may the ring forget it (`position`): with synchronous=FULL a commit
is on the disk.

A call whose process was killed may be recorded twice (shm/record_ring.py): the first one counts. Which was first is
read from its row, so that the same answer is found when the batch comes again. So is a call whose ring has lost its
name, and comes under another one.

A file may lose what it had committed, with its log (`-wal`) or by a copy that is older. ledger.db knows up to where
each day was written. What a file lacks is read again from the ring, as far as that still has it, and each file leaves
out what it has. A ledger.db that is not there is made anew from the files of days.

[1] https://www.sqlite.org/lang_attach.html
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from velox.ledger.record import (
    KEPT_NAMES,
    KEY_ID_CHARS,
    MOST_INTEGER,
    TAG_SEPARATOR,
    Call,
    CallRow,
    Flag,
    Kind,
    Tokens,
    key_id,
    row_of,
)
from velox.ledger.sqlite_file import connect, error_name, failing, transaction
from velox.ledger.store import (
    NOTHING,
    PERIODS,
    Batch,
    CallPlace,
    Carried,
    Dimension,
    StoreError,
    Sums,
    Total,
    UsageQuery,
)
from velox.ledger.totals import (
    DAY_S,
    KEPT_S,
    KEY_NAME,
    NOT_RECORDED,
    US,
    Row,
    added,
    carried,
    day_s,
    day_text,
    sums_of_text,
    sums_text,
    total_question,
    totals_of,
    without_agent,
)

__all__ = ["SUMS_FILE", "SUM_MIGRATIONS", "SqliteStore", "set_damaged_aside"]

SUMS_FILE: Final = "ledger.db"  # of a gateway's folder; the calls of a day are in a file of their own
_OPEN_DAYS: Final = 4
_TEXTS: Final = 4096  # numbers of texts that are remembered, a file
_KINDS: Final = 2048  # kinds whose values are remembered, a file and ring
# No more calls of a day are looked up by their keys, and sorted. More are soon met among all, which are in order.
_FEW: Final = 20_000

SUM_MIGRATIONS: Final = (
    """
CREATE TABLE ring (name TEXT PRIMARY KEY, position INTEGER NOT NULL, damaged INTEGER NOT NULL,
    dropped TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE name (ring TEXT NOT NULL, number INTEGER NOT NULL, text TEXT NOT NULL, PRIMARY KEY (ring, number))
    WITHOUT ROWID;
CREATE TABLE total (period TEXT NOT NULL, start INTEGER NOT NULL, key TEXT NOT NULL, upstream TEXT NOT NULL,
    model TEXT NOT NULL, n INTEGER NOT NULL, n_errors INTEGER NOT NULL, n_estimated INTEGER NOT NULL,
    n_unpriced INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL, cached INTEGER NOT NULL,
    cache_written INTEGER NOT NULL, reasoning INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (period, start, key, upstream, model)) WITHOUT ROWID
""",
    """
ALTER TABLE total RENAME TO total_1;
CREATE TABLE total (period TEXT NOT NULL, start INTEGER NOT NULL, key TEXT NOT NULL, team TEXT NOT NULL,
    user TEXT NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL, n INTEGER NOT NULL, n_errors INTEGER NOT NULL,
    n_estimated INTEGER NOT NULL, n_unpriced INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL,
    cached INTEGER NOT NULL, cache_written INTEGER NOT NULL, reasoning INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (period, start, key, team, user, upstream, model)) WITHOUT ROWID;
INSERT INTO total SELECT period, start, key, '', '', upstream, model, n, n_errors, n_estimated, n_unpriced, input,
    output, cached, cache_written, reasoning, cost_nano FROM total_1;
DROP TABLE total_1;
CREATE TABLE tag_total (period TEXT NOT NULL, start INTEGER NOT NULL, key TEXT NOT NULL, team TEXT NOT NULL,
    user TEXT NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL, tag TEXT NOT NULL, n INTEGER NOT NULL,
    n_errors INTEGER NOT NULL, n_estimated INTEGER NOT NULL, n_unpriced INTEGER NOT NULL, input INTEGER NOT NULL,
    output INTEGER NOT NULL, cached INTEGER NOT NULL, cache_written INTEGER NOT NULL, reasoning INTEGER NOT NULL,
    cost_nano INTEGER NOT NULL, PRIMARY KEY (period, start, tag, key, team, user, upstream, model)) WITHOUT ROWID
""",
    """
CREATE TABLE day (day TEXT NOT NULL, ring TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (day, ring))
    WITHOUT ROWID
""",
    # What was recorded before is of no agent.
    """
CREATE TABLE agent_total (period TEXT NOT NULL, start INTEGER NOT NULL, key TEXT NOT NULL, team TEXT NOT NULL,
    user TEXT NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL, agent TEXT NOT NULL, n INTEGER NOT NULL,
    n_errors INTEGER NOT NULL, n_estimated INTEGER NOT NULL, n_unpriced INTEGER NOT NULL, input INTEGER NOT NULL,
    output INTEGER NOT NULL, cached INTEGER NOT NULL, cache_written INTEGER NOT NULL, reasoning INTEGER NOT NULL,
    cost_nano INTEGER NOT NULL, PRIMARY KEY (period, start, agent, key, team, user, upstream, model)) WITHOUT ROWID;
INSERT INTO agent_total SELECT period, start, key, team, user, upstream, model, '', n, n_errors, n_estimated,
    n_unpriced, input, output, cached, cache_written, reasoning, cost_nano FROM total
""",
)
_DAY_MIGRATIONS: Final = (
    """
CREATE TABLE ring (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE text (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE call (process INTEGER NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, ring INTEGER NOT NULL,
    record INTEGER NOT NULL, endpoint INTEGER NOT NULL, status INTEGER NOT NULL, flags INTEGER NOT NULL,
    started_us INTEGER NOT NULL, first_byte_us INTEGER, duration_us INTEGER NOT NULL, key INTEGER NOT NULL,
    route INTEGER NOT NULL, upstream INTEGER NOT NULL, model INTEGER NOT NULL, upstream_model INTEGER NOT NULL,
    reason INTEGER NOT NULL, input INTEGER, output INTEGER, cached INTEGER, cache_written INTEGER,
    cache_written_1h INTEGER, reasoning INTEGER, cost_nano INTEGER, prices INTEGER NOT NULL,
    PRIMARY KEY (process, number, attempt)) WITHOUT ROWID;
CREATE INDEX call_started ON call (started_us)
""",
    """
ALTER TABLE call ADD COLUMN team INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN user INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN tags INTEGER NOT NULL DEFAULT 0
""",
    """
CREATE INDEX call_key ON call (key, started_us)
""",
    """
ALTER TABLE call ADD COLUMN account INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN path INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN tier INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN answered_model INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN price INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN audio_input INTEGER;
ALTER TABLE call ADD COLUMN audio_cached INTEGER;
ALTER TABLE call ADD COLUMN audio_output INTEGER;
ALTER TABLE call ADD COLUMN image_input INTEGER;
ALTER TABLE call ADD COLUMN image_output INTEGER;
ALTER TABLE call ADD COLUMN web_searches INTEGER;
ALTER TABLE call ADD COLUMN image_cached INTEGER
""",
    """
ALTER TABLE call ADD COLUMN sound_ms INTEGER;
ALTER TABLE call ADD COLUMN letters INTEGER;
ALTER TABLE call ADD COLUMN pictures INTEGER;
ALTER TABLE call ADD COLUMN video_ms INTEGER;
ALTER TABLE call ADD COLUMN pages INTEGER;
ALTER TABLE call ADD COLUMN annotated_pages INTEGER;
ALTER TABLE call ADD COLUMN search_units INTEGER
""",
    # A file without calls may have them in the order of their start from here on (_BY_TIME).
    "",
    """
ALTER TABLE call ADD COLUMN agent INTEGER NOT NULL DEFAULT 0
""",
)
# Calls in the order of their start: that of one before it is found by no index, and those that come stand at the end.
# A file that has calls keeps them as they are: to write them anew takes minutes for some million.
_BY_TIME: Final = """
DROP TABLE call;
CREATE TABLE call (process INTEGER NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, ring INTEGER NOT NULL,
    record INTEGER NOT NULL, endpoint INTEGER NOT NULL, status INTEGER NOT NULL, flags INTEGER NOT NULL,
    started_us INTEGER NOT NULL, first_byte_us INTEGER, duration_us INTEGER NOT NULL, key INTEGER NOT NULL,
    route INTEGER NOT NULL, upstream INTEGER NOT NULL, model INTEGER NOT NULL, upstream_model INTEGER NOT NULL,
    reason INTEGER NOT NULL, input INTEGER, output INTEGER, cached INTEGER, cache_written INTEGER,
    cache_written_1h INTEGER, reasoning INTEGER, cost_nano INTEGER, prices INTEGER NOT NULL, team INTEGER NOT NULL,
    user INTEGER NOT NULL, tags INTEGER NOT NULL, account INTEGER NOT NULL, path INTEGER NOT NULL,
    tier INTEGER NOT NULL, answered_model INTEGER NOT NULL, price INTEGER NOT NULL, audio_input INTEGER,
    audio_cached INTEGER, audio_output INTEGER, image_input INTEGER, image_output INTEGER, web_searches INTEGER,
    image_cached INTEGER, sound_ms INTEGER, letters INTEGER, pictures INTEGER, video_ms INTEGER, pages INTEGER,
    annotated_pages INTEGER, search_units INTEGER, agent INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (started_us, process, number, attempt)) WITHOUT ROWID;
CREATE INDEX call_key ON call (key, started_us)
"""
_DAY_US: Final = DAY_S * US
_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_REMEDY: Final = "stop the gateway, and run `velox usage --rebuild`, or put a copy of the file in its place"
_MOST_CHECKED: Final = 2_000_000  # calls of a day: to read more takes seconds
# Of a ring: sums were made anew, and the file of any day may lack what the ring still has.
_ANY_DAY: Final = ""
_CHECKED_DAYS: Final = 2  # in which calls may still have been written when a process was killed
_CHUNK: Final = 20_000
_N_USUAL: Final = 6  # kinds of tokens that stand together; the others came later
# As CallRow has them, and then as _DayFile._values() does. Most calls have none of the kinds that came later.
_COLUMNS: Final = (
    *("record", "started_us", "process", "number", "first_byte_us", "duration_us"),
    *("input", "output", "cached", "cache_written", "cache_written_1h", "reasoning", "cost_nano"),
    *("attempt", "ring", "endpoint", "status", "flags"),
    *("key", "route", "upstream", "model", "upstream_model", "reason"),
    *("prices", "team", "user", "tags", "account", "path", "tier", "answered_model", "price", "agent"),
)
_N_VALUES: Final = 13  # of a row that go into columns as they are
# Names of columns are ours in all that is put together here; what others give is a parameter.
_OTHERS: Final = (
    *("audio_input", "audio_cached", "audio_output", "image_input", "image_output", "web_searches", "image_cached"),
    *("sound_ms", "letters", "pictures", "video_ms", "pages", "annotated_pages", "search_units"),
)
_INSERTS: Final = {
    len(columns): f"INSERT OR IGNORE INTO call ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for columns in (_COLUMNS, _COLUMNS + _OTHERS)
}
# What is more than 64 bits would become a REAL in a row, and an error in a sum of rows.
_SET: Final = "ON CONFLICT DO UPDATE SET " + ", ".join(
    f"{name} = min({name} + excluded.{name}, {MOST_INTEGER})" for name in Sums._fields
)
_COUNTS: Final = ("n", "n_errors", "n_estimated", "n_unpriced")  # never near that, and read faster
_SUMS: Final = tuple(
    f"sum({name})"
    if name in _COUNTS
    else f"min(sum({name} >> 32) * {1 << 32} + sum({name} & {(1 << 32) - 1}), {MOST_INTEGER})"
    for name in Sums._fields
)
_ADD: Final = f"INSERT INTO total VALUES ({', '.join('?' * 17)}) {_SET}"
_ADD_BY_TAG: Final = f"INSERT INTO tag_total VALUES ({', '.join('?' * 18)}) {_SET}"
_ADD_BY_AGENT: Final = f"INSERT INTO agent_total VALUES ({', '.join('?' * 18)}) {_SET}"
_TABLES: Final = ("total", "tag_total", "agent_total")
_WHOLE_TABLES: Final = ("total", "agent_total")  # each of which has all calls, once


class SqliteStore:
    """The store of one gateway, in one folder.

    days: as long as calls are kept one by one. is_reader: only questions are asked, and nothing is made or changed.
    without_room: of a reader, also where the disk is full (connect()). tell: is given what was found wrong and mended.
    """

    def __init__(
        self,
        folder: Path,
        *,
        days: int,
        is_reader: bool = False,
        without_room: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder: Final = folder
        self._days_kept: Final = days
        self._how: Final = {"is_reader": is_reader, "without_room": without_room}
        self._days: dict[str, _DayFile] = {}
        self._behind: Final[list[tuple[str, str]]] = []  # day and ring of files that had lost something
        with _failing(folder / SUMS_FILE):
            self._sums: Final = connect(folder / SUMS_FILE, SUM_MIGRATIONS, **self._how)
        if not is_reader:
            self._migrate_days()
            with _failing(folder / SUMS_FILE):
                self._make_anew(tell)

    def __repr__(self) -> str:
        return f"<SqliteStore {self._folder}>"

    # -- writing --------------------------------------------------------------------------------

    def _migrate_days(self) -> None:
        """Bring files of past days to the newest schema: readers don't. One that can't be is told when it is read."""
        for path in self._paths():
            with contextlib.suppress(sqlite3.Error, StoreError, OSError):
                connect(path, _DAY_MIGRATIONS, is_reader=False).close()

    def _make_anew(self, tell: Callable[[str], None]) -> None:
        """Make sums from the files of days where there is none, nor a ring, though there are calls."""
        sums, paths = self._sums, self._paths()
        is_there = "SELECT EXISTS (SELECT 1 FROM ring) OR EXISTS (SELECT 1 FROM total)"
        if not paths or sums.execute(is_there).fetchone()[0]:
            return
        n_calls = 0
        with transaction(sums):
            if sums.execute(is_there).fetchone()[0]:
                return  # another process has just done it
            for path in paths:
                day = path.stem.removeprefix("calls-")
                sums.execute("SAVEPOINT one_day")
                try:
                    with _failing(path):
                        n_calls += self._add_day(day, sums)
                        positions = [(day, *each) for each in self._day(day).positions()]
                except StoreError as exc:
                    sums.execute("ROLLBACK TO one_day")
                    tell(f"the calls of {day} are in no sum: {exc}")
                    continue
                sums.executemany("INSERT INTO day VALUES (?, ?, ?)", positions)
            rings = "SELECT ring, max(position), 0, ? FROM day GROUP BY ring"
            sums.execute(f"INSERT INTO ring {rings}", (sums_text(NOTHING),))
            sums.execute("INSERT INTO day SELECT ?, name, 0 FROM ring", (_ANY_DAY,))
        if n_calls:
            tell(
                f"{self._folder / SUMS_FILE} was missing, or empty: sums of {n_calls} calls since"
                f" {paths[0].stem.removeprefix('calls-')} were made anew from the files of days; sums of days before"
                " are lost, unless you put a copy of it in its place"
            )

    def _add_day(self, day: str, sums: sqlite3.Connection) -> int:
        """Add all calls of a day to sums; return how many there are."""
        n, calls = 0, self._day(day).calls(CallPlace(0, -1, 0, 0), MOST_INTEGER, (), None)
        while some := list(islice(calls, _CHUNK)):
            n += len(some)
            rows = added(Batch("", 0, (), {}, 0), [row_of(0, call) for call in some], NOTHING)
            sums.executemany(_ADD, map(_bounded, rows.totals))
            sums.executemany(_ADD_BY_TAG, map(_bounded, rows.by_tag))
            sums.executemany(_ADD_BY_AGENT, map(_bounded, rows.by_agent))
        return n

    def reads_from(self, ring: str, oldest: int) -> int:
        """Return the first record that the file of some day has lost; what is before `oldest` can't be read again."""
        first = self.position(ring)
        with _failing(self._folder / SUMS_FILE):
            sql = "SELECT day, position FROM day WHERE ring = ? AND (position > ? OR day = ?)"
            rows = self._sums.execute(sql, (ring, oldest, _ANY_DAY)).fetchall()
        for day, written in rows:
            if day == _ANY_DAY:
                return 0
            if self._path(day).exists():  # else it was taken away
                with _failing(self._path(day)):
                    has = dict(self._day(day).positions()).get(ring, 0)
                if has < written:
                    first = min(first, has)
                    self._behind.append((day, ring))
        return first

    def check(self) -> list[str]:
        """Compare rows with sums of the last days; make sums anew that have less. Rows are never made from sums."""
        told: list[str] = []
        with _failing(self._folder / SUMS_FILE):
            with transaction(self._sums):
                self._sums.execute("DELETE FROM day WHERE day = ?", (_ANY_DAY,))
                # What was not in the ring any more is not looked for again.
                has = [dict(self._day(day).positions()).get(ring, 0) for day, ring in self._behind]
                now = [(position, *each) for position, each in zip(has, self._behind, strict=True)]
                self._sums.executemany("UPDATE day SET position = ? WHERE day = ? AND ring = ?", now)
            self._behind.clear()
            found = self._sums.execute("SELECT DISTINCT day FROM day ORDER BY day DESC LIMIT ?", (_CHECKED_DAYS,))
            days = [day for (day,) in found if self._path(day).exists()]
        for day in days:
            asked = UsageQuery(day_s(day), day_s(day) + DAY_S)
            n = sum(total.sums.n for total in self.totals(asked))
            with _failing(self._path(day)):
                counted = self._day(day).counted() if n <= _MOST_CHECKED else {}
            with _failing(self._folder / SUMS_FILE):
                told += self._check(day, counted)
        return told

    def _check(self, day: str, counted: Mapping[str, tuple[int, int]]) -> Iterator[str]:
        """Compare the sums of a day with what its rows have by upstream: calls, and cost."""
        sums, start, of_tables = self._sums, day_s(day), []
        for table in _WHOLE_TABLES:
            sql = (
                f"SELECT upstream, sum(n), sum(cost_nano) FROM {table} WHERE period = 'day' AND start = ? AND key <> ?"
            )
            rows = sums.execute(f"{sql} GROUP BY upstream", (start, NOT_RECORDED)).fetchall()
            of_tables.append({upstream: (n, cost) for upstream, n, cost in rows})
        known = of_tables[0]
        # Where sums have more, they tell of calls whose rows are lost. They stay: it was spent.
        missing = sum(max(known.get(name, (0, 0))[0] - n, 0) for name, (n, _) in counted.items())
        if missing:
            yield (
                f"{self._path(day)}: {missing} calls are in the sums, and their rows are lost: no `velox usage --calls`"
                " shows them"
            )
        less = any(
            any(map(int.__gt__, of_rows, each.get(name, (0, 0))))
            for each in of_tables
            for name, of_rows in counted.items()
        )
        if less and not missing:
            with transaction(sums):
                marks = ", ".join("?" * len(counted))
                for table in _TABLES:
                    where = f"start >= ? AND start < ? AND key <> ? AND upstream IN ({marks})"
                    values = (start, start + DAY_S, NOT_RECORDED, *counted)
                    for period in PERIODS:
                        sums.execute(f"DELETE FROM {table} WHERE period = ? AND {where}", (period, *values))
                n = self._add_day(day, sums)
            yield f"{self._folder / SUMS_FILE}: sums of {day} had less than its rows: made anew from {n} calls"

    def position(self, ring: str) -> int:
        """Return the number of the first record of a ring that is not safe."""
        with _failing(self._folder / SUMS_FILE):
            row = self._sums.execute("SELECT position FROM ring WHERE name = ?", (ring,)).fetchone()
        return 0 if row is None else int(row[0])

    def names(self, ring: str) -> dict[int, str]:
        """Return the texts that records of a ring refer to, by number, oldest first."""
        with _failing(self._folder / SUMS_FILE):
            rows = self._sums.execute("SELECT number, text FROM name WHERE ring = ? ORDER BY number", (ring,))
            return dict(rows.fetchall())

    def renew(self, ring: str, name: str, position: int) -> None:
        """Know a ring by another name, too: all before `position` is safe, what the old name has else holds for it."""
        sums = self._sums
        with _failing(self._folder / SUMS_FILE), transaction(sums):
            sums.execute("INSERT INTO ring SELECT ?, ?, 0, dropped FROM ring WHERE name = ?", (name, position, ring))
            sums.execute("INSERT INTO name SELECT ?, number, text FROM name WHERE ring = ?", (name, ring))

    def add(self, batch: Batch) -> None:
        """Keep records: all of them are safe when this returns. A batch may come again, whole or in part."""
        by_day = _by_day(batch.calls)
        counted: list[CallRow] = []
        for day, calls in by_day.items():
            with _failing(self._path(day)):
                counted += self._day(day).add(batch.ring, batch.end, calls)
        with _failing(self._folder / SUMS_FILE):
            self._add_sums(batch, counted, by_day)

    def _add_sums(self, batch: Batch, calls: Sequence[CallRow], days: Iterable[str]) -> None:
        sums = self._sums
        with transaction(sums):
            row = sums.execute("SELECT position, damaged, dropped FROM ring WHERE name = ?", (batch.ring,)).fetchone()
            position, damaged, dropped = (0, 0, NOTHING) if row is None else (row[0], row[1], sums_of_text(row[2]))
            rows = added(batch, _since(calls, position), dropped)
            sums.executemany(_ADD, map(_bounded, rows.totals))
            sums.executemany(_ADD_BY_TAG, map(_bounded, rows.by_tag))
            sums.executemany(_ADD_BY_AGENT, map(_bounded, rows.by_agent))
            if batch.names:
                names = [(batch.ring, number, text) for number, text in batch.names.items()]
                sums.executemany("INSERT OR REPLACE INTO name VALUES (?, ?, ?)", names)
                oldest = max(batch.names) - KEPT_NAMES
                sums.execute("DELETE FROM name WHERE ring = ? AND number <= ?", (batch.ring, oldest))
            values = (batch.ring, max(position, batch.end), damaged + batch.n_damaged, sums_text(batch.dropped))
            sums.execute("INSERT OR REPLACE INTO ring VALUES (?, ?, ?, ?)", values)
            written = (
                "INSERT INTO day VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET position = max(position, excluded.position)"
            )
            sums.executemany(written, [(day, batch.ring, batch.end) for day in days])

    def carry(self, upstream: str, rows: Iterable[Carried]) -> None:
        """Have the sums of an upstream that no call goes to be these, and no others."""
        with _failing(self._folder / SUMS_FILE), transaction(self._sums):
            for table in _WHOLE_TABLES:
                self._sums.execute(f"DELETE FROM {table} WHERE upstream = ?", (upstream,))
            found = [_bounded(row) for row in carried(upstream, rows)]
            self._sums.executemany(_ADD, found)
            self._sums.executemany(_ADD_BY_AGENT, map(without_agent, found))

    def newest_s(self) -> int | None:
        """Return when the last day ends of which there are calls: Unix time; None: there are none."""
        paths = self._paths()
        return day_s(paths[-1].stem.removeprefix("calls-")) + DAY_S if paths else None

    def prune(self, now_s: int) -> None:
        """Drop what is older than it is to be kept: files of days, and sums of short periods."""
        oldest = day_text((now_s - self._days_kept * DAY_S) * US)
        failure: StoreError | None = None  # of one file: the others are dropped all the same
        for path in self._paths():
            day = path.stem.removeprefix("calls-")
            if day < oldest:
                try:
                    self._drop_day(day, path)
                except StoreError as exc:
                    failure = exc
        with _failing(self._folder / SUMS_FILE), transaction(self._sums):
            for period, kept_s in KEPT_S.items():
                for table in _TABLES:
                    sql = f"DELETE FROM {table} WHERE period = ? AND start < ?"
                    self._sums.execute(sql, (period, now_s - kept_s))
            self._sums.execute("DELETE FROM day WHERE day < ?", (oldest,))
        if failure is not None:
            raise failure

    def _drop_day(self, day: str, path: Path) -> None:
        with _failing(path):
            found = self._days.pop(day, None)
            if found is not None:
                found.close()
            for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                each.unlink(missing_ok=True)

    # -- questions ------------------------------------------------------------------------------

    def totals(self, question: UsageQuery, after: Sequence[str] = (), most: int | None = None) -> list[Total]:
        """Return sums, in the order of their groups. Times are those of the shortest period that is asked for."""
        sql, values = total_question(question, *_TABLES, _SUMS, after, most)
        with _failing(self._folder / SUMS_FILE):
            return totals_of(question, self._sums.execute(sql, values))

    def calls(self, question: UsageQuery, after: CallPlace | None = None, most: int | None = None) -> Iterator[Call]:
        """Return calls in the order of their start, as far back as they are kept one by one."""
        since_us, until_us = question.since_s * US, question.until_s * US
        begin = CallPlace(since_us, -1, 0, 0)
        if after is not None and after > begin:
            begin, since_us = after, after.started_us
        first, last = day_text(since_us), day_text(until_us)
        where = tuple(each for each in question.where if each[0] not in PERIODS)
        has_tag = any(dimension == "tag" for dimension, _ in where)
        of_sums = tuple(each for each in where if not has_tag or each[0] != "agent")  # which have no two of these
        for path in self._paths():
            day = path.stem.removeprefix("calls-")
            if first <= day <= last:
                found = self.totals(UsageQuery(day_s(day), day_s(day) + DAY_S, ("key",), of_sums)) if where else ()
                if where and not found:
                    continue
                few = sum(total.sums.n for total in found) <= _FEW
                keys = [total.group[0] for total in found] if where and few else None
                with _failing(path):
                    yield from self._day(day).calls(begin, until_us, where, keys)

    def close(self) -> None:
        """Let go of all files."""
        for day in self._days.values():
            day.close()
        self._days.clear()
        self._sums.close()

    def _day(self, day: str) -> _DayFile:
        found = self._days.get(day)
        if found is None:
            if len(self._days) >= _OPEN_DAYS:
                self._days.pop(next(iter(self._days))).close()
            found = self._days[day] = _DayFile(self._path(day), **self._how)
        return found

    def _path(self, day: str) -> Path:
        return self._folder / f"calls-{day}.db"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("calls-????-??-??.db"))


def _by_day(calls: Sequence[CallRow]) -> dict[str, list[CallRow]]:
    """Return calls by the day on which they began."""
    numbers = {row[1] // _DAY_US for row in calls}
    if len(numbers) == 1:
        return {day_text(numbers.pop() * _DAY_US): list(calls)}
    found: dict[str, list[CallRow]] = {}
    for row in calls:
        found.setdefault(day_text(row[1] // _DAY_US * _DAY_US), []).append(row)
    return found


def _since(calls: Sequence[CallRow], record: int) -> Sequence[CallRow]:
    """Return the calls from a record on."""
    return calls if not calls or calls[0][0] >= record else [row for row in calls if row[0] >= record]


class _DayFile:
    """The calls of one day."""

    def __init__(self, path: Path, *, is_reader: bool, without_room: bool) -> None:
        self._db: Final = connect(path, _DAY_MIGRATIONS, is_reader=is_reader, without_room=without_room)
        self._texts: dict[str, int] = {}
        self._kinds: Final[dict[int, dict[Kind, tuple[int, ...]]]] = {}  # by the number of their ring
        if not is_reader:
            self._order_by_time()

    def _order_by_time(self) -> None:
        """Have calls in the order of their start, if there are none yet."""
        has_index = "SELECT 1 FROM sqlite_master WHERE name = 'call_started'"
        is_to_be = f"SELECT EXISTS ({has_index}) AND NOT EXISTS (SELECT 1 FROM call)"
        db = self._db
        if db.execute(is_to_be).fetchone()[0]:
            with transaction(db):
                if db.execute(is_to_be).fetchone()[0]:
                    for statement in _BY_TIME.split(";"):
                        db.execute(statement)

    def add(self, ring: str, end: int, calls: Sequence[CallRow]) -> list[CallRow]:
        """Keep the calls of a batch that ends before record `end`. Return those that count: no call counts twice."""
        db = self._db
        try:
            with transaction(db):
                ring_number = self._number(ring)
                row = db.execute("SELECT position FROM ring WHERE name = ?", (ring,)).fetchone()
                position = 0 if row is None else row[0]
                rows = self._rows(ring_number, _since(calls, position))
                n_before = db.total_changes
                for n, some in groupby(rows, len):  # in their order: of two of one call the first counts
                    db.executemany(_INSERTS[n], some)
                n_new = db.total_changes - n_before
                db.execute("INSERT OR REPLACE INTO ring VALUES (?, ?)", (ring, max(position, end)))
        except BaseException:
            self._texts.clear()  # those of the transaction that was rolled back
            self._kinds.clear()
            raise
        if n_new == len(calls):
            return list(calls)
        return [each for each in calls if self._has(ring_number, each)]

    def _has(self, ring: int, call: CallRow) -> bool:
        """Return True if it is this record of the call that was kept."""
        record, started_us, process, number = call[:4]
        row = self._db.execute(
            "SELECT ring, record FROM call WHERE started_us = ? AND process = ? AND number = ? AND attempt = ?",
            (started_us, process, number, call[-1].attempt),
        ).fetchone()
        return bool(row == (ring, record))

    def _rows(self, ring: int, calls: Iterable[CallRow]) -> list[tuple[int | None, ...]]:
        """Return the values of calls, as _INSERTS has their columns."""
        kinds = self._kinds.setdefault(ring, {})
        rows: list[tuple[int | None, ...]] = []
        for call in calls:
            kind = call[14]
            values = kinds.get(kind)
            if values is None:
                if len(kinds) >= _KINDS:
                    kinds.clear()
                values = kinds[kind] = self._values(ring, kind)
            others = call[13]
            rows.append(call[:_N_VALUES] + values + others if others else call[:_N_VALUES] + values)
        return rows

    def _values(self, ring: int, kind: Kind) -> tuple[int, ...]:
        """Return the values that calls of one kind have in common."""
        names, prices, team, user, tags, *told = kind.texts
        texts = (*names, prices, team, user, TAG_SEPARATOR.join(tags), *told)
        shape = (kind.attempt, ring, kind.endpoint, kind.status, int(kind.flags))
        return (*shape, *map(self._number, texts))

    def _number(self, text: str) -> int:
        """Return the number of a text, which is added where it is new."""
        number = self._texts.get(text)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO text (text) VALUES (?)", (text,))
            number = int(self._db.execute("SELECT number FROM text WHERE text = ?", (text,)).fetchone()[0])
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            self._texts[text] = number
        return number

    def positions(self) -> list[tuple[str, int]]:
        """Return up to which record of each ring calls are here."""
        return self._db.execute("SELECT name, position FROM ring").fetchall()

    def counted(self) -> dict[str, tuple[int, int]]:
        """Return the number of calls and their cost, by upstream."""
        sql = "SELECT text, count(*), coalesce(sum(cost_nano >> 32) * 4294967296 + sum(cost_nano & 4294967295), 0)"
        rows = self._db.execute(f"{sql} FROM call JOIN text ON text.number = call.upstream GROUP BY 1")
        return {text: (n, min(cost, MOST_INTEGER)) for text, n, cost in rows}

    def calls(
        self, begin: CallPlace, until_us: int, where: Iterable[tuple[Dimension, str]], keys: Sequence[str] | None
    ) -> Iterator[Call]:
        """Return calls behind `begin` in the order of their start. keys: those that such calls are of; None: any."""
        # A query that is under way keeps all that is read meanwhile at one state of the file: calls that are added now
        # may have texts that were not there yet.
        with contextlib.closing(self._db.execute("SELECT 0 UNION ALL SELECT number FROM text")):
            yield from self._calls(begin, until_us, where, keys)

    def _calls(
        self, begin: CallPlace, until_us: int, where: Iterable[tuple[Dimension, str]], keys: Sequence[str] | None
    ) -> Iterator[Call]:
        texts = dict(self._db.execute("SELECT number, text FROM text").fetchall())
        numbers = {text: number for number, text in texts.items()}
        texts[0] = ""  # of calls that an earlier Velox wrote
        conditions = ["(started_us, process, number, attempt) > (?, ?, ?, ?)", "started_us < ?"]
        values: list[int | str] = [*begin, until_us]
        if keys is not None:
            conditions.append("key IN (SELECT value FROM json_each(?))")
            values.append(json.dumps([numbers[key] for key in keys if key in numbers]))
        for dimension, value in where:
            if dimension in ("tag", "key"):
                column, fits = ("tags", _has_tag) if dimension == "tag" else ("+key", _is_key)
                # With a sign it is no column that has an index: all are met in the order of their start.
                conditions.append(f"{column} IN (SELECT value FROM json_each(?))")
                values.append(json.dumps([number for text, number in numbers.items() if fits(text, value)]))
            else:
                conditions.append(f"{dimension} = ?")
                values.append(numbers.get(value, -1))
        index = "" if keys is None else "INDEXED BY call_key"
        order = "started_us, process, number, attempt"
        sql = f"SELECT * FROM call {index} WHERE {' AND '.join(conditions)} ORDER BY {order}"
        for row in self._db.execute(sql, values):
            process, number, attempt, _, _, *rest = row
            endpoint, status, flags, started_us, first_byte_us, duration_us = rest[:6]
            key, route, upstream, model, upstream_model, reason = (texts[number] for number in rest[6:12])
            cost_nano = rest[18]
            prices, team, user, tags, *names = (texts[number] for number in rest[19:28])
            tokens, agent = Tokens(*rest[12:18], *rest[28:-1]), texts[rest[-1]]
            yield Call(
                *(process, number, attempt, endpoint, status, Flag(flags), started_us, first_byte_us, duration_us),
                *(key, route, upstream, model, upstream_model, reason, tokens, cost_nano, prices),
                *(team, user, tuple(tags.split(TAG_SEPARATOR)) if tags else (), *names, agent),
            )

    def close(self) -> None:
        self._db.close()


def set_damaged_aside(folder: Path, tell: Callable[[str], None]) -> None:
    """Give damaged files another name, while no gateway runs. What rings still have of a day comes again."""
    for path in (folder / SUMS_FILE, *sorted(folder.glob("calls-????-??-??.db"))):
        if not path.exists() or not (why := _damage_of(path)):
            continue
        for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            if each.exists():
                each.rename(f"{each}.damaged")
        if path.name != SUMS_FILE:
            with _failing(path):
                connect(path, _DAY_MIGRATIONS, is_reader=False).close()
        tell(f"{path} is damaged ({why}): it is {path.name}.damaged now")


def _damage_of(path: Path) -> str:
    """Return why a file is no sound database; "": it is one."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as exc:
        if error_name(exc) in _DAMAGED:
            return str(exc)
        raise StoreError(f"{path}: {exc}") from exc
    return "" if found == "ok" else found


@contextlib.contextmanager
def _failing(path: Path) -> Iterator[None]:
    """Say which file it is that failed, and what is to be done with a damaged one. Raises StoreError."""
    try:
        with failing(path):
            yield
    except StoreError as exc:
        if error_name(exc.__cause__) in _DAMAGED:
            raise StoreError(f"{exc}; {_REMEDY}") from exc.__cause__
        raise


def _bounded(row: Row) -> Row:
    """Return a row of sums as SQLite can hold it."""
    n = len(Sums._fields)
    return (*row[:-n], *(min(each, MOST_INTEGER) for each in row[-n:]))


def _is_key(text: str, asked: str) -> bool:
    """Tell whether a key is the one that is asked for: by its ID, whatever its name was then; else by its name."""
    id_ = key_id(asked)
    return text[:KEY_ID_CHARS] == id_ if id_ else asked in (text, text[KEY_NAME:])


def _has_tag(text: str, tag: str) -> bool:
    return tag in text.split(TAG_SEPARATOR)
