"""What the tables know of the models of a list: how much text they take and give, and what that costs.

    describer()   what returns it, for an upstream and a model's name there

Knows: the price table, the user's own prices, and the facts of models. Does not know: lists (models.py), or how
a dialect writes it (protocol/model_list.py). Loaded with the first list that a worker is asked for: it reads the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from velox.memo import Memo
from velox.policy.routes.entries import UpstreamEntry
from velox.protocol.model_list import ModelDetails
from velox.providers.capabilities import capabilities_of
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.priced import call_prices, price_book, seller_of
from velox.settings import Settings

__all__ = ["describer"]

# Nobody knows what stands behind a name there: its own list may say.
_ANY_SERVER: Final = "openai-compatible"
_KEPT: Final = 2048
_PICO: Final = -12
_DAY_S: Final = 86_400


def describer(
    settings: Settings, wall: Callable[[], float] = time.time
) -> Callable[[UpstreamEntry, str], ModelDetails]:
    """Return what describes a model of an upstream. Prices are the plain tier's of the day, for a short prompt."""
    find, table = call_prices(settings), price_book(settings).table
    known: Memo[tuple[str, str, int], ModelDetails] = Memo(_KEPT)

    def describe(entry: UpstreamEntry, model: str) -> ModelDetails:
        now_s = int(wall())
        key = (entry.name, model, now_s // _DAY_S)
        found = known.get(key) or known.find(key)
        if found is None:
            provider = seller_of(entry, table).provider
            price = find(entry.name, model, "", "", now_s)
            band = price.bands[0] if price is not None and price.bands else None
            facts = facts_of(PROVIDERS[entry.provider], model, entry.model_facts)
            found = ModelDetails(
                context=table.window(provider, model) if provider else 0,
                most_output=facts.most_output,
                prompt="" if band is None else _dollars(band.input),
                completion="" if band is None else _dollars(band.output),
                cached="" if band is None else _dollars(band.cached),
                written="" if band is None else _dollars(band.written),
                capabilities=None if entry.provider == _ANY_SERVER else capabilities_of(model, facts),
            )
            known.put(key, found)
        return found

    return describe


def _dollars(pico: int | None) -> str:
    """Return dollars of one token as a decimal, "" for what is not known."""
    if pico is None:
        return ""
    text = f"{Decimal(pico).scaleb(_PICO):f}"
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text
