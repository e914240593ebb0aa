"""One reply that several get: each from its first byte, at its own pace, within an exact bound."""

from __future__ import annotations

import random
from typing import Final

import pytest

from velox.errors import Reason, VeloxError
from velox.heads import ReplyHead
from velox.policy.join.joined_call import CALL_BYTES, Follower, FollowerAlone, JoinedCall, JoinedPiece
from velox.policy.join.table import JoinBounds, JoinTable

HEAD: Final = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
JSON: Final = ReplyHead.of(200, [(b"content-type", b"application/json")], None)
KEY: Final = b"k" * 32
CUT: Final = VeloxError(Reason.UPSTREAM_RESET, "gone")


def table(call_bytes: int = 100, all_bytes: int = 1 << 20) -> JoinTable:
    return JoinTable(JoinBounds(call_bytes, all_bytes))


def begun(made: JoinTable, key: bytes = KEY, partition: str = "a", *, may_retry: bool = False) -> JoinedCall:
    call = made.begin(partition, key, None, may_retry=may_retry)
    assert call is not None
    return call


def ignore() -> None:
    """What a follower is told that nobody waits for."""


class Reader:
    """A follower, and what it has had."""

    def __init__(self, call: JoinedCall) -> None:
        self.n_told = 0
        self.follower: Final[Follower] = call.join(self._tell)
        self.head: ReplyHead | None = None
        self.data = b""
        self.is_whole = False

    def _tell(self) -> None:
        self.n_told += 1

    def read(self, n: int = 1000) -> Reader:
        """Take so many pieces at most."""
        for _ in range(n):
            piece = self.follower.next()
            if piece is None:
                break
            assert isinstance(piece, JoinedPiece)
            self.head = piece.head or self.head
            self.data += piece.data
            if piece.end:
                self.is_whole = True
                self.follower.leave()
                break
        return self


def test_follower_gets_all_from_the_first_byte_whenever_it_comes() -> None:
    made = table()
    call = begun(made)
    early = Reader(call)
    assert early.read().head is None
    call.begin(HEAD, is_sse=True)
    assert early.read().head is None, "nothing has come that an error could not take the place of"
    call.feed(b"one ", False)
    assert (early.n_told, early.read().head, early.data) == (2, HEAD, b"one ")
    call.feed(b"two ", False)
    late = Reader(call).read()
    assert late.data == b"one two "
    call.feed(b"three", True)
    assert (early.read().data, late.read().data) == (b"one two three", b"one two three")
    assert early.is_whole and late.is_whole
    assert call.reply == b"one two three"
    call.close()
    assert made.n_taken == 0 and made.find_equal(KEY) is None


def test_reply_that_is_no_stream_is_given_when_it_is_whole() -> None:
    call = begun(table())
    reader = Reader(call)
    call.begin(JSON, is_sse=False)
    call.feed(b"{", False)
    assert reader.read().head is None
    call.feed(b"}", True)
    assert (reader.read().data, reader.is_whole) == (b"{}", True)


def test_failure_before_the_first_byte_leaves_each_to_itself_and_one_behind_it_cuts() -> None:
    made = table()
    call = begun(made)
    first = Reader(call)
    call.begin(HEAD, is_sse=True)
    call.feed(b"one", False)
    first.read()
    second = Reader(call)
    call.fail(CUT)
    assert second.follower.next() is FollowerAlone.ALONE
    with pytest.raises(VeloxError) as raised:
        first.follower.next()
    assert raised.value.reason is Reason.UPSTREAM_RESET
    assert made.find_equal(KEY) is None
    first.follower.leave()
    second.follower.leave()
    assert (made.n_taken, call.n_bytes) == (0, 0)


def test_other_attempt_begins_anew_for_those_that_have_had_nothing() -> None:
    call = begun(table())
    had, waits = Reader(call), Reader(call)
    call.begin(HEAD, is_sse=True)
    call.feed(b"broken", False)
    had.read()
    call.begin(HEAD, is_sse=True)
    call.feed(b"whole", True)
    assert waits.read().data == b"whole"
    with pytest.raises(VeloxError):
        had.follower.next()


def test_call_that_grows_over_its_bound_is_joined_no_more_and_goes_on_for_its_followers() -> None:
    made = table(call_bytes=100)
    call = begun(made)
    reads, slow = Reader(call), Reader(call)
    call.begin(HEAD, is_sse=True)
    call.feed(b"a" * 60, False)
    slow.read()
    reads.read()
    for _ in range(5):
        call.feed(b"b" * 60, False)
        reads.read()
        assert call.n_bytes <= 100
        assert made.n_taken <= 100 + CALL_BYTES
    assert made.find_equal(KEY) is None
    assert not call.is_open
    call.feed(b"", True)
    assert reads.read().data == b"a" * 60 + b"b" * 300
    with pytest.raises(VeloxError) as raised:
        slow.follower.next()
    assert raised.value.reason is Reason.CLIENT_SLOW
    slow.follower.leave()
    assert made.n_taken == 0


def test_one_that_has_had_nothing_asks_by_itself_when_the_call_grows_too_long() -> None:
    call = begun(table(call_bytes=100))
    reader = Reader(call)
    call.begin(JSON, is_sse=False)
    call.feed(b"x" * 101, False)
    assert reader.follower.next() is FollowerAlone.ALONE
    told = begun(table(call_bytes=100))
    reader = Reader(told)
    told.begin(ReplyHead.of(200, [], 101), is_sse=False)
    assert reader.follower.next() is FollowerAlone.ALONE, "its length says so before"


