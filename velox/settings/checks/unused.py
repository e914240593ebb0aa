"""Variables of the environment that say something to other programs, and nothing to Velox: told, so that nobody counts
on them.

Knows: which these are, and when what they say would have changed something here. Does not know: what is done instead of
them, beyond the setting that does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from velox.policy.routes.entries import UpstreamEntry
from velox.providers.rows import OPENAI
from velox.settings.checks.contradictions import Given

__all__ = ["unused_variables"]

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
# By the provider whose SDK reads them.
_BASE_URLS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        "anthropic": ("ANTHROPIC_BASE_URL",),
        "gemini": ("GOOGLE_GEMINI_BASE_URL",),
    }
)
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
    upstreams: Collection[UpstreamEntry],
    useless_proxies: Collection[str] = (),
) -> Iterator[str]:
    """Yield a line for each kind that is set. values: of Velox's own, by field. given: those that were set.

    useless_proxies: variables of proxies that can't be used.
    """
    if useless_proxies:
        names = ", ".join(useless_proxies)
        yield f"set and not used: {names}; a proxy is http://HOST:PORT or https://HOST:PORT, and SOCKS is not spoken"
    yield from _base_urls(environ, values, given, upstreams)
    if "VELOX_LISTEN" in given and given["VELOX_LISTEN"].name == "PORT":
        yield "PORT says the port, and only this machine can connect to it: VELOX_LISTEN=0.0.0.0 lets others"
    bundles = [name for name in _BUNDLES if environ.get(name)]
    has_own = environ.get("SSL_CERT_FILE") or values.get("upstream_ca_file") or all(each.ca_file for each in upstreams)
    if bundles and not has_own:
        yield f"set and not used: {', '.join(bundles)}; SSL_CERT_FILE or VELOX_UPSTREAM_CA_FILE names certificates"
    asked = {name: each for name, each in _INSTEAD.items() if environ.get(name)}
    others = [f"{name} ({instead})" for name, (field, instead) in asked.items() if not values.get(field)]
    if others:
        yield f"set, and no setting of Velox: {', '.join(others)}"


def _base_urls(
    environ: Mapping[str, str],
    values: Mapping[str, Any],
    given: Mapping[str, Given],
    upstreams: Collection[UpstreamEntry],
) -> Iterator[str]:
    """Tell of a base URL that SDKs read beside a key: the key may be of that server, and goes to the vendor's here."""
    ports = frozenset(address.port for address in values.get("listen") or ())
    for entry in upstreams:
        is_usual = not entry.where and entry.keys and [str(each) for each in entry.origins] == [OPENAI.origin]
        provider = OPENAI.name if is_usual else entry.provider
        keys = {key.ref.removeprefix("env:") for key in entry.keys}
        name = next((each for each in _BASE_URLS.get(provider, ()) if environ.get(each)), "")
        if not name or "VELOX_UPSTREAM_ORIGIN" in given or not (is_usual or keys & set(entry.where.split(", "))):
            continue
        if not _is_own(environ[name], ports):
            instead = "VELOX_UPSTREAM_ORIGIN, or `origin` of an upstream, names another server"
            yield f"{name} is set and not used: {', '.join(sorted(keys))} goes to {entry.origins[0]}; {instead}"


def _is_own(url: str, ports: Collection[int]) -> bool:
    """Say whether a URL is likely this gateway's own: an application beside it has that in its environment."""
    try:
        parts = urlsplit(url)
        return parts.hostname in _LOOPBACK and (parts.port or 80) in ports
    except ValueError:
        return False
