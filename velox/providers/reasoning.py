"""Which models reason before they answer: tokens that cost as the answer does, and that a stream does not show.

    reasons(entry, model)   by the settings' `model_facts`, else by its name

Of such a model the events of a stream tell nothing of what it cost, so its usage is waited for, and where none comes
the estimate counts and no fewer tokens (gateway/limits/metering.py).

Knows: names of models, as of November 2026, with those of resellers before and behind them. Does not know: how
reasoning is asked for (model_facts.py, which is loaded only where requests are translated). A model whose name says
nothing is taken for one that does not reason.
"""

from __future__ import annotations

from typing import Final

from velox.policy.patterns import matches
from velox.policy.routes.entries import UpstreamEntry

__all__ = ["reasons"]

_THINKING: Final = "thinking"
# Of the last part of a name: `openai/o3`, `accounts/fireworks/models/deepseek-r1`.
_REASON: Final = (
    *("o1*", "o3*", "o4*", "gpt-5*", "gpt-6*", "openai.gpt-5*", "openai.gpt-6*", "*gpt-oss*", "*deep-research*"),
    *("*claude*", "*fable-5*", "*mythos-5*"),
    *("*gemini-2.5*", "*gemini-3*", "*gemini-4*", "*gemini-*-latest*"),
    *("grok-3-mini*", "grok-4*", "grok-5*", "grok-code*"),
    *("*deepseek-r*", "*deepseek-v4*", "*qwq*", "*qwen3*", "*magistral*", "*nova-2*", "*minimax-m*", "*kimi-k3*"),
    *("*glm-4.5*", "*glm-4.6*", "*glm-4.7*", "*glm-5*", "*thinking*", "*reasoner*", "*reasoning*", "*-r1", "*-r1-*"),
)
_ANSWER_AT_ONCE: Final = (
    *("gpt-5-chat*", "gpt-5.*-chat*", "*-image*", "*-tts*", "*embedding*"),
    *("*claude-3-5*", "*claude-3.5*", "*claude-3-haiku*", "*claude-3-opus*", "*claude-3-sonnet*"),
    *("*claude-2*", "*claude-v2*", "*claude-instant*"),
    *("*non-reasoning*", "*non-thinking*", "*nonthinking*", "qwen3*-instruct*", "qwen3-coder*"),
)


def reasons(entry: UpstreamEntry, model: str) -> bool:
    """Return True for a model of an upstream that may reason. model: that it is asked for."""
    name = model.lower()
    told = [
        fact
        for rule in entry.model_facts
        if rule.is_for(entry.provider, name)
        for field, fact in rule.facts
        if field == _THINKING
    ]
    if told:
        return told[-1] != "none"
    name = name.rpartition("/")[2]
    if not any(matches(pattern, name) for pattern in _REASON):
        return False
    return not any(matches(pattern, name) for pattern in _ANSWER_AT_ONCE)
