"""Who may read the admin listener: anyone for what a probe asks, else who presents the token.

Knows: the token, and which pages need none. Does not know: what a page shows.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from velox.admin.message import AdminRequest, RefusalError

__all__ = ["OPEN_PAGES", "Door"]

# A kubelet can't be given a token. Without one these say yes or no, and nothing else.
OPEN_PAGES: Final = frozenset({"/healthz", "/livez", "/readyz"})


class Door:
    """Asks for the token. token None: nobody is asked."""

    def __init__(self, token: str | None) -> None:
        self._digest: Final = None if token is None else hashlib.sha256(token.encode("latin-1")).digest()

    def __repr__(self) -> str:
        return f"<Door open={self._digest is None}>"

    def knows(self, request: AdminRequest) -> bool:
        """Tell whether the request may see everything. In constant time: digests are compared, of equal length."""
        if self._digest is None:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else ""
        return hmac.compare_digest(hashlib.sha256(presented.encode("latin-1")).digest(), self._digest)

    def check(self, request: AdminRequest) -> None:
        """Raise RefusalError(401) for a page that the request may not see, also if there is no such page."""
        if request.path not in OPEN_PAGES and not self.knows(request):
            message = "send the admin token: Authorization: Bearer TOKEN"
            raise RefusalError(401, message, (("WWW-Authenticate", "Bearer"),))
