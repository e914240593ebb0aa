"""Who is calling: the keys that clients must present, where any are configured.

Knows: digests of the keys (never the keys). Does not know: limits, or what goes upstream. A missing and a wrong key get
answers of the same form; each candidate is compared in constant time (R-AUTH-2).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from velox.errors import Reason, VeloxError
from velox.types import RequestHead

__all__ = ["Authenticator"]

_KEY_HEADERS: Final = (b"x-api-key", b"api-key")
_MAX_KEY_BYTES: Final = 8192


class Authenticator:
    """Checks the key of a request. digests: SHA-256 of each key; none means that anyone may call."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        self._digests: Final = tuple(digests)

    @property
    def takes_keys(self) -> bool:
        """True when clients must present a key of ours."""
        return bool(self._digests)

    def check(self, head: RequestHead) -> str:
        """Return the caller's name for the log: the start of its key's digest, "" without keys.

        Raises VeloxError(AUTH_MISSING or AUTH_INVALID).
        """
        if not self._digests:
            return ""
        key = _presented(head)
        if key is None:
            raise VeloxError(Reason.AUTH_MISSING, "no valid API key was given; send Authorization: Bearer KEY")
        digest = hashlib.sha256(key).digest()
        matched = False
        # No early end: the time does not tell which key was near.
        for known in self._digests:
            matched |= hmac.compare_digest(digest, known)
        if not matched:
            raise VeloxError(Reason.AUTH_INVALID, "no valid API key was given; send Authorization: Bearer KEY")
        return digest[:4].hex()


def _presented(head: RequestHead) -> bytes | None:
    """Return the key that the client sent, if it sent one."""
    authorization = head.header(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        key = key.strip()
        return key if scheme.lower() == b"bearer" and 0 < len(key) <= _MAX_KEY_BYTES else None
    for name in _KEY_HEADERS:
        key = head.header(name) or b""
        if 0 < len(key) <= _MAX_KEY_BYTES:
            return key
    return None
