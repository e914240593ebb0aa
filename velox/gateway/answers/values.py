"""Values that kept answers are spoken of in: by requests (answers.py), where they are kept, and in stores.

Knows: these values. Does not know: how an answer is found (kept_answers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["AnswerPlace", "AnswersDownError", "Changed", "ExpandedRequest"]


class ExpandedRequest(NamedTuple):
    """A request with its whole input. previous: the answer that it goes on from. own: the items that came.

    conversation: that both go into; None: none that is kept here.
    """

    body: bytes
    previous: str | None
    own: bytes
    conversation: str | None = None


class AnswerPlace(NamedTuple):
    """What a path names: an answer, and what stands behind it."""

    answer_id: str
    rest: str


class Changed(NamedTuple):
    """What is kept after a change: texts with their ids, the one that was changed last."""

    texts: Sequence[tuple[tuple[str, ...], bytes]]


class AnswersDownError(Exception):
    """The store that several gateways share can't be asked."""
