"""A reply of status 200 held back until it is known to be no error: the upstream may still be given up for another one.

Providers answer 200 and tell of an error in the first event of a stream, or in the body: an overload that came up after
the head was sent, an error of the provider behind them. Nothing has gone to the client then, so the reply counts as one
with the status that the error names.

Knows: how much is held back, and where an error stands in each API. Does not know: whether another attempt follows
(exchange.py), or an error that comes later, which is an event of the stream.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.openai_errors import api_error, error_json
from velox.errors import Reason
from velox.gateway.reply.error_body import JSON, OF_THE_BODY, ErrorRedaction
from velox.gateway.reply.filters import InnerError, ReplyFilter
from velox.gateway.reply.first_event import MOST_PRELUDES_BYTES, FirstEventWatch, is_prelude
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.reply_body import BodyKind, BodyReader, CodingError, kind_of
from velox.protocol.sse_events import SseEvents
from velox.types import Dialect

__all__ = [
    "BEGIN_BYTES",
    "ERROR_MARK",
    "LEAST_READ",
    "MOST_HELD",
    "EarlyErrorGate",
    "may_be_error",
    "may_have_failed",
]

# Errors are short. A longer first event, or body, is none and passes.
MOST_HELD: Final = 64 * 1024
# Where an error stands in a body, it begins in these first bytes. Fewer are waited for.
LEAST_READ: Final = 256
# An error stands in each of them; most answers have none of these. Linear: what is repeated is one class of bytes.
_ERROR: Final = re.compile(rb'"error"[ \t\r\n]*+:[ \t\r\n]*+["{\[]|"(?:type|object)"[ \t\r\n]*+:[ \t\r\n]*+"error"')
ERROR_MARK: Final = b'"error"'
# Where a body is an error it begins with it: {"error": ...}, [{"error": ...}], {"type": "error", ...}.
BEGIN_BYTES: Final = 32
# But an answer of OpenAI's Responses tells by its status, one of the first of its fields, that it has failed.
_FAILED_MARK: Final = b'"failed"'
_STATUS_BYTES: Final = 1024
# Of what was held: more passes piece by piece, each in a turn, as those who read on look at every byte.
_AT_ONCE_BYTES: Final = 256 * 1024
_OVERLOADED: Final = 529
_UNAVAILABLE: Final = 503


def may_be_error(data: bytes) -> bool:
    """Return True if an error may stand in the first bytes of a body, and False for most that have none."""
    return data.find(ERROR_MARK) >= 0 and _ERROR.search(data) is not None


def may_have_failed(data: bytes) -> bool:
    """Return True if an answer of OpenAI's Responses that begins so may tell that it has failed."""
    return data.find(_FAILED_MARK, 0, _STATUS_BYTES) >= 0


class _Error(NamedTuple):
    """What is answered in place of a reply of status 200."""

    status: int
    body: bytes


_NO_ERROR: Final = _Error(0, b"")


