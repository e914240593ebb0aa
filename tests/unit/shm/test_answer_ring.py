"""Texts that several processes keep in one ring: what is found, what gives way, what another owner sees."""

from __future__ import annotations

import os
import random
import signal
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.shm.answer_ring import AnswerMemory, AnswerRing, ring_bytes


def rings(size: int = 4096, entries: int = 64, blocks: int = 2, patience_s: float = 0.005) -> list[AnswerRing]:
    memory = AnswerMemory(size, entries, blocks, blocks)
    return [AnswerRing(memory, block, patience_s) for block in range(blocks)]


def text_of(ring: AnswerRing, object_id: str, owner: str = "a", most_age_s: float = 60.0) -> bytes | None:
    found = ring.get(owner, object_id, most_age_s)
    return None if found is None else found.text


def test_each_process_finds_what_any_has_kept() -> None:
    """By each of its ids, and for its owner alone."""
    one, other = rings()
    assert not one.is_used
    assert one.put("a", ("resp_1", "msg_1"), b"hello")

    assert other.is_used
    assert (text_of(other, "resp_1"), text_of(other, "msg_1")) == (b"hello", b"hello")
    assert (text_of(other, "resp_1", owner="b"), text_of(other, "resp_2")) == (None, None)


def test_one_id_may_have_a_text_for_each_owner() -> None:
    """Nobody takes the place of another's by naming his ids."""
    one, other = rings()
    one.put("a", ("x",), b"of a")
    other.put("b", ("x",), b"of b")
    assert (text_of(one, "x", "a"), text_of(one, "x", "b")) == (b"of a", b"of b")


def test_newest_text_takes_the_place_of_the_oldest() -> None:
    """The ring has a bound in bytes; whatever is read is whole."""
    one, other = rings()
    for n in range(64):
        (one, other)[n % 2].put("a", (f"x{n}",), bytes([n]) * 500)
    found = [text_of(one, f"x{n}") for n in range(64)]

    assert found[63] == bytes([63]) * 500
    assert 6 <= sum(each is not None for each in found) <= 8
    assert all(each in (None, bytes([n]) * 500) for n, each in enumerate(found))


def test_text_of_half_a_ring_ago_is_old() -> None:
    """Who is asked for is written again, before it is lost."""
    one, _ = rings()
    one.put("a", ("x",), b"x" * 100)
    assert [one.get("a", "x", 60.0) and not one.get("a", "x", 60.0).is_old] == [True]  # type: ignore[union-attr]
    for n in range(3):
        one.put("a", (f"y{n}",), b"y" * 1000)
    found = one.get("a", "x", 60.0)
    assert found is not None
    assert found.is_old


def test_text_that_is_too_old_is_not_found() -> None:
    """Its age is the reader's to bound."""
    one, _ = rings()
    one.put("a", ("x",), b"x")
    assert text_of(one, "x", most_age_s=0.0) is None


def test_text_that_is_too_long_is_not_kept() -> None:
    """A fourth of the ring at most: one caller's answer must not drive out all others."""
    one, _ = rings()
    assert (one.put("a", ("x",), b"x" * 1025), one.put("a", ("x",), b"")) == (False, False)
    assert one.put("a", ("x",), b"x" * 1024)


def test_forgotten_text_is_found_by_nobody() -> None:
    """Whichever process wrote its row. Another owner forgets nothing."""
    one, other = rings()
    one.put("a", ("x", "y"), b"x")
    other.forget("b", "x")
    assert text_of(one, "x") == b"x"
    other.forget("a", "x")
    assert (text_of(one, "x"), text_of(other, "x"), text_of(one, "y")) == (None, None, b"x")


def test_rows_have_a_bound() -> None:
    """The row of the oldest text gives way: many small texts fill no more memory than they have."""
    one, _ = rings(size=1 << 20, entries=8)
    for n in range(1000):
        one.put("a", (f"x{n}",), b"x")
    assert sum(text_of(one, f"x{n}") is not None for n in range(1000)) <= 32
    assert text_of(one, "x999") == b"x"


def test_process_that_was_killed_while_writing_leaves_nothing_that_is_read() -> None:
    """It had taken a place, and wrote no row; another one's text is not touched."""
    one, other = rings()
    one.put("a", ("x",), b"x" * 100)
    other._take(200)
    one.put("a", ("y",), b"y" * 100)
    assert (text_of(other, "x"), text_of(other, "y")) == (b"x" * 100, b"y" * 100)


def test_text_that_a_late_process_wrote_over_is_not_read() -> None:
    """It stood still for a whole turn of the ring: the checksum tells."""
    one, _ = rings()
    one.put("a", ("x",), b"x" * 100)
    one._memory.ring[50:60] = b"y" * 10
    assert text_of(one, "x") is None


