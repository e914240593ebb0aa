"""The most tokens that an answer may have, where a client asks for more than its model can give.

Claude Code names 32,000 and more by itself, and many older models answer 400 to that.

Does not know: any dialect or model.
"""

from __future__ import annotations

from velox.dialects.facts import ModelFacts
from velox.dialects.losses import Losses

__all__ = ["taken_max_tokens"]


def taken_max_tokens(asked: int | None, facts: ModelFacts, losses: Losses) -> int | None:
    """Return the limit that was asked for, or the model's own, which is a loss; None: none was."""
    if asked is None or not facts.most_output or asked <= facts.most_output:
        return asked
    losses.drop("max_tokens")
    return facts.most_output
