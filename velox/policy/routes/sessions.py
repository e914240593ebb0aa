"""The session of an agent that a request belongs to, and how long a provider keeps its prompt.

Each turn of an agent sends the whole conversation again. Where the last turn went, the provider has most of it in its
cache, at a tenth of the price; elsewhere all of it is paid for. The agents name their session by themselves:

    x-velox-session                      whoever says it to Velox
    x-claude-code-session-id             Claude Code (Anthropic's page for LLM gateways)
    session-id, session_id               Codex, pi (KarpelesLab/teamclaude#352, router-for-me/CLIProxyAPI#4452)
    x-session-affinity, x-opencode-session   opencode (Wei-Shaw/sub2api#1578, earendil-works/pi#9437)
    x-session-id, x-amp-thread-id, conversation_id   others
    prompt_cache_key                     the body's: Cursor, Codex, AI SDKs (OpenAI: "prompt caching")
    metadata.user_id                     Claude Code's older ones: `user_HASH_account_ID_session_ID`, or JSON with
                                         `session_id` (ding113/claude-code-hub#939); what else it is, is of one user
    session_id                           the body's: OpenRouter

A header goes first: no body is read for it. Not `x-client-request-id`: it names one request.

Knows: these names. Does not know: who serves a session (gateway/cluster/routing.py), or bodies that are no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from velox.heads import RequestHead

__all__ = ["lifetime_s", "session_of"]

_HEADERS: Final = (
    *(b"x-velox-session", b"x-claude-code-session-id", b"session-id", b"session_id", b"x-session-id"),
    *(b"x-session-affinity", b"x-opencode-session", b"x-amp-thread-id", b"conversation_id"),
)
_MARKS: Final = (b'"prompt_cache_key"', b'"user_id"', b'"session_id"')
_MOST_CHARS: Final = 512
_SESSION: Final = re.compile(r"_session_([0-9A-Za-z-]{8,64})\Z")
# How long a prompt that is not used again is kept, in seconds.
_USUAL_S: Final = 300.0  # Anthropic, Bedrock and Vertex: five minutes, again with each use
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
# OpenAI: "5 to 10 minutes of inactivity, up to a maximum of one hour".
_BY_PROVIDER: Final[Mapping[str, float]] = MappingProxyType(dict.fromkeys(("openai", "azure", "foundry"), _HOUR_S))
_LONGER: Final = ((b'"24h"', b'"prompt_cache_retention"', _DAY_S), (b'"1h"', b'"cache_control"', _HOUR_S))


class _Metadata(msgspec.Struct):
    user_id: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()


_BODY: Final = msgspec.json.Decoder(_Body)
_METADATA: Final = msgspec.json.Decoder(_Metadata)
_TEXT: Final = msgspec.json.Decoder(str)
_OWN: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def session_of(head: RequestHead, body: bytes | bytearray | None) -> str:
    """Return what names the session of a request; "" if nothing does."""
    for name in _HEADERS:
        value = head.header(name)
        if value:
            return value.decode("latin-1")[:_MOST_CHARS]
    if not body or not any(mark in body for mark in _MARKS):
        return ""
    try:
        fields = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return _text(fields.prompt_cache_key) or _of_user(fields.metadata) or _text(fields.session_id)


def lifetime_s(provider: str, body: bytes | bytearray | None) -> float:
    """Return how long a provider keeps the prompt of a request that is not used again. provider: its row's name."""
    if body:
        for value, field, seconds in _LONGER:
            if value in body and field in body:
                return seconds
    return _BY_PROVIDER.get(provider, _USUAL_S)


def _of_user(metadata: msgspec.Raw) -> str:
    """Return the session that a user's id tells of, or the id."""
    if not bytes(metadata).startswith(b"{"):
        return ""
    try:
        user = _text(_METADATA.decode(metadata).user_id)
        if user.startswith("{"):
            return _text(_OWN.decode(user).get("session_id", msgspec.Raw())) or user
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    found = _SESSION.search(user)
    return user if found is None else found.group(1)


def _text(raw: msgspec.Raw) -> str:
    """Return a string of JSON, "" for anything else."""
    if not bytes(raw).startswith(b'"'):
        return ""
    try:
        return _TEXT.decode(raw)[:_MOST_CHARS]
    except (msgspec.DecodeError, UnicodeError):
        return ""
