"""`velox check --explain ROUTE DIALECT`: what a translation would leave out of requests of a dialect, or refuse.

Each field is tried in a request of its own: read as a client's, and written for the model of each target of the route.
So the answer is that of the gateway's own parts, and there is no second list of what is lost.

Knows: a field of each kind that a dialect has, with a value. Does not know: what any dialect does with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from velox.dialects.as_sent.claude_fields import fitted
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import ModelFacts
from velox.gateway.translation.adapter import DialectTable
from velox.policy.patterns import is_exact
from velox.policy.routes.entries import RouteEntry, Target, UpstreamEntry
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.providers.target import target_call
from velox.runtime.upstreams.dialects import dialect_table
from velox.settings import Settings
from velox.settings.problems import on_one_line
from velox.types import ApiKind

__all__ = ["DIALECTS", "field_losses", "loss_lines", "sent_losses"]

# The dialects of clients, as they are called on the command line.
DIALECTS: Final[Mapping[str, ApiKind]] = MappingProxyType(
    {
        "chat": ApiKind.CHAT,
        "responses": ApiKind.RESPONSES,
        "messages": ApiKind.MESSAGES,
        "generate": ApiKind.GENERATE,
    }
)
_SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
_URL: Final = "https://example.com/a.png"
_BASE64: Final = "aGVsbG8="
_CHAT_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}
_GENERATE_TOOL: Final = {"functionDeclarations": [{"name": "f", "parametersJsonSchema": _SCHEMA}]}
_MARK: Final = {"type": "ephemeral"}


def _user(*parts: object, name: str = "content") -> list[object]:
    return [{"role": "user", name: list(parts)}]


_CHAT: Final[Mapping[str, dict[str, Any]]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "max_completion_tokens": {"max_completion_tokens": 2000},
    "stop": {"stop": ["x"]},
    "n: 2": {"n": 2},
    "seed": {"seed": 1},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logprobs: true": {"logprobs": True},
    "logit_bias": {"logit_bias": {"1": 1}},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "verbosity": {"verbosity": "low"},
    "response_format: json_object": {"response_format": {"type": "json_object"}},
    "response_format: json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
    },
    "reasoning_effort": {"reasoning_effort": "high"},
    "reasoning_effort: none": {"reasoning_effort": "none"},
    "tools": {"tools": [_CHAT_TOOL]},
    "tool_choice: required": {"tools": [_CHAT_TOOL], "tool_choice": "required"},
    "tool_choice: none": {"tools": [_CHAT_TOOL], "tool_choice": "none"},
    "parallel_tool_calls: false": {"tools": [_CHAT_TOOL], "parallel_tool_calls": False},
    "user": {"user": "u"},
    "metadata": {"metadata": {"a": "b"}},
    "service_tier: flex": {"service_tier": "flex"},
    "store": {"store": True},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "modalities: audio": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "web_search_options": {"web_search_options": {}},
    "image by URL": {"messages": _user({"type": "image_url", "image_url": {"url": _URL}})},
    "image as data": {
        "messages": _user({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_BASE64}"}})
    },
    "audio": {"messages": _user({"type": "input_audio", "input_audio": {"data": _BASE64, "format": "wav"}})},
    "file as data": {
        "messages": _user(
            {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{_BASE64}"}}
        )
    },
    "file by id": {"messages": _user({"type": "file", "file": {"file_id": "file-1"}})},
    "last message of the assistant": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    },
}
_MESSAGES: Final[Mapping[str, dict[str, Any]]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "stop_sequences": {"stop_sequences": ["x"]},
    "thinking: adaptive": {"thinking": {"type": "adaptive"}},
    "thinking: enabled": {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    "output_config.effort": {"output_config": {"effort": "medium"}},
    "output_config.format": {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    "tools": {"tools": [{"name": "f", "input_schema": _SCHEMA}]},
    "tool_choice: any": {"tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "any"}},
    "web_search tool": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "cache_control of a block": {"messages": _user({"type": "text", "text": "a", "cache_control": _MARK})},
    "cache_control": {"cache_control": _MARK},
    "metadata.user_id": {"metadata": {"user_id": "u"}},
    "service_tier": {"service_tier": "standard_only"},
    "container": {"container": "c"},
    "mcp_servers": {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "m"}]},
    "image by URL": {"messages": _user({"type": "image", "source": {"type": "url", "url": _URL}})},
    "document as data": {
        "messages": _user(
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": _BASE64}}
        )
    },
    "document by id": {"messages": _user({"type": "document", "source": {"type": "file", "file_id": "file_1"}})},
    "last message of the assistant": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    },
}
# Of Messages as sent: what Anthropic's own API has, and not every service.
_OF_ANTHROPIC: Final[Mapping[str, dict[str, Any]]] = {
    "speed": {"speed": "fast"},
    "output_config.task_budget": {"output_config": {"task_budget": {"type": "tokens", "total": 20000}}},
    "output_format": {"output_format": {"type": "json_schema", "schema": _SCHEMA}},
    "context_management": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "fallbacks": {"fallbacks": [{"model": "m"}]},
    "diagnostics": {"diagnostics": {"previous_message_id": "msg_1"}},
    "inference_geo": {"inference_geo": "us"},
    "thread": {"thread": {"type": "create"}},
    "compaction": {"compaction": {"type": "full"}},
    "message of the system": {"messages": [*_user("a"), {"role": "system", "content": "b"}]},
    **{
        f"tools.{name}": {"tools": [{"name": "f", "input_schema": _SCHEMA, name: value}]}
        for name, value in (
            *(("strict", True), ("defer_loading", True), ("allowed_callers", ["direct"])),
            *(("input_examples", [{}]), ("eager_input_streaming", True)),
        )
    },
    **{
        f"{name} tool": {"tools": [{"type": f"{name}_{date}", "name": name}]}
        for name, date in (
            *(("web_fetch", "20250910"), ("code_execution", "20250825"), ("bash", "20250124")),
            *(("memory", "20250818"), ("tool_search_tool_regex", "20251119")),
        )
    },
}
_RESPONSES: Final[Mapping[str, dict[str, Any]]] = {
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "max_output_tokens": {"max_output_tokens": 2000},
    "top_logprobs": {"top_logprobs": 2},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "text.format: json_schema": {"text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}}},
    "reasoning.effort": {"reasoning": {"effort": "high"}},
    "reasoning.summary": {"reasoning": {"effort": "high", "summary": "auto"}},
    "tools: function": {"tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}]},
    "tools: custom": {"tools": [{"type": "custom", "name": "f"}]},
    "tools: web_search": {"tools": [{"type": "web_search"}]},
    "tools: local_shell": {"tools": [{"type": "local_shell"}]},
    "parallel_tool_calls: false": {"parallel_tool_calls": False},
    "max_tool_calls": {"max_tool_calls": 3},
    "previous_response_id, not kept": {"previous_response_id": "resp_1"},
    "conversation, not kept": {"conversation": "conv_1"},
    "background: true": {"background": True},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "truncation: auto": {"truncation": "auto"},
    "store": {"store": True},
    "user": {"user": "u"},
    "metadata": {"metadata": {"a": "b"}},
    "service_tier: flex": {"service_tier": "flex"},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "image by URL": {"input": _user({"type": "input_image", "image_url": _URL})},
    "file by id": {"input": _user({"type": "input_file", "file_id": "file-1"})},
}


def _config(**fields: object) -> dict[str, Any]:
    return {"generationConfig": fields}


_GENERATE: Final[Mapping[str, dict[str, Any]]] = {
    "temperature": _config(temperature=0.5),
    "topP": _config(topP=0.5),
    "topK": _config(topK=5),
    "maxOutputTokens": _config(maxOutputTokens=2000),
    "stopSequences": _config(stopSequences=["x"]),
    "candidateCount: 2": _config(candidateCount=2),
    "seed": _config(seed=1),
    "presencePenalty": _config(presencePenalty=0.5),
    "frequencyPenalty": _config(frequencyPenalty=0.5),
    "responseLogprobs: true": _config(responseLogprobs=True),
    "responseJsonSchema": _config(responseMimeType="application/json", responseJsonSchema=_SCHEMA),
    "thinkingLevel": _config(thinkingConfig={"thinkingLevel": "HIGH"}),
    "thinkingBudget": _config(thinkingConfig={"thinkingBudget": 2000}),
    "responseModalities: AUDIO": _config(responseModalities=["AUDIO"]),
    "mediaResolution": _config(mediaResolution="MEDIA_RESOLUTION_LOW"),
    "tools": {"tools": [_GENERATE_TOOL]},
    "toolConfig: ANY": {"tools": [_GENERATE_TOOL], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
    "googleSearch": {"tools": [{"googleSearch": {}}]},
    "codeExecution": {"tools": [{"codeExecution": {}}]},
    "safetySettings": {"safetySettings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]},
    "cachedContent": {"cachedContent": "cachedContents/a"},
    "labels": {"labels": {"a": "b"}},
    "inlineData": {"contents": _user({"inlineData": {"mimeType": "image/png", "data": _BASE64}}, name="parts")},
    "fileData": {"contents": _user({"fileData": {"mimeType": "image/png", "fileUri": _URL}}, name="parts")},
}
_FIELDS: Final[Mapping[ApiKind, Mapping[str, dict[str, Any]]]] = MappingProxyType(
    {ApiKind.CHAT: _CHAT, ApiKind.MESSAGES: _MESSAGES, ApiKind.RESPONSES: _RESPONSES, ApiKind.GENERATE: _GENERATE}
)
_USUAL: Final[Mapping[ApiKind, dict[str, Any]]] = MappingProxyType(
    {
        ApiKind.CHAT: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
        ApiKind.MESSAGES: {"model": "m", "max_tokens": 4000, "messages": [{"role": "user", "content": "a"}]},
        ApiKind.RESPONSES: {"model": "m", "input": "a"},
        ApiKind.GENERATE: {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
    }
)


class _Keeper:
    """As where answers are kept."""

    previous: str | None = None
    conversation: str | None = None
    reads_reply = False

    def own_input(self, body: bytes | bytearray) -> bytes:
        """There is none."""
        return b""

    def keep(self, body: bytes | bytearray, response: bytes) -> None:
        """There is no answer."""


def loss_lines(settings: Settings, route: RouteEntry, dialect: str) -> list[str]:
    """Return, for each target of a route, what requests of a dialect lose on their way there."""
    client_api, known = DIALECTS[dialect], dialect_table()
    upstreams = {entry.name: entry for entry in settings.upstreams}
    lines = []
    for target in route.targets:
        for line in _of_target(known, route, target, upstreams[target.upstream], client_api):
            lines.append(on_one_line(line))
    return lines


def sent_losses(facts: ModelFacts) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the same for a request in Messages that goes up as sent, to a service that is not Anthropic's."""
    for name, fields in {**_MESSAGES, **_OF_ANTHROPIC}.items():
        dropped = DroppedFields()
        try:
            fitted(msgspec.json.encode({**_USUAL[ApiKind.MESSAGES], **fields}), (), facts, dropped)
        except BadRequestError as exc:
            yield name, (), exc.message
            continue
        yield name, dropped.names, ""


