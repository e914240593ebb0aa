"""The reply on its way down: the upstream's bytes, unchanged, written to the client as they come.

Knows: when the reply is whole, how one ends that is not. Does not know: why (exchange.py), or the client's framing
(application.py).
A chunk costs one read and one write: no task is woken, and no more is looked at than where events begin (sse.py).
Errors are held back until it is sure that they don't show our key (error_body.py). Where tokens are counted, a meter
reads the body; and takes out of a stream the usage that only Velox asked for (metering.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.error_body import ErrorBody
from velox.gateway.metering import Meter
from velox.gateway.rate_headers import RateHeaders
from velox.gateway.reply_fields import ReplyFields
from velox.net.application import ChunkWriter, Client
from velox.net.upstream.interface import UpstreamFailure, UpstreamStream
from velox.policy.routes import HeaderRules
from velox.protocol import sse
from velox.protocol.http_date import http_date
from velox.types import NO_BODY_STATUSES, Headers, ReplyHead, RequestHead

__all__ = ["DROPPED", "Reply", "changed"]

# R-SEC-4: what an upstream may not tell our client. Hop-by-hop headers are gone before.
DROPPED: Final = frozenset(
    {
        b"set-cookie",
        b"server",
        b"alt-svc",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"x-velox-reason",
        b"x-velox-request-id",
        b"x-velox-upstream",
        b"x-velox-attempts",
        b"x-velox-tried",
    }
)
_ERRORS_FROM: Final = 400
# Where Anthropic's clients ask, below whatever prefix: their SDKs know another error event than OpenAI's.
_ANTHROPIC_PATH: Final = b"/v1/messages"

# Asked with each attempt's head, before anything goes to the client: True refuses it, so that there is another try.
Verdict: TypeAlias = Callable[[ReplyHead], bool]


class Reply:
    """One reply, and the sink of each attempt at it. `done` resolves when it is whole, or fails with what broke it."""

    __slots__ = (
        "_client",
        "_comment_s",
        "_error",
        "_fields",
        "_has_body",
        "_is_head",
        "_loop",
        "_may_add",
        "_meter",
        "_on_first",
        "_rates",
        "_request",
        "_request_id",
        "_rules",
        "_secret",
        "_stream",
        "_told",
        "_until_close",
        "_verdict",
        "_watch",
        "_write_chunk",
        "bytes_in",
        "bytes_out",
        "close_code",
        "done",
        "first_byte_ns",
        "is_sse",
        "last_s",
        "relay_ns",
        "started",
        "status",
    )

    def __init__(
        self,
        client: Client,
        request: RequestHead,
        request_id: bytes,
        loop: asyncio.AbstractEventLoop,
        meter: Meter | None = None,
        rates: RateHeaders | None = None,
        *,
        rules: HeaderRules | None = None,
        fields: ReplyFields | None = None,
    ) -> None:
        """meter: reads what goes to the client. None: nobody counts its tokens.

        rates: what the client is told of its limits. rules: of the route, for the reply's headers. fields: of the
        worker's replies.
        """
        self._client: Final = client
        self._request: Final = request
        self._request_id: Final = request_id
        self._loop: Final = loop
        self._is_head: Final = request.method == b"HEAD"
        self._meter: Final = meter
        self._rates: Final = rates
        self._rules: Final = rules
        self._fields: Final = fields or ReplyFields()
        self._told: Headers = []
        self._has_body = False
        self._may_add = False  # bytes of our own would not fill up a length that was announced
        self._until_close = False
        self._watch: sse.EventWatch | None = None  # of an event stream that is not compressed
        self._write_chunk: ChunkWriter | None = None  # while lone chunks pass unread
        self._comment_s = 0.0
        self._error: ErrorBody | None = None  # of an error reply that could show our key
        self._stream: UpstreamStream | None = None
        self._verdict: Verdict | None = None
        self._on_first: Callable[[], None] | None = None
        self._secret: bytes | None = None
        self.done: asyncio.Future[None] = loop.create_future()
        self.started = False  # the client has seen the head
        self.is_sse = False
        self.status = 0
        self.bytes_in = 0  # that came from the client beside the request's body: a tunnel's
        self.bytes_out = 0
        self.close_code: int | None = None  # of a tunnel
        self.last_s = 0.0  # when the upstream last brought something; comments in an event stream are nothing
        self.first_byte_ns = 0  # monotonic; 0: none came
        self.relay_ns = 0  # what building and writing the reply's first bytes took

    def begin(
        self,
        verdict: Verdict | None = None,
        secret: bytes | None = None,
        on_first: Callable[[], None] | None = None,
        told: Headers = [],  # noqa: B006 - never changed
    ) -> None:
        """Begin an attempt. Before the stream is opened: it may fail while it is.

        verdict: True for a head that is not passed on; `done` fails with UpstreamFailure(UPSTREAM_STATUS), whose status
        is the head's. None: all heads are passed on. secret: the key that goes up, which no error may show.
        on_first: called with the first bytes of a body that is no error; not for comments of an event stream, nor for
        its head, which some servers send before they have begun to think. told: fields that tell of the attempts.
        """
        self._told = told
        self._verdict = verdict
        self._on_first = on_first
        self._secret = secret
        self._error = None
        if self.done.done():
            self.done = self._loop.create_future()

    def attach(self, stream: UpstreamStream) -> None:
        """Take the attempt's stream, to hold it up and to cancel it."""
        if not self.done.done():
            self._stream = stream

    def detach(self) -> None:
        """End an attempt; what is left of its stream is cancelled."""
        # They lead back to the exchange: a cycle, which would hold the request's body.
        self._verdict = self._on_first = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    @property
    def is_whole(self) -> bool:
        """True when the upstream has given all of it."""
        return self.done.done() and not self.done.cancelled() and self.done.exception() is None

    # -- ReplySink --------------------------------------------------------------------------------

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Pass on what one read of the upstream brought."""
        if end:
            # First of all: the connection is free for the next exchange from here on. A client that is slow must not
            # hold it up, nor the end of this exchange cancel what is another's.
            self._stream = None
        if self.done.done():
            return
        if head is not None:
            self._on_head(head, data, end)
            return
        if self._error is not None:
            self._on_error_body(data, end)
            return
        watch = self._watch
        if watch is None or not data or watch.feed(data):
            self.last_s = self._loop.time()
            if self._on_first is not None and data:
                self._tell_first(self._on_first)
                self._pass_chunks()
        else:
            self._comment_s = self._loop.time()
        # Nothing but the connection's end says that this is all, and it came inside an event (F-13).
        is_cut = end and self._until_close and watch is not None and not watch.between
        if self._meter is not None:
            data = self._meter.feed(data, end and not is_cut)
            if not data and not end:
                return  # held back, or taken out
        if is_cut:
            self._write_body(data, False)
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream closed inside an event"))
            return
        self._write_body(data, end)
        if end:
            self.done.set_result(None)

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
        if not self.done.done():
            self.done.set_exception(failure)
            self.done.exception()  # its exchange may just have been cancelled: then nobody else asks

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
        if self._stream is not None:
            self._stream.resume()

    def client_gone(self) -> None:
        """Write to the client's transport no more: the loop has closed it."""
        self._write_chunk = None

    def keep_alive(self, now_s: float, silence_s: float) -> None:
        """Send a comment when the client has been sent nothing for so long, if one may stand here (R-STREAM-3)."""
        watch = self._watch
        # The usual answer first: this is asked of thousands at a time.
        if watch is None or now_s - self.last_s < silence_s or now_s - self._comment_s < silence_s:
            return
        if self._may_add and self._is_between(watch) and not self.done.done() and not self._client.is_write_paused:
            self._comment_s = now_s
            self._client.body(sse.COMMENT, False)

    @property
    def n_stream_errors(self) -> int:
        """Events of the upstream inside this stream that told of an error."""
        return 0 if self._watch is None else self._watch.n_errors

    def cut(self, error: VeloxError) -> None:
        """End a reply that has begun: an error event where the client reads events, and never a clean end."""
        last = b""
        # Where the length was announced, our bytes would fill up what the upstream owed: a reply that looks whole.
        if self._watch is not None and self._may_add:
            anthropic = self._request.path.endswith(_ANTHROPIC_PATH)
            event = sse.error_event(error.reason, error.message, anthropic=anthropic)
            # The event that was cut gets its blank line, so that ours is parsed as one of its own (F-14).
            last = event if self._is_between(self._watch) else b"\n\n" + event
        self._client.cut(last)

    # -- inside -------------------------------------------------------------------------------------

    def _is_between(self, watch: sse.EventWatch) -> bool:
        """True when the client stands between two events."""
        return watch.between or (self._meter is not None and self._meter.holds)

    def _on_head(self, head: ReplyHead, data: bytes, end: bool) -> None:
        """Pass the head on, unless it is one that the client must not have, or not yet."""
        self.last_s = self._loop.time()
        if 300 <= head.status < 400 and head.status != 304:
            message = f"the upstream answered with a redirect ({head.status}); Velox follows none"
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_REDIRECT, message))
        elif self._verdict is not None and self._verdict(head):
            message = f"the upstream answered with {head.status}"
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_STATUS, message, status=head.status))
        elif head.status >= _ERRORS_FROM and self._secret:
            self._error = ErrorBody(head, self._secret)
            self._on_error_body(data, end)
        elif self._write_head(head, data, end) and end:
            self.done.set_result(None)

    def _on_error_body(self, data: bytes, end: bool) -> None:
        """Pass on what is known not to show our key; the head goes with the first of it."""
        self.last_s = self._loop.time()
        error = self._error
        assert error is not None, "set with the head"
        body = error.feed(data, end)
        if body is None and self.started:
            message = "the upstream's error showed the key that the gateway had sent; the rest is withheld"
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))
            return
        head = error.head
        if body is None:
            (head, body), end = error.replacement(), True
        if self.started:
            self._write_body(body, end)
        elif (body or end) and not self._write_head(head, body, end):
            return
        if end:
            self.done.set_result(None)

    def _write_head(self, head: ReplyHead, data: bytes, end: bool) -> bool:
        """Write the head and what came with it. False: the head can't be sent, and `done` says why."""
        status, rates = head.status, self._rates
        began_ns = time.monotonic_ns()
        passed, self.is_sse, is_plain, is_dated = self._fields.passed(head, DROPPED if rates is None else rates.dropped)
        headers = passed.copy() if rates is None else rates.lines(began_ns) + passed
        if not is_dated:
            # RFC 9110 §6.6.1: one who forwards a reply without a date says when it came.
            headers.append((b"date", http_date(int(time.time()))))
        if self._rules is not None:
            headers = changed(headers, self._rules)
        headers.append((b"x-velox-request-id", self._request_id))
        headers += self._told
        # RFC 9110 §8.6: a 204 has no content-length, though some upstreams send one.
        length = None if status == 204 else head.content_length
        has_body = self._has_body = not self._is_head and status not in NO_BODY_STATUSES
        watch = sse.EventWatch() if has_body and self.is_sse and is_plain else None
        has_begun = bool(data) and (watch is None or watch.feed(data))
        if has_begun and self._on_first is not None and status < _ERRORS_FROM:
            self._tell_first(self._on_first)
        if self._meter is not None:
            self._meter.begin(status, is_sse=watch is not None, is_plain=is_plain, has_length=length is not None)
            data = self._meter.feed(data, end)
        if has_body and length is None and end:
            length = len(data)  # the whole reply is here: its length is known after all
        if not has_body:
            data = b""
        try:
            self._client.begin_reply(status, headers, length, data, end, has_body=has_body)
        except ValueError:  # a field with CR, LF or NUL that a parser let through
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's reply has a bad header"))
            return False
        self._may_add = has_body and length is None
        self._watch = watch
        if watch is not None:
            self._pass_chunks()
        self._until_close = watch is not None and head.until_close
        self.bytes_out = len(data)
        self.status = status
        self.first_byte_ns = began_ns
        self.started = True
        self.relay_ns = time.monotonic_ns() - began_ns
        return True

    def _tell_first(self, on_first: Callable[[], None]) -> None:
        self._on_first = None
        on_first()

    def _pass_chunks(self) -> None:
        """Have lone chunks go straight to the client from now on, if nothing is to be done with them on the way."""
        is_read = self._meter is not None or self._error is not None or self._on_first is not None
        if self._watch is not None and not is_read and not self.done.done():
            self._write_chunk = self._client.chunk_writer

    def _write_body(self, data: bytes, end: bool) -> None:
        if self._has_body:  # else the client would take it for the begin of its next reply
            self.bytes_out += len(data)
            self._client.body(data, end)


def changed(headers: Headers, rules: HeaderRules) -> Headers:
    """Return the fields of a reply as a route's rules will have them."""
    replaced = rules.names
    return [*(field for field in headers if field[0] not in replaced), *rules.set]
