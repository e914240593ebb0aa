"""What the simulator says: a short passage, repeated to the wanted length, cut into tokens.

Knows: words. Does not know: JSON of any route.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

import orjson

__all__ = ["Text"]

# Beyond ASCII on purpose: characters of two, three and four bytes show a path that cuts or re-encodes them.
_PASSAGE: Final = (
    "Hello! This answer comes from the Velox simulator, which speaks like a model and knows nothing. "
    "Each word is one token, sent at the pace that was asked for, so that what you measure is the path "
    "and not the thinking. It has been to Zürich, café tables included, and to 東京, and it waves 👋 back. "
    "From here on it repeats itself, as models do. "
)


class Text:
    """The answer's tokens, as text and as JSON strings."""

    def __init__(self, n_tokens: int) -> None:
        """n_tokens: the longest answer, 1 or more."""
        words = re.findall(r"\S+\s", _PASSAGE)
        self._tokens: Final = tuple(itertools.islice(itertools.cycle(words), n_tokens))
        self.tokens_json: Final = tuple(orjson.dumps(token) for token in self._tokens)
        self._whole: Final = "".join(self._tokens)

    def first(self, n_tokens: int) -> str:
        """Return the first n tokens as one text."""
        return self._whole if n_tokens == len(self._tokens) else "".join(self._tokens[:n_tokens])
