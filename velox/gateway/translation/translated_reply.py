"""One attempt's reply on its way from the dialect of its model into that of its client (TRANSLATION in pipeline.py).

Knows: when the client may get the head, what of it passes, how a stream ends. Does not know: any dialect
(dialects/), where the request went (translators.py), or whether another attempt follows (exchange.py).

    an error of the upstream     read whole, written as the client's dialect has errors, with the same status unless its
                                 dialect means another (Bedrock's quota is a 400)
    a plain answer               read whole, written anew; beside the loop where it is large, as is a large event
    a stream                     each event is written as it comes. The head waits for the first event that tells of the
                                 model's work: an error before it has the error's own status, and may be tried again

What a reply is its bytes tell, not its label (protocol/reply_body.py): one that is compressed is decoded, events may
answer a plain request, and a whole answer one for a stream.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import ApiError, ErrorKind
from velox.dialects.openai_errors import error_json
from velox.errors import Reason, VeloxError
from velox.gateway.cpu_work import LARGE_BYTES, is_large
from velox.gateway.reply.filters import InnerError, ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Header, Headers, ReplyHead, ReplyShape, ShapeField
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.json.value_count import has_over
from velox.protocol.reply_body import BodyKind, BodyReader, CodingError
from velox.protocol.slices import drained
from velox.protocol.sse_events import MOST_REPLY_BYTES
from velox.protocol.usage.token_usage import TokenUsage

__all__ = ["ReplyTranslator", "StreamTranslator", "SubstituteReply", "TranslatedHeads", "TranslatedReply"]

_HeadKey: TypeAlias = tuple[ReplyShape, int, tuple[Header, ...], bool]

_ERRORS_FROM: Final = 400
_OVERLOADED: Final = 529
_UNAVAILABLE: Final = 503
_WITHHELD: Final = "the upstream's error showed the key that the gateway had sent; its text is withheld"
# Of what is made of it: a text that is put into another text grows by its escapes, and each block has events.
_MOST_WRITTEN_BYTES: Final = 128 * 1024 * 1024
# What goes to the client at one go.
_PIECE_BYTES: Final = 256 * 1024
# Of an error: what is longer is cut there.
_MOST_ERROR_BYTES: Final = 64 * 1024
# Of a stream, without one event for the client: pings, comments, empty events. One event may have half of it.
_MOST_FRUITLESS_BYTES: Final = 2 * MOST_REPLY_BYTES
_KEPT_HEADS: Final = 256
_JSON: Final = (b"content-type", b"application/json")
_SSE: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_CACHE: Final = (b"cache-control", b"no-cache")
_RETRY_AFTER: Final = b"retry-after"
_MOST_WAIT_S: Final = 86_400.0
# What tells of the upstream's body, or is of its dialect alone. Limits are the upstream's, as its dialect names them.
_DROPPED: Final = (b"content-", b"anthropic-", b"openai-", b"x-goog-", b"x-amzn-", b"etag", b"cache-control", b"vary")
_DROPPED_WITH_LIMITS: Final = (*_DROPPED, b"x-ratelimit-")
_KEPT: Final = frozenset({b"x-amzn-requestid"})


class StreamTranslator(Protocol):
    """One stream between two dialects."""

    @property
    def has_begun(self) -> bool:
        """True once an event has come of the model's work, or of the end."""

    @property
    def failed(self) -> ApiError | None:
        """The error that the upstream reported in its stream."""

    @property
    def is_whole(self) -> bool:
        """True once the dialect's own end has come."""

    def begin(self) -> None:
        """Write what comes from now on, though no event has come of the model's work: has_begun is True then."""

    @property
    def n_held(self) -> int:
        """Bytes of an event that is not whole yet."""

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return what the client gets. Raises BrokenReplyError."""

    def fail(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which is not whole."""


