"""Processes that keep answers of the cache at once, and are killed anywhere: what is found is what was kept."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from typing import Final

import pytest

from velox.policy.cache.entry import Entry, entry_bytes, read_entry
from velox.shm.answer_ring import AnswerMemory, AnswerRing

_KEYS: Final = 400
_WRITERS: Final = 3


def key_of(n: int) -> bytes:
    return hashlib.sha256(b"%d" % n).digest()


def answer_of(n: int) -> Entry:
    """The one answer that there can be for a key: its length and its bytes follow from it."""
    key = key_of(n)
    return Entry(b"application/json", key * (1 + key[0] * 4))


def _write(memory: AnswerMemory, block: int, seed: int) -> None:
    ring, chance = AnswerRing(memory, block), random.Random(seed)
    while True:
        n = chance.randrange(_KEYS)
        ring.put("all", (key_of(n).hex(),), entry_bytes(key_of(n), answer_of(n)))


def _start(memory: AnswerMemory, block: int, seed: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            _write(memory, block, seed)
        finally:
            os._exit(1)
    return pid


def look(seconds: float, least_kills: int, least_hits: int) -> tuple[int, int, int]:
    """Read while writers are killed and replaced. Return hits, misses and kills; a wrong answer is an error."""
    memory = AnswerMemory(1 << 20, 256, _WRITERS, _WRITERS)
    reader, chance = AnswerRing(memory, 0), random.Random(1)
    children = [_start(memory, block, block) for block in range(_WRITERS)]
    n_hits = n_misses = n_kills = 0
    until_s = time.monotonic() + seconds
    try:
        while time.monotonic() < until_s and (n_kills < least_kills or n_hits < least_hits):
            for _ in range(chance.randrange(200)):
                n = chance.randrange(_KEYS)
                found = reader.get("all", key_of(n).hex(), 60.0)
                entry = None if found is None else read_entry(key_of(n), found.text)
                if entry is None:
                    n_misses += 1
                else:
                    assert entry == answer_of(n), f"another answer than that of {n}"
                    n_hits += 1
            block = chance.randrange(_WRITERS)
            os.kill(children[block], signal.SIGKILL)
            os.waitpid(children[block], 0)
            n_kills += 1
            children[block] = _start(memory, block, chance.randrange(1 << 30))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return n_hits, n_misses, n_kills


@pytest.mark.slow
def test_no_answer_is_torn_though_writers_are_killed_at_random() -> None:
    n_hits, _, n_kills = look(600.0, least_kills=100, least_hits=2000)
    assert n_hits >= 2000 and n_kills >= 100


@pytest.mark.more
def test_no_answer_of_a_million_is_torn() -> None:
    """The same for as long as it takes."""
    n_hits, _, _ = look(1800.0, least_kills=1000, least_hits=1_000_000)
    assert n_hits >= 1_000_000
