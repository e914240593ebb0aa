"""The pages of a list that are read for one request, where a caller sees its own things only.

    open()   in place of a connection's: begins with the page that the client has asked for

One page after the other goes up as the client would ask for it: with its headers, at the same upstream, with the same
key. For all others it is one attempt with one reply: that of the page which the client gets, without what is others'.
An error or a failure of one page takes its place. A page that can't be read is passed on: the list's filter refuses it.

Long pages are read in the thread for such work, and looked through in slices: OpenAI's have up to 10,000 files.

Knows: how many pages are read, and what comes of a page that fails. Does not know: which page is the next, or the
client's (protocol/list_pages.py), whose a thing is (ownership.py), or how the stream ends (several_calls.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from velox.errors import Reason, VeloxError
from velox.gateway.access.ownership import ListFilter
from velox.gateway.cpu_work import TranslationThread, in_turns, is_large
from velox.gateway.internal_request import Answer
from velox.gateway.several_calls import SeveralCalls
from velox.heads import ReplyHead
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import ReplySink, UpstreamRequest, UpstreamStream
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import Timeouts
from velox.protocol.list_pages import PageWalk

__all__ = ["OwnPages"]

_T = TypeVar("_T")
_MOST_PAGES: Final = 100  # of Google's smallest pages: 1,000 things of others
_MOST_S: Final = 20.0  # no further page is asked for: SDKs wait for a minute at least
_MOST_PAGE_BYTES: Final = 16 * 1024 * 1024  # as much as the filter of a list reads
_MOST_BYTES: Final = 64 * 1024 * 1024  # of all pages
_OK: Final = 200


class OwnPages:
    """The pages of one attempt.

    walk: decides which are read. listed: leaves out of a page what is others'. build: makes the request for a query,
    just before it is sent: a signature does not hold for long. pool, timeouts: of the upstream. on_head: called with
    the head of each page that is good. on_lost: called instead of the sink, where the walk has ended at its bounds, and
    nothing would lead the client on. on_bug: called with an unexpected error.
    """

    __slots__ = ("_build", "_calls", "_listed", "_on_head", "_on_lost", "_thread", "_turns", "_walk")

    def __init__(
        self,
        walk: PageWalk,
        listed: ListFilter,
        build: Callable[[bytes], UpstreamRequest],
        pool: Pool,
        timeouts: Timeouts,
        thread: TranslationThread,
        turns: TurnBudget,
        *,
        on_head: Callable[[ReplyHead], None],
        on_lost: Callable[[VeloxError], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._walk: Final = walk
        self._listed: Final = listed
        self._turns: Final = turns
        self._build: Final = build
        self._thread: Final = thread
        self._on_head: Final = on_head
        self._on_lost: Final = on_lost
        self._calls: Final = SeveralCalls(pool, timeouts, _MOST_PAGE_BYTES, on_bug)

    def __repr__(self) -> str:
        return f"<OwnPages {'over' if self._calls.is_over else 'under way'}>"

    def open(self, sink: ReplySink) -> UpstreamStream:
        """Begin. The sink gets the reply once it is known which page that is."""
        return self._calls.begin(sink, self._read)

    async def _read(self) -> None:
        """Read page after page; the client gets the one at which the walk ends."""
        loop = asyncio.get_running_loop()
        walk, until_s, n_pages = self._walk, loop.time() + _MOST_S, 0
        chosen: Answer | None = None
        while True:
            answer = await self._calls.ask(self._build(walk.query))
            page = await self._work(answer.body, partial(_object_in, answer.body)) if answer.status == _OK else None
            if page is None:
                self._calls.reply(answer.status, answer.headers, answer.body)
                return
            self._on_head(ReplyHead.of(answer.status, answer.headers, None))
            n_pages += 1
            then = walk.following(page)
            has_own = await in_turns(self._listed.leave_own(page), self._turns)
            wants_more = walk.take(page, then, has_own=has_own)
            if walk.page is page:
                chosen = answer
            assert chosen is not None, "the first page that is taken is the client's until there is another one"
            is_bound = n_pages >= _MOST_PAGES or self._calls.n_bytes >= _MOST_BYTES or loop.time() >= until_s
            if wants_more and is_bound and not walk.leads_on:
                self._lose(n_pages)
                return
            if not wants_more or is_bound:
                body = await self._work(chosen.body, partial(_written, walk.page))
                self._listed.note_filtered(body)
                self._calls.reply(chosen.status, chosen.headers, body)
                return

    async def _work(self, body: bytes, work: Callable[[], _T]) -> _T:
        """Do what takes as long as a page is long."""
        return await self._thread.run(work) if is_large((body,)) else work()

    def _lose(self, n_pages: int) -> None:
        """End it where only the id of somebody else's thing would lead on, which nobody else may know."""
        if self._calls.end() is not None:
            message = (
                f"the first {n_pages} pages of this list have nothing of this caller's, and no more were read;"
                " ask for larger pages (`limit`)"
            )
            self._on_lost(VeloxError(Reason.UPSTREAM_TOTAL_TIMEOUT, message))


def _written(page: Mapping[str, object]) -> bytes:
    return json.dumps(page).encode()


def _object_in(body: bytes) -> dict[str, object] | None:
    """Return a page; None for what is no page of a list, or none that its filter takes."""
    try:
        page = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(page, dict) or any(isinstance(each, dict) for each in page.values()):
        return None
    return page
