"""What models of well-known families can do, for lists of models: tools, pictures in prompts, reasoning, schemas.

    capabilities_of(model, facts)   None: nothing is said of a model that is in no such family

Facts are what a writer goes by, and their defaults are a guess for a model that nobody knows; a list says only what is
known. What models of these families take is in their vendors' tables: docs.claude.com (models overview),
ai.google.dev/gemini-api/docs/models, developers.openai.com/api/docs/models.

Knows: names of models, as of November 2026. Does not know: how a list says it (protocol/model_list.py).
"""

from __future__ import annotations

from typing import Final

from velox.dialects.facts.model_facts import ModelFacts
from velox.policy.patterns import matches
from velox.protocol.model_list import Capabilities

__all__ = ["capabilities_of"]

# Those that write texts for a chat: of the last part of a name (`anthropic/claude-...`).
_FAMILIES: Final = (
    *("*claude*", "gemini-*", "chatgpt-*", "gpt-3.5*", "gpt-4*", "gpt-5*", "gpt-6*", "o1*", "o3*", "o4*"),
    *("openai.gpt-5*", "openai.gpt-6*"),
)
_OTHERS: Final = (
    *("*embedding*", "*-image*", "*-tts*", "*-audio*", "*-realtime*", "*-live*", "*-transcribe*", "*-instruct*"),
    *("*-search-*", "*-search", "*-deep-research*", "*-computer-use*", "*-robotics*"),
)
_WITHOUT_TOOLS: Final = ("*claude-2*", "*claude-v2*", "*claude-instant*", "o1-mini*", "o1-preview*", "chatgpt-*")
_WITHOUT_PICTURES: Final = (
    *("*claude-2*", "*claude-v2*", "*claude-instant*", "gpt-3.5*", "gpt-4", "gpt-4-0*", "gpt-4-1*", "gpt-4-32k*"),
    *("gpt-4-turbo-preview*", "o1-mini*", "o1-preview*", "o3-mini*"),
)


def capabilities_of(model: str, facts: ModelFacts) -> Capabilities | None:
    """Return what a model can do; None: it is in no family that is known. facts: of the model."""
    name = model.lower().rpartition("/")[2]
    if not _is_among(name, _FAMILIES) or _is_among(name, _OTHERS):
        return None
    reasons = facts.thinking != "none"
    return Capabilities(
        tools=not _is_among(name, _WITHOUT_TOOLS),
        pictures=not _is_among(name, _WITHOUT_PICTURES),
        schemas=facts.json_schema,
        sampling=facts.sampling,
        efforts=tuple(each for each in facts.efforts if each != "none") if reasons else (),
        searches=bool(facts.web_search),
    )


def _is_among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
