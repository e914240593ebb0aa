"""Text to value, for limits: see parse.py.

Knows: what stands for the concurrency of an upstream, and the URL of Redis. Does not know: which variable it reads.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from velox.settings.parse import integer
from velox.types import Secret

__all__ = ["concurrency", "redis_prefix", "redis_url"]

_MOST_CONCURRENCY: Final = 10_000_000
_VISIBLE: Final = re.compile(r"[!-~]+")
_PREFIX: Final = re.compile(r"[!-~]{1,64}")
_QUERY: Final = re.compile(r"(?:db=[0-9]{1,5})?")
_DATABASE: Final = re.compile(r"/?|/[0-9]{1,5}")
_FORMS: Final = "expected redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], the same with rediss://, or unix://[USER:PASSWORD@]/PATH[?db=DATABASE]"


def concurrency(text: str) -> int | Literal["auto"]:
    """Parse a number of requests, `auto`, or `off`, which is 0."""
    if text == "auto":
        return "auto"
    if text == "off":
        return 0
    try:
        return integer(1, _MOST_CONCURRENCY)(text)
    except ValueError as exc:
        raise ValueError(f"{exc}, auto or off") from None


def redis_url(text: str) -> Secret:
    """Parse the URL of a Redis. It may hold a password, so no part of it is told."""
    try:
        parts = urlsplit(text)
        host, port, scheme = parts.hostname or "", parts.port, parts.scheme
    except ValueError:
        raise ValueError(_FORMS) from None
    if not _VISIBLE.fullmatch(text) or "#" in text:
        raise ValueError(_FORMS)
    if scheme in {"redis", "rediss"}:
        if not host or port == 0 or not _DATABASE.fullmatch(parts.path) or "?" in text:
            raise ValueError(_FORMS)
    elif scheme != "unix" or host or not unquote(parts.path).strip("/") or not _QUERY.fullmatch(parts.query):
        raise ValueError(_FORMS)
    return Secret(text)


def redis_prefix(text: str) -> str:
    """Parse what names of keys in Redis begin with."""
    if not _PREFIX.fullmatch(text):
        raise ValueError("expected 1 to 64 visible ASCII characters")
    return text
