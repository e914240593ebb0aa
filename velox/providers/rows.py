"""The providers, one row each: where it is, how its keys are presented, which APIs its models have.

Knows: the vendors' own facts, as of November 2026. Does not know: models (model_facts.py), or settings: an upstream
names a row and may override its origin.

A path stands under the origin's: with `origin: https://proxy.example/groq` an upstream of `provider: groq` is asked at
/groq/v1/chat/completions. So an origin has what all paths of a provider begin with, unless its APIs differ in that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.provider_traits import USUAL, ProviderTraits
from velox.heads import Header
from velox.policy.api.rows import is_management
from velox.providers.provider import CallPath, Family, Keyless, Provider, WireWrapper
from velox.types import ApiKind, Endpoint

__all__ = ["COMPATIBLE", "OPENAI", "PROVIDERS", "takes_path"]

_S: Final = ApiKind
# Endpoints of servers with open models, and old ones of OpenAI's.
_OF_TEXTS: Final = frozenset({Endpoint.COMPLETIONS, Endpoint.MODERATIONS, Endpoint.RERANK, Endpoint.TOKENIZE})
_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# The client's own account, and whose quota is used and who pays, which is not for clients to say beside our token.
_GOOGLE_ACCOUNTS: Final = frozenset({b"openai-organization", b"openai-project", b"x-goog-user-project"})
_ENTRA_SCOPE: Final = "https://cognitiveservices.azure.com/.default"
_FOUNDRY_SCOPE: Final = "https://ai.azure.com/.default"
_CLAUDE: Final = ("*claude*",)
_ANTHROPIC_VERSION: Final = ((b"anthropic-version", b"2023-06-01"),)
# Of OpenAI: models that only Responses has, and those whose reasoning only Responses gives back.
_RESPONSES_ONLY: Final = (
    *("*-codex*", "codex-*", "gpt-5-pro*", "gpt-5.*-pro*", "o1-pro*", "o3-pro*", "*-deep-research*", "computer-use-*"),
)
_REASONING: Final = ("gpt-5*", "gpt-6*", "o1*", "o3*", "o4*")


def _openai_paths(
    before: str = "/v1", *, responses: bool = False, embeddings: bool = True, query: tuple[tuple[str, str], ...] = ()
) -> dict[ApiKind, CallPath]:
    """Return the paths of OpenAI's APIs where they are usual ones."""
    paths = {_S.CHAT: CallPath(f"{before}/chat/completions", query=query)}
    if responses:
        paths[_S.RESPONSES] = CallPath(f"{before}/responses", query=query)
    if embeddings:
        paths[_S.EMBEDDINGS] = CallPath(f"{before}/embeddings", query=query)
    return paths


def _messages_paths(before: str = "", *, counts: bool = True) -> dict[ApiKind, CallPath]:
    """Return the paths of Anthropic's API. before: what stands before /v1."""
    paths = {_S.MESSAGES: CallPath(f"{before}/v1/messages")}
    if counts:
        paths[_S.COUNT_MESSAGES] = CallPath(f"{before}/v1/messages/count_tokens")
    return paths


def _generate_paths(before: str) -> dict[ApiKind, CallPath]:
    """Return the paths of Gemini's API. before: what stands before the model."""
    model = f"{before}/{{model}}"
    sse = (("alt", "sse"),)
    return {
        _S.GENERATE: CallPath(f"{model}:generateContent", f"{model}:streamGenerateContent", sse=sse),
        _S.COUNT_GENERATE: CallPath(f"{model}:countTokens"),
    }


def _like_openai(native: dict[ApiKind, CallPath], more: dict[ApiKind, CallPath] | None = None) -> tuple[Family, ...]:
    """Return the families of OpenAI's models: three that differ in the API that serves them best.

    more: that all of them have.
    """
    all_of_them = {**native, **(more or {})}
    only_responses: dict[ApiKind, CallPath] = {api: path for api, path in all_of_them.items() if api is not _S.CHAT}
    return (
        Family(only_responses, _S.RESPONSES, _RESPONSES_ONLY),
        Family(all_of_them, _S.RESPONSES, _REASONING),
        Family(all_of_them, _S.CHAT),
    )


