"""The blocks of a stream one after the other, for clients whose dialect forbids that they overlap.

Anthropic's blocks and OpenAI's items end before the next begins, and clients keep one current item. Upstreams that
speak Chat Completions may write several calls at once: what comes of a later one waits until the one before is whole.

Knows: events of blocks, and how much may wait. Does not know: any dialect.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import Cite, Close, Delta, Open, Sign

__all__ = ["MOST_WAITING_BYTES", "BlockEvent", "InTurn"]

BlockEvent: TypeAlias = Open | Delta | Sign | Cite | Close

# Of what the translation of a stream has to keep back, in any dialect: it could not be written yet.
MOST_WAITING_BYTES: Final = 4 * 1024 * 1024
_MOST_WAITING: Final = 128
_MOST_EVENTS: Final = 1024 * 1024


class _Waiting:
    """A block that waits, with what has come of it."""

    __slots__ = ("events", "is_whole")

    def __init__(self, opened: Open) -> None:
        self.events: Final[list[BlockEvent]] = [opened]
        self.is_whole = False


class InTurn:
    """Of one stream. current: the number of the block whose events pass; None: none is open.

    Deltas and signatures of the current block need not be given to take(): they pass.
    """

    __slots__ = ("_n_bytes", "_waiting", "current")

    def __init__(self) -> None:
        self._waiting: Final[dict[int, _Waiting]] = {}
        self._n_bytes = 0
        self.current: int | None = None

    def __repr__(self) -> str:
        return f"<InTurn block {self.current}, {len(self._waiting)} waiting>"

    def take(self, event: BlockEvent) -> list[BlockEvent]:
        """Take an event; return those that are due. Raises BrokenReplyError: too much has to wait."""
        if isinstance(event, Open):
            return self._open(event)
        if event.n != self.current:
            self._let_wait(event)
            return []
        if not isinstance(event, Close):
            return [event]
        self.current = None
        return [event, *self._next()]

    def finish(self) -> list[BlockEvent]:
        """Return all that still waits; blocks that are not whole are closed."""
        due: list[BlockEvent] = []
        while self.current is not None:
            due += self.take(Close(self.current))
        return due

    def _open(self, opened: Open) -> list[BlockEvent]:
        if self.current is None:
            self.current = opened.n
            return [opened]
        if len(self._waiting) >= _MOST_WAITING:
            raise BrokenReplyError(f"over {_MOST_WAITING} blocks of the upstream's stream overlap")
        self._waiting[opened.n] = _Waiting(opened)
        return []

    def _let_wait(self, event: Delta | Sign | Cite | Close) -> None:
        waiting = self._waiting.get(event.n)
        if waiting is None or waiting.is_whole:
            return  # of a block that is closed
        waiting.events.append(event)
        waiting.is_whole = isinstance(event, Close)
        self._n_bytes += _size(event)
        if self._n_bytes > MOST_WAITING_BYTES or len(waiting.events) > _MOST_EVENTS:
            raise BrokenReplyError(f"over {MOST_WAITING_BYTES} bytes of overlapping blocks wait for the first one")

    def _next(self) -> list[BlockEvent]:
        """Go on with the block that has waited longest, and those after it, as far as they are whole."""
        due: list[BlockEvent] = []
        while self._waiting and self.current is None:
            n = next(iter(self._waiting))
            waiting = self._waiting.pop(n)
            self._n_bytes -= sum(map(_size, waiting.events))
            due += waiting.events
            if not waiting.is_whole:
                self.current = n
        return due


def _size(event: BlockEvent) -> int:
    if isinstance(event, Delta):
        return len(event.text)
    if isinstance(event, Cite):
        return len(event.citation.source.url) + len(event.citation.quote or b"")
    return len(event.signature.value) if isinstance(event, Sign) else 0
