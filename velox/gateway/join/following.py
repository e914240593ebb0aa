"""A follower's side of a joined call: the reply of a call that another request has begun, at its client's own pace.

Knows: how a reply is written as it comes. Does not know: what is held of it (policy/join).
"""

from __future__ import annotations

import asyncio
from typing import Final

from velox.gateway.reply.outcome import Failed
from velox.gateway.reply.reply import Reply
from velox.net.application import Client
from velox.policy.join.joined_call import Follower, FollowerAlone, JoinedCall

__all__ = ["Following"]


class Following:
    """One request that follows a call."""

    __slots__ = ("_call", "_follower", "_loop", "_waits")

    def __init__(self, call: JoinedCall, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._call: Final = call
        self._waits: asyncio.Future[None] | None = None
        self._follower: Final[Follower] = call.join(self.wake)
        self._follower.stall(True)  # until its turn has come: nobody waits for it

    def __repr__(self) -> str:
        return f"<Following {self._follower!r}>"

    @property
    def can_join_again(self) -> bool:
        """True where its call goes on without it, and a retry finds it."""
        return self._call.is_open and (self._call.may_retry or self._call.has_leader or self._call.n_followers > 1)

    def wake(self) -> None:
        """There may be more to write, or the client takes more."""
        waits = self._waits
        if waits is not None and not waits.done():
            waits.set_result(None)

    def leave(self) -> None:
        """Follow no longer. Only the first call counts."""
        self._follower.leave()

    async def write(self, reply: Reply, client: Client) -> bool:
        """Write the reply to its end. False: the client has had nothing of it, and there will be nothing.

        Raises VeloxError: it breaks off.
        """
        follower = self._follower
        while True:
            follower.stall(client.is_write_paused)
            piece = None if follower.is_stalled and not follower.is_cut else follower.next()
            if piece is FollowerAlone.ALONE:
                return False
            if piece is None:
                self._waits = self._loop.create_future()
                try:
                    await self._waits
                finally:
                    self._waits = None
                continue
            reply.on_reply(piece.head, piece.data, piece.end)
            if reply.ended.done():
                ended = reply.ended.result()
                if isinstance(ended, Failed):
                    raise ended.failure
                return True
            await asyncio.sleep(0)  # the others' turn: one that comes late has much to write
