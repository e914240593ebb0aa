"""Which price a call has: the user's own before the table that is shipped.

Knows: the order of precedence, when a price is valid, and how much is remembered. Does not know: files, a clock, who
asks.

    exact name > pattern > upstream's default > shipped table; of each, the model that answered before the one asked for

A call that has no price has None, and never 0: it is for the caller to count it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from velox.memo import Memo
from velox.policy.patterns import is_exact, matches
from velox.prices.price import Band, Price
from velox.prices.table import NEVER, PLAIN_TIERS, Dated, Table, is_made

__all__ = ["Override", "PriceBook", "Seller"]

_REMEMBERED: Final = 2048
_LONGEST_NAME: Final = 256


class Seller(NamedTuple):
    """Who is paid for a call. upstream: its name in the settings. provider: of its row; "": none, an own server."""

    upstream: str
    provider: str = ""


class Override(NamedTuple):
    """A price of the user's. upstream, provider, model: None for any; a model may hold `*`.

    tiers: bands by the reply's tier, "" for the plain one. is_flat: the plain one is for every tier.
    """

    model: str | None
    upstream: str | None
    provider: str | None
    tiers: dict[str, tuple[Band, ...]]
    begins_s: int = 0
    ends_s: int | None = None
    is_flat: bool = False
    source: str = ""

    def is_for(self, seller: Seller) -> bool:
        """Tell whether the price is for calls of this upstream."""
        return self.upstream in (None, seller.upstream) and self.provider in (None, seller.provider)


class PriceBook:
    """All prices. Immutable but for what it remembers: a reload makes a new one."""

    __slots__ = ("_known", "_overrides", "_table", "_version")

    def __init__(self, table: Table, overrides: tuple[Override, ...] = (), version: str = "") -> None:
        """overrides: the later one counts where two are as exact. version: of their file."""
        self._table: Final = table
        self._overrides: Final = overrides
        self._version: Final = version
        self._known: Final[Memo[tuple[Seller, str, str, str], tuple[Dated, ...]]] = Memo(_REMEMBERED)

    def __repr__(self) -> str:
        return f"<PriceBook {self._table.version} overrides={len(self._overrides)}>"

    @property
    def table(self) -> Table:
        """Return the table that is shipped."""
        return self._table

    def find(self, seller: Seller, asked: str, answered: str, tier: str, now_s: int) -> Price | None:
        """Return the price of a call; None: it is not known. answered: "" where the reply does not tell its model.

        tier: as the reply tells it, "" for none. now_s: seconds since 1970.
        """
        return self.find_until(seller, asked, answered, tier, now_s)[0]

    def find_until(self, seller: Seller, asked: str, answered: str, tier: str, now_s: int) -> tuple[Price | None, int]:
        """Return what find() does, and the second before which it would return the same from now_s on."""
        key = (seller, asked, answered, tier)
        prices = self._known.get(key)
        if prices is None:
            prices = self._known.find(key)
            if prices is None:
                prices = self._prices(seller, asked, answered, tier)
                if len(asked) <= _LONGEST_NAME and len(answered) <= _LONGEST_NAME:
                    self._known.put(key, prices)
        until_s = NEVER
        for dated in prices:
            until_s = min(until_s, dated.changes_at(now_s))
            if dated.is_active(now_s):
                return dated.price, until_s
        return None, until_s

    def _prices(self, seller: Seller, asked: str, answered: str, tier: str) -> tuple[Dated, ...]:
        names = tuple(dict.fromkeys(name for name in (answered, asked) if name))
        own = [
            self._dated(override, tier)
            for override in self._by_precedence(seller, names)
            if override.model is None or any(matches(override.model, name) for name in names)
        ]
        shipped: tuple[Dated, ...] = ()
        for name in names if seller.provider else ():
            shipped = self._table.find(seller.provider, name, tier)
            if shipped:
                break
        if names and not shipped:
            shipped = self._table.by_bill(seller.provider, names[0])
        return (*own, *shipped)

    def _by_precedence(self, seller: Seller, names: tuple[str, ...]) -> list[Override]:
        """Return the overrides for an upstream, the one that counts most first."""
        found = [each for each in reversed(self._overrides) if each.is_for(seller)]

        def rank(override: Override) -> tuple[int, int, int]:
            model = override.model
            how = 2 if model is None else 0 if is_exact(model) else 1
            whose = next((i for i, name in enumerate(names) if model is not None and matches(model, name)), len(names))
            return how, whose, -len(model or "")

        return sorted(found, key=rank)

    def _dated(self, override: Override, tier: str) -> Dated:
        bands = override.tiers.get(tier)
        is_plain = tier in PLAIN_TIERS or (is_made(tier) and not any(map(is_made, override.tiers)))
        if bands is None and (override.is_flat or is_plain):
            bands = override.tiers.get("")
        price = Price(bands, override.source, self._version) if bands else None
        return Dated(price, override.begins_s, override.ends_s)
