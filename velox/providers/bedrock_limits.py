"""The most tokens that an answer of each model on Bedrock may have, as data: rules like those of model_facts.py.

Bedrock answers 400 to more ("The maximum tokens you requested exceeds the model limit of 8192"), and agents ask for
more: Claude Code for 32,000 of every model. Where sources differ the lowest is here: a limit that is too low shortens
the longest answers, one that is too high makes a model unusable. `most_output` in `model_facts` says another one.

Sources, as of November 2026: AWS's user guide, "Inference request parameters" of Meta, Mistral AI, DeepSeek, Cohere,
AI21, Amazon Titan and Nova; the profiles of models in langchain-ai/langchain-aws (1.9.1, of models.dev);
aws-samples/bedrock-access-gateway#41, pollinations/pollinations#5503, boto/boto3#4279.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from velox.policy.routes.model_rule import ModelRule

__all__ = ["LIMITS"]

_MOST: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        2048: ("*meta.llama2*", "*meta.llama3-8b*", "*meta.llama3-70b*"),
        3072: ("*amazon.titan-text-premier*",),
        4096: (
            *("*meta.llama3-1*", "*meta.llama3-2*", "*meta.llama3-3*", "*mistral.mixtral*", "*mistral.voxtral-mini*"),
            *("*mistral.ministral-3-8b*", "*mistral.ministral-3-14b*", "*cohere.command*", "*ai21.jamba*"),
            *("*amazon.titan-text-lite*", "*google.gemma-3-4b*", "*anthropic.claude-3-5-sonnet-20240620*"),
        ),
        8192: (
            *("*meta.llama4*", "*mistral.mistral-*", "*mistral.pixtral*", "*mistral.devstral*"),
            *("*mistral.ministral-3-3b*", "*mistral.voxtral-small*", "*amazon.titan-text-express*"),
            *("*google.gemma-3-12b*", "*google.gemma-3-27b*", "*google.gemma-4-e2b*", "*nvidia.nemotron-nano*"),
            # It takes 32,768, and AWS advises against more than this.
            *("*writer.palmyra*", "*deepseek.r1*"),
        ),
        10_000: ("*amazon.nova-micro*", "*amazon.nova-lite*", "*amazon.nova-pro*", "*amazon.nova-premier*"),
        16_000: ("*moonshot.kimi-k2*",),
        16_384: ("*moonshotai.kimi-k2*", "*qwen.qwen3-32b*", "*openai.gpt-oss-safeguard*", "us-gov.openai.gpt-oss*"),
        32_768: ("*google.gemma-4-26b*", "*google.gemma-4-31b*"),
        40_000: ("*mistral.magistral*",),
        65_536: ("*qwen.qwen3-coder-480b*", "*qwen.qwen3-coder-next*"),
        81_920: ("*deepseek.v3*",),
        98_304: ("*minimax.minimax-m2*",),
    }
)

LIMITS: Final[tuple[ModelRule, ...]] = tuple(
    ModelRule(patterns, (("most_output", most),), ("bedrock", "bedrock-mantle")) for most, patterns in _MOST.items()
)
