"""`velox import litellm-db`: LiteLLM's database read, what becomes of it told, and all of it done or nothing.

Knows: arguments, the order of steps, and the report. Does not know: LiteLLM's tables (litellm_db.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from velox.accounts.model import KINDS
from velox.accounts.service import Accounts, AccountsError, Adoption
from velox.accounts.snapshot import KeySnapshot
from velox.accounts.store import AccountStore
from velox.ledger.store import Store, StoreError
from velox.settings import Settings
from velox.settings.problems import on_one_line
from velox_migrate.litellm_db import TABLES, Plan, plan, read_tables
from velox_migrate.pg_dump import DumpError, Row, read_database, read_dump

__all__ = ["MovingArguments", "OpenStores", "import_litellm_db"]

_ACTOR: Final = "velox import litellm-db"
_UPSTREAM: Final = "(litellm)"
_VARIABLE: Final = "env:"
_URLS: Final = ("postgres://", "postgresql://")
_SHOWN: Final = 8  # names behind one sentence
_TELL_S: Final = 5.0
_PAGE: Final = 1000
_IMPORTED: Final = re.compile(r"key_[0-9a-f]{32}")  # the id that plan() gives a key; no other has one


class MovingArguments(NamedTuple):
    """Arguments of the command. file: a dump, the URL of a database, or `env:NAME` of a variable that has it.

    zone: in which LiteLLM resets budgets.
    """

    file: str
    dry_run: bool
    allow_weaker: bool
    zone: str


class OpenStores(NamedTuple):
    """What opens the stores of a gateway's settings. Both raise StoreError."""

    accounts: Callable[[Settings], AccountStore]
    records: Callable[[Settings], Store]


def import_litellm_db(
    settings: Settings,
    stores: OpenStores,
    asked: MovingArguments,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    now_s: int,
) -> int:
    """Do it; return the exit code. tell: prints a line. now_s: Unix time.

    Exit code 1: something would be limited less than before, or some of it could not be kept. 2: it can't be read.
    """
    if settings.ledger is None:
        tell("velox import: VELOX_LEDGER names no folder: that is where keys, teams, users and spend are kept")
        return 2
    progress = _Progress(tell)
    try:
        ZoneInfo(asked.zone)
        made = plan(read_tables(_rows(asked.file, environ, progress)), now_s, asked.zone)
    except (DumpError, ValueError) as exc:
        tell(on_one_line(f"velox import: {exc}"))
        return 2
    except KeyError:
        tell("velox import: --zone: expected a name of the IANA time zone database, for example Europe/Berlin")
        return 2
    for line in _report(made):
        tell(line)
    if made.limiting and not asked.allow_weaker:
        tell("nothing was done: what is listed as limits would hold no longer; --allow-weaker does it nevertheless")
        return 1
    if asked.dry_run:
        tell("nothing was done: --dry-run")
        return 0
    try:
        return _apply(settings, stores, made, progress, now_s)
    except (StoreError, OSError) as exc:
        tell(f"velox import: {exc}")
        return 1


def _rows(source: str, environ: Mapping[str, str], progress: _Progress) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a dump, of a database by its URL, or of one whose URL is in a variable."""

    def tell(n_chars: int) -> None:
        progress.turn(f"read {n_chars >> 20} MiB")

    if source.startswith(_VARIABLE):
        name = source.removeprefix(_VARIABLE)
        source = environ.get(name, "")
        if not source.startswith(_URLS):
            raise DumpError(
                f"{name}: expected the URL of a database in this variable, postgresql://USER:PASSWORD@HOST/NAME"
            )
    if source.startswith(_URLS):
        return read_database(source, TABLES, tell)
    return read_dump(Path(source), TABLES, tell)


class _Progress:
    """Tells how far it is, each few seconds."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell: Final = tell
        self._told_s = time.monotonic()

    def turn(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            self.tell(text)


def _report(made: Plan) -> Iterator[str]:
    yield from _notes("limits that would hold no longer:", made.limiting)
    yield from _notes("not carried over:", made.left_out)
    yield from _notes("not quite as it was:", made.changed)


def _notes(title: str, notes: Mapping[str, Sequence[str]], n_shown: int = _SHOWN) -> Iterator[str]:
    if notes:
        yield title
    for text, names in notes.items():
        shown = ", ".join(names[:n_shown])
        more = f" and {len(names) - n_shown} more" if len(names) > n_shown else ""
        yield on_one_line(f"  {text}: {shown}{more}")


def _apply(settings: Settings, stores: OpenStores, made: Plan, progress: _Progress, now_s: int) -> int:
    failed: dict[str, list[str]] = {}
    done: dict[str, Counter[Adoption]] = {kind: Counter() for kind in KINDS}
    with closing(stores.accounts(settings)) as kept:
        accounts = Accounts(kept)
        for n, adopted in enumerate(made.accounts, 1):
            try:
                done[adopted.kind][accounts.adopt(adopted, _ACTOR)] += 1
            except AccountsError as exc:
                failed.setdefault(f"a {adopted.kind}: {exc}", []).append(adopted.id)
            progress.turn(f"{n} of {len(made.accounts)} keys, teams and users")
        missing = list(_missing(accounts, made, now_s))
    with closing(stores.records(settings)) as store:
        store.carry(_UPSTREAM, made.spend)
    _put_in_force(settings, stores)
    which = "keys of an earlier import that this one has not"
    why = "deleted in LiteLLM, expired, left out above, or of another database"
    active = {f"{which} ({why}); delete those here that are not to work": missing}
    told = _notes("still active:", active if missing else {}, len(missing))
    for line in (*_notes("could not be kept:", failed), *told, *_done(done, made)):
        progress.tell(line)
    return 1 if failed else 0


def _missing(accounts: Accounts, made: Plan, now_s: int) -> Iterator[str]:
    """Yield the ids of keys that an import has made and this one has not, as far as they can be used."""
    ids = {each.id for each in made.accounts if each.kind == "key"}
    cursor = ""
    while True:
        page = accounts.page("key", cursor, _PAGE)
        for key in page.items:
            is_over = key.is_blocked or (key.expires_s is not None and key.expires_s <= now_s)
            if key.id not in ids and _IMPORTED.fullmatch(key.id) and not is_over:
                yield key.id
        cursor = page.cursor
        if not cursor:
            return


def _put_in_force(settings: Settings, stores: OpenStores) -> None:
    """Write which keys are active: a gateway that starts then knows them and their budgets from its first request.

    One that runs does it itself.
    """
    assert settings.ledger is not None
    folder = Path(settings.ledger)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with closing(stores.accounts(settings)) as kept:
            KeySnapshot(folder).turn(kept)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _done(done: Mapping[str, Counter[Adoption]], made: Plan) -> Iterable[str]:
    for kind in ("team", "user", "key"):
        counts = ", ".join(f"{done[kind][each]} {each.value}" for each in Adoption if done[kind][each])
        if counts:
            yield f"{kind}s: {counts}"
    nano = sum(row.sums.cost_nano for row in made.spend)
    yield f"spend: {nano / 1e9:.9f} dollars, {sum(row.sums.n for row in made.spend)} calls"
