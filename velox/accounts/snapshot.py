"""The keys in force, in a file: written by the ledger's process, read by the supervisor.

Knows: how the file is laid out, and that most of it is the same as the last time. Does not know: where keys are kept,
or who must know them.

The file is what workers go by when the database is away, and at the start. It is replaced as a whole, and its first
line has the digest of the rest, so that half of a file is never taken for one. Each further line is a key.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from velox.accounts.force import entry_of, is_over
from velox.accounts.model import Digest, Key, Kind, Team, User
from velox.accounts.store import AccountStore
from velox.types import KeyEntry

__all__ = ["MOST_SNAPSHOT_BYTES", "KeySnapshot", "SnapshotError", "SnapshotReader", "snapshot_path"]

MOST_SNAPSHOT_BYTES: Final = 512 * 2**20
_VERSION: Final = 1
_NONE: Final = b""


class SnapshotError(ValueError):
    """A file holds no keys. The message says why."""


def snapshot_path(folder: str | Path) -> str:
    """Return where the file is, of the gateway whose ledger is in this folder."""
    return str(Path(folder) / "keys.snapshot")


class _Head(msgspec.Struct):
    """The first line. number: of the last change. sha256: of all that follows, in hexadecimal."""

    version: int
    number: int
    sha256: str


class SnapshotReader:
    """Reads the file again and again."""

    def __init__(self) -> None:
        self._decode: Final = msgspec.json.Decoder(KeyEntry).decode
        self._known: dict[bytes, KeyEntry] = {}

    def read(self, content: bytes) -> tuple[KeyEntry, ...]:
        """Return the keys. Raises SnapshotError."""
        first, _, rest = content.partition(b"\n")
        try:
            head = msgspec.json.decode(first, type=_Head)
            if head.version != _VERSION:
                raise SnapshotError(f"it is of version {head.version}, this Velox reads {_VERSION}")
            if hashlib.sha256(rest).hexdigest() != head.sha256:
                raise SnapshotError("it is not whole")
            known, decode = self._known, self._decode
            self._known = {line: known.get(line) or decode(line) for line in rest.splitlines()}
        except msgspec.DecodeError as exc:
            raise SnapshotError("it is no file of keys") from exc
        return tuple(self._known.values())


class KeySnapshot:
    """Writes the file whenever accounts have changed."""

    def __init__(self, store: AccountStore, path: Path) -> None:
        self._store: Final = store
        self._path: Final = path
        self._number = -1  # of the change that is written
        # By all that follows from it. None: it may do nothing.
        self._lines: dict[tuple[Digest, bytes, bytes, bytes], bytes | None] = {}

    def __repr__(self) -> str:
        return f"<KeySnapshot {self._path} {self._number}>"

    def turn(self, now_s: float) -> bool:
        """Write the file if anything has changed; True: it was written. Raises StoreError, OSError."""
        if self._store.number() == self._number:
            return False
        number, documents, digests = self._store.everything()
        lines = b"".join(self._all(documents, digests, now_s))
        head = msgspec.json.encode(_Head(_VERSION, number, hashlib.sha256(lines).hexdigest()))
        _replace(self._path, head + b"\n" + lines)
        self._number = number
        return True

    def _all(self, documents: Mapping[Kind, Sequence[bytes]], digests: Sequence[Digest], now_s: float) -> list[bytes]:
        keys, teams, users = (_by_id(documents[kind]) for kind in ("key", "team", "user"))
        owners = {id_: _owners(document) for id_, document in keys.items()}
        known, self._lines = self._lines, {}
        found = []
        for digest in digests:
            key = keys.get(digest.key)
            if key is None:
                continue
            team, user = owners[digest.key]
            # An owner that is not there is one that may do nothing: deleting is refused while it has keys.
            told = digest, key, teams.get(team, _NONE), users.get(user, _NONE)
            line = known[told] if told in known else _line(*told)
            self._lines[told] = line
            if line is not None and not is_over(digest, now_s):
                found.append(line)
        return found


class _Id(msgspec.Struct):
    id: str


class _Owners(msgspec.Struct):
    team: str = ""
    user: str = ""


def _by_id(documents: Sequence[bytes]) -> dict[str, bytes]:
    decode = msgspec.json.Decoder(_Id).decode
    return {decode(document).id: document for document in documents}


def _owners(document: bytes) -> tuple[str, str]:
    found = msgspec.json.decode(document, type=_Owners)
    return found.team, found.user


def _line(digest: Digest, key: bytes, team: bytes, user: bytes) -> bytes | None:
    entry = entry_of(
        digest,
        msgspec.json.decode(key, type=Key),
        msgspec.json.decode(team, type=Team) if team else None,
        msgspec.json.decode(user, type=User) if user else None,
    )
    return None if entry is None else msgspec.json.encode(entry) + b"\n"


def _replace(path: Path, content: bytes) -> None:
    """Have a file hold this, or what it held before, whatever happens meanwhile."""
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
