"""Translators: a request of one dialect to a model of another, and its reply back; one for each attempt.

    GenerationTranslator     text is generated
    InvokeTranslator         Claude on Bedrock for a client of Messages: only the wire wrapper differs
    NonStreamingTranslator   what is answered by one body: counts, embeddings

Knows: that names and ids which a model's API can't take are put back in the answer. Does not know: which dialects
there are (adapter.py), heads and filters (translated_reply.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from velox.dialects.as_sent.claude_wrapper import InvokeStream, bedrock_error
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ClientSide,
    Close,
    Delta,
    End,
    Event,
    Failed,
    Finish,
    Image,
    Kind,
    Lost,
    Modalities,
    ModelSide,
    Open,
    Pictured,
    Refusal,
    Start,
    Stop,
    StopReason,
    StreamReader,
    StreamWriter,
    Text,
    ToolUse,
    Usage,
    Used,
    Work,
    Written,
)
from velox.dialects.counting import Counting
from velox.dialects.embeddings.gemini_clients import GoogleEmbeddings
from velox.dialects.embeddings.other_models import ModelEmbeddings
from velox.dialects.json_text.surrogates import first_document
from velox.dialects.json_text.text import EMPTY, decoded, quoted
from velox.dialects.streams.citations import CitedTexts
from velox.dialects.streams.events import answer_of, events_of
from velox.dialects.tools.argument_keys import ArgumentKeys, with_keys
from velox.heads import Headers
from velox.protocol.error_meaning import REFUSING, is_too_long
from velox.protocol.json.value_count import MOST_VALUES
from velox.protocol.slices import concatenated, let_go
from velox.protocol.usage.token_usage import TokenUsage

__all__ = ["GenerationTranslator", "InvokeTranslator", "NonStreamingTranslator"]

_TOO_LONG: Final = "context_length_exceeded"
_STOP: Final = "answer.stop"  # why it ended, in a word that nobody knows
_PICTURE: Final = "answer.image"
_NOTHING: Final = Written(b"")
_NO_USAGE: Final = Usage()
_EVENTS: Final = "it is an event stream, where no API has one"
_TEXT_ONLY: Final = Modalities()
_MEDIA: Final = {f"answer.{kind}": kind for kind in ("image", "audio", "video", "file")}
_THOUGHTS: Final = (Kind.THINKING, Kind.REDACTED)
# Of an answer that is written as the events of a stream.
_MOST_EVENTS_BYTES: Final = 128 * 1024 * 1024
# Of vectors, each number of which is a value: what fits into a reply has no more.
_MOST_NUMBERS: Final = 8_000_000


class GenerationTranslator:
    """The translator of one attempt that generates text."""

    __slots__ = ("_answered", "_client", "_dropped", "_model", "_searches", "_stream", "_usage", "_written")
    most_values: Final = MOST_VALUES

    def __init__(self, client: ClientSide, model: ModelSide, dropped: DroppedFields) -> None:
        self._client: Final = client
        self._model: Final = model
        self._dropped: Final = dropped
        self._written = _NOTHING
        self._searches = False  # the request asks for a search of the web
        self._stream: _GenerationStream | None = None
        self._usage = _NO_USAGE
        self._answered = ""  # the model

    def __repr__(self) -> str:
        return f"<GenerationTranslator {type(self._client).__name__} {type(self._model).__name__}>"

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields of the request that were left out, and what the answer has lost so far."""
        return self._dropped.names

    @property
    def tokens(self) -> TokenUsage:
        """Return all kinds of them, as far as the upstream has reported them."""
        if self._stream is None:
            return _all_kinds(self._usage, self._answered)
        return _all_kinds(self._stream.usage, self._stream.model)

    @property
    def n_held(self) -> int:
        """The answer is one body."""
        return 0

    def request(self, body: bytes | bytearray, model: str) -> bytes:
        """Return the body to send. model: the one to ask for. Raises BadRequestError."""
        request = self._client.read(body)
        self._searches = request.web_search is not None
        try:
            self._written = self._model.write(request, model)
        except BadRequestError as exc:
            raise BadRequestError(exc.message, self._client.own_path(exc.param), exc.details) from exc
        let_go(request.messages)
        return self._written.body

    def answer(self, body: bytes) -> bytes:
        """Put a plain answer into the client's dialect. Raises BrokenReplyError, ReplyError."""
        answer = self._read(body)
        written = self._client.answer(answer)
        let_go(answer.blocks)
        return written

    def answer_of_stream(self, body: bytes) -> bytes:
        """Put a whole stream into a plain answer. Raises BrokenReplyError, ReplyError."""
        reader = self._model.stream()
        events = reader.feed(body)
        return self._client.answer(self._shown(answer_of([*events, *reader.end()])))

    def whole_stream(self, body: bytes) -> bytes:
        """Put a plain answer into the events of a stream. Raises as answer()."""
        return _events(self._client.stream(), events_of(self._read(body)))

    def stream(self) -> _GenerationStream:
        """Return what translates a stream."""
        cited = CitedTexts() if self._searches else None
        reader, writer, pictures = self._model.stream(), self._client.stream(), self._client.takes_pictures
        self._stream = _GenerationStream(reader, writer, self._written, self._dropped, cited, takes_pictures=pictures)
        return self._stream

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""
        return self._model.error(status, body, _named(headers))

    def error(self, error: ApiError) -> bytes:
        """Write an error in the client's dialect. Agents shorten their conversation where it has OpenAI's code."""
        if error.status in REFUSING and error.code != _TOO_LONG and is_too_long(error.message):
            error = msgspec.structs.replace(error, code=_TOO_LONG)
        return self._client.error(error)

    def _read(self, body: bytes) -> Answer:
        """Read an answer. What follows on its JSON is none of it: some servers end it as a stream."""
        try:
            answer = self._model.answer(body)
        except BrokenReplyError:
            first = first_document(body)
            if first is None:
                raise
            answer = self._model.answer(first)
        return self._shown(answer)

    def _shown(self, answer: Answer) -> Answer:
        """Return an answer as the client knows its tools; note what it tells."""
        self._stream = None
        kinds: list[type] = list(map(type, answer.blocks))
        if ToolUse in kinds:
            self._show_calls(answer.blocks, kinds)
        if Image in kinds and not self._client.takes_pictures:
            answer.lost = tuple(dict.fromkeys((*answer.lost, _PICTURE)))
            answer.blocks = [block for block in answer.blocks if not isinstance(block, Image)]
        if answer.stop.unknown is not None:
            self._dropped.lose(_STOP)
        self._usage, self._answered = answer.usage, answer.model
        if answer.lost:
            for field in answer.lost:
                self._dropped.lose(field)
            if not any(map(_says, answer.blocks)):
                _check_media(answer.lost, answer.stop)
        return answer

    def _show_calls(self, blocks: Sequence[AnswerBlock], kinds: Sequence[type]) -> None:
        """Show the calls as _Calls does, and their arguments. kinds: of the blocks."""
        written = self._written
        keys = written.keys
        if not (keys or written.ids or written.names) and kinds.count(ToolUse) == 1:
            block = blocks[kinds.index(ToolUse)]
            if isinstance(block, ToolUse) and block.name:
                return  # nearly all answers: there is nothing to tell it from, and nothing to restore
        calls = _Calls(written)
        for block in blocks:
            if isinstance(block, ToolUse):
                calls.show(block)
                if keys and block.name in keys:
                    block.arguments = with_keys(block.arguments, keys[block.name])


