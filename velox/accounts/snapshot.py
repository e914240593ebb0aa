"""The active keys, in two files: written by the ledger's process, read by the supervisor.

    keys.snapshot    all of them; replaced as a whole, at the writer's start and when the other one has become long
    keys.changes     what has changed since: a line more for each key that has

Knows: how the files are laid out, and which of their lines are new. Does not know: what a line says (key_lines.py),
where keys are kept, or who must know them.

They are what workers go by when the database is away, and at the start. The first line of the snapshot has the digest
of the rest, each line of the changes a checksum of its own: half of a file, or of a line, is never taken for one. The
changes name the snapshot that they belong to; those of another one don't count. So whatever is killed, whenever, what
is read is what was active at some moment, and the last one that was written down.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from velox.accounts.key_lines import KeyLines, KeyState, gone_line, key_line
from velox.accounts.model import Digest, Key, Kind, Team, User
from velox.accounts.snapshot_check import SnapshotCheck
from velox.accounts.store import AccountStore, Touched
from velox.ledger.store import StoreError
from velox.types import KeyEntry

__all__ = [
    "MOST_SNAPSHOT_BYTES",
    "KeyFiles",
    "KeySnapshot",
    "SnapshotError",
    "changes_begin",
    "changes_in",
    "changes_path",
    "read_keys",
    "replace_file",
    "snapshot_number",
    "snapshot_path",
]

T = TypeVar("T", Key, Team, User)

MOST_SNAPSHOT_BYTES: Final = 512 * 2**20
_VERSION: Final = 2
# Keys that are read from the store, and written, in one turn.
_PART: Final = 500
_LEAST_CHANGES_BYTES: Final = 16 * 2**20
_CRC_CHARS: Final = 8


class SnapshotError(ValueError):
    """A file holds no keys. The message says why."""


def snapshot_path(folder: str | Path) -> str:
    """Return where the file is, of the gateway whose ledger is in this folder."""
    return str(Path(folder) / "keys.snapshot")


def changes_path(folder: str | Path) -> str:
    """Return where the file of changes is."""
    return str(Path(folder) / "keys.changes")


class _Head(msgspec.Struct):
    """The first line of both. number: of the last change in the snapshot.

    sha256: of all that follows in the snapshot, in hexadecimal.
    """

    version: int
    number: int
    sha256: str


def _head(line: bytes) -> _Head:
    try:
        head = msgspec.json.decode(line, type=_Head)
    except msgspec.DecodeError as exc:
        raise SnapshotError("it is no file of keys") from exc
    if head.version != _VERSION:
        raise SnapshotError(f"it is of version {head.version}, this Velox reads {_VERSION}")
    return head


class _Snapshot:
    """A snapshot as it was read. Raises SnapshotError."""

    def __init__(self, content: bytes) -> None:
        self.head, _, rest = content.partition(b"\n")
        head = _head(self.head)
        if hashlib.sha256(rest).hexdigest() != head.sha256:
            raise SnapshotError("it is not whole")
        self._rest: Final = rest

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._rest)} bytes>"

    def states(self, lines: KeyLines) -> Iterator[KeyState]:
        """Yield what holds for each key. Raises SnapshotError."""
        at = 0
        try:
            while (end := self._rest.find(b"\n", at)) >= 0:
                yield lines.read(self._rest[at:end])
                at = end + 1
        except msgspec.DecodeError as exc:
            raise SnapshotError("a line is no key") from exc


def changes_in(content: bytes, at: int) -> tuple[list[bytes], int]:
    """Return the lines of a file of changes from a position on, and the position behind the last whole one."""
    lines = []
    while (end := content.find(b"\n", at)) >= 0:
        line = content[at + _CRC_CHARS : end]
        if content[at : at + _CRC_CHARS] != b"%08x" % zlib.crc32(line):
            break
        lines.append(line)
        at = end + 1
    return lines, at


def changes_begin(content: bytes, head: bytes) -> int:
    """Return where the lines of a file of changes begin; 0: it does not belong to the snapshot of this head."""
    return len(head) + 1 if content.startswith(head + b"\n") else 0


class KeyFiles:
    """Both files as they were read: the changes first, so that what they say is in the snapshot or belongs to it.

    changes_at: the position behind the last change in it; 0: the changes are of another snapshot. changes: b"": there
    are none. Raises SnapshotError.
    """

    def __init__(self, changes: bytes, snapshot: bytes) -> None:
        self._snapshot: Final = _Snapshot(snapshot)
        self.head: Final = self._snapshot.head
        begin = changes_begin(changes, self.head)
        self._changes, self.changes_at = changes_in(changes, begin) if begin else ([], 0)

    def __repr__(self) -> str:
        return f"<KeyFiles {self._snapshot!r}, {len(self._changes)} changes>"

    def states(self, lines: KeyLines) -> Iterator[KeyState | None]:
        """Yield what holds for each key by both, once; and None for each line that has said nothing yet.

        So a key that was taken away after the snapshot is none for a moment neither. Raises SnapshotError.
        """
        changed: dict[bytes, KeyState] = {}
        try:
            for line in self._changes:
                state = lines.read(line)
                changed[state.id] = state
                yield None
        except msgspec.DecodeError as exc:
            raise SnapshotError("a line of the changes is no key") from exc
        for state in self._snapshot.states(lines):
            yield None if state.id in changed else state
        yield from changed.values()


def read_keys(changes: bytes, snapshot: bytes) -> tuple[KeyEntry, ...]:
    """Return the keys of both files, of which the changes were read first. Raises SnapshotError."""
    states = KeyFiles(changes, snapshot).states(KeyLines())
    return tuple(entry for state in states if state is not None for entry in state.entries)


def snapshot_number(snapshot: bytes) -> int:
    """Return the number of the last change in a snapshot. Raises SnapshotError."""
    return _head(_Snapshot(snapshot).head).number


class KeySnapshot:
    """Writes the files as accounts change. In each turn a part of what there is to do.

    least_changes_bytes: how long the changes may become, or as long as the snapshot, before all is written anew.
    """

    def __init__(self, folder: Path, least_changes_bytes: int = _LEAST_CHANGES_BYTES) -> None:
        self._least_bytes: Final = least_changes_bytes
        self._path: Final = Path(snapshot_path(folder))
        self._changes_path: Final = Path(changes_path(folder))
        self._number = -1  # of the last change that is written with all before it; -1: nothing is
        self._pending: Final[deque[tuple[Touched, str]]] = deque()  # with the id of the last key of it that is written
        self._n_bytes = 0  # of the changes
        self._most_bytes = 0

    def __repr__(self) -> str:
        return f"<KeySnapshot {self._path} {self._number}>"

    def turn(self, store: AccountStore) -> bool:
        """Write what has changed, or a part of it; True: something was written, look again.

        Raises StoreError; OSError: then all is written anew the next time.
        """
        try:
            return self._turn(store)
        except StoreError:
            self._pending.clear()  # they are asked for again
            raise
        except OSError:
            self._number = -1
            raise

    def check(self, store: AccountStore) -> SnapshotCheck | None:
        """Return what compares the files with the store; None: there is more to write first.

        Raises StoreError, OSError; SnapshotError: the files are damaged.
        """
        number, documents, digests = store.everything()
        if number != self._number or self._pending:
            return None
        files = KeyFiles(self._changes_path.read_bytes(), self._path.read_bytes())
        lines = KeyLines()
        return SnapshotCheck(files.states(lines), map(lines.read, _all(documents, digests)))

    def rewrite(self) -> None:
        """Have all be written anew in the next turn."""
        self._number = -1

    def _turn(self, store: AccountStore) -> bool:
        if self._number >= 0 and not self._pending:
            number = store.number()
            if number == self._number:
                return False
            if number < self._number:
                self._number = -1  # another database, or an older state of this one
        if self._number < 0 or self._n_bytes > self._most_bytes:
            self._write_all(store)
            return True
        if not self._pending:
            touched = store.touched(self._number, _PART)
            # Each once, at the place of its last change.
            last = {(each.kind, each.id): each for each in touched}
            self._pending.extend((each, "") for each in touched if last[each.kind, each.id] is each)
        lines: list[bytes] = []
        number = self._number
        while self._pending and len(lines) < _PART:
            each, after = self._pending.popleft()
            found, reached = _lines_of(store, each, after)
            lines += found
            if reached:
                self._pending.appendleft((each, reached))
                break
            number = each.number
        self._append(lines)
        self._number = number
        return True

    def _append(self, lines: Iterable[bytes]) -> None:
        content = b"".join(b"%08x%b\n" % (zlib.crc32(line), line) for line in lines)
        if not content:
            return
        with self._changes_path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._n_bytes += len(content)

    def _write_all(self, store: AccountStore) -> None:
        number, documents, digests = store.everything()
        lines = b"".join(line + b"\n" for line in _all(documents, digests))
        head = msgspec.json.encode(_Head(_VERSION, number, hashlib.sha256(lines).hexdigest())) + b"\n"
        self._pending.clear()
        replace_file(self._path, head + lines)
        # Between the two the changes belong to a snapshot that is gone: they count no longer.
        replace_file(self._changes_path, head)
        self._number, self._n_bytes = number, 0
        self._most_bytes = max(self._least_bytes, len(lines))


def _lines_of(store: AccountStore, touched: Touched, after: str) -> tuple[list[bytes], str]:
    """Return the lines of keys that a change is of, and the id of the last one if there may be more.

    Keys are read before their owners: so a key is never written with an owner as it was before the key was its.
    """
    documents, digests = store.keys_of(touched.kind, touched.id, after, _PART)
    keys = list(_decoded(documents, Key))
    if touched.kind == "key" and not keys:
        return [gone_line(touched.id)], ""
    teams = _owners(store, "team", Team, {key.team for key in keys})
    users = _owners(store, "user", User, {key.user for key in keys})
    by_key = _by_key(digests)
    lines = [key_line(key, teams.get(key.team), users.get(key.user), by_key.get(key.id, ())) for key in keys]
    return lines, keys[-1].id if touched.kind != "key" and len(keys) == _PART else ""


def _owners(store: AccountStore, kind: Kind, made: type[T], ids: Iterable[str]) -> dict[str, T]:
    found = ((id_, store.get(kind, id_)) for id_ in ids if id_)
    return {id_: msgspec.json.decode(document, type=made) for id_, document in found if document is not None}


def _all(documents: Mapping[Kind, Sequence[bytes]], digests: Sequence[Digest]) -> Iterator[bytes]:
    teams = {each.id: each for each in _decoded(documents["team"], Team)}
    users = {each.id: each for each in _decoded(documents["user"], User)}
    by_key = _by_key(digests)
    for key in _decoded(documents["key"], Key):
        held = by_key.get(key.id)
        if held is not None:
            yield key_line(key, teams.get(key.team), users.get(key.user), held)


def _decoded(documents: Iterable[bytes], made: type[T]) -> Iterator[T]:
    return map(msgspec.json.Decoder(made).decode, documents)


def _by_key(digests: Iterable[Digest]) -> dict[str, list[Digest]]:
    found: dict[str, list[Digest]] = {}
    for digest in digests:
        found.setdefault(digest.key, []).append(digest)
    return found


def replace_file(path: Path, content: bytes) -> None:
    """Have a file hold this, or what it held before, whatever happens meanwhile. Raises OSError."""
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
