"""What a call costs by its reply: a bookkeeper that reads JSON with the standard library, and has no code of Velox's.

Knows: the vendors' usage objects, at their places; one price list; whole pico-dollars. Does not know: Velox, HTTP.

A test compares what Velox recorded with what stands here. So the reading is as simple as a vendor's SDK does it: parse
the whole reply, look at the top, take the last of equal names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

__all__ = ["PRICES", "Bill", "bill_of", "price_file"]

# Dollars per million tokens, by model and tier: primes, so that no wrong sum is right by chance.
_TEXT: Final = {"input": "2", "output": "11", "cached": "0.5", "written": "3", "written_1h": "5"}
_MEDIA: Final = {
    "audio_input": "41",
    "audio_cached": "13",
    "audio_output": "83",
    "image_input": "7",
    "image_cached": "1.7",
    "image_output": "31",
    "reasoning": "17",
}
_TIMES: Final = {"": 100, "flex": 50, "priority": 200, "batch": 40}
_FACTORS: Final = {"exam": 100, "exam-big": 310, "cla-exam": 130, "gem-exam": 170, "bed-exam": 190}
_PICO_PER_MILLION: Final = 1_000_000
# Other names of no tier.
_PLAIN: Final = ("", "default", "standard", "auto", "on_demand")


def _rate(text: str, model: str, tier: str) -> int:
    """Return pico-dollars of one token."""
    whole, _, part = text.partition(".")
    pico = int(whole) * _PICO_PER_MILLION + int((part or "0").ljust(6, "0"))
    return pico * _FACTORS[model] * _TIMES[tier] // 10_000


def _dollars(pico: int) -> str:
    return f"{pico // _PICO_PER_MILLION}.{pico % _PICO_PER_MILLION:06d}"


def _rates(model: str, tier: str) -> dict[str, int]:
    kinds = _TEXT if model == "cla-exam" else _TEXT | _MEDIA
    return {kind: _rate(text, model, tier) for kind, text in kinds.items()}


# Pico-dollars of one token, by model, tier, kind. Without a price: the sound and the pictures of "cla-exam".
PRICES: Final = {model: {tier: _rates(model, tier) for tier in _TIMES} for model in _FACTORS}


def price_file(*, without: Sequence[str] = ()) -> str:
    """Return the price list as VELOX_PRICES takes it. without: kinds that its reader does not know."""
    entries = []
    for model, tiers in PRICES.items():

        def fields(tier: str, tiers: dict[str, dict[str, int]] = tiers) -> dict[str, str]:
            return {kind: _dollars(pico) for kind, pico in tiers[tier].items() if kind not in without}

        entries.append({"model": model, **fields(""), "tiers": {tier: fields(tier) for tier in tiers if tier}})
    return json.dumps({"prices": entries})  # JSON is YAML


@dataclass(frozen=True)
class Bill:
    """Tokens of one call by kind, what they cost, and why that is not known.

    input and output are totals, of which the others are parts. nano: nano-dollars; None: a kind has no price.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_cached: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_cached: int = 0
    image_output: int = 0
    tier: str = ""
    model: str = ""
    is_told: bool = field(default=True, compare=False)

    @property
    def nano(self) -> int | None:
        """Return what it costs in nano-dollars, half up; None: a kind of its tokens has no price."""
        tier = "" if self.tier in _PLAIN else self.tier
        rates = PRICES.get(self.model, {}).get(tier)
        if rates is None:
            return None
        counts = {
            "audio_cached": self.audio_cached,
            "image_cached": self.image_cached,
            "cached": self.cached - self.audio_cached - self.image_cached,
            "audio_input": self.audio_input - self.audio_cached,
            "image_input": self.image_input - self.image_cached,
            "written_1h": self.written_1h,
            "written": self.written - self.written_1h,
            "audio_output": self.audio_output,
            "image_output": self.image_output,
            "reasoning": self.reasoning,
        }
        of_output = ("audio_output", "image_output", "reasoning")
        counts["input"] = self.input - sum(n for kind, n in counts.items() if kind not in of_output)
        counts["output"] = self.output - sum(counts[kind] for kind in of_output)
        if any(n and kind not in rates for kind, n in counts.items()):
            return None
        pico = sum(n * rates[kind] for kind, n in counts.items() if n)
        return (pico + 500) // 1000


def bill_of(reply: bytes, *, dialect: str, model: str) -> Bill:
    """Return the bill of a whole reply, plain or an event stream. model: that was asked for.

    dialect: openai (Chat, Completions, Responses, embeddings, pictures, sound), anthropic, google, converse.
    """
    documents = list(_documents(reply))
    read = {"openai": _openai, "anthropic": _anthropic, "google": _google, "converse": _converse}[dialect]
    found = read(documents)
    return replace(found, model=found.model if found.model in PRICES else model)


