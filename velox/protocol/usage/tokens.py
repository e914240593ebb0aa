"""All kinds of tokens that a usage object tells of, in one meaning for all vendors.

Knows: the usage objects of OpenAI (Chat, Responses, embeddings), Anthropic, Gemini, and the spellings of DeepSeek,
Mistral, Moonshot, Groq and xAI. Does not know: where in a reply they stand (reader.py), or what a token costs.

The one meaning: `input` is all of the prompt, with what was read from and written to a cache among it. `output` is all
of the answer, with reasoning among it. Anthropic counts its cache beside its prompt, so it is added here; OpenAI counts
it inside, so it is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from velox.protocol.usage.token_usage import Bill, TokenUsage, Units

__all__ = [
    "REGIONAL",
    "answer_of_total",
    "beside_prompt",
    "bill_of",
    "billed_units",
    "count_of",
    "google_searches",
    "milliseconds",
    "openai_searches",
    "sound_ms",
    "token_usage",
    "told_units",
    "with_all_of_prompt",
    "with_compactions",
    "with_tools",
]

_ANTHROPIC_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_COMPACTION: Final = "compaction"
_OWN_ITERATIONS: Final = ("message", _COMPACTION)
# Where Anthropic says that it ran a model, of the places that it charges more for. A list or object is none of them.
REGIONAL: Final = ("us",)
# What Vertex says in place of a tier. Others cost as usual.
_TRAFFIC: Final = {"ON_DEMAND_PRIORITY": "priority", "ON_DEMAND_FLEX": "flex"}
# What Google's embeddings have, which have no answer: those of other prompts are "promptTokensDetails".
_EMBEDDED: Final = "promptTokenDetails"
_MOST_SECONDS: Final = 1_000_000
# Of a picture or video, in pixels.
_SIZE: Final = re.compile(r"[0-9]{2,5}x[0-9]{2,5}")
_CACHE: Final = "cacheTokensDetails"
# More tokens than this are nobody's answer: a model reads some millions.
_MOST_TOKENS: Final = 1_000_000_000
# xAI's: of 10^-10 $ each, a million dollars at most. https://docs.x.ai/developers/cost-tracking
_TICKS: Final = "cost_in_usd_ticks"
_PICO_PER_TICK: Final = 100
_MOST_PICO: Final = 10**18
# OpenRouter's: what it takes, in dollars; where it asks with its customer's own key, a fee beside what the maker of the
# model takes. https://openrouter.ai/docs/use-cases/usage-accounting
_CREDITS: Final = "cost"
_PICO_PER_DOLLAR: Final = 10**12
# Perplexity's: an object in its place, with what it takes for tokens and for tools. It resells at the makers' prices.
# https://docs.perplexity.ai/docs/agent-api/quickstart
_TOTAL: Final = "total_cost"
# Whose bills are read, as the price table calls them.
_XAI: Final = "x-ai"
_OPENROUTER: Final = "openrouter"
_PERPLEXITY: Final = "perplexity"
_LONGEST_TIER: Final = 32
_LONGEST_MODEL: Final = 256
_PAID_BY_ANSWER: Final = ("gemini-1", "gemini-2")


def with_tools(found: TokenUsage, tools: object) -> TokenUsage:
    """Return a usage with what OpenAI's `tool_usage` tells beside it of tools that ran while a response was made.

    Searches are counted. Pictures were made by another model, which is not named, and not all of them need be counted
    (openai-python's types/responses/response.py): then the cost is not known.
    """
    if not isinstance(tools, dict):
        return found
    pictures, searches = _inside(tools, "image_gen"), count_of(_inside(tools, "web_search"), "num_requests")
    if searches and not found.web_searches:
        found = replace(found, web_searches=searches)
    has_pictures = any(count_of(pictures, name) for name in ("total_tokens", "input_tokens", "output_tokens"))
    return replace(found, has_others=True) if has_pictures else found


def google_searches(queries: Iterable[object], model: str) -> int:
    """Return how many searches Google takes a fee for, of the queries of an answer. model: that answered.

    Gemini 3 pays each query that is not empty, those before it the answer.
    https://ai.google.dev/gemini-api/docs/google-search
    """
    n = sum(isinstance(query, str) and bool(query) for query in queries)
    return min(n, 1) if model.startswith(_PAID_BY_ANSWER) else n


def openai_searches(items: Iterable[object]) -> int:
    """Return how many items of a response are searches that OpenAI takes a fee for: to open a page is none.

    https://platform.openai.com/docs/guides/tools-web-search
    """
    calls = [each for each in items if isinstance(each, dict) and each.get("type") == "web_search_call"]
    return sum(_inside(each, "action").get("type", "search") == "search" for each in calls)


def told_units(reply: Mapping[str, object]) -> tuple[Units | None, str]:
    """Return what a reply tells of units in place of tokens, and the tier that they are made in; None, "": nothing.

    Pages: Mistral's `usage_info`. Units of a ranking: Cohere's `meta.billed_units`. A video: OpenAI's `seconds` and
    `size`; its tier is `video SIZE`.
    https://docs.mistral.ai/api/endpoint/ocr, https://docs.cohere.com/reference/rerank,
    https://platform.openai.com/docs/api-reference/videos/object
    """
    if (pages := count_of(_inside(reply, "usage_info"), "pages_processed")) is not None:
        return Units(pages=pages), ""
    if (searches := count_of(billed_units(reply), "search_units")) is not None:
        return Units(search_units=searches), ""
    if reply.get("object") == "video" and (length := milliseconds(reply.get("seconds"))):
        size = reply.get("size")
        told = size if isinstance(size, str) and _SIZE.fullmatch(size) else "other"
        return Units(video_ms=length), "" if size is None else f"video {told}"
    return None, ""


def billed_units(reply: Mapping[str, object]) -> dict[str, object]:
    """Return Cohere's `meta.billed_units` of a reply; empty: it has none."""
    return _inside(_inside(reply, "meta"), "billed_units")


def sound_ms(usage: dict[str, object]) -> int | None:
    """Return the length of a sound that a usage tells, in milliseconds: of one that is paid by its length."""
    return milliseconds(usage.get("seconds") if usage.get("type") == "duration" else usage.get(_SECONDS))


def milliseconds(seconds: object) -> int | None:
    """Return seconds of a reply in milliseconds, rounded up; None: they can't be a length. OpenAI once wrote a text."""
    if isinstance(seconds, str):
        try:
            seconds = float(seconds)
        except ValueError:
            return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= _MOST_SECONDS:
        return None
    return math.ceil(seconds * 1000)


def count_of(usage: Mapping[str, object], name: str) -> int | None:
    """Return a count of a usage; None: it is not there, or can't be one. JSON may write 1000 as 1e3, too."""
    value = usage.get(name)
    if type(value) is int:
        return value if 0 <= value <= _MOST_TOKENS else None
    if type(value) is float and value.is_integer():
        value = int(value)
        return value if 0 <= value <= _MOST_TOKENS else None
    return None


def answer_of_total(usage: dict[str, object]) -> int | None:
    """Return the tokens of an answer of Google's that has no count of its own, as one that its filters took away.

    None: that is not told.
    """
    if _EMBEDDED in usage:
        return 0
    prompt, total = count_of(usage, "promptTokenCount"), count_of(usage, "totalTokenCount")
    if prompt is None or total is None:
        return None
    return max(0, total - prompt - (count_of(usage, "toolUsePromptTokenCount") or 0))


def beside_prompt(
    prompt: int, *, cached: int, sound: int, more: int, reasoning: int = 0, has_seconds: bool = False
) -> int:
    """Return how many tokens of a prompt are not in its count, which a vendor tells beside it.

    cached, sound: that were read from a cache, and of sound. more: what the total has above prompt and answer.
    has_seconds: the length of the sound is told. So does Mistral, whose count of the prompt is of its text, and the
    total of all; and Grok at Azure with what was cached.
    """
    if has_seconds and more:
        return more
    if cached > prompt or (cached and cached == more != reasoning):
        return cached
    return sound if sound > prompt else 0


# Of the usage of Chat and of Responses: prompt, answer, and what they are made of.
_COUNTS: Final = (
    ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"),
    ("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"),
)
_SECONDS: Final = "prompt_audio_seconds"


def with_all_of_prompt(usage: dict[str, object]) -> dict[str, object]:
    """Return a usage of OpenAI's whose prompt counts all that is told of it."""
    names = _COUNTS[0] if _COUNTS[0][0] in usage else _COUNTS[1]
    prompt, answer = count_of(usage, names[0]), count_of(usage, names[1])
    if prompt is None or "cache_read_input_tokens" in usage:
        return usage
    details = _inside(usage, names[2])
    if not (details.get("cached_tokens") or details.get("audio_tokens") or usage.get(_SECONDS)):
        return usage  # the usual prompt: of text, and not of a cache
    sound, total = count_of(details, "audio_tokens") or 0, count_of(usage, "total_tokens")
    more = beside_prompt(
        prompt,
        cached=count_of(details, "cached_tokens") or 0,
        sound=sound,
        more=0 if answer is None or total is None else max(0, total - prompt - answer),
        reasoning=count_of(_inside(usage, names[3]), "reasoning_tokens") or 0,
        has_seconds=bool(count_of(usage, _SECONDS)),
    )
    if not more:
        return usage
    if usage.get(_SECONDS):
        details = {**details, "audio_tokens": sound or more}
    return {**usage, names[0]: prompt + more, names[2]: details}


def with_compactions(usage: dict[str, object]) -> dict[str, object]:
    """Return a usage of Anthropic's whose counts have all `iterations` of its model among them.

    Its own counts leave those out in which the model has shortened the conversation before it answered.
    """
    own = [each for each in _iterations(usage) if each.get("type") in _OWN_ITERATIONS]
    if all(each["type"] != _COMPACTION for each in own):
        return usage
    return {**usage, **{name: sum(count_of(each, name) or 0 for each in own) for name in _ANTHROPIC_COUNTS}}


def _has_others(usage: dict[str, object]) -> bool:
    return any(each.get("type") not in _OWN_ITERATIONS for each in _iterations(usage))


def _iterations(usage: dict[str, object]) -> list[dict[str, object]]:
    found = usage.get("iterations")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def token_usage(usage: dict[str, object], tier: object = None, model: object = None) -> TokenUsage:
    """Return the kinds that one usage object tells of. tier, model: what stands beside it."""
    if "promptTokenCount" in usage or "candidatesTokenCount" in usage or "thoughtsTokenCount" in usage:
        return _of_google(usage, model)
    prompt, answer = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    made = answer if answer is not None else count_of(usage, "output_tokens")
    tools: dict[str, object] = {}
    if "server_tool_use" in usage:
        tools = _inside(usage, "server_tool_use")
    if "server_tool_use_details" in usage:  # OpenRouter's
        tools = _inside(usage, "server_tool_use_details")
    tier = usage.get("service_tier") if tier is None else tier
    if usage.get("speed") == "fast":
        tier = "fast"  # Anthropic's: the same answer for more
    if prompt is None and ("cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage):
        return _of_anthropic(usage, made, tier, model)
    given = prompt if prompt is not None else count_of(usage, "input_tokens")
    total = count_of(usage, "total_tokens")
    if given is None and made is None:
        given = total  # embeddings that have no other count, as Voyage's
    if given is not None and total is not None and total >= given:
        made = max(made or 0, total - given)  # some count reasoning in the total only
    inputs: dict[str, object] = {}
    if "prompt_tokens_details" in usage or "input_tokens_details" in usage:
        inputs = _inside(usage, "prompt_tokens_details") or _inside(usage, "input_tokens_details")
    if "input_token_details" in usage:  # OpenAI's transcriptions
        inputs = _inside(usage, "input_token_details")
    outputs: dict[str, object] = {}
    if "completion_tokens_details" in usage or "output_tokens_details" in usage:
        outputs = _inside(usage, "completion_tokens_details") or _inside(usage, "output_tokens_details")
    # Most of these are in no usage: each is looked for only where it could be.
    cached = written = audio_input = audio_cached = image_input = image_cached = None
    reasoning = audio_output = image_output = None
    if inputs:
        cached, audio_input = count_of(inputs, "cached_tokens"), count_of(inputs, "audio_tokens")
        image_input = count_of(inputs, "image_tokens")
        written = _first(inputs, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
        if "cached_tokens_details" in inputs:
            of_cache = _inside(inputs, "cached_tokens_details")
            audio_cached, image_cached = count_of(of_cache, "audio_tokens"), count_of(of_cache, "image_tokens")
    if outputs:
        reasoning = _first(outputs, "reasoning_tokens", "thinking_tokens")
        audio_output, image_output = count_of(outputs, "audio_tokens"), count_of(outputs, "image_tokens")
    if cached is None:
        cached = _first(usage, "prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
    return TokenUsage(
        given,
        made,
        cached,
        written,
        None,
        reasoning,
        audio_input,
        audio_cached,
        audio_output,
        image_input,
        image_output,
        count_of(tools, "web_search_requests") if tools else None,
        image_cached,
        _tier(tier),
        False,
        _model(model),
        bill_of(usage) if _TICKS in usage or _CREDITS in usage else None,
    )


def _of_anthropic(usage: dict[str, object], made: int | None, tier: object, model: object) -> TokenUsage:
    read, written = count_of(usage, "cache_read_input_tokens"), count_of(usage, "cache_creation_input_tokens")
    given = count_of(usage, "input_tokens")
    by_time = _inside(usage, "cache_creation")
    return TokenUsage(
        None if given is None else given + (read or 0) + (written or 0),
        made,
        read,
        written,
        count_of(by_time, "ephemeral_1h_input_tokens"),
        count_of(_inside(usage, "output_tokens_details"), "thinking_tokens"),
        web_searches=count_of(_inside(usage, "server_tool_use"), "web_search_requests"),
        tier=_tier(tier),
        has_others="iterations" in usage and _has_others(usage),
        model=_model(model),
        bill=bill_of(usage) if _CREDITS in usage else None,
        is_regional=usage.get("inference_geo") in REGIONAL,
    )


def _of_google(usage: dict[str, object], model: object) -> TokenUsage:
    """Return Google's: reasoning is counted beside the answer, what tools put into the prompt beside the prompt."""
    prompt, tools = count_of(usage, "promptTokenCount"), count_of(usage, "toolUsePromptTokenCount")
    answer, thoughts = count_of(usage, "candidatesTokenCount"), count_of(usage, "thoughtsTokenCount")
    inputs = "promptTokensDetails" if "promptTokensDetails" in usage else _EMBEDDED
    return TokenUsage(
        None if prompt is None else prompt + (tools or 0),
        answer_of_total(usage) if answer is None and thoughts is None else (answer or 0) + (thoughts or 0),
        count_of(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
        audio_input=_modality(usage, inputs, "AUDIO"),
        audio_cached=_modality(usage, _CACHE, "AUDIO"),
        audio_output=_modality(usage, "candidatesTokensDetails", "AUDIO"),
        image_input=_modality(usage, inputs, "IMAGE"),
        image_output=_modality(usage, "candidatesTokensDetails", "IMAGE"),
        image_cached=_modality(usage, _CACHE, "IMAGE"),
        tier=_tier(usage.get("serviceTier")) or _TRAFFIC.get(str(usage.get("trafficType")), ""),
        model=_model(model),
    )


def _modality(usage: dict[str, object], name: str, modality: str) -> int | None:
    details = usage.get(name)
    if not isinstance(details, list):
        return None
    found = [
        count_of(each, "tokenCount") for each in details if isinstance(each, dict) and each.get("modality") == modality
    ]
    # What is not among the details of a cache was not in it; of a prompt or an answer that makes no difference.
    return sum(each or 0 for each in found) if found or name == _CACHE else None


def _inside(usage: Mapping[str, object], name: str) -> dict[str, object]:
    value = usage.get(name)
    return value if isinstance(value, dict) else {}


def _first(usage: dict[str, object], *names: str) -> int | None:
    """Return the first count that is there."""
    for name in names:
        if name in usage and (count := count_of(usage, name)) is not None:
            return count
    return None


def bill_of(usage: dict[str, object]) -> Bill | None:
    """Return what a call is billed; None: that is not told. Who resells xAI's models may pass its bill on, too."""
    if isinstance(cost := usage.get(_CREDITS), dict):
        pico, biller = _dollars(cost.get(_TOTAL)) if cost.get("currency") == "USD" else None, _PERPLEXITY
    else:
        pico, biller = (_credits(usage), _OPENROUTER) if _CREDITS in usage else (_ticks(usage), _XAI)
    return None if pico is None else Bill(pico, biller)


def _ticks(usage: dict[str, object]) -> int | None:
    """Return xAI's own cost of a call in pico-dollars; None: it is no amount. Of 0 it is not sure that it is one."""
    value = usage.get(_TICKS)
    return value * _PICO_PER_TICK if type(value) is int and 0 < value * _PICO_PER_TICK <= _MOST_PICO else None


def _credits(usage: dict[str, object]) -> int | None:
    """Return OpenRouter's own cost of a call in pico-dollars; None: it is no amount, or not all of it is told."""
    parts = [usage.get(_CREDITS)]
    if usage.get("is_byok"):
        parts.append(_inside(usage, "cost_details").get("upstream_inference_cost"))
    pico = 0
    for part in parts:
        if (taken := _dollars(part)) is None:
            return None
        pico += taken
    return pico


def _dollars(value: object) -> int | None:
    """Return dollars in pico-dollars; None: it is no amount."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    pico = value * _PICO_PER_DOLLAR
    return round(pico) if 0 <= pico <= _MOST_PICO else None


def _tier(value: object) -> str:
    return value.lower() if isinstance(value, str) and len(value) <= _LONGEST_TIER else ""


def _model(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_MODEL else ""
