"""Which keys are in force, and what each of them may do: from the accounts as they are kept.

Knows: how a key, its team and its user go together. Does not know: where they are kept, or who takes the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from velox.accounts.model import Digest, Key, Kind, Team, User
from velox.policy.patterns import covers
from velox.policy.spellings import MOST_TAGS
from velox.types import NO_RATES, KeyEntry

__all__ = ["entries_in_force"]

T = TypeVar("T")


def entries_in_force(
    documents: Mapping[Kind, Sequence[bytes]], digests: Iterable[Digest], now_s: float
) -> tuple[KeyEntry, ...]:
    """Return an entry for each digest that holds. None of a key that is blocked, or whose team or user is, or is over.

    Those that end later carry their end.
    """
    keys = {each.id: each for each in _decoded(documents["key"], Key)}
    teams = {each.id: each for each in _decoded(documents["team"], Team)}
    users = {each.id: each for each in _decoded(documents["user"], User)}
    entries = []
    for digest in digests:
        key = keys.get(digest.key)
        if key is None or key.is_blocked:
            continue
        team, user = teams.get(key.team), users.get(key.user)
        if any(owner is None or owner.is_blocked for id_, owner in ((key.team, team), (key.user, user)) if id_):
            continue
        ends = [each for each in (key.expires_s, digest.until_s) if each is not None]
        expires_s = min(ends, default=None)
        if expires_s is not None and expires_s <= now_s:
            continue
        entry = _entry(digest.digest, key, team, user, expires_s)
        if entry is not None:
            entries.append(entry)
    return tuple(entries)


def _decoded(documents: Iterable[bytes], made: type[T]) -> Iterable[T]:
    decoder = msgspec.json.Decoder(made)
    return map(decoder.decode, documents)


def _entry(digest: bytes, key: Key, team: Team | None, user: User | None, expires_s: int | None) -> KeyEntry | None:
    """Return what a key may do; None: nothing."""
    owners = [each for each in (team, user) if each is not None]
    models, endpoints = key.models, key.endpoints
    for owner in owners:
        narrowed = _within(models, owner.models), _within(endpoints, owner.endpoints)
        if None in narrowed:
            return None  # an empty list would mean all
        models, endpoints = narrowed[0] or (), narrowed[1] or ()
    priorities = [each.priority for each in (key, *owners) if each.priority is not None]
    tags = dict.fromkeys(tag for each in (key, *owners) for tag in each.tags)
    return KeyEntry(
        digest,
        name=key.name or key.id,
        models=models,
        rates=key.rates,
        priority=max(priorities, default=None),  # the lowest class has the highest number
        endpoints=endpoints,
        team=key.team,
        user=key.user,
        tags=tuple(tags)[:MOST_TAGS],
        team_rates=NO_RATES if team is None else team.rates,
        user_rates=NO_RATES if user is None else user.rates,
        expires_s=expires_s,
        in_file=True,
    )


def _within(own: tuple[str, ...], most: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what a key may use of what its owner may; (): everything; None: nothing."""
    if not most:
        return own
    if not own:
        return most
    return tuple(each for each in own if any(covers(wide, each) for wide in most)) or None
