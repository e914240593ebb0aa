"""`velox import litellm-prices`: from LiteLLM's model_prices JSON to a file of prices (docs/prices.md).

Knows: the names of its prices, and their endings for long prompts, batches and service tiers. Does not know: files and
the command line. A price that has no place in Velox's file is named, never dropped in silence; numbers are read as
exact decimals.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

__all__ = ["ImportedPrices", "import_litellm_prices"]

_PICO: Final = 10**12
_PICO_PER_MILLION: Final = 10**6
_UNITS: Final[Mapping[str, str]] = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached",
    "cache_creation_input_token_cost": "written",
    "cache_creation_input_token_cost_above_1hr": "written_1h",
    "input_cost_per_audio_token": "audio_input",
    "cache_read_input_audio_token_cost": "audio_cached",
    "cache_read_input_token_cost_per_audio_token": "audio_cached",
    "output_cost_per_audio_token": "audio_output",
    "input_cost_per_image_token": "image_input",
    "output_cost_per_image_token": "image_output",
    "output_cost_per_reasoning_token": "reasoning",
    "input_cost_per_request": "request",
    "input_cost_per_second": "audio_hour",
    "input_cost_per_character": "characters",
    "ocr_cost_per_page": "page",
    "annotation_cost_per_page": "annotated_page",
    "input_cost_per_query": "search_unit",
}
# Of models that are paid by no tokens.
_LENGTHS: Final = frozenset({"audio_hour", "characters", "page", "annotated_page", "search_unit"})
# Of other models than those that rank, a query is a search of another kind.
_RANKING: Final = "rerank"
_SECONDS_PER_HOUR: Final = 3600
_TIERS: Final[Mapping[str, str]] = {"batches": "batch", "flex": "flex", "priority": "priority"}
_ENDINGS: Final = re.compile(r"(?:_above_(\d{1,7})k_tokens)?(?:_(batches|flex|priority))?")
_PROVIDERS: Final[Mapping[str, str]] = {
    **{name: name for name in ("openai", "azure", "anthropic", "bedrock", "gemini", "mistral", "groq", "deepseek")},
    **{name: name for name in ("openrouter", "xai", "cerebras", "cohere", "perplexity", "zai")},
    "text-completion-openai": "openai",
    "azure_text": "azure",
    "bedrock_converse": "bedrock",
    "cohere_chat": "cohere",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
}
_REGION: Final = re.compile(r"(?:[a-z]{2}(?:-[a-z]+){1,4}-\d|\*|global|us|eu)/")
_MOST_NAMED: Final = 5

Bands = dict[int, dict[str, int]]


class ImportedPrices(NamedTuple):
    """What came of a file. text: the Velox file; None: it could not be read, the notes say why."""

    text: str | None
    notes: tuple[str, ...]


def import_litellm_prices(content: bytes) -> ImportedPrices:
    """Return the file of prices for LiteLLM's."""
    try:
        models = json.loads(content, parse_float=Decimal, parse_int=Decimal, parse_constant=_refused)
    except (ValueError, RecursionError) as exc:
        return ImportedPrices(None, (f"expected JSON ({exc})",))
    if not isinstance(models, dict):
        return ImportedPrices(None, ("expected a JSON object of models",))
    left_out: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for name, fields in models.items():
        if name == "sample_spec":
            continue
        found = _entry(name, fields, left_out) if isinstance(fields, dict) else None
        if found is not None:
            whose, prices = found
            if lines.get(whose, prices) != prices:
                left_out.setdefault("has two names with different prices: those of the last one are taken", []).append(
                    name
                )
            lines[whose] = prices
        elif not isinstance(fields, dict):
            left_out.setdefault("expected an object of fields", []).append(name)
    notes = [_note(what, names) for what, names in left_out.items()]
    if not lines:
        return ImportedPrices(None, (*notes, "no model has a price that Velox could take"))
    entries = (f"  - {{{whose}, {prices}}}" for whose, prices in lines.items())
    return ImportedPrices("\n".join(("prices:", *entries, "")), tuple(notes))


def _refused(constant: str) -> Decimal:
    raise ValueError(f"{constant} is no number")


def _note(what: str, names: list[str]) -> str:
    counted = Counter(names)
    shown = ", ".join(json.dumps(name) for name in list(counted)[:_MOST_NAMED])
    return f"{what}: {len(counted)} models, such as {shown}"