def _chat(
    native: Mapping[ApiKind, CallPath], optional: Mapping[ApiKind, CallPath] = MappingProxyType({})
) -> tuple[Family, ...]:
    return (Family(native, _S.CHAT, optional=optional),)


_AZURE_QUERY: Final = (("api-version", "{api_version}"),)
_AZURE_V1: Final = _openai_paths("/openai/v1", responses=True, query=_AZURE_QUERY)
_AZURE_COMPACT: Final = {_S.COMPACT: CallPath("/openai/v1/responses/compact", query=_AZURE_QUERY)}
_AZURE_DATED: Final = {
    _S.CHAT: CallPath(
        "/openai/deployments/{model}/chat/completions", query=_AZURE_QUERY, wrapper=WireWrapper.AZURE_DATED
    ),
    _S.EMBEDDINGS: CallPath(
        "/openai/deployments/{model}/embeddings", query=_AZURE_QUERY, wrapper=WireWrapper.AZURE_DATED
    ),
    _S.RESPONSES: CallPath("/openai/responses", query=_AZURE_QUERY),
}
_VERTEX: Final = "/projects/{project}/locations/{location}"
_VERTEX_CLAUDE: Final = f"/v1{_VERTEX}/publishers/anthropic/models"
# Most servers with OpenAI's API know the older name and role only, which the newer ones take, too, and refuse efforts
# that gpt-oss does not have.
_EFFORTS: Final = ("none", "low", "medium", "high")
_COMPATIBLE_FACTS: Final = ModelFacts(max_tokens_name="max_tokens", efforts=_EFFORTS)
# OpenAI's models: what they reasoned comes back through Responses only, and unknown fields are a 400.
_OPENAI_FACTS: Final = ModelFacts(reasoning_field="", refused=("top_k",), allowed_tools=True)
_OF_OPENAI: Final = frozenset({_S.CHAT, _S.RESPONSES})
_OPENAI_TRAITS: Final = ProviderTraits(defines=_OF_OPENAI, openai_responses=True, any_detail=True, conversations=True)
_INPUT_TOKENS: Final = {_S.COUNT_RESPONSES: CallPath("/v1/responses/input_tokens")}
_COMPACT: Final = {_S.COMPACT: CallPath("/v1/responses/compact")}

OPENAI: Final = Provider(
    name="openai",
    title="OpenAI",
    origin="https://api.openai.com",
    families=_like_openai(_openai_paths(responses=True), {**_INPUT_TOKENS, **_COMPACT}),
    facts=_OPENAI_FACTS,
    traits=_OPENAI_TRAITS,
    key_variables=("OPENAI_API_KEY",),
    sockets=True,
)
# What an upstream is that names no provider: all paths go up as they came, and nothing is translated unless it names
# the APIs that it has.
COMPATIBLE: Final = Provider(
    name="openai-compatible",
    title="Any server with OpenAI's API",
    has_googles=True,
    families=(Family({}, None, optional={**_openai_paths(responses=True), **_messages_paths(), **_INPUT_TOKENS}),),
    facts=_COMPATIBLE_FACTS,
    # Nobody knows which fields such a server takes: it may be another gateway, which reads the signatures, or another
    # way to Anthropic.
    traits=ProviderTraits(
        foreign_chat="anything",
        any_detail=True,
        knows_prefix=True,
        whole_calls=True,
        conversations=True,
        billing_blocks=True,
    ),
)
_AZURE: Final = Provider(
    name="azure",
    title="Azure OpenAI",
    model_list="",
    origin="https://{resource}.openai.azure.com",
    families=(
        # Of dated versions only some have Responses, which is why nothing is translated into it.
        Family(_AZURE_DATED, _S.CHAT, when=(("api_version", "20*"),)),
        *_like_openai(_AZURE_V1, _AZURE_COMPACT),
    ),
    credential_header=b"api-key",
    credential_prefix=b"",
    keyless=Keyless.ENTRA,
    scope=_ENTRA_SCOPE,
    before=b"/openai",
    facts=_OPENAI_FACTS,
    traits=_OPENAI_TRAITS,
    key_variables=("AZURE_OPENAI_API_KEY",),
)
_ANTHROPIC: Final = Provider(
    name="anthropic",
    title="Anthropic",
    origin="https://api.anthropic.com",
    families=(Family(_messages_paths(), _S.MESSAGES),),
    credential_header=b"x-api-key",
    credential_prefix=b"",
    headers=_ANTHROPIC_VERSION,
    account_headers=frozenset({b"anthropic-workspace-id", b"openai-organization", b"openai-project"}),
    traits=ProviderTraits(defines=frozenset({_S.MESSAGES, _S.COUNT_MESSAGES}), billing_blocks=True),
    key_variables=("ANTHROPIC_API_KEY",),
    own_models=("claude-*",),
    # Of OpenAI's API it has chat. https://platform.claude.com/docs/en/api/openai-sdk
    lacks=_OF_TEXTS | {Endpoint.EMBEDDINGS, Endpoint.IMAGES, Endpoint.AUDIO, Endpoint.VIDEOS},
)


