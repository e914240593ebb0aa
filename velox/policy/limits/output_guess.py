"""How long the answers of a caller's model usually are, learned from those that came.

Knows: lengths, by caller and model, as a histogram that forgets slowly. Does not know: prices, or what a guess is for.

A budget that holds the longest possible answer for each request starves: with 32,000 tokens held and 300 used, a
hundred coding agents fill a budget of which nothing is spent. So what is held is a length that most answers stay below.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from velox.memo import Memo

__all__ = ["AnswerLengths", "OutputGuess"]

# Of ten answers nine are no longer.
_QUANTILE_PERCENT: Final = 90
# So many answers must have come before the guess counts on them.
_LEAST: Final = 5
# When so many are counted, all counts are halved: last week's answers matter less than today's.
_MOST: Final = 512
# A guess is made anew when so small a part of the answers that it stands for is new: it costs more than to count one.
_SELDOM: Final = 16
_KEPT: Final = 4096
# The longest length of each bucket: 0, 1, 2, 3, 4, 6, 8, 12, ... A guess is at most 1.5 times what it stands for.
_TOPS: Final = (0, 1, *(n << power for power in range(30) for n in (2, 3)))


class AnswerLengths:
    """Those of one caller's model. guess: that they lead to; None: too few have come."""

    __slots__ = ("_counts", "_n", "_unseen", "guess")

    def __init__(self) -> None:
        self._counts: Final[list[int]] = [0] * len(_TOPS)
        self._n = 0
        self._unseen = 1  # answers to come before the guess is made anew
        self.guess: int | None = None

    def __repr__(self) -> str:
        return f"<AnswerLengths {self._n} of {self.guess}>"

    def add(self, n_tokens: int) -> None:
        """Take note of an answer."""
        counts = self._counts
        counts[min(bisect_left(_TOPS, n_tokens), len(_TOPS) - 1)] += 1
        self._n += 1
        self._unseen -= 1
        if self._n >= _MOST:
            counts[:] = [n // 2 for n in counts]
            self._n = sum(counts)
        if self._unseen <= 0 and self._n >= _LEAST:
            self._unseen = self._n // _SELDOM
            self.guess = self._made()

    def _made(self) -> int:
        left = self._n * _QUANTILE_PERCENT
        for top, count in zip(_TOPS, self._counts, strict=True):
            left -= count * 100
            if left <= 0:
                return top
        return _TOPS[-1]


class OutputGuess:
    """Of one worker. Lengths are in tokens, all answers of a request together."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Final[Memo[tuple[bytes, str], AnswerLengths]] = Memo(_KEPT)

    def __repr__(self) -> str:
        return f"<OutputGuess of {len(self._known)} callers and models>"

    def lengths(self, caller: bytes, model: str) -> AnswerLengths:
        """Return those of a caller's answers from a model, to ask and to add to."""
        key = (caller, model)
        return self._known.get(key) or self._known.find(key) or self._known.put(key, AnswerLengths())
