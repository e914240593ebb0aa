"""Lists of models, as `GET /v1/models` answers with them: read from an upstream, and written for a client.

Knows: the shapes of OpenAI, Anthropic and Google, and what other servers add or leave out. Does not know: who may use
which model.

    {"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "system"}, ...]}

    Anthropic  {"data": [{"type": "model", "id": ..., "display_name": ..., "created_at": ...}, ...], "has_more": false}
    Google     {"models": [{"name": "models/gemini-3-pro", "displayName": ...}, ...]}

An upstream's own object of a model passes with all its fields: vLLM tells `max_model_len` and `root`, others prices.
What is missing of OpenAI's fields, as in Anthropic's lists, is added: its SDKs expect them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from velox.types import Dialect

__all__ = [
    "UNKNOWN_DETAILS",
    "Capabilities",
    "ModelDetails",
    "described",
    "is_model_object",
    "list_of",
    "model_object",
    "object_for",
    "page_for",
    "reading_models",
]

# Gateways to all there is list about 500. More of one upstream are left out.
_MOST_MODELS: Final = 4096
# As in a request (body.py).
_NAME_CHARS: Final = 256
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_KIND: Final = "model"
_YEAR_3000_S: Final = 32_503_680_000
_PER_STEP: Final = 128  # of them, with 1 KB each: 0.5 ms


# What servers call the tokens that a context may have: OpenRouter, vLLM and SGLang, Groq, Google, Anthropic, Mistral.
_WINDOWS: Final = (
    *("context_length", "max_model_len", "context_window", "inputTokenLimit", "max_input_tokens", "max_context_length"),
)
_OUTPUTS: Final = ("max_completion_tokens", "outputTokenLimit", "max_output_tokens")
# Names of models that write no text: what Google's clients may ask of others, these don't answer.
_EMBEDS: Final = re.compile(r"embed|(?:^|[/-])(?:bge|gte|e5)-|voyage")
_OTHERS: Final = re.compile(r"whisper|transcribe|\btts\b|dall-e|gpt-image|imagen|veo-|sora|rerank|moderation|speech")
_VERSION: Final = re.compile(r"-([0-9]{3})$")


class Capabilities(NamedTuple):
    """What a model can do. efforts: of reasoning, lowest first; none: it does not reason.

    schemas: its answer fits a JSON schema. sampling: it takes temperature and top_p. searches: its provider does.
    """

    tools: bool
    pictures: bool
    schemas: bool
    sampling: bool
    efforts: tuple[str, ...] = ()
    searches: bool = False


class ModelDetails(NamedTuple):
    """What is known of a model besides its name.

    context: tokens of prompt and answer together; most_output: of the answer; 0: not known. prompt, completion, cached,
    written: dollars of one token, as decimals; "": not known.
    """

    context: int = 0
    most_output: int = 0
    prompt: str = ""
    completion: str = ""
    cached: str = ""
    written: str = ""
    capabilities: Capabilities | None = None


UNKNOWN_DETAILS: Final = ModelDetails()


def described(model: bytes, details: ModelDetails) -> bytes:
    """Return a model's object of OpenAI's shape with what is known of it, as OpenRouter calls that.

    What its upstream says itself stays.
    """
    if details == UNKNOWN_DETAILS:
        return model
    entry = orjson.loads(model)
    added: dict[str, object] = {}
    if details.context and not _first(entry, _WINDOWS):
        added["context_length"] = details.context
    if details.most_output and not _first(entry, _OUTPUTS):
        added["max_completion_tokens"] = details.most_output
    if details.prompt and "pricing" not in entry:
        names = {"prompt": details.prompt, "completion": details.completion}
        names |= {"input_cache_read": details.cached, "input_cache_write": details.written}
        added["pricing"] = {name: value for name, value in names.items() if value}
    able = details.capabilities
    if able is not None:
        if "supported_parameters" not in entry:
            added["supported_parameters"] = _parameters(able)
        if "architecture" not in entry:
            inputs = ["text", "image"] if able.pictures else ["text"]
            added["architecture"] = {"input_modalities": inputs, "output_modalities": ["text"]}
        if able.efforts and "reasoning_efforts" not in entry:
            added["reasoning_efforts"] = able.efforts
    return orjson.dumps({**entry, **added}) if added else model


def _parameters(able: Capabilities) -> list[str]:
    """Return the parameters that a model takes, as OpenRouter calls them."""
    names = ["max_tokens"]
    names += ["temperature", "top_p"] if able.sampling else []
    names += ["tools", "tool_choice"] if able.tools else []
    names += ["reasoning", "include_reasoning"] if able.efforts else []
    names += ["response_format", "structured_outputs"] if able.schemas else []
    return names + (["web_search_options"] if able.searches else [])


def _first(entry: dict[str, Any], names: Iterable[str]) -> int:
    """Return the first of these that is a number of tokens; 0: none is."""
    values = (entry.get(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), 0)


def reading_models(body: bytes, owner: str, start: str = "") -> Generator[None, None, dict[str, bytes]]:
    """Return the models of a list by name, each as an object of JSON; yields between steps of the work.

    owner: where one names none. start: what names may begin with that is no part of them. Raises ValueError for what is
    no list. What in it is no model, or has a name that no request may have, is left out. The first step takes 5 ms for
    each MB.
    """
    document = orjson.loads(body)
    entries = document.get("data", document.get("models")) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list `data`, nor `models`")
    found: dict[str, bytes] = {}
    for n, entry in enumerate(entries):
        if n % _PER_STEP == 0:
            yield
        name = (entry.get("id") or _google_name(entry)) if isinstance(entry, dict) else None
        if isinstance(name, str):
            name = name.removeprefix(start)
        if isinstance(name, str) and 1 <= len(name) <= _NAME_CHARS and not _UNFIT.search(name):
            found[name] = orjson.dumps({**entry, "id": name, **_missing(entry, owner)})
            if len(found) == _MOST_MODELS:
                break
    return found


def _missing(entry: dict[str, object], owner: str) -> dict[str, object]:
    fields: dict[str, object] = {"object": _KIND, "created": 0, "owned_by": owner}
    return {name: value for name, value in fields.items() if name not in entry}


def model_object(name: str, owner: str, own: bytes | None = None) -> bytes:
    """Return the object of a model. own: an upstream's, of the model that `name` stands for; else little is known."""
    entry: dict[str, object] = {"id": name} if own is None else orjson.loads(own)
    entry["id"] = name
    return orjson.dumps({**entry, **_missing(entry, owner)})


