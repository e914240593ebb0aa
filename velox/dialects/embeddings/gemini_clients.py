"""Embeddings: what a client of Gemini asks, of a model with OpenAI's API.

    {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 256}          embedContent
    {"requests": [{"content": ...}, ...]}                                         batchEmbedContents
        -> {"model": ..., "input": ["a", ...], "dimensions": 256}
    {"data": [{"index": 0, "embedding": [0.1, ...]}, ...]}
        -> {"embedding": {"values": [0.1, ...]}}, or {"embeddings": [{"values": ...}, ...]}

The other way needs no translation: Google has OpenAI's path for embeddings, too. Numbers pass as they stood.

Knows: both requests and both replies. Does not know: paths, HTTP, how errors are written.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ApiError, ClientSide, JsonText, ModelSide
from velox.dialects.json_text.decoding import checked_text, decoded_reply, decoded_request
from velox.dialects.json_text.text import joined, quoted, raw_text
from velox.heads import Headers
from velox.protocol.usage.token_usage import TokenUsage

__all__ = ["GoogleEmbeddings", "with_embedding_model"]

_MOST_TEXTS: Final = 2048  # OpenAI's own limit


class _Part(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw()


class _Content(msgspec.Struct):
    parts: list[_Part] = []


class _Ask(msgspec.Struct, rename="camel"):
    """One text. SDKs of Google's write some names in either spelling."""

    content: _Content | None = None
    output_dimensionality: int | None = None
    task_type: str | None = None
    title: str | None = None
    auto_truncate: bool | None = None


class _Asks(_Ask):
    requests: list[_Ask] | None = None


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _Usage | None = None


_ASKS: Final = msgspec.json.Decoder(_Asks)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_VECTORS: Final = msgspec.json.Decoder(_Vectors)


def with_embedding_model(body: bytes | bytearray, model: str) -> bytes:
    """Return a request of Google's whose texts name another model than the client did: each repeats that of the path.

    Raises BadRequestError.
    """
    fields = decoded_request(_FIELDS, checked_text(body))
    name = quoted(f"models/{model.removeprefix('models/')}")
    if "requests" not in fields:
        if "model" not in fields:
            return bytes(body)
        own = {**fields, "model": msgspec.Raw(name)}
        return b"{" + b",".join(_members(own)) + b"}"
    texts = []
    for text in decoded_request(_TEXTS, fields["requests"], "requests"):
        own = {key: value for key, value in text.items() if key != "model"}
        texts.append(b"{" + b",".join([b'"model":' + name, *_members(own)]) + b"}")
    others = {key: value for key, value in fields.items() if key not in ("requests", "model")}
    return b"{" + b",".join([b'"requests":[' + b",".join(texts) + b"]", *_members(others)]) + b"}"


def _members(fields: dict[str, msgspec.Raw]) -> list[bytes]:
    return [quoted(name) + b":" + bytes(value) for name, value in fields.items()]


class GoogleEmbeddings:
    """Translates one request, and its answer. client, model: read and write errors."""

    __slots__ = ("_client", "_dropped", "_is_batch", "_model", "_n_texts", "_tokens")

    def __init__(self, client: ClientSide, model: ModelSide, dropped: DroppedFields) -> None:
        self._client: Final = client
        self._model: Final = model
        self._dropped: Final = dropped
        self._is_batch = False
        self._n_texts = 0
        self._tokens: int | None = None

    def __repr__(self) -> str:
        return f"<GoogleEmbeddings {self._n_texts}>"

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields of the request that were left out."""
        return self._dropped.names

    @property
    def tokens(self) -> TokenUsage:
        """Return what the texts came to, as far as the reply tells: Gemini's own has no place for it."""
        return TokenUsage() if self._tokens is None else TokenUsage(self._tokens, 0)

    def request(self, body: bytes | bytearray, model: str) -> bytes:
        """Return the body to send. Raises BadRequestError."""
        asks = decoded_request(_ASKS, checked_text(body))
        self._is_batch = asks.requests is not None
        several = [asks] if asks.requests is None else asks.requests
        if not 1 <= len(several) <= _MOST_TEXTS:
            raise BadRequestError(f"expected 1 to {_MOST_TEXTS} texts to embed", "requests")
        sizes = {ask.output_dimensionality for ask in several}
        if len(sizes) > 1:
            message = "all texts of one request get vectors of one size there; send the others in requests of their own"
            raise BadRequestError(message, "requests[1].outputDimensionality")
        texts = [self._text(ask, f"requests[{n}]." if self._is_batch else "") for n, ask in enumerate(several)]
        self._n_texts = len(texts)
        (size,) = sizes
        more = b"" if size is None else b',"dimensions":%d' % size
        return b'{"model":%b,"input":[%b],"encoding_format":"float"%b}' % (quoted(model), b",".join(texts), more)

    def _text(self, ask: _Ask, place: str) -> JsonText:
        found = [raw_text(part.text) for part in (ask.content.parts if ask.content is not None else ())]
        texts = [text for text in found if text is not None]
        if not texts or len(texts) < len(found):
            message = "this model embeds texts only; send parts that have a `text`"
            raise BadRequestError(message, f"{place}content.parts")
        for name, value in (("task_type", ask.task_type), ("title", ask.title), ("auto_truncate", ask.auto_truncate)):
            if value is not None:
                self._dropped.drop(name, f"{place}{name}")
        return texts[0] if len(texts) == 1 else joined(texts, b"")

    def answer(self, body: bytes) -> bytes:
        """Put the reply into the client's dialect. Raises BrokenReplyError."""
        vectors = decoded_reply(_VECTORS, body)
        data = vectors.data
        self._tokens = None if vectors.usage is None else vectors.usage.prompt_tokens
        if len(data) != self._n_texts:
            raise BrokenReplyError(f"it has {len(data)} vectors for {self._n_texts} texts")
        ordered = sorted(data, key=lambda each: -1 if each.index is None else each.index)
        if any(not bytes(each.embedding).startswith(b"[") for each in ordered):
            raise BrokenReplyError("a vector is no list of numbers")
        written = [b'{"values":%b}' % bytes(each.embedding) for each in ordered]
        if not self._is_batch:
            return b'{"embedding":%b}' % written[0]
        return b'{"embeddings":[%b]}' % b",".join(written)

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return self._model.error(status, body, named)

    def error(self, error: ApiError) -> bytes:
        """Write an error in the client's dialect."""
        return self._client.error(error)
