"""LiteLLM's paths of keys, teams, users, spend and models, put together for the admin listener.

Knows: which parts there are. Does not know: what a call does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from velox.accounts.service import Accounts
from velox.ledger.store import Store
from velox_migrate.admin.absent import absent_routes
from velox_migrate.admin.accounts import LitellmAccounts
from velox_migrate.admin.reports import LitellmReports, Model
from velox_migrate.admin.table import LitellmTable

__all__ = ["Model", "litellm_paths"]


def litellm_paths(
    accounts: Callable[[], Accounts],
    records: Callable[[], Store],
    now: Callable[[], float],
    models: Sequence[Model],
    logger: logging.Logger,
) -> LitellmTable:
    """Return the table of all of them.

    accounts, records: open what calls need; they may wait, and raise ApiError or StoreError. now: Unix time. models:
    those that routes name. logger: the operations log.
    """
    keys = LitellmAccounts(accounts, records, now, logger)
    reports = LitellmReports(accounts, records, now, models)
    return LitellmTable([*keys.routes(), *reports.routes(), *absent_routes()])
