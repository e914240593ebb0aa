"""The store in PostgreSQL, which several gateways may share.

Knows: the tables, and that a batch is kept in one transaction. Does not know: how the database is asked
(postgres_database.py), or what sums are (totals.py).

    velox_call        calls, in a partition a day (UTC), so that a day is dropped without touching the others
    velox_total, velox_tag_total    sums by minute, hour and day
    velox_ring, velox_name          up to which record each ring is safe; names of records
    velox_object, velox_answer      what workers of all gateways know and keep together: made and pruned here alone
                                    (runtime/shared/objects_postgres.py, runtime/shared/answers_postgres.py)

Rings of several gateways have the same names, so each is known by its gateway and its name. Each gateway has sums of
its own, so none waits for another; who asks gets those of all.

A transaction that reads velox_call may stay open for hours (pg_dump, a report), and whoever waits for it with an ACCESS
EXCLUSIVE lock has all gateways wait behind him. CREATE TABLE ... PARTITION OF takes one, ATTACH PARTITION does not [1].
DROP TABLE does: it gives up soon, and the day is dropped another time.

[1] https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-ATTACH-PARTITION
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from velox.ledger.postgres_database import PostgresDatabase, Row, Transaction
from velox.ledger.record import (
    KEPT_NAMES,
    MOST_INTEGER,
    TAG_SEPARATOR,
    Call,
    CallRow,
    Flag,
    Tokens,
    call_of,
    key_id,
)
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
    US,
    added,
    carried,
    key_condition,
    sums_of_text,
    sums_text,
    total_question,
    totals_of,
    without_agent,
)

__all__ = ["PostgresStore", "numbered", "safe_text"]

_DAY_US: Final = DAY_S * US
_PAGE: Final = 5000
# Sums of money may be larger than a call's cost can be; of all others 2**63 is as good as more.
_COUNTS: Final = ", ".join(f"{name} bigint NOT NULL" for name in Sums._fields[:-1]) + ", cost_nano numeric NOT NULL"
_NAMES: Final = ("key", "team", '"user"', "upstream", "model")
_GROUP: Final = "gateway text NOT NULL, period text NOT NULL, start bigint NOT NULL, " + ", ".join(
    f'{name} text COLLATE "C" NOT NULL' for name in _NAMES
)
_PRIMARY: Final = f"period, start, {', '.join(_NAMES)}, gateway"
_TAG_PRIMARY: Final = f"period, start, tag, {', '.join(_NAMES)}, gateway"
_AGENT_PRIMARY: Final = f"period, start, agent, {', '.join(_NAMES)}, gateway"
# The name of a key in what calls have for it; of those that no client has, all of it.
_KEY_NAME: Final = "CASE WHEN key ~ '^[0-9a-f]{16} ' THEN substr(key, 18) ELSE key END"
_MIGRATIONS: Final = (
    f"""
CREATE TABLE velox_ring (gateway text NOT NULL, name text NOT NULL, position bigint NOT NULL, damaged bigint NOT NULL,
    dropped text NOT NULL, PRIMARY KEY (gateway, name));
CREATE TABLE velox_name (gateway text NOT NULL, ring text NOT NULL, number bigint NOT NULL, text text NOT NULL,
    PRIMARY KEY (gateway, ring, number));
CREATE TABLE velox_total ({_GROUP}, {_COUNTS}, PRIMARY KEY ({_PRIMARY}));
CREATE TABLE velox_tag_total ({_GROUP}, tag text COLLATE "C" NOT NULL, {_COUNTS},
    PRIMARY KEY ({_TAG_PRIMARY}));
CREATE TABLE velox_call (day integer NOT NULL, process bigint NOT NULL, number bigint NOT NULL,
    attempt integer NOT NULL, gateway text NOT NULL, endpoint integer NOT NULL, status integer NOT NULL,
    flags integer NOT NULL, started_us bigint NOT NULL, first_byte_us bigint, duration_us bigint NOT NULL,
    key text NOT NULL, route text NOT NULL, upstream text NOT NULL, model text NOT NULL, upstream_model text NOT NULL,
    reason text NOT NULL, input bigint, output bigint, cached bigint, cache_written bigint, cache_written_1h bigint,
    reasoning bigint, cost_nano bigint, prices text NOT NULL, team text NOT NULL, "user" text NOT NULL,
    tags text[] NOT NULL, PRIMARY KEY (day, process, number, attempt)) PARTITION BY RANGE (day);
