"""A user's own prices: read from fields, each text as it was written.

Knows: the fields, and what is wrong with one, by its path. Does not know: YAML, or a file.

    prices:
      - {model: gpt-5, input: 1.10, output: 8.80, cached: 0.11, from: 2026-12-01}
      - {model: "llama-*", upstream: own, free: true}
      - {upstream: azure, model: gpt-5, input: 1.25, output: 10, above: {272000: {input: 2.5, output: 15}},
         tiers: {batch: {input: 0.625, output: 5}}}

Prices are dollars per million tokens, those of `request` and `web_search` dollars each, of `audio_hour` for an hour of
sound, of `characters` for a million; of a picture, a second of video, a page or a search unit each.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from velox.prices.book import Override
from velox.prices.price import UNITS, Band, Rate, compiled, free

__all__ = ["Fields", "PriceError", "read_overrides"]

Fields: TypeAlias = "str | Sequence[Fields] | Mapping[str, Fields]"

_PICO_PER_MILLION: Final = 10**6
_PICO_EACH: Final = 10**12
_UNITS: Final[Mapping[str, tuple[str, int]]] = {
    "input": ("input_mtok", _PICO_PER_MILLION),
    "output": ("output_mtok", _PICO_PER_MILLION),
    "cached": ("cache_read_mtok", _PICO_PER_MILLION),
    "written": ("cache_write_mtok", _PICO_PER_MILLION),
    "written_1h": ("cache_write_1h_mtok", _PICO_PER_MILLION),
    "audio_input": ("input_audio_mtok", _PICO_PER_MILLION),
    "audio_cached": ("cache_audio_read_mtok", _PICO_PER_MILLION),
    "audio_output": ("output_audio_mtok", _PICO_PER_MILLION),
    "image_input": ("input_image_mtok", _PICO_PER_MILLION),
    "image_cached": ("cache_image_read_mtok", _PICO_PER_MILLION),
    "image_output": ("output_image_mtok", _PICO_PER_MILLION),
    "reasoning": ("output_reasoning_mtok", _PICO_PER_MILLION),
    "web_search": ("web_searches_kcount", _PICO_EACH),
    "request": ("requests_kcount", _PICO_EACH),
    "audio_hour": ("input_audio_hours", _PICO_EACH),
    "characters": ("input_mchars", _PICO_PER_MILLION),
    "picture": ("output_pictures", _PICO_EACH),
    "video_second": ("output_video_seconds", _PICO_EACH),
    "page": ("input_document_kpages", _PICO_EACH),
    "annotated_page": ("input_annotated_document_kpages", _PICO_EACH),
    "search_unit": ("rerank_searches_kcount", _PICO_EACH),
}
# What costs as another unit where it has no rate, in this order. Sound has no such: it costs many times what text does.
_AS_OTHERS: Final = (
    ("cache_read_mtok", "input_mtok"),
    ("cache_write_mtok", "input_mtok"),
    ("cache_write_1h_mtok", "cache_write_mtok"),
    ("input_image_mtok", "input_mtok"),
    ("cache_image_read_mtok", "cache_read_mtok"),
)
_FIELDS: Final = ("model", "upstream", "provider", "from", "until", "free", "above", "tiers", *_UNITS)
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,18})?")
_TOKENS: Final = re.compile(r"[1-9][0-9_]{0,11}")
_MOST_ENTRIES: Final = 10_000
_LONGEST: Final = 256


class PriceError(Exception):
    """A field can't be used. Its text has the field's path, and what is expected."""


def read_overrides(prices: Fields, source: str = "prices") -> tuple[Override, ...]:
    """Return the entries of a list, in its order. source: what they are called for people. Raises PriceError."""
    if isinstance(prices, str | Mapping) or len(prices) > _MOST_ENTRIES:
        raise PriceError(f"prices: expected a list of at most {_MOST_ENTRIES} entries")
    return tuple(_override(entry, f"prices[{i}]", f"{source}[{i}]") for i, entry in enumerate(prices))


def _override(entry: Fields, path: str, source: str) -> Override:
    fields = _fields(entry, path, _FIELDS)
    model, upstream, provider = (_name(fields, name, path) for name in ("model", "upstream", "provider"))
    if model is None and upstream is None and provider is None:
        raise PriceError(f"{path}: expected `model`, `upstream` or `provider`")
    begins, ends = _day(fields, "from", path), _day(fields, "until", path)
    if begins is not None and ends is not None and ends <= begins:
        raise PriceError(f"{path}.until: expected a day after `from`")
    is_free = fields.get("free", "false")
    if is_free not in ("true", "false"):
        raise PriceError(f"{path}.free: expected true or false")
    if is_free == "true":
        priced = [name for name in fields if name in _UNITS or name in ("above", "tiers")]
        if priced:
            raise PriceError(f"{path}.{priced[0]}: expected no price beside `free: true`")
        tiers = {"": free()}
    else:
        tiers = dict(_tiers(fields, path))
    return Override(model, upstream, provider, tiers, begins or 0, ends, is_free == "true", source)


def _tiers(fields: Mapping[str, Fields], path: str) -> Iterator[tuple[str, tuple[Band, ...]]]:
    yield "", _bands(fields, path)
    given = fields.get("tiers", {})
    if not isinstance(given, Mapping):
        raise PriceError(f"{path}.tiers: expected tiers such as `batch: {{input: 0.5, output: 2}}`")
    for tier, rates in given.items():
        where = f"{path}.tiers.{tier}"
        yield tier.lower(), _bands(_fields(rates, where, ("above", *_UNITS)), where)


def _bands(fields: Mapping[str, Fields], path: str) -> tuple[Band, ...]:
    """Return the rates. One that is higher up and not given there stays as it is below."""
    first = dict(_rates(fields, path))
    if first.keys().isdisjoint(("input_mtok", "requests_kcount", *UNITS)):
        raise PriceError(f"{path}.input: expected dollars per million tokens, or `request`, or `free: true`")
    above = fields.get("above", {})
    if not isinstance(above, Mapping):
        raise PriceError(f"{path}.above: expected lengths of the prompt, such as `200000: {{input: 2.5}}`")
    rates: dict[str, Rate] = dict(first)
    for text in above:
        if not _TOKENS.fullmatch(text):
            raise PriceError(f"{path}.above.{text}: expected a number of tokens")
    for text, entry in sorted(above.items(), key=lambda item: int(item[0])):
        where = f"{path}.above.{text}"
        for unit, pico in _rates(_fields(entry, where, tuple(_UNITS)), where):
            if unit not in first:
                raise PriceError(f"{where}: expected only what has a price below it, too")
            before = rates[unit]
            rates[unit] = [*(before if isinstance(before, list) else [before]), [int(text), pico]]
    for unit, other in _AS_OTHERS:
        if unit not in rates and other in rates:
            rates[unit] = rates[other]
    return compiled(rates, makes_pictures=True)


def _rates(fields: Mapping[str, Fields], path: str) -> Iterator[tuple[str, int]]:
    for name, (unit, per) in _UNITS.items():
        if name not in fields:
            continue
        text = fields[name]
        if not isinstance(text, str) or not _NUMBER.fullmatch(text):
            raise PriceError(f"{path}.{name}: expected dollars such as 1.25, 0 or more")
        pico = Decimal(text) * per
        if pico != int(pico):
            raise PriceError(f"{path}.{name}: expected at most 6 digits after the point: 10^-12 $ a token is the least")
        yield unit, int(pico)


def _fields(entry: Fields, path: str, known: tuple[str, ...]) -> Mapping[str, Fields]:
    if not isinstance(entry, Mapping):
        raise PriceError(f"{path}: expected fields such as `input: 1.25`")
    for name in entry:
        if name not in known:
            raise PriceError(f"{path}.{name[:64]}: unknown field; expected one of {', '.join(known)}")
    return entry


def _name(fields: Mapping[str, Fields], name: str, path: str) -> str | None:
    text = fields.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
        raise PriceError(f"{path}.{name}: expected a name of 1 to {_LONGEST} characters")
    return text


def _day(fields: Mapping[str, Fields], name: str, path: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    try:
        day = datetime.date.fromisoformat(text if isinstance(text, str) else "")
    except ValueError:
        raise PriceError(f"{path}.{name}: expected a day such as 2026-12-01, in UTC") from None
    return (day - datetime.date(1970, 1, 1)).days * 86_400
