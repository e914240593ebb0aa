"""Which keys are active, and what each of them may do: from the accounts as they are kept.

Knows: how a key, its team and its user go together. Does not know: where they are kept, or who takes the keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from velox.accounts.model import Digest, Key, Team, User
from velox.policy.api.table import ALL_ENDPOINTS, GROUPS, Group
from velox.policy.patterns import covers
from velox.policy.spellings import MOST_TAGS
from velox.types import NO_RATES, KeyEntry, KeyTerms

__all__ = ["caller_id", "caller_id_of", "covers_endpoint", "entry_of", "is_over"]

_ID_BYTES: Final = 8


def is_over(digest: Digest, now_s: float) -> bool:
    """Tell whether a digest holds no longer."""
    return digest.until_s is not None and digest.until_s <= now_s


def entry_of(digest: Digest, key: Key, team: Team | None, user: User | None) -> KeyEntry | None:
    """Return what a key may do; None: nothing, because it is blocked, or its team or user is, or is not there.

    team, user: those that it names. If it ends some day, the entry says when.
    """
    named = ((key.team, team), (key.user, user))
    if key.is_blocked or any(owner is None or owner.is_blocked for id_, owner in named if id_):
        return None
    owners = [each for each in (team, user) if each is not None]
    models, endpoints = key.models, key.endpoints
    for owner in owners:
        narrowed = _within(models, owner.models, covers), _within(endpoints, owner.endpoints, covers_endpoint)
        if None in narrowed:
            return None  # an empty list would mean all
        models, endpoints = narrowed[0] or (), narrowed[1] or ()
    priorities = [each.priority for each in (key, *owners) if each.priority is not None]
    # The owners' first, for what is above the limit is left off: a key evades no budget of theirs by tags of its own.
    tags = dict.fromkeys(tag for each in (*owners, key) for tag in each.tags)
    ends = [each for each in (key.expires_s, digest.until_s) if each is not None]
    terms = KeyTerms(
        models=models,
        rates=key.rates,
        priority=max(priorities, default=None),  # the lowest class has the highest number
        endpoints=endpoints,
        team=key.team,
        user=key.user,
        tags=tuple(tags)[:MOST_TAGS],
        team_rates=NO_RATES if team is None else team.rates,
        user_rates=NO_RATES if user is None else user.rates,
        budgets=key.budgets,
        team_budgets=() if team is None else team.budgets,
        user_budgets=() if user is None else user.budgets,
    )
    return KeyEntry(
        digest.digest,
        name=key.name or key.id,
        terms=terms,
        expires_s=min(ends, default=None),
        where=f"key {key.id}",
        is_managed=True,
        id=caller_id(key),
        account=key.id,
    )


def caller_id(key: Key) -> bytes:
    """Return what a key is counted by in limits, budgets and records: the same when it is rotated."""
    return caller_id_of(key.id)


def caller_id_of(id: str) -> bytes:  # noqa: A002 - the field's name
    """Return the same of a key that may be gone."""
    return hashlib.sha256(id.encode()).digest()[:_ID_BYTES]


def covers_endpoint(wide: str, narrow: str) -> bool:
    """Tell whether all that one name of endpoints stands for is in another one: of groups, or patterns of paths."""
    if wide == ALL_ENDPOINTS and narrow in GROUPS:
        return narrow != Group.ORGANIZATION.value
    return covers(wide, narrow)


def _within(own: tuple[str, ...], most: tuple[str, ...], holds: Callable[[str, str], bool]) -> tuple[str, ...] | None:
    """Return what a key may use of what its owner may; (): everything; None: nothing. holds: (wide, narrow).

    Either may be the wider one: of `gpt-4*` and `gpt-4o` the latter is left, whichever is whose.
    """
    if not most:
        return own
    if not own:
        return most
    same = frozenset(own).intersection(most)  # mostly all: long lists are not compared each with each
    both = [each for each in own if each in same or any(holds(wide, each) for wide in most)]
    both += [each for each in most if each not in same and any(holds(wide, each) for wide in own)]
    return tuple(dict.fromkeys(both)) or None