def _says(block: AnswerBlock) -> bool:
    return isinstance(block, ToolUse | Refusal | Image) or (isinstance(block, Text) and block.text != EMPTY)


def _check_media(lost: Sequence[str], stop: Stop) -> None:
    """Raise BrokenReplyError for an answer that says nothing else than what is lost: an empty one would be untrue."""
    kinds = [_MEDIA[field] for field in lost if field in _MEDIA]
    if kinds and stop.reason is not StopReason.FILTER:
        raise BrokenReplyError(f"the model answered with {' and '.join(kinds)} alone, and Velox can't carry that over")


class _Calls:
    """The ids and names of an answer's calls, as the client knows them: each id once, and no name empty."""

    __slots__ = ("_given", "_ids", "_names")

    def __init__(self, written: Written) -> None:
        self._ids: Final = written.ids
        self._names: Final = written.names
        self._given: Final[set[str]] = set()

    def show(self, call: ToolUse | Open) -> None:
        """Change the id, "" where the writer is to make one, and the name. Raises BrokenReplyError: it has no name.

        Some servers give two calls one id; the next request of the client would be refused (Anthropic, OpenAI).
        """
        if not call.name:
            raise BrokenReplyError("a call of the upstream's answer names no tool")
        if call.id in self._given:
            call.id = ""
        elif call.id:
            self._given.add(call.id)
            if self._ids:
                call.id = self._ids.get(call.id, call.id)
        if self._names:
            call.name = self._names.get(call.name, call.name)


