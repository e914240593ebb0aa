"""The filter that keeps an answer: what it holds, what its client is told, what it gives back."""

from __future__ import annotations

from typing import Final

import pytest

from velox.gateway.cache.response_cache import FIELD, Keeping
from velox.heads import ReplyHead
from velox.net.client.body_budget import FREE_REPLY_BYTES, BodyBudget
from velox.outcomes import CacheResult
from velox.policy.cache.entry import Entry

JSON: Final = (b"content-type", b"application/json")
SSE: Final = (b"content-type", b"text/event-stream")


class Kept:
    """Takes what is kept. takes: what it says of it."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.entries: Final[list[tuple[Entry, bool]]] = []

    def __call__(self, entry: Entry, *, is_stream: bool) -> bool:
        self.entries.append((entry, is_stream))
        return self.takes


def filter_of(kept: Kept, most_bytes: int = 1000, bodies: BodyBudget | None = None) -> Keeping:
    return Keeping(kept, bodies or BodyBudget(1 << 20, 1.0, lambda: 0.0), most_bytes, CacheResult.MISS)


def told(head: ReplyHead | None) -> bytes | None:
    return None if head is None else dict(head.headers).get(FIELD)


@pytest.mark.parametrize(("takes", "expected"), [(True, b"stored"), (False, b"miss")])
def test_answer_is_held_until_it_is_known_whether_it_is_kept(takes: bool, expected: bytes) -> None:
    kept = Kept(takes=takes)
    keeping = filter_of(kept)
    assert keeping.begin(ReplyHead.of(200, [JSON], 4), is_sse=False, is_plain=True) is None
    assert keeping.feed(b'{"', False) == b""
    assert keeping.released is None
    assert keeping.feed(b'a"', True) == b'{"a"'
    assert told(keeping.released) == expected
    assert kept.entries == [(Entry(JSON[1], b'{"a"'), False)]


def test_stream_passes_at_once_and_is_kept_at_its_end() -> None:
    kept = Kept()
    keeping = filter_of(kept)
    head = keeping.begin(ReplyHead.of(200, [SSE], None), is_sse=True, is_plain=True)
    assert told(head) == b"miss"
    assert [keeping.feed(b"data: 1\n\n", False), keeping.feed(b"", True)] == [b"data: 1\n\n", b""]
    assert kept.entries == [(Entry(SSE[1], b"data: 1\n\n"), True)]


@pytest.mark.parametrize("is_sse", [False, True])
def test_answer_that_is_too_long_passes(is_sse: bool) -> None:
    """Nothing of it is held any more."""
    kept = Kept()
    keeping = filter_of(kept, most_bytes=10)
    keeping.begin(ReplyHead.of(200, [SSE if is_sse else JSON], None), is_sse=is_sse, is_plain=True)
    passed = keeping.feed(b"x" * 8, False) + keeping.feed(b"y" * 8, False)
    assert passed == b"x" * 8 + b"y" * 8
    assert "0 bytes" in repr(keeping)
    assert keeping.feed(b"z", True) == b"z"
    assert not kept.entries
    assert is_sse or told(keeping.released) == b"miss"


@pytest.mark.parametrize(
    ("head", "is_plain"),
    [
        (ReplyHead.of(200, [JSON], 4), False),
        (ReplyHead.of(200, [(b"content-type", b"audio/mpeg")], 4), True),
        (ReplyHead.of(202, [JSON], 4), True),
        (ReplyHead.of(200, [JSON], 1001), True),
    ],
)
def test_what_is_not_kept_passes_unread(head: ReplyHead, is_plain: bool) -> None:
    keeping = filter_of(Kept())
    assert told(keeping.begin(head, is_sse=False, is_plain=is_plain)) == b"miss"
    assert not keeping.reads_body


def test_error_says_nothing_of_a_cache() -> None:
    keeping = filter_of(Kept())
    head = ReplyHead.of(429, [JSON], 4)
    assert keeping.begin(head, is_sse=False, is_plain=True) is head
    assert not keeping.reads_body


def test_next_attempt_begins_anew() -> None:
    """Of one that was cut nothing is left."""
    kept = Kept()
    keeping = filter_of(kept)
    keeping.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    keeping.feed(b"cut", False)
    keeping.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    assert keeping.feed(b"{}", True) == b"{}"
    assert kept.entries == [(Entry(JSON[1], b"{}"), False)]


def test_what_is_held_has_room_which_is_given_back() -> None:
    bodies = BodyBudget(1 << 20, 1.0, lambda: 0.0)
    keeping = filter_of(Kept(), 1 << 20, bodies)
    keeping.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    keeping.feed(b"x" * (FREE_REPLY_BYTES + 1000), False)
    assert bodies.taken_bytes == 1000
    keeping.close()
    assert bodies.taken_bytes == 0