def test_children_see_what_is_kept() -> None:
    """The memory is shared by fork."""
    one, other = rings()
    pid = os.fork()
    if not pid:
        other.put("a", ("x",), b"of a child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert text_of(one, "x") == b"of a child"


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.binary(min_size=1, max_size=900)), max_size=40)


@settings(max_examples=50)
@given(steps=STEPS)
def test_what_is_found_is_what_was_kept_last(steps: list[tuple[int, int, bytes]]) -> None:
    """Or nothing, where it gave way; never a part, or an older one."""
    made, latest = rings(), dict[str, bytes]()
    for which, name, text in steps:
        made[which].put("a", (f"x{name}",), text)
        latest[f"x{name}"] = text
        assert text_of(made[1 - which], f"x{name}") == text
    for name, text in latest.items():
        assert text_of(made[0], name) in (None, text)


def test_bound_is_all_that_is_mapped() -> None:
    memory = AnswerMemory(4096, 64, 2, 4)
    assert ring_bytes(4096, 64, 2, 4) == len(memory.mapped)


def _hammer(ring: AnswerRing, name: str, n: int) -> None:
    """Keep texts that tell whose they are, and read those of all."""
    for turn in range(n):
        text = f"{name}:{turn % 20}:".encode() * (1 + turn % 200)
        ring.put(name, (f"{name}{turn % 20}",), text)
        for other in "abcd":
            found = ring.get(other, f"{other}{turn % 20}", 60.0)
            if found is not None and set(found.text.split(b":")[:-1:2]) != {other.encode()}:
                os._exit(1)
    os._exit(0)


@pytest.mark.more
def test_processes_that_write_at_once_and_are_killed_never_mix_texts() -> None:
    """Whatever is found is whole, and its owner's; a killed one's place is passed over."""
    made, children = rings(size=1 << 16, entries=256, blocks=4), list[int]()
    for ring, name in zip(made, "abcd", strict=True):
        pid = os.fork()
        if not pid:
            _hammer(ring, name, 4000)
        children.append(pid)
    reader = AnswerRing(made[0]._memory, 0)
    killed = children[3]
    until = time.monotonic() + 60.0
    while reader.get("d", "d5", 60.0) is None and time.monotonic() < until:
        os.sched_yield()
    os.kill(killed, signal.SIGKILL)
    ends = {pid: os.waitpid(pid, 0)[1] for pid in children}
    assert ends.pop(killed) in (0, signal.SIGKILL)
    assert set(ends.values()) == {0}
    assert reader.put("e", ("e",), b"x" * 100)
    assert text_of(made[1], "e", owner="e") == b"x" * 100


def _append(ring: AnswerRing, name: bytes, n: int, start: int) -> None:
    os.read(start, 1)  # until it is closed: all begin together
    for turn in range(n):
        while True:
            found = ring.get("a", "x", 60.0)
            if found is not None and ring.swap("a", "x", found, found.text + b"%b%d," % (name, turn)):
                break
    os._exit(0)


def test_changes_of_processes_at_one_instant_are_all_there() -> None:
    """K6: each is made of the text as it is then, whoever changed it before."""
    n, names = 300, (b"a", b"b", b"c")
    # As long as it takes: on a busy machine one may stand still for more than 5 ms.
    made = rings(size=1 << 22, entries=4096, blocks=3, patience_s=60.0)
    made[0].put("a", ("x",), b",")
    read, write = os.pipe()
    children = []
    for ring, name in zip(made, names, strict=True):
        pid = os.fork()
        if not pid:
            os.close(write)
            _append(ring, name, n, read)
        children.append(pid)
    os.close(read)
    os.close(write)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    text = text_of(made[0], "x")
    assert text is not None
    assert sorted(text.strip(b",").split(b",")) == sorted(b"%b%d" % (name, turn) for name in names for turn in range(n))


def test_text_that_was_changed_meanwhile_is_not_replaced() -> None:
    one, other = rings()
    one.put("a", ("x",), b"first")
    found = one.get("a", "x", 60.0)
    assert found is not None
    other.put("a", ("x",), b"second")
    assert not one.swap("a", "x", found, b"lost")
    other.forget("a", "x")
    assert not one.swap("a", "x", found, b"lost") and text_of(one, "x") is None


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_process_that_is_stopped_in_a_change_holds_nobody_up(number: signal.Signals) -> None:
    """Of one that was killed the kernel takes the lock; one that stands still is waited for some milliseconds."""
    one, other = rings()
    one.put("a", ("x",), b"first")
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        with other._changing(other._number("x")):
            os.write(write, b"!")
            os.kill(os.getpid(), number)
    assert os.read(read, 1) == b"!"
    os.waitpid(pid, os.WUNTRACED)
    try:
        found = one.get("a", "x", 60.0)
        began_s = time.monotonic()
        assert found is not None and one.swap("a", "x", found, b"second")
        assert time.monotonic() - began_s < 1.0
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert text_of(other, "x") == b"second"


