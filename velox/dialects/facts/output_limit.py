"""The most tokens that an answer may have, where a client asks for more than its model can give.

Claude Code names 32,000 and more by itself, and many older models answer 400 to that.

Does not know: any dialect or model.
"""

from __future__ import annotations

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["taken_max_tokens", "usual_max_tokens"]


def taken_max_tokens(asked: int | None, facts: ModelFacts, dropped: DroppedFields) -> int | None:
    """Return the limit that was asked for, or the model's own, which is a loss; None: none was."""
    if asked is None or not facts.most_output or asked <= facts.most_output:
        return asked
    dropped.drop("max_tokens", problem=f"max_tokens may be {facts.most_output} at most for this model")
    return facts.most_output


def usual_max_tokens(facts: ModelFacts) -> int:
    """Return the limit where a client asks for none, and the model's API needs one."""
    return min(facts.max_output, facts.most_output or facts.max_output)
