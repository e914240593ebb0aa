"""What one exchange took of its model, as far as its reply tells.

Knows: which replies can be read, and what is counted where they say nothing. Does not know: limits, or who is charged.
An exchange whose tokens nobody counts has no meter, and its reply is looked at no more than without one.
"""

from __future__ import annotations

from typing import ClassVar, Final

from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.gateway.reply.reply import AnsweringAttempt
from velox.heads import ReplyHead
from velox.protocol.json.edit import ask_for_usage
from velox.protocol.reply_body import BodyKind, BodyReader, CodingError, kind_of
from velox.protocol.usage.reader import GOOGLE_KEY, UNITS_KEY, ArrayUsage, BodyUsage, StreamUsage, Usage
from velox.protocol.usage.strip import UsageStrip
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import BodyFields, Dialect, Endpoint

__all__ = ["NOTHING_USED", "Meter", "Usage", "UsageFilter", "metered", "usage_key", "usage_of"]

# The usage of their streams is sent only if it is asked for. The streams of others always end with it.
_ASKED: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_ERRORS_FROM: Final = 400
_KEY: Final = b'"usage"'
# Their replies may count other units than tokens.
_UNITS: Final = frozenset({Endpoint.VIDEOS, Endpoint.RERANK, Endpoint.OTHER})
_MOST_BEGUN: Final = 64  # more than blanks before a body, and the name of an event's first field
_NOTHING: Final = Usage(None, None, False)
_NO_EVENT: Final = Usage(None, 0, False)
# Of a request that no model has worked for.
NOTHING_USED: Final = Usage(0, 0, False)


class Meter(ReplyFilter):
    """Reads the usage of one reply. is_stream: the client asked for a stream. key: what the usage is called there."""

    __slots__ = (
        "_begun",
        "_body",
        "_has_begun",
        "_has_ended",
        "_is_failed",
        "_is_stream",
        "_key",
        "_noted",
        "_reader",
    )
    order: ClassVar[int] = FilterOrder.METERING
    only_reads = True

    def __init__(self, *, is_stream: bool = False, key: bytes = _KEY) -> None:
        super().__init__()
        self._key: Final = key
        self._is_stream: Final = is_stream
        self._has_begun = False
        self._has_ended = False
        self._is_failed = False
        self._body: BodyReader | None = None  # of one that is compressed, though nobody asked for that
        self._begun: bytes | None = None  # of its text, while that does not say what it is
        self._reader: BodyUsage | StreamUsage | ArrayUsage | None = None
        self._noted: TokenUsage | None = None

    def note(self, told: TokenUsage) -> None:
        """Take the tokens from who translates the reply, and has read them already."""
        self._noted = told

    def forget(self) -> None:
        """Another attempt begins, whose reply may need no translation: what the one before told is not of it."""
        self._noted = None

    def __repr__(self) -> str:
        return f"<Meter {self._reader!r}>"

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Note the head that the client gets."""
        self._has_begun, self._has_ended = True, False
        self._is_failed = head.status >= _ERRORS_FROM
        self._body, self._begun = None if is_plain else BodyReader(head.headers), b""
        if self._is_failed:
            self._reader = None
        elif self._is_stream and not is_sse and self._key == GOOGLE_KEY:
            self._reader = ArrayUsage()
        else:
            self._reader = StreamUsage(self._key) if is_sse else BodyUsage(self._key)
        self.reads_body = self._reader is not None
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Read what came of the body."""
        self._has_ended = end
        if data and self.reads_body:  # else there is no reader
            text = data if self._body is None else self._decoded(self._body, data, end)
            if self._begun is not None:
                if text.startswith(b"{") and not self._begun and isinstance(self._reader, BodyUsage):
                    self._begun = None  # as it is labelled: most are
                else:
                    text = self._begin(self._begun + text, end)
            reader = self._reader
            if text and reader is not None:
                if self._noted is None:
                    reader.feed(text)
                elif isinstance(reader, StreamUsage):
                    reader.count(text)
        return data

    def _decoded(self, body: BodyReader, data: bytes, end: bool) -> bytes:
        """Return what there is to read of a compressed reply, which passes as it came."""
        try:
            return body.feed(data, end)
        except CodingError:
            self._reader = None  # nothing is known of it
            return b""

    def _begin(self, text: bytes, end: bool) -> bytes:
        """Take a reply for what its first bytes say, where its label says something else; return what is to be read."""
        kind = kind_of(text)
        if kind is None and not end and len(text) < _MOST_BEGUN:
            self._begun = text
            return b""
        self._begun = None
        if kind is BodyKind.OBJECT and isinstance(self._reader, StreamUsage):
            self._reader = BodyUsage(self._key)
        elif kind is BodyKind.EVENTS and not isinstance(self._reader, StreamUsage):
            self._reader = StreamUsage(self._key)
        return text

    def kinds(self) -> TokenUsage:
        """Return what the reply tells of each kind of tokens, after its last byte. All None: it tells nothing."""
        if self._reader is None or self._is_failed:
            return TokenUsage()
        # Some of it a client's API can't say (an hour in the cache, the tier): the upstream's own words count.
        return self._reader.kinds() if self._noted is None else self._noted

    def usage(self, *, is_whole: bool, least: int = 0) -> Usage:
        """Return what was used. is_whole: the reply came to its end.

        None where nothing is known, and the estimate is all there is: no reply came, or one that can't be read, or says
        nothing. Of a stream that was cut, or never tells, each event so far counts as a token of the answer. least: the
        fewest that they may be; fewer events tell nothing. It is the estimate of a model that reasons: what it thinks
        costs, and is in no event.
        """
        if self._is_failed:
            return NOTHING_USED  # an upstream's error: no work was done
        reader = self._reader
        if reader is None:
            return _NO_EVENT if self._is_stream and not self._has_begun and not least else _NOTHING
        is_stream = isinstance(reader, StreamUsage)
        if not is_stream and not (is_whole or self._has_ended):
            return _NOTHING  # where in a body a usage stands is known at its end
        noted = self._noted
        prompt, answer = reader.tokens() if noted is None else (noted.input, noted.output)
        if isinstance(reader, StreamUsage) and (answer is None or not is_whole):
            made = max(answer or 0, reader.n_events)
            return Usage(prompt, None if made < least else made, False)
        return Usage(prompt, answer, is_whole and prompt is not None and answer is not None)


