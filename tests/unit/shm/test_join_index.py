"""Which worker has a call: found by the others, until it is over."""

from __future__ import annotations

import secrets

from velox.shm.join_index import JoinIndex, JoinMemory, JoinPlace

PLACE = JoinPlace(b"\x0000a1f", b"t" * 16)


def test_call_is_found_by_others_until_it_is_dropped() -> None:
    memory = JoinMemory(3)
    has, asks = JoinIndex(memory, 1), JoinIndex(memory, 2)
    has.announce(PLACE)
    digest = secrets.token_bytes(32)
    assert asks.find(digest) == []
    has.put(digest)
    has.put(digest)
    assert asks.find(digest) == [PLACE]
    assert has.find(digest) == [], "its own it knows"
    has.drop(digest)
    assert asks.find(digest) == [PLACE], "there were two"
    has.drop(digest)
    has.drop(digest)
    assert asks.find(digest) == []


def test_successor_forgets_what_a_killed_process_has_left() -> None:
    memory = JoinMemory(2)
    before, asks = JoinIndex(memory, 0), JoinIndex(memory, 1)
    digest = secrets.token_bytes(32)
    before.announce(PLACE)
    before.put(digest)
    JoinIndex(memory, 0).announce(PLACE._replace(name=b"\x00other"))
    assert asks.find(digest) == []


def test_full_bucket_loses_a_hint_and_nothing_else() -> None:
    memory = JoinMemory(2)
    has, asks = JoinIndex(memory, 0), JoinIndex(memory, 1)
    has.announce(PLACE)
    alike = [secrets.token_bytes(28) + bytes(4) for _ in range(5)]
    for each in alike:
        has.put(each)
    assert [bool(asks.find(each)) for each in alike] == [True] * 4 + [False]
    has.drop(alike[4])
    has.drop(alike[0])
    has.put(alike[4])
    assert [bool(asks.find(each)) for each in alike] == [False, True, True, True, True]


def test_many_calls_are_found_and_all_are_dropped() -> None:
    memory = JoinMemory(2)
    has, asks = JoinIndex(memory, 0), JoinIndex(memory, 1)
    has.announce(PLACE)
    digests = [secrets.token_bytes(32) for _ in range(500)]
    for each in digests:
        has.put(each)
    assert sum(bool(asks.find(each)) for each in digests) > 490
    for each in digests:
        has.drop(each)
    assert not any(asks.find(each) for each in digests)
