"""`velox prices`, what `velox check` says of prices, and those of calls.

Knows: which price a call to a model would have now, where it stands, and which configured models have none. Does not
know: who prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from velox.policy.budgets.rules import BudgetRule, rules_of
from velox.policy.patterns import is_exact, matches, overlap
from velox.policy.routes.entries import UpstreamEntry
from velox.policy.routes.model_rule import told_family
from velox.prices.book import PriceBook, Seller
from velox.prices.known_prices import KnownPrices
from velox.prices.price import Band, Price
from velox.prices.table import NEVER, Table, shipped_table
from velox.protocol.slices import finished
from velox.protocol.usage.tokens import token_usage, told_units
from velox.settings import Settings

__all__ = [
    "call_prices",
    "check_price_lines",
    "making_call_prices",
    "model_names",
    "price_answers",
    "price_book",
    "price_lines",
    "seller_of",
]

# The price of a call, by its upstream's name, the model that was asked for, the one that answered ("": not known), tier
# and Unix time in seconds.
FindPrice: TypeAlias = Callable[[str, str, str, str, int], Price | None]

_MOST_NAMED: Final = 5
_REMEDY: Final = "Give prices (VELOX_PRICES), count tokens, or set `unpriced: allow`"
_PICO_PER_MILLION: Final = 10**6
# Where the name that was asked for has the region, and so the price; the reply has the model's own.
_BY_REGION: Final = frozenset({"bedrock", "aws"})
_PICO_EACH: Final = 10**12
_USUAL_PERCENT: Final = 100
_EACH: Final = ("web_search", "request")
_OF: Final = {
    **dict.fromkeys((*_EACH, "picture", "page", "annotated_page", "search_unit"), "each"),
    "audio_hour": "for an hour of sound",
    "characters": "for a million characters",
    "video_second": "for a second of video",
    "least_ms": "milliseconds at least",
}
# What the file of prices calls rates of UnitRates otherwise, and of how many units they are there.
_BY_UNIT: Final = {"hour": ("audio_hour", _PICO_EACH), "letter": ("characters", _PICO_PER_MILLION)}
_HIDDEN: Final = frozenset({"above", "pictures_only", "units"})


def price_book(settings: Settings) -> PriceBook:
    """Return all prices: those of the settings' file before those that come with Velox."""
    return PriceBook(shipped_table(), settings.own_prices, settings.prices_version)


def seller_of(entry: UpstreamEntry, table: Table) -> Seller:
    """Return who is paid at an upstream: by its provider, or by its address where it names none."""
    if table.knows(entry.provider):
        return Seller(entry.name, entry.provider)
    return Seller(entry.name, table.provider_of(str(entry.origins[0])) or "")


def call_prices(settings: Settings) -> FindPrice:
    """Return what finds the price of a call."""
    return finished(making_call_prices(settings))


def making_call_prices(settings: Settings) -> Generator[None, None, FindPrice]:
    """Return what call_prices() does, in steps."""
    book = price_book(settings)
    yield
    if not all(book.table.knows(entry.provider) for entry in settings.upstreams):
        yield from book.table.reading()
    sellers = {}
    for entry in settings.upstreams:
        sellers[entry.name] = seller_of(entry, book.table)
        yield
    rules = {entry.name: entry.model_facts for entry in settings.upstreams if entry.model_facts}

    def look_up(upstream: str, asked: str, answered: str, tier: str, now_s: int) -> tuple[Price | None, int]:
        seller = sellers.get(upstream)
        if seller is None:
            return None, NEVER
        price, until_s = _found(book, seller, asked, answered, tier, now_s)
        own = rules.get(upstream) if price is None else None
        family = told_family(seller.provider, asked, own) if own is not None else ""
        if not family:
            return price, until_s
        of_family, family_until_s = _found(book, seller, family, answered, tier, now_s)
        return of_family, min(until_s, family_until_s)

    return KnownPrices(look_up).find


