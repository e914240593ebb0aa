"""Variables of the environment that say something to other programs, and nothing to Velox: told, so that nobody counts
on them.

Knows: which these are, and when what they say would have changed something here. Does not know: what is done instead of
them, beyond the setting that does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from velox.settings.checks.contradictions import Given

__all__ = ["unused_variables"]

_BUNDLE: Final = "NODE_EXTRA_CA_CERTS"
# Others, with the setting that does the like, by the field that it then has.
_INSTEAD: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "DATABASE_URL": ("ledger_database", "VELOX_LEDGER_DATABASE"),
        "REDIS_URL": ("redis_url", "VELOX_REDIS_URL"),
        "REDIS_SENTINEL_NODES": ("redis_url", "VELOX_REDIS_URL, of the primary"),
        "LITELLM_MASTER_KEY": ("api_keys", "VELOX_API_KEYS"),
    }
)


def unused_variables(
    environ: Mapping[str, str],
    values: Mapping[str, Any],
    given: Mapping[str, Given],
    useless_proxies: Collection[str] = (),
) -> Iterator[str]:
    """Yield a line for each kind that is set. values: of Velox's own, by field. given: those that were set.

    useless_proxies: variables of proxies that can't be used.
    """
    if useless_proxies:
        names = ", ".join(useless_proxies)
        yield f"set and not used: {names}; a proxy is http://HOST:PORT or https://HOST:PORT, and SOCKS is not spoken"
    if "VELOX_LISTEN" in given and given["VELOX_LISTEN"].name == "PORT":
        yield "PORT says the port, and only this machine can connect to it: VELOX_LISTEN=0.0.0.0 lets others"
    has_own = environ.get("SSL_CERT_FILE") or values.get("upstream_ca_file")
    if environ.get(_BUNDLE) and not has_own:
        yield f"set and not used: {_BUNDLE}; SSL_CERT_FILE or VELOX_UPSTREAM_CA_FILE names certificates"
    asked = {name: each for name, each in _INSTEAD.items() if environ.get(name)}
    others = [f"{name} ({instead})" for name, (field, instead) in asked.items() if not values.get(field)]
    if others:
        yield f"set, and no setting of Velox: {', '.join(others)}"