class UsageFilter(ReplyFilter):
    """Takes out of a stream the usage that only Velox asked for."""

    __slots__ = ("_strip",)
    order: ClassVar[int] = FilterOrder.USAGE_EVENT

    def __init__(self) -> None:
        super().__init__()
        self._strip = UsageStrip()

    @property
    def holds(self) -> bool:
        return self._strip.holds

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Take nothing out of errors, and of a body whose length was announced."""
        self._strip = UsageStrip()  # of this attempt's reply
        self.reads_body = is_sse and head.status < _ERRORS_FROM and head.content_length is None
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return what the client gets, whole events only."""
        return self._strip.feed(data, end)


def usage_of(
    meter: Meter, answering: AnsweringAttempt | None, named: str | None, least: int, *, is_whole: bool
) -> Usage:
    """Return what a reply used, as Meter.usage(). least: that it was, of a model that reasons and does not tell.

    Who answers is asked only where the reply does not tell.
    """
    usage = meter.usage(is_whole=is_whole)
    if usage.is_exact or usage.output is None or answering is None or not answering.reasons(named):
        return usage
    return meter.usage(is_whole=is_whole, least=least)


def usage_key(endpoint: Endpoint, dialect: Dialect) -> bytes:
    """Return what the usage is called in replies of an endpoint to clients of a dialect."""
    is_google = endpoint is Endpoint.GENERATE or (endpoint is Endpoint.EMBEDDINGS and dialect is Dialect.GOOGLE)
    return GOOGLE_KEY if is_google else UNITS_KEY if endpoint in _UNITS else _KEY


def metered(
    body: bytes | bytearray | None,
    fields: BodyFields,
    endpoint: Endpoint,
    dialect: Dialect = Dialect.OPENAI,
) -> tuple[Meter, tuple[ReplyFilter, ...], bytes | bytearray | None]:
    """Return the meter of an exchange, the filters of its reply, and the body to send: one that asks for the usage.

    Once for an exchange, before its first attempt: a bytearray is changed in place. dialect: of the client.
    """
    meter = Meter(is_stream=fields.stream, key=usage_key(endpoint, dialect))
    asking = ask_for_usage(body, fields) if body and fields.stream and endpoint in _ASKED else None
    return (meter, (meter,), body) if asking is None else (meter, (meter, UsageFilter()), asking)