CREATE INDEX velox_call_started ON velox_call (started_us, process, number, attempt);
CREATE INDEX velox_call_key ON velox_call (substr(key, 1, 16), started_us)
""",
    """
ALTER TABLE velox_call ADD COLUMN account text NOT NULL DEFAULT '', ADD COLUMN path text NOT NULL DEFAULT '',
    ADD COLUMN tier text NOT NULL DEFAULT '', ADD COLUMN answered_model text NOT NULL DEFAULT '',
    ADD COLUMN price text NOT NULL DEFAULT '', ADD COLUMN audio_input bigint, ADD COLUMN audio_cached bigint,
    ADD COLUMN audio_output bigint, ADD COLUMN image_input bigint, ADD COLUMN image_output bigint,
    ADD COLUMN web_searches bigint, ADD COLUMN image_cached bigint
""",
    f"""
CREATE INDEX velox_call_name ON velox_call (({_KEY_NAME}), started_us);
CREATE INDEX velox_call_team ON velox_call (team, started_us);
CREATE INDEX velox_call_user ON velox_call ("user", started_us);
CREATE INDEX velox_call_model ON velox_call (model, started_us);
CREATE INDEX velox_call_upstream ON velox_call (upstream, started_us);
CREATE INDEX velox_call_tags ON velox_call USING gin (tags);
CREATE INDEX velox_total_key ON velox_total (period, key, start)
""",
    """
ALTER TABLE velox_call ADD COLUMN sound_ms bigint, ADD COLUMN letters bigint, ADD COLUMN pictures bigint,
    ADD COLUMN video_ms bigint, ADD COLUMN pages bigint, ADD COLUMN annotated_pages bigint,
    ADD COLUMN search_units bigint
""",
    """
CREATE TABLE velox_object (tag bigint PRIMARY KEY, owner bigint NOT NULL, place bigint NOT NULL,
    noted timestamptz NOT NULL DEFAULT now());
CREATE INDEX velox_object_noted ON velox_object (noted);
CREATE UNLOGGED TABLE velox_answer (digest bytea PRIMARY KEY, value bytea NOT NULL, until timestamptz NOT NULL,
    made timestamptz NOT NULL, bytes integer GENERATED ALWAYS AS (octet_length(value)) STORED);
CREATE INDEX velox_answer_until ON velox_answer (until);
CREATE INDEX velox_answer_made ON velox_answer (made) INCLUDE (bytes)
""",
    # What was recorded before is of no agent.
    f"""
ALTER TABLE velox_call ADD COLUMN agent text NOT NULL DEFAULT '';
CREATE TABLE velox_agent_total ({_GROUP}, agent text COLLATE "C" NOT NULL, {_COUNTS}, PRIMARY KEY ({_AGENT_PRIMARY}));
INSERT INTO velox_agent_total SELECT gateway, period, start, {", ".join(_NAMES)}, '', {", ".join(Sums._fields)}
    FROM velox_total
