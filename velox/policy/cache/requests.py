"""Which requests may be answered by an answer that another one has got, and what decides that two are equal.

Knows: what the fields of each API mean for that. Does not know: where answers are kept, or who calls (rules.py).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from velox.policy.cache.canonical import CanonicalBody, Number
from velox.types import ApiKind, Endpoint

__all__ = [
    "LONGEST_BODY",
    "Uncached",
    "body_text",
    "cache_key",
    "credentials",
    "may_cache_api",
    "telling_headers",
    "why_uncached",
]

# A longer body is a long conversation: it hardly comes twice, and to read it would take milliseconds.
LONGEST_BODY: Final = 64 * 1024

_APIS: Final = frozenset(
    {
        *(ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE),
        *(ApiKind.EMBEDDINGS, ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS),
    }
)
_EMBEDDINGS: Final = frozenset({ApiKind.EMBEDDINGS, ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS})
# What says for whom a request is, and changes nothing of its answer. Responses repeats all of these in its answers.
_OF_OPENAI: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
_IGNORED: Final = MappingProxyType(
    {
        ApiKind.CHAT: _OF_OPENAI,
        ApiKind.EMBEDDINGS: _OF_OPENAI,
        None: _OF_OPENAI,
        ApiKind.MESSAGES: frozenset({"metadata"}),
        ApiKind.GENERATE: frozenset({"labels"}),
    }
)
_NOTHING: Final[frozenset[str]] = frozenset()
# What a request goes on from, or leaves behind.
_STATEFUL: Final = (
    *("previous_response_id", "conversation", "background", "container", "cachedContent", "cached_content"),
    *("prompt_cache_options", "context_management"),
)
# The provider looks something up, or runs something, before it answers.
_LOOKED_UP: Final = (
    *("web_search_options", "search_parameters", "plugins", "data_sources", "mcp_servers", "tool_resources"),
    *("enable_search", "search_domain_filter", "search_recency_filter", "documents", "connectors", "dataSources"),
)
_FUNCTIONS: Final = frozenset({None, "function", "custom"})
_DECLARATIONS: Final = frozenset({"functionDeclarations", "function_declarations"})
# Of a request's head: how it travels, who sends it, with which program. Any other field may change the answer.
_NOT_TELLING: Final = frozenset(
    {
        *(b"accept", b"accept-encoding", b"accept-language", b"cache-control", b"pragma", b"content-length"),
        *(b"user-agent", b"priority", b"origin", b"referer", b"x-app", b"cookie", b"dnt", b"x-requested-with"),
        *(b"idempotency-key", b"x-idempotency-key", b"x-request-id", b"x-client-request-id", b"x-correlation-id"),
        *(b"traceparent", b"tracestate", b"baggage", b"sentry-trace", b"b3", b"x-cloud-trace-context", b"cf-ray"),
        *(b"x-amzn-trace-id", b"x-real-ip", b"forwarded", b"via", b"x-request-timeout-ms", b"x-goog-api-client"),
    }
)
_NOT_TELLING_STARTS: Final = (b"x-stainless-", b"x-forwarded-", b"x-velox-", b"x-b3-", b"sec-", b"x-datadog-", b"cf-")
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
_VERSION: Final = b"velox cache 1"


class Uncached(enum.StrEnum):
    """Why the cache is not asked for a request."""

    API = "api"
    LONG = "long"
    UNCLEAR = "unclear"
    STATEFUL = "stateful"
    LOOKED_UP = "looked_up"
    REFERS = "refers"
    SAMPLED = "sampled"
    CLIENT = "client"


def may_cache_api(api: ApiKind | None, endpoint: Endpoint) -> bool:
    """Say whether answers of an API can be kept: those that are made of the request alone."""
    return api in _APIS if api is not None else endpoint is Endpoint.COMPLETIONS


def why_uncached(api: ApiKind | None, body: CanonicalBody, *, sampled: bool) -> Uncached | None:
    """Return why a request of an API is not for the cache; None: it is. sampled: answers by chance may be kept."""
    fields = body.fields
    if api is ApiKind.RESPONSES:
        # Without `store: false` the provider keeps the answer, and its id can be asked for.
        if fields.get("store") is not False or fields.get("prompt"):
            return Uncached.STATEFUL
    elif fields.get("store"):
        return Uncached.STATEFUL
    if any(fields.get(name) for name in _STATEFUL):
        return Uncached.STATEFUL
    if any(fields.get(name) for name in _LOOKED_UP) or not _runs_no_tool(fields.get("tools")):
        return Uncached.LOOKED_UP
    if body.refers:
        return Uncached.REFERS
    if not sampled and api not in _EMBEDDINGS and not _is_settled(api, fields):
        return Uncached.SAMPLED
    return None


def body_text(api: ApiKind | None, body: CanonicalBody) -> bytes:
    """Return what of a body tells requests of an API apart. Raises NotCanonicalError."""
    return body.text(_IGNORED.get(api, _NOTHING))


def telling_headers(headers: Iterable[tuple[bytes, bytes]], *, with_credentials: bool) -> list[bytes]:
    """Return names and values of the fields of a head that may change an answer, sorted by name.

    with_credentials: those of the client go up, so that its upstream account is a part of the request.
    """
    found = [
        (name, value)
        for name, value in headers
        if name not in _NOT_TELLING
        and not name.startswith(_NOT_TELLING_STARTS)
        and (with_credentials or name not in _CREDENTIALS)
    ]
    found.sort(key=_name_of)  # those of one name stay in their order
    return [part for field in found for part in field]


def credentials(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return names and values of the fields of a head that say whose account is used, sorted by name."""
    found = [field for field in headers if field[0] in _CREDENTIALS]
    found.sort(key=_name_of)
    return [part for field in found for part in field]


def cache_key(parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 that stands for a request. parts: each with its length before it, so that none runs over."""
    digest = hashlib.sha256(_VERSION)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _name_of(field: tuple[bytes, bytes]) -> bytes:
    return field[0]


def _runs_no_tool(tools: object) -> bool:
    """Say whether all tools are the client's to run: functions, and custom ones."""
    if tools is None:
        return True
    return isinstance(tools, list) and all(isinstance(tool, dict) and _is_clients(tool) for tool in tools)


def _is_clients(tool: Mapping[str, object]) -> bool:
    if not _DECLARATIONS.isdisjoint(tool):
        return _DECLARATIONS.issuperset(tool)
    kind = tool.get("type")
    has_name = "name" in tool or "function" in tool or "custom" in tool
    return has_name and (kind is None or isinstance(kind, str)) and kind in _FUNCTIONS


def _is_settled(api: ApiKind | None, fields: Mapping[str, object]) -> bool:
    """Say whether a request asks for the likeliest answer: a temperature of 0. The usual one of all APIs is higher."""
    if api is ApiKind.GENERATE:
        inner = fields.get("generationConfig", fields.get("generation_config"))
        fields = inner if isinstance(inner, dict) else {}
    value = fields.get("temperature")
    return (type(value) is int or isinstance(value, Number)) and float(value) == 0.0
