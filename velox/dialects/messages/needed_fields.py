"""Fields of Claude's Messages without which the answer would be another one: refused where they can't be had.

State of a conversation that Anthropic keeps, and an answer of another kind. On a translated model, and where a request
goes up as sent to another service.

Knows: why each is refused. Does not know: who has it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from velox.dialects.canonical.errors import BadRequestError

__all__ = ["needed"]

_NEEDED: Final = MappingProxyType(
    {
        "container": "container is kept by Anthropic, and the model of this route is not there",
        "compaction": "a compaction can't be asked for at this model's provider; leave the field out",
        "thread": "thread is kept by Anthropic, and the model of this route is not there; send the whole conversation",
    }
)
# `error.details` by which Anthropic's SDK learns to go on without a thread: its tool runner makes one by default, and
# sends the whole conversation then (the SDK's ThreadUnsupportedRequestErrorDetails).
_DETAILS: Final = MappingProxyType({"thread": b'{"error_code":"thread_unsupported_request","unsupported":["thread"]}'})


def needed(name: str) -> BadRequestError | None:
    """Return the refusal of a field without which the answer is another one; None: of any other field."""
    message = _NEEDED.get(name)
    return None if message is None else BadRequestError(message, name, _DETAILS.get(name, b""))
