"""`velox cache purge`: takes answers out of the response cache of the running gateway.

Knows: the call of the admin API, and what is printed. Does not know: where the admin listener is, or its token
(settings/loading.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from urllib.parse import urlencode

from velox.admin.call import AdminCaller
from velox.runtime.commands.account_arguments import seconds

__all__ = ["add_cache_arguments", "asked_of", "purge_lines"]


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


def purge_lines(caller: AdminCaller, asked: Mapping[str, str], *, as_json: bool) -> list[str]:
    """Ask for a purge; return what is printed. asked: parameters of the call. Raises as AdminCaller.ask_api() does."""
    answer = caller.ask_api("POST", f"/api/v1/cache/purge?{urlencode(asked)}", "purged")
    n_purged = answer["purged"]
    return [json.dumps(answer) if as_json else f"{n_purged:,} answer{'s' * (n_purged != 1)} purged"]
