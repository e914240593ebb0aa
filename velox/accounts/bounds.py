"""What the gateway's admin has set for a key, which the admin of its team may narrow and not widen.

Knows: which fields these are, and what is narrower. Does not know: who asks (velox.admin), or where it is kept.

Keys that were made before bounds were kept have none: theirs are what the audit says of who set what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from velox.accounts.active import covers_endpoint
from velox.accounts.fields import RATE_OF, RATES, read_fields
from velox.accounts.model import Bounds, Change, Key
from velox.policy.budgets.budget import same_windows
from velox.policy.patterns import covers
from velox.types import NO_RATES, Budget, Rates

__all__ = ["LoosenedError", "bounds_of_audit", "check_bounds", "set_bounds"]

# Fields as callers name them, with what they are called in Bounds; rates are apart.
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "models": "models",
    "endpoints": "endpoints",
    "tags": "tags",
    "priority": "priority",
    "budgets": "budgets",
    "expires": "expires_s",
}
_SHOWN: Final = (*_ATTRIBUTES, *RATES)


class LoosenedError(Exception):
    """A field would allow more than the gateway's admin has set. field: which one. The message says what may be."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: the gateway's admin has set it, so its team may only narrow it: {expected}")
        self.field: Final = field


def set_bounds(bounds: Bounds, key: Key, given: Collection[str]) -> Bounds:
    """Return the bounds after the gateway's admin has given these fields, of which the key is as it is now."""
    values: dict[str, Any] = {
        attribute: getattr(key, attribute) for name, attribute in _ATTRIBUTES.items() if name in given
    }
    rates = {name: getattr(key.rates, name) for name in RATES if name in given or RATE_OF.get(name) in given}
    if rates:
        values["rates"] = Rates(**{name: rates.get(name, getattr(bounds.rates, name)) for name in RATES})
    return msgspec.structs.replace(bounds, **values)


def check_bounds(bounds: Bounds, key: Key, given: Collection[str]) -> None:
    """Refuse a key that is allowed more than its bounds in one of these fields. Raises LoosenedError."""
    for name, wide, narrow, holds in (
        ("models", bounds.models, key.models, covers),
        ("endpoints", bounds.endpoints, key.endpoints, covers_endpoint),
    ):
        if name in given and not _is_within(narrow, wide, holds):
            raise LoosenedError(name, f"expected some of these {name}")
    for name in RATES:
        most, rate = getattr(bounds.rates, name), getattr(key.rates, name)
        if (name in given or RATE_OF.get(name) in given) and most and not 0 < rate <= most:
            raise LoosenedError(name, f"expected 1 to {most}")
    if "tags" in given and not set(bounds.tags) <= set(key.tags):
        raise LoosenedError("tags", "expected its tags, and perhaps others")
    if "priority" in given and bounds.priority is not None and (key.priority or 0) < bounds.priority:
        raise LoosenedError("priority", f"expected {bounds.priority.name.lower()} at most")
    if "expires" in given and bounds.expires_s is not None and not 0 < (key.expires_s or 0) <= bounds.expires_s:
        raise LoosenedError("expires", "expected a moment that is no later")
    if "budgets" in given and not all(any(_is_tighter(own, each) for own in key.budgets) for each in bounds.budgets):
        raise LoosenedError("budgets", "expected each of its budgets, of the same window, with no more to spend")


def _is_within(narrow: Sequence[str], wide: Sequence[str], holds: Callable[[str, str], bool]) -> bool:
    """Tell whether a list allows no more than another one; an empty one is no limit."""
    return not wide or (bool(narrow) and all(any(holds(most, each) for most in wide) for each in narrow))


def _is_tighter(budget: Budget, than: Budget) -> bool:
    return (
        same_windows(budget) == same_windows(than)
        and budget.limit <= than.limit
        and budget.strict >= than.strict
        and budget.refuses_unpriced >= than.refuses_unpriced
    )


def bounds_of_audit(key: Key, changes: Iterable[Change], is_of_team: Callable[[Change], bool]) -> Bounds:
    """Return the bounds of a key from all changes of it, the first one first.

    is_of_team: True for a change that the team's admin made. A field that was given as it was already is not seen.
    Where its first change is not known, all that it has now counts as set by the gateway's admin.
    """
    bounds = None
    for change in changes:
        after, before = change.after or {}, change.before or {}
        if change.before is None:
            bounds = Bounds()
        if bounds is None or is_of_team(change):
            continue
        given = [name for name in _SHOWN if after.get(name) != before.get(name)]
        values = read_fields("key", {name: after.get(name) for name in _SHOWN if after.get(name)}, NO_RATES)
        bounds = set_bounds(bounds, msgspec.structs.replace(_PLAIN, **values), given)
        # Also of one that its team had blocked before.
        if change.action in ("block", "unblock") or after.get("blocked") != before.get("blocked"):
            bounds = msgspec.structs.replace(bounds, is_blocked=bool(after.get("blocked")))
    if bounds is None:
        bounds = msgspec.structs.replace(set_bounds(Bounds(), key, _SHOWN), is_blocked=key.is_blocked)
    return bounds


_PLAIN: Final = Key(id="", created_s=0, updated_s=0)