""",
)
_NEWER_NAMES: Final = ("account", "path", "tier", "answered_model", "price", "agent")
_CALL_TYPES: Final[dict[str, str]] = {
    **dict.fromkeys(("day",), "integer"),
    **dict.fromkeys(("process", "number"), "bigint"),
    "attempt": "integer",
    "gateway": "text",
    **dict.fromkeys(("endpoint", "status", "flags"), "integer"),
    **dict.fromkeys(("started_us", "first_byte_us", "duration_us"), "bigint"),
    **dict.fromkeys(("key", "route", "upstream", "model", "upstream_model", "reason"), "text"),
    **dict.fromkeys(Tokens._fields, "bigint"),
    "cost_nano": "bigint",
    **dict.fromkeys(("prices", "team", '"user"', *_NEWER_NAMES, "tags"), "text"),
}
_GROUP_TYPES: Final = ("text", "text", "bigint", "text", "text", "text", "text", "text")
_SUM_TYPES: Final = (*("bigint",) * (len(Sums._fields) - 1), "numeric")


def _arrays(types: Iterable[str]) -> str:
    """Return parameters for the columns of rows."""
    return ", ".join(f"${number}::{each}[]" for number, each in enumerate(types, 1))


def _adding(table: str, tags: Sequence[str], key: str) -> str:
    types = (*_GROUP_TYPES, *tags, *_SUM_TYPES)
    cost, grown = Sums._fields[-1], "{0} = least({1}.{0}::numeric + excluded.{0}, {2})::bigint"
    sums = ", ".join(grown.format(name, table, MOST_INTEGER) for name in Sums._fields[:-1])
    sums += f", {cost} = {table}.{cost} + excluded.{cost}"
    return f"INSERT INTO {table} SELECT * FROM unnest({_arrays(types)}) ON CONFLICT ({key}) DO UPDATE SET {sums}"


_ADD: Final = _adding("velox_total", (), _PRIMARY)
_ADD_BY_TAG: Final = _adding(
    "velox_tag_total", ("text",), 'period, start, tag, key, team, "user", upstream, model, gateway'
)
_ADD_BY_AGENT: Final = _adding("velox_agent_total", ("text",), _AGENT_PRIMARY)
_TABLES: Final = ("velox_total", "velox_tag_total", "velox_agent_total")
_KEPT_CALLS: Final = ", ".join(_CALL_TYPES)
_INSERT: Final = (
    f"INSERT INTO velox_call ({_KEPT_CALLS}) SELECT {', '.join(list(_CALL_TYPES)[:-1])},"
    f" coalesce(string_to_array(nullif(tags, ''), '{TAG_SEPARATOR}'), '{{}}')"
    f" FROM unnest({_arrays(_CALL_TYPES.values())}) AS made ({_KEPT_CALLS})"
    " ON CONFLICT DO NOTHING RETURNING process, number, attempt"
)
_POSITION: Final = "SELECT position, damaged, dropped FROM velox_ring WHERE gateway = $1 AND name = $2"
_SET_POSITION: Final = (
    "INSERT INTO velox_ring VALUES ($1, $2, $3, $4, $5) ON CONFLICT (gateway, name)"
    " DO UPDATE SET position = $3, damaged = $4, dropped = $5"
)
_ADD_NAME: Final = (
    "INSERT INTO velox_name VALUES ($1, $2, $3, $4) ON CONFLICT (gateway, ring, number) DO UPDATE SET text = $4"
)
_PARTITIONS: Final = (
    "SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'velox_call'::regclass"
    " ORDER BY c.relname"
)
# Longer than PostgreSQL's deadlock_timeout (1s), after which autovacuum makes way.
_DROP: Final = (
    "SET LOCAL lock_timeout = '2s';"
    " DO $$ BEGIN DROP TABLE IF EXISTS {}; EXCEPTION WHEN lock_not_available THEN NULL; END $$"
)
_IS_THERE: Final = "SELECT to_regclass($1) IS NOT NULL"
_RENEW: Final = (
    "INSERT INTO velox_ring SELECT gateway, $3, $4, 0, dropped FROM velox_ring WHERE gateway = $1 AND name = $2"
)
_RENEW_NAMES: Final = (
    "INSERT INTO velox_name SELECT gateway, $3, number, text FROM velox_name WHERE gateway = $1 AND ring = $2"
)
# Behind all days.
_NO_DATE: Final = "velox_call_:"
# Of all advisory locks of a database, ours for partitions: "vdays" in ASCII.
_PARTITION_LOCK: Final = 0x7664617973


_OBJECTS_KEPT: Final = "interval '30 days'"


class PostgresStore:
    """The records of all gateways that share a database.

    gateway: whose rings are read. is_own: questions are answered by what this gateway recorded, not by what all did.
    days: as long as calls are kept one by one. is_reader: only questions are asked, and nothing is made or changed.
    """

    def __init__(self, url: str, *, gateway: str, days: int, is_reader: bool = False, is_own: bool = False) -> None:
        self._gateway: Final = gateway
        self._is_own: Final = is_own
        self._days_kept: Final = days
        self._days: set[int] = set()  # for which there is a partition
        self._database: Final = PostgresDatabase(url, "records", _MIGRATIONS, is_reader=is_reader)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._gateway} {self._database!r}>"

    # -- writing --------------------------------------------------------------------------------

    def position(self, ring: str) -> int:
        """Return the number of the first record of a ring that is not safe."""
        rows = self._database.rows(_POSITION, self._gateway, ring)
        return int(rows[0][0]) if rows else 0

    def reads_from(self, ring: str, oldest: int) -> int:
        """Return position(): rows, sums and position are of one transaction."""
        return self.position(ring)

    def check(self) -> list[str]:
        """Return nothing: rows and sums are of one transaction."""
        return []

    def names(self, ring: str) -> dict[int, str]:
        """Return the texts that records of a ring refer to, by number, oldest first."""
        sql = "SELECT number, text FROM velox_name WHERE gateway = $1 AND ring = $2 ORDER BY number"
        return {int(number): str(text) for number, text in self._database.rows(sql, self._gateway, ring)}

    def renew(self, ring: str, name: str, position: int) -> None:
        """Know a ring by another name, too: all before `position` is safe, what the old name has else holds for it."""
        with self._database.transaction() as transaction:
            transaction.execute(_RENEW, self._gateway, ring, name, position)
            transaction.execute(_RENEW_NAMES, self._gateway, ring, name)

    def add(self, batch: Batch) -> None:
        """Keep records: all of them are safe when this returns. A batch may come again, whole or in part."""
        try:
            self._make_partitions({row[1] // _DAY_US for row in batch.calls})
            with self._database.transaction() as transaction:
                self._add(transaction, batch)
        except StoreError:
            self._days.clear()  # another gateway may have dropped one
            raise

    def _add(self, transaction: Transaction, batch: Batch) -> None:
        found = transaction.rows(f"{_POSITION} FOR UPDATE", self._gateway, batch.ring)
        position, damaged, dropped = found[0] if found else (0, 0, sums_text(NOTHING))
        counted = self._keep(transaction, [row for row in batch.calls if row[0] >= position])
        rows = added(batch, counted, sums_of_text(dropped))
        self._add_sums(transaction, _ADD, rows.totals)
        self._add_sums(transaction, _ADD_BY_TAG, rows.by_tag)
        self._add_sums(transaction, _ADD_BY_AGENT, rows.by_agent)
        if batch.names:
            names = [(self._gateway, batch.ring, number, safe_text(text)) for number, text in batch.names.items()]
            transaction.execute_many(_ADD_NAME, names)
            sql = "DELETE FROM velox_name WHERE gateway = $1 AND ring = $2 AND number <= $3"
            transaction.execute(sql, self._gateway, batch.ring, max(batch.names) - KEPT_NAMES)
        values = (max(position, batch.end), damaged + batch.n_damaged, sums_text(batch.dropped))
        transaction.execute(_SET_POSITION, self._gateway, batch.ring, *values)

    def _keep(self, transaction: Transaction, rows: Sequence[CallRow]) -> list[CallRow]:
        """Keep calls; return those that count: of one that a killed process recorded twice the first."""
        if not rows:
            return []
        columns = zip(*(_row(self._gateway, call_of(row)) for row in rows), strict=True)
        kept = set(map(tuple, transaction.rows(_INSERT, *map(list, columns))))
        # Twice in one batch, too.
        first = {(row[2], row[3], row[-1].attempt): row for row in reversed(rows)}
        return [row for id_, row in first.items() if id_ in kept]

    def _add_sums(self, transaction: Transaction, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to sums. Names that differ only in what PostgreSQL can't hold are one."""
        found: dict[tuple[Any, ...], Sums] = {}
        n = len(Sums._fields)
        for row in rows:
            group = (self._gateway, *map(_asked, row[:-n]))
            found[group] = Sums(*row[-n:]).plus(found.get(group, NOTHING))
        if found:
            rows = [
                (*group, *(min(each, MOST_INTEGER) for each in sums[:-1]), sums.cost_nano)
                for group, sums in found.items()
            ]
            columns = zip(*rows, strict=True)
            transaction.execute(sql, *map(list, columns))

    def _make_partitions(self, days: set[int]) -> None:
        for day in sorted(days - self._days):
            with self._database.transaction() as transaction:
                transaction.execute("SELECT pg_advisory_xact_lock($1)", _PARTITION_LOCK)
                name, span = _partition(day), f"FROM ({day}) TO ({day + 1})"
                if (name,) not in map(tuple, transaction.rows(_PARTITIONS)):
                    transaction.execute(f"CREATE TABLE IF NOT EXISTS {name} (LIKE velox_call INCLUDING ALL)")
                    transaction.execute(f"ALTER TABLE velox_call ATTACH PARTITION {name} FOR VALUES {span}")
            self._days.add(day)

    def carry(self, upstream: str, rows: Iterable[Carried]) -> None:
        """Have the sums of an upstream that no call goes to be these, and no others."""
        with self._database.transaction() as transaction:
            for table in ("velox_total", "velox_agent_total"):
                transaction.execute(f"DELETE FROM {table} WHERE upstream = $1", upstream)
            found = carried(upstream, rows)
            self._add_sums(transaction, _ADD, found)
            self._add_sums(transaction, _ADD_BY_AGENT, list(map(without_agent, found)))

    def newest_s(self) -> int | None:
        """Return when the last day ends of which there are calls: Unix time; None: there are none."""
        names = [name for (name,) in self._database.rows(_PARTITIONS) if name < _NO_DATE]
        return (_day(names[-1]) + 1) * DAY_S if names else None

    def prune(self, now_s: int) -> None:
        """Drop what is older than it is to be kept: partitions of days, and sums of short periods."""
        oldest = _partition(now_s // DAY_S - self._days_kept)
        in_use = ""
        for (name,) in self._database.rows(_PARTITIONS):
            if name < oldest:
                with self._database.transaction() as transaction:
                    transaction.execute("SELECT pg_advisory_xact_lock($1)", _PARTITION_LOCK)
                    transaction.execute(_DROP.format(name))
                    if transaction.rows(_IS_THERE, name)[0][0]:
                        in_use = name
                        break  # it is the same with the others: each try holds records up
        self._days.clear()
        with self._database.transaction() as transaction:
            for period, kept_s in KEPT_S.items():
                for table in _TABLES:
                    sql = f"DELETE FROM {table} WHERE period = $1 AND start < $2"
                    transaction.execute(sql, period, now_s - kept_s)
            # As the database's clock has it: who wrote them went by that.
            transaction.execute(f"DELETE FROM velox_object WHERE noted < now() - {_OBJECTS_KEPT}")
            transaction.execute("DELETE FROM velox_answer WHERE until <= now()")
        if in_use:
            raise StoreError(f"{in_use} is in use, as by a query of velox_call that has not ended")

    # -- questions ------------------------------------------------------------------------------

    def totals(self, question: UsageQuery, after: Sequence[str] = (), most: int | None = None) -> list[Total]:
        """Return sums, in the order of their groups. Times are those of the shortest period that is asked for."""
        table, by_tag, by_agent = map(self._asked_of, _TABLES)
        sql, values = total_question(question, table, by_tag, by_agent, after=after, most=most)
        whose = (self._gateway,) if self._is_own else ()
        return totals_of(question, self._database.rows(numbered(sql), *whose, *map(_asked, values)))

    def _asked_of(self, table: str) -> str:
        return f"(SELECT * FROM {table} WHERE gateway = ?) AS own" if self._is_own else table

    def calls(self, question: UsageQuery, after: CallPlace | None = None, most: int | None = None) -> Iterator[Call]:
        """Return calls in the order of their start, as far back as they are kept one by one."""
        begin = CallPlace(question.since_s * US, -1, 0, 0)
        if after is not None and after > begin:
            begin = after
        until_us = question.until_s * US
        first, last = _partition(begin.started_us // _DAY_US), _partition(until_us // _DAY_US)
        where = [_condition(*each) for each in question.where if each[0] not in PERIODS]
        if self._is_own:
            where.append(("gateway = ?", self._gateway))
        conditions = "".join(f" AND {sql}" for sql, _ in where)
        size = _PAGE if most is None else min(most, _PAGE)
        # By itself, the row's comparison is no bound of an index that has but the start.
        sql = numbered(
            f"SELECT {_KEPT_CALLS} FROM velox_call WHERE day = ? AND started_us < ? AND started_us >= ?"
            f" AND (started_us, process, number, attempt) > (?, ?, ?, ?){conditions}"
            f" ORDER BY started_us, process, number, attempt LIMIT {size}"
        )
        values = [_asked(value) for _, value in where]
        for (name,) in self._database.rows(_PARTITIONS):
            if first <= name <= last:
                place = begin
                while True:
                    rows = self._database.rows(sql, _day(name), until_us, place.started_us, *place, *values)
                    yield from map(_call, rows)
                    if len(rows) < size:
                        break
                    _, process, number, attempt, *_ = rows[-1]
                    place = CallPlace(rows[-1][8], process, number, attempt)

    def close(self) -> None:
        """Let go of the connection."""
        self._database.close()


def numbered(sql: str) -> str:
    """Return SQL with `$1`, `$2`, ... for each `?`."""
    count = itertools.count(1)
    return "".join(f"${next(count)}" if char == "?" else char for char in sql)


def safe_text(text: str) -> str:
    """Return a text as PostgreSQL can hold it: NUL and halves of characters are replaced."""
    if "\0" not in text and text.isascii():
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _asked(value: object) -> object:
    return safe_text(value) if isinstance(value, str) else value


def _row(gateway: str, call: Call) -> Row:
    names = (call.key, call.route, call.upstream, call.model, call.upstream_model, call.reason)
    return (
        call.started_us // _DAY_US,
        call.process,
        call.number,
        call.attempt,
        gateway,
        call.endpoint,
        call.status,
        int(call.flags),
        call.started_us,
        call.first_byte_us,
        call.duration_us,
        *map(safe_text, names),
        *call.tokens,
        call.cost_nano,
        *map(safe_text, (call.prices, call.team, call.user)),
        *map(safe_text, (call.account, call.path, call.tier, call.answered_model, call.price, call.agent)),
        safe_text(TAG_SEPARATOR.join(call.tags)),
    )


def _call(row: Row) -> Call:
    _, process, number, attempt, _, endpoint, status, flags, started_us, first_byte_us, duration_us, *rest = row
    n = 6 + len(Tokens._fields)
    cost_nano, prices, team, user, *names, tags = rest[n:]
    return Call(
        *(process, number, attempt, endpoint, status, Flag(flags), started_us, first_byte_us, duration_us),
        *(*rest[:6], Tokens(*rest[6:n]), cost_nano, prices),
        *(team, user, tuple(tags), *names),
    )


def _condition(dimension: Dimension, value: str) -> tuple[str, str]:
    if dimension == "key":
        return key_condition(value) if key_id(value) else (f"({_KEY_NAME}) = ?", value)
    if dimension == "tag":
        return "tags @> ARRAY[?]", value
    return ('"user" = ?' if dimension == "user" else f"{dimension} = ?"), value


def _partition(day: int) -> str:
    """Return the name of the partition of a day since 1970; of times that have no date, one beyond all."""
    try:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(day)).strftime("velox_call_%Y%m%d")
    except OverflowError:
        return _NO_DATE


def _day(partition: str) -> int:
    date = datetime.datetime.strptime(partition, "velox_call_%Y%m%d").replace(tzinfo=datetime.UTC)
    return int(date.timestamp()) // DAY_S