class _GenerationStream:
    """One stream."""

    __slots__ = (
        *("_calls", "_cited", "_has_said", "_keys", "_dropped", "_lost", "_reader", "_writer", "_written"),
        "_takes_pictures",
        *("failed", "has_begun", "is_whole", "model", "usage"),
    )

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        written: Written,
        dropped: DroppedFields,
        cited: CitedTexts | None = None,
        *,
        takes_pictures: bool = False,
    ) -> None:
        self._takes_pictures: Final = takes_pictures
        self._cited: Final = cited
        self._dropped: Final = dropped
        self._reader: Final = reader
        self._writer: Final = writer
        self._written: Final = written
        self._calls: Final = _Calls(written)
        # Of open calls, whose properties have other names there; None: no tool of the request has such.
        self._keys: Final[dict[int, ArgumentKeys] | None] = {} if written.keys else None
        self._lost: list[str] = []  # media that the model has answered with, while it has said nothing
        self._has_said = False  # a text, or a call
        self.has_begun = False
        self.failed: ApiError | None = None
        self.is_whole = False
        self.usage = Usage()
        self.model = ""

    def begin(self) -> None:
        """See StreamTranslator."""
        self.has_begun = True

    @property
    def n_held(self) -> int:
        """Bytes of an event that is not whole yet."""
        return self._reader.n_held

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return what the client gets. Raises BrokenReplyError."""
        events = self._reader.feed(data)
        if end:
            events += self._reader.end()
        if not self.has_begun:
            return self._begin(events)
        return self._write(events)

    def fail(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which is not whole."""
        return self._writer.write(Failed(error))

    def _begin(self, events: list[Event]) -> bytes:
        """Look at the first events: an error among them, before the model's work, takes the place of the stream."""
        for event in events:
            if isinstance(event, Failed):
                self.failed = event.error
                return b""
            # A picture alone is no answer for most clients: what comes of it only the end tells.
            is_lost = isinstance(event, Pictured) and not self._takes_pictures
            if not (is_lost or isinstance(event, Start | Used) or (isinstance(event, Lost) and event.field in _MEDIA)):
                self.has_begun = True
                break
        return self._write(events)

    def _write(self, events: list[Event]) -> bytes:
        if self._keys is not None:
            events = self._with_own_keys(events, self._keys)
        if self._cited is not None:
            events = self._cited.placed(events)
        if len(events) == 1 and type(events[0]) is Delta:
            return self._writer.write(events[0])  # nearly all of a stream's reads
        written = []
        for event in events:
            if type(event) is Delta:
                text = self._writer.write(event)
                if text:
                    written.append(text)
                continue
            if type(event) is Used:  # Gemini's servers count in each event
                self.usage = event.usage.over(self.usage)
            elif isinstance(event, Open):
                self._has_said = self._has_said or event.kind not in _THOUGHTS
                if event.kind is Kind.TOOL:
                    self._calls.show(event)
            elif isinstance(event, Start):
                self.model = event.model
            elif isinstance(event, Finish):
                if self._lost and not self._has_said:
                    _check_media(self._lost, event.stop)
                if event.stop.unknown is not None:
                    self._dropped.lose(_STOP)
            elif isinstance(event, Pictured) and self._takes_pictures:
                self._has_said = True
            elif isinstance(event, Lost | Pictured):
                field = event.field if isinstance(event, Lost) else _PICTURE
                self._dropped.lose(field)
                if not self._has_said and field not in self._lost:
                    self._lost.append(field)
                continue
            elif isinstance(event, Work):
                continue
            text = self._writer.write(event)
            if text:
                written.append(text)
            if isinstance(event, Failed):
                self.failed = event.error
                break
            if isinstance(event, End):
                self.is_whole = True
                break
        return written[0] if len(written) == 1 else concatenated(written)

    def _with_own_keys(self, events: list[Event], open_calls: dict[int, ArgumentKeys]) -> list[Event]:
        """Return events with the client's names of properties in the arguments of calls."""
        found: list[Event] = []
        for event in events:
            if isinstance(event, Open) and event.kind is Kind.TOOL:
                keys = self._written.keys.get(self._written.names.get(event.name, event.name))
                if keys is not None:
                    open_calls[event.n] = ArgumentKeys(keys)
            elif isinstance(event, Delta) and event.n in open_calls:
                text = open_calls[event.n].feed(decoded(event.text))
                if not text:
                    continue  # a name that waits for its end
                event = Delta(event.n, quoted(text))
            elif isinstance(event, Close) and event.n in open_calls:
                rest = open_calls.pop(event.n).end()
                if rest:
                    found.append(Delta(event.n, quoted(rest)))
            found.append(event)
        return found


