"""Makes the tables of matrix.md and the sections of provider-pages.md: `python -m docs.tables` writes them.

Nothing here says what works: each cell is what the gateway's own parts make of a request with that field, for a model
of that provider, as `velox check --explain` shows it for a route.

Knows: which fields belong to a feature, and a model of each family. Does not know: what any dialect does with a field.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from velox.dialects.facts.model_facts import ModelFacts
from velox.providers.model_facts import facts_of
from velox.providers.provider import Family, Keyless, Provider
from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.providers.target import missing, origin_of, target_call
from velox.runtime.commands.translation_losses import DIALECTS, field_losses
from velox.runtime.upstreams.dialects import dialect_table
from velox.settings.routing.provider_fields import PARAMETERS
from velox.types import ApiKind

__all__ = ["matrix", "overview", "sections"]

_WIDTH: Final = 160
_OTHERS: Final = "others"
# A model of each family, by the first of its patterns; the others by provider.
_MODELS: Final = {
    "*-codex*": "gpt-5-codex",
    "openai.gpt-oss*": "openai.gpt-oss-120b",
    "openai.gpt-5*": "openai.gpt-5.5",
    "openai.*": "openai.gpt-6-astra",
    "xai.*": "xai.grok-4.3",
    "bedrock-mantle": "moonshotai.kimi-k2.5",
    "gpt-5*": "gpt-5.2",
    "*claude*": "claude-opus-4-7",
    "*anthropic.claude*": "anthropic.claude-opus-4-7-v1:0",
    "gemini*": "gemini-3-flash",
    **dict.fromkeys(("openai", "azure", "foundry"), "gpt-4o"),
    "anthropic": "claude-opus-4-7",
    "bedrock": "amazon.nova-2-lite-v1:0",
    "gemini": "gemini-3-flash",
}
_GIVEN: Final = {name: kind.example for name, kind in PARAMETERS.items() if name != "api_version"}
# Feature -> its fields by dialect, as field_losses() calls them.
_FEATURES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "tools": dict.fromkeys(("chat", "messages", "generate"), ("tools",)) | {"responses": ("tools: function",)},
    "forced tool": {
        "chat": ("tool_choice: required",),
        "messages": ("tool_choice: any",),
        "generate": ("toolConfig: ANY",),
    },
    "one call at a time": dict.fromkeys(("chat", "responses"), ("parallel_tool_calls: false",)),
    "custom tools": {"responses": ("tools: custom", "tools: local_shell")},
    "JSON schema": {
        "chat": ("response_format: json_schema",),
        "responses": ("text.format: json_schema",),
        "messages": ("output_config.format",),
        "generate": ("responseJsonSchema",),
    },
    "reasoning": {
        "chat": ("reasoning_effort",),
        "responses": ("reasoning.effort", "reasoning.summary"),
        "messages": ("thinking: adaptive", "thinking: enabled", "output_config.effort"),
        "generate": ("thinkingLevel", "thinkingBudget"),
    },
    "images": {"chat": ("image as data",), "generate": ("inlineData",)},
    "image by URL": {
        **dict.fromkeys(("chat", "responses", "messages"), ("image by URL",)),
        "generate": ("fileData",),
    },
    "documents": {"chat": ("file as data",), "messages": ("document as data",)},
    "audio": {"chat": ("audio",)},
    "cache marks": {"messages": ("cache_control of a block", "cache_control")},
    "sampling": {
        **dict.fromkeys(("chat", "responses"), ("temperature", "top_p")),
        "messages": ("temperature", "top_p", "top_k"),
        "generate": ("temperature", "topP", "topK"),
    },
    "stop strings": {"chat": ("stop",), "messages": ("stop_sequences",), "generate": ("stopSequences",)},
    "seed": dict.fromkeys(("chat", "generate"), ("seed",)),
    "several answers": {"chat": ("n: 2",), "generate": ("candidateCount: 2",)},
    "logprobs": {"chat": ("logprobs: true",), "responses": ("top_logprobs",), "generate": ("responseLogprobs: true",)},
    "a search of the web by the provider": {
        "chat": ("web_search_options",),
        "responses": ("tools: web_search",),
        "messages": ("web_search tool",),
        "generate": ("googleSearch",),
    },
    "what the provider keeps": {
        "chat": ("file by id",),
        "responses": ("previous_response_id, not kept", "conversation, not kept", "prompt", "file by id"),
        "messages": ("container", "document by id"),
        "generate": ("cachedContent",),
    },
}
_APIS: Final = {
    **{dialect: (client_api,) for dialect, client_api in DIALECTS.items()},
    "embeddings": (ApiKind.EMBEDDINGS, ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS),
    "counting": (ApiKind.COUNT_MESSAGES, ApiKind.COUNT_RESPONSES, ApiKind.COUNT_GENERATE),
}


class _Kind(NamedTuple):
    """Models of one family of a provider. models: patterns, for people; "" where there is one family."""

    row: Provider
    models: str
    model: str
    facts: ModelFacts

    @property
    def name(self) -> str:
        return f"`{self.row.name}`{' ' if self.models else ''}{self.models}"

    def api(self, client_api: ApiKind) -> ApiKind | None:
        """Return the API that a request goes to; None: there is none for it."""
        call = target_call(self.row, _GIVEN, client_api, self.model)
        return None if call is None else call.api

    def losses(self, client_api: ApiKind) -> dict[str, str]:
        """Return what a translation makes of each field: "✓", "-" or "✗"."""
        api = self.api(client_api)
        assert api is not None and api is not client_api, "asked for translations"
        found = field_losses(dialect_table(), client_api, api, (self.row.name, self.facts, self.model))
        return {name: "✗" if why else "-" if lost else "✓" for name, lost, why in found}


def _kinds() -> Iterator[_Kind]:
    for row in PROVIDERS.values():
        yield from _kinds_of(row)


def _kinds_of(row: Provider) -> Iterator[_Kind]:
    families = [family for family in row.families if not family.when and ApiKind.VECTORS not in family.native]
    for family in families:
        model = _MODELS.get(next(iter(family.models), row.name), "a-model")
        models = "" if len(families) < 2 else _patterns(family)
        yield _Kind(row, models, model, facts_of(row, model))


def _patterns(family: Family) -> str:
    return f"`{family.models[0]}`" if family.models else _OTHERS


def overview() -> str:
    """Return the table of APIs: a row for each provider, or several that are alike."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for kind in _kinds():
        if kind.row is not COMPATIBLE:
            cells.setdefault(tuple(_ways(kind)), []).append(kind.name)
    lines = [f"| provider | {' | '.join(f'`{name}`' for name in _APIS)} |", f"|{'---|' * (len(_APIS) + 1)}"]
    lines += [f"| {', '.join(names)} | {' | '.join(ways)} |" for ways, names in cells.items()]
    return "\n".join(lines) + "\n"


