"""The id that a client gives its request: which ones are believed.

Knows: the field, and what may stand in it. Does not know: Velox's own ids (observe/), or where either is written.
"""

from __future__ import annotations

import re
from typing import Final

from velox.heads import RequestHead

__all__ = ["REQUEST_ID", "client_id", "is_id"]

REQUEST_ID: Final = b"x-request-id"
_FORM: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def is_id(value: bytes) -> bool:
    """Say whether a value may pass as an id, up to the upstream and back to the client (B-26)."""
    return _FORM.fullmatch(value) is not None


def client_id(head: RequestHead) -> bytes | None:
    """Return the id that a client gave its request; None if it gave none that may pass."""
    if not head.shape.may_have_id:
        return None
    value = head.header(REQUEST_ID)
    return value if value is not None and is_id(value) else None