class InvokeTranslator:
    """Claude on Bedrock, asked by a client of Messages: its answers pass, its streams are taken out of their frames.

    So whoever counts its tokens reads what the client gets, which is all that the upstream says. client, model: of
    Messages. dropped: betas that Bedrock does not know.
    """

    __slots__ = ("_client", "_model", "dropped")
    most_values: Final = MOST_VALUES

    def __init__(self, client: ClientSide, model: ModelSide, dropped: tuple[str, ...]) -> None:
        self._client: Final = client
        self._model: Final = model
        self.dropped: Final = dropped

    def __repr__(self) -> str:
        return "<InvokeTranslator>"

    @property
    def tokens(self) -> TokenUsage:
        """Not asked: the client gets them as the upstream has reported them."""
        return TokenUsage()

    @property
    def n_held(self) -> int:
        """The answer is one body."""
        return 0

    def answer(self, body: bytes) -> bytes:
        """Return the answer as it came. Raises BrokenReplyError, ReplyError."""
        self._model.answer(body)
        return body

    def answer_of_stream(self, body: bytes) -> bytes:
        """Never the case: Bedrock's streams are frames. Raises BrokenReplyError."""
        raise BrokenReplyError(_EVENTS)

    def whole_stream(self, body: bytes) -> bytes:
        """Put a plain answer into the events of a stream. Raises as answer()."""
        return _events(self._client.stream(), events_of(self._model.answer(body)))

    def stream(self) -> _InvokeStream:
        """Return what unpacks a stream."""
        return _InvokeStream(self._model.stream(), self._client.stream())

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""
        return bedrock_error(status, body, _named(headers))

    def error(self, error: ApiError) -> bytes:
        """Write an error as Anthropic does."""
        return self._client.error(error)


class _InvokeStream:
    """One stream: its bytes pass, out of their frames; a reader looks on."""

    __slots__ = ("_frames", "_reader", "_writer", "failed", "has_begun", "is_whole")

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._frames: Final = InvokeStream()
        self._reader: Final = reader
        self._writer: Final = writer
        self.has_begun = False
        self.failed: ApiError | None = None
        self.is_whole = False

    def begin(self) -> None:
        """See StreamTranslator."""
        self.has_begun = True

    @property
    def n_held(self) -> int:
        """Bytes of a frame that is not whole yet, or of an event inside of frames."""
        return self._frames.n_held + self._reader.n_held

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return what the client gets. Raises BrokenReplyError."""
        text = self._frames.feed(data)
        events = self._reader.feed(text) if text else []
        if end:
            events = [*events, *self._reader.end()]
        for event in events:
            if isinstance(event, Failed):
                self.failed = self._frames.failed or event.error
                return text if self.has_begun else b""
            if not isinstance(event, Start | Used):
                self.has_begun = True
            self.is_whole = isinstance(event, End)
        return text

    def fail(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which is not whole."""
        return self._writer.write(Failed(error))


class NonStreamingTranslator:
    """Gives a translation that has no streams the interface of one that has; stream() is never called."""

    __slots__ = ("_inner", "answer", "error", "read_error")
    most_values: Final = _MOST_NUMBERS

    def __init__(
        self,
        inner: Counting | GoogleEmbeddings | ModelEmbeddings,
    ) -> None:
        self._inner: Final = inner
        self.answer: Final = inner.answer
        self.error: Final = inner.error
        self.read_error: Final = inner.read_error

    def __repr__(self) -> str:
        return f"<NonStreamingTranslator {self._inner!r}>"

    @property
    def tokens(self) -> TokenUsage:
        """Those of the prompt and of the answer, as far as the upstream has reported them."""
        return TokenUsage() if isinstance(self._inner, Counting) else self._inner.tokens

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields of the request that were left out."""
        return self._inner.dropped

    @property
    def n_held(self) -> int:
        """Bytes of the answer that are not in its body."""
        return self._inner.n_held if isinstance(self._inner, ModelEmbeddings) else 0

    def answer_of_stream(self, body: bytes) -> bytes:
        """Raise BrokenReplyError: there is no stream of this."""
        raise BrokenReplyError(_EVENTS)

    def whole_stream(self, body: bytes) -> bytes:
        """Not called: no client asks for a stream of this."""
        raise AssertionError("there is no stream of this")

    def stream(self) -> _GenerationStream:
        """Not called: no client asks for a stream of this."""
        raise AssertionError("there is no stream of this")


def _events(writer: StreamWriter, events: Iterable[Event]) -> bytes:
    """Write the events of a whole answer. Raises BrokenReplyError: they come to more than a client is to get."""
    written: list[bytes] = []
    n_bytes = 0
    for event in events:
        text = writer.write(event)
        written.append(text)
        n_bytes += len(text)
        if n_bytes > _MOST_EVENTS_BYTES:
            raise BrokenReplyError(f"it would have over {_MOST_EVENTS_BYTES} bytes for this client")
    return b"".join(written)


def _all_kinds(usage: Usage, model: str) -> TokenUsage:
    others, tier = usage.modalities or _TEXT_ONLY, usage.tier or ""
    return TokenUsage(
        usage.input,
        usage.output,
        usage.cached,
        usage.cache_written,
        usage.cache_written_1h,
        usage.reasoning,
        others.audio_input,
        others.audio_cached,
        others.audio_output,
        others.image_input,
        others.image_output,
        usage.web_searches,
        image_cached=others.image_cached,
        tier=tier,
        has_others=usage.has_others,
        model=model,
        bill=usage.bill,
        is_regional=usage.is_regional,
    )


def _named(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
