"""The price table that is shipped, as genai-prices has it (MIT; its notice is in the file's first line).

Knows: the file's form, and how a name is matched with its entries. Does not know: a user's own prices (overrides.py),
or the time (book.py). A provider's line is read when the first of its models is asked for.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from velox.prices.price import Band, Price, compiled, free

__all__ = ["NEVER", "PLAIN_TIERS", "Dated", "Table", "is_made", "shipped_table"]

_LONGEST_NAME: Final = 256
_DAY_S: Final = 86_400
NEVER: Final = (1 << 63) - 1  # seconds
# What Google's clients may write before a name.
_GOOGLE_PATH: Final = re.compile(r"^(?:publishers/google/)?(?:models|google)/")
_COMPACT_DATE: Final = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)")
# Tiers that the plain price is for, as vendors call them. OpenAI's "auto" is what was asked, never what was served.
# OpenRouter says "provisioned" of a model that it pays for by time, and bills as usual. Who pays for capacity by time
# himself gets "scale" (OpenAI) or "reserved" (Bedrock): its tokens have no price, and count as they would cost without.
PLAIN_TIERS: Final = frozenset({"", "default", "standard", "auto", "on_demand", "provisioned", "scale", "reserved"})
# Velox's providers by the table's names, where they differ. Of Bedrock's and Vertex's models the vendors' names differ,
# too, and the table knows them; what it has none of, it looks for at the models' makers.
_NAMES: Final = {
    "bedrock": "aws",
    "bedrock-mantle": "aws",
    "foundry": "azure",
    "gemini": "google",
    "vertex": "google",
    "xai": "x-ai",
}
# Their replies tell what a call is billed. Who resells their models may pass that on, and has other prices.
_BILLING: Final = frozenset({"openrouter", "perplexity", "x-ai"})
# Names of what costs nothing, where the source has no rates. Others of its entries without rates may as well be of
# something whose price nobody has looked up.
_FREE: Final = {"openai": re.compile(r"(omni|text)-moderation-"), "openrouter": re.compile(r".*:free$")}
_NOTHING: Final = {"input_mtok": 0, "output_mtok": 0}
# What costs as another unit where the source has no rate of its own, as the maker of the model says. Of all else that
# has none it is not known what it costs.
_AS_OTHERS: Final = {
    # "Text / image / video": one price. https://ai.google.dev/gemini-api/docs/pricing
    "google": (("input_image_mtok", "input_mtok"), ("cache_image_read_mtok", "cache_read_mtok")),
    # Writing to a cache costs nothing more, but of models that have a rate for it.
    # https://platform.openai.com/docs/guides/prompt-caching
    "openai": (("cache_write_mtok", "input_mtok"),),
    # Tokens of pictures are tokens of the prompt. https://docs.x.ai/docs/models
    "x-ai": (("input_image_mtok", "input_mtok"), ("cache_image_read_mtok", "cache_read_mtok")),
}
# So much of a sound is paid at least, in milliseconds. https://console.groq.com/docs/speech-to-text
_LEAST_MS: Final = {"groq": 10_000}
# They make nothing but pictures: these are their output. https://platform.openai.com/docs/pricing
_PICTURES: Final = {"openai": re.compile(r"(chatgpt|gpt)-image-")}
# Units that cost the same in each tier: a tool's call is none of the model's.
_IN_EACH_TIER: Final = ("web_searches_kcount", "requests_kcount")
# What tokens cost where a reply says that the call was kept within a region, in percent of the usual rates. The source
# does not have it. https://platform.claude.com/docs/en/build-with-claude/data-residency
_REGIONAL_PERCENT: Final = {"anthropic": 110}


class Dated(NamedTuple):
    """A price, and when it is valid: from a time on (seconds since 1970), and in these seconds of the day (UTC)."""

    price: Price | None
    begins_s: int = 0
    ends_s: int | None = None
    daily: tuple[int, int] | None = None

    def is_active(self, now_s: int) -> bool:
        """Tell whether the price is valid."""
        if now_s < self.begins_s or (self.ends_s is not None and now_s >= self.ends_s):
            return False
        if self.daily is None:
            return True
        start, end = self.daily
        second = now_s % _DAY_S
        return start <= second < end if start <= end else second >= start or second < end

    def changes_at(self, now_s: int) -> int:
        """Return the first second after now_s at which is_active() may say something else; NEVER: none."""
        times = [self.begins_s] if now_s < self.begins_s else []
        if self.ends_s is not None and now_s < self.ends_s:
            times.append(self.ends_s)
        for edge in self.daily or ():
            at = now_s // _DAY_S * _DAY_S + edge
            times.append(at if at > now_s else at + _DAY_S)
        return min(times, default=NEVER)


class Table:
    """The entries by provider. date: when the data was taken from its source."""

    def __init__(self, text: bytes) -> None:
        head, *lines = text.splitlines()
        told: Final[dict[str, Any]] = orjson.loads(head)
        self.source: Final[str] = told["source"]
        self.source_version: Final[str] = told["version"]
        self.date: Final[str] = told["date"]
        self.n_models: Final[int] = told["models"]
        self.version: Final = f"{self.source} {self.source_version} of {self.date}"
        self._lines: Final = {line[: line.index(b",")].split(b'"')[3].decode(): line for line in lines}
        self._providers: Final[dict[str, dict[str, Any]]] = {}

    def __repr__(self) -> str:
        return f"<Table {self.version} models={self.n_models}>"

    def knows(self, provider: str) -> bool:
        """Tell whether models of a provider are in the table. provider: Velox's name, or the table's."""
        return _NAMES.get(provider, provider) in self._lines

    def find(self, provider: str, model: str, tier: str) -> tuple[Dated, ...]:
        """Return the prices of a model, the later ones before the earlier ones; none: the table has no such price.

        provider: Velox's name, or the table's. tier: as the reply tells it. A tier that the entry has no price for has
        none, or no rates where replies tell what is billed: it is not known what it costs.
        """
        asked = _NAMES.get(provider, provider)
        biller = asked if asked in _BILLING else None
        found = self._entry(asked, model)
        is_free = len(model) <= _LONGEST_NAME and asked in _FREE and _FREE[asked].match(model.lower()) is not None
        if found is None:
            return (Dated(Price(free(), f"{asked}/{model}", self.version, biller=biller)),) if is_free else ()
        home, (name, _, prices, variants, _) = found
        if is_free:
            prices = [[when, rates or _NOTHING] for when, rates in prices]
        source = f"{home}/{name}"
        # genai-prices has the prices of other tiers at the provider itself only, never at one that resells its models.
        own = variants if home == asked else ()
        if is_made(tier) and not any(is_made(each[0]) for each in own):
            tier = ""
        matching = [each for each in own if each[0] == (tier or "default")]
        regional = _REGIONAL_PERCENT.get(asked, 100)
        plain = [self._dated(source, when, rates, biller, regional) for when, rates in reversed(prices)]
        if tier in PLAIN_TIERS and not matching:
            return _with_first(plain)
        if not matching and biller:
            return (Dated(Price((), f"{source} ({tier})", self.version, biller=biller)),)
        others = []
        for _, when, rates in matching:
            for base_when, base in reversed(prices):
                named = source if tier in PLAIN_TIERS else f"{source} ({tier})"
                usual = base if tier in PLAIN_TIERS else {unit: base[unit] for unit in _IN_EACH_TIER if unit in base}
                dated = self._dated(named, base_when, {**usual, **rates}, biller, regional)
                begins = max(dated.begins_s, self._dated(source, when, rates).begins_s)
                others.append(dated._replace(begins_s=begins))
        return tuple(others) if tier not in PLAIN_TIERS else (*others, *_with_first(plain))

    def window(self, provider: str, model: str) -> int:
        """Return the tokens that the context of a model may have, prompt and answer together; 0: it is not known."""
        found = self._entry(_NAMES.get(provider, provider), model)
        return 0 if found is None else int(found[1][4])

    def name_of(self, provider: str, model: str) -> str:
        """Return what the table calls a model; "" for one that it has not. Both as for find()."""
        found = self._entry(_NAMES.get(provider, provider), model)
        return "" if found is None else str(found[1][0])

    def provider_of(self, url: str) -> str | None:
        """Return the provider whose address this is."""
        for name in self._lines:
            if re.match(self._provider(name)["url"], url):
                return name
        return None

    def reading(self) -> Iterator[None]:
        """Read all providers, which is else done when they are first looked for; one in a step."""
        for name in self._lines:
            self._provider(name)
            yield

    def by_bill(self, provider: str, model: str) -> tuple[Dated, ...]:
        """Return the price of a model that find() has none for: replies of some providers tell what is billed."""
        biller = _NAMES.get(provider, provider)
        if biller not in _BILLING or len(model) > _LONGEST_NAME:
            return ()
        return (Dated(Price((), f"{biller}/{model}", self.version, biller=biller)),)

    def _dated(
        self,
        source: str,
        when: list[Any] | None,
        rates: dict[str, Any],
        biller: str | None = None,
        regional_percent: int = 100,
    ) -> Dated:
        bands = _bands(source, {unit: rate for unit, rate in rates.items() if unit != "others"})
        price = None
        if bands or biller:
            price = Price(bands, source, self.version, biller=biller, regional_percent=regional_percent)
        if when is None:
            return Dated(price)
        return Dated(price, _seconds(when[1])) if when[0] == "from" else Dated(price, daily=(when[1], when[2]))

    def _entry(self, provider: str, model: str) -> tuple[str, list[Any]] | None:
        if provider not in self._lines or not 0 < len(model) <= _LONGEST_NAME:
            return None
        name = model.lower()
        short = _GOOGLE_PATH.sub("", name) if provider == "google" else name
        for spelled in dict.fromkeys((name, _COMPACT_DATE.sub(r"-\1-\2-\3", name), short)):
            for home in (provider, *self._provider(provider)["fallbacks"]):
                for entry in self._provider(home)["models"] if home in self._lines else ():
                    if _is_match(entry[1], spelled):
                        return home, entry
        return None

    def _provider(self, name: str) -> dict[str, Any]:
        found = self._providers.get(name)
        if found is None:
            found = self._providers[name] = orjson.loads(self._lines[name])
        return found


def _bands(source: str, rates: dict[str, Any]) -> tuple[Band, ...]:
    """Return the rates of an entry. source: `provider/model`."""
    if rates.get("input_mtok") == rates.get("output_mtok") == 0:
        return free()
    home, _, model = source.partition("/")
    for unit, other in _AS_OTHERS.get(home, ()):
        if unit not in rates and other in rates:
            rates[unit] = rates[other]
    if "input_audio_hours" in rates and home in _LEAST_MS:
        rates["least_ms"] = _LEAST_MS[home]
    makes_pictures = home in _PICTURES and _PICTURES[home].match(model) is not None
    return compiled(rates, makes_pictures=makes_pictures)


def is_made(tier: str) -> bool:
    """Tell whether a tier is the quality and size that a picture or a video is made in: `hd 1024x1792`.

    Where no price is by these, the plain one is for all of them.
    """
    return " " in tier


def _with_first(prices: list[Dated]) -> tuple[Dated, ...]:
    """Return prices, the last of them for any time that none is valid: so does genai-prices."""
    return (*prices[:-1], prices[-1]._replace(begins_s=0, daily=None)) if prices else ()


def _seconds(day: str) -> int:
    return (datetime.date.fromisoformat(day) - datetime.date(1970, 1, 1)).days * _DAY_S


def _is_match(clause: list[Any], name: str) -> bool:
    kind, text = clause[0], clause[1]
    if kind == "equals":
        return bool(name == text)
    if kind == "startswith":
        return name.startswith(text)
    if kind == "contains":
        return text in name
    if kind == "endswith":
        return name.endswith(text)
    if kind == "regex":  # vetted when the table was made; the name is short
        return re.search(text, name) is not None
    matches = (_is_match(each, name) for each in clause[1:])
    return any(matches) if kind == "or" else all(matches)


def shipped_table() -> Table:
    """Read the table of this version of Velox."""
    return Table(Path(__file__).with_name("table.jsonl").read_bytes())
