"""The runner of migrations: which run, in which order, and what readers and older versions are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from velox.ledger.migrations import migrate
from velox.ledger.store import StoreError


class FakeSchema:
    """A database in memory. Another process has brought it to `others`, when the lock is taken the first time."""

    place = "the database"
    unit = "place"

    def __init__(self, number: int = 0, *, others: int = 0, part: str = "") -> None:
        self.number = number
        self.others = others
        self.part = part
        self.done: list[str] = []

    def not_the_newest(self, version: int, newest: int) -> str:
        return f"it has {version} of {newest}"

    def version(self) -> int:
        return self.number

    def prepare(self, version: int) -> None:
        self.done.append(f"prepare {version}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.number = max(self.number, self.others)
        before, done = self.number, self.done.copy()
        try:
            yield
        except BaseException:
            self.number, self.done = before, done
            raise

    def run(self, migration: str) -> None:
        self.done.append(migration)
        if migration == "fails":
            raise OSError(migration)

    def set_version(self, number: int) -> None:
        self.number = number


def test_migrations_run_in_order_from_the_one_behind_the_schema() -> None:
    schema = FakeSchema(1)

    migrate(schema, ["a", "b", "c"], is_reader=False)

    assert (schema.done, schema.number) == (["prepare 1", "b", "c"], 3)


def test_migrations_of_another_process_run_once() -> None:
    """The number is read again under the lock."""
    schema = FakeSchema(others=2)

    migrate(schema, ["a", "b", "c"], is_reader=False)

    assert (schema.done, schema.number) == (["prepare 0", "c"], 3)


def test_migration_fails_and_those_before_it_stay() -> None:
    schema = FakeSchema()

    with pytest.raises(OSError, match="fails"):
        migrate(schema, ["a", "fails", "c"], is_reader=False)

    assert (schema.done, schema.number) == (["prepare 0", "a"], 1)


def test_reader_of_the_newest_schema_changes_nothing() -> None:
    schema = FakeSchema(2)

    migrate(schema, ["a", "b"], is_reader=True)

    assert schema.done == []


@pytest.mark.parametrize("number", [0, 1])
def test_reader_of_an_older_schema_is_refused(number: int) -> None:
    schema = FakeSchema(number)

    with pytest.raises(StoreError, match=f"^it has {number} of 2$"):
        migrate(schema, ["a", "b"], is_reader=True)

    assert (schema.done, schema.number) == ([], number)


@pytest.mark.parametrize("is_reader", [True, False])
@pytest.mark.parametrize(("part", "shown"), [("", "schema 3,"), ("of keys", "schema 3 of keys,")])
def test_newer_schema_is_refused_before_anything_is_touched(part: str, shown: str, *, is_reader: bool) -> None:
    schema = FakeSchema(3, part=part)

    with pytest.raises(StoreError) as found:
        migrate(schema, ["a", "b"], is_reader=is_reader)

    assert str(found.value) == (
        f"the database has {shown} written by a newer Velox; this one knows 2: run the newer one, or name another place"
    )
    assert schema.done == []
