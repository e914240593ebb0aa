"""Limits of a model: stop strings, tools and tokens of an answer. It answers 400 to more.

Stop strings and tools are never cut: an answer that does not stop where it was to, or a tool that is not there, would
be another answer. Tokens of an answer are: Claude Code names 32,000 and more by itself, and older models have fewer.

Knows: what follows from a limit. Does not know: any model's limits (ModelFacts), or how a dialect writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Tool
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["checked_tools", "taken_max_tokens", "taken_stops", "usual_max_tokens"]


def taken_stops(stops: Sequence[str], facts: ModelFacts) -> list[str]:
    """Return the strings at which the model stops, each once. Raises BadRequestError: they are too many."""
    unlike = list(dict.fromkeys(stops))
    if facts.most_stops and len(unlike) > facts.most_stops:
        raise BadRequestError(f"the model of this route takes {facts.most_stops} stop strings at most", "stop")
    return unlike


def checked_tools(tools: list[Tool], facts: ModelFacts) -> list[Tool]:
    """Return the tools. Raises BadRequestError: they are too many."""
    if facts.most_tools and len(tools) > facts.most_tools:
        raise BadRequestError(f"the model of this route takes {facts.most_tools} tools at most", "tools")
    return tools


def taken_max_tokens(asked: int | None, facts: ModelFacts, dropped: DroppedFields) -> int | None:
    """Return the limit that was asked for, or the model's own, which drops a field; None: none was."""
    if asked is None or not facts.most_output or asked <= facts.most_output:
        return asked
    dropped.drop("max_tokens", problem=f"max_tokens may be {facts.most_output} at most for this model")
    return facts.most_output


def usual_max_tokens(facts: ModelFacts) -> int:
    """Return the limit where a client asks for none, and the model's API needs one."""
    return min(facts.max_output, facts.most_output or facts.max_output)
