"""The reply on its way down: the upstream's bytes, unchanged, written to the client as they come.

Knows: when the reply is whole, and how one ends that is not. Does not know: why it ended so (exchange.py), or the
client's framing (application.py).
A chunk costs one read and one write: no task is woken, and no more is looked at than where events begin (sse.py). What
must read or change a reply is a filter (filters.py); without filters bytes pass as they came.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError, untraced
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.reply.addresses import UpstreamAddresses
from velox.gateway.reply.early_error import (
    BEGIN_BYTES,
    ERROR_MARK,
    LEAST_READ,
    MOST_HELD,
    EarlyErrorGate,
    may_be_error,
    may_have_failed,
)
from velox.gateway.reply.error_body import ErrorRedaction
from velox.gateway.reply.filters import FilterChain, ReplyFilter, insert_in_order
from velox.gateway.reply.first_event import FirstEventWatch, has_whole_event
from velox.gateway.reply.headers import (
    DROPPED,
    NO_ATTEMPTS,
    REQUEST_ID,
    UNBUFFERED,
    AttemptFields,
    PassedFields,
    RateHeaders,
    ReplyFields,
    client_id,
)
from velox.gateway.reply.outcome import COMPLETE, Complete, ErrorReply, Failed
from velox.heads import NO_BODY_STATUSES, Headers, ReplyHead, RequestHead
from velox.net.application import ChunkWriter, Client
from velox.net.upstream.interface import UpstreamFailure, UpstreamStream
from velox.protocol import sse
from velox.protocol.error_meaning import ERROR_BYTES, READ_STATUSES
from velox.protocol.heads.date import http_date
from velox.protocol.http1.write import check_unsplit
from velox.protocol.reply_body import begun_text, label_of
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import Answers, Dialect

__all__ = ["AnsweringAttempt", "ExpectedReply", "Reply", "ReplyEnd"]

# How a reply ends.
ReplyEnd: TypeAlias = Complete | ErrorReply | Failed

_OK: Final = 200
# The attribute of an enumeration takes 50 ns.
_RESPONSE: Final = int(Answers.RESPONSE)
_FILE: Final = int(Answers.JSON_OR_FILE)
_ERRORS_FROM: Final = 400
_MARKUP: Final = ord("<")
# How long an upstream may take to end a reply that is over: its last bytes come within a round trip.
_END_S: Final = 1.0
# Of a completion: roles, results of filters, a comment. They may come long before the model has thought.
_FIRST_EVENTS_BYTES: Final = 2048


class AnsweringAttempt(abc.ABC):
    """An attempt at an upstream (group.py), as its reply and its records see it.

    secret: the key that went up, which no error may show; None: none. translation: makes what puts its reply into the
    client's dialect; None: it is in that. The attempt holds this, never the filter, which leads to the request's body.
    may_have_worked: it was sent, and nothing says that it was not taken. usage_so_far: of one that is several calls;
    returns what those took that were answered, None where none was.

    A base class and no protocol: compiled code reads its attributes directly.
    """

    __slots__ = ("may_have_worked", "secret", "translation", "usage_so_far")

    secret: bytes | None
    translation: Callable[[], ReplyFilter] | None
    may_have_worked: bool
    usage_so_far: Callable[[], TokenUsage | None] | None

    @property
    @abc.abstractmethod
    def holds_head(self) -> bool:
        """True where the head of an event stream waits for the first event, however long that takes."""

    @property
    def addresses(self) -> UpstreamAddresses | None:
        """Which addresses are of the upstream that answers; None: nobody knows."""
        return None

    @abc.abstractmethod
    def reasons(self, named: str | None) -> bool:
        """Return True where the model that it asks for may reason. named: by the client."""

    @abc.abstractmethod
    def count_call(self, tokens: Sequence[int | None], cost_nano: int | None) -> None:
        """Count its tokens for its upstream (input, output, cached, written to a cache, reasoning), and its cost."""

    @abc.abstractmethod
    def on_head(self, head: ReplyHead) -> None:
        """The head of a reply has come, whether or not the client gets it."""

    @abc.abstractmethod
    def on_first(self, now_s: float, *, is_stream: bool) -> None:
        """The client has the first bytes of a body that is no error. is_stream: it is an event stream.

        Not comments of an event stream, nor its head, nor events that say only that the request was taken: some servers
        send these before they have begun to think.
        """

    def on_last(self, status: int) -> None:  # noqa: B027 - not all count
        """The client is about to get the last bytes of a reply: what they end is counted before they go."""


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """What is known of a reply before it comes.

    dialect: in which the client reads errors. answers: what one of status 200 is. is_chat: it is a completion.
    rewrites: a filter of the request changes addresses.
    """

    dialect: Dialect = Dialect.OPENAI
    answers: Answers = Answers.ANYTHING
    is_chat: bool = False
    rewrites: bool = False


_ANY_REPLY: Final = ExpectedReply()


class _HeldError:
    """A reply that has ended as ErrorReply. head, data, end: what is held back; no head: a filter holds it.

    later: what has come since. failure: what has broken it since.
    """

    __slots__ = ("data", "end", "failure", "head", "later")

    def __init__(self, head: ReplyHead | None, data: bytes, *, end: bool) -> None:
        self.head: Final = head
        self.data: Final = data
        self.end: Final = end
        self.later: Final[list[tuple[bytes, bool]]] = []
        self.failure: VeloxError | None = None


class _CatchingUp:
    """A filter that is behind. waiting: what has come meanwhile, and whether it was the end."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[None], waiting: deque[tuple[bytes, bool]]) -> None:
        self.task: Final = task
        self.waiting: Final = waiting


