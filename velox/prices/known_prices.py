"""The prices of calls, each kept for as long as it holds: a kind of calls is looked up once.

Knows: how many kinds are kept, and which names are too long for that. Does not know: where a price is looked up
(book.py), or what a call used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.memo import Memo
from velox.prices.price import Price

__all__ = ["KnownPrices"]

_KEPT_PRICES: Final = 2048
_LONGEST_KEPT: Final = 256  # of a name that clients make up


class KnownPrices:
    """look_up: finds a price as find() does, and until which Unix time, in seconds, it holds."""

    __slots__ = ("_known", "_look_up")

    def __init__(self, look_up: Callable[[str, str, str, str, int], tuple[Price | None, int]]) -> None:
        self._look_up: Final = look_up
        # Of each kind of call, with the seconds from and before which it holds: a price seldom ends.
        self._known: Final[Memo[tuple[str, str, str, str], tuple[int, int, Price | None]]] = Memo(_KEPT_PRICES)

    def __repr__(self) -> str:
        return f"<KnownPrices {self._known!r}>"

    def find(self, upstream: str, asked: str, answered: str, tier: str, now_s: int) -> Price | None:
        """Return the price of a call; None: none is known.

        upstream: its name. asked, answered: the models that it was asked for, and that the reply tells; "": not known.
        tier: that the reply tells. now_s: Unix time.
        """
        kind = (upstream, asked, answered, tier)
        last = self._known.known.get(kind)
        if last is not None:
            begin_s, end_s, price = last
            if begin_s <= now_s < end_s:
                return price
        found, until_s = self._look_up(upstream, asked, answered, tier, now_s)
        if len(asked) <= _LONGEST_KEPT:
            self._known.put(kind, (now_s, until_s, found))
        return found