def model_names(settings: Settings) -> Callable[[str, str], str]:
    """Return what names the models of upstreams in metrics: as the configuration has them, else as the price table.

    It returns "" for one that neither knows. The table is read when it is first needed.
    """
    entries = {entry.name: entry for entry in settings.upstreams}
    priced = {override.model for override in settings.own_prices if override.model and is_exact(override.model)}
    asked: dict[str, frozenset[str]] = {}
    sellers: dict[str, tuple[Table, str]] = {}
    tables: list[Table] = []

    def name(upstream: str, model: str) -> str:
        entry = entries.get(upstream)
        if entry is None:
            return ""
        if upstream not in asked:
            asked[upstream] = frozenset(each for each, _ in _models_at(settings, entry, []) if is_exact(each))
        if model in asked[upstream] or model in priced:
            return model
        if upstream not in sellers:
            if not tables:
                tables.append(shipped_table())
            sellers[upstream] = tables[0], seller_of(entry, tables[0]).provider
        table, provider = sellers[upstream]
        return table.name_of(provider, model)

    return name


def answer_prices(
    settings: Settings, now: Callable[[], float]
) -> Callable[[Iterable[tuple[str, str]], Mapping[str, object]], int | None]:
    """Return what prices an answer by its usage, as its record would be; None: no price is known, or no usage told.

    In nano-dollars, at the first upstream of several that has a price. Each has with it the model that was asked for.
    """
    find = call_prices(settings)

    def price(places: Iterable[tuple[str, str]], answer: Mapping[str, object]) -> int | None:
        told, model = answer.get("usage"), answer.get("model")
        units, tier = told_units(answer)
        if not isinstance(told, dict) and units is None:
            return None
        usage = token_usage(told if isinstance(told, dict) else {}, answer.get("service_tier"), model)
        usage = replace(usage, units=units or usage.units, tier=tier or usage.tier)
        for upstream, asked in places:
            found = find(upstream, asked, usage.model, usage.tier, int(now()))
            cost = None if found is None else found.cost(usage)
            if cost is not None:
                return cost.nano
        return None

    return price


def _found(
    book: PriceBook, seller: Seller, asked: str, answered: str, tier: str, now_s: int
) -> tuple[Price | None, int]:
    if seller.provider in _BY_REGION and asked:
        asked, answered = answered, asked
    return book.find_until(seller, asked, answered, tier, now_s)


def price_answers(
    settings: Settings, model: str, upstream: str | None, tier: str, now_s: int, answered: str = ""
) -> list[dict[str, Any]]:
    """Return for each upstream, or the one that is named, what a call to a model costs there at a time.

    answered: the model that a reply tells; "": none.
    """
    find = call_prices(settings)
    return [
        _answer(entry.name, model, tier, find(entry.name, model, answered, tier, now_s))
        for entry in settings.upstreams
        if upstream in (None, entry.name)
    ]


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
                unit = _OF.get(name, "for a million tokens")
                yield f"  {name:13}{value:>12}{'' if name == 'least_ms' else ' $'} {unit}"
        if answer["regional_percent"] != _USUAL_PERCENT:
            yield f"  calls kept within a region: tokens cost {answer['regional_percent']} % of this"


def _answer(upstream: str, model: str, tier: str, price: Price | None) -> dict[str, Any]:
    if price is not None and not price.bands:
        price = None  # nobody but a reply can tell
    known = None if price is None else [_rates(band) for band in price.bands]
    source, version = (None, None) if price is None else (price.source, price.version)
    return {
        "upstream": upstream,
        "model": model,
        "tier": tier or "default",
        "price": known,
        "source": source,
        "version": version,
        "regional_percent": 100 if price is None else price.regional_percent,
    }


