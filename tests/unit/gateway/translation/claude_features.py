"""Requests that use what not every service of Claude has: one for each field of the table (claude_fields.py)."""

from __future__ import annotations

from typing import Any

from velox.dialects.as_sent.claude_fields import BETAS_OF

__all__ = ["ASKED", "BETAS", "DROPPED", "EXAMPLES", "FETCH", "SEARCH", "TOOL", "example"]

TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
# Fields that tune an answer, each with its beta; "": it has none any more.
DROPPED: dict[str, tuple[dict[str, Any], str]] = {
    "speed": ({"speed": "fast"}, "fast-mode-2026-02-01"),
    "output_config.task_budget": (
        {"output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 20000}}},
        "task-budgets-2026-03-13",
    ),
    "fallbacks": ({"fallbacks": [{"model": "claude-opus-4-8"}]}, "server-side-fallback-2026-06-01"),
    "diagnostics": ({"diagnostics": {"previous_message_id": "msg_1"}}, "cache-diagnosis-2026-04-07"),
    "mcp_servers": ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp-client-2025-11-20"),
    "fallback_credit_token": ({"fallback_credit_token": "t"}, "fallback-credit-2026-06-01"),
    "inference_geo": ({"inference_geo": "us"}, ""),
    "user_profile_id": ({"user_profile_id": "u"}, "user-profiles-2026-03-24"),
}


# A name for each pattern of betas.
_DATES = {
    "advanced-tool-use-*": "advanced-tool-use-2025-11-20",
    "advisor-tool-*": "advisor-tool-2026-03-01",
    "cache-diagnosis-*": "cache-diagnosis-2026-04-07",
    "code-execution-*": "code-execution-2025-08-25",
    "effort-*": "effort-2025-11-24",
    "context-management-*": "context-management-2025-06-27",
    "fallback-credit-*": "fallback-credit-2026-06-01",
    "fast-mode-*": "fast-mode-2026-02-01",
    "files-api-*": "files-api-2025-04-14",
    "fine-grained-tool-streaming-*": "fine-grained-tool-streaming-2025-05-14",
    "inline-tools-*": "inline-tools-2026-09-15",
    "mcp-client-*": "mcp-client-2025-11-20",
    "message-threads-*": "message-threads-2026-08-12",
    "mid-conversation-*": "mid-conversation-system-2026-04-07",
    "server-side-fallback-*": "server-side-fallback-2026-06-01",
    "skills-*": "skills-2025-10-02",
    "structured-outputs-*": "structured-outputs-2025-11-13",
    "task-budgets-*": "task-budgets-2026-03-13",
    "thinking-binding-controls-*": "thinking-binding-controls-2026-08-01",
    "tool-examples-*": "tool-examples-2025-10-29",
    "tool-search-tool-*": "tool-search-tool-2025-10-19",
    "user-profiles-20*": "user-profiles-2026-03-24",
    "user-profiles-billing-*": "user-profiles-billing-2026-10-01",
    "web-fetch-*": "web-fetch-2025-09-10",
    "web-search-*": "web-search-2025-03-05",
}
# As Anthropic names them: those of clouds are other names for two of these.
BETAS: dict[str, tuple[str, ...]] = {
    path: tuple(
        _DATES.get(beta, beta) for beta in betas if not beta.startswith(("tool-search-tool-", "tool-examples-"))
    )
    for path, betas in BETAS_OF.items()
}


EXAMPLES: dict[str, dict[str, Any]] = {
    "billing_policy": {"billing_policy": {"type": "billing_policy", "bill_to": "self"}},
    "compaction": {"compaction": {"type": "full"}},
    "context_management": {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
    "context_management.clear": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "context_management.compact": {"context_management": {"edits": [{"type": "compact_20260112"}]}},
    "container": {"container": "container_1"},
    **{name: fields for name, (fields, _) in DROPPED.items()},
    "messages.system": {"messages": [*ASKED["messages"], {"role": "system", "content": "note"}]},
    "output_config.effort": {"output_config": {"effort": "high"}},
    "output_format": {"output_format": {"type": "json_schema", "schema": {"type": "object"}}},
    "source.file": {
        "messages": [
            {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]}
        ]
    },
    "thinking.block_binding": {"thinking": {"type": "adaptive", "block_binding": {"on_mismatch": "drop"}}},
    "thread": {"thread": {"type": "create"}},
    "tools.advisor": {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "m"}]},
    "tools.allowed_callers": {"tools": [{**TOOL, "allowed_callers": ["direct"]}]},
    "tools.code_execution": {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    "tools.defer_loading": {"tools": [{**TOOL, "defer_loading": True}]},
    "tools.eager_input_streaming": {"tools": [{**TOOL, "eager_input_streaming": True}]},
    "tools.input_examples": {"tools": [{**TOOL, "input_examples": [{}]}]},
    "tools.strict": {"tools": [{**TOOL, "strict": True}]},
    "tools.tool_search_tool": {
        "tools": [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}]
    },
    "tools.bash": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "tools.web_fetch": {"tools": [FETCH]},
    "tools.web_search": {"tools": [SEARCH]},
}


def example(paths: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a body that has these fields, and the betas that go with them at Anthropic."""
    body = dict(ASKED)
    betas: list[str] = []
    for path in sorted(paths):
        for name, value in EXAMPLES[path].items():
            if name in ("tools", "messages") and name in body and name != "messages":
                body[name] = [*body[name], *value]
            else:
                body[name] = {**body[name], **value} if isinstance(body.get(name), dict) else value
        betas += BETAS.get(path, ())
    return body, list(dict.fromkeys(betas))