def _vectors(path: str, *models: tuple[str, WireWrapper]) -> tuple[Family, ...]:
    """Return families of models that only embed texts. path: with {call}, where that differs by the form."""
    calls = {WireWrapper.PREDICT: "predict", WireWrapper.CONTENT: "embedContent"}
    return tuple(
        Family({_S.VECTORS: CallPath(path.replace("{call}", calls.get(form, "")), wrapper=form)}, None, (pattern,))
        for pattern, form in models
    )


_VERTEX_AI: Final = Provider(
    name="vertex",
    is_google=True,
    title="Google Vertex AI",
    model_list="",
    origin="https://{location}-aiplatform.googleapis.com",
    origins=MappingProxyType(
        {
            "global": "https://aiplatform.googleapis.com",
            "us": "https://aiplatform.us.rep.googleapis.com",
            "eu": "https://aiplatform.eu.rep.googleapis.com",
        }
    ),
    needs=("project", "location"),
    families=(
        Family(
            {
                _S.MESSAGES: CallPath(
                    f"{_VERTEX_CLAUDE}/{{model}}:rawPredict",
                    f"{_VERTEX_CLAUDE}/{{model}}:streamRawPredict",
                    wrapper=WireWrapper.CLAUDE_VERTEX,
                ),
                _S.COUNT_MESSAGES: CallPath(
                    f"{_VERTEX_CLAUDE}/count-tokens:rawPredict", wrapper=WireWrapper.CLAUDE_VERTEX_COUNT
                ),
            },
            _S.MESSAGES,
            _CLAUDE,
        ),
        *_vectors(
            f"/v1beta1{_VERTEX}/publishers/google/models/{{model}}:{{call}}",
            ("gemini-embedding-001", WireWrapper.PREDICT),
            ("gemini-embedding-*", WireWrapper.CONTENT),
            ("text-embedding-*", WireWrapper.PREDICT),
            ("text-multilingual-embedding-*", WireWrapper.PREDICT),
        ),
        Family(_generate_paths(f"/v1beta1{_VERTEX}/publishers/google/models"), _S.GENERATE, ("gemini*",)),
        # Models of others, which Vertex serves with OpenAI's API.
        Family(_openai_paths(f"/v1{_VERTEX}/endpoints/openapi", embeddings=False), _S.CHAT),
    ),
    keyless=Keyless.GOOGLE,
    scope=_GOOGLE_SCOPE,
    account_headers=_GOOGLE_ACCOUNTS,
    passes=False,
    facts=ModelFacts(thinking="level", efforts=_EFFORTS, call_ids="none", max_tokens_name="max_tokens"),
    traits=ProviderTraits(count_is_flat=True, uncounted_betas=frozenset({"web-search-2025-03-05"})),
    model_start="models/",
)
_BEDROCK_CONVERSE: Final = {_S.CONVERSE: CallPath("/model/{model}/converse", "/model/{model}/converse-stream")}
_BEDROCK: Final = Provider(
    name="bedrock",
    title="AWS Bedrock",
    model_list="",
    origin="https://bedrock-runtime.{region}.amazonaws.com",
    origins=MappingProxyType({"eusc-de-east-1": "https://bedrock-runtime.{region}.amazonaws.eu"}),  # AWS's for Europe
    needs=("region",),
    families=(
        Family(
            {
                _S.MESSAGES: CallPath(
                    "/model/{model}/invoke",
                    "/model/{model}/invoke-with-response-stream",
                    wrapper=WireWrapper.CLAUDE_BEDROCK,
                ),
                **_BEDROCK_CONVERSE,
                # Bedrock counts for Claude only, and for no inference profile (`eu.`, an ARN): by the model's own id.
                _S.COUNT_CONVERSE: CallPath(
                    "/model/{model}/count-tokens", wrapper=WireWrapper.CLAUDE_BEDROCK, model_from="anthropic.claude"
                ),
            },
            _S.CONVERSE,
            ("*anthropic.claude*",),
        ),
        *_vectors(
            "/model/{model}/invoke",
            ("*amazon.titan-embed-*", WireWrapper.TITAN),
            ("*amazon.nova-*-embeddings-*", WireWrapper.NOVA),
            ("*cohere.embed-*", WireWrapper.COHERE),
        ),
        Family(_BEDROCK_CONVERSE, _S.CONVERSE),
    ),
    keyless=Keyless.AWS,
    aws_service="bedrock",
    facts=ModelFacts(
        thinking="none",
        efforts=_EFFORTS,
        cache_marks=False,
        images_in_results=False,
        json_schema=False,
        call_ids="bedrock",
    ),
    passes=False,
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
)
# By the model, not by the API: the other prefix answers 400 ("isn't supported on this route").
_MANTLE_USUAL: Final = _openai_paths(responses=True, embeddings=False)
_MANTLE_OPENAI: Final = _openai_paths("/openai/v1", responses=True, embeddings=False)
_MANTLE: Final = Provider(
    name="bedrock-mantle",
    title="AWS Bedrock (OpenAI's and Anthropic's APIs)",
    model_list="",
    origin="https://bedrock-mantle.{region}.api.aws",
    needs=("region",),
    families=(
        Family(_messages_paths("/anthropic"), _S.MESSAGES, _CLAUDE),
        Family(_MANTLE_USUAL, _S.CHAT, ("openai.gpt-oss*",)),
        Family({_S.RESPONSES: _MANTLE_OPENAI[_S.RESPONSES]}, _S.RESPONSES, ("openai.gpt-5*", "openai.gpt-daybreak*")),
        Family(_MANTLE_OPENAI, _S.RESPONSES, ("openai.*",)),
        Family(_MANTLE_OPENAI, _S.CHAT, ("xai.*", "google.gemma-4*")),
        Family(_MANTLE_USUAL, _S.CHAT),
    ),
    keyless=Keyless.AWS,
    aws_service="bedrock-mantle",
    headers=_ANTHROPIC_VERSION,
    passes=False,
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
)
_FOUNDRY: Final = Provider(
    name="foundry",
    title="Microsoft Foundry",
    model_list="",
    origin="https://{resource}.services.ai.azure.com",
    families=(Family(_messages_paths("/anthropic"), _S.MESSAGES, _CLAUDE), *_like_openai(_AZURE_V1, _AZURE_COMPACT)),
    credential_header=b"api-key",
    credential_prefix=b"",
    credential_also=b"x-api-key",  # which Claude's API reads there
    keyless=Keyless.ENTRA,
    scope=_FOUNDRY_SCOPE,
    before=b"/openai",
    headers=_ANTHROPIC_VERSION,
    traits=ProviderTraits(openai_responses=True, any_detail=True, conversations=True),
)
_GEMINI: Final = Provider(
    name="gemini",
    is_google=True,
    title="Google Gemini (AI Studio)",
    has_googles=True,
    model_list="/v1beta/openai/models",
    origin="https://generativelanguage.googleapis.com",
    families=(
        Family(
            {
                **_generate_paths("/v1beta/models"),
                _S.EMBED_CONTENT: CallPath("/v1beta/models/{model}:embedContent"),
                _S.EMBED_CONTENTS: CallPath("/v1beta/models/{model}:batchEmbedContents"),
                _S.EMBEDDINGS: CallPath("/v1beta/openai/embeddings"),
            },
            _S.GENERATE,
        ),
    ),
    credential_header=b"x-goog-api-key",
    credential_prefix=b"",
    account_headers=_GOOGLE_ACCOUNTS,
    facts=ModelFacts(thinking="level"),
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    lacks=_OF_TEXTS,  # https://ai.google.dev/gemini-api/docs/openai
    model_start="models/",
    own_models=("gemini-*",),
)


