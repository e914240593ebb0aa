"""Whether a caller may use a model, and which model the limits of a request count.

Knows: names of models. Does not know: who called (auth.py), or where a request names its model (access.py).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from velox.heads import RequestHead
from velox.policy.patterns import matches
from velox.types import Caller

__all__ = ["limited_model", "may_use"]

# Azure's: the path names what runs, whatever model the body names.
_IN_PATH: Final = b"/deployments/"


def may_use(caller: Caller, model: str) -> bool:
    """Say whether a caller's key may use a model."""
    return not caller.models or any(matches(pattern, model) for pattern in caller.models)


def limited_model(head: RequestHead, model: str | None) -> str | None:
    """Return the model whose limits count a request: what runs, where the path and the body may name different ones."""
    path = head.path
    if path.find(b"%") >= 0:  # `in` costs eight times as much: it tries a number first, and catches an exception
        path = unquote_to_bytes(path)
    at = path.lower().find(_IN_PATH)
    if at < 0:
        return model
    return path[at + len(_IN_PATH) :].partition(b"/")[0].decode("latin-1")
