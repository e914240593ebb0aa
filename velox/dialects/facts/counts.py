"""How many things a target takes of a kind: stop strings, tools. It answers 400 to more.

Nothing is cut: an answer that does not stop where it was to, or a tool that is not there, would be another answer.

Knows: how a limit is told. Does not know: any model's limits (ModelFacts), or how a dialect writes what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Tool
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["checked_tools", "taken_stops"]


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
