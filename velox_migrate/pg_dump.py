"""Rows of chosen tables out of what pg_dump writes as plain SQL: into a file before, or now.

Knows: COPY blocks, INSERT statements, and where a statement ends. Does not know: what a table is for.

Other tables are skipped as they stream by, but never searched: a prompt that somebody sent may hold lines which look
like statements. So quotes are counted, and a COPY block ends only at its end mark. A dump that was cut off is refused:
what is missing could be a limit.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["DumpError", "Row", "parse_array", "read_database", "read_dump"]

Row: TypeAlias = Mapping[str, str | None]

_COPY: Final = re.compile(r"COPY (?:\S+\.)?(\"[^\"]+\"|\w+) \((.*)\) FROM stdin;")
_CREATE: Final = re.compile(r"CREATE (?:UNLOGGED )?TABLE (?:\S+\.)?(\"[^\"]+\"|\w+) \(")
_COLUMN: Final = re.compile(r"\s+(\"[^\"]+\"|[a-z_][a-z0-9_$]*) ")
_INSERT: Final = re.compile(
    r"INSERT INTO (?:\S+\.)?(\"[^\"]+\"|\w+) (?:\(([^)]*)\) )?(?:OVERRIDING SYSTEM VALUE )?VALUES"
)
_NAME: Final = re.compile(r"\"[^\"]+\"|\w+")
# A text of megabytes is matched without a note of each of its characters: `++` and `*+` never go back.
_TOKEN: Final = re.compile(r"\s*(?:(E?)'((?:[^']++|'')*+)'|([(),;])|([^\s'(),;]+))(?:::[\w\" \[\]]+(?=\s*[,)]))?")
_DOLLARS: Final = re.compile(r"\$(?:[A-Za-z_]\w*)?\$")
_ESCAPE: Final = re.compile(r"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ENCODING: Final = re.compile(r"SET client_encoding = '([^']*)';")
_END: Final = "-- PostgreSQL database dump complete"
_PARAMETERS: Final = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
_MOST_SAID: Final = 500
_MOST_SKIPPED: Final = 1 << 20  # characters at once
_EVERY: Final = 1 << 24  # characters between two words on how far it has come


class DumpError(Exception):
    """A dump can't be read. The message says why, and what to do; it never shows what is in a row."""


def read_dump(
    path: Path, tables: Collection[str], tell: Callable[[int], None] = lambda _done: None
) -> Iterator[tuple[str, Row]]:
    """Yield the table and the values of each row of these tables, as they are in the dump. Raises DumpError.

    A value is a text as PostgreSQL writes it; None for NULL. tell: is called with the characters read, now and then.
    """
    with _opened(path) as file:
        yield from _Reader(file, tables, tell).rows()


def read_database(
    url: str, tables: Collection[str], tell: Callable[[int], None] = lambda _done: None, program: str = "pg_dump"
) -> Iterator[tuple[str, Row]]:
    """Yield the same out of a database, by pg_dump: all tables as they are at one moment. Raises DumpError.

    The password goes there by the environment: arguments are seen by everyone (ps).
    """
    names = [f'--table="{name}"' for name in sorted(tables)]
    command = [program, "--no-owner", "--no-privileges", "--no-password", "--encoding=UTF8", *names]
    with tempfile.TemporaryFile() as errors:
        try:
            running = subprocess.Popen(  # noqa: S603 - no shell, and the URL is not among the arguments
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=_connection(url)
            )
        except OSError as exc:
            raise DumpError(
                f"{program} can't be run ({exc.strerror}): install PostgreSQL's client programs, or give a dump"
            ) from exc
        with running:
            assert running.stdout is not None, "it is a pipe"
            file = io.TextIOWrapper(running.stdout, encoding="utf-8", errors="replace", newline="\n")
            failed: DumpError | None = None
            try:
                yield from _Reader(file, tables, tell).rows()
            except DumpError as exc:
                failed = exc
                while file.read(_MOST_SKIPPED):
                    pass  # to its end: what the program says of itself is the better reason
            finally:
                file.close()
        if running.returncode:
            errors.seek(0)
            said = errors.read(_MOST_SAID).decode("utf-8", "replace").strip()
            raise DumpError(f"{program} failed: {said or running.returncode}")
        if failed is not None:
            raise failed


