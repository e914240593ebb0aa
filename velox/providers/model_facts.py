"""The facts of models, as data: rules with patterns, of which each says something of the models that it matches.

    facts_of(row, model, own)   what the row has, then each rule of the table that matches, then each of `own`

A later rule overrides an earlier one, field by field, so the table goes from the general to the particular. A model
that is newer than the table is taken for one like the newest. Facts age: users add rules of their own (`model_facts` in
the file), which come last.

Knows: names of models, as of November 2026. Does not know: what a writer does with a fact (dialects/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from velox.dialects.facts.model_facts import ModelFacts
from velox.policy.routes.model_rule import Fact, ModelRule, told_family
from velox.providers.bedrock_limits import LIMITS
from velox.providers.claude_services import SERVICES, STRICT_AT_BEDROCK
from velox.providers.provider import Provider

__all__ = ["RULES", "facts_of"]


def _rule(*models: str, providers: tuple[str, ...] = (), **facts: Fact) -> ModelRule:
    return ModelRule(models, tuple(facts.items()), providers)


# A model's version stands after its kind ("opus-4-7"; OpenRouter writes "opus-4.7"), in the first ones before it.
_WITH_SAMPLING: Final = ("*claude-opus-4-6*", "*claude-opus-4.6*", "*claude-sonnet-4-6*", "*claude-sonnet-4.6*")
_WITH_BUDGET: Final = (
    *("*claude-opus-4-5*", "*claude-opus-4.5*", "*claude-sonnet-4-5*", "*claude-sonnet-4.5*", "*claude-haiku-4*"),
    *("*claude-opus-4-1*", "*claude-opus-4.1*", "*claude-opus-4-0*", "*claude-opus-4-2*", "*claude-opus-4@*"),
    *("*claude-sonnet-4-0*", "*claude-sonnet-4-2*", "*claude-sonnet-4@*", "*claude-opus-4", "*claude-sonnet-4"),
    *("*claude-3-7*", "*claude-3.7*"),
)
_OPUS_4: Final = ("*claude-opus-4-0*", "*claude-opus-4-2*", "*claude-opus-4@*", "*claude-opus-4")
_WITHOUT_SCHEMAS: Final = (
    *(*_OPUS_4, "*claude-sonnet-4-0*"),
    *("*claude-sonnet-4-2*", "*claude-sonnet-4@*", "*claude-sonnet-4", "*claude-3*", "*claude-2*", "*claude-v2*"),
    "*claude-instant*",
)
_OPENAIS: Final = ("openai", "azure", "foundry")

_SCOPE: Final = "cache_control.scope"
# Of the schemas of tools; the sources are in dialects/tools/tool_fit.py.
_TOP_OF_CLAUDE: Final = ("top.ref", "top.anyOf", "top.oneOf", "top.allOf", "properties.keys", "malformed")
# "parameters schema should be of type OBJECT" (Google); of Nova only type, properties and required are documented.
_TOP_COMBINED: Final = ("top.ref", "top.anyOf", "top.oneOf", "top.allOf")
_TOP_OF_OPENAI: Final = ("top.ref", "top.anyOf", "top.oneOf", "top.allOf", "top.enum", "top.not")
# Their names, as of each version; those before 4.6 take a budget.
_CLAUDE_EFFORTS: Final = ("none", "low", "medium", "high", "xhigh", "max")
_CLAUDE_4_6_EFFORTS: Final = ("none", "low", "medium", "high", "max")
_THREE_EFFORTS: Final = ("low", "medium", "high")
_UP_TO_XHIGH: Final = (*_THREE_EFFORTS, "xhigh")
_PENALTIES: Final = ("presence_penalty", "frequency_penalty")
_WITH_ORIGINAL: Final = ("auto", "low", "high", "original")
_GROK_REFUSES: Final = ("stop", *_PENALTIES)
_WITHOUT_MINIMAL: Final = ("*gemini-3.7-flash*", "*gemini-3.8-flash*", "*gemini-flash-latest*", "*gemini-4*")
_WITHOUT_SAMPLING: Final = ("*gemini-3.5-flash-lite*", "*gemini-flash-lite-latest*", "*gemini-3.6-flash*")
_PERPLEXITY_REFUSES: Final = (
    *("include", "user", "service_tier", "prompt_cache_key", "reasoning.summary", "json_object", "allowed_tools"),
    *("detail", "file"),
)
# The version that made the field, and the effort "max": 5.6.
_WITH_BREAKPOINTS: Final = ("gpt-5.6*", "gpt-5.7*", "gpt-5.8*", "gpt-5.9*", "gpt-6*")
_WITHOUT_STOPS: Final = ("gpt-5", "gpt-5-20*", "gpt-5-mini*", "gpt-5-nano*", "o3*", "o4*")
_MISTRALS: Final = (
    *("*mistral*", "*ministral*", "*magistral*", "*mixtral*"),
    *("*codestral*", "*devstral*", "*pixtral*", "*voxtral*"),
)

# What Responses takes that is not OpenAI's own (ModelFacts.tool_types, item_types).
_USUAL_ITEMS: Final = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_HOSTED_ITEMS: Final = ("*web_search*", "file_search*", "code_interpreter*", "image_generation*", "mcp_*")
# Who has a server of one's own may have another of OpenAI's behind it: what OpenAI runs itself goes up.
_HOSTED_TOOLS: Final = ("web_search*", "file_search", "code_interpreter", "image_generation", "mcp")
_SERVERS: Final = ("openai-compatible", "ollama", "vllm", "sglang", "llamacpp", "lmstudio", "together", "fireworks")

RULES: Final[tuple[ModelRule, ...]] = (
    # The types of Responses. Codex's tools (`custom`, `namespace`, `local_shell`) and items are OpenAI's own.
    _rule(
        "*",
        providers=_SERVERS,
        tool_types=("function", *_HOSTED_TOOLS),
        item_types=(*_USUAL_ITEMS, *_HOSTED_ITEMS),
    ),
    # Responses without a memory: console.groq.com/docs/responses-api and openrouter.ai/docs/api/reference/responses say
    # so; vLLM has one only where it is switched on (VLLM_ENABLE_RESPONSES_API_STORE), others are taken for like it.
    _rule("*", providers=(*_SERVERS, "groq", "openrouter", "deepseek"), keeps_answers=False),
    # maximhq/bifrost#5428: `unknown variant`; docs.x.ai/developers/tools, TanStack/ai#812: those that it runs.
    _rule(
        "*",
        providers=("xai",),
        tool_types=(
            *("function", "web_search", "x_search", "code_interpreter", "code_execution", "file_search"),
            *("collections_search", "mcp"),
        ),
        item_types=(*_USUAL_ITEMS, *_HOSTED_ITEMS, "x_search*", "collections_search*"),
    ),
    # console.groq.com/docs/responses-api; it keeps nothing that could be referred to.
    _rule(
        "*",
        providers=("groq",),
        tool_types=("function", "code_interpreter", "browser_search", "mcp"),
        item_types=("message", "function_call", "function_call_output", "reasoning", "code_interpreter*", "mcp_*"),
    ),
    _rule("*", providers=("deepseek",), tool_types=("function",), item_types=_USUAL_ITEMS),
    # OpenRouterTeam/ai-sdk-provider#482, openai/codex#18307: functions, and those whose names begin with its own.
    _rule(
        "*",
        providers=("openrouter",),
        tool_types=("function", "openrouter:*", "web_search*"),
        item_types=(*_USUAL_ITEMS, *_HOSTED_ITEMS, "openrouter:*"),
    ),
    # openai/codex#25034: "unknown variant `namespace`, expected `function` or `mcp`".
    _rule(
        "*",
        providers=("bedrock-mantle",),
        tool_types=("function", "mcp"),
        item_types=(*_USUAL_ITEMS, "mcp_*"),
    ),
    # docs.perplexity.ai: functions, and those that it runs.
    _rule(
        "*",
        providers=("perplexity",),
        tool_types=("function", "*_search", "fetch_url", "sandbox", "mcp"),
        item_types=(
            "message",
            "function_call",
            "function_call_output",
            "reasoning",
            "*_search*",
            "fetch_url*",
            "mcp_*",
        ),
    ),
    # Converse passes it on by Claude's name for it: most other models refuse that. "Conversation blocks and tool result
    # blocks cannot be provided in the same turn", says Converse of models that are not Claude
    # (strands-agents/harness-sdk#1223, langchain-ai/langchain-aws#141); Nova was recorded with both.
    _rule("*", providers=("bedrock",), refused=("top_k",), user_after_results=False),
    # Anthropic. They adapt how much they think, and take no sampling; the ones before differ.
    _rule(
        "*claude*",
        max_output=32_000,
        thinking="adaptive",
        efforts=_CLAUDE_EFFORTS,
        sampling=False,
        prefill=False,
        cache_marks=True,
        images_in_results=True,
        json_schema=True,
        user_after_results=True,
        refused=(),
        schemas_refuse=_TOP_OF_CLAUDE,
        added_marks="agents",
    ),
    # "Web search tool": not on Bedrock, and of older models only since 3.5.
    _rule("*claude*", providers=("anthropic", "vertex"), web_search="web_search_20250305"),
    _rule("*claude-3-haiku*", "*claude-3-opus*", "*claude-3-sonnet*", "*claude-2*", "*claude-instant*", web_search=""),
    _rule("*claude-fable*", "*claude-mythos*", "*fable-5*", "*mythos-5*", thinking="always", forced_choice=False),
    _rule("*claude*", providers=("bedrock",), refused=("tools.strict", _SCOPE)),
    _rule(*STRICT_AT_BEDROCK, providers=("bedrock",), refused=(_SCOPE,)),
    # Of Claude Code; of Anthropic's own API alone.
    _rule("*claude*", providers=("bedrock-mantle", "foundry", "vertex"), refused=(_SCOPE,)),
    # They answer 400 to thinking of type "disabled", and to a forced choice.
    _rule("*claude-opus-5-5*", "*claude-opus-5.5*", thinking="always", forced_choice=False),
    _rule("*claude-sonnet-5-5*", "*claude-sonnet-5.5*", thinking="between_tools", forced_choice=False),
    _rule(*_WITH_SAMPLING, sampling=True, efforts=_CLAUDE_4_6_EFFORTS),
    _rule(*_WITH_BUDGET, thinking="budget", sampling=True, prefill=True, forced_choice=False),
    _rule(*_WITHOUT_SCHEMAS, json_schema=False),
    _rule("*claude-3*", "*claude-2*", "*claude-v2*", "*claude-instant*", sampling=True, prefill=True),
    _rule("*claude-3-5*", "*claude-3.5*", "*claude-3-haiku*", "*claude-3-opus*", "*claude-3-sonnet*", thinking="none"),
    _rule("*claude-2*", "*claude-v2*", "*claude-instant*", thinking="none", images_in_results=False, cache_marks=False),
    _rule(*_OPUS_4, "*claude-opus-4-1*", "*claude-opus-4.1*", most_output=32_000),
    _rule("*claude-3-5*", "*claude-3.5*", max_output=8192, most_output=8192),
    _rule(
        *("*claude-3-haiku*", "*claude-3-opus*", "*claude-3-sonnet*", "*claude-2*", "*claude-v2*"),
        max_output=4096,
        most_output=4096,
    ),
    # Structured output is off by the default policy of an organization there.
    _rule("*claude*", providers=("vertex",), json_schema=False),
    # "You invoked an unsupported model or your request did not allow prompt caching" (AWS's page "Prompt caching";
    # pensarai/apex#943). The second version of 3.5 is for some accounts only.
    _rule(
        *("*claude-3-haiku*", "*claude-3-opus*", "*claude-3-sonnet*", "*claude-3-5-sonnet-20240620*"),
        providers=("bedrock",),
        cache_marks=False,
    ),
    _rule("*claude-3-5-sonnet*", providers=("bedrock",), added_marks="never"),
    *SERVICES,
    # Google. Of stop strings it takes 5 (continuedev/continue#7849).
    _rule("*gemini*", "*gemma*", "*learnlm*", schemas_refuse=_TOP_COMBINED),
    _rule("*gemini*", "*gemma*", "*learnlm*", providers=("gemini", "vertex"), most_stops=5),
    _rule("*gemini*", providers=("gemini", "vertex"), web_search="googleSearch"),  # "Grounding with Google Search"
    _rule("*gemini-1*", providers=("gemini", "vertex"), web_search=""),  # it had another name
    _rule("*gemini-3-pro*", refused=("thinking_level.minimal", "thinking_level.medium")),
    _rule("*gemini-3.*-pro*", refused=("thinking_level.minimal",)),
    # Vertex knows ids of calls, too, since the models match results by them; 2 and 1 refuse them there.
    _rule("*gemini*", providers=("vertex",), call_ids="any"),
    _rule("*gemini-2*", "*gemini-1*", providers=("vertex",), call_ids="none"),
    # They ignore sampling; penalties, and an end with a message of the model, are a 400.
    _rule(*_WITHOUT_SAMPLING, *_WITHOUT_MINIMAL, sampling=False, prefill=False, refused=_PENALTIES),
    # Google answers requests for it with 3.6, but at Vertex.
    _rule("gemini-3.5-flash*", providers=("gemini",), sampling=False, prefill=False, refused=_PENALTIES),
    _rule(*_WITHOUT_MINIMAL, refused=("thinking_level.minimal", *_PENALTIES)),
    _rule("*gemini-2.5*", thinking="thinking_budget", images_in_results=False),
    _rule("*gemini-2.5-pro*", refused=("thinking_budget.0",)),
    _rule(
        *("*gemini-2.0*", "*gemini-1*", "*gemma*", "*learnlm*"),
        thinking="none",
        images_in_results=False,
        schema_keywords=False,
    ),
    _rule("*gemini-2*", "*gemini-1*", "*gemma*", "*learnlm*", json_with_tools=False),
    _rule("*gemini-2.0*", "*gemini-1*", most_output=8192),
    # OpenAI, which has limits for all of its models: "array too long. Expected an array with maximum length 4"
    # (QwenLM/Qwen-Agent#228), and 128 for tools.
    _rule("*", providers=("openai", "azure"), schemas_refuse=_TOP_OF_OPENAI, most_stops=4, most_tools=128),
    _rule(
        *("gpt-*", "o1*", "o3*", "o4*"),
        providers=("foundry",),
        reasoning_field="",
        refused=("top_k",),
        allowed_tools=True,
        schemas_refuse=_TOP_OF_OPENAI,
        most_stops=4,
        most_tools=128,
    ),
    # Those that reason take no sampling, the others no effort.
    _rule("gpt-5*", "gpt-6*", "o1*", "o3*", "o4*", providers=_OPENAIS, sampling=False),
    _rule("gpt-5*", "gpt-6*", providers=_OPENAIS, verbosity=True),
    # Which efforts they take changes from version to version; "minimal" was in the first one alone.
    _rule("o1*", "o3*", "o4*", providers=_OPENAIS, efforts=_THREE_EFFORTS),
    _rule("gpt-5", "gpt-5-*", providers=_OPENAIS, efforts=("minimal", *_THREE_EFFORTS)),
    # "Not supported with latest reasoning models" (its reference, `stop`); huggingface/smolagents#1671. Newer ones say
    # so of some versions and efforts only.
    _rule(*_WITHOUT_STOPS, providers=_OPENAIS, refused=("top_k", "stop")),
    _rule("*-deep-research*", providers=_OPENAIS, efforts=("medium",)),
    _rule("gpt-5-codex*", providers=_OPENAIS, efforts=_THREE_EFFORTS),
    _rule("gpt-5-pro*", providers=_OPENAIS, efforts=("high",)),
    _rule("gpt-5.*", providers=_OPENAIS, efforts=("none", *_THREE_EFFORTS, "xhigh")),
    _rule("gpt-5.1*", providers=_OPENAIS, efforts=("none", *_THREE_EFFORTS)),
    _rule("gpt-5.1-codex-max*", providers=_OPENAIS, efforts=_UP_TO_XHIGH),
    _rule("gpt-5.*-pro*", providers=_OPENAIS, efforts=("medium", "high", "xhigh")),
    _rule(*_WITH_BREAKPOINTS, providers=_OPENAIS, efforts=("none", *_THREE_EFFORTS, "xhigh", "max")),
    _rule(
        *("gpt-6-astra*", "gpt-6.1-sol*", "gpt-6.2-astra*", "gpt-6.2-sol*"),
        providers=_OPENAIS,
        efforts=(*_UP_TO_XHIGH, "max"),
    ),
    _rule(
        *_WITH_BREAKPOINTS,
        providers=_OPENAIS,
        renamed=(("prompt_cache_breakpoint", "prompt_cache_breakpoint"),),
    ),
    _rule(
        *("gpt-3*", "gpt-4*", "chatgpt-*", "gpt-5-chat*", "gpt-5.*-chat*", "gpt-audio*"),
        providers=_OPENAIS,
        thinking="none",
        sampling=True,
        verbosity=False,
    ),
    # "original" is newer than Chat Completions' own list, and came with 5.4 (OpenAI's guide to images, "detail").
    _rule("gpt-5.4*", *_WITH_BREAKPOINTS, "gpt-5.5*", providers=_OPENAIS, image_details=_WITH_ORIGINAL),
    # OpenAI's guide "Web search", of Responses.
    _rule(*("gpt-4o*", "gpt-4.1*", "gpt-5*", "gpt-6*", "o3*", "o4*"), providers=("openai",), web_search="web_search"),
    _rule("gpt-4.1-nano*", "*-chat*", "*-codex*", providers=("openai",), web_search=""),
    # The same models at AWS, by its names.
    _rule(
        *("openai.gpt-5*", "openai.gpt-6*", "openai.gpt-daybreak*"),
        providers=("bedrock-mantle",),
        sampling=False,
        verbosity=True,
        efforts=("none", *_UP_TO_XHIGH),
        reasoning_field="",
        refused=("top_k",),
    ),
    _rule("gpt-3*", "gpt-4-*", "gpt-4", "o1-mini*", providers=_OPENAIS, json_schema=False),
    _rule("gpt-4o*", "chatgpt-4o*", "gpt-5-chat*", "gpt-5.*-chat*", providers=_OPENAIS, most_output=16_384),
    _rule("gpt-4.1*", providers=_OPENAIS, most_output=32_768),
    _rule(
        *("gpt-3.5*", "gpt-4-turbo*", "gpt-4-1106*", "gpt-4-0125*", "gpt-4o-2024-05-13"),
        providers=_OPENAIS,
        most_output=4096,
    ),
    # Their templates, and Mistral's own library, take nothing but the assistant's after results.
    _rule(*_MISTRALS, later_system=False, user_after_results=False),
    # Since 3.5: "System message must be at the beginning."
    _rule("*qwen*", later_system=False),
    # Their prompts know these alone: reasoning can't be switched off.
    _rule("*gpt-oss*", efforts=_THREE_EFFORTS),
    # Others on Bedrock: how much they reason is a field of their own.
    _rule("*gpt-oss*", providers=("bedrock",), thinking="reasoning_effort"),
    _rule("*amazon.nova-2*", providers=("bedrock",), thinking="nova"),
    _rule("*qwen3*", providers=("bedrock",), thinking="reasoning_config"),
    _rule(
        "*amazon.nova*",
        providers=("bedrock",),
        images_in_results=True,
        user_after_results=True,
        schemas_refuse=_TOP_COMBINED,
        cache_marks=True,  # recorded behind texts and system blocks
        refused=("top_k", "tools.cache_control", "tool_calls.cache_control", "tool_results.cache_control"),
    ),
    *LIMITS,
    # Recorded with a schema.
    _rule("*gemma-3*", "*minimax*", "*mistral-large-3*", "*zai.glm*", providers=("bedrock",), json_schema=True),
    # "Up to 4 sequences", and of tools "a max of 128 functions": console.groq.com/docs/api-reference (the same text in
    # groq/groq-python, types/chat/completion_create_params.py).
    _rule("*", providers=("groq",), most_stops=4, most_tools=128),
    # "Up to 4 sequences" (Cerebras/cerebras-cloud-sdk-python, types/chat/completion_create_params.py; the reference at
    # inference-docs.cerebras.ai/api-reference/chat-completions): of tools it says no number.
    _rule("*", providers=("cerebras",), most_stops=4),
    # "A list of up to 5 strings": docs.cohere.com/reference/chat; of tools no number.
    _rule("*", providers=("cohere",), most_stops=5),
    # "Up to 16 sequences", "A max of 128 functions": api-docs.deepseek.com/api/create-chat-completion.
    _rule("*", providers=("deepseek",), most_stops=16, most_tools=128),
    # Servers that answer 400 to an effort for a model that does not reason.
    _rule("*", providers=("groq", "cerebras", "xai", "mistral"), thinking="none"),
    _rule(
        *("mistral-small-2603*", "mistral-small-latest", "mistral-medium-3-5*"),
        providers=("mistral",),
        thinking="effort",
        efforts=("none", "high"),
    ),
    # Nor does Groq take back, from models that do not reason, what another has reasoned.
    _rule("*", providers=("groq",), reasoning_field=""),
    _rule("*gpt-oss*", "*qwen3*", providers=("groq",), reasoning_field="reasoning"),
    _rule("*gpt-oss*", "*qwen3*", providers=("groq", "cerebras"), thinking="effort", json_schema=True),
    _rule("*qwen3*", providers=("groq",), thinking="switch"),
    _rule("*llama-4*", "*kimi*", providers=("groq",), json_schema=True),
    # All that reason answer 400 to these; not to an effort, where they have several.
    _rule("grok-3-mini*", "grok-4*", "grok-code*", providers=("xai",), refused=_GROK_REFUSES),
    _rule("*non-reasoning*", providers=("xai",), refused=()),
    _rule("grok-3-mini*", providers=("xai",), thinking="effort", efforts=("low", "high")),
    _rule("grok-4.3*", providers=("xai",), thinking="effort", efforts=("none", *_THREE_EFFORTS)),
    _rule("grok-4.5*", providers=("xai",), thinking="effort", efforts=_THREE_EFFORTS),
    _rule(
        *("grok-4.6*", "grok-4.7*", "grok-4.20-multi-agent*"),
        providers=("xai",),
        thinking="effort",
        efforts=_UP_TO_XHIGH,
    ),
    # It can't be told not to reason: "none" and `thinking` of type disabled are as good as the effort "max".
    _rule("glm-5.3*", providers=("zai",), thinking="effort", efforts=("low", "high", "max")),
    # Models of many vendors in one API, which is Responses, but answers 400 to each field that it has not.
    _rule(
        "*",
        providers=("perplexity",),
        thinking="effort",
        efforts=("minimal", *_UP_TO_XHIGH, "max"),
        text_parts=False,
        images_in_results=False,
        json_schema=True,
        renamed=(("text.format", "response_format"),),
        refused=_PERPLEXITY_REFUSES,
    ),
    _rule("*sonar*", providers=("perplexity",), thinking="none"),
    _rule("anthropic/*", providers=("perplexity",), needs_max_tokens=True),
)


def facts_of(row: Provider, model: str, own: Iterable[ModelRule] = ()) -> ModelFacts:
    """Return what is known of a model at a provider. own: rules of the settings. The caller keeps it."""
    name = model.lower()
    own = tuple(own)
    known = told_family(row.name, name, own).lower() or name
    changes: dict[str, Fact] = {}
    fields: dict[str, str] = {}
    for rule in (*RULES, *own):
        if rule.is_for(row.name, name) or (known != name and rule.is_for(row.name, known)):
            changes.update(rule.facts)
            for pairs in (fact for field, fact in rule.facts if field == "beta_fields" and isinstance(fact, tuple)):
                fields.update(pair for pair in pairs if isinstance(pair, tuple))
    if fields:
        changes["beta_fields"] = tuple(fields.items())
    return msgspec.structs.replace(row.facts, **changes) if changes else row.facts
