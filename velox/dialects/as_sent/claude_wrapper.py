"""Claude on Vertex and Bedrock: puts Messages into another wire wrapper. Bodies change at their top level only.

    Vertex            no `model`, which is in the path; `anthropic_version` in the body
    Bedrock invoke    neither `model` nor `stream`; `anthropic_version`; the header anthropic-beta as a list in the
                      body, without betas that Bedrock refuses. A stream comes in frames, with each event in base64

Knows: what the wire wrappers want. Does not know: Messages' own fields, paths, signatures of requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from velox.dialects.as_sent.claude_fields import object_of
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    ApiError,
    ErrorKind,
    Event,
    Failed,
    Request,
    StreamReader,
    WrappedModel,
    Written,
)
from velox.dialects.converse.frames import EventFrame, Frames
from velox.dialects.converse.words import api_error, message_of
from velox.dialects.json_text.decoding import decoded_reply
from velox.dialects.json_text.text import quoted
from velox.dialects.messages.wire import BILLING
from velox.protocol.json.edit import STRING, Field
from velox.protocol.slices import from_base64

__all__ = [
    "ClaudeOnBedrock",
    "ClaudeOnVertex",
    "InvokeStream",
    "bedrock_body",
    "bedrock_error",
    "vertex_body",
    "without_billing",
    "without_scopes",
]

_VERTEX_VERSION: Final = b"vertex-2023-10-16"
_BEDROCK_VERSION: Final = b"bedrock-2023-05-31"
_MODEL: Final = Field("model")
_STREAM: Final = Field("stream")
_VERSION: Final = Field("anthropic_version")
_BETAS: Final = Field("anthropic_beta")
# A value of these fields: a string, a flat list or object, or a word.
_VALUE: Final = re.compile(STRING + rb"|\[[^\[\]]*+\]|\{[^{}]*+\}|[^,}\s]++", re.DOTALL)
_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")
_SCOPE: Final = b'"scope"'
_MARK: Final = re.compile(rb'("cache_control"\s*+:\s*+)(\{[^{}]*+\})')  # in a text its quotes would be escaped
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


# -- requests ---------------------------------------------------------------------------------------


def vertex_body(body: bytes | bytearray) -> bytes:
    """Return a request as Vertex wants it. Raises VeloxError for one of over 512 KiB that hides a field."""
    text = _without(_without(bytes(body), _MODEL), _VERSION)
    return _with(text, b'"anthropic_version":"%b"' % _VERTEX_VERSION)


def bedrock_body(body: bytes | bytearray, betas: Collection[str] = ()) -> bytes:
    """Return a request as Bedrock's invoke wants it.

    betas: of the header, those that Bedrock takes. Raises VeloxError for a body of over 512 KiB that hides a field.
    """
    text = bytes(body)
    for name in (_MODEL, _STREAM, _VERSION):
        text = _without(text, name)
    fields = b'"anthropic_version":"%b"' % _BEDROCK_VERSION
    if betas:
        text = _without(text, _BETAS)
        fields += b',"anthropic_beta":[%b]' % b",".join(map(quoted, betas))
    return _with(text, fields)


def without_scopes(body: bytes | bytearray) -> bytes | bytearray:
    """Return a request whose cache marks have no `scope`; the same one where none has."""
    return body if _SCOPE not in body else _MARK.sub(_without_scope, body)


def without_billing(body: bytes | bytearray) -> bytes | bytearray:
    """Return a request without the note for Anthropic that Claude Code puts before its system prompt.

    Bedrock answers 400 to it, and it breaks the cache of whoever takes it for a part of the prompt: no two are alike.
    """
    if BILLING not in body:
        return body
    try:
        fields = _FIELDS.decode(body)
        blocks = _ITEMS.decode(fields.get("system", b"[]"))
        kept = [block for block in blocks if BILLING not in bytes(block) or not _is_billing(block)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if len(kept) == len(blocks):
        return body
    fields["system"] = msgspec.Raw(b"[" + b",".join(map(bytes, kept)) + b"]")
    if not kept:
        del fields["system"]
    return object_of(fields)


def _is_billing(block: msgspec.Raw) -> bool:
    return bytes(_FIELDS.decode(block).get("text", b"")).startswith(BILLING)


def _without_scope(mark: re.Match[bytes]) -> bytes:
    try:
        fields = _FIELDS.decode(mark[2])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return mark[0]
    return mark[0] if fields.pop("scope", None) is None else mark[1] + object_of(fields)


def _without(body: bytes, field: Field) -> bytes:
    """Take a field off."""
    begin = field.find(body)
    found = None if begin < 0 else _VALUE.match(body, begin)
    if found is None:
        return body
    end = found.end()
    colon = body.rindex(b":", 0, begin)
    begin = body.rindex(b'"', 0, body.rindex(b'"', 0, colon))  # a key has no quote in it
    while body[end] in _SPACE:
        end += 1
    if body[end] == _COMMA:
        return body[:begin] + body[end + 1 :].lstrip(_SPACE)
    before = body[:begin].rstrip(_SPACE)
    return before.removesuffix(b",") + body[end:]


def _with(body: bytes, fields: bytes) -> bytes:
    """Put fields in front of the others."""
    begin = body.index(b"{") + 1
    rest = body[begin:].lstrip(_SPACE)
    return b"{" + fields + (rest if rest.startswith(b"}") else b"," + rest)


# -- replies ----------------------------------------------------------------------------------------


class _Chunk(msgspec.Struct):
    """The payload of a frame: an event of Messages in base64."""

    bytes: str


class _Typed(msgspec.Struct):
    """An event, as far as its name is needed."""

    type: str = "message"


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_TYPED: Final = msgspec.json.Decoder(_Typed)
_ERROR_TYPES: Final = {
    ErrorKind.INVALID: b"invalid_request_error",
    ErrorKind.AUTHENTICATION: b"authentication_error",
    ErrorKind.PERMISSION: b"permission_error",
    ErrorKind.NOT_FOUND: b"not_found_error",
    ErrorKind.RATE_LIMIT: b"rate_limit_error",
    ErrorKind.TIMEOUT: b"timeout_error",
    ErrorKind.UNAVAILABLE: b"overloaded_error",
    ErrorKind.OVERLOADED: b"overloaded_error",
}
_IN_STREAM: Final = 500  # the status of an error that names none


class InvokeStream:
    """The frames of one stream of Bedrock's invoke, as the server-sent events that Anthropic sends."""

    __slots__ = ("_frames", "failed")

    def __init__(self) -> None:
        self._frames: Final = Frames()
        self.failed: ApiError | None = None  # what the service said in the stream

    def __repr__(self) -> str:
        return f"<InvokeStream {self._frames!r}>"

    @property
    def n_held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._frames.n_held

    @property
    def is_between(self) -> bool:
        """True where no frame has begun that is not whole."""
        return self._frames.is_between

    def feed(self, data: bytes) -> bytes:
        """Take what came, cut anywhere; return whole events. Raises BrokenReplyError."""
        if self.failed is not None:
            return b""
        found: list[bytes] = []
        for frame in self._frames.feed(data):
            if frame.kind != b"event":
                found.append(self._fail(frame))
                break
            if frame.name == b"chunk":
                found.append(_event(frame.payload))
        return b"".join(found)

    def _fail(self, frame: EventFrame) -> bytes:
        name = frame.name.decode("utf-8", "replace")
        message, _ = message_of(frame.payload, frame.message.decode("utf-8", "replace") or name)
        error = api_error(name, _IN_STREAM, message)
        self.failed = error
        body = b'{"type":"error","error":{"type":"%b","message":%b}}' % (
            _ERROR_TYPES.get(error.kind, b"api_error"),
            quoted(error.message),
        )
        return b"event: error\ndata: %b\n\n" % body