class Reply:
    """One reply, and the sink of each attempt at it. `ended` resolves with how that ended.

    An error that the client has seen nothing of ends it as ErrorReply: then either pass_on() has the client get it, and
    there is another end, or the attempt is given up with detach().

    filters: of the request; those of the reply's head are added to them. rates: what the client learns of its limits.
    thread: where filters do what would hold the loop.
    """

    __slots__ = (
        *("_chain", "_client", "_comment_s", "_fields", "_early", "_filters", "_first", "_gate", "_has_body"),
        "_quiet",
        *("_has_first", "_head_ns", "_may_hold"),
        *("_cpu_thread", "_catching_up"),
        *(
            "_expected",
            "_leaving",
            "_length",
            "_listener",
            "_loop",
            "_may_add",
        ),
        *("_needs_first", "_rates", "_request"),
        *("_request_id", "_stream", "_told", "_until_close"),
        *("_watch", "_write_chunk", "bytes_in", "bytes_out", "close_code", "ended", "first_byte_ns"),
        "_held_error",
        *("is_sse", "last_s", "relay_ns", "started", "status"),
    )

    def __init__(
        self,
        client: Client,
        request: RequestHead,
        request_id: bytes,
        loop: asyncio.AbstractEventLoop,
        fields: ReplyFields,
        rates: RateHeaders | None = None,
        filters: tuple[ReplyFilter, ...] = (),
        expected: ExpectedReply = _ANY_REPLY,
        thread: TranslationThread | None = None,
    ) -> None:
        self._cpu_thread: Final = thread or TranslationThread()
        self._catching_up: _CatchingUp | None = None  # while a filter is behind
        self._client = client
        self._request_id: Final = request_id
        self._loop: Final = loop
        self._request: Final = request
        self._filters: Final = filters
        self._rates: Final = rates
        self._fields: Final = fields
        self._expected: Final = expected
        self._gate: EarlyErrorGate | None = None  # while it holds the head back
        self._early: tuple[ReplyHead, bytes] | None = None  # a head, and what came of the body, until more tells
        self._held_error: _HeldError | None = None  # from an end as ErrorReply until that is decided
        self._may_hold = True  # the head may wait for the first event
        self._has_first = False  # the first bytes have come; the listener hears of it when they have gone to the client
        self._told = NO_ATTEMPTS
        self._chain: FilterChain | None = None  # from the head on, if there are filters
        self._has_body = False
        self._may_add = False  # bytes of our own would not fill up a length that was announced
        self._length: int | None = None  # of the body, as the client was told
        self._until_close = False
        self._watch: sse.EventWatch | None = None  # of an event stream that is not compressed
        self._first: FirstEventWatch | None = None  # of such a stream, while the listener waits for the first event
        self._write_chunk: ChunkWriter | None = None  # while lone chunks pass unread
        self._comment_s = 0.0  # when the upstream last sent a comment
        self._quiet: tuple[int, float] | None = None  # bytes that the client had, and since when no more; keep_alive()
        self._stream: UpstreamStream | None = None
        self._leaving: asyncio.TimerHandle | None = None  # while the end is awaited of a stream that is over
        self._listener: AnsweringAttempt | None = None  # while its attempt runs
        self._needs_first = False  # the listener waits for the first bytes
        self.ended: asyncio.Future[ReplyEnd] = loop.create_future()
        self.started = False  # the client has seen the head
        self.is_sse = False
        self.status = 0
        self.bytes_in = 0  # that came from the client beside the request's body: a tunnel's
        self.bytes_out = 0
        self.close_code: int | None = None  # of a tunnel
        self.last_s = 0.0  # when the upstream last brought something; comments in an event stream are nothing
        self.first_byte_ns = 0  # monotonic; 0: none came
        self.relay_ns = 0  # what building and writing the reply's first bytes took
        self._head_ns = 0  # while the head that came is passed on at once: since when

    def begin(self, listener: AnsweringAttempt | None, told: AttemptFields) -> None:
        """Begin an attempt. Before the stream is opened: it may fail while it is.

        listener: None: errors are passed on without a question. told: fields that tell of the attempts.
        """
        self._told = told
        self._listener = listener
        self._needs_first = listener is not None
        if self.ended.done() or not self._may_hold:  # else nothing has come of an attempt before
            self._has_first = False
            self._chain = self._gate = self._early = None
            self._may_hold = True
            if self.ended.done():
                self.ended = self._loop.create_future()

    def attach(self, stream: UpstreamStream) -> None:
        """Take the attempt's stream, to hold it up and to cancel it."""
        if not self.ended.done():
            self._stream = stream
            if self._catching_up is not None:
                stream.pause()

    def detach(self) -> None:
        """End an attempt; what is left of its stream is cancelled."""
        self._listener = None  # it leads back to the exchange: a cycle, which would hold the request's body
        self._needs_first = self._has_first = False
        self._early = self._held_error = None
        if self._catching_up is not None:
            self._catching_up.task.cancel()
            self._catching_up = None
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if self._chain is not None and self._chain.is_over and self.is_whole:
            # The upstream has said all, and its stream's end is on the way: cancelled now, it would be taken for one
            # that the client has left, and over HTTP/1.1 its connection would be lost each time.
            self._chain = None  # it leads to the request's body
            stream.resume()
            self._leaving = self._loop.call_later(_END_S, stream.cancel)
        else:
            stream.cancel()

    @property
    def is_flowing(self) -> bool:
        """True for a stream whose text has begun: its first events, which some send at once, are shorter together.

        Not of one that is put into Chat: the API of its model may have items between which that thinks again.
        """
        is_text = self._expected.is_chat and self.is_sse and self.bytes_out > _FIRST_EVENTS_BYTES
        return is_text and (self._chain is None or not self._chain.holds)

    @property
    def heard_s(self) -> float:
        """When the upstream last brought anything, comments too; 0: it has not yet."""
        return max(self.last_s, self._comment_s)

    @property
    def is_behind(self) -> bool:
        """True while what the upstream has brought is in the making; it is not asked for more meanwhile."""
        return self._catching_up is not None

    @property
    def is_whole(self) -> bool:
        """True when the upstream has given all of it."""
        ended = self.ended
        return ended.done() and not ended.cancelled() and ended.exception() is None and ended.result() is COMPLETE

    # -- ReplySink --------------------------------------------------------------------------------

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Pass on what one read of the upstream brought."""
        if end:
            # First of all: the connection is free for the next exchange from here on. A client that is slow must not
            # hold it up, nor the end of this exchange cancel what is another's.
            self._stream = None
        if self.ended.done():
            if self._held_error is not None:
                self._held_error.later.append((data, end))
            elif end and self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
            return
        if head is not None:
            if self._listener is not None:
                self._listener.on_head(head)
            self._on_head(head, data, end)
            return
        early = self._early
        if early is not None:
            self._early = None
            self._on_head(early[0], early[1] + data, end)
            return
        watch = self._watch
        if watch is None or not data or watch.feed(data):
            self.last_s = self._loop.time()
            if self._needs_first and data and (self._first is None or self._first.feed(data)):
                self._has_first = True
        else:
            self._comment_s = self._loop.time()
            if self._first is not None:
                self._first.feed(data)
        # Nothing but the connection's end says that this is all, and it came inside an event (F-13).
        is_cut = end and self._until_close and watch is not None and not watch.between
        if self._chain is not None:
            self._on_filtered(self._chain, data, end and not is_cut)
        else:
            self._write_body(data, end and not is_cut)
            if end and not is_cut and not self.ended.done():
                self.ended.set_result(COMPLETE)
        if self._has_first and self.started:
            self._tell_first(self.last_s)
            self._pass_chunks()
        if is_cut:
            self.on_failure(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream closed inside an event"))

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        """Pass a chunk on as it is, if it is an event like most and nothing else is to be done with it."""
        write, watch = self._write_chunk, self._watch
        end = len(chunk) - 2
        if write is None or watch is None or not watch.passes(chunk, at, end):
            return False
        self.last_s = self._loop.time()
        self.bytes_out += end - at
        write(chunk)
        return True

    def on_failure(self, failure: VeloxError) -> None:
        """The reply will not become whole. No effect on one that is."""
        self._write_chunk = None
        held, early = self._held_error, self._early
        if held is not None:
            held.failure = held.failure or untraced(failure)
        elif early is None or early[0].status < _ERRORS_FROM or not isinstance(failure, UpstreamFailure):
            self._end(Failed(untraced(failure)))
        elif not self.ended.done():
            self._early = None  # what has come of the error is the client's, if nobody else is asked
            self._held_error = _HeldError(*early, end=False)
            self._held_error.failure = untraced(failure)
            self._end(ErrorReply(early[0], None, failure=failure))

    def pass_on(self) -> None:
        """Have the client get the error that this has ended with as ErrorReply, and what came since."""
        held, self._held_error = self._held_error, None
        assert held is not None, "asked for after an end as ErrorReply"
        self.ended = self._loop.create_future()
        if not self._client.is_write_paused:
            self._resume_stream()
        if held.head is not None:
            self._on_head(held.head, held.data, held.end, was_refused=True)
        elif self._chain is not None:
            try:
                data = self._chain.go_on()
            except UpstreamFailure as broken:
                self.on_failure(broken)
                return
            self._pass_on(self._chain, data, False)
        for data, end in held.later:
            self.on_reply(None, data, end)
        if held.failure is not None:
            self.on_failure(held.failure)

    # -- the client's side --------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads too slowly: hold the upstream."""
        self._write_chunk = None
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.last_s = self._loop.time()
        self._pass_chunks()
        self._resume_stream()

    def _resume_stream(self) -> None:
        if self._stream is not None and not self.is_behind and self._held_error is None:
            self._stream.resume()

    def release_head(self) -> None:
        """Let the head of a stream go to the client, and what came with it, though no event has come that says more."""
        gate, chain, early = self._gate, self._chain, self._early
        self._may_hold = False
        if early is not None and not self.ended.done():
            self._early = None
            self._on_head(early[0], early[1], False)
        elif gate is not None and chain is not None and not self.ended.done():
            gate.expire()
            self._on_filtered(chain, b"", False)

    def client_gone(self) -> None:
        """Write to the client's transport no more: the loop has closed it.

        With all of an announced length the client has the whole answer, though over HTTP/2 the end of the upstream's
        stream may follow in a frame of its own: it is whole now, and costs what it says.
        """
        self._write_chunk = None
        if self.ended.done() or self._length is None or self.bytes_out != self._length:
            return
        try:
            if self._chain is not None:
                self._chain.feed(b"", True)
        except UpstreamFailure as failure:
            self.on_failure(failure)
        else:
            self._end(COMPLETE)

    def drain(self, client: Client) -> None:
        """Go on without the client that has left, for what the filters learn. client: takes what is passed on."""
        self._client = client
        self._may_add = False  # nobody is to be kept waiting, or told
        self._resume_stream()

    def keep_alive(self, now_s: float, silence_s: float) -> None:
        """Send a comment when the client has been sent nothing for so long, if one may stand here.

        A head that waits for the first event goes out with it: the attempt is then the last one. To be called a few
        times a second.
        """
        # The usual answer first: this is asked of thousands at a time.
        quiet = self._quiet
        if quiet is None or self.bytes_out != quiet[0]:
            quiet = self._quiet = (self.bytes_out, self.heard_s or now_s)
        if now_s - quiet[1] < silence_s or self.ended.done() or self._client.is_write_paused:
            return
        if not self.started:
            self._begin_stream()
        # is_sse: a translation may have made something else of the upstream's events.
        if self.started and self.is_sse and self._may_add and self._is_between:
            self._quiet = (self.bytes_out, now_s)
            self._client.body(sse.COMMENT, False)

    def _begin_stream(self) -> None:
        """Let the head of an event stream go, though no event has come that says more."""
        chain, early = self._chain, self._early
        if early is not None:
            if label_of(early[0].headers)[0]:
                self.release_head()
        elif self._gate is not None:
            if self._watch is not None:
                self.release_head()
        elif chain is not None and chain.begins_stream():
            self._on_filtered(chain, b"", False)

    @property
    def n_stream_errors(self) -> int:
        """Events of the upstream inside this stream that told of an error."""
        return 0 if self._watch is None else self._watch.n_errors

    def cut(self, error: VeloxError) -> None:
        """End a reply that has begun: an error event where the client reads events, and never a clean end."""
        last = b""
        # Where the length was announced, our bytes would fill up what the upstream owed: a reply that looks whole.
        told = self._chain.cut(error) if self._chain is not None and self._may_add else None
        if told is not None:
            last = told
        elif self._watch is not None and self.is_sse and self._may_add:
            event = sse.error_event(error.reason, error.message, self._expected.dialect)
            # The event that was cut gets its blank line, so that ours is parsed as one of its own (F-14).
            last = event if self._is_between else b"\n\n" + event
        self._client.cut(last)

    def close(self) -> None:
        """The exchange is over."""
        for each in self._filters:
            each.close()

    # -- inside -------------------------------------------------------------------------------------

    def _end(self, how: ReplyEnd) -> None:
        """End it, or the attempt at it. No effect on one that has ended."""
        if not self.ended.done():
            self.ended.set_result(how)

    def _hold_error(
        self, error: ErrorReply, head: ReplyHead | None = None, data: bytes = b"", *, end: bool = False
    ) -> None:
        """Wait for what the exchange decides about an error. head, data, end: what is held back of it here."""
        self._held_error = _HeldError(head, data, end=end)
        if self._stream is not None:
            self._stream.pause()
        self._end(error)

    @property
    def _is_between(self) -> bool:
        """True when the client stands between two events, of what is a stream of events for it."""
        if self._chain is not None and self._chain.holds:
            return True
        return self._watch is not None and self._watch.between and not self.is_behind

    def _on_head(self, head: ReplyHead, data: bytes, end: bool, *, was_refused: bool = False) -> None:
        """Pass the head on, unless it is one that the client must not have, or not yet.

        was_refused: the exchange has decided that the client gets this error.
        """
        now_s = self.last_s = self._loop.time()
        shape, listener, rates = head.shape, self._listener, self._rates
        status = shape.status
        if 300 <= status < 400 and status != 304:
            message = f"the upstream answered with a redirect ({status}); Velox follows none"
            self._end(Failed(UpstreamFailure(Reason.UPSTREAM_REDIRECT, message)))
            return
        filters, translation = self._filters, None
        if listener is not None:
            if status >= _ERRORS_FROM and not was_refused:
                is_read = status in READ_STATUSES
                if is_read and not end and len(data) <= ERROR_BYTES and self._may_hold:
                    self._early = (head, data)  # what it says tells what follows
                    return
                self._hold_error(ErrorReply(head, data if is_read and end else None), head, data, end=end)
                return
            translation = listener.translation
            if translation is not None:
                filters = insert_in_order(filters, translation())
            elif not data and not end and self._expected.answers and status == _OK and self._may_hold:
                self._early = (head, data)  # what comes of the body tells whether it is an error
                return
            if status >= _ERRORS_FROM:
                self._needs_first = False
                if listener.secret:
                    filters = insert_in_order(filters, ErrorRedaction(listener.secret, self._expected.dialect))
        began_ns = self._head_ns = time.monotonic_ns()
        passed = self._fields.passed(shape, DROPPED if rates is None else rates.dropped)
        self.is_sse = passed.is_sse
        has_body = self._has_body = self._request.shape.method != b"HEAD" and status not in NO_BODY_STATUSES
        if passed.has_address and listener is not None and not self._expected.rewrites:
            filters = insert_in_order(filters, self._fields.address_filter(self._request, listener.addresses))
        watch, first = None, None
        if passed.is_sse and passed.is_plain and has_body:
            watch, self._until_close = sse.EventWatch(), shape.until_close
            first = FirstEventWatch() if self._needs_first else None
            if data:
                watch.feed(data)
        self._watch, self._first = watch, first
        if self._needs_first and data and (first is None or first.feed(data)):
            self._has_first = True
        answers = self._expected.answers
        if status == _OK and (answers or watch is not None) and translation is None and listener is not None:
            if watch is None:
                # The way of most replies: not held, as they are whole and begin with no error.
                text = data if passed.is_plain else begun_text(head.headers, data)
                is_short = not end and len(text) < LEAST_READ and len(data) != head.content_length
                is_held = (
                    text.find(ERROR_MARK, 0, BEGIN_BYTES) >= 0
                    or not text
                    or passed.is_html
                    or text[0] == _MARKUP
                    or (answers == _RESPONSE and may_have_failed(text))
                )
                if answers == _FILE and not passed.is_json:
                    is_short = is_held = False
            else:
                is_short = not (end or (self._has_first and watch.between)) and len(data) < MOST_HELD
                if is_short and self._has_first and has_whole_event(data):
                    is_short = False
                # Of preludes alone no number of bytes says that the model has begun.
                is_held = (not self._has_first and (end or len(data) >= MOST_HELD)) or may_be_error(data)
                if not answers and not listener.holds_head:
                    is_short = is_held = False
            if is_short and not is_held and self._may_hold and has_body:
                self._early = (head, data)
                self._has_first, self._first, self._watch = False, None, None
                return
            if is_held and self._may_hold and has_body:
                gate = self._gate = EarlyErrorGate(listener.secret, self._expected.dialect)
                filters = insert_in_order(filters, gate)
        # RFC 9110 §8.6: a 204 has no content-length, though some upstreams send one.
        length = None if status == 204 else head.content_length
        is_whole = end
        if filters:
            chain = self._chain = FilterChain(filters, is_sse=watch is not None, is_plain=passed.is_plain)
            if len(filters) == 1 and filters[0].only_reads and self._client.takes_lines:
                chain.begin(head)
                chain.feed(data, end)
                is_whole = self._write_lines(passed, head, length, data, end, began_ns) and end
            else:
                chain.begin(ReplyHead.of(status, self._headers(passed, head, began_ns), length))
                self._on_filtered(chain, data, end)
                is_whole = False  # _on_filtered() has said so
        elif self._client.takes_lines:
            is_whole = self._write_lines(passed, head, length, data, end, began_ns) and end
        else:
            is_whole = self._write_head(status, self._headers(passed, head, began_ns), length, data, end) and end
        if is_whole and not self.ended.done():
            self.ended.set_result(COMPLETE)
        self._head_ns = 0
        if self.started and self._has_first:
            self._tell_first(now_s)
            if watch is not None:
                self._pass_chunks()

    def _headers(self, passed: PassedFields, head: ReplyHead, now_ns: int) -> Headers:
        """Return the fields that the client gets, but for those of Velox's own."""
        headers = passed.template.headers(head.values)
        headers = headers.copy() if self._rates is None else self._rates.headers(now_ns) + headers
        if not passed.is_dated:
            # RFC 9110 §6.6.1: one who forwards a reply without a date says when it came.
            headers.append((b"date", http_date(int(time.time()))))
        if not passed.has_id and (given := client_id(self._request)) is not None:
            headers.append((REQUEST_ID, given))
        return headers

    def _write_lines(
        self, passed: PassedFields, head: ReplyHead, length: int | None, data: bytes, end: bool, now_ns: int
    ) -> bool:
        """Do as _write_head() for a client of HTTP/1.1, with the same fields in the same order."""
        has_body = self._has_body
        if not has_body:
            data = b""
        elif length is None and end:
            length = len(data)  # the whole reply is here: its length is known after all
        try:
            lines = passed.template.lines(head.values)
        except ValueError:
            return self._has_bad_head()
        rates = b"" if self._rates is None else self._rates.lines(now_ns)
        more = b""
        if not passed.is_dated:
            more = b"date: %b\r\n" % http_date(int(time.time()))
        if not passed.has_id and (given := client_id(self._request)) is not None:
            more += b"x-request-id: %b\r\n" % given
        own = (b"x-velox-request-id: ", self._request_id, b"\r\n", self._told.lines)
        lines = b"".join((rates, lines, more, *own))
        status = head.shape.status
        if end:
            self._has_begun(status, length, data)
            self._ends()
        self._client.begin_lines(status, lines, length, data, end, has_body=has_body)
        if not end:
            self._has_begun(status, length, data)
        return True

    def _has_bad_head(self) -> bool:
        """Fail: a field has CR, LF or NUL, which a parser let through."""
        self._watch = None
        self._end(Failed(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's reply has a bad header")))
        return False

    def _has_begun(self, status: int, length: int | None, data: bytes) -> None:
        self._may_add = self._has_body and length is None
        self._length = length if self._has_body else None
        self.bytes_out = len(data)
        self.status = status
        self.first_byte_ns = time.monotonic_ns()
        if self._head_ns:
            self.relay_ns = self.first_byte_ns - self._head_ns
        self.started = True
        if self._watch is not None:
            self._pass_chunks()

    def _ends(self) -> None:
        """The last bytes are about to go to the client: have them counted, as the worker may be killed behind them."""
        self._write_chunk = None
        if self._has_first:
            self._tell_first(self.last_s)
        if self._listener is not None:
            self._listener.on_last(self.status)

    def _on_filtered(self, chain: FilterChain, data: bytes, end: bool) -> None:
        """Pass on what the filters leave of a read: the head too, when it is held back no longer."""
        if self._catching_up is not None:
            self._catching_up.waiting.append((data, end))
            return
        try:
            data = chain.feed(data, end)
        except UpstreamFailure as failure:
            self.on_failure(failure)
            return
        if self._ends_in_inner_error(chain):
            return
        if chain.is_behind:
            waiting = deque[tuple[bytes, bool]]()
            task = self._loop.create_task(self._catch_up(chain, waiting, end), name="catch up")
            self._catching_up = _CatchingUp(task, waiting)
            if self._stream is not None:
                self._stream.pause()
            end = False
        self._pass_on(chain, data, end)

    def _ends_in_inner_error(self, chain: FilterChain) -> bool:
        """End as ErrorReply if an error has been found inside a reply of another status."""
        pending = chain.pending_error
        if pending is None:
            return False
        self._hold_error(ErrorReply(pending.head, pending.body, inside=True))
        return True

    async def _catch_up(self, chain: FilterChain, waiting: deque[tuple[bytes, bool]], end: bool) -> None:
        """Pass on what a filter that is behind has yet to give, then what has come meanwhile. end: it has been fed."""
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                while not self.ended.done() and (chain.is_behind or waiting):
                    end = await self._catch_up_step(chain, waiting, end)
            except Exception as exc:
                if not self.ended.done():
                    self.ended.set_exception(exc)  # a bug: its exchange records it
            self._catching_up = None
            self.last_s = self._loop.time()
            self._let_go(chain)
            if not self._client.is_write_paused:
                self._resume_stream()

    async def _catch_up_step(self, chain: FilterChain, waiting: deque[tuple[bytes, bool]], end: bool) -> bool:
        if chain.has_work:
            await self._cpu_thread.run(chain.work)
        else:
            # The others' turn. No wait for a client that reads slowly: what it leaves counts where it is buffered.
            await asyncio.sleep(0)
        if self.ended.done():
            return end
        self.last_s = self._loop.time()
        try:
            if chain.is_behind:
                data = chain.go_on()
            else:
                data, end = waiting.popleft()
                data = chain.feed(data, end)
        except UpstreamFailure as failure:
            self.on_failure(failure)
            return end
        if self._ends_in_inner_error(chain):
            return end
        self._pass_on(chain, data, end and not chain.is_behind)
        if self._has_first and self.started:
            self._tell_first(self.last_s)
        return end

    def _pass_on(self, chain: FilterChain, data: bytes, end: bool) -> None:
        """Pass on what the filters have left."""
        end = end or chain.is_over
        head = chain.head
        if self.started:
            if data or end:
                self._write_body(data, end)
        elif head is None:
            return
        else:
            self.is_sse = chain.is_sse
            if head.status >= _ERRORS_FROM:
                self._needs_first = self._has_first = False
            headers = head.headers
            if self.is_sse and not any(name == UNBUFFERED[0] for name, _ in headers):
                headers = [*headers, UNBUFFERED]  # what a translation has made a stream
            if not self._write_head(head.status, headers, head.content_length, data, end):
                return
            if self._gate is not None:
                self._gate = None
                if not chain.is_behind:
                    self._let_go(chain)
        if end:
            self._end(COMPLETE)

    def _let_go(self, chain: FilterChain) -> None:
        """Pass chunks on as they come where nobody reads them from here on: some filters are there for a head alone."""
        if self._chain is chain and not chain.reads_body and not chain.is_over:
            self._chain = None
        self._pass_chunks()

    def _write_head(self, status: int, headers: Headers, length: int | None, data: bytes, end: bool) -> bool:
        """Write the head and what came with it. False: the head can't be sent, and `ended` says why."""
        headers.append((b"x-velox-request-id", self._request_id))
        headers += self._told.headers
        has_body = self._has_body
        if not has_body:
            data = b""
        elif length is None and end:
            length = len(data)  # the whole reply is here: its length is known after all
        try:
            if end:
                check_unsplit(
                    b"".join([part for field in headers for part in field])
                )  # else it would be counted, and then not sent
                self._has_begun(status, length, data)
                self._ends()
            self._client.begin_reply(status, headers, length, data, end, has_body=has_body)
        except ValueError:
            return self._has_bad_head()
        if not end:
            self._has_begun(status, length, data)
        return True

    def _tell_first(self, now_s: float) -> None:
        self._needs_first = self._has_first = False
        self._first = None
        if self._listener is not None:
            self._listener.on_first(now_s, is_stream=self._watch is not None)

    def _pass_chunks(self) -> None:
        """Have lone chunks go straight to the client from now on, if nothing is to be done with them on the way."""
        is_read = self._needs_first or (self._chain is not None and self._chain.reads_body)
        if self._watch is not None and not is_read and self.started and not self.ended.done():
            self._write_chunk = self._client.chunk_writer

    def _write_body(self, data: bytes, end: bool) -> None:
        if self._has_body:  # else the client would take it for the begin of its next reply
            self.bytes_out += len(data)
        if end:
            self._ends()
        if self._has_body:
            self._client.body(data, end)
