"""The table of objects in a file: nothing that is known is forgotten by a restart, whatever its shape is then."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.shm.object_file import object_memory_in
from velox.shm.object_table import ObjectTable


def tables(file: Path, rows: int = 1024, blocks: int = 2) -> list[ObjectTable]:
    memory = object_memory_in(file, rows, blocks, blocks)
    return [ObjectTable(memory, block) for block in range(blocks)]


def made(file: Path) -> None:
    for n, table in enumerate(tables(file)):
        for i in range(100):
            table.remember(f"file-{n}-{i}", table.number(f"name-{i % 3}"), i + 1)


@pytest.mark.parametrize(("rows", "blocks"), [(1024, 2), (4096, 2), (1024, 4), (2048, 1)])
def test_restart_forgets_neither_owner_nor_place(tmp_path: Path, rows: int, blocks: int) -> None:
    """W2: with more or fewer workers and rows, too; and once more after that."""
    file = tmp_path / "objects"
    made(file)
    for _ in range(2):
        for table in tables(file, rows, blocks):
            for n in range(2):
                for i in range(100):
                    assert table.find(f"file-{n}-{i}") == (table.number(f"name-{i % 3}"), i + 1)
            assert table.find("file-9-9") is None and table.named[0] == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_where_a_session_is_outlives_a_restart(tmp_path: Path) -> None:
    """K6: by the time of day, as the clock of a process begins anew with its machine."""
    (first, _) = tables(tmp_path / "objects")
    first.keep("session", 3, 7)
    found = first.latest("session")
    assert found is not None and found[1] > 1_700_000_000 * 10**9
    assert tables(tmp_path / "objects")[1].latest("session") == found


@pytest.mark.parametrize("harm", [b"", b"x", b"velox objects 1\n" + b"\0" * 100, b"\0" * 70_000])
def test_file_that_is_not_whole_is_put_aside(tmp_path: Path, harm: bytes) -> None:
    """The gateway starts all the same; what was there stays for who wants to look."""
    file = tmp_path / "objects"
    file.write_bytes(harm)
    (table, _) = tables(file)
    assert table.find("file-1") is None and (tmp_path / "objects.unread").read_bytes() == harm
    made(file)


def test_file_of_a_start_that_was_killed_is_made_anew(tmp_path: Path) -> None:
    """It had not taken the place of the old one."""
    file = tmp_path / "objects"
    made(file)
    (tmp_path / "objects.new").write_bytes(b"half")
    assert tables(file, 4096)[0].find("file-0-1") is not None
    assert not (tmp_path / "objects.new").exists()


def test_place_without_a_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        object_memory_in(tmp_path / "none" / "objects", 1024, 1, 1)
