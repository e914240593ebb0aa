"""The client of a call that goes on though its own has left: for those that have joined it, or for a retry.

Knows: what has to be given back for it. Does not know: who reads the reply instead (policy/join).
"""

from __future__ import annotations

from typing import Final

from velox.heads import Headers
from velox.net.application import ChunkWriter, PairsOnly, Successor
from velox.net.client.body_budget import BodyBudget

__all__ = ["AbsentClient"]


class AbsentClient(PairsOnly):
    """Takes a reply, and drops it. address: of the client that has left.

    is_write_paused: those that have joined its call read more slowly than it comes. n_held: bytes of the request's
    body, that are taken of the budget for it until release_body() or the end.
    """

    __slots__ = ("_bodies", "_n_held", "address", "is_write_paused")

    may_run_ahead: Final = False
    chunk_writer: Final[ChunkWriter | None] = None

    def __init__(self, address: str, bodies: BodyBudget, n_held: int) -> None:
        self.address: Final = address
        self._bodies: Final = bodies
        self._n_held = n_held
        self.is_write_paused = False

    def __repr__(self) -> str:
        return f"<AbsentClient {self.address} {self._n_held} bytes held>"

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client: nobody is there to be told, nor of what follows."""

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""

    def cut(self, last: bytes) -> None:
        """See Client."""
        self.release_body()

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client."""
        self.release_body()

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: a request that is joined is no Upgrade."""
        raise AssertionError("a request with a body has no Upgrade")

    def finish(self) -> None:
        """See Client."""
        self.release_body()

    def hold_more(self, n_bytes: int) -> bool:
        """See Client."""
        return False

    def release_body(self) -> None:
        """See Client."""
        n_bytes, self._n_held = self._n_held, 0
        if n_bytes:
            self._bodies.give_of_reply(n_bytes)