def _entry(name: str, fields: dict[str, Any], left_out: dict[str, list[str]]) -> tuple[str, str] | None:
    """Return the fields of one model: which it is, and its prices; None: it has none, and `left_out` says why."""

    def leave(what: str) -> None:
        left_out.setdefault(what, []).append(name)

    vendor = str(fields.get("litellm_provider", ""))
    provider = "vertex" if vendor.startswith("vertex_ai") else _PROVIDERS.get(vendor)
    if provider is None:
        leave(f"left out, no provider of Velox: litellm_provider {json.dumps(vendor[:64])}")
        return None
    first = name.partition("/")[0]
    # A provider of several APIs has one prefix: `azure/` also for azure_text.
    model = name.removeprefix(f"{first}/") if first in (vendor, vendor.partition("-")[0], provider) else name
    if provider in ("azure", "bedrock") and _REGION.match(model):
        leave("left out, the price of a region: give it by `upstream`")
        return None
    by_tier: dict[str, Bands] = {}
    for key, value in fields.items():
        found = _unit(key)
        if found is None:
            if ("cost" in key or "price" in key) and value not in (None, 0):
                leave(f"not carried over: {json.dumps(key[:64])}")
            continue
        unit, above, tier = found
        pico = _pico(value)
        if pico is None:
            if value is not None:
                leave(f"not carried over, no price: {json.dumps(key[:64])}")
            continue
        if isinstance(value, Decimal) and pico != value * _PICO:
            leave("rounded to 10^-12 $ a token")
        by_tier.setdefault(tier, {}).setdefault(above, {})[unit] = (
            round(value * _PICO * _SECONDS_PER_HOUR) if unit == "audio_hour" else pico
        )
    plain = by_tier.pop("", {})
    base = plain.get(0, {})
    if fields.get("mode") != _RANKING and base.pop("search_unit", None):
        leave('not carried over: "input_cost_per_query" of another model than one that ranks')
    if not any(base.get(unit) for unit in ("input", "output")) and not _LENGTHS.isdisjoint(base):
        base = plain[0] = {unit: pico for unit, pico in base.items() if unit not in ("input", "output")}
    if "input" in base and not _LENGTHS.isdisjoint(base):
        leave("not carried over: its price of sound, characters or pages beside that of tokens")
        for unit in _LENGTHS & base.keys():
            del base[unit]
    if not {"input", "request", *_LENGTHS} & base.keys():
        leave("left out, without a price by tokens or calls")
        return None
    if not any(rate for bands in (plain, *by_tier.values()) for rates in bands.values() for rate in rates.values()):
        leave("left out, it costs 0 there: add `free: true` yourself if it does")
        return None
    parts = _written(plain, leave)
    tiers = []
    for tier, bands in by_tier.items():
        merged = {above: dict(rates) for above, rates in bands.items()}
        merged[0] = {**base, **bands.get(0, {})}  # what a tier has no price for costs as without it
        for above in plain.keys() - {0}:
            own = merged.setdefault(above, {})
            for unit, pico in plain[above].items():
                if unit not in own and unit in bands.get(0, {}):
                    leave(f"has no {unit} for {tier} above {above} tokens: its price below stays")
                elif unit not in own:
                    own[unit] = pico
        tiers.append(f"{tier}: {{{', '.join(_written(merged, leave))}}}")
    if tiers:
        parts.append(f"tiers: {{{', '.join(tiers)}}}")
    return f"model: {json.dumps(model)}, provider: {provider}", ", ".join(parts)


def _unit(key: str) -> tuple[str, int, str] | None:
    """Return Velox's name of a price, the length of the prompt it is for, and the tier; None: it is none of these."""
    for name in sorted(_UNITS, key=len, reverse=True):
        if key.startswith(name):
            ending = _ENDINGS.fullmatch(key, len(name))
            if ending is not None:
                return _UNITS[name], int(ending[1] or 0) * 1000, _TIERS.get(ending[2] or "", "")
    return None


def _pico(value: object) -> int | None:
    if not isinstance(value, Decimal) or not 0 <= value < 1000:
        return None
    return round(value * _PICO)


def _written(bands: Bands, leave: Any) -> list[str]:
    base = bands[0]
    parts = [f"{unit}: {_dollars(unit, pico)}" for unit, pico in base.items()]
    above = []
    for start, rates in sorted(bands.items()):
        if not start:
            continue
        for unit in rates.keys() - base.keys():
            leave(f"not carried over: {unit} above {start} tokens, which has no price below")
        known = [f"{unit}: {_dollars(unit, pico)}" for unit, pico in rates.items() if unit in base]
        if known:
            above.append(f"{start}: {{{', '.join(known)}}}")
    return [*parts, f"above: {{{', '.join(above)}}}"] if above else parts


def _dollars(unit: str, pico: int) -> str:
    """Return dollars of a million tokens or characters, of an hour, or of one of all else."""
    one = _PICO if unit == "request" or (unit in _LENGTHS and unit != "characters") else _PICO_PER_MILLION
    whole, part = divmod(pico, one)
    digits = f"{part:0{len(str(one)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
