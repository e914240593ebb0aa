"""Limits that can't hold, each right by itself: of keys that nobody has, of a Redis that nothing here can speak to.

Knows: which keys there are now, and that those of VELOX_API_KEYS_FILE may change. Does not know: how one is written.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from velox.policy.limit_rules import LimitRule
from velox.settings.problems import Problem
from velox.types import KeyEntry, Scope

__all__ = ["limit_problems", "redis_problem"]

_PER_KEY: Final = frozenset({Scope.KEY, Scope.KEY_MODEL})
_OF_KEYS: Final = ("key_rpm", "key_tpm", "key_concurrency")
_NEEDED: Final = frozenset({"api_keys", "api_keys_file", "limits", *_OF_KEYS})


def limit_problems(values: Mapping[str, Any]) -> Iterable[Problem]:
    """Say which limits are for keys that there are none of. `values` lacks the wrong ones."""
    if not values.keys() >= _NEEDED:
        return
    if not values["api_keys"] and values["api_keys_file"] is None:
        yield from _without_keys(values)
    elif values["api_keys_file"] is None:
        # Else a name may come with the file's next change, and until then nobody has it.
        yield from _of_nobody(values["limits"], values["api_keys"])
    workers, concurrency = values.get("workers"), values.get("upstream_concurrency")
    if isinstance(workers, int) and isinstance(concurrency, int) and 0 < concurrency < workers:
        expected = f"expected at least VELOX_WORKERS, {workers}: each worker gets a share"
        yield Problem("VELOX_UPSTREAM_CONCURRENCY", str(concurrency), expected)


def redis_problem(
    values: Mapping[str, Any], find: Callable[[str], object] = importlib.util.find_spec
) -> Iterable[Problem]:
    """Say that VELOX_REDIS_URL needs a package that is not installed. find: None for a module that is not there."""
    if values.get("redis_url") is not None and find("redis") is None:
        expected = "expected the package redis with it: pip install 'velox-gateway[redis]'"
        yield Problem("VELOX_REDIS_URL", "", expected)


def _without_keys(values: Mapping[str, Any]) -> Iterable[Problem]:
    expected = "expected VELOX_API_KEYS or VELOX_API_KEYS_FILE with it: without keys all callers are one"
    for field in _OF_KEYS:
        if values[field]:
            yield Problem(f"VELOX_{field.upper()}", str(values[field]), expected)
    rules: tuple[LimitRule, ...] = values["limits"]
    for rule in rules:
        if rule.scope in _PER_KEY or rule.keys:
            yield Problem("a limit of keys", "", expected, where=rule.where)


def _of_nobody(rules: Iterable[LimitRule], keys: Iterable[KeyEntry]) -> Iterable[Problem]:
    names = {key.caller_name for key in keys}
    for rule in rules:
        for n, name in enumerate(rule.keys, 1):
            if name not in names:
                # Not by its name: it may be the key itself.
                expected = f"expected names of keys; name {n} of this limit is no key's"
                yield Problem("keys", "", expected, where=rule.keys_where)
