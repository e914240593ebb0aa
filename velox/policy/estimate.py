"""How many tokens of a model a request may cost, before anything of its answer is known.

Knows: the arithmetic. Does not know: limits, or what the answer really cost (that replaces the estimate).

The prompt is counted by its bytes: a tokenizer takes longer than all else that is done to a request, and is wrong for
every model but its own. English in JSON has about 4 bytes a token, most other languages fewer. What was estimated too
high is missing in the caller's quota until the answer has come; what was too low is charged then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from velox.types import BodyFields, Endpoint

__all__ = ["NO_TOKENS", "Estimate", "Estimator"]

# Those whose answer is made of tokens. The others cost their prompt, until their answer says otherwise.
_GENERATING: Final = frozenset(
    {Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.COMPLETIONS, Endpoint.MESSAGES, Endpoint.GENERATE}
)
# More than any quota holds. A client may write a number of a thousand digits.
_MOST: Final = 2**40


class Estimate(NamedTuple):
    """Tokens that a request may cost: of its prompt, and of all its answers.

    named: what the request itself asks for as its answer (`max_tokens`, times `n`); 0 where it names nothing. The rest
    is a guess: a limit that holds less than the guess must not refuse the request for ever.
    """

    prompt: int
    answer: int
    named: int = 0

    @property
    def total(self) -> int:
        """Return both together."""
        return self.prompt + self.answer


NO_TOKENS: Final = Estimate(0, 0)


@dataclass(frozen=True, slots=True)
class Estimator:
    """bytes_per_token: of a prompt in its JSON. default_max_tokens: of an answer whose request names no limit."""

    bytes_per_token: int = 4
    default_max_tokens: int = 1024

    def estimate(self, route: Endpoint, n_bytes: int, peek: BodyFields) -> Estimate:
        """Return what a request with a body of `n_bytes` may cost. Only for bodies that name a model.

        `n` answers cost as much as n times one.
        """
        prompt = -(-n_bytes // self.bytes_per_token)
        if route not in _GENERATING:
            return Estimate(prompt, 0)
        max_tokens = self.default_max_tokens if peek.max_tokens is None else peek.max_tokens
        if peek.n > 1:
            max_tokens *= peek.n
        answer = max_tokens if max_tokens < _MOST else _MOST
        return Estimate(prompt, answer, 0 if peek.max_tokens is None else answer)

    def at_first(self, route: Endpoint, n_bytes: int) -> int:
        """Return what a request may cost whose body has not been read: what the queue goes by."""
        prompt = -(-n_bytes // self.bytes_per_token)
        return prompt + self.default_max_tokens if route in _GENERATING else prompt
