"""Where a gateway keeps records and accounts: files in its folder, or a database that it shares with others.

Knows: which settings decide that. Does not know: what is kept (velox.ledger, velox.accounts).

Each store is imported where it is opened: only one of them is needed, and PostgreSQL's needs a package that not every
installation has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from velox.accounts.store import AccountStore
from velox.ledger.store import Store, StoreError
from velox.observe.oplog import operations_logger
from velox.runtime.ledger.gateway_name import gateway_name
from velox.settings import Settings

__all__ = ["account_store", "has_records", "record_store"]


def record_store(
    settings: Settings,
    *,
    is_reader: bool = False,
    is_own: bool = False,
    without_room: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Store:
    """Open the records of a gateway, and of those with the same database unless is_own. Raises StoreError.

    without_room: of a reader of files, also where their disk is full; what waits to be kept is not in them then. tell:
    is given what was found wrong and mended; None: that goes to the operations log.
    """
    folder = _folder(settings)
    if settings.ledger_database is None:
        from velox.ledger.sqlite import SUMS_FILE, SqliteStore

        if is_reader:
            _must_have_records(folder, SUMS_FILE)
        tell = _log if tell is None else tell
        return SqliteStore(folder, days=settings.ledger_days, is_reader=is_reader, without_room=without_room, tell=tell)
    from velox.ledger.postgres import PostgresStore

    gateway = "" if is_reader and not is_own else _gateway(folder)
    url = settings.ledger_database.reveal()
    return PostgresStore(url, gateway=gateway, days=settings.ledger_days, is_reader=is_reader, is_own=is_own)


def has_records(folder: Path) -> bool:
    """Say whether a gateway has recorded anything in files of its folder."""
    from velox.ledger.sqlite import SUMS_FILE

    return (folder / SUMS_FILE).exists()


def account_store(settings: Settings, *, is_reader: bool = False) -> AccountStore:
    """Open the accounts of a gateway. Raises StoreError."""
    folder = _folder(settings)
    if settings.ledger_database is None:
        from velox.accounts.sqlite import SqliteAccounts

        return SqliteAccounts(folder, is_reader=is_reader)
    from velox.accounts.postgres import PostgresAccounts

    return PostgresAccounts(settings.ledger_database.reveal(), is_reader=is_reader)


def _log(text: str) -> None:
    operations_logger(sys.stderr).warning("%s", text)


def _folder(settings: Settings) -> Path:
    if settings.ledger is None:
        raise StoreError("nothing is recorded: VELOX_LEDGER is not set; if a configuration file sets it, give --config")
    return Path(settings.ledger)


def _must_have_records(folder: Path, name: str) -> None:
    """Raise StoreError where no gateway has begun to write: of a file that is not there SQLite does not say more."""
    try:
        (folder / name).stat()
    except NotADirectoryError:
        raise StoreError(f"{folder} (VELOX_LEDGER) is no folder") from None
    except FileNotFoundError:
        if next(folder.glob("calls-*.db"), None) is not None:
            message = f"{folder / name} is missing: start the gateway, or run `velox usage --rebuild`, to make it anew"
            raise StoreError(f"{message} from the files of days") from None
        raise StoreError(f"no gateway has recorded anything yet in {folder} (VELOX_LEDGER)") from None
    except OSError:
        return  # it is there; SQLite says what is wrong with it


def _gateway(folder: Path) -> str:
    """Return what tells the rings of this folder from those of others in one database."""
    try:
        return gateway_name(folder)
    except OSError as exc:
        raise StoreError(f"{exc.filename}: {exc.strerror}") from exc
