"""The plain values that pass between the parts of the simulator, and the text of its answers.

Knows: shapes. Does not know: JSON of any route, HTTP versions, time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from velox.heads import Headers

__all__ = ["UNDISTURBED", "AnswerPlan", "Job", "RefusalError", "Reply", "Streamed", "Text", "TokenStream", "Whole"]


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be made up.

    key: hexadecimal, unique to this answer: a reader can tell two answers apart by the ids made of it.
    created: Unix seconds. limit: the client's own, or None. n_tokens: the answer's length, limit applied.
    is_cut: the limit ended the answer before its own end. n_cached: of n_prompt.
    """

    key: str
    created: int
    model: str
    n_prompt: int
    n_cached: int
    n_tokens: int
    limit: int | None
    is_cut: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The bytes of an event stream: `opening`, `lead + rest` for each of `rests[:n_tokens]`, then `closing`.

    lead: what this answer's events have in common (ids, model). rests: built once, shared by all answers.
    """

    opening: bytes
    lead: bytes
    rests: Sequence[bytes]
    n_tokens: int
    closing: bytes


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How one answer goes, beside what all have in common.

    late_s: seconds that its first token takes longer. stops_after: tokens of a stream after which no more comes, 0: not
    even the head; None: it goes to its end. A whole body that stops never comes. n_context: tokens of prompt and answer
    that it holds in memory, 0 where nobody asks for it.
    """

    late_s: float = 0.0
    stops_after: int | None = None
    n_context: int = 0


UNDISTURBED: Final = AnswerPlan()


@dataclass(frozen=True, slots=True)
class Whole:
    """A reply with a body of known length. n_tokens: the tokens whose time it takes; 0 is sent at once."""

    status: int
    headers: Headers
    body: bytes
    n_tokens: int = 0
    plan: AnswerPlan = UNDISTURBED


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply whose body is an event stream."""

    status: int
    headers: Headers
    events: TokenStream
    plan: AnswerPlan = UNDISTURBED


Reply: TypeAlias = Whole | Streamed


class RefusalError(Exception):
    """A request that gets an error in OpenAI's shape instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.message: Final = message.encode("utf-8", "replace").decode()  # it may name half a character
        self.kind: Final = kind
        self.param: Final = param
        self.code: Final = code
        self.headers: Final = headers


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

    def tokens(self) -> tuple[str, ...]:
        """Return the tokens of the longest answer."""
        return self._tokens

    def first(self, n_tokens: int) -> str:
        """Return the first n tokens as one text."""
        return self._whole if n_tokens == len(self._tokens) else "".join(self._tokens[:n_tokens])
