"""The files of active keys: what is written is what is read; a part of them, or others, are nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.accounts.service import Accounts
from velox.accounts.snapshot import KeySnapshot, SnapshotError, changes_path, read_keys, snapshot_path
from velox.accounts.sqlite import SqliteAccounts
from velox.types import KeyEntry

NOW_S = 1_800_000_000.0


class Written:
    """Accounts, and the files that are written of them."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteAccounts(folder)
        self.accounts = Accounts(self.store, lambda: NOW_S)
        self.path, self.changes = Path(snapshot_path(folder)), Path(changes_path(folder))
        self.snapshot = KeySnapshot(folder)

    def write(self) -> int:
        """Write until nothing is left; return in how many turns."""
        n = 0
        while self.snapshot.turn(self.store):
            n += 1
        return n

    def read(self) -> tuple[KeyEntry, ...]:
        return read_keys(self.changes.read_bytes(), self.path.read_bytes())

    def names(self) -> set[str]:
        return {entry.name for entry in self.read()}


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
    """Whole once, then what has changed; keys that may do the same share it in memory."""
    assert written.write() == 1 and not written.write()
    first = {entry.name: entry for entry in written.read()}
    assert first.keys() == {"both", "of-team", "free"} and all(entry.is_managed for entry in first.values())
    assert (first["both"].terms.team_rates.rpm, first["both"].terms.user_rates.tpm, first["both"].terms.models) == (
        60,
        1000,
        ("gpt-*",),
    )
    assert written.path.stat().st_mode & 0o777 == 0o600
    whole = written.path.read_bytes()

    written.accounts.update("team", "red", {"rpm": 120}, "me")
    assert written.write()
    second = {entry.name: entry for entry in written.read()}
    assert second["both"].terms.team_rates.rpm == 120 and second["free"] == first["free"]
    written.accounts.block("team", "red", "me")
    assert written.write() and written.names() == {"free"}
    written.accounts.create_key({"name": "new", "user": "ann"}, "me")
    free = next(key.id for key in written.accounts.page("key", "", 9, {}).items if key.name == "free")
    written.accounts.delete("key", free, "me")
    assert written.write() and written.names() == {"new"}
    assert written.path.read_bytes() == whole, "changes are appended"
    assert written.changes.stat().st_mode & 0o777 == 0o600


def test_twins_share_what_they_may(written: Written) -> None:
    """100,000 keys of a team hold its limits once."""
    for name in ("twin-a", "twin-b"):
        written.accounts.create_key({"name": name, "team": "red", "models": ["gpt-4o"], "rpm": 7}, "me")
    written.write()
    one, other = (entry for entry in written.read() if entry.name.startswith("twin"))
    assert one.terms is other.terms


@pytest.mark.slow
def test_one_change_of_many_keys_is_written_in_parts(written: Written) -> None:
    """Of a team with more keys than are looked at in one turn. A change meanwhile is not lost."""
    for n in range(1200):
        written.accounts.create_key({"id": f"k{n:04d}", "name": f"k{n}", "team": "red"}, "me")
    written.write()
    written.accounts.update("team", "red", {"rpm": 7}, "me")
    assert written.snapshot.turn(written.store)
    assert {entry.terms.team_rates.rpm for entry in written.read() if entry.terms.team} == {60, 7}
    written.accounts.delete("key", "k1100", "me")
    assert written.write() >= 2
    assert {entry.terms.team_rates.rpm for entry in written.read() if entry.terms.team} == {7}
    assert len(written.read()) == 1202 and "k1100" not in written.names()


def test_long_file_of_changes_is_put_together(tmp_path: Path, written: Written) -> None:
    """It is bounded. What it then begins with is the new snapshot, so what came before counts no longer."""
    written.snapshot = KeySnapshot(tmp_path, least_changes_bytes=2000)
    written.write()
    key = written.accounts.create_key({"name": "a"}, "me").key
    before = written.path.stat().st_ino
    for n in range(40):
        written.accounts.update("key", key.id, {"name": f"n{n}"}, "me")
        written.write()
        assert written.names() == {"both", "of-team", "free", f"n{n}"}
        assert written.changes.stat().st_size < 4000
    assert written.path.stat().st_ino != before


def test_file_that_is_not_whole_is_nothing(written: Written) -> None:
    """Cut at any byte, or with a byte that is another one."""
    written.write()
    whole = written.path.read_bytes()
    for end in range(len(whole)):
        with pytest.raises(SnapshotError):
            read_keys(b"", whole[:end])
    for at in range(0, len(whole), 7):
        with pytest.raises(SnapshotError):
            read_keys(b"", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(SnapshotError, match="version 9"):
        read_keys(b"", whole.replace(b'"version":2', b'"version":9', 1))
    assert len(written.read()) == 3


def test_changes_that_are_cut_off_count_as_far_as_they_are_whole(written: Written) -> None:
    """Cut at any byte, as a writer that is killed leaves it: what was active after some change is active."""
    written.write()
    states = [written.names()]
    for n in range(3):
        written.accounts.create_key({"name": f"more-{n}"}, "me")
        written.write()
        states.append(written.names())
    snapshot, whole = written.path.read_bytes(), written.changes.read_bytes()
    reached = 0
    for end in range(len(whole) + 1):
        found = {entry.name for entry in read_keys(whole[:end], snapshot)}
        reached = states.index(found, reached)
    assert reached == 3
    last = whole.rindex(b"\n", 0, -1) + 20
    other = whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :]
    assert {entry.name for entry in read_keys(other, snapshot)} == states[2]


def test_changes_of_another_snapshot_do_not_count(tmp_path: Path, written: Written) -> None:
    """As between the two steps in which both are replaced."""
    written.write()
    written.accounts.create_key({"name": "more"}, "me")
    written.write()
    changes = written.changes.read_bytes()
    written.accounts.block("team", "red", "me")
    KeySnapshot(tmp_path).turn(written.store)
    found = read_keys(changes, written.path.read_bytes())
    assert {entry.name for entry in found} == {"free", "more"}


@pytest.mark.slow
@pytest.mark.parametrize("n_turns", range(4))
def test_writer_that_is_killed_leaves_what_was_in_force(tmp_path: Path, written: Written, n_turns: int) -> None:
    """Right after any of its turns, which a kill in the middle of one can't be told from. The next one goes on."""
    written.write()
    for n in range(700):
        written.accounts.create_key({"name": f"k{n}"}, "me")
    written.store.close()
    pid = os.fork()
    if not pid:
        again = Written(tmp_path)
        for _ in range(n_turns):
            again.snapshot.turn(again.store)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert len(written.read()) in {3, 703}
    next_one = Written(tmp_path)
    next_one.write()
    assert len(next_one.read()) == 703
    next_one.store.close()


def test_full_disk_leaves_what_was_in_force(written: Written) -> None:
    """What could not be appended is written with all others as soon as there is room."""
    written.write()
    written.accounts.create_key({"name": "more"}, "me")
    kept = written.changes.read_bytes()
    written.changes.unlink()
    written.changes.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        written.snapshot.turn(written.store)
    assert {entry.name for entry in read_keys(kept, written.path.read_bytes())} == {"both", "of-team", "free"}
    written.write()
    assert written.names() == {"both", "of-team", "free", "more"}