class ReplyTranslator(Protocol):
    """What one attempt needs to bring its reply back. dropped: what was left out of the request and of the answer.

    Large replies are translated in a thread: one call at a time.
    """

    @property
    def dropped(self) -> tuple[str, ...]: ...

    @property
    def tokens(self) -> TokenUsage:
        """Those of the prompt and of the answer, as far as the upstream has reported them."""

    @property
    def n_held(self) -> int:
        """Bytes of the answer that are not in its body: other calls have brought them."""

    @property
    def most_values(self) -> int:
        """How many fields and values an answer may have."""

    def answer(self, body: bytes) -> bytes:
        """Put a plain answer into the client's dialect. Raises BrokenReplyError, ReplyError."""

    def answer_of_stream(self, body: bytes) -> bytes:
        """Put a whole stream into a plain answer, for a client that asked for one. Raises as answer()."""

    def whole_stream(self, body: bytes) -> bytes:
        """Put a plain answer into the events of a stream, for a client that asked for one. Raises as answer()."""

    def stream(self) -> StreamTranslator:
        """Return what translates a stream."""

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""

    def error(self, error: ApiError) -> bytes:
        """Write an error in the client's dialect."""


class SubstituteReply(NamedTuple):
    """An answer of status 200 in place of an error. fields: of its head."""

    body: bytes
    fields: tuple[Header, ...]


class _TranslationResult(NamedTuple):
    """What came of a translation, in pieces for the client. problem: what was raised in place of it."""

    pieces: list[bytes]
    problem: Exception | None = None


