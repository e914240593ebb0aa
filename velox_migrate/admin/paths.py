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
from velox_migrate.admin.costs import FindCost, LitellmCosts
from velox_migrate.admin.reports import LitellmReports, Model
from velox_migrate.admin.table import LitellmTable

__all__ = ["Model", "litellm_paths"]


def litellm_paths(
    accounts: Callable[[], Accounts],
    records: Callable[[], Store],
    now: Callable[[], float],
    models: Sequence[Model],
    logger: logging.Logger,
    costs: Callable[[], FindCost],
    upstreams: Sequence[str],
    bytes_per_token: int,
) -> LitellmTable:
    """Return the table of all of them.

    accounts, records: open what calls need; they may wait, and raise ApiError or StoreError. now: Unix time. models:
    those that routes name. logger: the operations log. costs: makes what prices an answer. upstreams: their names.
    bytes_per_token: of a prompt, estimated.
    """
    keys = LitellmAccounts(accounts, records, now, logger)
    reports = LitellmReports(accounts, records, now, models)
    priced = LitellmCosts(costs, models, upstreams, bytes_per_token)
    return LitellmTable([*keys.routes(), *reports.routes(), *priced.routes(), *absent_routes()])