def test_texts_are_forgotten_by_owner_label_and_age() -> None:
    """All that the given ones are true of, whichever process wrote them; the others stay."""
    one, other = rings(size=1 << 16)

    def keep() -> None:
        one.put("a", ("1",), b"x", "red")
        other.put("a", ("2",), b"x", "blue")
        one.put("b", ("3",), b"x", "red")

    def left() -> list[str]:
        return [n for owner, n in (("a", "1"), ("a", "2"), ("b", "3")) if text_of(other, n, owner)]

    keep()
    assert (one.forget_where(["a"]), left()) == (2, ["3"])
    keep()
    assert (other.forget_where(label="red"), left()) == (2, ["2"])
    keep()
    assert (one.forget_where(["a"], "red"), left()) == (1, ["2", "3"])
    keep()
    assert (one.forget_where(least_age_s=60.0), len(left())) == (0, 3)
    assert (one.forget_where(), left()) == (3, [])
    assert one.forget_where() == 0, "they are gone already"
    keep()
    assert (one.forget_where(["a", "b"], "red"), left()) == (2, ["2"])


@pytest.mark.parametrize("owners", [(), ("a",), ("b", "a"), ("b",)])
@pytest.mark.parametrize("label", ["", "red", "blue"])
def test_text_that_was_asked_for_before_it_was_purged_is_not_kept(owners: tuple[str, ...], label: str) -> None:
    """In any process. One that was asked for later is, as are those of which not all is true."""
    one, other = rings(size=1 << 16)
    asked_ns = time.monotonic_ns()
    one.forget_where(owners, label)
    is_meant = (not owners or "a" in owners) and label in ("", "red")
    assert other.put("a", ("x",), b"x", "red", asked_ns) == (not is_meant)
    assert text_of(one, "x") == (None if is_meant else b"x")
    assert other.put("a", ("x",), b"newer", "red", time.monotonic_ns())
    assert text_of(one, "x") == b"newer"


def test_purge_by_age_is_of_what_is_kept() -> None:
    """What is kept only now is not old, whenever it was asked for."""
    one, other = rings()
    asked_ns = time.monotonic_ns()
    one.forget_where(least_age_s=1e-9)
    assert other.put("a", ("x",), b"x", "red", asked_ns)
    assert text_of(one, "x") == b"x"


def test_text_that_is_purged_while_it_is_written_is_not_found() -> None:
    """Its writer has looked for a purge, there was none, and it stands still just before the row is shown."""
    one, other = rings()
    asked_ns = time.monotonic_ns()
    owner, tag = one._number("a"), one._number("x")

    def written() -> int:
        row = owner, one._take(1), 1, zlib.crc32(bytes(1)), time.monotonic_ns()
        return one._write(tag, row, 0, tag - 1)

    written()
    assert text_of(other, "x") is None, "of a process that is killed now nothing is found"
    at = written()
    assert not one._is_purged(owner, 0, asked_ns)
    assert other.forget_where() == 0, "nobody has found it"
    assert one._atomic.cas_u64((at + 6) * 8, tag - 1, 0) == tag, "who purges has been there"
    assert text_of(other, "x") is None
    assert not one._show(written(), tag, owner, 0, asked_ns), "a row after the purge has the mark before it"
    assert text_of(other, "x") is None
    assert one._show(written(), tag, owner, 0, time.monotonic_ns())
    assert text_of(other, "x") == bytes(1)


def _keep_on(ring: AnswerRing) -> None:
    """Keep texts that tell when they were asked for."""
    while True:
        for n in range(20):
            asked_ns = time.monotonic_ns()
            ring.put("a", (f"x{n}",), b"%d" % asked_ns, "red", asked_ns)


def test_purges_that_processes_are_killed_in_bring_nothing_back() -> None:
    """Whatever is found after a purge was asked for after it began, while three write and are killed anywhere."""
    made, children = rings(size=1 << 16, entries=256, blocks=4), dict[int, AnswerRing]()
    chance = random.Random(1)

    def start(ring: AnswerRing) -> None:
        pid = os.fork()
        if not pid:
            _keep_on(ring)
        children[pid] = ring

    try:
        for ring in made[1:]:
            start(ring)
        n_found = n_purged = 0
        for turn in range(60):
            before_ns = time.monotonic_ns()
            if turn % 12 == 0:
                pid = chance.choice(list(children))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                start(children.pop(pid))
            began_ns = time.monotonic_ns()
            n_purged += made[0].forget_where(*chance.choice([((), ""), (("a",), ""), ((), "red"), (("a",), "red")]))
            for n in range(20):
                text = text_of(made[0], f"x{n}")
                if text is not None:
                    n_found += 1
                    assert int(text) > began_ns > before_ns
        assert n_purged > 0 and n_found > 0
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