def _compatible(
    name: str,
    title: str,
    origin: str,
    families: tuple[Family, ...],
    *key_variables: str,
    headers: tuple[Header, ...] = (),
    facts: ModelFacts = _COMPATIBLE_FACTS,
    traits: ProviderTraits = USUAL,
    model_list: str = "/v1/models",
    own_models: tuple[str, ...] = (),
    model_fields: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType({}),
) -> Provider:
    """Return the row of a provider with OpenAI's API and a bearer key."""
    return Provider(
        name,
        title,
        families,
        origin,
        headers=headers,
        facts=facts,
        traits=traits,
        key_variables=key_variables,
        model_list=model_list,
        own_models=own_models,
        model_fields=model_fields,
    )


_LOCAL: Final = _chat(_openai_paths(), {**_openai_paths(responses=True), **_messages_paths()})
_REASONING_FIELD: Final = ModelFacts(max_tokens_name="max_tokens", efforts=_EFFORTS, reasoning_field="reasoning")
# They reason unless they are told not to, know JSON objects but no schemas, and take texts as plain strings.
_SWITCHED: Final = ModelFacts(max_tokens_name="max_tokens", thinking="toggle", json_schema=False, text_parts=False)
# Perplexity's: a model with tools and a prompt, among them the search in the web that its models had by themselves
# until their API ended in September 2026. The old names ask for what the vendor recommends in their place, and name
# its own model: a preset may have another vendor's.
_PRESETS: Final = MappingProxyType(
    {
        "preset/*": (("preset", "*"),),
        **{
            name: (("model", "perplexity/sonar"), ("preset", preset))
            for name, preset in (("sonar", "fast"), ("sonar-deep-research", "medium"), ("sonar-*", "low"))
        },
    }
)
_OTHERS: Final = (
    _compatible(
        *("mistral", "Mistral", "https://api.mistral.ai", _chat(_openai_paths()), "MISTRAL_API_KEY"),
        facts=ModelFacts(
            max_tokens_name="max_tokens",
            efforts=_EFFORTS,
            call_ids="mistral",
            later_system=False,
            user_after_results=False,
            reasoning_field="thinking",
            refused=("stream_options", "top_k", "user", "service_tier"),
            renamed=(("seed", "random_seed"),),
        ),
        traits=ProviderTraits(knows_prefix=True, whole_calls=True),
        own_models=("mistral-*", "ministral-*", "magistral-*", "codestral-*", "devstral-*", "pixtral-*", "voxtral-*"),
    ),
    _compatible(
        *("groq", "Groq", "https://api.groq.com/openai"),
        _chat(_openai_paths(responses=True, embeddings=False)),
        "GROQ_API_KEY",
        facts=ModelFacts(
            efforts=_EFFORTS,
            reasoning_field="reasoning",
            refused=("logprobs", "top_logprobs", "logit_bias", "name", "n", "top_k", "file"),
            renamed=(("service_tier.default", "on_demand"), ("service_tier.priority", "performance")),
        ),
        traits=ProviderTraits(own_tiers=True),
    ),
    _compatible(
        *("deepseek", "DeepSeek", "https://api.deepseek.com"),
        _chat({**_openai_paths("", responses=True, embeddings=False), **_messages_paths("/anthropic", counts=False)}),
        "DEEPSEEK_API_KEY",
        model_list="/models",
        headers=_ANTHROPIC_VERSION,
        facts=_SWITCHED,
        traits=ProviderTraits(knows_prefix=True),
        own_models=("deepseek-*",),
    ),
    _compatible(
        *("openrouter", "OpenRouter", "https://openrouter.ai/api"),
        _chat({**_openai_paths(responses=True), **_messages_paths(counts=False)}),
        "OPENROUTER_API_KEY",
        headers=_ANTHROPIC_VERSION,
        facts=ModelFacts(
            max_tokens_name="max_tokens",
            reasoning_field="reasoning",
            renamed=(("prompt_cache_breakpoint", "cache_control"),),
        ),
        traits=ProviderTraits(foreign_chat="reasoning", any_detail=True),
    ),
    # Only some of its models answer well by the other two.
    _compatible(
        *("together", "Together AI", "https://api.together.xyz"),
        _chat(_openai_paths(), {**_openai_paths(responses=True), **_messages_paths(counts=False)}),
        "TOGETHER_API_KEY",
        headers=_ANTHROPIC_VERSION,
    ),
    _compatible(
        *("fireworks", "Fireworks AI", "https://api.fireworks.ai/inference"),
        _chat(_openai_paths(), _openai_paths(responses=True)),
        "FIREWORKS_API_KEY",
    ),
    _compatible(
        *("xai", "xAI", "https://api.x.ai", _chat(_openai_paths(responses=True, embeddings=False)), "XAI_API_KEY"),
        own_models=("grok-*",),
    ),
    _compatible(
        *("cerebras", "Cerebras", "https://api.cerebras.ai", _chat(_openai_paths(embeddings=False))),
        "CEREBRAS_API_KEY",
        facts=ModelFacts(efforts=_EFFORTS, reasoning_field="reasoning"),
    ),
    _compatible(
        *("cohere", "Cohere (its API for OpenAI's clients)", "https://api.cohere.ai/compatibility"),
        _chat(_openai_paths()),
        *("COHERE_API_KEY", "CO_API_KEY"),
        own_models=("command-*",),
    ),
    _compatible(
        *("zai", "Z.ai", "https://api.z.ai/api"),
        _chat({**_openai_paths("/paas/v4", embeddings=False), **_messages_paths("/anthropic", counts=False)}),
        *("ZAI_API_KEY",),
        model_list="/paas/v4/models",
        headers=_ANTHROPIC_VERSION,
        facts=_SWITCHED,
        own_models=("glm-*",),
    ),
    _compatible(
        *("perplexity", "Perplexity", "https://api.perplexity.ai"),
        (Family({_S.RESPONSES: CallPath("/v1/responses")}, _S.RESPONSES),),
        *("PERPLEXITY_API_KEY", "PERPLEXITYAI_API_KEY"),
        facts=ModelFacts(),  # those of all its models are rules
        own_models=("sonar", "sonar-*"),
        model_fields=_PRESETS,
    ),
    _compatible("ollama", "Ollama", "http://localhost:11434", _LOCAL, facts=_REASONING_FIELD),
    _compatible("vllm", "vLLM", "http://localhost:8000", _LOCAL, facts=_REASONING_FIELD),
    _compatible("sglang", "SGLang", "http://localhost:30000", _LOCAL),
    _compatible("llamacpp", "llama.cpp's server", "http://localhost:8080", _LOCAL),
    _compatible("lmstudio", "LM Studio", "http://localhost:1234", _LOCAL),
)

PROVIDERS: Final[Mapping[str, Provider]] = MappingProxyType(
    {
        row.name: row
        for row in (
            *(OPENAI, _AZURE, _ANTHROPIC, _VERTEX_AI, _BEDROCK, _MANTLE, _FOUNDRY, _GEMINI),
            *_OTHERS,
            COMPATIBLE,
        )
    }
)


def takes_path(row: Provider, endpoint: Endpoint, path: bytes) -> bool:
    """Say whether a provider may have something at a path that is none of its APIs, and goes up as it came."""
    return row.passes and endpoint not in row.lacks and (row is COMPATIBLE or not is_management(path))
