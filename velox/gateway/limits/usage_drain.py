"""Reading on for the usage: what becomes of a stream whose client has left before its end.

    DrainRules.wants()   asked when the client leaves: is this stream read to its end?
    UsageDrain           stands in for the client then: takes the rest of the reply, and counts it

An upstream tells what an answer cost behind its last word. A client that leaves at that word would pay for words only,
and of a model that reasons these are the least of it. So the upstream is not cancelled, but read on for some seconds
and bytes, where somebody counts the usage. What is over these bounds is cancelled, and counts as estimated.

The exchange itself stays as it is (exchange.py): it holds its place in the limits of concurrency, as the upstream works
for it, and is accounted at its end.

Knows: when a drain is worth it, and how far it goes. Does not know: what a usage is, or how a stream is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from velox.heads import Headers
from velox.net.application import ChunkWriter, PairsOnly, Successor

__all__ = ["NO_DRAINS", "DrainRules", "DrainWhen", "UsageDrain"]

DrainWhen: TypeAlias = Literal["off", "reasoning", "all"]


@dataclass(frozen=True, slots=True)
class DrainRules:
    """Of one worker. when: for which models. timeout_s, most_bytes: of one drain. most: at one time."""

    when: DrainWhen
    timeout_s: float
    most_bytes: int
    most: int

    def wants(self, reasons: Callable[[], bool]) -> bool:
        """Return True if a stream is to be read on. reasons: asked whether its model may reason."""
        return self.when == "all" or (self.when == "reasoning" and reasons())


NO_DRAINS: Final = DrainRules("off", 0.0, 0, 0)


class UsageDrain(PairsOnly):
    """The client of a reply that nobody reads. until_s: when it ends, on the loop's clock. n_before: bytes of the reply
    that the client has had. address: that it had.

    on_full: called once, when more has come than may. Taken away by close(): it leads back to the exchange.
    """

    __slots__ = ("_left", "_on_full", "address", "n_before", "until_s")

    is_write_paused: Final = False
    may_run_ahead: Final = False
    chunk_writer: Final[ChunkWriter | None] = None

    def __init__(
        self, rules: DrainRules, now_s: float, n_before: int, on_full: Callable[[], None], address: str = ""
    ) -> None:
        self.address: Final = address
        self._left = rules.most_bytes
        self._on_full: Callable[[], None] | None = on_full
        self.until_s: Final = now_s + rules.timeout_s
        self.n_before: Final = n_before

    def __repr__(self) -> str:
        return f"<UsageDrain until={self.until_s:.2f} left={self._left}>"

    def close(self) -> None:
        """It is over."""
        self._on_full = None

    # -- Client -----------------------------------------------------------------------------------------

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """Never called: the client has had the head."""
        raise AssertionError("a drain begins inside a reply")

    def body(self, data: bytes, end: bool) -> None:
        """Count it."""
        self._left -= len(data)
        if self._left < 0 and self._on_full is not None:
            on_full, self._on_full = self._on_full, None
            on_full()

    def cut(self, last: bytes) -> None:
        """See Client: nobody is there to be told."""

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client: nobody is there to be told."""

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called, as begin_reply()."""
        raise AssertionError("a drain begins inside a reply")

    def finish(self) -> None:
        """See Client."""

    def hold_more(self, n_bytes: int) -> bool:
        """Never called: the body was held before."""
        raise AssertionError("a drain begins inside a reply")

    def release_body(self) -> None:
        """See Client: the body's room was given back when the client left."""
