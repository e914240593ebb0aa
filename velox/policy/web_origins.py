"""Which web pages of elsewhere may use a gateway: a list of origins (RFC 6454 §6.1), as settings have it.

Knows: patterns of origins. Does not know: HTTP, or who asks for them (gateway/front/cors.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from velox.policy.patterns import is_exact, matches

__all__ = ["ANY_PAGE", "WebOrigins"]

ANY_PAGE: Final = "*"
# As browsers send it. What is no such thing matches no pattern, whatever text it holds.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@?#\\]+")
_OPAQUE: Final = "null"  # of a page without an origin: a file, a frame in a sandbox


class WebOrigins:
    """A list. patterns: `https://app.example`, `http://localhost:*`, `null`; `*` alone is every page."""

    __slots__ = ("_exact", "_patterns", "any_page")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.any_page: Final = ANY_PAGE in patterns
        self._exact: Final = frozenset(filter(is_exact, patterns))
        self._patterns: Final = tuple(each for each in patterns if not is_exact(each) and each != ANY_PAGE)

    def __repr__(self) -> str:
        return f"<WebOrigins {len(self._exact) + len(self._patterns)}{' and any' if self.any_page else ''}>"

    def __bool__(self) -> bool:
        return self.any_page or bool(self._exact) or bool(self._patterns)

    def names(self, origin: bytes) -> bool:
        """Say whether the list has an origin other than by `*` alone."""
        text = origin.decode("latin-1").lower()
        if text == _OPAQUE or not self._patterns or _ORIGIN.fullmatch(text) is None:
            return text in self._exact
        return text in self._exact or any(matches(pattern, text) for pattern in self._patterns)

    def allows(self, origin: bytes) -> bool:
        """Say whether pages of an origin may use the gateway."""
        return self.any_page or self.names(origin)