class TranslatedHeads:
    """Heads of one upstream's replies as clients of other dialects get them, kept by their shape: most are alike."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Final[Memo[_HeadKey, tuple[ReplyShape, tuple[int, ...]]]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<TranslatedHeads {self._known!r}>"

    def of(
        self,
        head: ReplyHead,
        status: int,
        fields: tuple[Header, ...],
        *,
        has_limits: bool,
        length: int | None = None,
    ) -> ReplyHead:
        """Return the head that the client gets. fields: in place of those that do not pass. length: of its body."""
        shape, values = head.shape, head.values
        if not shape.is_shared:
            made, places = _translated(shape, status, fields, has_limits=has_limits)
        else:
            key = (shape, status, fields, has_limits)
            found = self._known.get(key) or self._known.find(key)
            if found is None:
                found = self._known.put(key, _translated(shape, status, fields, has_limits=has_limits))
            made, places = found
        return ReplyHead(made, tuple([values[n] for n in places]), length)


def _translated(
    shape: ReplyShape, status: int, fields: tuple[Header, ...], *, has_limits: bool
) -> tuple[ReplyShape, tuple[int, ...]]:
    """Return the shape that a client gets, and which of the values of a head it has."""
    dropped = _DROPPED if has_limits else _DROPPED_WITH_LIMITS
    chosen: list[ShapeField] = []
    places: list[int] = []
    n_values = 0
    for field in shape.fields:
        name, value = field
        n_values += value is None
        if name in _KEPT or not name.startswith(dropped):
            chosen.append(field)
            if value is None:
                places.append(n_values - 1)
    return ReplyShape(status, (*chosen, *fields), is_shared=shape.is_shared), tuple(places)


class TranslatedReply(ReplyFilter):
    """Of one attempt.

    is_stream: the client asked for one. An error inside a reply of another status is pending before it is passed
    on. on_bug: called with an error that is none of the upstream's. has_limits: Velox tells its own limits
    in fields whose names begin like the upstream's. knows_529: the client takes Anthropic's own status for an overload;
    others get 503. on_tokens: called with all kinds of tokens that the upstream reported; None: nobody counts them.
    on_head: called with the fields of a reply that is no error. secret: the key that went up, which no error may show;
    None: none. heads: of its upstream. is_array: the client gets its stream as a JSON array. instead: asked what the
    client gets in place of an error; None: the error.
    """

    __slots__ = (
        "_body",
        "_ends",
        "_has_limits",
        "_head",
        "_heads",
        "_instead",
        "_is_array",
        "_is_error",
        "_is_events",
        "_is_last",
        "_is_stream",
        "_knows_529",
        "_left",
        "_made",
        "_n_bytes",
        "_on_bug",
        "_on_head",
        "_on_tokens",
        "_pending",
        "_reader",
        "_secret",
        "_stream",
        "_translator",
        "_work",
        "_written",
    )
    order: ClassVar[int] = FilterOrder.TRANSLATION

    def __init__(
        self,
        translator: ReplyTranslator,
        on_bug: Callable[[Exception], None],
        *,
        is_stream: bool,
        has_limits: bool,
        knows_529: bool = False,
        on_tokens: Callable[[TokenUsage], None] | None = None,
        secret: bytes | None = None,
        heads: TranslatedHeads | None = None,
        on_head: Callable[[Headers], None] | None = None,
        is_array: bool = False,
        instead: Callable[[ApiError], SubstituteReply | None] | None = None,
    ) -> None:
        super().__init__()
        self._instead: Final = instead
        self._heads: Final = heads or TranslatedHeads()
        self._secret: Final = None if secret is None else secret.decode("latin-1")
        self._reader: BodyReader | None = None  # until it is known what the body is; of a coded one to its end
        self._is_events = False  # in answer to a plain request
        self._on_bug: Final = on_bug
        self._on_head: Final = on_head
        self._on_tokens: Final = on_tokens
        self._translator: Final = translator
        self._is_array: Final = is_array
        self._is_stream: Final = is_stream
        self._has_limits: Final = has_limits
        self._knows_529: Final = knows_529
        self._head: ReplyHead | None = None
        self._is_error = False
        self._stream: StreamTranslator | None = None
        self._body: list[bytes] = []
        self._n_bytes = 0
        self._written: list[bytes] = []  # of a stream whose head is held
        self._work: Callable[[], bytes] | None = None  # while has_work
        self._made: _TranslationResult | None = None  # of that
        self._ends = False  # what came last was fed with the end
        self._left: deque[bytes] = deque()  # what is written, and goes out with go_on()
        self._is_last = False
        self._pending: tuple[ApiError, tuple[Header, ...]] | None = None  # an undecided error

    @property
    def holds(self) -> bool:
        return not self._left  # only whole events are written

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back. Raises nothing: what can't be read is said by feed()."""
        self._head = head
        self._is_error = head.status >= _ERRORS_FROM
        self._reader = BodyReader(head.headers)
        if self._is_stream and not self._is_error and (is_sse or not _is_json(head)):
            self._stream = self._translator.stream()
        return None

    def begins_stream(self) -> bool:
        """Let the head of a stream of events go: an error from now on is an event of it."""
        if self._stream is None or self._is_array or self.released is not None or self.is_behind:
            return False  # the first event is in the making
        self._stream.begin()
        return True

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came. Raises UpstreamFailure."""
        try:
            if self._reader is not None:
                data = self._plain(self._reader, data, end)
            stream = self._stream
            if stream is None:
                return self._feed_whole(data, end)
            is_long = self._n_bytes > LARGE_BYTES and stream.n_held > LARGE_BYTES
            self._n_bytes += len(data)
            if is_long:
                return self._begin_work(partial(stream.feed, data, end), end)
            return self._on_text(stream, _in_pieces(stream.feed(data, end)), end)
        except UpstreamFailure:
            raise
        except Exception as exc:
            raise self._failure(exc) from exc

    def work(self) -> None:
        """Translate what would hold the loop."""
        work, self._work = self._work, None
        assert work is not None, "there is work"
        self._made = _made(work)

    def go_on(self) -> bytes:
        """Return what has come of the work, the next piece of it, or the pending error. Raises UpstreamFailure."""
        if self._pending is not None:
            error, wait = self._pending
            self._pending = self.pending_error = None
            self.is_behind, self.is_over = False, True
            return self._release_error(error, wait)
        made, self._made = self._made, None
        if made is None:
            return self._next_piece()
        self.has_work = self.is_behind = False
        try:
            if self._stream is None:
                return self._take(made)
            if made.problem is not None:
                raise self._failure(made.problem)
            return self._on_text(self._stream, made.pieces, self._ends)
        except UpstreamFailure:
            raise
        except Exception as exc:
            raise self._failure(exc) from exc

    def cut(self, error: VeloxError) -> bytes | None:
        """Return the event that says that the stream is not whole."""
        stream = self._stream
        if self.has_work or stream is None or self.released is None or stream.failed is not None or stream.is_whole:
            return None
        code = error.reason.code
        said = stream.fail(ApiError(_kind(error.status), error.status, error.message, code))
        if self._left:  # the client is inside an event
            return None if self._is_array else b"\n\n" + said
        return b"".join(self._written) + said

    def _plain(self, reader: BodyReader, data: bytes, end: bool) -> bytes:
        """Return the text of what came, and see what the body is. Raises BrokenReplyError."""
        is_known, n_bytes = reader.kind is not None, len(data)
        try:
            data = reader.feed(data, end)
        except CodingError as exc:
            if self._is_error:
                return b""  # its status tells
            raise BrokenReplyError(str(exc)) from exc
        if not is_known and reader.kind is not None and not self._is_error:
            self._choose(reader.kind)
        if reader.kind is None:
            self._n_bytes += n_bytes  # of blanks
            if self._n_bytes > _MOST_FRUITLESS_BYTES:
                raise BrokenReplyError(f"it begins with over {_MOST_FRUITLESS_BYTES} bytes of white space")
        elif not reader.decodes:
            self._reader = None
        return data

    def _choose(self, kind: BodyKind) -> None:
        """Choose how the body is read, by what it is. Raises BrokenReplyError."""
        if kind is BodyKind.HTML:
            raise BrokenReplyError("it is a page of HTML")
        if not self._is_stream:
            self._is_events = kind is BodyKind.EVENTS
        elif kind is BodyKind.OBJECT and self.released is None:
            self._stream = None
        elif kind in (BodyKind.EVENTS, BodyKind.ARRAY) and self._stream is None:
            self._stream = self._translator.stream()

    def _begin_work(self, work: Callable[[], bytes], end: bool) -> bytes:
        self._work, self._ends = work, end
        self.is_behind = self.has_work = True
        return b""

    def _failure(self, problem: Exception) -> UpstreamFailure:
        """Return why the reply can't be translated."""
        if isinstance(problem, BrokenReplyError):
            return UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's reply can't be translated: {problem}")
        self._on_bug(problem)
        message = "an error inside Velox ended the translation of this reply; it was recorded"
        return UpstreamFailure(Reason.INTERNAL, message)

    def _first_of(self, pieces: list[bytes], *, is_over: bool = False) -> bytes:
        """Return what goes to the client first; go_on() returns the rest. is_over: nothing more follows it."""
        if len(pieces) == 1:
            self.is_over = is_over
            return pieces[0]
        self._left, self._is_last, self.is_behind = deque(pieces), is_over, True
        return self._next_piece()

    def _next_piece(self) -> bytes:
        piece = self._left.popleft()  # from here on the client holds it
        if not self._left:
            self.is_behind, self.is_over = False, self._is_last
        return piece

    def _on_text(self, stream: StreamTranslator, pieces: list[bytes], end: bool) -> bytes:
        """Return what goes on of what was made of a part of a stream."""
        if self._on_tokens is not None:
            self._on_tokens(self._translator.tokens)
        if pieces[0] and self.released is not None:
            self._n_bytes = 0
        if self._n_bytes > _MOST_FRUITLESS_BYTES:
            raise BrokenReplyError(f"it has sent over {_MOST_FRUITLESS_BYTES} bytes without an event for the client")
        failed = stream.failed
        if failed is not None and stream.has_begun and self._shows_secret(failed):
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, _WITHHELD)
        if self.released is not None:
            if end and not stream.is_whole and failed is None:
                self._written = pieces  # goes out before the event that says that it was cut
                raise _truncated()
            return self._first_of(pieces, is_over=stream.is_whole or failed is not None)
        if failed is not None and not stream.has_begun:
            return self._fail(failed)
        if end and not stream.is_whole and failed is None:
            raise _truncated()
        self._written += pieces
        if not stream.has_begun:
            return b""
        self._n_bytes = 0
        self._release(200, *((_JSON,) if self._is_array else (_SSE, _CACHE)))
        pieces, self._written = self._written, []
        if sum(map(len, pieces)) <= _PIECE_BYTES:
            pieces = [b"".join(pieces)]
        return self._first_of(pieces, is_over=stream.is_whole or failed is not None)

    def _feed_whole(self, data: bytes, end: bool) -> bytes:
        if self._is_error and self._n_bytes + len(data) > _MOST_ERROR_BYTES:
            data = data[: _MOST_ERROR_BYTES - self._n_bytes]
        self._body.append(data)
        self._n_bytes += len(data)
        if self._n_bytes > MOST_REPLY_BYTES:
            raise BrokenReplyError(f"it is over {MOST_REPLY_BYTES} bytes")
        if not end:
            return b""
        pieces, self._body = self._body, []
        head = self._head
        assert head is not None, "a body comes after its head"
        if self._is_error:
            error = self._translator.read_error(head.status, head.headers, b"".join(pieces))
            instead = None if self._instead is None else self._instead(error)
            if instead is not None:
                self._release(200, _JSON, *instead.fields)
                return instead.body
            return self._fail(error)
        if self._on_head is not None:
            self._on_head(head.headers)
        translator = self._translator
        work = partial(_answer_of_stream_body, translator, pieces, is_stream=self._is_stream, is_events=self._is_events)
        if is_large(pieces) or translator.n_held > LARGE_BYTES:
            return self._begin_work(work, end)
        return self._take(_made(work))

    def _take(self, made: _TranslationResult) -> bytes:
        """Return what goes on of a plain answer's translation."""
        pieces, problem = made
        if isinstance(problem, ReplyError):
            return self._fail(problem.error)
        if problem is not None:
            raise self._failure(problem)
        if self._on_tokens is not None:
            self._on_tokens(self._translator.tokens)
        head = self._head
        assert head is not None, "a body comes after its head"
        fields = (_SSE, _CACHE) if self._is_stream and not self._is_array else (_JSON,)
        length = None if len(pieces) == 1 or self._is_stream else sum(map(len, pieces))
        self._release(head.status, *fields, length=length)
        return self._first_of(pieces)

    def _fail(self, error: ApiError) -> bytes:
        """Answer with an error. If its status is not that of the reply, the exchange decides first."""
        head = self._head
        assert head is not None, "a body comes after its head"
        wait: tuple[Header, ...] = ()
        if error.retry_after_s is not None and not any(name == _RETRY_AFTER for name, _ in head.headers):
            wait = ((_RETRY_AFTER, b"%d" % math.ceil(min(error.retry_after_s, _MOST_WAIT_S))),)
        if error.status != head.status:
            head_of_error = ReplyHead.of(error.status, [*head.headers, *wait], None)
            self.pending_error, self._pending = InnerError(head_of_error, error_json(error)), (error, wait)
            self.is_behind = True
            return b""
        return self._release_error(error, wait)

    def _release_error(self, error: ApiError, wait: tuple[Header, ...]) -> bytes:
        self._release(error.status, _JSON, *wait)
        return self._translator.error(self._without_secret(error))

    def _shows_secret(self, error: ApiError) -> bool:
        """Say whether an error shows the key. In an escaped or compressed body no search of the bytes would find it."""
        secret = self._secret
        if not secret:
            return False
        return any(secret in text for text in (error.message, error.code, error.param) if text)

    def _without_secret(self, error: ApiError) -> ApiError:
        if not self._shows_secret(error):
            return error
        return ApiError(error.kind, error.status, _WITHHELD, retry_after_s=error.retry_after_s)

    def _release(self, status: int, *fields: tuple[bytes, bytes], length: int | None = None) -> None:
        assert self._head is not None, "a body comes after its head"
        if self._translator.dropped:
            fields += ((b"x-velox-dropped", ",".join(self._translator.dropped).encode("ascii")),)
        if status == _OVERLOADED and not self._knows_529:
            status = _UNAVAILABLE
        self.released = self._heads.of(self._head, status, fields, has_limits=self._has_limits, length=length)