def test_upstream_waits_for_those_that_read_and_not_for_those_that_do_not() -> None:
    call = begun(table(call_bytes=1000))
    assert call.n_unread(is_read=False) == 0
    reads, stalls = Reader(call), Reader(call)
    call.begin(HEAD, is_sse=True)
    call.feed(b"x" * 100, False)
    assert call.n_unread(is_read=True) == 100
    stalls.follower.stall(True)
    reads.read()
    assert call.n_unread(is_read=True) == 0
    reads.follower.stall(True)
    call.feed(b"x" * 100, False)
    assert call.n_unread(is_read=True) == 0, "its leader reads"
    assert call.n_unread(is_read=False) == 100, "as much as the first of them lacks"


def test_upstream_waits_for_nobody_while_a_reply_that_is_no_stream_is_not_whole() -> None:
    """Nobody can read of it: who waits for readers then waits for ever."""
    call = begun(table())
    reader = Reader(call)
    call.begin(JSON, is_sse=False)
    call.feed(b"x" * 100, False)
    assert reader.read().head is None
    assert (call.n_unread(is_read=True), call.n_unread(is_read=False)) == (0, 0)
    call.feed(b"", True)
    assert (call.n_unread(is_read=True), reader.read().data) == (100, b"x" * 100)
    call.close()


def test_call_goes_on_without_its_leader_while_somebody_follows_or_may_retry() -> None:
    told: list[bool] = []
    call = begun(table())
    call.on_empty = told.append
    reader = Reader(call)
    assert call.leader_left()
    reader.follower.leave()
    assert told == [False, True]
    assert not begun(table()).leader_left()
    kept = begun(table(), may_retry=True)
    kept.on_empty = told.append
    assert kept.leader_left()
    assert told == [False, True, True]


def test_room_is_exact_and_answers_that_are_kept_give_way() -> None:
    """Those of the same partition first; one partition has half at most."""
    made = table(call_bytes=10_000, all_bytes=40_000)
    kept = {}
    for n, partition in enumerate(("a", "b", "c")):
        call = kept[partition] = begun(made, bytes([n]) * 32, partition, may_retry=True)
        call.begin(HEAD, is_sse=True)
        call.feed(b"x" * 8000, True)
        made.keep(call, partition)
    assert made.n_taken == 3 * (8000 + CALL_BYTES)
    call = begun(made, KEY, "a")
    call.begin(HEAD, is_sse=True)
    call.feed(b"x" * 8000, False)
    assert [each.is_open for each in kept.values()] == [False, True, True]
    other = begun(made, b"o" * 32, "a")
    other.begin(HEAD, is_sse=True)
    other.feed(b"x" * 8000, False)
    assert not other.is_open, "its partition has no more"
    for each in (call, other, *kept.values()):
        each.fail(CUT)
        each.close()
    assert made.n_taken == 0


def test_retry_joins_a_call_whose_client_has_left_before_one_that_runs() -> None:
    made = table()
    runs, left = begun(made, may_retry=True), begun(made, may_retry=True)
    left.leader_left()
    assert made.find_retry(KEY) is left
    left.join(ignore)
    other = begun(made, may_retry=True)
    other.leader_left()
    assert made.find_retry(KEY) is other, "two calls left, two retries"
    left.fail(CUT)
    other.fail(CUT)
    assert made.find_retry(KEY) is runs
    assert made.find_retry(b"other") is None
    begun(made, b"equal" * 8)
    assert made.find_retry(b"equal" * 8) is None, "its client can't be known again"


def test_idempotency_key_of_another_request_is_refused_while_the_first_is_there() -> None:
    made = table()
    call = made.begin("a", KEY, b"name", may_retry=True)
    assert call is not None
    assert made.find_named(b"name", KEY) is call
    assert made.find_named(b"other", b"x") is None
    with pytest.raises(VeloxError) as raised:
        made.find_named(b"name", b"x")
    assert (raised.value.reason, raised.value.status) == (Reason.IDEMPOTENCY_MISMATCH, 422)
    call.close()
    assert made.find_named(b"name", b"x") is None


@pytest.mark.parametrize("seed", range(20))
def test_nobody_ever_gets_a_torn_answer_and_nothing_is_left(seed: int) -> None:
    """Readers of all paces come and go, the reply grows over its bound, fails or ends: each has a part from its
    beginning, and only one that is told of the end has all."""
    chance = random.Random(seed)
    made = table(call_bytes=chance.choice((50, 500, 5000)), all_bytes=chance.choice((5_000, 100_000)))
    call = begun(made)
    whole = chance.randbytes(chance.randrange(3000))
    readers: list[Reader] = []
    gone: list[Reader] = []
    call.begin(HEAD, is_sse=True)
    at = 0
    ends = chance.random() < 0.7
    while at < len(whole):
        n = chance.randrange(1, 200)
        call.feed(whole[at : at + n], ends and at + n >= len(whole))
        at += n
        if call.is_open and chance.random() < 0.3:
            readers.append(Reader(call))
        for each in readers:
            if chance.random() < 0.5 and not each.follower.is_cut:
                if chance.random() < 0.05:
                    each.follower.leave()
                    gone.append(each)
                elif not each.is_whole:
                    each.read(1)
        readers = [each for each in readers if each not in gone]
        assert made.n_taken <= 100_000
        assert call.n_bytes <= call.most_bytes
    if call.runs:
        call.fail(CUT)
    for each in readers:
        if not (each.follower.is_cut or call.error is not None or each.is_whole):
            assert each.read().is_whole
    for each in (*readers, *gone):
        assert whole.startswith(each.data)
        assert (each.data == whole) >= each.is_whole
        each.follower.leave()
    call.close()
    assert (made.n_taken, call.n_bytes) == (0, 0)
