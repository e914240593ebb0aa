"""A message is read whole, once, in order; without room it is dropped."""

from __future__ import annotations

import random

from velox.shm.span_ring import span_rings


def test_messages_come_in_order_across_the_end_of_the_ring() -> None:
    ring, other = span_rings(2, 100)
    chance = random.Random(7)
    position, waiting = 0, []
    for n in range(2000):
        message = bytes([n % 256]) * chance.randrange(0, 40)
        if ring.put(message):
            waiting.append(message)
        else:
            found = ring.read(position, 10)
            assert [each for each, _ in found] == waiting
            position, waiting = found[-1][1], []
            ring.free(position)
    assert other.n_waiting == 0


def test_what_was_not_given_back_is_read_again_and_takes_room() -> None:
    (ring,) = span_rings(1, 32)
    assert ring.put(b"a" * 12) and ring.put(b"b" * 12)
    assert not ring.put(b"")
    ((first, end),) = ring.read(ring.freed, 1)
    ring.free(end)
    assert first == b"a" * 12
    assert [each for each, _ in ring.read(ring.freed, 10)] == [b"b" * 12]
    assert ring.put(b"c" * 12) and not ring.put(b"d")
