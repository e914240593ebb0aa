"""The file of keys in force: what is written is what is read; a part of it, or another file, is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.accounts.service import Accounts
from velox.accounts.snapshot import KeySnapshot, SnapshotError, SnapshotReader, snapshot_path
from velox.accounts.sqlite import SqliteAccounts
from velox.types import KeyEntry

NOW_S = 1_800_000_000.0


class Written:
    """Accounts, and the file that is written of them."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteAccounts(folder)
        self.accounts = Accounts(self.store, lambda: NOW_S)
        self.path = Path(snapshot_path(folder))
        self.snapshot = KeySnapshot(self.store, self.path)
        self.reader = SnapshotReader()

    def read(self) -> tuple[KeyEntry, ...]:
        return self.reader.read(self.path.read_bytes())


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """Accounts of a team and a user with one key each, and one of both."""
    found = Written(tmp_path)
    found.accounts.create_team({"id": "red", "rpm": 60, "models": ["gpt-*"]}, "me")
    found.accounts.create_user({"id": "ann", "tpm": 1000}, "me")
    found.accounts.create_key({"name": "both", "team": "red", "user": "ann", "tags": ["eu"]}, "me")
    found.accounts.create_key({"name": "of-team", "team": "red", "expires": "2027-02-01"}, "me")
    found.accounts.create_key({"name": "free", "rpm": 5, "budgets": [{"usd": 5, "window": "month"}]}, "me")
    yield found
    found.store.close()


def test_what_is_written_is_read(written: Written) -> None:
    """Once for each change; a reader makes new entries only for lines that are new."""
    assert written.snapshot.turn(NOW_S) and not written.snapshot.turn(NOW_S)
    first = {entry.name: entry for entry in written.read()}
    assert first.keys() == {"both", "of-team", "free"} and all(entry.is_managed for entry in first.values())
    assert (first["both"].team_rates.rpm, first["both"].user_rates.tpm, first["both"].models) == (60, 1000, ("gpt-*",))
    assert written.path.stat().st_mode & 0o777 == 0o600

    written.accounts.update("team", "red", {"rpm": 120}, "me")
    assert written.snapshot.turn(NOW_S)
    second = {entry.name: entry for entry in written.read()}
    assert second["both"].team_rates.rpm == 120 and second["free"] is first["free"]
    written.accounts.block("team", "red", "me")
    assert written.snapshot.turn(NOW_S)
    assert [entry.name for entry in written.read()] == ["free"]


def test_file_that_is_not_whole_is_nothing(written: Written) -> None:
    """Cut at any byte, or with a byte that is another one."""
    written.snapshot.turn(NOW_S)
    whole = written.path.read_bytes()
    for end in range(len(whole)):
        with pytest.raises(SnapshotError):
            written.reader.read(whole[:end])
    for at in range(0, len(whole), 7):
        with pytest.raises(SnapshotError):
            written.reader.read(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(SnapshotError, match="version 9"):
        written.reader.read(whole.replace(b'"version":1', b'"version":9', 1))
    assert len(written.read()) == 3


def test_file_can_be_written_over_while_it_is_read(written: Written) -> None:
    """A reader that has it open goes on with what it opened."""
    written.snapshot.turn(NOW_S)
    with written.path.open("rb") as file:
        begin = file.read(10)
        written.accounts.create_key({}, "me")
        written.snapshot.turn(NOW_S)
        assert len(written.reader.read(begin + file.read())) == 3
    assert len(written.read()) == 4
