"""What the words of Anthropic's answers mean: stop reasons, usage, tiers, errors, ids; both ways.

Knows: the words. Does not know: where they stand.
"""

from __future__ import annotations

import base64
import binascii
import re
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.model import ApiError, Citation, ErrorKind, Search, Source, Stop, StopReason, Usage
from velox.dialects.json_text.decoding import is_given, object_in
from velox.dialects.json_text.text import raw_text
from velox.dialects.messages.wire import (
    CITATION,
    CITED,
    FOUND,
    SEARCH_INPUT,
    BlockOut,
    CitationOut,
    ErrorBody,
    StopDetails,
    UsageOut,
)
from velox.protocol.usage.tokens import REGIONAL, count_of

__all__ = [
    "RESULTS",
    "SEARCH",
    "cited_pages",
    "error_kind",
    "error_of",
    "error_type",
    "given_id",
    "latest",
    "lost",
    "query_of",
    "read_citation",
    "search_of",
    "served_tier",
    "shown_id",
    "status_kind",
    "stop_of",
    "stop_word",
    "tier_of",
    "usage_of",
    "written_usage",
]

_STOPS: Final = MappingProxyType(
    {
        "end_turn": StopReason.END,
        "stop_sequence": StopReason.STOP_STRING,
        "max_tokens": StopReason.LENGTH,
        "model_context_window_exceeded": StopReason.CONTEXT,
        "tool_use": StopReason.TOOLS,
        "refusal": StopReason.FILTER,
        "pause_turn": StopReason.PAUSE,
    }
)
_STOP_WORDS: Final = MappingProxyType({reason: word for word, reason in _STOPS.items()})
_TIERS: Final = MappingProxyType({"standard": "default", "priority": "priority"})
_SERVED: Final = MappingProxyType({"default": b"standard", "priority": b"priority"})
_KINDS: Final = MappingProxyType(
    {
        "invalid_request_error": ErrorKind.INVALID,
        "authentication_error": ErrorKind.AUTHENTICATION,
        "billing_error": ErrorKind.BILLING,
        "permission_error": ErrorKind.PERMISSION,
        "not_found_error": ErrorKind.NOT_FOUND,
        "conflict_error": ErrorKind.CONFLICT,
        "request_too_large": ErrorKind.TOO_LARGE,
        "rate_limit_error": ErrorKind.RATE_LIMIT,
        "api_error": ErrorKind.API,
        "timeout_error": ErrorKind.TIMEOUT,
        "overloaded_error": ErrorKind.OVERLOADED,
    }
)
_TYPES: Final = MappingProxyType(
    {**{kind: word for word, kind in _KINDS.items()}, ErrorKind.UNAVAILABLE: "overloaded_error"}
)
_BY_STATUS: Final = MappingProxyType({kind.value: kind for kind in ErrorKind})
# The tool by which Anthropic searches the web, as it is called in answers.
SEARCH: Final = "web_search"
RESULTS: Final = "web_search_tool_result"
_KEPT: Final = frozenset({"thinking", "redacted_thinking", "tool_use", RESULTS})
_SERVER_ERROR: Final = 500


def stop_of(word: str | None, sequence: str | None, details: StopDetails | None) -> Stop:
    """Return why the model stopped."""
    reason = _STOPS.get(word or "")
    if reason is None:
        return Stop(StopReason.END, unknown=word or "null")
    explanation = raw_text(details.explanation) if details is not None else None
    return Stop(reason, sequence, explanation)


def stop_word(stop: Stop) -> str:
    """Return the word for it."""
    return _STOP_WORDS[stop.reason]


def usage_of(usage: UsageOut) -> Usage:
    """Return the totals: Anthropic's input_tokens are without those of the cache."""
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    whole = usage.input_tokens
    if whole is not None:
        whole += (read or 0) + (written or 0)
    created, details, tools = usage.cache_creation, usage.output_tokens_details, usage.server_tool_use
    return Usage(
        whole,
        usage.output_tokens,
        read,
        written,
        created.ephemeral_1h_input_tokens if created is not None else None,
        details.thinking_tokens if details is not None else None,
        tier=usage.service_tier,
        is_regional=usage.inference_geo in REGIONAL,
        web_searches=count_of(object_in(tools), "web_search_requests") if tools else None,
    )


def written_usage(usage: Usage) -> bytes:
    """Write the counts, all of them: they have no other place than the end of a stream."""
    read, written = usage.cached or 0, usage.cache_written or 0
    text = b'{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d' % (
        max(0, (usage.input or 0) - read - written),
        written,
        read,
        usage.output or 0,
    )
    if usage.cache_written_1h is not None:
        text += b',"cache_creation":{"ephemeral_5m_input_tokens":%d,"ephemeral_1h_input_tokens":%d}' % (
            max(0, written - usage.cache_written_1h),
            usage.cache_written_1h,
        )
    if usage.reasoning is not None:
        text += b',"output_tokens_details":{"thinking_tokens":%d}' % usage.reasoning
    return text + b"}"


