"""Who asks the admin listener, by the token that is shown, and which pages that opens.

Knows: tokens by their digests, roles, pages that need none. Does not know: what pages show.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from typing import Final

from velox.admin.message import AdminRequest, RefusalError

__all__ = ["OPEN_PAGES", "Role", "TokenCheck", "bearer_of"]

# A kubelet can't be given a token. Without one these say yes or no, and nothing else.
_LITELLMS: Final = ("/health/liveliness", "/health/liveness", "/health/readiness")
OPEN_PAGES: Final = frozenset({"/healthz", "/livez", "/readyz", *_LITELLMS})
# These cost the workers time, or change something.
_ADMIN_PAGES: Final = frozenset({"/reload", "/debug/pprof/profile"})


class Role(enum.Enum):
    """What who asks may do.

    ADMIN: everything. VIEWER: read. OWN: read what is its own: who shows a key of a client, which may manage its team's
    keys. OPEN: no token is set, so
    that who reaches the listener sees all pages and may reload; the API is only read.
    """

    ADMIN = "admin"
    VIEWER = "viewer"
    OWN = "own"
    OPEN = "open"


class TokenCheck:
    """Asks for the token. token None: nobody is asked. viewer: the token that may only read; None: there is none."""

    def __init__(self, token: str | None, viewer: str | None = None) -> None:
        self._digest: Final = None if token is None else _digest(token)
        self._viewer: Final = None if viewer is None else _digest(viewer)

    def __repr__(self) -> str:
        return f"<TokenCheck open={self._digest is None}>"

    def role_of(self, request: AdminRequest) -> Role | None:
        """Return what the request may do; None: nothing. In constant time: digests are compared, of equal length."""
        if self._digest is None:
            return Role.OPEN
        digest = _digest(bearer_of(request))
        is_admin = hmac.compare_digest(digest, self._digest)
        is_viewer = self._viewer is not None and hmac.compare_digest(digest, self._viewer)
        return Role.ADMIN if is_admin else Role.VIEWER if is_viewer else None

    def is_trusted(self, request: AdminRequest) -> bool:
        """Tell whether the request may see everything."""
        return self.role_of(request) is not None

    def check(self, request: AdminRequest) -> None:
        """Raise RefusalError(401) for a page that the request may not see, also if there is no such page.

        403: the token may only read.
        """
        if request.path in OPEN_PAGES:
            return
        role = self.role_of(request)
        if role is None:
            message = "send the admin token: Authorization: Bearer TOKEN"
            raise RefusalError(401, message, (("WWW-Authenticate", "Bearer"),))
        if role is Role.VIEWER and request.path in _ADMIN_PAGES:
            raise RefusalError(403, "this token may only read: the admin token is needed")


def bearer_of(request: AdminRequest) -> str:
    """Return the token that the request shows, "" if none. LiteLLM's clients may send it in headers of their own."""
    own = request.headers.get("x-litellm-api-key", "")
    if own:
        return own.removeprefix("Bearer ").strip()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "").strip()  # one of the providers for Terraform


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1")).digest()
