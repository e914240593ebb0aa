"""`velox prices`, what `velox check` says of prices, and those of calls.

Knows: which price a call to a model would have now, where it stands, and which configured models have none. Does not
know: who prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from velox.policy.patterns import is_exact
from velox.policy.routes import UpstreamEntry
from velox.prices.book import PriceBook, Seller
from velox.prices.price import Band, Price
from velox.prices.table import Table, shipped_table
from velox.settings import Settings

__all__ = ["call_prices", "check_price_lines", "price_answers", "price_book", "price_lines", "seller_of"]

_MOST_NAMED: Final = 5
_PICO_PER_MILLION: Final = 10**6
_PICO_EACH: Final = 10**12
_EACH: Final = ("web_search", "request")


def price_book(settings: Settings) -> PriceBook:
    """Return all prices: those of the settings' file before those that come with Velox."""
    return PriceBook(shipped_table(), settings.own_prices, settings.prices_version)


def seller_of(entry: UpstreamEntry, table: Table) -> Seller:
    """Return who is paid at an upstream: by its provider, or by its address where it names none."""
    if table.knows(entry.provider):
        return Seller(entry.name, entry.provider)
    return Seller(entry.name, table.provider_of(str(entry.origins[0])) or "")


def call_prices(settings: Settings) -> Callable[[str, str, str, int], Price | None]:
    """Return what finds the price of a call, by its upstream's name, model, tier and Unix time in seconds."""
    book = price_book(settings)
    sellers = {entry.name: seller_of(entry, book.table) for entry in settings.upstreams}

    def find(upstream: str, model: str, tier: str, now_s: int) -> Price | None:
        seller = sellers.get(upstream)
        return None if seller is None else book.find(seller, model, "", tier, now_s)

    return find


def price_answers(settings: Settings, model: str, upstream: str | None, tier: str, now_s: int) -> list[dict[str, Any]]:
    """Return for each upstream, or the one that is named, what a call to a model would cost there now."""
    book = price_book(settings)
    answers = []
    for entry in settings.upstreams:
        if upstream in (None, entry.name):
            price = book.find(seller_of(entry, book.table), model, "", tier, now_s)
            answers.append(_answer(entry.name, model, tier, price))
    return answers


def price_lines(answers: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the same for people."""
    for answer in answers:
        if answer["price"] is None:
            yield f"{answer['upstream']}: no price is known for {answer['model']}: its calls count as unknown, not as 0"
            continue
        yield f"{answer['upstream']}: {answer['model']}, from {answer['source']} ({answer['version']})"
        for band in answer["price"]:
            where = "" if band["above"] is None else f"  prompts of more than {band['above']} tokens:"
            if where:
                yield where
            rates = ((name, value) for name, value in band.items() if name != "above" and value is not None)
            for name, value in rates:
                unit = "each" if name in _EACH else "for a million tokens"
                yield f"  {name:13}{value:>12} $ {unit}"


def _answer(upstream: str, model: str, tier: str, price: Price | None) -> dict[str, Any]:
    known = None if price is None else [_rates(band) for band in price.bands]
    source, version = (None, None) if price is None else (price.source, price.version)
    return {
        "upstream": upstream,
        "model": model,
        "tier": tier or "default",
        "price": known,
        "source": source,
        "version": version,
    }


def _rates(band: Band) -> dict[str, str | int | None]:
    """Return the rates in dollars, as exact decimals."""
    rates: dict[str, str | int | None] = {"above": band.above if band.above >= 0 else None}
    for name, pico in band._asdict().items():
        if name != "above" and not (name in _EACH and not pico):
            rates[name] = None if pico is None else _dollars(pico, _PICO_EACH if name in _EACH else _PICO_PER_MILLION)
    return rates


def _dollars(pico: int, one: int) -> str:
    whole, part = divmod(pico, one)
    digits = f"{part:0{len(str(one)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def check_price_lines(settings: Settings, now_s: int) -> Iterator[str]:
    """Yield the table's date, how many models are priced, and which of the configured ones are not."""
    book = price_book(settings)
    table = book.table
    own = f", and {len(settings.own_prices)} of your own in {settings.prices}" if settings.own_prices else ""
    yield f"prices: {table.n_models} models of {table.source} {table.source_version}, as of {table.date}{own}"
    missing = [
        f"{model} at {entry.name}"
        for entry in settings.upstreams
        for model in sorted(_models_at(settings, entry.name))
        if book.find(seller_of(entry, table), model, "", "", now_s) is None
    ]
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        yield f"no price is known for {', '.join(missing[:_MOST_NAMED])}{more}"


def _models_at(settings: Settings, upstream: str) -> set[str]:
    """Return the models that routes name for an upstream. A pattern names none."""
    found: set[str] = set()
    for route in settings.routes:
        for target in (*route.to, *route.fallback):
            if target.upstream == upstream:
                named = target.model or route.model
                found.update([named] if named else filter(is_exact, route.match.models))
    return found