def is_model_object(body: bytes) -> bool:
    """Say whether an answer is the object of a model."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("id"), str)


def list_of(objects: Iterable[bytes]) -> bytes:
    """Return a list of objects of JSON."""
    return b'{"object":"list","data":[%b]}' % b",".join(objects)


def page_for(dialect: Dialect, page: bytes, *, is_codex: bool = False) -> bytes:
    """Return a list of OpenAI's shape as clients of a dialect know it.

    is_codex: it looks for `models`, in a form of its own that changes with its versions, and fills an empty one from
    the catalogue that it brings; without it, it says so at each start (openai/codex#22205).
    """
    if dialect is Dialect.OPENAI:
        return page[:-1] + b',"models":[]}' if is_codex else page
    objects = [_for(dialect, entry) for entry in orjson.loads(page)["data"]]
    if dialect is Dialect.GOOGLE:
        return orjson.dumps({"models": objects})
    ends = {"first_id": objects[0]["id"], "last_id": objects[-1]["id"]} if objects else {}
    return orjson.dumps({"data": objects, "has_more": False, "first_id": None, "last_id": None, **ends})


def object_for(dialect: Dialect, model: bytes) -> bytes:
    """Return a model's object of OpenAI's shape as clients of a dialect know it."""
    return model if dialect is Dialect.OPENAI else orjson.dumps(_for(dialect, orjson.loads(model)))


def _for(dialect: Dialect, entry: dict[str, Any]) -> dict[str, Any]:
    name, shown = entry["id"], entry.get("display_name") or entry.get("displayName") or entry["id"]
    if dialect is Dialect.GOOGLE:
        own = {key: value for key, value in entry.items() if key not in ("id", "object", "created", "owned_by")}
        known: dict[str, object] = {"version": _version(name), "supportedGenerationMethods": _methods(name)}
        if window := _first(entry, _WINDOWS):
            known["inputTokenLimit"] = window
        if most := _first(entry, _OUTPUTS):
            known["outputTokenLimit"] = most
        if "supported_parameters" in entry:
            known["thinking"] = "reasoning" in entry["supported_parameters"]
        return {**known, **own, "name": f"models/{name}", "displayName": shown}
    made = entry.get("created")
    made_s = made if isinstance(made, int) and 0 <= made < _YEAR_3000_S else 0
    made_at = entry.get("created_at") or datetime.fromtimestamp(made_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {"lifecycle": "active"}
    limits = {"max_input_tokens": _first(entry, _WINDOWS), "max_tokens": _first(entry, _OUTPUTS)}
    known |= {field: value for field, value in limits.items() if value}
    if "supported_parameters" in entry:
        known["capabilities"] = _anthropics_capabilities(entry)
    return {**known, **entry, "type": _KIND, "id": name, "display_name": shown, "created_at": made_at}


def _anthropics_capabilities(entry: dict[str, Any]) -> dict[str, object]:
    """Return what a model can do as Anthropic says it: each of its keys is there.

    Of what Anthropic's API alone has, nothing: batches, citations of documents, its own tools but the search.
    """
    taken = entry["supported_parameters"]
    efforts = entry.get("reasoning_efforts", ())
    reasons = "reasoning" in taken
    sees = "image" in entry.get("architecture", {}).get("input_modalities", ())
    searches = "web_search_options" in taken
    kinds = {kind: _supported(reasons) for kind in ("adaptive", "enabled")}
    kinds |= {"disabled": _supported(True), "between_tools": _supported(False)}
    return {
        "batch": _supported(False),
        "citations": _supported(False),
        "code_execution": _supported(False),
        "context_management": _supported(False),
        "effort": {
            **_supported(reasons),
            **{each: _supported(each in efforts) for each in ("low", "medium", "high", "xhigh", "max")},
        },
        "image_input": _supported(sees),
        "pdf_input": _supported(sees),
        "server_tools": {
            **_supported(searches),
            "web_search": _supported(searches),
            "code_execution": _supported(False),
        },
        "structured_outputs": _supported("structured_outputs" in taken),
        "thinking": {**_supported(reasons), "types": kinds},
    }


def _supported(value: bool) -> dict[str, bool]:
    return {"supported": value}


def _version(name: str) -> str:
    found = _VERSION.search(name)
    return found[1] if found is not None else "001"


def _methods(name: str) -> list[str]:
    """Return what Google's clients may ask of a model."""
    lower = name.lower()
    if _EMBEDS.search(lower):
        return ["embedContent", "batchEmbedContents"]
    return [] if _OTHERS.search(lower) else ["generateContent", "streamGenerateContent", "countTokens"]


def _google_name(entry: dict[str, object]) -> str | None:
    name = entry.get("name")
    return name.removeprefix("models/") if isinstance(name, str) else None
