"""Media that stand in a request as `data:` URLs.

Knows: RFC 2397. Does not know: any dialect.
"""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from velox.dialects.form import Media, MediaKind

__all__ = ["read_url"]

_DATA: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_BASE64: Final = ";base64"
_NO_TYPE: Final = "text/plain"


def read_url(url: str) -> Media:
    """Return what a URL says, or names: data, always as base64, or the URL itself.

    Data that are not base64 are text with escapes, such as a picture in SVG. Escapes in base64 are taken away too.
    """
    found = _DATA.match(url)
    if found is None:
        return Media(MediaKind.URL, url)
    kind, data = found[1].lower(), url[found.end() :]
    if found[2].lower().endswith(_BASE64):
        return Media(MediaKind.DATA, unquote(data) if "%" in data else data, kind or None)
    return Media(
        MediaKind.DATA,
        base64.b64encode(unquote_to_bytes(data.encode("utf-8", "replace"))).decode("ascii"),
        kind or _NO_TYPE,
    )
