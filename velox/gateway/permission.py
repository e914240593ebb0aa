"""Which models a caller may use: where its key is limited to some, what can't be told to keep to them is refused.

Knows: that a request may hide its model. Does not know: who called (auth.py).

A limited key may use a body whose model Velox reads, and may ask (GET and HEAD) for what there is. Nothing else: an
upload, a batch or a stored prompt could run any model in the key's name.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from velox.errors import Reason, VeloxError
from velox.policy.patterns import matches
from velox.types import Caller, RequestHead

__all__ = ["check_model", "limited_model"]

# Azure's: the path names what runs, whatever model the body names.
_IN_PATH: Final = b"/deployments/"
_ASKING: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})


def check_model(caller: Caller, head: RequestHead, model: str | None) -> None:
    """Raise VeloxError(FORBIDDEN) if the caller is limited to other models. model: None if none was read."""
    if not caller.models:
        return
    if model is None or _IN_PATH in _decoded(head.path):
        if head.method not in _ASKING:
            message = "this key is limited to some models, and no model can be read from this request"
            raise VeloxError(Reason.FORBIDDEN, message)
    elif not any(matches(pattern, model) for pattern in caller.models):
        raise VeloxError(Reason.FORBIDDEN, "this key may not use this model", param="model")


def limited_model(head: RequestHead, model: str | None) -> str | None:
    """Return the model whose limits count a request: what runs, where the path and the body may name different ones."""
    path = _decoded(head.path)
    if _IN_PATH not in path:
        return model
    return path.partition(_IN_PATH)[2].partition(b"/")[0].decode("latin-1")


def _decoded(path: bytes) -> bytes:
    """Return a path as the upstream will read it, however a client wrote its letters."""
    return unquote_to_bytes(path) if b"%" in path else path
