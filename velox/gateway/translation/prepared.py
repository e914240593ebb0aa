"""What an attempt is to do, made before it is sent: a request for its upstream, or an answer that needs none.

A request whose reply passes as it comes needs no more than an UpstreamRequest.

Knows: these values. Does not know: how they are made (adapter.py, forward.py), or sent (group.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.gateway.reply.filters import ReplyFilter
from velox.heads import Headers
from velox.net.upstream.interface import UpstreamRequest
from velox.protocol.usage.token_usage import TokenUsage

__all__ = ["BackgroundAnswer", "LocalAnswer", "Prepared"]


class Prepared:
    """A request as it is sent, and how its reply is read.

    translation: makes the filter that puts the reply into the client's dialect; None: it is in that already.
    left_out: fields of a request in its own dialect that the upstream does not take.
    usage_so_far: of a request that was split into several calls: returns the usage of those that were answered, None
    where none was.
    """

    __slots__ = ("left_out", "request", "translation", "usage_so_far")

    def __init__(
        self,
        request: UpstreamRequest,
        translation: Callable[[], ReplyFilter] | None = None,
        left_out: tuple[str, ...] = (),
        usage_so_far: Callable[[], TokenUsage | None] | None = None,
    ) -> None:
        self.request: Final = request
        self.translation: Final = translation
        self.left_out: Final = left_out
        self.usage_so_far: Final = usage_so_far


class LocalAnswer:
    """An answer of status 200 that needs no upstream. own: header fields of Velox's own, beside the others."""

    __slots__ = ("body", "headers", "own")

    def __init__(self, headers: Headers, body: bytes, own: Headers) -> None:
        self.headers: Final = headers
        self.body: Final = body
        self.own: Final = own


class BackgroundAnswer(LocalAnswer):
    """The answer is made in the background; the client gets its id at once."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__([], b"", [])
