"""WebSockets of the Responses API that Velox answers itself: those of a worker.

    ResponsesSockets.answers()  no upstream could take such a WebSocket as a tunnel: some speak another API
    check(), open()             the handshake: key, origin, a place among the tunnels (VELOX_MAX_TUNNELS)

Knows: which are open, and how much they may keep. Does not know: what is said on one (responses_socket.py).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.gateway.request.exchange import ExchangeOwner
from velox.heads import RequestHead
from velox.net.application import Client
from velox.protocol.websocket.handshake import GOING_AWAY
from velox.types import ApiKind, Caller

if TYPE_CHECKING:  # loads a dialect, which most gateways don't need
    from velox.gateway.websocket.responses_socket import ResponsesSocket

__all__ = ["ResponsesSockets", "forget_oldest"]

# Of the conversations of all connections of a worker.
_MOST_KEPT_BYTES: Final = 256 * 1024 * 1024


class ResponsesSockets:
    """Those of one worker."""

    def __init__(self, owner: ExchangeOwner) -> None:
        self._owner: Final = owner
        self._open: Final[set[ResponsesSocket]] = set()

    def __repr__(self) -> str:
        return f"<ResponsesSockets {len(self._open)}>"

    def answers(self, head: RequestHead) -> bool:
        """Say whether a WebSocket that a head asks for is answered here, and not passed on as a tunnel.

        No upstream can be chosen before the first message names a model: so none may be unable to take it.
        """
        owner = self._owner
        if owner.parts.endpoints.facts(head.path).client_api is not ApiKind.RESPONSES:
            return False
        adapters = [member.adapter for member in owner.routing.members]
        return any(each is not None and not each.takes_sockets for each in adapters)

    def check(self, head: RequestHead) -> Caller:
        """Return the caller of a handshake. Raises VeloxError."""
        parts = self._owner.parts
        caller = parts.auth.check(head)
        parts.endpoints.check(head)
        return caller

    def open(self, client: Client, head: RequestHead) -> ResponsesSocket | None:
        """Answer a handshake; None: it was refused."""
        # Here, not above: gateways without other dialects need none of it. With some it was imported at the start.
        from velox.gateway.websocket.responses_socket import ResponsesSocket

        owner = self._owner
        socket = ResponsesSocket(owner, client, head, owner.turns, self._closed)
        try:
            if owner.draining:
                raise VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True)
            owner.parts.tunnels.take(socket)
        except VeloxError as error:
            owner.refuse(client, head, error)
            return None
        self._open.add(socket)
        owner.loop.call_soon(socket.switch)  # the connection is still in the midst of reading the head
        return socket

    def sweep(self, now_s: float, *, is_short_of_memory: bool) -> None:
        """End what takes too long. now_s: the loop's time."""
        for socket in tuple(self._open):
            socket.check(now_s, is_short_of_memory=is_short_of_memory)
        forget_oldest(self._open, _MOST_KEPT_BYTES)

    def close_all(self, text: str) -> None:
        """End all of them."""
        for socket in tuple(self._open):
            socket.close(GOING_AWAY, text)

    def _closed(self, socket: ResponsesSocket) -> None:
        self._open.discard(socket)
        self._owner.parts.tunnels.give(socket)


def forget_oldest(sockets: Collection[ResponsesSocket], most_bytes: int) -> None:
    """Have those forget their conversations that were silent for longest, until all keep no more than so much."""
    n_bytes = sum(socket.messages.kept_bytes for socket in sockets)
    if n_bytes <= most_bytes:
        return
    for socket in sorted(sockets, key=lambda each: each.moved_s):
        n_bytes -= socket.messages.kept_bytes
        socket.messages.forget()
        if n_bytes <= most_bytes:
            return
