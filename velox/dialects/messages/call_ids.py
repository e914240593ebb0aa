"""Ids of calls as Anthropic takes them: letters, digits, "_" and "-".

Other servers have more in theirs ("functions.Bash:0" is Kimi's), and want them back as they were. A client sends what
it got to whichever model comes next, also to Claude, which answers 400 to such an id: so it gets one that fits, from
which the other can be read again.

Knows: the form of such an id. Does not know: where ids stand.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

__all__ = ["given_id", "shown_id"]

_FITTING: Final = re.compile(r"[a-zA-Z0-9_-]+")
# The number of a request, and the other server's id.
_SHOWN: Final = re.compile(r"vx[0-9a-z]+_([a-zA-Z0-9_-]+)")


def shown_id(given: str, request_id: str) -> str:
    """Return the id that a client gets. request_id: ours (Call.id): ids of others may come again in a later answer."""
    if _FITTING.fullmatch(given) is not None:
        return given
    text = base64.urlsafe_b64encode(given.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("=")
    return f"{request_id}_{text}"


def given_id(shown: str) -> str:
    """Return the id that the model's server gave, of what a client sends."""
    found = _SHOWN.fullmatch(shown)
    if found is None:
        return shown
    try:
        given = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return shown
    return shown if _FITTING.fullmatch(given) is not None else given