def _of_target(
    known: DialectTable, route: RouteEntry, target: Target, entry: UpstreamEntry, client_api: ApiKind
) -> Iterator[str]:
    row = PROVIDERS[entry.provider]
    model = _model(route, target)
    called = f"{target.upstream}, model {model}"
    facts = facts_of(row, model, entry.model_facts)
    call = target_call(row, dict(entry.parameters), client_api, model, apis=entry.apis, known_as=facts.family)
    if call is None or call.api is client_api:
        how = "as sent: it has this API" if call is not None else "as sent: nothing is known of its APIs"
        yield f"{called}: {how}"
        if call is None or client_api is not ApiKind.MESSAGES or client_api in row.traits.defines:
            return
        found = sent_losses(facts)
    else:
        yield f"{called}: translated to {call.api.name.lower()}"
        found = field_losses(known, client_api, call.api, (row.name, facts, model))
    dropped, refused = [], []
    for name, lost, why in found:
        if why:
            refused.append(f"{name} ({why})")
        dropped += [name if name.partition(":")[0] == each else f"{name} ({each})" for each in lost]
    yield f"  left out{', so refused here (strict)' if route.strict else ''}: {', '.join(dropped) or 'nothing'}"
    if not refused:
        yield "  refused: nothing"
    yield from (f"  refused: {each}" for each in refused)


