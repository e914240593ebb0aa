"""The filter that stores an answer in the cache: what it holds, what its client is told, what it gives back."""

from __future__ import annotations

from typing import Final

import pytest

from velox.gateway.cache.response_cache import FIELD, CacheStoreFilter
from velox.heads import ReplyHead
from velox.net.client.body_budget import FREE_REPLY_BYTES, BodyBudget
from velox.outcomes import CacheResult
from velox.policy.cache.entry import Entry

JSON: Final = (b"content-type", b"application/json")
SSE: Final = (b"content-type", b"text/event-stream")


class Store:
    """Takes what is stored. takes: what it says of it."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.entries: Final[list[tuple[Entry, bool]]] = []

    def __call__(self, entry: Entry, *, is_stream: bool) -> bool:
        self.entries.append((entry, is_stream))
        return self.takes


def filter_of(store: Store, most_bytes: int = 1000, bodies: BodyBudget | None = None) -> CacheStoreFilter:
    return CacheStoreFilter(store, bodies or BodyBudget(1 << 20, 1.0, lambda: 0.0), most_bytes, CacheResult.MISS)


def told(head: ReplyHead | None) -> bytes | None:
    return None if head is None else dict(head.headers).get(FIELD)


@pytest.mark.parametrize(("takes", "expected"), [(True, b"stored"), (False, b"miss")])
def test_answer_is_held_until_it_is_known_whether_it_is_kept(takes: bool, expected: bytes) -> None:
    store = Store(takes=takes)
    stores = filter_of(store)
    assert stores.begin(ReplyHead.of(200, [JSON], 4), is_sse=False, is_plain=True) is None
    assert stores.feed(b'{"', False) == b""
    assert stores.released is None
    assert stores.feed(b'a"', True) == b'{"a"'
    assert told(stores.released) == expected
    assert store.entries == [(Entry(JSON[1], b'{"a"'), False)]


def test_stream_passes_at_once_and_is_kept_at_its_end() -> None:
    store = Store()
    stores = filter_of(store)
    head = stores.begin(ReplyHead.of(200, [SSE], None), is_sse=True, is_plain=True)
    assert told(head) == b"miss"
    assert [stores.feed(b"data: 1\n\n", False), stores.feed(b"", True)] == [b"data: 1\n\n", b""]
    assert store.entries == [(Entry(SSE[1], b"data: 1\n\n"), True)]


@pytest.mark.parametrize("is_sse", [False, True])
def test_answer_that_is_too_long_passes(is_sse: bool) -> None:
    """Nothing of it is held any more."""
    store = Store()
    stores = filter_of(store, most_bytes=10)
    stores.begin(ReplyHead.of(200, [SSE if is_sse else JSON], None), is_sse=is_sse, is_plain=True)
    passed = stores.feed(b"x" * 8, False) + stores.feed(b"y" * 8, False)
    assert passed == b"x" * 8 + b"y" * 8
    assert "0 bytes" in repr(stores)
    assert stores.feed(b"z", True) == b"z"
    assert not store.entries
    assert is_sse or told(stores.released) == b"miss"


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
    stores = filter_of(Store())
    assert told(stores.begin(head, is_sse=False, is_plain=is_plain)) == b"miss"
    assert not stores.reads_body


def test_error_says_nothing_of_a_cache() -> None:
    stores = filter_of(Store())
    head = ReplyHead.of(429, [JSON], 4)
    assert stores.begin(head, is_sse=False, is_plain=True) is head
    assert not stores.reads_body


def test_next_attempt_begins_anew() -> None:
    """Of one that was cut nothing is left."""
    store = Store()
    stores = filter_of(store)
    stores.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    stores.feed(b"cut", False)
    stores.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    assert stores.feed(b"{}", True) == b"{}"
    assert store.entries == [(Entry(JSON[1], b"{}"), False)]


def test_what_is_held_has_room_which_is_given_back() -> None:
    bodies = BodyBudget(1 << 20, 1.0, lambda: 0.0)
    stores = filter_of(Store(), 1 << 20, bodies)
    stores.begin(ReplyHead.of(200, [JSON], None), is_sse=False, is_plain=True)
    stores.feed(b"x" * (FREE_REPLY_BYTES + 1000), False)
    assert bodies.taken_bytes == 1000
    stores.close()
    assert bodies.taken_bytes == 0