def tier_of(word: str | None) -> str | None:
    """Return the tier by OpenAI's name; None: it has none there."""
    return _TIERS.get(word or "")


def served_tier(tier: str | None) -> bytes | None:
    """Return Anthropic's word for the tier of an answer; None: it has none."""
    return _SERVED.get(tier or "")


def error_kind(word: str) -> ErrorKind | None:
    """Return what an error's type is about."""
    return _KINDS.get(word)


def lost(block: BlockOut) -> str | None:
    """Return what of a block of an answer the canonical model has no place for (Lost); None: nothing."""
    if block.type == "text":
        if not block.citations:
            return None  # nearly all of them
        return "answer.citations" if len(cited_pages(block)) < len(_citations(block)) else None
    is_kept = block.type in _KEPT or (block.type == "server_tool_use" and block.name == SEARCH)
    return None if is_kept else "answer.tools.hosted"


def _citations(block: BlockOut) -> list[CitationOut]:
    raw = bytes(block.citations)
    if raw in (b"", b"null", b"[]"):
        return []
    try:
        return CITED.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [CitationOut()]


def cited_pages(block: BlockOut) -> tuple[Citation, ...]:
    """Return the citations of a text that name pages: those of documents have no counterpart elsewhere."""
    if not block.citations:
        return ()
    return tuple(found for each in _citations(block) if (found := citation_of(each)) is not None)


def read_citation(raw: Raw) -> Citation | None:
    """Return a citation of a stream; None: it names no page."""
    try:
        return citation_of(CITATION.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def citation_of(citation: CitationOut) -> Citation | None:
    """Return a citation of all of its block; None: it names no page."""
    url = citation.url if citation.url is not None else citation.source
    if url is None or not url.startswith(("https://", "http://")):
        return None
    return Citation(Source(url, citation.title or ""), quote=raw_text(citation.cited_text))


def search_of(result: BlockOut, query: str) -> Search:
    """Return a search of the web by its results; none where it failed."""
    try:
        pages = FOUND.decode(result.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pages = []
    sources = tuple(Source(page.url, page.title or "") for page in pages if page.url is not None)
    return Search((query,) if query else (), sources)


def query_of(arguments: bytes) -> str:
    """Return what a search of the web looks for; "" where that can't be read."""
    try:
        return SEARCH_INPUT.decode(arguments).query
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def status_kind(status: int) -> ErrorKind:
    """Return what an error of that status is about."""
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    return ErrorKind.API if status >= _SERVER_ERROR else ErrorKind.INVALID


def error_type(kind: ErrorKind) -> str:
    """Return the type of an error of that kind."""
    return _TYPES[kind]


def error_of(error: ErrorBody, status: int | None = None) -> ApiError:
    """Return an error. status: of the reply; None: it came in a stream, or with a status of 2xx."""
    kind = error_kind(error.type)
    if kind is None:
        kind = status_kind(status) if status is not None else ErrorKind.API
    return ApiError(kind, status if status is not None else kind.value, error.message or error.type)


def latest(new: UsageOut, before: UsageOut) -> UsageOut:
    """Return the counts after one more event: the later ones, but that some servers repeat them as 0, or not at all."""
    repeated = new if new.input_tokens or not before.input_tokens else before
    read, written = repeated.cache_read_input_tokens, repeated.cache_creation_input_tokens
    return UsageOut(
        repeated.input_tokens if repeated.input_tokens is not None else before.input_tokens,
        new.output_tokens or before.output_tokens or new.output_tokens,
        before.cache_read_input_tokens if read is None else read,
        before.cache_creation_input_tokens if written is None else written,
        new.cache_creation or before.cache_creation,
        new.output_tokens_details or before.output_tokens_details,
        new.service_tier or before.service_tier,
        new.inference_geo or before.inference_geo,
        new.server_tool_use if is_given(new.server_tool_use) else before.server_tool_use,
    )


# -- ids of calls ------------------------------------------------------------------------------------
# Anthropic takes letters, digits, "_" and "-". Other servers have more in theirs ("functions.Bash:0" is Kimi's), and
# want them back as they were. A client sends what it got to whichever model comes next, also to Claude, which answers
# 400 to such an id: so it gets one that fits, from which the other can be read again.

_FITTING: Final = re.compile(r"[a-zA-Z0-9_-]+")
# The number of a request, and the other server's id.
_SHOWN: Final = re.compile(r"vx[0-9a-z]+_([a-zA-Z0-9_-]+)")


def shown_id(given: str, request_id: str) -> str:
    """Return the id that a client gets. request_id: ours (ClientCall.id), as ids of others may come again later."""
    if _FITTING.fullmatch(given) is not None:
        return given
    text = base64.urlsafe_b64encode(given.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=")
    return f"{request_id}_{text}"


def given_id(shown: str) -> str:
    """Return the id that the model's server gave, of what a client sends."""
    found = _SHOWN.fullmatch(shown)
    if found is None:
        return shown
    try:
        given = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return shown
    return shown if _FITTING.fullmatch(given) is not None else given
