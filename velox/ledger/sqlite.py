"""The store in SQLite: one file a day for calls, one for sums.

Knows: the files, their tables, and in which order they are written. Does not know: rings (collector.py), or who asks.

    ledger.db               sums by minute, hour and day; up to which record each ring is safe; names of records
    calls-2026-11-23.db     the calls that began on that day (UTC), and up to which record of each ring it has them

SQLite does not commit several files at once when they have write-ahead logs [1]. So each file keeps its own positions,
in the transaction of what they cover: the files of days are written first, ledger.db last. What comes again after a
crash is left out by those that have it. Only then may the ring forget it (`position`): with synchronous=FULL a commit
is on the disk.

A call whose process was killed may be recorded twice (shm/record_ring.py): the first one counts. Which was first is
read from its row, so that the same answer is found when the batch comes again.

[1] https://www.sqlite.org/lang_attach.html
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from velox.ledger.record import KEPT_NAMES, KEY_ID_CHARS, MOST_INTEGER, TAG_SEPARATOR, Call, Flag, Tokens, key_id
from velox.ledger.sqlite_file import connect, failing, transaction
from velox.ledger.store import (
    NOTHING,
    PERIODS,
    Batch,
    CallPlace,
    Carried,
    Dimension,
    Numbered,
    Question,
    StoreError,
    Sums,
    Total,
)
from velox.ledger.totals import (
    DAY_S,
    KEPT_S,
    KEY_NAME,
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
)

__all__ = ["SUMS_FILE", "SqliteStore"]

SUMS_FILE: Final = "ledger.db"  # of a gateway's folder; the calls of a day are in a file of their own
_OPEN_DAYS: Final = 4
_TEXTS: Final = 4096  # numbers of texts that are remembered, a file
# No more calls of a day are looked up by their keys, and sorted. More are soon met among all, which are in order.
_FEW: Final = 20_000

_SUM_MIGRATIONS: Final = (
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
)
_N_USUAL: Final = 6  # kinds of tokens that stand together; the others came later
_N_CALL: Final = 40
# Names of columns are ours in all that is put together here; what others give is a parameter.
_INSERT: Final = f"INSERT OR IGNORE INTO call VALUES ({', '.join('?' * _N_CALL)})"
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


class SqliteStore:
    """The store of one gateway, in one folder.

    days: as long as calls are kept one by one. is_reader: only questions are asked, and nothing is made or changed.
    without_room: of a reader, also where the disk is full (connect()).
    """

    def __init__(self, folder: Path, *, days: int, is_reader: bool = False, without_room: bool = False) -> None:
        self._folder: Final = folder
        self._days_kept: Final = days
        self._how: Final = {"is_reader": is_reader, "without_room": without_room}
        self._days: dict[str, _DayFile] = {}
        with failing(folder / SUMS_FILE):
            self._sums: Final = connect(folder / SUMS_FILE, _SUM_MIGRATIONS, **self._how)
        if not is_reader:
            self._migrate_days()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._folder}>"

    # -- writing --------------------------------------------------------------------------------

    def _migrate_days(self) -> None:
        """Bring files of past days to the newest schema: readers don't. One that can't be is told when it is read."""
        for path in self._paths():
            with contextlib.suppress(sqlite3.Error, StoreError, OSError):
                connect(path, _DAY_MIGRATIONS, is_reader=False).close()

    def position(self, ring: str) -> int:
        """Return the number of the first record of a ring that is not safe."""
        with failing(self._folder / SUMS_FILE):
            row = self._sums.execute("SELECT position FROM ring WHERE name = ?", (ring,)).fetchone()
        return 0 if row is None else int(row[0])

    def names(self, ring: str) -> dict[int, str]:
        """Return the texts that records of a ring refer to, by number, oldest first."""
        with failing(self._folder / SUMS_FILE):
            rows = self._sums.execute("SELECT number, text FROM name WHERE ring = ? ORDER BY number", (ring,))
            return dict(rows.fetchall())

    def renew(self, ring: str, name: str, position: int) -> None:
        """Know a ring by another name, too: all before `position` is safe, what the old name has else holds for it."""
        sums = self._sums
        with failing(self._folder / SUMS_FILE), transaction(sums):
            sums.execute("INSERT INTO ring SELECT ?, ?, 0, dropped FROM ring WHERE name = ?", (name, position, ring))
            sums.execute("INSERT INTO name SELECT ?, number, text FROM name WHERE ring = ?", (name, ring))

    def add(self, batch: Batch) -> None:
        """Keep records: all of them are safe when this returns. A batch may come again, whole or in part."""
        by_day: dict[str, list[Numbered]] = {}
        for numbered in batch.calls:
            by_day.setdefault(day_text(numbered.call.started_us), []).append(numbered)
        counted: list[Numbered] = []
        for day, calls in by_day.items():
            with failing(self._path(day)):
                counted += self._day(day).add(batch.ring, batch.end, calls)
        with failing(self._folder / SUMS_FILE):
            self._add_sums(batch, counted)

    def _add_sums(self, batch: Batch, calls: Sequence[Numbered]) -> None:
        sums = self._sums
        with transaction(sums):
            row = sums.execute("SELECT position, damaged, dropped FROM ring WHERE name = ?", (batch.ring,)).fetchone()
            position, damaged, dropped = (0, 0, NOTHING) if row is None else (row[0], row[1], sums_of_text(row[2]))
            rows = added(batch, [call for number, call in calls if number >= position], dropped)
            sums.executemany(_ADD, map(_bounded, rows.totals))
            sums.executemany(_ADD_BY_TAG, map(_bounded, rows.by_tag))
            if batch.names:
                names = [(batch.ring, number, text) for number, text in batch.names.items()]
                sums.executemany("INSERT OR REPLACE INTO name VALUES (?, ?, ?)", names)
                oldest = max(batch.names) - KEPT_NAMES
                sums.execute("DELETE FROM name WHERE ring = ? AND number <= ?", (batch.ring, oldest))
            values = (batch.ring, max(position, batch.end), damaged + batch.n_damaged, sums_text(batch.dropped))
            sums.execute("INSERT OR REPLACE INTO ring VALUES (?, ?, ?, ?)", values)

    def carry(self, upstream: str, rows: Iterable[Carried]) -> None:
        """Have the sums of an upstream that no call goes to be these, and no others."""
        with failing(self._folder / SUMS_FILE), transaction(self._sums):
            self._sums.execute("DELETE FROM total WHERE upstream = ?", (upstream,))
            self._sums.executemany(_ADD, map(_bounded, carried(upstream, rows)))

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
        with failing(self._folder / SUMS_FILE), transaction(self._sums):
            for period, kept_s in KEPT_S.items():
                for table in ("total", "tag_total"):
                    sql = f"DELETE FROM {table} WHERE period = ? AND start < ?"
                    self._sums.execute(sql, (period, now_s - kept_s))
        if failure is not None:
            raise failure

    def _drop_day(self, day: str, path: Path) -> None:
        with failing(path):
            found = self._days.pop(day, None)
            if found is not None:
                found.close()
            for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                each.unlink(missing_ok=True)

    # -- questions ------------------------------------------------------------------------------

    def totals(self, question: Question, after: Sequence[str] = (), most: int | None = None) -> list[Total]:
        """Return sums, in the order of their groups. Times are those of the shortest period that is asked for."""
        sql, values = total_question(question, "total", "tag_total", _SUMS, after, most)
        with failing(self._folder / SUMS_FILE):
            return totals_of(question, self._sums.execute(sql, values))

    def calls(self, question: Question, after: CallPlace | None = None, most: int | None = None) -> Iterator[Call]:
        """Return calls in the order of their start, as far back as they are kept one by one."""
        since_us, until_us = question.since_s * US, question.until_s * US
        begin = CallPlace(since_us, -1, 0, 0)
        if after is not None and after > begin:
            begin, since_us = after, after.started_us
        first, last = day_text(since_us), day_text(until_us)
        where = tuple(each for each in question.where if each[0] not in PERIODS)
        for path in self._paths():
            day = path.stem.removeprefix("calls-")
            if first <= day <= last:
                found = self.totals(Question(day_s(day), day_s(day) + DAY_S, ("key",), where)) if where else ()
                if where and not found:
                    continue
                few = sum(total.sums.n for total in found) <= _FEW
                keys = [total.group[0] for total in found] if where and few else None
                with failing(path):
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


class _DayFile:
    """The calls of one day."""

    def __init__(self, path: Path, *, is_reader: bool, without_room: bool) -> None:
        self._db: Final = connect(path, _DAY_MIGRATIONS, is_reader=is_reader, without_room=without_room)
        self._texts: dict[str, int] = {}

    def add(self, ring: str, end: int, calls: Sequence[Numbered]) -> list[Numbered]:
        """Keep the calls of a batch that ends before record `end`. Return those that count: no call counts twice."""
        db = self._db
        try:
            with transaction(db):
                ring_number = self._number(ring)
                row = db.execute("SELECT position FROM ring WHERE name = ?", (ring,)).fetchone()
                position = 0 if row is None else row[0]
                rows = [self._row(ring_number, *each) for each in calls if each.number >= position]
                db.executemany(_INSERT, rows)
                db.execute("INSERT OR REPLACE INTO ring VALUES (?, ?)", (ring, max(position, end)))
        except BaseException:
            self._texts.clear()  # those of the transaction that was rolled back
            raise
        return [each for each in calls if not each.call.flags & Flag.RECOVERED or self._has(ring_number, *each)]

    def _has(self, ring: int, record: int, call: Call) -> bool:
        """Return True if it is this record of the call that was kept."""
        row = self._db.execute(
            "SELECT ring, record FROM call WHERE process = ? AND number = ? AND attempt = ?",
            (call.process, call.number, call.attempt),
        ).fetchone()
        return bool(row == (ring, record))

    def _row(self, ring: int, record: int, call: Call) -> tuple[Any, ...]:
        names = (call.key, call.route, call.upstream, call.model, call.upstream_model, call.reason)
        return (
            call.process,
            call.number,
            call.attempt,
            ring,
            record,
            call.endpoint,
            call.status,
            int(call.flags),
            call.started_us,
            call.first_byte_us,
            call.duration_us,
            *map(self._number, names),
            *call.tokens[:_N_USUAL],
            call.cost_nano,
            *map(self._number, (call.prices, call.team, call.user, TAG_SEPARATOR.join(call.tags))),
            *map(self._number, (call.account, call.path, call.tier, call.answered_model, call.price)),
            *call.tokens[_N_USUAL:],
        )

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

    def calls(
        self, begin: CallPlace, until_us: int, where: Iterable[tuple[Dimension, str]], keys: Sequence[str] | None
    ) -> Iterator[Call]:
        """Return calls behind `begin` in the order of their start. keys: those that such calls are of; None: any."""
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
                column, fits = ("tags", _has_tag) if dimension == "tag" else ("key", _is_key)
                conditions.append(f"{column} IN (SELECT value FROM json_each(?))")
                values.append(json.dumps([number for text, number in numbers.items() if fits(text, value)]))
            else:
                conditions.append(f"{dimension} = ?")
                values.append(numbers.get(value, -1))
        index = "call_started" if keys is None else "call_key"
        order = "started_us, process, number, attempt"
        sql = f"SELECT * FROM call INDEXED BY {index} WHERE {' AND '.join(conditions)} ORDER BY {order}"
        for row in self._db.execute(sql, values):
            process, number, attempt, _, _, *rest = row
            endpoint, status, flags, started_us, first_byte_us, duration_us = rest[:6]
            key, route, upstream, model, upstream_model, reason = (texts[number] for number in rest[6:12])
            cost_nano = rest[18]
            prices, team, user, tags, *names = (texts[number] for number in rest[19:28])
            tokens = Tokens(*rest[12:18], *rest[28:])
            yield Call(
                *(process, number, attempt, endpoint, status, Flag(flags), started_us, first_byte_us, duration_us),
                *(key, route, upstream, model, upstream_model, reason, tokens, cost_nano, prices),
                *(team, user, tuple(tags.split(TAG_SEPARATOR)) if tags else (), *names),
            )

    def close(self) -> None:
        self._db.close()


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
