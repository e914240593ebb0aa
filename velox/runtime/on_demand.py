"""What only some configurations need, and the modules that it is in: the memory of a gateway has no more than it uses.

    importing()   imports what a configuration needs, a module in a step. The supervisor takes all steps before it
                  forks, so that the processes share the pages and no request waits for an import; a worker takes them
                  in turns of its loop when a reload brings what it has not had

Whoever makes such a part imports it where it is made: upstreams/members.py, signing/authorities.py, engine_factory().

Knows: who needs what. Does not know: what a part does.
"""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Iterable, Iterator
from typing import Final

from velox.policy.routes.entries import UpstreamEntry
from velox.policy.routes.proxies import proxy_of
from velox.protocol.http2.engines import engine_factory
from velox.providers.provider import Keyless
from velox.providers.rows import PROVIDERS
from velox.settings import Settings
from velox.settings.mail_url import is_mail_url

__all__ = ["has_adapter", "has_proxy", "importing", "signs_in"]

# In pieces that take some milliseconds each.
_ADAPTERS: Final = (
    "velox.dialects.canonical.model",
    "velox.dialects.chat.write_reply",
    "velox.dialects.chat.read_reply",
    "velox.dialects.converse.read_reply",
    "velox.dialects.generate.write_reply",
    "velox.dialects.generate.read_reply",
    "velox.dialects.messages.write_reply",
    "velox.dialects.messages.read_reply",
    "velox.dialects.responses.write_reply",
    "velox.dialects.responses.read_reply",
    "velox.gateway.answers.background",
    "velox.gateway.answers.kept_answers",
    "velox.gateway.translation.adapter",
    "velox.gateway.websocket.responses_socket",
    "velox.runtime.upstreams.dialects",
)
_FILES: Final = ("velox.ledger.sqlite", "velox.accounts.sqlite")
_LEDGER: Final = ("velox.runtime.admin_api", "velox.runtime.ledger.stores", "zoneinfo")
# httpx in pieces, too: a reload brings them between requests.
_HTTPX: Final = (
    "urllib.request",
    "anyio._backends._asyncio",
    "h11",
    "httpcore",
    "httpcore._backends.anyio",
    "httpx",
    "velox.runtime.http_client",
)
_AUTHORITIES: Final = ("velox.providers.aws", "velox.runtime.signing.chains", *_HTTPX)


def has_adapter(entry: UpstreamEntry) -> bool:
    """Say whether requests may have to be put into another dialect, wire wrapper or path for an upstream."""
    return bool(entry.apis) or any(family.native for family in PROVIDERS[entry.provider].families)


def signs_in(entry: UpstreamEntry) -> bool:
    """Say whether credentials of a cloud sign the requests to an upstream in."""
    return not entry.keys and PROVIDERS[entry.provider].keyless is not Keyless.CLIENT


def has_proxy(entry: UpstreamEntry, settings: Settings) -> bool:
    """Say whether an upstream is reached by a proxy."""
    return any(proxy_of(entry.proxy, origin, settings.proxies) is not None for origin in entry.origins)


def shares_objects(settings: Settings) -> bool:
    """Say whether other gateways may know of the same objects: those of one Redis, else those of one database."""
    return settings.redis_url is not None or (settings.ledger is not None and settings.ledger_database is not None)


def shares_answers(settings: Settings) -> bool:
    """Say whether other gateways may have the same kept answers."""
    return settings.redis_url is not None or bool(shares_objects(settings) and settings.kept_database_bytes)


def importing(settings: Settings) -> Iterator[None]:
    """Import what some settings need; yield after each module."""
    engine_factory(settings.http2_engine)
    yield
    importlib.import_module("encodings.idna")  # getaddrinfo() has every name encoded by it
    yield
    # OpenSSL reads its configuration and loads its algorithms at the first context: 3 MB, which a worker shares with
    # whoever had one before it was forked.
    if any(origin.scheme == "https" for entry in settings.upstreams for origin in entry.origins):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    yield
    for name in _modules(settings):
        importlib.import_module(name)
        yield


def _modules(settings: Settings) -> Iterable[str]:
    if any(map(has_adapter, settings.upstreams)):
        yield from _ADAPTERS
    if any(route.cache is not None for route in settings.routes):
        yield "velox.gateway.cache.response_cache"
    if any(route.join is not None for route in settings.routes):
        yield "velox.gateway.join.joining"
    if any(has_proxy(entry, settings) for entry in settings.upstreams):
        yield "velox.runtime.upstreams.proxied"
    if any(map(signs_in, settings.upstreams)):
        yield from _AUTHORITIES
    if shares_objects(settings):
        yield "velox.runtime.shared.objects"
        yield f"velox.runtime.shared.objects_{'postgres' if settings.redis_url is None else 'redis'}"
    if settings.traces is not None:
        yield from (*_HTTPX, "velox.gateway.request.traced_exchange", "velox.runtime.traces.exporter")
    if settings.ledger is not None:
        yield from _LEDGER
        if settings.ledger_database is None:
            yield from _FILES
        if settings.alert_webhook is not None and is_mail_url(settings.alert_webhook.reveal()):
            yield "velox.runtime.ledger.mail"
        elif settings.alert_webhook is not None:
            yield from (*_HTTPX, "velox.runtime.ledger.alert_formats", "velox.runtime.ledger.webhook")
