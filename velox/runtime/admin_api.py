"""The API of one gateway, put together: its databases, opened when they are first asked for.

Knows: which settings it needs. Does not know: what a call does (velox.admin.api).
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from velox.accounts.active import caller_id
from velox.accounts.model import TEAM_ADMIN, Key
from velox.accounts.service import Accounts, AccountsError
from velox.admin.api.accounts import AccountPages
from velox.admin.api.budgets import BudgetPages
from velox.admin.api.cache import CachePages
from velox.admin.api.call import ApiError, Asker
from velox.admin.api.service import Api
from velox.admin.api.usage import UsagePages
from velox.admin.roles import Role
from velox.admin.running.calls import RequestPages
from velox.admin.running.pages import Ask
from velox.ledger.record import recorded_key
from velox.ledger.store import Store
from velox.runtime.ledger.stores import account_store, record_store
from velox.runtime.priced import answer_prices
from velox.settings import Settings
from velox.shm.answer_ring import AnswerMemory, AnswerRing
from velox.shm.budget_table import BudgetMemory
from velox_migrate.admin.paths import Model, litellm_paths

__all__ = ["SharedParts", "admin_api"]


class _Databases:
    """Opens them. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._lock: Final = threading.Lock()
        self._accounts: Accounts | None = None

    def accounts(self) -> Accounts:
        """Return the accounts. Raises ApiError, StoreError."""
        settings = self._settings
        if settings.ledger is None or not settings.managed_keys:
            message = "there are no managed keys here: set VELOX_LEDGER=FOLDER and VELOX_MANAGED_KEYS=on"
            raise ApiError(404, "off", message)
        with self._lock:
            if self._accounts is None:
                self._accounts = Accounts(account_store(settings))
            return self._accounts

    def records(self) -> Store:
        """Open the store of records. Raises ApiError, StoreError."""
        if self._settings.ledger is None:
            raise ApiError(404, "off", "nothing is recorded here: set VELOX_LEDGER=FOLDER")
        return record_store(self._settings, is_reader=True, without_room=True)

    def asker_of(self, secret: str) -> Asker | None:
        """Return whose key it is; None: no key that is active. Raises StoreError."""
        if self._settings.ledger is None or not self._settings.managed_keys:
            return None
        key = self.accounts().key_in_force(secret)
        if key is None:
            return None
        return Asker(Role.OWN, key.id, key.id, _recorded(key), key.team, key.role == TEAM_ADMIN)

    def recorded_key_of(self, asked: str) -> str:
        """Return how records name a managed key, by its id; what is no id of one as it is. Raises StoreError."""
        key = self._managed(asked)
        return asked if key is None else _recorded(key)

    def managed_caller(self, asked: str) -> bytes | None:
        """Return what a managed key is counted by; None: there is none of this id. Raises StoreError."""
        key = self._managed(asked)
        return None if key is None else caller_id(key)

    def _managed(self, asked: str) -> Key | None:
        """Return the managed key of an id; None: there is none. Raises StoreError."""
        if self._settings.ledger is None or not self._settings.managed_keys:
            return None
        try:
            key = self.accounts().get("key", asked)
        except AccountsError:
            return None
        return key if isinstance(key, Key) else None


def _recorded(key: Key) -> str:
    return recorded_key(caller_id(key), key.name or key.id)


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What the API shares with the gateway's other processes; None: that is off.

    cache: the response cache. count_purge: counts a purge of it.
    """

    budgets: BudgetMemory | None
    cache: AnswerMemory | None
    count_purge: Callable[[int], None]


def admin_api(settings: Settings, version: str, shared: SharedParts, ask: Ask, logger: logging.Logger) -> Api:
    """Return the API of a gateway. ask: asks its workers. logger: the operations log."""
    databases = _Databases(settings)
    ring = None if shared.cache is None else AnswerRing(shared.cache, 0)  # which writes no row
    usage = UsagePages(databases.records, lambda: datetime.datetime.now(datetime.UTC), databases.recorded_key_of)
    routes = [
        *AccountPages(databases.accounts).routes(),
        *usage.routes(),
        *BudgetPages(shared.budgets, time.time).routes(),
        *RequestPages(ask, logger).routes(),
        *CachePages(ring, ask, databases.managed_caller, shared.count_purge, logger).routes(),
    ]
    litellm = litellm_paths(
        databases.accounts,
        databases.records,
        time.time,
        _models(settings),
        logger,
        costs=lambda: answer_prices(settings, time.time),
        upstreams=[each.name for each in settings.upstreams],
        bytes_per_token=settings.bytes_per_token,
    )
    return Api(routes, databases.asker_of, version, logger, litellm)


def _models(settings: Settings) -> list[Model]:
    """Return the models that routes name, with what each upstream is asked for."""
    return [
        Model(name, target.upstream, target.model or "")
        for route in settings.routes
        for name in route.match.models
        if "*" not in name
        for target in route.to
    ]
