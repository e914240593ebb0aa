"""The entries of all keys that are active, from the accounts as a store has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from velox.accounts.active import entry_of, is_over
from velox.accounts.model import Digest, Key, Kind, Team, User
from velox.types import KeyEntry

__all__ = ["entries_in_force"]

T = TypeVar("T")


def entries_in_force(
    documents: Mapping[Kind, Sequence[bytes]], digests: Iterable[Digest], now_s: float
) -> tuple[KeyEntry, ...]:
    """Return an entry for each digest that holds now."""
    keys = {each.id: each for each in _decoded(documents["key"], Key)}
    teams = {each.id: each for each in _decoded(documents["team"], Team)}
    users = {each.id: each for each in _decoded(documents["user"], User)}
    entries = []
    for digest in digests:
        key = keys.get(digest.key)
        if key is None or is_over(digest, now_s):
            continue
        entry = entry_of(digest, key, teams.get(key.team), users.get(key.user))
        if entry is not None and (entry.expires_s is None or entry.expires_s > now_s):
            entries.append(entry)
    return tuple(entries)


def _decoded(documents: Iterable[bytes], made: type[T]) -> Iterable[T]:
    decoder = msgspec.json.Decoder(made)
    return map(decoder.decode, documents)