def _is_json(head: ReplyHead) -> bool:
    return any(name == b"content-type" and b"json" in value.lower() for name, value in head.headers)


def _answer_of_stream_body(
    translator: ReplyTranslator, pieces: list[bytes], *, is_stream: bool, is_events: bool
) -> bytes:
    """Return a whole answer in the client's dialect. pieces: of its body, let go. is_events: it is a stream."""
    body = drained(pieces)
    most = translator.most_values
    if has_over(body, most):
        raise BrokenReplyError(f"it has over {most:,} fields and values")
    if is_events:
        written = translator.answer_of_stream(body)
    else:
        written = translator.whole_stream(body) if is_stream else translator.answer(body)
    if len(written) > _MOST_WRITTEN_BYTES:
        raise BrokenReplyError(f"it would have over {_MOST_WRITTEN_BYTES} bytes for this client")
    return written


def _made(work: Callable[[], bytes]) -> _TranslationResult:
    """Return what comes of it. What it raises is kept, and not raised where others could be led to by a traceback."""
    try:
        return _TranslationResult(_in_pieces(work()))
    except Exception as exc:
        return _TranslationResult([], exc)


def _in_pieces(text: bytes) -> list[bytes]:
    if len(text) <= _PIECE_BYTES:
        return [text]
    return [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]


def _truncated() -> UpstreamFailure:
    return UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream's stream ended without the end of its dialect")


def _kind(status: int) -> ErrorKind:
    """Return what an error of Velox's own is about, as far as its status tells."""
    kinds = {kind.value: kind for kind in ErrorKind}
    return kinds.get(status, ErrorKind.API if status >= 500 else ErrorKind.INVALID)
