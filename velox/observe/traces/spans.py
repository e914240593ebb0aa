"""The spans of one request: names and attributes, by OpenTelemetry's semantic conventions.

Knows: which attribute has what. Does not know: how spans are written (otlp.py) or sent.

    the exchange    SERVER   `POST chat`, by the kind of endpoint: HTTP, and what Velox decided
    each attempt    CLIENT   `chat gpt-4o`: a call of a model (GenAI, as of 1.37, which today's backends read)

Tokens stand on the attempt that answered, and nowhere else: backends sum them over a trace. So does content
(content.py), where it is switched on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from velox.observe.traces.otlp import CLIENT, ERROR, SERVER, UNSET, AttributeValue, Span
from velox.observe.traces.record import AttemptRecord, TraceRecord

__all__ = ["NO_CONTENT", "spans_of"]

_OPERATIONS: Final = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "converse": "chat",
    "generate": "generate_content",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
# The names of gen_ai.provider.name; another one is Velox's own.
_PROVIDERS: Final = {
    "openai": "openai",
    "azure": "azure.ai.openai",
    "foundry": "azure.ai.inference",
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "bedrock-mantle": "aws.bedrock",
    "vertex": "gcp.vertex_ai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "groq": "groq",
    "deepseek": "deepseek",
    "perplexity": "perplexity",
    "cohere": "cohere",
}
_USUAL_PORTS: Final = {"http": 80, "https": 443}
# The client has left, or reads nothing: no error of the server.
_LEFT: Final = frozenset({"client_closed", "client_slow"})
NO_CONTENT: Final[Mapping[str, AttributeValue]] = MappingProxyType({})
_NANO: Final = 1_000_000_000
_ERRORS_FROM: Final = 500  # of a server's span: what the client did wrong is no error of it
_FAILED_FROM: Final = 400  # of a client's span


def spans_of(record: TraceRecord, content: Mapping[str, AttributeValue] = NO_CONTENT) -> list[Span]:
    """Return the spans of a request: that of the exchange first.

    content: attributes of the last attempt's; of a WebSocket, whose attempts end as it begins, of the exchange's.
    """
    last = len(record.attempts) - 1
    of_exchange, of_attempt = (content, NO_CONTENT) if record.is_websocket else (NO_CONTENT, content)
    return [
        _exchange(record, of_exchange),
        *(
            _attempt(record, each, n, of_attempt if n == last else NO_CONTENT, is_last=n == last)
            for n, each in enumerate(record.attempts)
        ),
    ]


def _exchange(record: TraceRecord, content: Mapping[str, AttributeValue]) -> Span:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "velox.request.id": record.id,
        "velox.endpoint": record.endpoint,
        "velox.stream": record.is_stream,
        "velox.attempts": len(record.attempts),
    }
    _add(attributes, "velox.websocket", record.is_websocket or None)
    _add(attributes, "velox.request.model", record.model)
    _add(attributes, "velox.route", record.route)
    _add(attributes, "velox.key.id", record.key_id)
    _add(attributes, "velox.key.name", record.caller)
    _add(attributes, "velox.team", record.team)
    _add(attributes, "session.id", record.session)
    _add(attributes, "client.address", record.address)
    _add(attributes, "velox.tried", record.tried)
    _add(attributes, "error.type", record.reason or (str(record.status) if record.status >= _ERRORS_FROM else ""))
    if record.first_ns is not None:
        attributes["velox.time_to_first_byte"] = record.first_ns / _NANO
    if record.cost_nano is not None:
        attributes["velox.cost_usd"] = record.cost_nano / _NANO
    if content:  # by these, backends show a span as a call of a model
        attributes["gen_ai.operation.name"] = _OPERATIONS.get(record.endpoint, record.endpoint)
        _add(attributes, "gen_ai.request.model", record.model)
        _add(attributes, "gen_ai.conversation.id", record.session)
        attributes.update(content)
    is_cut = bool(record.reason) and record.reason not in _LEFT and record.status < _FAILED_FROM
    failed = record.status >= _ERRORS_FROM or is_cut
    return Span(
        record.trace_id,
        record.span_id,
        record.parent_id,
        record.trace_state,
        bool(record.parent_id),
        record.is_sampled,
        f"{record.method} {record.endpoint}",
        SERVER,
        record.start_ns,
        record.end_ns,
        attributes,
        ERROR if failed else UNSET,
        record.reason if failed else "",
    )


def _attempt(
    record: TraceRecord, attempt: AttemptRecord, n: int, content: Mapping[str, AttributeValue], *, is_last: bool
) -> Span:
    operation = _OPERATIONS.get(record.endpoint, record.endpoint)
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(attempt.provider, attempt.provider),
        "velox.upstream": attempt.upstream,
    }
    _add(attributes, "gen_ai.request.model", attempt.model)
    _add(attributes, "gen_ai.conversation.id", record.session)
    _add(attributes, "http.response.status_code", attempt.status or None)
    _add(attributes, "error.type", attempt.error or (str(attempt.status) if attempt.status >= _FAILED_FROM else ""))
    attributes.update(_server(attempt.address))
    if n:
        attributes["http.request.resend_count"] = n
        _add(attributes, "velox.retry.reason", attempt.cause)
    failed = bool(attempt.error) or attempt.status >= _FAILED_FROM
    if is_last and not failed:
        _add(attributes, "gen_ai.usage.input_tokens", record.input_tokens)
        _add(attributes, "gen_ai.usage.output_tokens", record.output_tokens)
        _add(attributes, "gen_ai.usage.cache_read.input_tokens", record.cached_tokens)
        _add(attributes, "gen_ai.usage.cache_creation.input_tokens", record.cache_written_tokens)
        _add(attributes, "gen_ai.usage.reasoning.output_tokens", record.reasoning_tokens)
    attributes.update(content)
    return Span(
        record.trace_id,
        attempt.span_id,
        record.span_id,
        "",
        False,
        record.is_sampled,
        f"{operation} {attempt.model}".rstrip(),
        CLIENT,
        attempt.start_ns,
        attempt.end_ns or record.end_ns,
        attributes,
        ERROR if failed else UNSET,
        attempt.error if failed else "",
    )


def _add(attributes: dict[str, AttributeValue], name: str, value: AttributeValue | None) -> None:
    """Add what is known."""
    if value is not None and value != "":
        attributes[name] = value


def _server(origin: str) -> Mapping[str, AttributeValue]:
    try:
        url = urlsplit(origin)
        port = url.port or _USUAL_PORTS.get(url.scheme)
    except ValueError:
        return {}
    if not url.hostname or port is None:
        return {}
    return {"server.address": url.hostname, "server.port": port}
