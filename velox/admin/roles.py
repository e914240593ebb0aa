"""Who asks the admin listener, by the token or the session's cookie that is shown, and which pages that opens.

Knows: tokens by their digests, roles, cookies, pages that need none. Does not know: what pages show.
"""

from __future__ import annotations

import enum
import hmac
from typing import Final

from velox.admin.message import AdminRequest, RefusalError
from velox.admin.sessions import Session, Sessions, digest_of

__all__ = ["CSRF_HEADER", "OPEN_FILES", "OPEN_PAGES", "Role", "TokenCheck", "bearer_of", "cookie_name", "cookie_of"]

# A page sends its session's CSRF token here with each change; a page of another origin can't set it.
CSRF_HEADER: Final = "x-velox-csrf"

# A kubelet can't be given a token. Without one these say yes or no, and nothing else.
_LITELLMS: Final = ("/health/liveliness", "/health/liveness", "/health/readiness")
OPEN_PAGES: Final = frozenset({"/health", "/healthz", "/livez", "/readyz", *_LITELLMS})
# What paths of files begin with in which there is nothing of a gateway (page_files.py).
OPEN_FILES: Final = "/page/"
# They look for the session themselves (sign_in.py).
_FORMS: Final = frozenset({"/sign-in", "/sign-out"})
# These cost the workers time, or change something.
_ADMIN_PAGES: Final = frozenset({"/reload", "/upgrade", "/debug/pprof/profile", "/debug/pprof/heap", "/playground"})


class Role(enum.Enum):
    """What who asks may do.

    ADMIN: everything. VIEWER: read. OWN: read what is its own: who shows a key of a client, which may manage its team's
    keys. OPEN: no token is set, so
    that who reaches the listener sees all pages, may reload and upgrade; the API is only read.
    """

    ADMIN = "admin"
    VIEWER = "viewer"
    OWN = "own"
    OPEN = "open"


class TokenCheck:
    """Asks for the token, or for the cookie of a browser that has signed in with it.

    token None: nobody is asked. viewer: the token that may only read; None: there is none.
    """

    def __init__(self, token: str | None, viewer: str | None, sessions: Sessions) -> None:
        self._sessions: Final = sessions
        self._digest: Final = None if token is None else digest_of(token)
        self._viewer: Final = None if viewer is None else digest_of(viewer)

    def __repr__(self) -> str:
        return f"<TokenCheck open={self._digest is None}>"

    @property
    def is_open(self) -> bool:
        """True where no token is asked for."""
        return self._digest is None

    def role_of(self, request: AdminRequest) -> Role | None:
        """Return what the request may do; None: nothing. In constant time: digests are compared, of equal length.

        A cookie counts where no token is shown. For a change it counts only with the session's CSRF token.
        """
        if self._digest is None:
            return Role.OPEN
        token = bearer_of(request)
        if token:
            return self._role(digest_of(token))
        session = self.session_of(request)
        if session is None:
            return None
        if request.method not in ("GET", "HEAD") and not session.allows(request.headers.get(CSRF_HEADER, "")):
            return None
        return self._role(session.token)

    def session_of(self, request: AdminRequest) -> Session | None:
        """Return the session whose cookie the request shows; None: no session, or one that has ended."""
        identifier = cookie_of(request)
        return self._sessions.find(identifier) if identifier else None

    def sign_in(self, token: str) -> str | None:
        """Begin a session of who shows a token; return its identifier, None if the token is wrong."""
        digest = digest_of(token)
        return None if self._role(digest) is None else self._sessions.begin(digest)

    def sign_out(self, request: AdminRequest) -> None:
        """End the session whose cookie the request shows."""
        self._sessions.end(cookie_of(request))

    def is_trusted(self, request: AdminRequest) -> bool:
        """Tell whether the request may see everything."""
        return self.role_of(request) is not None

    def check(self, request: AdminRequest) -> None:
        """Raise RefusalError(401) for a page that the request may not see, also if there is no such page.

        403: the token may only read.
        """
        if request.path in OPEN_PAGES or request.path in _FORMS or request.path.startswith(OPEN_FILES):
            return
        role = self.role_of(request)
        if role is None:
            message = "send the admin token: Authorization: Bearer TOKEN"
            raise RefusalError(401, message, (("WWW-Authenticate", "Bearer"),))
        if role is Role.VIEWER and request.path in _ADMIN_PAGES:
            raise RefusalError(403, "this token may only read: the admin token is needed")

    def _role(self, digest: bytes) -> Role | None:
        is_admin = self._digest is not None and hmac.compare_digest(digest, self._digest)
        is_viewer = self._viewer is not None and hmac.compare_digest(digest, self._viewer)
        return Role.ADMIN if is_admin else Role.VIEWER if is_viewer else None


def cookie_name(request: AdminRequest) -> str:
    """Return the name of the session's cookie, which has the port in it.

    A browser has one set of cookies for all ports of a host (RFC 6265 §8.5).
    """
    port = request.host.rpartition(":")[2]
    return f"velox_session_{port}" if port.isascii() and port.isdecimal() else "velox_session"


def cookie_of(request: AdminRequest) -> str:
    """Return the session's identifier that the request shows, "" if none (RFC 6265 §5.4)."""
    wanted = cookie_name(request)
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def bearer_of(request: AdminRequest) -> str:
    """Return the token that the request shows, "" if none. LiteLLM's clients may send it in headers of their own."""
    own = request.headers.get("x-litellm-api-key", "")
    if own:
        return own.removeprefix("Bearer ").strip()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "").strip()  # one of the providers for Terraform