def _connection(url: str) -> dict[str, str]:
    """Return the environment in which PostgreSQL's programs connect to a URL. Raises DumpError."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query))
        found = {
            "PGHOST": given.get("host") or parts.hostname,
            "PGPORT": given.get("port") or parts.port,
            "PGUSER": unquote(parts.username or "") or given.get("user"),
            "PGPASSWORD": unquote(parts.password or "") or given.get("password"),
            "PGDATABASE": unquote(parts.path.removeprefix("/")),
            **{variable: given.get(name) for name, variable in _PARAMETERS.items()},
        }
    except ValueError:
        raise DumpError(
            "the URL of the database can't be read: expected postgresql://USER:PASSWORD@HOST/NAME"
        ) from None
    return {**os.environ, **{name: str(value) for name, value in found.items() if value}}


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        # Opened once, and only looked at: of a pipe (/dev/stdin) nobody reads the begin twice.
        with path.open("rb") as content:
            first = content.peek(5)
            if first.startswith(b"PGDMP"):
                raise DumpError(
                    f"{path}: this is pg_dump's own format: write it as SQL with `pg_restore -f dump.sql {path}`"
                )
            plain = gzip.GzipFile(fileobj=content) if first.startswith(b"\x1f\x8b") else content
            with io.TextIOWrapper(plain, encoding="utf-8", errors="replace", newline="\n") as file:
                yield file
    except OSError as exc:
        raise DumpError(f"{path}: {exc.strerror or exc}") from exc
    except (EOFError, zlib.error) as exc:
        raise DumpError(f"{path}: it was cut off or damaged ({exc}); make it again") from exc


class _Reader:
    def __init__(self, file: IO[str], tables: Collection[str], tell: Callable[[int], None]) -> None:
        self._file: Final = file
        self._wanted: Final = tables
        self._tell: Final = tell
        self._columns: dict[str, list[str]] = {}
        self._n_chars = 0
        self._told = 0
        self._is_whole = False
        self._is_there = False  # one of the tables, with rows or without

    def rows(self) -> Iterator[tuple[str, Row]]:
        for line in self._lines():
            if line.startswith("--"):
                self._is_whole |= line.startswith(_END)
            elif line.startswith("COPY "):
                yield from self._copy(line)
            elif line.startswith("INSERT INTO "):
                yield from self._insert(line)
            elif line.startswith("CREATE ") and _CREATE.match(line):
                self._create(line)
            elif not line.startswith("\\"):
                self._other(line)
        if not self._is_whole:
            raise DumpError(f"the dump is not whole: its last line is not `{_END}`; make it again with pg_dump")
        if not self._is_there:
            raise DumpError(
                f"the dump has neither {min(self._wanted)} nor any other table that is looked for: is it of another"
                " database?"
            )

    def _lines(self) -> Iterator[str]:
        for line in self._file:
            self._n_chars += len(line)
            if self._n_chars - self._told >= _EVERY:
                self._told = self._n_chars
                self._tell(self._n_chars)
            yield line

    def _named(self, match: re.Match[str]) -> str:
        table = _bare(match[1])
        self._is_there |= table in self._wanted
        return table

    def _copy(self, line: str) -> Iterator[tuple[str, Row]]:
        match = _COPY.match(line)
        if match is None:
            raise DumpError("a COPY of the dump can't be read: make it with pg_dump, as plain SQL")
        table, names = self._named(match), [_bare(name) for name in _NAME.findall(match[2])]
        for row in self._lines():
            if row == "\\.\n":
                return
            if table not in self._wanted:
                continue
            values = row.rstrip("\n").split("\t")
            if len(values) != len(names):
                raise DumpError(
                    f"a row of {table} has {len(values)} values for {len(names)} columns: make the dump again"
                )
            yield table, dict(zip(names, map(_copied, values), strict=True))
        raise DumpError(f"the dump ends within {match[1]}: it was cut off; make it again")

    def _create(self, line: str) -> None:
        match = _CREATE.match(line)
        assert match is not None, "that was looked at before"
        columns = self._columns[self._named(match)] = []
        for each in self._lines():
            if each.startswith((")", "ALTER ")):
                return
            column = _COLUMN.match(each)
            if column is not None and column[1] != "CONSTRAINT":
                columns.append(_bare(column[1]))

    def _insert(self, line: str) -> Iterator[tuple[str, Row]]:
        match = _INSERT.match(line)
        if match is None:
            raise DumpError("an INSERT of the dump can't be read: make it with pg_dump, as plain SQL")
        table = self._named(match)
        text = self._statement(line, keeps=table in self._wanted, is_insert=True)
        if table not in self._wanted:
            return
        names = [_bare(name) for name in _NAME.findall(match[2])] if match[2] else self._columns.get(table, [])
        for values in _values(text, match.end(), table):
            if len(values) != len(names):
                raise DumpError(
                    f"a row of {table} has {len(values)} values for {len(names)} columns: make the dump again"
                )
            yield table, dict(zip(names, values, strict=True))

    def _other(self, line: str) -> None:
        """Skip a statement, of which only the encoding matters."""
        encoding = _ENCODING.match(line)
        if encoding is not None and encoding[1] not in ("UTF8", "SQL_ASCII"):
            raise DumpError(f"the dump is in {encoding[1][:32]}: make it with `pg_dump --encoding=UTF8`")
        found = _DOLLARS.findall(line)
        if len(found) % 2:
            if not any(found[-1] in each for each in self._lines()):
                raise DumpError("the dump ends within a function: it was cut off; make it again")
            return
        self._statement(line, keeps=False)

    def _statement(self, line: str, *, keeps: bool, is_insert: bool = False) -> str:
        """Return an INSERT to its end; anything else to the end of a line outside of quotes. keeps: its later lines.

        The rows of an INSERT are no statements: what they hold must never be taken for one.
        """
        parts = [line]
        is_open = bool(line.count("'") % 2)
        if not is_open and (not is_insert or line.rstrip().endswith(";")):
            return line
        for each in self._lines():
            is_open ^= bool(each.count("'") % 2)
            if keeps:
                parts.append(each)
            if not is_open and (not is_insert or each.rstrip().endswith(";")):
                return "".join(parts)
        raise DumpError("the dump ends within a statement: it was cut off; make it again")


def _bare(name: str) -> str:
    return name.strip('"')


def _copied(text: str) -> str | None:
    if text == "\\N":
        return None
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def _values(text: str, at: int, table: str) -> Iterator[list[str | None]]:
    """Yield the values of each row of an INSERT."""
    row: list[str | None] = []
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise DumpError(f"an INSERT into {table} can't be read: make the dump with pg_dump, as plain SQL")
        at = match.end()
        escape, quoted, mark, word = match.groups()
        if mark == "(":
            row = []
        elif mark == ")":
            yield row
        elif mark == ";" or (word and word.upper() == "ON"):
            return
        elif quoted is not None:
            plain = quoted.replace("''", "'")
            row.append(_ESCAPE.sub(_unescaped, plain) if escape else plain)
        elif word is not None:
            row.append(None if word.upper() == "NULL" else word)


def parse_array(text: str | None) -> list[str]:
    """Return what is in an array of texts: `{a,"b c"}`. Raises ValueError."""
    if text is None or text == "{}":
        return []
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("expected an array")
    found: list[str] = []
    at, end = 1, len(text) - 1
    while at < end:
        match = _ITEM.match(text, at, end)
        if match is None:
            raise ValueError("expected an array")
        quoted, plain = match.groups()
        if quoted is not None:
            found.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        elif plain != "NULL":
            found.append(plain)
        at = match.end()
        if at < end:
            if text[at] != ",":
                raise ValueError("expected an array")
            at += 1
    return found


_ITEM: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"|([^,"{}]+)', re.DOTALL)
