"""Whose the files of SQLite are: root may run a command, and the gateway must still be able to write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from velox.accounts.sqlite import SqliteAccounts
from velox.ledger.store import StoreError

GATEWAY = 12345
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for another user")


def owners(folder: Path) -> dict[str, int]:
    """Return who owns each file."""
    return {path.name: path.stat().st_uid for path in folder.iterdir()}


def test_files_that_root_makes_belong_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    """Also the folder itself, and what SQLite keeps beside the database."""
    os.chown(tmp_path, GATEWAY, GATEWAY)

    accounts = SqliteAccounts(tmp_path / "velox" / "ledger")

    found = owners(tmp_path / "velox" / "ledger")
    assert found.keys() >= {"accounts.db", "accounts.db-wal"} and set(found.values()) == {GATEWAY}
    assert owners(tmp_path) | owners(tmp_path / "velox") == {"velox": GATEWAY, "ledger": GATEWAY}
    accounts.close()


def test_file_that_is_there_keeps_its_owner(tmp_path: Path) -> None:
    """Root opens it, and changes no more than what it is asked for."""
    SqliteAccounts(tmp_path).close()
    os.chown(tmp_path, GATEWAY, GATEWAY)

    SqliteAccounts(tmp_path).close()

    assert owners(tmp_path)["accounts.db"] == 0


def test_file_of_another_user_is_told_with_its_owner() -> None:
    """The gateway's user can then have it given back."""
    with tempfile.TemporaryDirectory() as name:  # which others may look into, unlike pytest's
        folder = Path(name)
        SqliteAccounts(folder).close()
        os.chown(folder, GATEWAY, GATEWAY)
        told, pipe = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.setuid(GATEWAY)
                SqliteAccounts(folder)
            except StoreError as exc:
                os.write(pipe, str(exc).encode())
            finally:
                os._exit(0)
        os.close(pipe)
        os.waitpid(pid, 0)
        with open(told, "rb") as said:
            expected = f"; {folder / 'accounts.db'} belongs to the user root, and this is the user {GATEWAY}"
            assert said.read().decode().endswith(expected)
