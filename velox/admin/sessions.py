"""Sessions of browsers that have signed in: who each is, and until when.

Knows: identifiers, expiry, the bound on their number. Does not know: cookies or forms (sign_in.py), or what a role
opens.

A session lives in the memory of the admin process: after its restart people sign in again. Identifiers and CSRF tokens
are 256 bits of the operating system's random numbers (OWASP Session Management Cheat Sheet: at least 64); only the
digest of an identifier is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["LIFETIME_S", "Session", "Sessions", "digest_of"]

LIFETIME_S: Final = 12 * 3600
_MOST: Final = 64


class Session(NamedTuple):
    """One browser that has signed in.

    token: digest of the token that was shown. csrf: what its pages send with each change. end_s: by the caller's clock.
    """

    token: bytes
    csrf: str
    end_s: float

    def allows(self, csrf: str) -> bool:
        """Tell whether a change comes from one of its pages."""
        return hmac.compare_digest(digest_of(self.csrf), digest_of(csrf))


class Sessions:
    """All sessions of an admin listener; of more than 64 the oldest ends. now_s: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s: Final = now_s
        self._sessions: Final[dict[bytes, Session]] = {}  # by the digest of the identifier, the oldest first

    def __repr__(self) -> str:
        return f"<Sessions {len(self._sessions)}>"

    def begin(self, token: bytes) -> str:
        """Begin a session of who has shown a token with this digest; return its identifier."""
        now_s = self._now_s()
        for digest in [digest for digest, each in self._sessions.items() if each.end_s <= now_s]:
            del self._sessions[digest]
        while len(self._sessions) >= _MOST:
            del self._sessions[next(iter(self._sessions))]
        identifier = secrets.token_urlsafe(32)
        self._sessions[digest_of(identifier)] = Session(token, secrets.token_urlsafe(32), now_s + LIFETIME_S)
        return identifier

    def find(self, identifier: str) -> Session | None:
        """Return the session with this identifier; None if it has ended or there was none."""
        session = self._sessions.get(digest_of(identifier))
        return session if session is not None and session.end_s > self._now_s() else None

    def end(self, identifier: str) -> None:
        """End a session; nothing happens where there is none."""
        self._sessions.pop(digest_of(identifier), None)


def digest_of(secret: str) -> bytes:
    """Return what is kept and compared in place of an identifier or a token, whatever was sent as one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