def _ways(kind: _Kind) -> Iterator[str]:
    for name, client_apis in _APIS.items():
        apis = [(client_api, kind.api(client_api)) for client_api in client_apis]
        if name == "counting":
            found = next((api for _, api in apis if api is not None), None)
            yield "estimated" if found is None else f"→ `{found.name.lower()}`"
        elif all(api is None for _, api in apis):
            yield ""
        elif any(client_api is api for client_api, api in apis):
            yield "as sent"
        else:
            yield f"→ `{next(api.name.lower() for _, api in apis if api is not None)}`"


def matrix() -> str:
    """Return the tables of features: for each dialect of clients a row for each provider, or several that are alike."""
    return "\n" + "\n".join(_of_dialect(dialect, client_api) for dialect, client_api in DIALECTS.items())


def _of_dialect(dialect: str, client_api: ApiKind) -> str:
    features = [name for name, fields in _FEATURES.items() if dialect in fields]
    rows: dict[tuple[str, ...], list[str]] = {}
    as_sent = []
    for kind in _kinds():
        api = kind.api(client_api)
        if api is client_api:
            as_sent.append(kind.name)
        elif api is not None:
            losses = kind.losses(client_api)
            found = (_worst([losses[field] for field in _FEATURES[name][dialect]]) for name in features)
            rows.setdefault((f"`{api.name.lower()}`", *found), []).append(kind.name)
    title = f"### Clients of `{dialect}`\n\n"
    passed = _wrapped(f"As sent, with all that the provider has: {', '.join(as_sent)}.") if as_sent else ""
    head = ["translated for", "to", *features]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
    return title + passed + ("\n" if passed else "") + "\n".join(lines) + "\n"


def _worst(marks: list[str]) -> str:
    return marks[0] if len(set(marks)) == 1 else "partly"


