"""A file of keys that changes: what is taken, what is refused, what each worker then knows. The clock is the test's."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.accounts.service import Accounts
from velox.accounts.snapshot import KeySnapshot, changes_path, snapshot_path
from velox.accounts.sqlite import SqliteAccounts
from velox.gateway.auth import Authenticator
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.keys.frames import ADDED, CHECKSUM, REMOVED, digests_in, entries_in
from velox.settings import load
from velox.settings.callers.keys import parse_entries, parse_key_file
from velox.shm.change_log import Frame, LogReader
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus
from velox.types import KeyEntry, Priority, Rates

CLASSES = ("high", "normal", "low")


class Watched:
    """A watch over a file, and its time: a turn is what the supervisor does four times a second."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.file = folder / "keys"
        if not self.file.exists():
            self.file.write_text("one\n")
        self.lines: list[str] = []
        logger = logging.Logger("test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        self.logger = logger
        self.settings = settings = load({"VELOX_API_KEYS_FILE": str(self.file), **environ}, cores=1)
        segment = Segment(1, CELLS)
        self.status = GatewayStatus(segment)
        self.metrics = WorkerMetrics(segment.other_metrics())
        self.segment = segment
        self.now_s = 1000.0
        self.wall_s = 1_800_000_000.0
        self.watch = KeyWatch(settings, self.status, self.metrics, logger, lambda: self.wall_s)

    def turns(self, n: int) -> None:
        for _ in range(n):
            self.now_s += 0.25
            self.watch.look(self.now_s)

    def settle(self) -> tuple[KeyEntry, ...] | None:
        """Let 1.5 seconds go by; return the keys if there are others now."""
        before = self.watch.keys
        self.turns(6)
        return None if self.watch.keys is before else self.watch.keys


def told(log: LogReader) -> list[Frame]:
    """Return what workers were told, but for marks."""
    frames = []
    while (frame := log.read()) is not None:
        frames.append(frame)
    return [frame for frame in frames if frame.kind != CHECKSUM]


def forked(auth: Authenticator) -> Authenticator:
    """Return what a fork has of it, which accepts the same; a compiled one can't be copied."""
    made = Authenticator((), requires_keys=auth.requires_keys)
    for digest, caller in auth.beyond(()).items():
        made.change({digest: KeyEntry(digest, caller.name, caller.terms, id=caller.id, account=caller.account)})
    assert made.checksum == auth.checksum
    return made


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A watch over a file with one key."""
    watch = Watched(tmp_path)
    assert watch.watch.keys == parse_entries("one")
    yield watch


def test_file_that_stays_is_no_news(watched: Watched) -> None:
    """Nothing is published, counted or said, however often it is read, touched or replaced by its equal."""
    assert watched.settle() is None
    os.utime(watched.file)
    assert watched.settle() is None
    replacement = watched.file.with_name("new")
    replacement.write_text("one\n# the same keys\n")
    replacement.replace(watched.file)

    assert watched.settle() is None
    assert watched.lines == []
    assert (watched.status.n_keys, watched.status.key_file_changes(taken=True)) == (1, 0)


def test_change_is_taken_within_a_second_and_a_half(watched: Watched) -> None:
    """Written over, the same length, within the same second of the file's time: the content counts."""
    before = watched.file.stat()
    watched.file.write_text("two\n")
    os.utime(watched.file, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert watched.settle() == parse_entries("two")
    assert watched.status.key_file_changes(taken=True) == 1
    assert watched.lines == ["VELOX_API_KEYS_FILE changed: 1 keys more, 1 fewer; clients must present one of 1"]


def test_symbolic_link_that_is_swapped_is_followed(tmp_path: Path) -> None:
    """As Kubernetes changes a secret: the link's folder is another one from one moment to the next."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f"{name}\n")
    (tmp_path / "data").symlink_to("a")
    (tmp_path / "keys").symlink_to("data/keys")
    watched = Watched(tmp_path)
    (tmp_path / "data-next").symlink_to("b")
    (tmp_path / "data-next").replace(tmp_path / "data")

    assert watched.settle() == parse_entries("b")


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ("one\ntwo\n", "one\ntw", "its last line has no end, unlike the active file"),
        ("one\ntwo\n# end\n", "one\n", "its last line `# end` is gone, which the active file has"),
        ("- key: one\n- key: two\n# end\n", "- key: one\n", "its last line `# end` is gone"),
    ],
)
def test_file_that_was_cut_off_keeps_the_keys(tmp_path: Path, before: str, now: str, why: str) -> None:
    """Half a key would be a key, and keys that are not there would be refused."""
    (tmp_path / "keys").write_text(before)
    watched = Watched(tmp_path)
    watched.file.write_text(now)
    assert watched.settle() is None
    assert watched.status.key_file_is_bad
    assert len(watched.lines) == 1 and why in watched.lines[0]
    watched.file.write_text(now.strip() + "-more\n# end\n")
    assert watched.settle() is not None
    assert not watched.status.key_file_is_bad


def test_file_that_is_still_being_written_is_not_taken_halfway(watched: Watched) -> None:
    """What looks different each time is looked at again; keys that are not yet written are not yet lost."""
    for n in range(1, 12):
        watched.file.write_text("".join(f"key-{k}\n" for k in range(n)))
        watched.turns(1)
        assert watched.watch.keys == parse_entries("one")
    found = watched.settle()

    assert found is not None and len(found) == 11


@pytest.mark.parametrize(
    "content", [b"", b"# none left\n", b"one two\n", b"- key: [\n", b"- {key: k, rpm: 0}\n", b"\xff\n", None]
)
def test_bad_file_keeps_the_keys_and_is_told_once(watched: Watched, content: bytes | None) -> None:
    """One line and one count, for as long as it stays so; the gauge is up until it is good again."""
    if content is None:
        watched.file.unlink()
    else:
        watched.file.write_bytes(content)
    for _ in range(3):
        assert watched.settle() is None

    (line,) = watched.lines
    assert line.startswith("VELOX_API_KEYS_FILE can't be used, the keys stay as they were: ")
    assert watched.status.key_file_is_bad
    assert watched.status.key_file_changes(taken=False) == 1
    watched.file.write_text("one\n")
    assert watched.settle() is None
    assert not watched.status.key_file_is_bad
    assert watched.lines[1:] == ["VELOX_API_KEYS_FILE can be used again, and holds the same keys"]


def test_key_with_a_budget_that_nothing_could_count_keeps_the_keys(tmp_path: Path) -> None:
    """As at a start. With records it is taken."""
    text = "- {key: one, budgets: [5 usd/day]}\n"
    without = Watched(tmp_path)
    without.file.write_text(text)
    assert without.settle() is None
    (line,) = without.lines
    assert f"{without.file}:1: budgets: expected VELOX_LEDGER with it" in line and without.status.key_file_is_bad
    without.file.write_text("one\n")
    recorded = Watched(tmp_path, VELOX_LEDGER=str(tmp_path / "ledger"))
    recorded.file.write_text(text)
    found = recorded.settle()
    assert found is not None and found[0].terms.budgets


def test_bad_file_becomes_another_bad_one_and_then_a_good_one(watched: Watched) -> None:
    """Each change is told by itself; a secret is in no line."""
    for content in ("secret secret\n", "secret secret\nsecret2 x\n", "two\n"):
        watched.file.write_text(content)
        found = watched.settle()

    assert found == parse_entries("two")
    assert [line.split(",")[0] for line in watched.lines] == [
        "VELOX_API_KEYS_FILE can't be used",
        "VELOX_API_KEYS_FILE can't be used",
        "VELOX_API_KEYS_FILE changed: 1 keys more",
    ]
    assert "and 1 more" in watched.lines[1]
    assert "secret" not in "".join(watched.lines)


def test_key_of_the_variable_stays_when_the_file_loses_it(tmp_path: Path) -> None:
    """The file's keys come and go; those of VELOX_API_KEYS hold until the end."""
    watched = Watched(tmp_path, VELOX_API_KEYS="fixed,one")
    watched.file.write_text("two\n")

    assert watched.settle() == parse_entries("fixed,one,two")


def test_names_models_and_limits_change_too(watched: Watched) -> None:
    """The same key with another name, other models or other limits is a change."""
    watched.file.write_text("- {key: one, name: team-a, models: [m*]}\n")

    (found,) = watched.settle() or ()

    assert (found.name, found.terms.models) == ("team-a", ("m*",))
    assert watched.lines == ["VELOX_API_KEYS_FILE changed: 0 keys more, 0 fewer; clients must present one of 1"]
    watched.file.write_text("- {key: one, name: team-a, models: [m*], rpm: 60, concurrency: 3, priority: low}\n")
    (found,) = watched.settle() or ()
    assert (found.terms.rates, found.terms.priority) == (Rates(rpm=60, burst=10, concurrency=3), Priority.LOW)


@pytest.mark.more
def test_worker_takes_over_whole_tables_when_it_likes(watched: Watched) -> None:
    """A child begins with the keys of its fork, then sees each table as its parent wrote it, or a later one."""
    contents = [
        "".join(
            f"- {{key: k{n}-{k}, name: t{n}, models: [m{n}], tpm: {n}, priority: {CLASSES[n % 3]}}}\n"
            for k in range(n * 7)
        )
        for n in range(1, 30)
    ]
    tables = [parse_key_file(content.encode(), "keys")[0] for content in contents]
    wanted = [{entry.digest: entry for entry in table} for table in tables]
    log = LogReader(watched.watch.log, watched.watch.log.end)
    allowed = {entry for table in tables for entry in table} | {*watched.watch.keys}
    pid = os.fork()
    if pid == 0:
        try:
            known = {entry.digest: entry for entry in watched.watch.keys}
            assert watched.watch.keys == parse_entries("one")
            while known != wanted[-1]:
                frame = log.read()
                if frame is None:
                    continue
                if frame.kind == REMOVED:
                    for digest in digests_in(frame.said):
                        del known[digest]
                elif frame.kind == ADDED:
                    known.update((entry.digest, entry) for entry in entries_in(frame.said))
                    assert all(entry in allowed for entry in known.values())
            os._exit(0)
        finally:
            os._exit(1)
    for content, table in zip(contents, tables, strict=True):
        watched.file.write_text(content)
        assert watched.settle() == table

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_key_expires_by_itself(tmp_path: Path) -> None:
    """Without a change of the file, also when nobody else has a key; written again with more time, it holds again."""
    (tmp_path / "keys").write_text("- {key: one, expires: '2027-01-15T08:00:01Z'}\n- two\n")
    watched = Watched(tmp_path)
    assert len(watched.watch.keys) == 2

    watched.wall_s += 1
    assert watched.settle() == parse_entries("two")

    watched.file.write_text("- {key: one, expires: 2027-02-01}\n- two\n")
    assert len(watched.settle() or ()) == 2


def test_keys_that_a_wrong_clock_took_away_are_back_when_it_is_right(tmp_path: Path) -> None:
    """Of a file and managed ones, and the secret that a key had before; also what was written down meanwhile."""
    (tmp_path / "keys").write_text("- {key: one, name: of-file, expires: 2027-02-01}\n- {key: two, name: forever}\n")
    watched = Managed(tmp_path)
    watched.accounts = Accounts(watched.store, lambda: watched.wall_s)
    watched.accounts.create_key({"name": "managed", "expires": "2027-02-01"}, "me")
    key = watched.accounts.create_key({"name": "rotated"}, "me").key
    watched.accounts.rotate_key(key.id, 3600, "me")
    right_s, all_ = watched.wall_s, {"of-file", "forever", "managed", "rotated"}
    assert watched.names() == all_ and len(watched.watch.keys) == 5

    for turn in range(2):
        watched.wall_s = right_s + 30 * 86_400
        watched.accounts.create_team({"id": f"team-{turn}"}, "me")
        watched.accounts.update("key", key.id, {"rpm": turn + 1}, "me")
        assert watched.names() == {"forever", "rotated"} and len(watched.watch.keys) == 2
        watched.wall_s = right_s + 1
        assert watched.names() == all_ and len(watched.watch.keys) == 5

    expired, back = "client keys have expired: 3", "the clock was set back, expired client keys are active again: 3"
    assert watched.lines == [expired, back] * 2


def test_key_that_had_expired_at_the_start_holds_when_the_clock_is_right(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("- {key: one, expires: 2027-02-01}\n- two\n")
    watched = Watched(tmp_path)
    watched.wall_s += 30 * 86_400
    watched.watch = KeyWatch(watched.settings, watched.status, watched.metrics, watched.logger, lambda: watched.wall_s)
    assert watched.watch.keys == parse_entries("two")

    watched.wall_s -= 30 * 86_400
    assert len(watched.settle() or ()) == 2


def test_gateway_whose_keys_have_all_expired_lets_nobody_in(tmp_path: Path) -> None:
    """To have no key left is not to need none, at the start and later."""
    (tmp_path / "keys").write_text("- {key: one, expires: 2027-01-31}\n")
    early, late = Watched(tmp_path), Watched(tmp_path)
    assert early.watch.auth.requires_keys and early.watch.keys
    early.wall_s += 30 * 86_400
    assert early.settle() == () and early.watch.auth.requires_keys

    late.watch = KeyWatch(late.settings, late.status, late.metrics, late.logger, lambda: early.wall_s)
    assert late.watch.keys == () and late.watch.auth.requires_keys


class Managed(Watched):
    """A watch over managed keys besides those of a file."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteAccounts(folder / "ledger")
        self.accounts = Accounts(self.store)
        self.path = Path(snapshot_path(folder / "ledger"))
        self.changes = Path(changes_path(folder / "ledger"))
        self.snapshot = KeySnapshot(folder / "ledger")
        super().__init__(folder, VELOX_LEDGER=str(folder / "ledger"), VELOX_MANAGED_KEYS="true")

    def write(self) -> None:
        while self.snapshot.turn(self.store):
            pass

    def names(self) -> set[str]:
        self.write()
        self.settle()
        while self.watch.is_busy:
            self.turns(1)
        return {key.name for key in self.watch.keys}


def test_managed_keys_come_and_go_beside_those_of_files(tmp_path: Path) -> None:
    """Neither takes the other away; what a file says of a key that both have counts."""
    watched = Managed(tmp_path)
    assert watched.watch.auth.requires_keys and watched.names() == {""}
    key = watched.accounts.create_key({"name": "a"}, "me").key
    watched.accounts.create_key({"name": "b", "key": "sk-0123456789abcdef"}, "me")
    assert watched.names() == {"", "a", "b"}
    watched.file.write_text("- {key: sk-0123456789abcdef, name: of-file}\n")
    assert watched.names() == {"a", "of-file"}
    watched.accounts.block("key", key.id, "me")
    assert watched.names() == {"of-file"}
    watched.watch.replace_fixed(parse_entries("fixed"))
    assert watched.names() == {"", "of-file"}
    watched.file.write_text("one\n")
    watched.accounts.unblock("key", key.id, "me")
    assert watched.names() == {"", "a", "b"}
    assert len(watched.watch.keys) == 4


def test_managed_keys_that_can_not_be_read_stay_as_they_were(tmp_path: Path) -> None:
    """A file that is broken or gone: one line in the log. A whole one counts again. After a restart the file counts."""
    watched = Managed(tmp_path)
    watched.accounts.create_key({"name": "a"}, "me")
    assert watched.names() == {"", "a"}
    whole = watched.path.read_bytes()
    watched.path.write_bytes(whole[:-5])
    assert watched.names() == {"", "a"} and len(watched.lines) == 1
    watched.path.unlink()
    assert watched.names() == {"", "a"} and len(watched.lines) == 1
    watched.path.write_bytes(whole)
    assert watched.names() == {"", "a"}
    again = load({"VELOX_LEDGER": str(tmp_path / "ledger"), "VELOX_MANAGED_KEYS": "true"}, cores=1)
    assert [key.name for key in again.api_keys] == ["a"] and again.requires_keys


def test_gateway_with_managed_keys_only_asks_for_one_though_there_is_none(tmp_path: Path) -> None:
    """A folder without anything in it."""
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_MANAGED_KEYS": "true"}, cores=1)
    segment = Segment(1, CELLS)
    metrics = WorkerMetrics(segment.other_metrics())
    watch = KeyWatch(settings, GatewayStatus(segment), metrics, logging.Logger("test"))
    assert watch.keys == () and watch.auth.requires_keys


@pytest.mark.slow
def test_change_of_one_key_costs_as_much_as_it_is(tmp_path: Path) -> None:
    """Among thousands: one entry is told to workers, and the others stay the objects that they were."""
    watched = Managed(tmp_path)
    for n in range(2000):
        watched.accounts.create_key({"id": f"k{n}", "name": f"k{n}"}, "me")
    assert len(watched.names()) == 2001
    before = {key.name: key for key in watched.watch.keys}
    watched.watch.take_changes()
    log = LogReader(watched.watch.log, watched.watch.log.end)
    watched.accounts.update("key", "k7", {"rpm": 60}, "me")
    watched.accounts.delete("key", "k8", "me")
    assert len(watched.names()) == 2000
    gone, come = told(log)
    assert digests_in(gone.said) == [before["k8"].digest]
    assert [(key.name, key.terms.rates.rpm) for key in entries_in(come.said)] == [("k7", 60)]
    assert all(before[key.name] is key for key in watched.watch.keys if key.name != "k7")
    taken = watched.watch.take_changes()
    assert {digest: key and key.terms.rates.rpm for digest, key in taken.items()} == {
        before["k7"].digest: 60,
        before["k8"].digest: None,
    }


@pytest.mark.slow
def test_new_snapshot_is_looked_at_in_parts(tmp_path: Path) -> None:
    """As a ledger's process that starts anew writes it. What is the same is told to nobody."""
    watched = Managed(tmp_path)
    for n in range(1000):
        watched.accounts.create_key({"id": f"k{n}", "name": f"k{n}"}, "me")
    assert len(watched.names()) == 1001
    log = LogReader(watched.watch.log, watched.watch.log.end)
    watched.accounts.delete("key", "k5", "me")
    watched.snapshot = KeySnapshot(tmp_path / "ledger")
    watched.write()
    watched.turns(1)
    assert watched.watch.is_busy and len(watched.watch.keys) == 1001
    assert len(watched.names()) == 1000
    (frame,) = told(log)
    assert len(digests_in(frame.said)) == 1


@pytest.mark.slow
def test_key_that_was_taken_away_is_none_at_the_next_start(tmp_path: Path) -> None:
    """Not for a moment: the snapshot has it, the changes do not. Among more keys than are looked at in one turn."""
    watched = Managed(tmp_path)
    for n in range(600):
        watched.accounts.create_key({"id": f"k{n}", "name": f"k{n}"}, "me")
    watched.write()
    for n in range(0, 600, 2):
        watched.accounts.block("key", f"k{n}", "me")
    watched.accounts.update("key", "k1", {"rpm": 7}, "me")
    watched.write()
    again = Managed(tmp_path)
    expected = {"", *(f"k{n}" for n in range(1, 600, 2))}
    log = LogReader(again.watch.log, again.watch.log.end)
    for _ in range(20):
        assert {key.name for key in again.watch.keys} == expected
        again.turns(1)
    assert not again.watch.is_busy and told(log) == [], "nothing was told to a worker"
    assert again.watch.keys == again.settings.api_keys
    watched.accounts.block("key", "k1", "me")
    watched.write()
    again.turns(4)
    assert {key.name for key in again.watch.keys} == expected - {"k1"}


def test_digest_that_another_key_has_now_stays(tmp_path: Path) -> None:
    """One key is deleted, and its secret given to another: whichever is read first, the secret is a key."""
    watched = Managed(tmp_path)
    for name in ("z", "a"):  # in the snapshot the new one may come first
        watched.accounts.create_key({"id": name, "name": name, "key": "sk-0123456789abcdef"}, "me")
        assert watched.names() == {"", name}
        watched.accounts.delete("key", name, "me")
        watched.accounts.create_key({"id": f"{name}2", "name": "next", "key": "sk-0123456789abcdef"}, "me")
        watched.snapshot = KeySnapshot(tmp_path / "ledger")
        assert watched.names() == {"", "next"}
        watched.accounts.delete("key", f"{name}2", "me")
        assert watched.names() == {""}


def test_changes_that_nobody_can_have_written_change_nothing(tmp_path: Path) -> None:
    """Half of a line waits for its other half; what is no line is told, and what was active stays."""
    watched = Managed(tmp_path)
    watched.accounts.create_key({"id": "a", "name": "a"}, "me")
    assert watched.names() == {"", "a"}
    watched.accounts.create_key({"id": "b", "name": "b"}, "me")
    before = watched.changes.read_bytes()
    watched.write()
    whole = watched.changes.read_bytes()
    watched.changes.write_bytes(whole[:-9])
    watched.settle()
    assert {key.name for key in watched.watch.keys} == {"", "a"}
    watched.changes.write_bytes(whole)
    assert watched.names() == {"", "a", "b"}
    watched.changes.write_bytes(whole + b"no line at all\n")
    assert watched.names() == {"", "a", "b"}
    watched.changes.unlink()
    assert watched.names() == {"", "a", "b"} and len(before) < len(whole)
