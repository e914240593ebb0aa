"""How many tokens of a model a request may cost, before anything of its answer is known.

Knows: the arithmetic. Does not know: limits, or what the answer really cost (that replaces the estimate).

The prompt is counted by its bytes: a tokenizer takes longer than all else that is done to a request, and is wrong for
every model but its own. English in JSON has about 4 bytes a token, most other languages fewer. What was estimated too
high is missing in the caller's quota until the answer has come; what was too low is charged then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from velox.types import BodyFields, Endpoint

__all__ = ["NO_TOKENS", "Estimate", "Estimator", "has_guess", "longest_answer", "n_answers", "recorded"]

# Those whose answer is made of tokens. The others cost their prompt, until their answer says otherwise.
_GENERATING: Final = frozenset(
    {Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.COMPLETIONS, Endpoint.MESSAGES, Endpoint.GENERATE}
)
# Those that make nothing, and so cost no more than their prompt.
_READING: Final = frozenset({Endpoint.EMBEDDINGS, Endpoint.MODERATIONS, Endpoint.RERANK})
# More than any quota holds. A client may write a number of a thousand digits.
_MOST: Final = 2**40
# No model's answer is longer, whatever a client asks for; and what is taken for the longest where it asks for nothing.
_LONGEST_ANSWER: Final = 131_072
_USUAL_LONGEST: Final = 32_768
_MOST_ANSWERS: Final = 128  # `n`; OpenAI takes no more
_MOST_PROMPTS: Final = 2048  # nor of these, at text completions


class Estimate:
    """Tokens that a request may cost: of its prompt, and of all its answers.

    named: what the request itself asks for as its answer (`max_tokens`, times `n`); 0 where it names nothing. The rest
    is a guess: a limit that holds less than the guess must not refuse the request for ever.
    """

    __slots__ = ("answer", "named", "prompt")

    def __init__(self, prompt: int, answer: int, named: int = 0) -> None:
        self.prompt: Final = prompt
        self.answer: Final = answer
        self.named: Final = named

    def __repr__(self) -> str:
        return f"<Estimate {self.prompt} {self.answer} named={self.named}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Estimate):
            return False
        return self.prompt == other.prompt and self.answer == other.answer and self.named == other.named

    def __hash__(self) -> int:
        return hash((self.prompt, self.answer, self.named))

    @property
    def total(self) -> int:
        """Return both together."""
        return self.prompt + self.answer


NO_TOKENS: Final = Estimate(0, 0)


def n_answers(peek: BodyFields) -> int:
    """Return how many answers a model makes at most for one request."""
    return max(1, min(peek.n, _MOST_ANSWERS)) * max(1, min(peek.n_prompts, _MOST_PROMPTS))


def longest_answer(peek: BodyFields) -> int:
    """Return the tokens of all answers that a request may get, at most: what a strict budget holds."""
    if peek.max_tokens is None:
        return _USUAL_LONGEST * n_answers(peek)
    return min(max(peek.max_tokens, 0), _LONGEST_ANSWER) * n_answers(peek)


def has_guess(endpoint: Endpoint) -> bool:
    """Tell whether an estimate's answer may be taken for the real one: not where pictures or sound are made."""
    return endpoint in _GENERATING or endpoint in _READING


def recorded(estimate: Estimate, peek: BodyFields) -> Estimate:
    """Return what of an estimate counts where no reply tells: as it is, but with no answer above the longest.

    A limit is refilled within minutes; what is recorded stays spent. So a client may ask for any number, and leave.
    """
    if estimate.answer <= _USUAL_LONGEST and peek.n <= _MOST_ANSWERS:
        return estimate  # most of them
    answer = min(estimate.answer, longest_answer(peek))
    return estimate if answer == estimate.answer else Estimate(estimate.prompt, answer, estimate.named)


@dataclass(frozen=True, slots=True)
class Estimator:
    """bytes_per_token: of a prompt in its JSON. default_max_tokens: of an answer whose request names no limit."""

    bytes_per_token: int = 4
    default_max_tokens: int = 1024

    def estimate(self, endpoint: Endpoint, n_bytes: int, peek: BodyFields) -> Estimate:
        """Return what a request with a body of `n_bytes` may cost. Only for bodies that name a model.

        `n` answers cost as much as n times one, and so do those to several prompts.
        """
        prompt = -(-n_bytes // self.bytes_per_token)
        if endpoint not in _GENERATING:
            return Estimate(prompt, 0)
        max_tokens = self.default_max_tokens if peek.max_tokens is None else peek.max_tokens
        if peek.n > 1 or peek.n_prompts > 1:
            max_tokens *= max(1, peek.n) * peek.n_prompts
        answer = max_tokens if max_tokens < _MOST else _MOST
        return Estimate(prompt, answer, 0 if peek.max_tokens is None else answer)

    def at_first(self, endpoint: Endpoint, n_bytes: int) -> int:
        """Return what a request may cost whose body has not been read: what the queue goes by."""
        prompt = -(-n_bytes // self.bytes_per_token)
        return prompt + self.default_max_tokens if endpoint in _GENERATING else prompt
