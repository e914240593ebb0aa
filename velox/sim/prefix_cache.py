"""The prompts' beginnings that the simulated server still has the keys and values of.

Knows: blocks, hashes, who was used last. Does not know: requests, or what a token that is not cached costs.

As vLLM's automatic prefix caching: a prompt is cut into blocks of 16 tokens, a block is known by its own text and the
hash of the block before it, so the same words later in another prompt are another block. Only full blocks are kept, and
the last token of a prompt is always computed, or there would be nothing to begin the answer with. The least recently
used block goes first, of one prompt the last one, so that what many prompts have in common stays longest.

Other than there, the tokens of an answer are kept only once they come back in the prompt of a conversation's next turn,
and blocks that are in use may go.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from velox.sim.ask import CHARACTERS_PER_TOKEN

__all__ = ["BLOCK_TOKENS", "PrefixCache"]

BLOCK_TOKENS: Final = 16  # vLLM's default
_BLOCK_CHARACTERS: Final = BLOCK_TOKENS * CHARACTERS_PER_TOKEN


class PrefixCache:
    """The cache of one server, for all its models. n_asked, n_hit: tokens of prompts since the start."""

    def __init__(self, n_tokens: int) -> None:
        """n_tokens: how many it holds; less than a block: none."""
        self._most: Final = n_tokens // BLOCK_TOKENS
        self._blocks: Final[OrderedDict[int, None]] = OrderedDict()  # hashes, least recently used first
        self.n_asked = 0
        self.n_hit = 0

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._blocks)} of {self._most} blocks, {self.n_hit} of {self.n_asked} tokens hit>"

    def ask(self, model: str, prompt: str) -> int:
        """Return how many tokens of the prompt are there, and keep the prompt from now on."""
        if not self._most:
            return 0
        self.n_asked += -(-len(prompt) // CHARACTERS_PER_TOKEN)
        chain = _chain(model, prompt, self._most)
        blocks = self._blocks
        n_found = 0
        for block in chain[: (len(prompt) - 1) // _BLOCK_CHARACTERS]:
            if block not in blocks:
                break
            n_found += 1
        for block in reversed(chain):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self._most:
            blocks.popitem(last=False)
        n_tokens = n_found * BLOCK_TOKENS
        self.n_hit += n_tokens
        return n_tokens


def _chain(model: str, prompt: str, most: int) -> list[int]:
    """Return the hashes of the prompt's full blocks, at most so many."""
    block = hash(model)
    chain = []
    for end in range(_BLOCK_CHARACTERS, min(len(prompt), most * _BLOCK_CHARACTERS) + 1, _BLOCK_CHARACTERS):
        block = hash((block, prompt[end - _BLOCK_CHARACTERS : end]))
        chain.append(block)
    return chain
