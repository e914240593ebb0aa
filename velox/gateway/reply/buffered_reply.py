"""A buffered reply: kept back until it is known which of two attempts answers the client (hedging.py).

Knows: when a reply has brought its first good byte, or is an error. Does not know: the other attempt, or who decides.

    good   the first bytes of the body of a reply that is no error: the same moment as AnsweringAttempt.on_first(). Not
           the head of an event stream, nor its comments, nor that the request was taken: some servers send these before
           they have begun to think, and the one that thinks would win over the one that has begun to speak. A whole
           reply without a body is good, too
    bad    an error, a redirect, or an event stream that ended without an event

Once released, all goes to the client's reply, beginning with what was buffered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from velox.errors import Reason, VeloxError, untraced
from velox.gateway.reply.first_event import MOST_PRELUDES_BYTES, FirstEventWatch
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.reply.outcome import Failed
from velox.gateway.reply.reply import AnsweringAttempt, Reply, ReplyEnd
from velox.heads import ReplyHead
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamFailure, UpstreamStream
from velox.protocol.reply_body import label_of

__all__ = ["BufferedReply"]

# Of an error's body, or of a good one's, which waits for the other attempt.
_MOST_HELD: Final = 64 * 1024


class BufferedReply:
    """The sink of one attempt of two. `ended` resolves as Reply's does.

    on_head: told of the head at once. on_answer: called once, when it is good or bad. told: the fields that tell of the
    attempts, asked for when it is released. passes: it is released, and has begun.
    """

    __slots__ = (
        "_client",
        "_data",
        "_is_paused",
        "_is_released",
        "_is_whole",
        "_last_s",
        "_listener",
        "_n_held",
        "_on_answer",
        "_on_head",
        "_reply",
        "_stream",
        "_told",
        "_watch",
        "ended",
        "head",
        "is_bad",
        "is_good",
        "passes",
    )

    def __init__(
        self,
        reply: Reply,
        client: Client,
        on_head: Callable[[ReplyHead], None],
        on_answer: Callable[[], None],
        told: Callable[[], AttemptFields],
    ) -> None:
        self._reply: Final = reply
        self._client: Final = client
        self._on_head: Callable[[ReplyHead], None] | None = on_head
        self._on_answer: Callable[[], None] | None = on_answer
        self._told: Final = told
        self._listener: AnsweringAttempt | None = None  # once its attempt has begun, and until it is over
        self._stream: UpstreamStream | None = None  # while it is buffered
        self._watch: FirstEventWatch | None = None  # of an event stream that is not compressed
        self._data: list[bytes] = []
        self._n_held = 0
        self._is_whole = False
        self._is_paused = False
        self._is_released = False
        self._last_s = 0.0
        self.passes = False
        self.ended: asyncio.Future[ReplyEnd] = asyncio.get_running_loop().create_future()
        self.head: ReplyHead | None = None
        self.is_good = False
        self.is_bad = False

    def __repr__(self) -> str:
        state = "released" if self._is_released else "good" if self.is_good else "bad" if self.is_bad else "silent"
        return f"<BufferedReply {state} {self._n_held} bytes>"

    # -- what the attempt asks for (group.py) ---------------------------------------------------

    @property
    def started(self) -> bool:
        """True when the client has seen its head."""
        return self.passes and self._reply.started

    @property
    def status(self) -> int:
        """What the client has seen."""
        return self._reply.status

    @property
    def last_s(self) -> float:
        """When it last brought something; 0: it has not yet."""
        return self._reply.last_s if self.passes else self._last_s

    @property
    def heard_s(self) -> float:
        """When it last brought anything, comments too; 0: it has not yet."""
        return self._reply.heard_s if self.passes else self._last_s

    @property
    def is_flowing(self) -> bool:
        """True when the client has the beginning of its text."""
        return self.passes and self._reply.is_flowing

    @property
    def is_behind(self) -> bool:
        """True while what it has brought is in the making."""
        return self.passes and self._reply.is_behind

    def begin(self, listener: AnsweringAttempt, told: AttemptFields) -> None:
        """Begin the attempt. told: not yet known, as it depends on who wins."""
        self._listener = listener
        if self._is_released:
            self._pass()

    def attach(self, stream: UpstreamStream) -> None:
        """Take the attempt's stream."""
        if self.passes:
            self._reply.attach(stream)
        elif not self.ended.done() and not self._is_whole:
            self._stream = stream

    def detach(self) -> None:
        """End the attempt; what is left of its stream is cancelled."""
        self._on_head = self._on_answer = self._listener = None  # they lead back to the exchange, as in Reply
        if self.passes:
            self._reply.ended.remove_done_callback(self._follow)
            self._reply.detach()
            return
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def pause(self) -> None:
        """The client reads too slowly. What is held back goes on up to its first byte, and waits then."""
        if self.passes:
            self._reply.pause()

    # -- ReplySink --------------------------------------------------------------------------------

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Hold it, and say when it is good or bad; or pass it on."""
        if self.passes:
            self._reply.on_reply(head, data, end)
            return
        self._last_s = self.ended.get_loop().time()
        if end:
            self._stream = None  # the connection is free for the next exchange, as in Reply
            self._is_whole = True
        if self.ended.done():
            return
        if head is not None:
            self._take_head(head)
        if data:
            self._data.append(data)
            self._n_held += len(data)
        knew = self.is_good or self.is_bad
        if not knew:
            self._judge(data)
        if not knew and (self.is_good or self.is_bad) and self._on_answer is not None:
            self._on_answer()
        most = _MOST_HELD if self.is_good or self.is_bad else MOST_PRELUDES_BYTES
        if self._n_held > most and not self._is_paused and self._stream is not None:
            self._is_paused = True
            self._stream.pause()

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        """Pass it on as it is, once nothing is held any more."""
        return self.passes and self._reply.on_chunk(chunk, at)

    def on_failure(self, failure: VeloxError) -> None:
        """It will not become whole. No effect on one that is."""
        if self.passes:
            self._reply.on_failure(failure)
        elif not self.ended.done():
            self.ended.set_result(Failed(untraced(failure)))

    def pass_on(self) -> None:
        """Have the client get the error that the reply has ended with as ErrorReply."""
        self.ended = self.ended.get_loop().create_future()
        self._reply.pass_on()
        self._reply.ended.add_done_callback(self._follow)

    def release_head(self) -> None:
        """Let the head go to the client, if it is the client's reply."""
        if self.passes:
            self._reply.release_head()

    # -- who decides (hedging.py) ------------------------------------------------------------------

    def release(self) -> None:
        """It is the client's reply, from here on or when its attempt begins."""
        self._is_released = True
        if self._listener is not None and not self.ended.done():
            self._pass()

    def refusal(self) -> UpstreamFailure:
        """Return what a bad one that is not passed on counts as."""
        head = self.head
        assert head is not None, "a bad one has a head"
        if head.status >= 400:
            message = f"the upstream answered with {head.status}"
            return UpstreamFailure(Reason.UPSTREAM_STATUS, message, status=head.status)
        if head.status >= 300:
            return UpstreamFailure(Reason.UPSTREAM_REDIRECT, f"the upstream answered with a redirect ({head.status})")
        return UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream closed before the first event")

    # -- inside -----------------------------------------------------------------------------------

    def _take_head(self, head: ReplyHead) -> None:
        self.head = head
        self._watch = FirstEventWatch() if label_of(head.headers) == (True, True) else None
        if self._on_head is not None:
            self._on_head(head)

    def _judge(self, data: bytes) -> None:
        """See whether it is known now what it is."""
        assert self.head is not None, "a reply begins with its head"
        status, watch = self.head.status, self._watch
        if status >= 300 and status != 304:
            self.is_bad = True
        elif data and (watch is None or watch.feed(data)):
            self.is_good = True
        elif self._is_whole:
            self.is_good = watch is None
            self.is_bad = not self.is_good
        elif self._n_held > MOST_PRELUDES_BYTES:
            self.is_good = True  # an upstream that sends so many comments is alive

    def _pass(self) -> None:
        """Give the reply what was held, and all that follows."""
        reply = self._reply
        assert self._listener is not None, "asked for once the attempt has begun"
        reply.begin(self._listener, self._told())
        self.passes = True
        reply.ended.add_done_callback(self._follow)
        stream, self._stream = self._stream, None
        if stream is not None:
            reply.attach(stream)
            if self._is_paused:
                stream.resume()
            if self._client.is_write_paused:
                reply.pause()
        if self.head is not None:
            data, self._data = b"".join(self._data), []
            reply.on_reply(self.head, data, self._is_whole)

    def _follow(self, ended: asyncio.Future[ReplyEnd]) -> None:
        """The client's reply has ended: so has this."""
        if self.ended.done() or ended.cancelled():
            return
        bug = ended.exception()
        if bug is None:
            self.ended.set_result(ended.result())
        else:
            self.ended.set_exception(bug)
