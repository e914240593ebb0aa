"""What Claude's Messages API checks wherever it is served: fields, tools, roles, sources, marks, and betas.

The services differ in a Place: which betas they know, and which fields they lack. Anthropic's own (anthropic.py) knows
all; Bedrock's invoke (bedrock.py), Vertex (vertex.py) and others know fewer. Its schema refuses each field it does not
know: "tools.0.custom.eager_input_streaming: Extra inputs are not permitted".

Sources: the types of Anthropic's SDK (anthropic 2.12), its pages "Beta headers", "Prompt caching", "Tool search",
"Vision", and the issues named at each rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tests.vendors import schemas
from tests.vendors.vendor import SSE, Reply, VendorRequest

__all__ = ["BETAS", "Place", "answer", "betas_of", "error", "events", "problem", "refuse_below"]

# Betas of Anthropic's own API (its SDK's AnthropicBetaParam, and those that Claude Code sends).
BETAS: Final = frozenset(
    {
        *("computer-use-2024-10-22", "computer-use-2025-01-24", "computer-use-2025-11-24", "output-128k-2025-02-19"),
        *("mcp-client-2025-04-04", "mcp-client-2025-11-20", "mcp-client-2026-09-15", "dev-full-thinking-2025-05-14"),
        *("interleaved-thinking-2025-05-14", "code-execution-2025-05-22", "code-execution-2025-08-25"),
        *("context-1m-2025-08-07", "context-management-2025-06-27", "model-context-window-exceeded-2025-08-26"),
        *("fast-mode-2026-02-01", "output-300k-2026-03-24", "user-profiles-2026-03-24", "user-profiles-2026-08-18"),
        *("user-profiles-2026-09-04", "user-profiles-billing-2026-10-01", "advisor-tool-2026-03-01"),
        *("thinking-token-count-2026-05-13", "server-side-fallback-2026-06-01", "server-side-fallback-2026-07-01"),
        *("fallback-credit-2026-06-01", "fallback-credit-2026-07-01", "agent-memory-2026-07-22"),
        *("mid-conversation-tool-changes-2026-07-01", "mid-conversation-output-config-2026-07-01"),
        *("mid-conversation-system-2026-04-07", "mid-conversation-system-clear-at-2026-08-21"),
        *("compact-2026-01-12", "compact-2026-09-04", "structured-outputs-2025-11-13", "structured-outputs-2025-12-15"),
        *("task-budgets-2026-03-13", "thinking-display-updates-2026-08-18", "thinking-binding-controls-2026-08-01"),
        *("inline-tools-2026-09-15", "message-threads-2026-08-12", "message-batches-2024-09-24"),
        *("prompt-caching-2024-07-31", "prompt-caching-scope-2026-01-05", "pdfs-2024-09-25"),
        *("token-counting-2024-11-01", "token-efficient-tools-2025-02-19", "files-api-2025-04-14"),
        *("extended-cache-ttl-2025-04-11", "skills-2025-10-02", "cache-diagnosis-2026-04-07", "effort-2025-11-24"),
        *("advanced-tool-use-2025-11-20", "fine-grained-tool-streaming-2025-05-14", "per-turn-control-2026-07-01"),
        *("web-fetch-2025-09-10", "web-search-2025-03-05", "claude-code-20250219", "oauth-2025-04-20"),
        *("redact-thinking-2026-02-12", "afk-mode-2026-01-31", "dangerous-tool-use-2026-09-03"),
    }
)
_EXTRA: Final = "Extra inputs are not permitted"
# Of the body, at its top: those of the released API ("Create a Message"), and those that a beta brings.
_FIELDS: Final = frozenset(
    {
        *("model", "messages", "max_tokens", "system", "metadata", "stop_sequences", "stream", "temperature", "top_p"),
        *("top_k", "tools", "tool_choice", "thinking", "output_config"),
    }
)
_ONE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "context_management": ("context-management-2025-06-27", "compact-2026-01-12"),
    "compaction": ("compact-2026-09-04",),
    "mcp_servers": ("mcp-client-2025-04-04", "mcp-client-2025-11-20", "mcp-client-2026-09-15"),
    "output_format": ("structured-outputs-2025-11-13", "structured-outputs-2025-12-15"),
    "output_config.task_budget": ("task-budgets-2026-03-13",),
    "fallbacks": ("server-side-fallback-2026-06-01", "server-side-fallback-2026-07-01"),
    "fallback_credit_token": ("fallback-credit-2026-06-01", "fallback-credit-2026-07-01"),
    "thread": ("message-threads-2026-08-12",),
    "user_profile_id": ("user-profiles-2026-03-24", "user-profiles-2026-08-18", "user-profiles-2026-09-04"),
    "billing_policy": ("user-profiles-billing-2026-10-01",),
}
# Of the released API of Anthropic's own alone; without its beta where a version asks for none.
_OWN_FIELDS: Final = frozenset(
    {"cache_control", "container", "diagnostics", "inference_geo", "service_tier", "speed", "user_profile_id"}
)
_TOOL_FIELDS: Final = frozenset({"name", "description", "input_schema", "cache_control", "type", "strict"})
_ADVANCED: Final = frozenset({"defer_loading", "allowed_callers", "input_examples", "eager_input_streaming"})
# Tools that the vendor defined and the client runs, with the beta of each: those of a computer need one.
_CLIENT_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "computer_20241022": ("computer-use-2024-10-22",),
    "computer_20250124": ("computer-use-2025-01-24",),
    "computer_20251124": ("computer-use-2025-11-24",),
    "bash_20241022": ("computer-use-2024-10-22",),
    "text_editor_20241022": ("computer-use-2024-10-22",),
    **dict.fromkeys(
        (
            *("bash_20250124", "text_editor_20250124", "text_editor_20250429", "text_editor_20250728"),
            "memory_20250818",
        ),
        (),
    ),
}
_SEARCHES: Final = ("tool_search_tool_regex", "tool_search_tool_bm25")
_MARKS: Final = 4


class Place(NamedTuple):
    """One service. betas: that it knows. Others are refused, as `unknown_beta` says: with {} for the name.

    own: it has all that Anthropic's own API has. tool_fields: of tools, that it takes beside the usual ones, each with
    the betas of which one must be there; () where it needs none. server_tools: types that it runs itself, as prefixes.
    fields: of the body, that it takes beside those of betas it knows. strict: tools may be.
    urls: it fetches pictures and documents. system_role: a message may be of the system. scope: of a cache mark.
    client_tools: it knows the types of tools that the vendor defined and the client runs. files: without a beta.
    """

    betas: frozenset[str]
    unknown_beta: str
    own: bool = False
    tool_fields: Mapping[str, tuple[str, ...]] = {}
    server_tools: tuple[str, ...] = ()
    fields: frozenset[str] = frozenset()
    strict: bool = True
    urls: bool = True
    system_role: bool = False
    scope: bool = False
    client_tools: bool = True
    files: bool = False


def betas_of(request: VendorRequest) -> tuple[str, ...]:
    """Return the names in the header anthropic-beta."""
    return tuple(name.strip() for name in request.headers.get("anthropic-beta", "").split(",") if name.strip())


def problem(body: Mapping[str, Any], betas: tuple[str, ...], place: Place) -> str | None:
    """Return what a service says of a request; None: nothing is wrong with it."""
    for beta in betas:
        if beta not in place.betas:
            return place.unknown_beta.format(beta)
    return next(_problems(body, frozenset(betas), place), None)


def _problems(body: Mapping[str, Any], betas: frozenset[str], place: Place) -> Iterator[str]:
    for name in ("messages", "max_tokens"):
        if name not in body:
            yield f"{name}: Field required"
    for name in body:
        if not (
            name in _FIELDS
            or (place.own and name in _OWN_FIELDS)
            or name in place.fields
            or not betas.isdisjoint(_ONE_OF.get(name, ()))
        ):
            yield f"{name}: {_EXTRA}"
    config = body.get("output_config") or {}
    if "task_budget" in config and betas.isdisjoint(_ONE_OF["output_config.task_budget"]):
        yield f"output_config.task_budget: {_EXTRA}"
    yield from _edit_problems(body, betas)
    for at, tool in enumerate(body.get("tools") or ()):
        yield from _tool_problems(f"tools.{at}", tool, betas, place)
    for at, message in enumerate(body.get("messages") or ()):
        yield from _message_problems(f"messages.{at}", message, betas, place)
    yield from _turn_problems(body)
    marks = list(_marks({name: body.get(name) for name in ("tools", "system", "messages")}))
    if len(marks) > _MARKS:
        # "Prompt caching", "How many breakpoints": four.
        yield f"A maximum of {_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    for mark in (*marks, *filter(None, [body.get("cache_control")])):
        if "scope" in mark and not place.scope:
            yield f"cache_control.ephemeral.scope: {_EXTRA}"


def _edit_problems(body: Mapping[str, Any], betas: frozenset[str]) -> Iterator[str]:
    """`compact_20260112` needs the beta of its own ("Compaction"), the others that of context management."""
    for at, edit in enumerate((body.get("context_management") or {}).get("edits") or ()):
        needed = "compact-2026-01-12" if edit.get("type") == "compact_20260112" else "context-management-2025-06-27"
        if needed not in betas:
            yield f"context_management.edits.{at}: Input tag '{edit.get('type')}' found using 'type' is not known"


def _tool_problems(path: str, tool: Mapping[str, Any], betas: frozenset[str], place: Place) -> Iterator[str]:
    kind = tool.get("type") or "custom"
    is_client = place.client_tools and kind in _CLIENT_TOOLS
    if kind != "custom" and not is_client and not kind.startswith((*place.server_tools, *_SEARCHES)):
        yield f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    if kind == "custom" and (wrong := schemas.claude_problem(tool.get("input_schema"))):
        yield f"{path}.custom.input_schema{wrong}"
    needed = place.tool_fields.get("defer_loading") if kind.startswith(_SEARCHES) else _CLIENT_TOOLS.get(kind, ())
    if needed is None or (needed and betas.isdisjoint(needed)):
        yield f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    for name in tool:
        if kind == "custom" and (name not in _TOOL_FIELDS | _ADVANCED or (name == "strict" and not place.strict)):
            yield f"{path}.{kind}.{name}: {_EXTRA}"
        if name in _ADVANCED:
            one_of = place.tool_fields.get(name)
            if one_of is None or (one_of and betas.isdisjoint(one_of)):
                yield f"{path}.{kind}.{name}: {_EXTRA}"


def _message_problems(path: str, message: Mapping[str, Any], betas: frozenset[str], place: Place) -> Iterator[str]:
    role = message.get("role")
    if role == "system":
        if not place.system_role or not any(name.startswith("mid-conversation-system") for name in betas):
            yield f"{path}: role 'system' is not supported on this model"
    elif role not in ("user", "assistant"):
        yield f"{path}.role: Input should be 'user' or 'assistant'"
    for block in _blocks(message.get("content")):
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "url" and not place.urls:
            yield f"{path}.content: URL sources are not supported"
        if (
            isinstance(source, dict)
            and source.get("type") == "file"
            and not place.files | ("files-api-2025-04-14" in betas)
        ):
            yield f"{path}.content: Input tag 'file' found using 'type' does not match any of the expected tags"


def _turn_problems(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the turns: results follow their calls at once, reasoning stands before them."""
    messages = [message for message in body.get("messages") or () if message.get("role") != "system"]
    before: list[str] = []
    for at, message in enumerate([*messages, {"role": "user", "content": []}]):
        content = message.get("content")
        blocks: list[Any] = content if isinstance(content, list) else []
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        if missing := [each for each in before if each not in results]:
            # anthropics/claude-code#3086.
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        for index, result in enumerate(results):
            if result not in before:
                # router-for-me/CLIProxyAPI#497.
                yield (
                    f"messages.{at}.content.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {result}. "
                    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        before = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        if any(block.get("type") == "text" and not block.get("text") for block in blocks):
            yield f"messages.{at}: text content blocks must be non-empty"  # NousResearch/hermes-agent#55092
        first = blocks[0].get("type") if blocks else ""
        is_last = message["role"] == "assistant" and not any(each["role"] == "assistant" for each in messages[at + 1 :])
        is_thinking = (body.get("thinking") or {}).get("type") == "enabled"
        if is_last and before and is_thinking and first not in ("thinking", "redacted_thinking"):
            # anomalyco/opencode#3077.
            yield (
                f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking block"
            )


def _blocks(content: Any) -> Iterator[dict[str, Any]]:
    for block in content if isinstance(content, list) else ():
        yield block
        yield from _blocks(block.get("content"))


def _marks(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the cache marks of blocks and tools, not what a schema or arguments have under that name."""
    if isinstance(value, list):
        for each in value:
            yield from _marks(each)
    elif isinstance(value, dict):
        if isinstance(value.get("cache_control"), dict):
            yield value["cache_control"]
        for name, inner in value.items():
            if name in ("content", "tools", "system", "messages"):
                yield from _marks(inner)


def error(message: str, status: int = 400, kind: str = "invalid_request_error") -> Reply:
    """Return an error as Anthropic writes it, and the services that run its API as it is."""
    said = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}
    return Reply(status, json.dumps(said).encode())


_MESSAGE: Final = {
    "id": "msg_011",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-8",
    "content": [{"type": "text", "text": "Hello!"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 3},
}


def events() -> bytes:
    """Return the events of a streamed answer."""
    start = {**_MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    said: tuple[dict[str, Any], ...] = (
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello!"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    )
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in said)


def refuse_below(prefix: str, request: VendorRequest, place: Place) -> Reply | None:
    """Return the refusal of a service that has Anthropic's API below a path of its own; None: it answers."""
    if request.path not in (f"{prefix}/v1/messages", f"{prefix}/v1/messages/count_tokens"):
        return error("Not Found", 404, "not_found_error")
    if "anthropic-version" not in request.headers:
        return error("anthropic-version: header is required")
    body = request.json
    if "model" not in body:
        return error("model: Field required")
    found = problem({"max_tokens": 1, **body}, betas_of(request), place)
    return None if found is None else error(found)


def answer(request: VendorRequest) -> Reply:
    """Answer in the plain API: a message, its events, or a count."""
    if "count" in request.path:
        return Reply(200, b'{"input_tokens":9}')
    if request.json.get("stream"):
        return Reply(200, events(), SSE)
    return Reply(200, json.dumps(_MESSAGE).encode())
