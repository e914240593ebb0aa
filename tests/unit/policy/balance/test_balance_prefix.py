"""The prompt's first bytes: who was sent them, within a fixed memory, and how that weighs against load."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.candidates import Candidates
from velox.policy.balance.prefix import (
    HASHED_BYTES,
    LENGTHS,
    PREFIX_BYTES,
    PrefixAffinity,
    PrefixTable,
    marks,
    member_ids,
    prompt_of,
)

TEXT = random.Random(7).randbytes(3 * PREFIX_BYTES)


def cells(n: int = 1 << 14) -> memoryview:
    return memoryview(bytearray(8 * n)).cast("Q")


def text(number: int, n_bytes: int) -> bytes:
    return random.Random(number).randbytes(n_bytes)


@pytest.mark.parametrize(
    ("n_bytes", "n_marks"),
    [(0, 0), (255, 0), (256, 1), (257, 1), (383, 1), (384, 2), (8191, 10), (8192, 11), (9999, 11)],
)
def test_prompt_has_a_mark_for_each_length_that_it_reaches(n_bytes: int, n_marks: int) -> None:
    """A bounded number, however long it is."""
    assert len(marks(TEXT[:n_bytes])) == n_marks


@settings(deadline=None)
@given(alike=st.integers(0, 10_000), more=st.integers(0, 1000), other=st.integers(0, 1000))
def test_marks_are_alike_as_far_as_prompts_are(alike: int, more: int, other: int) -> None:
    """Those of lengths that both have in common, and no other."""
    one = marks(TEXT[:alike] + b"a" * more)
    two = marks(memoryview(TEXT[:alike] + b"b" * other))

    n_common = sum(length <= alike for length in LENGTHS)
    assert one[:n_common] == two[:n_common]
    assert not set(one[n_common:]) & set(two[n_common:])


def test_prompts_that_differ_at_the_start_have_no_mark_in_common() -> None:
    """Each mark is of all from the first byte on."""
    assert not set(marks(b"a" + TEXT[1:])) & set(marks(b"b" + TEXT[1:]))


def test_table_knows_who_was_sent_what_and_for_how_far() -> None:
    """The longest beginning that somebody has, and all who have it."""
    table = PrefixTable(cells())
    table.sent(0, marks(TEXT[:2048]), 1000.0)
    table.sent(3, marks(TEXT[:2048]), 1000.0)
    table.sent(3, marks(TEXT[:4096]), 1001.0)
    found = marks(TEXT[:9000])

    assert table.deepest(found) == LENGTHS.index(4096) + 1
    assert table.holders(found[LENGTHS.index(4096)]) == [3]
    assert sorted(table.holders(found[LENGTHS.index(2048)])) == [0, 3]
    assert table.deepest(marks(text(1, 9000))) == 0


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4000), st.integers(0, 8191), st.integers(0, 100))),
    size=st.sampled_from([8, 64, 1024]),
)
def test_table_tells_no_more_than_what_was_sent(steps: list[tuple[int, int, int, int]], size: int) -> None:
    """Whatever was forgotten for the lack of cells, what is told is true; memory is what was given."""
    memory = cells(size)
    table = PrefixTable(memory)
    sent: dict[int, set[int]] = {}
    now_s = 1000.0
    for member, start, length, pause_s in steps:
        found = marks(TEXT[start : start + length])
        now_s += pause_s
        table.sent(member, found, now_s)
        for mark in found:
            sent.setdefault(mark, set()).add(member)

        depth = table.deepest(found)
        assert depth <= len(found)
        for mark in found:
            holders = table.holders(mark)
            assert len(holders) == len(set(holders)) <= 4
            assert set(holders) <= sent[mark]
    assert len(memory) == size


@pytest.mark.slow
def test_table_that_is_full_forgets_the_oldest() -> None:
    """Ten times as many prompts as fit: the last are all known, the first are not."""
    table = PrefixTable(cells(4096))
    prompts = [marks(text(number, 8192)) for number in range(4096)]
    for number, found in enumerate(prompts):
        table.sent(number % 16, found, 1000.0 + number)

    def known(some: list[list[int]]) -> float:
        return sum(table.deepest(found) == len(LENGTHS) for found in some) / len(some)

    assert known(prompts[-100:]) > 0.95
    assert known(prompts[:2000]) == 0.0


@pytest.mark.slow
def test_prompt_in_use_outlives_those_that_are_not() -> None:
    """Each use makes it young again."""
    table = PrefixTable(cells(4096))
    used = marks(TEXT[:8192])
    for number in range(4096):
        table.sent(number % 16, marks(text(number, 8192)), 1000.0 + number)
        if number % 64 == 0:
            table.sent(5, used, 1000.0 + number)

    assert table.deepest(used) == len(LENGTHS)


def test_workers_share_what_they_know() -> None:
    """Two tables over the same memory are one; so is the time, which comes round after 12 days."""
    memory = cells()
    found = marks(TEXT)
    PrefixTable(memory).sent(2, found, 2.0**20 - 1)
    PrefixTable(memory).sent(4, found, 2.0**20 + 1)

    assert sorted(PrefixTable(memory).holders(found[-1])) == [2, 4]


@pytest.mark.parametrize("memory", [memoryview(bytearray(64)), cells(4), cells(24)])
def test_memory_of_another_shape_is_refused(memory: memoryview) -> None:
    """A power of two of 64-bit cells."""
    with pytest.raises(ValueError, match="power of two"):
        PrefixTable(memory)


def affinity(**options: float) -> PrefixAffinity:
    return PrefixAffinity(PrefixTable(cells()), range(16), **options)


def test_conversation_stays_with_its_member() -> None:
    """Each turn has the one before it as its beginning, so it goes where that is cached."""
    balancer = affinity()
    candidates = Candidates([1.0] * 8, [0] * 8)
    first = balancer.pick(candidates, 1000.0, 0.4, TEXT[:600])

    turns = [balancer.pick(candidates, 1000.0, turn / 20, TEXT[: 600 + 500 * turn]) for turn in range(20)]

    assert set(turns) == {first}


def test_new_prompt_goes_to_the_least_loaded() -> None:
    """Also one that shares a beginning with others, but a short one."""
    balancer = affinity()
    inflight = [0, 2]
    candidates = Candidates([1.0, 1.0], inflight)
    assert balancer.pick(candidates, 1000.0, 0.5, TEXT[:8192]) == 0
    inflight[:] = [3, 2]

    assert balancer.pick(candidates, 1000.0, 0.5, TEXT[:2000] + text(1, 6192)) == 1
    assert balancer.pick(candidates, 1000.0, 0.5, TEXT[:4000] + text(2, 4192)) == 0
    assert balancer.pick(candidates, 1000.0, 0.5, text(3, 8192)) == 1
    assert balancer.pick(candidates, 1000.0, 0.5, b"short") == 1


def test_member_at_its_bound_is_passed_over_and_another_learns_the_prompt() -> None:
    """Half of one prompt for all: it spreads, member by member, as load asks for it."""
    balancer = affinity()
    inflight = [0] * 4
    candidates = Candidates([1.0] * 4, inflight)

    for _ in range(400):
        member = balancer.pick(candidates, 1000.0, 0.5, TEXT)
        assert member is not None
        inflight[member] += 1
        assert inflight[member] <= max(8, -(-1.5 * sum(inflight) // 4))

    assert sorted(inflight)[1] >= 50


def test_longest_match_wins_over_a_shorter_one() -> None:
    """Until its member is out; then the shorter match is better than none."""
    balancer = affinity()
    weights = [1.0, 1.0, 1.0]
    inflight = [0, 9, 9]
    candidates = Candidates(weights, inflight)
    balancer.pick(candidates, 1000.0, 0.5, TEXT[:4096])
    inflight[:] = [9, 0, 9]
    balancer.pick(candidates, 1000.0, 0.5, TEXT[:4096] + text(1, 4096), tried={0})
    inflight[:] = [0, 5, 0]

    assert balancer.pick(candidates, 1000.0, 0.5, TEXT[:4096] + text(1, 4096)) == 1
    inflight[:] = [1, 5, 0]
    weights[1] = 0.0
    assert balancer.pick(candidates, 1000.0, 0.5, TEXT[:4096] + text(1, 4096)) == 0


def test_member_that_the_group_no_longer_has_is_passed_over() -> None:
    """After a reload the table may have ids that no member has."""
    memory = cells()
    PrefixTable(memory).sent(7, marks(TEXT), 1000.0)
    balancer = PrefixAffinity(PrefixTable(memory), [5, 3])

    assert balancer.pick(Candidates([1.0, 1.0], [1, 0]), 1000.0, 0.5, TEXT) == 1


def test_member_keeps_its_prompts_when_others_come_and_go() -> None:
    """By its name, wherever it stands."""
    memory = cells()
    before = PrefixAffinity(PrefixTable(memory), member_ids(["one", "two", "three"]))
    assert before.pick(Candidates([1.0] * 3, [1, 1, 0]), 1000.0, 0.5, TEXT) == 2
    after = PrefixAffinity(PrefixTable(memory), member_ids(["three", "two", "four"]))

    assert after.pick(Candidates([1.0] * 3, [2, 0, 0]), 1000.0, 0.5, TEXT) == 0


def test_ids_differ_also_where_names_come_to_the_same() -> None:
    """20,000 of 65,535: without another look some thousands would be there twice. The least and the most fit a cell."""
    ids = member_ids([f"m{member}" for member in range(20_000)])
    assert len(set(ids)) == 20_000

    table = PrefixTable(cells())
    for each in (0, 65_534):
        table.sent(each, marks(TEXT), 1000.0)
    assert sorted(table.holders(marks(TEXT)[-1])) == [0, 65_534]
    assert 0 <= min(ids) <= max(ids) <= 65_534


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b'{"model":"m","user":"u","messages":[1]}', b'"messages":[1]}'),
        (b'{"prompt":"a","model":"m"}', b'"prompt":"a","model":"m"}'),
        (b'{"temperature":1,"input":["a"],"messages":1}', b'"input":["a"],"messages":1}'),
        (b'{"a":1}', b'{"a":1}'),
        (b" " * 5000 + b'"messages"', b" " * 5000 + b'"messages"'),
        (b'{"messages":' + b"x" * 20_000, b'"messages":' + b"x" * (PREFIX_BYTES - 11)),
    ],
)
def test_prompt_is_found_in_a_body(body: bytes, prompt: bytes) -> None:
    """What stands before it differs between requests that the model reads alike."""
    assert prompt_of(body) == prompt
    assert prompt_of(bytearray(body)) == prompt


def test_turns_of_a_conversation_are_hashed_alike() -> None:
    """What a turn adds stands behind what is hashed, once a prompt is longer than that."""
    system = b'{"model":"m","messages":[{"role":"system","content":"' + b"word " * 500 + b'"},'
    first = system + b'{"role":"user","content":"one"}]}'
    second = system + b'{"role":"user","content":"one"},{"role":"assistant","content":"two"}],"user":"u"}'

    assert prompt_of(first) != prompt_of(second)
    assert prompt_of(first, HASHED_BYTES) == prompt_of(second, HASHED_BYTES)
