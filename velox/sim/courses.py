"""How answers go beside what they say: late, or not to their end. By chance, or by what their prompts cost.

Knows: the shares and times that were asked for. Does not know: replies, who waits, what plays an answer.
"""

from __future__ import annotations

import random
from typing import Final

from velox.sim.options import SimOptions
from velox.sim.shapes import SMOOTH, Course

__all__ = ["Courses"]


class Courses:
    """Decides the course of one answer after the other."""

    def __init__(self, options: SimOptions) -> None:
        # A source of its own: the ids, and which requests fail, do not depend on whether some are slow, too.
        self._random: Final = random.Random(options.seed)
        self._options: Final = options
        self._token_s: Final = 1 / options.prefill_rate if options.prefill_rate else 0.0
        self._are_smooth: Final = not (
            options.prefill_rate or options.prefix_cache or options.slow_rate or options.stall_rate
        )

    def next(self, n_uncached: int, n_context: int) -> Course:
        """Return the next answer's. n_uncached: tokens of the prompt to compute; n_context: of prompt and answer."""
        if self._are_smooth:
            return SMOOTH
        options = self._options
        late_s = n_uncached * self._token_s
        if options.slow_rate and self._random.random() < options.slow_rate:
            late_s += options.slow_by_s
        stops_after = None
        if options.stall_rate and self._random.random() < options.stall_rate:
            stops_after = options.stall_after
        return Course(late_s, stops_after, n_context)
