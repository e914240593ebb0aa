"""`velox cache purge`: takes answers out of the response cache of the running gateway.

Knows: the call of the admin API, and what is printed. Does not know: where the admin listener is, or its token
(settings/loading.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from velox.admin.call import ASKS, ELSEWHERE, AdminCaller, AdminCallError
from velox.runtime.commands.account_arguments import seconds
from velox.types import Address, Secret

__all__ = ["Told", "add_cache_arguments", "asked_of", "call_purge"]

_TIMEOUT_S: Final = 10.0


class Told(NamedTuple):
    """What the command prints. code: 1: the gateway refuses, or has no cache; 2: it could not be asked."""

    code: int
    line: str


def add_cache_arguments(cache: argparse.ArgumentParser) -> None:
    """Add the actions of `velox cache`, and their arguments."""
    actions = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "take answers out of the response cache: all that every option is true of; without one, all"
    purge = actions.add_parser("purge", help=about, description=about, allow_abbrev=False)
    purge.add_argument("--route", metavar="ROUTE", help="only answers of this route")
    purge.add_argument("--key", metavar="KEY", help="only those that this key has for itself: its id, or its name")
    age = "only those that were kept so long ago, such as 90s, 10m or 7d"
    purge.add_argument("--older-than", type=seconds, metavar="TIME", help=age)
    purge.add_argument("--json", action="store_true", help="for programs, as /api/v1/cache/purge answers")
    purge.add_argument("--admin", metavar="ADDRESS", help="address of the admin listener; overrides VELOX_ADMIN_LISTEN")
    purge.add_argument("--config", metavar="FILE", help="YAML file; overrides VELOX_CONFIG")


def asked_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the parameters of the call. An empty one stays, and is refused: it must not mean all."""
    names = ("route", "key", "older_than")
    return {name: str(value) for name in names if (value := getattr(arguments, name)) is not None}


def call_purge(
    address: Address, token: Secret | None, cert: str | None, asked: Mapping[str, str], *, as_json: bool
) -> Told:
    """Ask for a purge. cert: as the listener shows; None: no TLS. asked: the parameters of the call."""
    try:
        with contextlib.closing(AdminCaller(address, token, cert, _TIMEOUT_S)) as caller:
            status, body = caller.ask("POST", f"/api/v1/cache/purge?{urlencode(asked)}")
    except AdminCallError as exc:
        return Told(2, str(exc))
    if status == 401:
        return Told(2, f"the gateway at {address} was not asked: {ASKS}")
    try:
        found: Any = json.loads(body)
        if status != 200:
            return Told(1, f"the gateway at {address} says: {found['error']['message']}")
        n_purged = int(found["purged"])
    except (ValueError, TypeError, LookupError):
        return Told(2, f"what answers at {address} is no admin listener of Velox ({status}); {ELSEWHERE}")
    return Told(0, json.dumps(found) if as_json else f"{n_purged:,} answer{'s' * (n_purged != 1)} purged")
