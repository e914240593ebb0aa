"""Answers of token endpoints (RFC 6749 §5), and tokens in files that rotate.

Knows: how a token and its lifetime are written, and errors. Does not know: whose endpoint it is.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from velox.heads import Headers
from velox.providers.renewal import Fetched, FetchError, HttpRequest, Reply, one_line

__all__ = ["checked_token", "form_post", "token_of"]

# How often a file is looked at.

# A token whose lifetime nobody says is fetched again after this.
_UNSAID_AGAIN_S: Final = 300.0


class _Answer(msgspec.Struct):
    """Azure writes numbers as text, Google's impersonation another case."""

    access_token: str | None = None
    expires_in: int | float | str | None = None
    expires_on: int | float | str | None = None
    error: msgspec.Raw = msgspec.Raw()
    error_description: str | None = None


class _ErrorObject(msgspec.Struct):
    """Google's APIs have an object for an error."""

    message: str | None = None
    status: str | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_ERROR_OBJECT: Final = msgspec.json.Decoder(_ErrorObject)
_ERROR_WORD: Final = msgspec.json.Decoder(str)


def form_post(url: str, form: dict[str, str], headers: Headers | None = None) -> HttpRequest:
    """Return the question to a token endpoint."""
    kind = (b"content-type", b"application/x-www-form-urlencoded")
    return HttpRequest(b"POST", url, [kind, *(headers or [])], urlencode(form).encode("ascii"))


def token_of(reply: Reply, who: str, now_s: float) -> Fetched[str]:
    """Read a token endpoint's answer. Raises FetchError: with what it said, which has no token in it."""
    try:
        found = _ANSWER.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _Answer()
    if reply.status != 200 or not found.access_token:
        said = one_line(": ".join(filter(None, (_error_of(found.error), found.error_description))))
        raise FetchError(f"{who} gave no token: it answered {reply.status}{f' ({said})' if said else ''}")
    token = checked_token(found.access_token, who)
    lifetime_s, until_s = _number(found.expires_in), _number(found.expires_on)
    if lifetime_s is not None:
        return Fetched(token, now_s + lifetime_s)
    return Fetched(token, until_s, _UNSAID_AGAIN_S if until_s is None else None)


def checked_token(token: str, who: str) -> str:
    """Return a token that a header can carry. Raises FetchError."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise FetchError(f"the token of {who} is {'empty' if not token else 'none that a header can carry'}")
    return token


def _error_of(raw: msgspec.Raw) -> str | None:
    try:
        if bytes(raw)[:1] == b'"':
            return _ERROR_WORD.decode(raw)
        found = _ERROR_OBJECT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return ": ".join(filter(None, (found.status, found.message)))


def _number(value: float | str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
