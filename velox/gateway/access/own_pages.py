"""The pages of a list that are read for one request, where a caller sees its own things only.

    open()     in place of a connection's: begins with the page that the client has asked for
    cancel()   ends it, wherever it is

One page after the other goes up as the client would ask for it: with its headers, at the same upstream, with the same
key. For all others it is one attempt with one reply: that of the page which the client gets, without what is others'.
An error or a failure of one page takes its place. A page that can't be read is passed on: the list's filter refuses it.

Long pages are read in the thread for such work, and looked through in slices: OpenAI's have up to 10,000 files.

Knows: how many pages are read, and what comes of a page that fails. Does not know: which page is the next, or the
client's (protocol/list_pages.py), or whose a thing is (ownership.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from velox.errors import Reason, VeloxError
from velox.gateway.access.ownership import ListFilter
from velox.gateway.cpu_work import TranslationThread, in_turns, is_large
from velox.gateway.internal_request import Answer, ask_for_client
from velox.heads import ReplyHead
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import ReplySink, UpstreamFailure, UpstreamRequest, UpstreamStream
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
# What is said of the body as it came.
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class OwnPages:
    """The pages of one attempt, and its stream.

    walk: decides which are read. listed: leaves out of a page what is others'. build: makes the request for a query,
    just before it is sent: a signature does not hold for long. pool, timeouts: of the upstream. on_head: called with
    the head of each page that is good. on_lost: called instead of the sink, where the walk has ended at its bounds, and
    nothing would lead the client on. on_bug: called with an unexpected error.
    """

    __slots__ = (
        *("_build", "_listed", "_n_bytes", "_on_bug", "_on_head", "_on_lost", "_pool", "_sink", "_task", "_thread"),
        *("_timeouts", "_turns", "_walk"),
    )

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
        self._pool: Final = pool
        self._timeouts: Final = timeouts
        self._thread: Final = thread
        self._on_head: Final = on_head
        self._on_lost: Final = on_lost
        self._on_bug: Final = on_bug
        self._n_bytes = 0
        self._sink: ReplySink | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<OwnPages {'under way' if self._sink is not None else 'over'}>"

    def open(self, sink: ReplySink) -> UpstreamStream:
        """Begin. The sink gets the reply once it is known which page that is."""
        self._sink = sink
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._read(loop), name="pages of a list")
        return self

    # -- UpstreamStream -----------------------------------------------------------------------------

    @property
    def n_unsent(self) -> int:
        """Not known: each page has time-outs of its own, so nobody asks."""
        return 0

    def pause(self) -> None:
        """Nothing goes to the client before all is there."""

    def resume(self) -> None:
        """Nothing was held up."""

    def cancel(self) -> None:
        """Give it up. The sink gets nothing more."""
        self._sink = None
        if self._task is not None:
            self._task.cancel()

    # -- inside -------------------------------------------------------------------------------------

    async def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._read_on(loop)
            except UpstreamFailure as failure:
                self._fail(failure)
            except VeloxError as exc:
                self._fail(UpstreamFailure(exc.reason, exc.message, status=exc.status))
            except Exception as exc:
                self._on_bug(exc)
                self._fail(
                    UpstreamFailure(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
                )

    async def _read_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read page after page; the client gets the one at which the walk ends."""
        walk, until_s, n_pages = self._walk, loop.time() + _MOST_S, 0
        chosen: Answer | None = None
        while True:
            answer = await self._page(walk.query, loop)
            page = await self._work(answer.body, partial(_object_in, answer.body)) if answer.status == _OK else None
            if page is None:
                self._reply(answer, answer.body)
                return
            self._on_head(ReplyHead.of(answer.status, answer.headers, None))
            n_pages += 1
            then = walk.following(page)
            has_own = await in_turns(self._listed.leave_own(page), self._turns)
            wants_more = walk.take(page, then, has_own=has_own)
            if walk.page is page:
                chosen = answer
            assert chosen is not None, "the first page that is taken is the client's until there is another one"
            is_bound = n_pages >= _MOST_PAGES or self._n_bytes >= _MOST_BYTES or loop.time() >= until_s
            if wants_more and is_bound and not walk.leads_on:
                self._lose(n_pages)
                return
            if not wants_more or is_bound:
                body = await self._work(chosen.body, partial(_written, walk.page))
                self._listed.note_filtered(body)
                self._reply(chosen, body)
                return

    async def _page(self, query: bytes, loop: asyncio.AbstractEventLoop) -> Answer:
        request = self._build(query)
        answer = await ask_for_client(self._pool, request, loop, self._timeouts, max_bytes=_MOST_PAGE_BYTES)
        self._n_bytes += len(answer.body)
        return answer

    async def _work(self, body: bytes, work: Callable[[], _T]) -> _T:
        """Do what takes as long as a page is long."""
        return await self._thread.run(work) if is_large((body,)) else work()

    def _reply(self, answer: Answer, body: bytes) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            headers = [field for field in answer.headers if field[0] not in _FRAMING]
            sink.on_reply(ReplyHead.of(answer.status, headers, len(body)), body, True)

    def _fail(self, failure: UpstreamFailure) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_failure(failure)

    def _lose(self, n_pages: int) -> None:
        """End it where only the id of somebody else's thing would lead on, which nobody else may know."""
        if self._sink is not None:
            self._sink = None
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
