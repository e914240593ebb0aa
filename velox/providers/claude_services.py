"""What services of Claude's Messages API take beside Anthropic's own: betas, and the fields that go with them, as data.

    SERVICES   rules like those of model_facts.py, which has them: `betas`, `beta_fields`, `fetches_urls`

Users say more in `model_facts`: their `betas` are instead of these, their `beta_fields` are added to these, field by
field.

Sources, as of November 2026. Bedrock: AWS's user guide, "Anthropic Claude Messages API" (request and response, tool
use); BerriAI/litellm#19877, #41203; anthropics/claude-code#56595, #82549; vercel/ai#17179. Vertex AI: Anthropic's page
"Claude on Google Cloud"; BerriAI/litellm#27532; vercel/ai#13986; langchain-ai/langchain-google#1612. Mantle and
Foundry: Anthropic's pages "Claude in Amazon Bedrock", "Claude in Microsoft Foundry"; the list of betas by provider in
BerriAI/litellm, against which its users report; maximhq/bifrost's table of features (#4965). All of them: the
availability that the page of each feature names ("Vision": URLs, "Tool search", "Web search tool", "Files API", "Fast
mode", "Server-side fallback", "Task budgets", "MCP connector", "Skills", "Mid-conversation system messages").

Knows: the services. Does not know: where a field stands in a request, or what is done with it (claude_fields.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from velox.dialects.facts.model_facts import BY, REFUSED, TAKEN
from velox.policy.routes.model_rule import Fact, ModelRule

__all__ = ["SERVICES", "STRICT_AT_BEDROCK"]

_SEARCHES: Final = "tool-search-tool-2025-10-19"
_EXAMPLES: Final = "tool-examples-2025-10-29"
_CONTEXT: Final = "context-management-2025-06-27"
_COMPACT: Final = "compact-2026-01-12"
_BINDING: Final = "thinking-binding-controls-2026-08-01"
_EAGER: Final = "fine-grained-tool-streaming-2025-05-14"
_WEB_SEARCH: Final = "web-search-2025-03-05"

# Of the header anthropic-beta, what Bedrock takes by its invoke.
_BEDROCK_BETAS: Final = (
    _COMPACT,
    "computer-use-2024-10-22",
    "computer-use-2025-01-24",
    "computer-use-2025-11-24",
    "context-1m-2025-08-07",
    _CONTEXT,
    "dev-full-thinking-2025-05-14",
    "effort-2025-11-24",
    _EAGER,
    "interleaved-thinking-2025-05-14",
    "output-128k-2025-02-19",
    "token-efficient-tools-2025-02-19",
    _EXAMPLES,
    _SEARCHES,
)
_VERTEX_BETAS: Final = (
    _COMPACT,
    "compact-2026-09-04",
    "computer-use-2025-01-24",
    "computer-use-2025-11-24",
    "context-1m-2025-08-07",
    _CONTEXT,
    "interleaved-thinking-2025-05-14",
    "per-turn-control-2026-07-01",
    _BINDING,
    "thinking-display-updates-2026-08-18",
    _SEARCHES,
    _WEB_SEARCH,
)
_MANTLE_BETAS: Final = (
    *_BEDROCK_BETAS,
    "claude-code-20250219",
    "dangerous-tool-use-2026-09-03",
    "per-turn-control-2026-07-01",
    "structured-outputs-2025-11-13",
    _BINDING,
    "thinking-display-updates-2026-08-18",
    _WEB_SEARCH,
)
# Only models that check what stands before their reasoning take it; others answer 400.
_WITH_BINDING: Final = (
    *("*claude-opus-5-5*", "*claude-sonnet-5-5*", "*claude-haiku-5-5*"),
    *("*claude-fable-5-1*", "*claude-fable-5-2*", "*claude-mythos-5-1*", "*claude-mythos-5-2*"),
)
# Others answer 400 to tools with `strict`, by Converse, too. Which do goes neither by family nor by version
# (BerriAI/litellm#33193, lobehub/lobehub#19876): of newer ones that take it `model_facts` may say so.
STRICT_AT_BEDROCK: Final = (
    *("*claude-opus-4-5*", "*claude-opus-4-6*", "*claude-sonnet-4-5*", "*claude-sonnet-4-6*", "*claude-haiku-4-5*"),
)
# By Anthropic's page these know no messages of the system between others; all newer ones do.
_WITHOUT_SYSTEM: Final = (
    *("*claude-2*", "*claude-v2*", "*claude-instant*", "*claude-3*", "*claude-opus-4*", "*claude-sonnet-4*"),
    *("*claude-haiku-4*", "*claude-sonnet-5", "*claude-sonnet-5-2*", "*claude-sonnet-5@*"),
)
_WITH_SYSTEM: Final = ("*claude-opus-4-8*", "*claude-opus-4.8*", "*claude-opus-4-9*", "*claude-opus-4.9*")

# "output_config.effort: Extra inputs are not permitted": anthropics/claude-code-action#1005, claude-code#37746;
# OpenHands/software-agent-sdk#1630. Claude Code sends an effort by the name that it knows.
_WITHOUT_EFFORT: Final = (
    *("*claude-2*", "*claude-v2*", "*claude-instant*", "*claude-3*", "*claude-opus-4", "*claude-opus-4@*"),
    *("*claude-opus-4-0*", "*claude-opus-4-1*", "*claude-opus-4-2*", "*claude-sonnet-4", "*claude-sonnet-4@*"),
    *("*claude-sonnet-4-0*", "*claude-sonnet-4-2*", "*claude-sonnet-4-5*", "*claude-haiku-4*"),
)
_RUN_CLAUDE: Final = ("anthropic", "bedrock", "bedrock-mantle", "vertex", "foundry")

# Nobody but Anthropic: threads are kept there. A mark on the whole request goes to its last block, which says the same;
# a message of the system is the user's words, as which it is taken everywhere.
_NOT_ANTHROPIC: Final[Mapping[str, str]] = {
    "cache_control": REFUSED,
    "messages.system": REFUSED,
    "thread": REFUSED,
    "tools.eager_input_streaming": REFUSED,
}
_EDITS: Final[Mapping[str, str]] = {
    "context_management": f"{_CONTEXT} {_COMPACT}",
    "context_management.clear": _CONTEXT,
    "context_management.compact": _COMPACT,
}
# Clouds that run Claude themselves.
_CLOUD: Final[Mapping[str, str]] = {
    **_NOT_ANTHROPIC,
    **dict.fromkeys(
        (
            *("billing_policy", "compaction", "container", "diagnostics", "fallback_credit_token", "fallbacks"),
            *("inference_geo", "mcp_servers", "output_config.task_budget", "output_format", "service_tier"),
            *("source.file", "speed", "thinking.block_binding", "user_profile_id"),
            *("tools.advisor", "tools.allowed_callers", "tools.code_execution", "tools.input_examples"),
            # Vertex: mindroom-ai/mindroom#782.
            *("tools.mcp_toolset", "tools.strict", "tools.web_fetch", "tools.web_search"),
        ),
        REFUSED,
    ),
    **_EDITS,
    "tools.defer_loading": _SEARCHES,
    "tools.tool_search_tool": _SEARCHES,
}
_AWS: Final[Mapping[str, str]] = {
    **_CLOUD,
    # The field is refused, with its beta and without it; the beta alone does what it says for all tools.
    "tools.eager_input_streaming": BY + _EAGER,
    "tools.input_examples": _EXAMPLES,
}
# Anthropic runs it; these are on its own platform alone.
_FOUNDRY: Final[Mapping[str, str]] = {
    **_NOT_ANTHROPIC,
    **dict.fromkeys(
        (
            *("billing_policy", "compaction", "diagnostics", "fallback_credit_token", "fallbacks", "output_format"),
            *("speed", "tools.advisor"),
        ),
        REFUSED,
    ),
    **_EDITS,
    "mcp_servers": "mcp-client-2025-11-20 mcp-client-2025-04-04 mcp-client-2026-09-15",
    "output_config.task_budget": "task-budgets-2026-03-13",
    "source.file": "files-api-2025-04-14",
}
# Other vendors' models and servers: what Anthropic alone has tunes nothing there, and a strict one refuses it. Some say
# that they ignore it (DeepSeek's page "Anthropic API"), of which nobody would hear.
_OTHERS: Final[Mapping[str, str]] = {
    **_CLOUD,
    **dict.fromkeys(
        (
            *("context_management", "tools.bash", "tools.computer", "tools.defer_loading", "tools.memory"),
            *("tools.text_editor", "tools.tool_search_tool"),
        ),
        REFUSED,
    ),
    "cache_control.scope": REFUSED,
}
# Claude may stand behind them, with all that Anthropic has.
_RESELLERS: Final = ("openrouter", "openai-compatible")
_VENDORS: Final = ("deepseek", "zai", "together", "ollama", "vllm", "sglang", "llamacpp", "lmstudio")


def _rule(*models: str, providers: tuple[str, ...], **facts: Fact | Mapping[str, str]) -> ModelRule:
    found = tuple((name, tuple(fact.items()) if isinstance(fact, Mapping) else fact) for name, fact in facts.items())
    return ModelRule(models, found, providers)


SERVICES: Final[tuple[ModelRule, ...]] = (
    _rule(*_WITHOUT_SYSTEM, providers=("anthropic",), beta_fields={"messages.system": REFUSED}),
    _rule(*_WITH_SYSTEM, providers=("anthropic",), beta_fields={"messages.system": TAKEN}),
    _rule("*claude*", providers=("bedrock",), betas=_BEDROCK_BETAS, beta_fields=_AWS, fetches_urls=False),
    _rule(*STRICT_AT_BEDROCK, providers=("bedrock",), beta_fields={"tools.strict": TAKEN}),
    _rule(
        *_WITH_BINDING,
        providers=("bedrock",),
        betas=(*_BEDROCK_BETAS, _BINDING),
        beta_fields={"thinking.block_binding": _BINDING},
    ),
    _rule(
        "*claude*",
        providers=("bedrock-mantle",),
        betas=_MANTLE_BETAS,
        beta_fields={
            **_AWS,
            "inference_geo": TAKEN,
            "service_tier": TAKEN,
            "tools.strict": TAKEN,
            "thinking.block_binding": _BINDING,
            "tools.web_search_20250305": _WEB_SEARCH,
        },
        fetches_urls=False,
    ),
    _rule(
        "*claude*",
        providers=("vertex",),
        betas=_VERTEX_BETAS,
        beta_fields={
            **_CLOUD,
            "compaction": "compact-2026-09-04",
            "thinking.block_binding": _BINDING,
            "tools.web_search_20250305": _WEB_SEARCH,  # without its filters, which are of newer versions
        },
        fetches_urls=False,
    ),
    _rule("*claude*", providers=("foundry",), beta_fields=_FOUNDRY),
    _rule(*_WITHOUT_EFFORT, providers=_RUN_CLAUDE, beta_fields={"output_config.effort": REFUSED}),
    _rule("*claude-opus-4-5*", providers=("bedrock",), beta_fields={"output_config.effort": "effort-2025-11-24"}),
    _rule("*claude-opus-4-5*", providers=("vertex",), beta_fields={"output_config.effort": REFUSED}),
    _rule("*", providers=_RESELLERS, beta_fields=_NOT_ANTHROPIC),
    _rule("*", providers=_VENDORS, beta_fields=_OTHERS),
    _rule("*", providers=("deepseek",), beta_fields={"source.file": TAKEN}),  # it has files of its own
)
