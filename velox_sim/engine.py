"""The simulated model server: how many answers it decodes at full speed, its prefix cache, its delays and its outages.

Knows: which answers run, which wait, how fast time passes for those that run. Does not know: replies, tokens, HTTP.

    no capacity        all run at full speed
    capacity N         N run, more wait before their first token: a server with so many slots (llama.cpp, TGI)
    ... and shares     all run; beyond N each is slowed down in proportion: a server that batches without end (vLLM)

Either way N is the knee: below, the throughput grows with the running answers; above, only their delay does.

The prefix cache works as vLLM's automatic prefix caching: a prompt is cut into blocks of 16 tokens, a block is known by
its own text and the hash of the block before it, so the same words later in another prompt are another block. Only full
blocks are kept, and the last token of a prompt is always computed, or there would be nothing to begin the answer with.
The least recently used block is evicted first, of one prompt the last one, so that common prefixes stay longest.
Unlike vLLM, the tokens of an answer are kept only once they come back in the prompt of the next turn, and blocks that
are in use may be evicted.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from velox_sim.options import SimOptions
from velox_sim.request import CHARACTERS_PER_TOKEN
from velox_sim.shapes import UNDISTURBED, AnswerPlan

__all__ = ["BLOCK_TOKENS", "AnswerPlanner", "Engine", "Outage", "PrefixCache"]

# The pace may change meanwhile, so a timer that shares the speed with others looks again after this at the latest.
_LOOK_S: Final = 0.05


class Engine:
    """What the answers of one simulator have in common. capacity: 0: any number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int = 0, *, shares: bool = False) -> None:
        self._loop: Final = loop
        self._slots: Final = capacity if capacity and not shares else 1 << 30
        self._full_speed: Final = capacity if shares else 0
        self._line: Final[OrderedDict[Hashable, Callable[[], None]]] = OrderedDict()
        self._own_s = 0.0  # its own time, which passes slower for the answers while there are too many
        self._read_s = loop.time()  # when that was read last
        self._is_moving = False
        self.n_running = 0
        self.n_held = 0  # tokens in memory, of prompts and answers; kept by those who run

    def __repr__(self) -> str:
        return f"<Engine {self.n_running} running, {len(self._line)} in line>"

    @property
    def n_waiting(self) -> int:
        """How many wait in line."""
        return len(self._line)

    def enter(self, answer: Hashable, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as there is a slot for `answer`: before this returns, if there is one."""
        if self.n_running >= self._slots:
            self._line[answer] = begin
        else:
            self.time()
            self.n_running += 1
            begin()

    def leave(self, answer: Hashable) -> None:
        """Forget an answer that entered: it has ended, or nobody wants it any more."""
        if self._line.pop(answer, None) is not None:
            return
        self.time()
        self.n_running -= 1
        if self._is_moving:
            return  # the next one took no time: it is gone before the call that let it in has returned
        self._is_moving = True
        try:
            while self._line and self.n_running < self._slots:
                _, begin = self._line.popitem(last=False)
                self.n_running += 1
                begin()
        finally:
            self._is_moving = False

    def time(self) -> float:
        """Return the time as it passes for the answers, in seconds."""
        now_s = self._loop.time()
        if not self._full_speed:
            return now_s
        self._own_s += (now_s - self._read_s) / self._slowness
        self._read_s = now_s
        return self._own_s

    def call_at(self, time_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at that time, as it passes for the answers; maybe earlier, where it does not pass evenly."""
        if not self._full_speed:
            return self._loop.call_at(time_s, callback)
        return self._loop.call_later(min(_LOOK_S, (time_s - self.time()) * self._slowness), callback)

    @property
    def _slowness(self) -> float:
        return max(1.0, self.n_running / self._full_speed)


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

    def look_up(self, model: str, prompt: str) -> int:
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


class AnswerPlanner:
    """Decides the plan of one answer after the other."""

    def __init__(self, options: SimOptions) -> None:
        # A source of its own: the ids, and which requests fail, do not depend on whether some are slow, too.
        self._random: Final = random.Random(options.seed)
        self._options: Final = options
        self._token_s: Final = 1 / options.prefill_rate if options.prefill_rate else 0.0
        self._is_undisturbed: Final = not (
            options.prefill_rate or options.prefix_cache or options.slow_rate or options.stall_rate
        )

    def next(self, n_uncached: int, n_context: int) -> AnswerPlan:
        """Return the next answer's. n_uncached: tokens of the prompt to compute; n_context: of prompt and answer."""
        if self._is_undisturbed:
            return UNDISTURBED
        options = self._options
        late_s = n_uncached * self._token_s
        if options.slow_rate and self._random.random() < options.slow_rate:
            late_s += options.slow_by_s
        stops_after = None
        if options.stall_rate and self._random.random() < options.stall_rate:
            stops_after = options.stall_after
        return AnswerPlan(late_s, stops_after, n_context)


class Outage:
    """The periods. clock: monotonic seconds."""

    def __init__(self, up_s: float, down_s: float, clock: Callable[[], float]) -> None:
        self._up_s: Final = up_s
        self._period_s: Final = up_s + down_s
        self._clock: Final = clock
        self._start_s: Final = clock()

    def __repr__(self) -> str:
        return f"<Outage {'now' if self.is_now() else f'in {self.change_in_s():.3f} s'}>"

    def is_now(self) -> bool:
        """Tell whether the simulator is down."""
        return self._at_s() >= self._up_s

    def change_in_s(self) -> float:
        """Return the seconds until it goes down, or comes up again."""
        at_s = self._at_s()
        return (self._up_s if at_s < self._up_s else self._period_s) - at_s

    def _at_s(self) -> float:
        return (self._clock() - self._start_s) % self._period_s