class EarlyErrorGate(ReplyFilter):
    """Of one reply of status 200 to a request whose answer is JSON or an event stream.

    secret: the key that went up, which no error may show; None: none. dialect: of the client, who may know Anthropic's
    own status for an overload. An error is pending before it is passed on. feed() raises UpstreamFailure for what
    is no reply.
    """

    __slots__ = (
        "_dialect",
        "_events",
        "_has_expired",
        "_head",
        "_held",
        "_left",
        "_n_before",
        "_n_held",
        "_reader",
        "_secret",
        "_text",
        "_watch",
    )
    order: ClassVar[int] = FilterOrder.ERROR_GATE

    def __init__(self, secret: bytes | None, dialect: Dialect) -> None:
        super().__init__()
        self._secret: Final = secret
        self._dialect: Final = dialect
        self._head: ReplyHead | None = None
        self._held: list[bytes] = []
        self._left: Final[deque[bytes]] = deque()  # of what was held, and passes
        self._n_held = 0
        self._n_before = 0  # bytes that came with no more than preludes
        self._watch: FirstEventWatch | None = None  # of an event stream, as long as it says nothing yet
        self._events: SseEvents | None = None  # of an event stream
        self._has_expired = False
        self._reader: BodyReader | None = None  # of one that is compressed
        self._text: list[bytes] = []  # of that, which passes as it came

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back."""
        self._head = head
        if not is_plain:
            self._reader = BodyReader(head.headers)
        elif is_sse:
            self._events = SseEvents(MOST_PRELUDES_BYTES)
            self._watch = FirstEventWatch()
        return None

    def expire(self) -> None:
        """Let everything pass with the next feed(): the client is not to wait for the head any longer."""
        self._has_expired = True

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return all of it once it is no error. Raises UpstreamFailure."""
        self._held.append(data)
        self._n_held += len(data)
        # Over HTTP/2 the end may follow in a frame of its own; all that was announced is the whole of it.
        head, events = self._head, self._events
        end = end or (head is not None and self._n_held == head.content_length)
        if self._has_expired or self._is_too_long(data) or not self._is_legible(data, end):
            return self._pass()
        error = self._body_error(end) if events is None else self._event_error(events, data, end)
        if error is None:
            return b""
        return self._pass() if error is _NO_ERROR else self._fail(error)

    def _is_too_long(self, data: bytes) -> bool:
        """Say whether more is held than an error is long. Of a stream, what says nothing yet comes before that."""
        watch = self._watch
        if watch is None:
            return self._n_held - self._n_before > MOST_HELD
        if watch.feed(data):
            self._watch, self._n_before = None, self._n_held - len(data)
            return len(data) > MOST_HELD
        return self._n_held > MOST_PRELUDES_BYTES

    def _is_legible(self, data: bytes, end: bool) -> bool:
        """Read what came of a compressed body; return whether that can be done."""
        if self._reader is not None:
            try:
                self._text.append(self._reader.feed(data, end))
            except CodingError:
                return False
        return True

    def go_on(self) -> bytes:
        """Return the pending error, or the next piece of what was held."""
        if self.pending_error is not None:
            return self._tell(self.pending_error)
        piece = self._left.popleft()
        self.is_behind = bool(self._left)
        return piece

    def _pass(self) -> bytes:
        held, self._held = self._held, []
        self._end(self._head)
        if self._n_held <= _AT_ONCE_BYTES:
            return b"".join(held)
        self._left.extend(held)
        return self.go_on()

    def _end(self, head: ReplyHead | None) -> None:
        self.reads_body = False
        self.released = head
        self._events = self._watch = self._reader = None
        self._text = []

    def _event_error(self, events: SseEvents, data: bytes, end: bool) -> _Error | None:
        """Return the error that the first event tells of, or _NO_ERROR; None: not yet known. Raises UpstreamFailure."""
        try:
            found = events.feed(data)
            if end:
                found += events.end()
        except BrokenReplyError:
            return _NO_ERROR
        for name, text in found:
            if not is_prelude(name, text):
                return _error_in(text)
        if end:
            raise UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream's stream ended without an event")
        return None

    def _body_error(self, end: bool) -> _Error | None:
        """Return the error that a body is, or _NO_ERROR; None: more must come. Raises UpstreamFailure."""
        held = b"".join(self._held if self._reader is None else self._text)
        if kind_of(held) is BodyKind.HTML:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream answered with a page of HTML, not with JSON")
        if end:
            if not held.strip():
                message = "the upstream answered with an empty body, not with JSON"
                raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message)
            return _error_in(held)
        return None if len(held.lstrip()) < LEAST_READ or may_be_error(held) else _NO_ERROR

    def _fail(self, error: _Error) -> bytes:
        """Ask about an error of the status that it names."""
        head = self._head
        assert head is not None, "an error comes after the head"
        status, body = error
        if status == _OVERLOADED and self._dialect is not Dialect.ANTHROPIC:
            status = _UNAVAILABLE
        headers = [field for field in head.headers if field[0] not in OF_THE_BODY]
        self.pending_error = InnerError(ReplyHead.of(status, [*headers, JSON], len(body)), body)
        self.is_behind = True
        return b""

    def _tell(self, error: InnerError) -> bytes:
        """Answer with the error."""
        made, body = error
        self.pending_error = None
        self.is_behind = False
        self._held = []
        self.is_over = True
        if self._secret:
            redaction = ErrorRedaction(self._secret, self._dialect)
            redaction.begin(made, is_sse=False, is_plain=True)
            body = redaction.feed(body, True)
            assert redaction.released is not None, "the whole error is there"
            made = redaction.released
        self._end(made)
        return body


def _error_in(text: bytes) -> _Error:
    """Return the error that a reply of status 200, or its first event, tells of, or _NO_ERROR.

    Raises nothing: what is no JSON is the client's to judge.
    """
    if not may_be_error(text):
        return _NO_ERROR
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _NO_ERROR
    if isinstance(document, list) and document:
        document = document[0]  # Gemini's streams that are no events
    if isinstance(document, dict) and document.get("type") == "response.failed":
        document = document.get("response")
    told = _error_of(document) if isinstance(document, dict) else None
    if told is None:
        return _NO_ERROR
    error = api_error(orjson.dumps(told))
    if told is document or "choices" in document or document.get("object") == "response":
        return _Error(error.status, error_json(error))
    return _Error(error.status, text)


def _error_of(document: dict[str, Any]) -> object | None:
    """Return the error of an object: {"error": ...} of most APIs, {"type": "error"} of Responses, old vLLM's object."""
    error: object = document.get("error")
    if error:
        return error
    if document.get("type") == "error" or document.get("object") == "error":
        return document
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(first, dict) and first.get("finish_reason") == "error":
        told: object = first.get("error")
        return told or {"message": "the upstream ended its answer with an error"}  # OpenRouter
    return None
