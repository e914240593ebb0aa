"""What keys, teams and users have spent, and how records name them.

Knows: from when on spend counts there: the begin of a budget's window. Does not know: paths, shapes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from velox.accounts.active import caller_id, caller_id_of
from velox.accounts.model import Account, Key, Kind
from velox.accounts.service import Accounts
from velox.ledger.record import key_id, recorded_key
from velox.ledger.store import Dimension, Store, UsageQuery
from velox.policy.budgets.budget import NANO_PER_USD, window_at
from velox_migrate.admin.fields import first_budget

__all__ = ["Names", "find_key", "label_of", "since_of", "spent_of"]

_DAY_S: Final = 86_400
_HOUR_S: Final = 3600
_HOURS_S: Final = 89 * _DAY_S
_HEX: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
_DIMENSIONS: Final[Mapping[Kind, Dimension]] = {"key": "key", "team": "team", "user": "user"}


def find_key(accounts: Accounts, given: object) -> Key | None:
    """Return the key of which a client gives the secret, its SHA-256, or our id; None: there is none."""
    if not isinstance(given, str) or not given:
        return None
    match = _HEX.fullmatch(given)
    found = None if match is None else accounts.key_of_digest(bytes.fromhex(match[1]))
    if found is None and given.startswith("key_"):
        found = accounts.find_key(given)
    return accounts.key_of(given) if found is None else found  # a secret may look like either


def label_of(key: Key) -> str:
    """Return what records have for a key."""
    return recorded_key(caller_id(key), key.name or key.id)


def since_of(account: Account, now_s: int) -> int:
    """Return from when on its spend counts: the begin of its budget's window, or of time; as sums are kept."""
    budget = first_budget(account)
    start_s = 0 if budget is None else window_at(budget, now_s).start_s
    unit_s = _HOUR_S if now_s - start_s < _HOURS_S else _DAY_S
    return start_s // unit_s * unit_s


def spent_of(kind: Kind, accounts: Iterable[Account], store: Callable[[], Store], now_s: int) -> dict[str, float]:
    """Return the dollars that each has spent, by its id."""
    by_start: dict[int, list[Account]] = {}
    for account in accounts:
        by_start.setdefault(since_of(account, now_s), []).append(account)
    found: dict[str, float] = {}
    if not by_start:
        return found
    dimension = _DIMENSIONS[kind]
    until_s = (now_s // _DAY_S + 2) * _DAY_S
    with contextlib.closing(store()) as records:
        for since_s, some in by_start.items():
            names = {caller_id(each).hex() if isinstance(each, Key) else each.id: each.id for each in some}
            where = ((dimension, next(iter(names))),) if len(names) == 1 else ()
            nano: dict[str, int] = {}
            for (name,), sums in records.totals(UsageQuery(since_s, until_s, (dimension,), where)):
                # A key that was renamed has rows under each of its names.
                id_ = names.get(key_id(name) if kind == "key" else name)
                if id_ is not None:
                    nano[id_] = nano.get(id_, 0) + sums.cost_nano
            found |= {id_: each / NANO_PER_USD for id_, each in nano.items()}
    return found


class Names:
    """What LiteLLM's clients call the keys of records: by their SHA-256."""

    def __init__(self, accounts: Accounts) -> None:
        self._tokens: Final = {caller_id_of(id_).hex(): each.hex() for id_, each in accounts.key_digests().items()}

    def token(self, recorded: str) -> str:
        """Return the SHA-256 of a key; of one that is gone, or not of ours, what records have."""
        return self._tokens.get(recorded.partition(" ")[0], recorded)