def _rates(band: Band) -> dict[str, str | int | None]:
    """Return the rates in dollars, as exact decimals."""
    rates: dict[str, str | int | None] = {"above": band.above if band.above >= 0 else None}
    if band.units is not None:
        *of_units, least_ms = zip(band.units._fields, band.units, strict=True)
        for unit, pico in of_units:
            if pico is not None:
                name, one = _BY_UNIT.get(unit, (unit, _PICO_EACH))
                rates[name] = _dollars(pico, one)
        return rates if not least_ms[1] else {**rates, "least_ms": least_ms[1]}
    if band.image_output is None:
        band = band._replace(image_output=band.pictures_only)
    for name, pico in band._asdict().items():
        if name not in _HIDDEN and not (name in _EACH and not pico):
            rates[name] = None if pico is None else _dollars(pico, _PICO_EACH if name in _EACH else _PICO_PER_MILLION)
    return rates


def _dollars(pico: int, one: int) -> str:
    whole, part = divmod(pico, one)
    digits = f"{part:0{len(str(one)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def check_price_lines(settings: Settings, now_s: int) -> Iterator[str]:
    """Yield the table's date, how many models are priced, and which of the configured ones are not.

    Where a budget in dollars counts requests for these, they are refused: that is a warning.
    """
    book = price_book(settings)
    find = call_prices(settings)
    table = book.table
    own = f", and {len(settings.own_prices)} of your own in {settings.prices}" if settings.own_prices else ""
    yield f"prices: {table.n_models} models of {table.source} {table.source_version}, as of {table.date}{own}"
    budgets = list(_refusing_budgets(settings))
    missing: dict[str, bool] = {}
    for entry in settings.upstreams:
        seller, models = seller_of(entry, table), _models_at(settings, entry, budgets)
        if not seller.provider and not any(each.is_for(seller) for each in settings.own_prices):
            budget = next((each for each in budgets if any(_counts(each, name) for _, name in models)), None)
            if budget is not None:
                yield (
                    f"WARNING: {budget.name} counts dollars, and no price is known for any model of upstream"
                    f" {entry.name}: requests that may go there get 403 unpriced_model. {_REMEDY}"
                )
                continue
        for model, name in models:
            price = find(entry.name, model, "", "", now_s) if is_exact(model) else None
            if is_exact(model) and (price is None or not price.bands):
                called = f"{model} at {entry.name}"
                missing[called] = missing.get(called, False) or any(_counts(each, name) for each in budgets)
    if plain := [called for called, is_refused in missing.items() if not is_refused]:
        yield f"no price is known for {_some(plain)}"
    if refused := [called for called, is_refused in missing.items() if is_refused]:
        yield (
            f"WARNING: no price is known for {_some(refused)}, and a budget counts dollars: requests that may go there"
            f" get 403 unpriced_model. {_REMEDY}"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _refusing_budgets(settings: Settings) -> list[BudgetRule]:
    """Return the budgets in dollars that refuse a request whose cost is not known: all rules, and one of a key."""
    of_keys = next((rules_of("key", "", key.terms.budgets) for key in settings.api_keys if key.terms.budgets), ())
    rules = (*settings.budgets, *of_keys)
    return [rule for rule in rules if not rule.budget.is_tokens and rule.budget.refuses_unpriced]


def _counts(rule: BudgetRule, name: str) -> bool:
    """Tell whether a budget counts requests in which clients name a model. name: may be a pattern."""
    return not rule.models or any(overlap(pattern, name) for pattern in rule.models)


def _models_at(settings: Settings, entry: UpstreamEntry, budgets: list[BudgetRule]) -> list[tuple[str, str]]:
    """Return what routes ask an upstream for, each with the name that clients use; both may be patterns.

    A name that a budget counts stands beside the patterns that match it.
    """
    found: set[tuple[str, str]] = set()
    named = {model for rule in budgets for model in rule.models if is_exact(model)}
    for route in settings.routes:
        canary = () if route.canary is None else (route.canary.to,)
        for target in (*route.to, *route.fallback, *canary):
            if target.upstream == entry.name:
                patterns = route.match.models or entry.models or ("*",)
                names = {*patterns, *(name for name in named if any(matches(each, name) for each in patterns))}
                found.update((target.model or name.removeprefix(target.strip), name) for name in names)
    return sorted(found)
