"""The page's playground: a chat request that the admin process sends to its own gateway, and the answer as it comes.

Knows: what the page may ask for. Does not know: where the gateway is, or how it is asked (velox.runtime.playground).

    POST /playground {"key": "sk-...", "body": {"model": ..., "messages": [...], "stream": true}}

A browser could ask the gateway itself only where CORS lets the page's origin in. The key is a client's: all limits and
budgets count. It is kept nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from velox.admin.message import AdminRequest, RefusalError, Reply

__all__ = ["Playground", "SendChat"]

# Sends a body to Chat Completions with a client's key, "" for none; returns the reply, whose body may be a stream.
# Raises RefusalError.
SendChat: TypeAlias = Callable[[str, bytes], Awaitable[Reply]]

_KEY: Final = re.compile("[!-~]{0,1024}")


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What the page sends."""

    body: msgspec.Raw
    key: str = ""


class Playground:
    """Serves POST /playground. send: asks the gateway."""

    def __init__(self, send: SendChat) -> None:
        self._send: Final = send

    def __repr__(self) -> str:
        return "<Playground>"

    async def reply(self, request: AdminRequest) -> Reply:
        """Send what the page asks for. Raises RefusalError: 400 for another body, and what sending raises."""
        if request.method != "POST":
            raise RefusalError(405, "this path takes POST only", (("Allow", "POST"),))
        try:
            asked = msgspec.json.decode(request.body, type=_Asked)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise RefusalError(400, "expected an object of JSON with body, and key") from exc
        if not _KEY.fullmatch(asked.key):
            raise RefusalError(400, "key: expected at most 1024 visible ASCII characters")
        return await self._send(asked.key, bytes(asked.body))
