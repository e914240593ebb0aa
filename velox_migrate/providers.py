"""The providers that LiteLLM knows by name: where each is, and what its key is called; and those that Velox can't ask.

Knows: one row a provider. Does not know: any request. Velox sends what a client sends, to its path (`/v1/...`) under
the origin, so that a provider is one for Velox if it takes OpenAI's requests at a path that ends in `/v1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from velox_migrate.native import NATIVE

__all__ = [
    "PROVIDERS",
    "UNSUPPORTED",
    "Provider",
    "base_of",
    "base_variables",
    "provider_of",
]


@dataclass(frozen=True, slots=True)
class Provider:
    """One that takes OpenAI's requests. base: its URL with `/v1`; "": each user's own server, from api_base.

    key: the variable that LiteLLM reads its key from where the file gives none; "": it needs none.
    has_v1: its servers have `/v1` whether api_base names it or not. model_prefix: what LiteLLM puts before a model that
    has none. unverified: why base may be wrong, which an import tells; "": it was verified.
    """

    base: str = ""
    key: str = ""
    has_v1: bool = False
    model_prefix: str = ""
    unverified: str = ""


# Read, not asked: nobody has sent a request to these. The bases are those of LiteLLM's source, which is where it asks
# for a deployment without api_base: litellm_core_utils/get_llm_provider_logic.py (anyscale, cerebras, codestral,
# empower, friendliai, meta_llama, nvidia_nim, ollama, sambanova, together_ai, wandb), constants.py (dashscope,
# deepseek, featherless_ai, hyperbolic, lambda_ai, mistral, moonshot, nscale, xai), llms/ (aiml, baseten, groq, voyage),
# llms/openai_like/providers.json (the second block), and its page on fireworks_ai. openai: src/openai/_client.py of
# openai-python. openrouter: openrouter.ai/docs. `unverified` says why the others are not verified. A wrong name
# of a key's variable is found at the start: Velox does not start without the variable.
PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "custom_openai": Provider(key="OPENAI_API_KEY"),
    "openai_like": Provider(key="OPENAI_LIKE_API_KEY"),
    "aiml": Provider("https://api.aimlapi.com/v1", "AIML_API_KEY"),
    "anyscale": Provider("https://api.endpoints.anyscale.com/v1", "ANYSCALE_API_KEY"),
    "baseten": Provider("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "codestral": Provider("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "dashscope": Provider("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    # LiteLLM itself asks /beta, which the same models answer.
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", has_v1=True),
    "empower": Provider("https://app.empower.dev/api/v1", "EMPOWER_API_KEY"),
    "featherless_ai": Provider("https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY"),
    "fireworks_ai": Provider(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", model_prefix="accounts/fireworks/models/"
    ),
    "friendliai": Provider("https://api.friendli.ai/serverless/v1", "FRIENDLI_TOKEN"),
    "galadriel": Provider(
        "https://api.galadriel.com/v1", "GALADRIEL_API_KEY", unverified="LiteLLM itself names it and api.galadriel.ai"
    ),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "hosted_vllm": Provider(has_v1=True),
    "hyperbolic": Provider("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "lambda_ai": Provider("https://api.lambda.ai/v1", "LAMBDA_API_KEY"),
    "litellm_proxy": Provider(key="LITELLM_PROXY_API_KEY", has_v1=True),
    "llamafile": Provider(has_v1=True),
    "lm_studio": Provider(has_v1=True),
    "meta_llama": Provider("https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY", has_v1=True),
    "moonshot": Provider("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nebius": Provider(
        "https://api.studio.nebius.ai/v1",
        "NEBIUS_API_KEY",
        unverified="LiteLLM asks there, but its own pages name https://api.tokenfactory.nebius.com",
    ),
    "nscale": Provider("https://inference.api.nscale.com/v1", "NSCALE_API_KEY"),
    "nvidia_nim": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "ollama": Provider("http://localhost:11434/v1", has_v1=True),
    "ollama_chat": Provider("http://localhost:11434/v1", has_v1=True),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "sambanova": Provider("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "voyage": Provider("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "wandb": Provider("https://api.inference.wandb.ai/v1", "WANDB_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "xinference": Provider(has_v1=True),
    # The table that LiteLLM has as a file; without those that need another path or header.
    "aihubmix": Provider("https://aihubmix.com/v1", "AIHUBMIX_API_KEY"),
    "apertis": Provider("https://api.stima.tech/v1", "STIMA_API_KEY"),
    "assemblyai": Provider("https://llm-gateway.assemblyai.com/v1", "ASSEMBLYAI_API_KEY"),
    "chutes": Provider("https://llm.chutes.ai/v1", "CHUTES_API_KEY"),
    "gmi": Provider("https://api.gmi-serving.com/v1", "GMI_API_KEY"),
    "llamagate": Provider("https://api.llamagate.dev/v1", "LLAMAGATE_API_KEY"),
    "nano-gpt": Provider("https://nano-gpt.com/api/v1", "NANOGPT_API_KEY"),
    "poe": Provider("https://api.poe.com/v1", "POE_API_KEY"),
    "publicai": Provider("https://api.publicai.co/v1", "PUBLICAI_API_KEY"),
    "scaleway": Provider("https://api.scaleway.ai/v1", "SCW_SECRET_KEY"),
    "synthetic": Provider("https://api.synthetic.new/openai/v1", "SYNTHETIC_API_KEY"),
    "veniceai": Provider("https://api.venice.ai/api/v1", "VENICE_AI_API_KEY"),
    "xiaomi_mimo": Provider("https://api.xiaomimimo.com/v1", "XIAOMI_MIMO_API_KEY"),
}
# The variables that LiteLLM looks into for a base, where they are not called after the provider.
_BASE_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "fireworks_ai": ("FIREWORKS_API_BASE",),
    "friendliai": ("FRIENDLI_API_BASE",),
    "meta_llama": ("LLAMA_API_BASE",),
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "text-completion-openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
}
# A model of Baseten that is a server of its own (llms/baseten/chat.py).
_BASETEN_SERVER: Final = re.compile(r"[A-Za-z0-9]{8}")
_OTHER_PATH: Final = "it takes OpenAI's requests, but not at a path that ends in /v1, and Velox changes no path"
_OWN_API: Final = "it has an API of its own, and Velox translates none"
UNSUPPORTED: Final[Mapping[str, str]] = {
    "databricks": _OTHER_PATH,
    "deepinfra": _OTHER_PATH,
    "github": _OTHER_PATH,
    "huggingface": f"{_OWN_API}; for a server of TGI or vLLM write openai/MODEL with its api_base",
    "novita": _OTHER_PATH,
    "replicate": _OWN_API,
    "sagemaker": f"{_OWN_API}, nor does it sign for AWS",
    "sagemaker_chat": f"{_OWN_API}, nor does it sign for AWS",
    "snowflake": _OTHER_PATH,
    "volcengine": _OTHER_PATH,
    "watsonx": _OWN_API,
}
# LiteLLM knows each model by name; here the beginnings are enough. The longest one counts.
_BY_MODEL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpt-", "o1", "o3", "o4", "chatgpt-", "text-embedding-", "dall-e-", "whisper-", "tts-"), "openai"),
    **dict.fromkeys(("ft:", "omni-moderation-", "text-moderation-", "babbage-", "davinci-", "sora-", "*"), "openai"),
    "claude-": "anthropic",
    "gemini-": "vertex_ai",
    "command-": "cohere_chat",
}


def base_of(provider: str, model: str) -> str:
    """Return the URL that LiteLLM asks for a model where nothing else names one; "" where it knows none."""
    if provider == "baseten" and _BASETEN_SERVER.fullmatch(model):
        return f"https://model-{model}.api.baseten.co/environments/production/sync/v1"
    return PROVIDERS[provider].base if provider in PROVIDERS else ""


def base_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that LiteLLM looks into where the file gives no api_base."""
    usual = re.sub(r"[^A-Z0-9]+", "_", provider.upper())
    return _BASE_VARIABLES.get(provider, (f"{usual}_API_BASE",))


def provider_of(model: str, given: str = "") -> tuple[str, str]:
    """Return the provider of a model as LiteLLM names it, and the model's name there. given: custom_llm_provider.

    The provider is "" where the name does not tell it.
    """
    first, slash, rest = model.partition("/")
    if given:
        return given, rest if slash and first == given else model
    if slash and (first in PROVIDERS or first in UNSUPPORTED or first in NATIVE):
        return first, rest
    if slash:
        return "", model
    starts = [start for start in _BY_MODEL if model.startswith(start)]
    return (_BY_MODEL[max(starts, key=len)] if starts else ""), model
