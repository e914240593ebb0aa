"""An active managed key as a line of a file: all that holds for it, with the digests that it is known by.

Knows: how a line is written and read. Does not know: which keys are active (active.py), or which file it is.

What a key may do is a part by itself, `terms`: it is the same for most keys of a team, so that it is read once for all
of them, and they share it in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from velox.accounts.active import caller_id_of, entry_of
from velox.accounts.model import Digest, Key, Team, User
from velox.memo import Memo
from velox.types import KeyEntry, KeyTerms

__all__ = ["KeyLines", "KeyState", "gone_line", "key_line"]

_WHERE: Final = "managed keys"
_TERMS: Final = 4096


class KeyState(NamedTuple):
    """What holds for one key now. id: what it is counted by. entries: one for each digest; (): it is none any more."""

    id: bytes
    entries: tuple[KeyEntry, ...]


class _Line(msgspec.Struct, array_like=True):
    """digests: each with the Unix time from which on it is no key. account: "" in a line of an earlier Velox."""

    id: bytes
    name: str
    terms: msgspec.Raw
    digests: list[tuple[bytes, int | None]]
    account: str = ""


class KeyLines:
    """Reads lines."""

    def __init__(self) -> None:
        self._decode: Final = msgspec.json.Decoder(_Line).decode
        self._decode_terms: Final = msgspec.json.Decoder(KeyTerms).decode
        self._terms: Final[Memo[bytes, KeyTerms]] = Memo(_TERMS)

    def read(self, line: bytes) -> KeyState:
        """Return what a line says. Raises msgspec.DecodeError."""
        id_, name, raw, digests, account = msgspec.structs.astuple(self._decode(line))
        if not digests:
            return KeyState(id_, ())
        told = bytes(raw)
        terms = self._terms.get(told) or self._terms.find(told) or self._terms.put(told, self._decode_terms(told))
        return KeyState(id_, tuple(_entry(id_, account, name, terms, *each) for each in digests))


def _entry(id_: bytes, account: str, name: str, terms: KeyTerms, digest: bytes, expires_s: int | None) -> KeyEntry:
    return KeyEntry(digest, name, terms, expires_s, _WHERE, is_managed=True, id=id_, account=account)


def key_line(key: Key, team: Team | None, user: User | None, digests: Iterable[Digest]) -> bytes:
    """Return the line of a key, without its end. team, user: those that it names.

    Digests that are over are in it, too: readers go by their own clock, and the writer's may be wrong for a moment.
    """
    # In one order, so that two lines of one key are the same.
    entries = [entry for each in sorted(digests) if (entry := entry_of(each, key, team, user)) is not None]
    if not entries:
        return gone_line(key.id)
    first = entries[0]
    known_by = [(each.digest, each.expires_s) for each in entries]
    raw = msgspec.Raw(msgspec.json.encode(first.terms))
    return msgspec.json.encode(_Line(first.id, first.name, raw, known_by, first.account))


def gone_line(id: str) -> bytes:  # noqa: A002 - the field's name
    """Return the line of a key that is none any more."""
    return msgspec.json.encode(_Line(caller_id_of(id), "", msgspec.Raw(b"null"), []))