def _documents(reply: bytes) -> Iterator[dict[str, Any]]:
    text = reply.decode("utf-8", "surrogatepass")
    if text.lstrip()[:1] in ("{", "["):
        whole = json.loads(text)
        yield from whole if isinstance(whole, list) else [whole]
        return
    for event in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        if lines and lines[0].strip() != "[DONE]":
            yield json.loads("\n".join(lines))


def _count(holder: object, *names: str) -> int:
    """Return the first of these counts that is there."""
    if isinstance(holder, dict):
        for name in names:
            value = holder.get(name)
            if type(value) in (int, float) and value >= 0 and value == int(value):
                return int(value)  # JSON may write 1000 as 1e3
    return 0


def _inside(holder: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((holder[name] for name in names if isinstance(holder.get(name), dict)), {})


def _openai(documents: list[dict[str, Any]]) -> Bill:
    bill = Bill(is_told=False)
    for document in documents:
        kind = document.get("type")
        holder = document.get("response") if isinstance(kind, str) and kind.startswith("response.") else document
        if not isinstance(holder, dict) or not isinstance(usage := holder.get("usage"), dict):
            continue
        inputs = _inside(usage, "prompt_tokens_details", "input_tokens_details", "input_token_details")
        outputs = _inside(usage, "completion_tokens_details", "output_tokens_details")
        cached = _inside(inputs, "cached_tokens_details")
        tier, model = holder.get("service_tier"), holder.get("model")
        bill = Bill(
            input=_count(usage, "prompt_tokens", "input_tokens", "total_tokens"),
            output=_count(usage, "completion_tokens", "output_tokens"),
            cached=_count(inputs, "cached_tokens"),
            reasoning=_count(outputs, "reasoning_tokens"),
            audio_input=_count(inputs, "audio_tokens"),
            audio_cached=_count(cached, "audio_tokens"),
            audio_output=_count(outputs, "audio_tokens"),
            image_input=_count(inputs, "image_tokens"),
            image_cached=_count(cached, "image_tokens"),
            image_output=_count(outputs, "image_tokens"),
            tier=tier.lower() if isinstance(tier, str) else bill.tier,
            model=model if isinstance(model, str) else bill.model,
        )
    return bill


def _anthropic(documents: list[dict[str, Any]]) -> Bill:
    usage: dict[str, Any] = {}
    model, is_told = "", False
    for document in documents:
        holder = document.get("message") if document.get("type") == "message_start" else document
        if not isinstance(holder, dict):
            continue
        if isinstance(holder.get("model"), str):
            model = holder["model"]
        if isinstance(told := holder.get("usage"), dict):
            usage = {**usage, **{name: value for name, value in told.items() if value is not None}}
            is_told = True
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    return Bill(
        input=_count(usage, "input_tokens") + read + written,
        output=_count(usage, "output_tokens"),
        cached=read,
        written=written,
        written_1h=_count(_inside(usage, "cache_creation"), "ephemeral_1h_input_tokens"),
        tier=str(usage.get("service_tier") or ""),
        model=model,
        is_told=is_told,
    )


def _google(documents: list[dict[str, Any]]) -> Bill:
    bill = Bill(is_told=False)
    for document in documents:
        if not isinstance(usage := document.get("usageMetadata"), dict):
            continue

        def modality(name: str, wanted: str, usage: dict[str, Any] = usage) -> int:
            return sum(_count(each, "tokenCount") for each in usage.get(name, []) if each["modality"] == wanted)

        model = document.get("modelVersion")
        thoughts = _count(usage, "thoughtsTokenCount")
        bill = Bill(
            input=_count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
            output=_count(usage, "candidatesTokenCount") + thoughts,
            cached=_count(usage, "cachedContentTokenCount"),
            reasoning=thoughts,
            audio_input=modality("promptTokensDetails", "AUDIO"),
            audio_cached=modality("cacheTokensDetails", "AUDIO"),
            audio_output=modality("candidatesTokensDetails", "AUDIO"),
            image_input=modality("promptTokensDetails", "IMAGE"),
            image_cached=modality("cacheTokensDetails", "IMAGE"),
            image_output=modality("candidatesTokensDetails", "IMAGE"),
            tier={"ON_DEMAND_FLEX": "flex", "ON_DEMAND_PRIORITY": "priority"}.get(str(usage.get("trafficType")), ""),
            model=model if isinstance(model, str) else bill.model,
        )
    return bill


def _converse(documents: list[dict[str, Any]]) -> Bill:
    (document,) = documents
    usage, tier = document["usage"], document.get("serviceTier") or {}
    read, written = _count(usage, "cacheReadInputTokens"), _count(usage, "cacheWriteInputTokens")
    given, beside = _count(usage, "inputTokens"), read + written
    if _count(usage, "totalTokens") == given + _count(usage, "outputTokens"):
        beside = 0  # the total says that they are among those of the prompt
    return Bill(
        input=given + beside,
        output=_count(usage, "outputTokens"),
        cached=read,
        written=written,
        tier=str(tier.get("type") or ""),
    )
