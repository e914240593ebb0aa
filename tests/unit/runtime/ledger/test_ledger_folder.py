"""Where the rings of a gateway lie, and that they are no other gateway's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ledger.made import made_call, write
from velox.ledger.writer import CallWriter
from velox.runtime.ledger.folder import LedgerFolder
from velox.settings import SettingsError, load
from velox.shm.record_ring import RingError


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_rings_may_have_a_folder_of_their_own(tmp_path: Path) -> None:
    """What waits in those of before is not lost: they are read as those of workers that are no more."""
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    before = LedgerFolder(disk, 1, 1000)
    before[0].begin()
    write(CallWriter(before[0], 0xABCD), made_call(1))
    n_waiting = before[0].head
    before.release()

    folder = LedgerFolder(disk, 2, 1000, memory)

    assert files(memory) == ["0.ring", "1.ring", "lock"]
    assert files(disk) == ["0.ring", "lock"]
    assert [(ring.head, ring.n_records) for ring in folder.all] == [(0, 1000), (0, 1000), (n_waiting, 1000)]
    assert len({ring.name for ring in folder.all}) == 3, "the store tells the two first ones apart"
    folder.release()


def test_neither_folder_is_shared_with_another_gateway(tmp_path: Path) -> None:
    one, two, memory = tmp_path / "one", tmp_path / "two", tmp_path / "memory"
    folder = LedgerFolder(one, 1, 1000, memory)
    with pytest.raises(RingError, match=f"{memory}: another gateway uses it"):
        LedgerFolder(two, 1, 1000, memory)
    with pytest.raises(RingError, match=f"{one}: another gateway uses it"):
        LedgerFolder(one, 1, 1000)
    folder.release()
    LedgerFolder(one, 1, 1000, memory).release()


def test_same_folder_named_twice_is_locked_once(tmp_path: Path) -> None:
    folder = LedgerFolder(tmp_path, 1, 1000, tmp_path)
    assert len(folder.all) == 1
    folder.release()


def test_room_in_no_database_is_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"VELOX_KEPT_DATABASE_BYTES": "1GiB"}, cores=1, memory_bytes=0)
    (problem,) = caught.value.problems
    assert str(problem) == (
        "VELOX_KEPT_DATABASE_BYTES is '1GiB': expected VELOX_LEDGER_DATABASE with it: where they are kept"
    )


def test_folder_of_rings_without_a_ledger_is_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"VELOX_LEDGER_RINGS": "/dev/shm/velox"}, cores=1, memory_bytes=0)
    (problem,) = caught.value.problems
    assert str(problem) == (
        "VELOX_LEDGER_RINGS is '/dev/shm/velox': expected VELOX_LEDGER with it: the folder that records end up in"
    )


def test_what_can_not_be_used_is_told_with_both_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"VELOX_LEDGER": str(tmp_path / "ledger"), "VELOX_LEDGER_RINGS": str(tmp_path / "file")}
    environ["VELOX_UPSTREAM_ORIGIN"] = "http://127.0.0.1:9"
    with pytest.raises(RingError, match=r"^VELOX_LEDGER, or VELOX_LEDGER_RINGS, can't be used: \S+/file: File exists$"):
        LedgerFolder.of(load(environ, cores=1, memory_bytes=0), 1)
