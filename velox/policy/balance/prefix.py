"""The member that has most of the prompt in its cache, unless it has too much to do already.

Knows: how a match is weighed against load. Does not know: what the members' caches really hold: it remembers what they
were sent, and what is sent often is kept there as well as here.

For servers that keep the keys and values of prompts (vLLM's automatic prefix caching, SGLang's RadixAttention): what
begins like an earlier prompt needs no computing up to where they part. In order:

1. who was sent the longest beginning, at least `worth` of the prompt, is below the bound of its load (bounds.py); the
   least loaded of several;
2. else the least loaded of all, by weight. A cache that is nearly full lowers the weight (scraped.py), so prompts that
   are new to all go to where there is room for them.

SGLang's router switches between match and load by two thresholds for the whole fleet, llm-d's adds up scores. A bound
per member needs no scale on which bytes and requests compare, and holds whatever is asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from velox.policy.balance.bounds import SPARE, load_per_weight
from velox.policy.balance.candidates import Candidates, LearnsNothing, usable
from velox.policy.balance.least_inflight import least_loaded
from velox.policy.balance.prefix_table import LENGTHS, PREFIX_BYTES, PrefixTable, marks

__all__ = ["HASHED_BYTES", "PrefixAffinity", "prompt_of"]

# Of the prompt, for a hash: turns of a conversation must have the same, so not all of it. Measured with 1, 2 and 3 kB,
# which are alike (78, 79, 78 % of the prompts' tokens found in the cache); with 8 kB, where each turn differs, 59 %.
HASHED_BYTES: Final = 2_048
_FACTOR: Final = 1.5  # a hit saves more than a somewhat longer line costs
_WORTH: Final = 0.3  # SGLang's default; a beginning that all prompts share is no reason to go anywhere
# Where the prompt begins in a request of each kind: what stands before it (temperature, a user) would make two
# conversations of the same beginning look different. Looked for in the first kilobytes, and it may be found inside a
# string: then the request goes where it has no cache, no worse.
_FIELDS: Final = (b'"messages"', b'"prompt"', b'"input"')
_FIELD_WITHIN: Final = 4_096


class PrefixAffinity(LearnsNothing):
    """The choice by prompt. Satisfies Balancer; its key is the request from where the prompt begins."""

    __slots__ = ("_factor", "_spare", "_table", "_worth")

    def __init__(
        self, table: PrefixTable, *, factor: float = _FACTOR, spare: float = SPARE, worth: float = _WORTH
    ) -> None:
        """worth: the part of a prompt, 0 to 1, that is the shortest match that counts; factor, spare: bounds.py."""
        self._table: Final = table
        self._factor: Final = factor
        self._spare: Final = spare
        self._worth: Final = worth

    def __repr__(self) -> str:
        return f"<PrefixAffinity {self._table} factor={self._factor} spare={self._spare} worth={self._worth}>"

    def pick(
        self,
        candidates: Candidates,
        now_s: float,
        random: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
    ) -> int | None:
        """Choose, and remember that the prompt goes there."""
        weights = usable(candidates.weights, tried)
        found = marks(key)
        if not found:
            return least_loaded(candidates, weights, random)
        table = self._table
        depth = table.deepest(found)
        if depth:
            per_weight = load_per_weight(candidates, weights, self._factor, self._spare)
            least_bytes = self._worth * LENGTHS[len(found) - 1]
            while depth and LENGTHS[depth - 1] >= least_bytes:
                chosen = self._with_room(table.holders(found[depth - 1]), candidates, weights, per_weight)
                if chosen is not None:
                    table.sent(chosen, found, now_s)
                    return chosen
                depth -= 1
        member = least_loaded(candidates, weights, random)
        if member is not None:
            table.sent(member, found, now_s)
        return member

    def _with_room(
        self, members: Sequence[int], candidates: Candidates, weights: Sequence[float], per_weight: float
    ) -> int | None:
        """Return the least loaded of `members` of those that may be chosen and have room."""
        chosen: int | None = None
        least = 0.0
        for member in members:
            # A table that is shared may name members that this group no longer has.
            weight = weights[member] if member < len(weights) else 0.0
            if weight > 0.0:
                load = candidates.inflight[member] + candidates.extra[member]
                if load < math.ceil(per_weight * weight) and (chosen is None or load / weight < least):
                    chosen = member
                    least = load / weight
        return chosen


def prompt_of(body: bytes | bytearray, n_bytes: int = PREFIX_BYTES) -> memoryview:
    """Return the body of a request from where its prompt begins, so much of it; of all where none is found."""
    start = min((at for at in (body.find(field, 0, _FIELD_WITHIN) for field in _FIELDS) if at >= 0), default=0)
    return memoryview(body)[start : start + n_bytes]