def _event(payload: bytes) -> bytes:
    chunk = decoded_reply(_CHUNK, payload)
    try:
        text = from_base64(chunk.bytes)
    except ValueError:
        raise BrokenReplyError("a frame of the upstream's event stream is not base64") from None
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\r", b" ").replace(b"\n", b" ")  # between tokens: a string has none
    name = decoded_reply(_TYPED, text).type
    return b"event: %b\ndata: %b\n\n" % (name.encode("utf-8", "replace"), text)


def bedrock_error(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """Read an error of Bedrock's. headers: names in lower case; the type is there. Never raises."""
    message, kind = message_of(body, f"the upstream answered with status {status}")
    return api_error((headers or {}).get("x-amzn-errortype") or kind, status, message)


# -- translation ---------------------------------------------------------------------------------------


class ClaudeOnVertex(WrappedModel):
    """One attempt at Claude on Vertex, in another dialect's translation. inner: Messages' model side."""

    __slots__ = ()

    def write(self, request: Request, model: str) -> Written:
        """Write the request. Raises BadRequestError."""
        written = self._inner.write(request, model)
        return Written(vertex_body(written.body), written.names, written.ids, written.keys)


class ClaudeOnBedrock(WrappedModel):
    """One attempt at Claude by Bedrock's invoke, in another dialect's translation. inner: Messages' model side."""

    __slots__ = ()

    def write(self, request: Request, model: str) -> Written:
        """Write the request. Raises BadRequestError."""
        written = self._inner.write(request, model)
        return Written(bedrock_body(written.body), written.names, written.ids, written.keys)

    def stream(self) -> StreamReader:
        """Return what reads a streamed answer."""
        return _InvokeReader(self._inner.stream())

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """Read an error's body."""
        return bedrock_error(status, body, headers)


class _InvokeReader:
    """Reads a stream of frames."""

    __slots__ = ("_frames", "_inner", "_is_over")

    def __init__(self, inner: StreamReader) -> None:
        self._frames: Final = InvokeStream()
        self._inner: Final = inner
        self._is_over = False

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return self._frames.n_held + self._inner.n_held

    def feed(self, data: bytes) -> list[Event]:
        """Take what came. Raises BrokenReplyError."""
        if self._is_over:
            return []
        events = self._inner.feed(self._frames.feed(data))
        if self._frames.failed is None:
            return events
        self._is_over = True
        if events and isinstance(events[-1], Failed):
            events[-1] = Failed(self._frames.failed)  # with Bedrock's status
        return events

    def end(self) -> list[Event]:
        """Nothing more comes."""
        return [] if self._is_over else self._inner.end()