def sections() -> str:
    """Return a section for each provider: what to set, what works, what is lost."""
    return "\n" + "\n".join(_section(row) for row in PROVIDERS.values() if row is not COMPATIBLE) + "\n"


def _section(row: Provider) -> str:
    parts = [f"## {row.title}\n", f"```yaml\nupstreams:\n  - {_entry(row)}\n```\n", _credential(row)]
    for kind in _kinds_of(row):
        if kind.models:
            whom = "Other models" if kind.models == _OTHERS else f"Models like {kind.models}"
            gap = "" if parts[-1].endswith("\n") else "\n"
            parts.append(f"{gap}{whom}, as `{kind.model}`:\n")
        parts += _of_kind(kind)
    return "\n".join(parts) + "\n"


def _entry(row: Provider) -> str:
    fields = [f"provider: {row.name}"]
    fields += [f"{name}: {PARAMETERS[name].example}" for name in missing(row, (), has_origin=False)]
    if not origin_of(row, _GIVEN):
        fields.append("origin: http://127.0.0.1:9000")
    if row.key_variables and row.keyless is Keyless.CLIENT:
        fields.append(f"key: env:{row.key_variables[0]}")
    return f"{{{', '.join(fields)}}}"


_SIGNS_IN: Final = {
    Keyless.AWS: "AWS credentials sign each request",
    Keyless.GOOGLE: "a token of a Google account goes up",
    Keyless.ENTRA: "a token of Microsoft Entra goes up",
}


def _credential(row: Provider) -> str:
    origin = row.origin or "an origin of your own"
    if row.keyless is Keyless.CLIENT:
        key = (
            f"The key is in `{row.key_variables[0]}`."
            if row.key_variables
            else "No key is sent, unless `key` names one."
        )
        return _wrapped(f"Asked at `{origin}`. {key}")
    key = f" With a key (`{row.key_variables[0]}`) that goes up in its place." if row.key_variables else ""
    more = "(providers.md#credentials-of-clouds)"
    return _wrapped(f"Asked at `{origin}`. Without a key, {_SIGNS_IN[row.keyless]}: [credentials]{more}.{key}")


def _of_kind(kind: _Kind) -> Iterator[str]:
    ways = dict(zip(_APIS, _ways(kind), strict=True))
    sent = [f"`{name}`" for name, way in ways.items() if way == "as sent"]
    if sent:
        yield _bullet(f"**As sent:** {', '.join(sent)}.")
    translated: dict[str, list[str]] = {}
    for name, way in ways.items():
        if way.startswith("→ ") and name != "counting":
            translated.setdefault(way.removeprefix("→ "), []).append(f"`{name}`")
    for api, names in translated.items():
        yield _bullet(f"**Translated to {api}:** {', '.join(names)}.")
    counting = ways["counting"]
    how = "estimated here" if counting == "estimated" else f"by the model's own API ({counting.removeprefix('→ ')})"
    yield _bullet(f"**Counting tokens:** {how}.")
    embedding = [
        pattern for family in kind.row.families if ApiKind.VECTORS in family.native for pattern in family.models
    ]
    if embedding:
        patterns = ", ".join(f"`{pattern}`" for pattern in embedding)
        yield _bullet(f"**Embeddings:** by models like {patterns}, [translated](dialects.md#embeddings).")
    elif not ways["embeddings"]:
        yield _bullet("**Embeddings:** none.")
    for dialect, client_api in DIALECTS.items():
        if ways[dialect].startswith("→ "):
            losses = kind.losses(client_api)
            dropped = [name for name, mark in losses.items() if mark == "-"]
            refused = [name for name, mark in losses.items() if mark == "✗"]
            text = f"left out: {', '.join(dropped) or 'nothing'}. Refused: {', '.join(refused) or 'nothing'}."
            yield _bullet(f"**Lost from `{dialect}`:** {text}")
    own = kind.row.facts
    if own.refused:
        yield _bullet(
            f"**Left out, because it answers them with 400:** {', '.join(f'`{name}`' for name in own.refused)}."
        )
    if own.renamed:
        renamed = ", ".join(f"`{ours}` as `{theirs}`" for ours, theirs in own.renamed)
        yield _bullet(f"**Renamed in translations:** {renamed}.")


def _bullet(text: str) -> str:
    return _wrapped(f"- {text}", "  ").rstrip()


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