def field_losses(
    known: DialectTable, client_api: ApiKind, api: ApiKind, of: tuple[str, ModelFacts, str]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield for each field of a dialect what a translation drops of it, and why it is refused, if it is.

    of: name of the provider's row, facts and name of the model.
    """
    provider, facts, model = of
    for name, fields in _FIELDS[client_api].items():
        dropped = DroppedFields()
        body = msgspec.json.encode({**_USUAL[client_api], **fields})
        try:
            _cross(known, client_api, api, provider, (facts, dropped, model), body)
        except BadRequestError as exc:
            yield name, (), exc.message
        else:
            yield name, dropped.names, ""


def _cross(
    known: DialectTable,
    client_api: ApiKind,
    api: ApiKind,
    provider: str,
    of: tuple[ModelFacts, DroppedFields, str],
    body: bytes,
) -> None:
    """Translate one request. Raises BadRequestError."""
    facts, dropped, model = of
    request = known.clients[client_api](ClientCall("a", 0, model, keeper=_Keeper()), dropped).read(body)
    known.models[api](facts, dropped, provider).write(request, model)


def _model(route: RouteEntry, target: Target) -> str:
    """Return a model that a target is asked for, as far as the route tells: a pattern stands for itself."""
    if target.model is not None:
        return target.model
    names = sorted(route.match.models, key=is_exact, reverse=True)
    return names[0].removeprefix(target.strip).replace("*", "any") if names else "any"
