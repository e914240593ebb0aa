"""Embeddings of OpenAI's API by models that have one of their own: on Vertex AI and on Bedrock.

    {"model": ..., "input": ["a", "b"], "dimensions": 256, "encoding_format": "base64"}
        -> {"instances": [{"content": "a"}, ...], "parameters": {"outputDimensionality": 256}}     PREDICT
           {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 256}                    CONTENT
           {"inputText": "a", "dimensions": 256}                                                   TITAN
           {"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": {...}}                        NOVA
           {"texts": ["a", "b"], "input_type": "search_document", ...}                             COHERE
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": ...}, ...], "usage": ...}

Texts are never cut here: one that is too long is an error, as OpenAI has it. Some models take one text a call only: a
request with more becomes several calls (batch_split.py), whose vectors are put together here. Numbers pass as they
stood, or as 32-bit floats in base64, which OpenAI's SDKs ask for.

Knows: these requests and replies. Does not know: paths, HTTP, which model has which.
"""

from __future__ import annotations

import base64
import enum
import itertools
import math
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ApiError, ClientSide, JsonText, ModelSide
from velox.dialects.embeddings.gemini_clients import GoogleEmbeddings
from velox.dialects.json_text.decoding import checked_text, decoded_reply, decoded_request, is_given
from velox.dialects.json_text.text import quoted
from velox.heads import Headers
from velox.protocol.usage.token_usage import TokenUsage

__all__ = ["EmbeddingForm", "ModelEmbeddings"]

_COUNT: Final = b"x-amzn-bedrock-input-token-count"
_MOST_DIGITS: Final = 12
_MOST_TEXTS: Final = 2048  # OpenAI's own limit


class EmbeddingForm(enum.Enum):
    """How a request is written; the value: how many texts a call may have."""

    PREDICT = ("predict", 250)
    CONTENT = ("content", 1)
    TITAN = ("titan", 1)
    NOVA = ("nova", 1)
    COHERE = ("cohere", 96)


class _Ask(msgspec.Struct):
    """input_type: no field of OpenAI's; Cohere's models need to know what a text is for."""

    input: msgspec.Raw = msgspec.Raw()
    dimensions: int | None = None
    encoding_format: str | None = None
    user: str | None = None
    input_type: str | None = None


class _Statistics(msgspec.Struct):
    token_count: int | None = None


class _Values(msgspec.Struct):
    values: msgspec.Raw = msgspec.Raw()
    statistics: _Statistics = msgspec.field(default_factory=_Statistics)


class _Prediction(msgspec.Struct):
    embeddings: _Values


class _Predictions(msgspec.Struct):
    predictions: list[_Prediction]


class _GoogleUsage(msgspec.Struct):
    prompt_tokens: int | None = msgspec.field(name="promptTokenCount", default=None)


class _Embedded(msgspec.Struct):
    embedding: _Values
    usage: _GoogleUsage = msgspec.field(name="usageMetadata", default_factory=_GoogleUsage)


class _Titan(msgspec.Struct):
    embedding: msgspec.Raw
    n_tokens: int | None = msgspec.field(name="inputTextTokenCount", default=None)


class _NovaVector(msgspec.Struct):
    embedding: msgspec.Raw


class _Nova(msgspec.Struct):
    embeddings: list[_NovaVector]


class _Floats(msgspec.Struct):
    values: list[msgspec.Raw] = msgspec.field(name="float")


class _Cohere(msgspec.Struct):
    """embeddings: a list, or lists by the kinds of numbers."""

    embeddings: msgspec.Raw


_ASK: Final = msgspec.json.Decoder(_Ask)
_NAMES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PREDICTIONS: Final = msgspec.json.Decoder(_Predictions)
_EMBEDDED: Final = msgspec.json.Decoder(_Embedded)
_TITAN: Final = msgspec.json.Decoder(_Titan)
_NOVA: Final = msgspec.json.Decoder(_Nova)
_COHERE: Final = msgspec.json.Decoder(_Cohere)
_FLOATS: Final = msgspec.json.Decoder(_Floats)
_NUMBERS: Final = msgspec.json.Decoder(list[float])
# Google makes vectors of fewer dimensions shorter ("Embeddings", "Quality for smaller dimensions"); OpenAI's have the
# length 1, and its clients compare them so.
_OF_GOOGLE: Final = frozenset({EmbeddingForm.PREDICT, EmbeddingForm.CONTENT})
_UNIT_WITHIN: Final = 1e-3
_KNOWN: Final = frozenset({"model", *_Ask.__struct_fields__})


class ModelEmbeddings:
    """Translates one request, and its answer. client, model: read and write errors. google: a request of Gemini's."""

    __slots__ = (
        *("_calls", "_client", "_counts", "_form", "_google", "_headers", "_is_base64", "_is_shortened", "_dropped"),
        *("_model", "_n_texts", "_name", "_tokens"),
    )

    def __init__(
        self,
        client: ClientSide,
        model: ModelSide,
        dropped: DroppedFields,
        form: EmbeddingForm,
        google: GoogleEmbeddings | None = None,
    ) -> None:
        self._google: Final = google
        self._client: Final = client
        self._model: Final = model
        self._dropped: Final = dropped
        self._form: Final = form
        self._is_base64 = False
        self._is_shortened = False
        self._n_texts = 0
        self._name = ""
        self._tokens: int | None = None
        self._headers: Headers = []  # of the reply, where it is one
        self._calls: list[list[bytes]] = []  # the written vectors of each call
        self._counts: list[int | None] = []  # the tokens of each

    def __repr__(self) -> str:
        return f"<ModelEmbeddings {self._form.name} {self._n_texts}>"

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields of the request that were left out."""
        return self._dropped.names

    @property
    def tokens(self) -> TokenUsage:
        """Return what the texts came to, as far as the reply tells."""
        return TokenUsage() if self._tokens is None else TokenUsage(self._tokens, 0)

    # -- the request --------------------------------------------------------------------------------

    def requests(self, body: bytes | bytearray, model: str) -> list[bytes]:
        """Return the bodies to send: several where the model takes fewer texts a call. Raises BadRequestError."""
        text = checked_text(body) if self._google is None else self._google.request(body, model)
        ask = decoded_request(_ASK, text)
        texts = self._texts(ask)
        if ask.encoding_format not in (None, "float", "base64"):
            raise BadRequestError("expected float or base64", "encoding_format")
        if ask.dimensions is not None and ask.dimensions < 1:
            raise BadRequestError("expected a positive number", "dimensions")
        self._is_base64 = ask.encoding_format == "base64"
        self._n_texts = len(texts)
        self._name = model
        self._is_shortened = ask.dimensions is not None and self._google is None and self._form in _OF_GOOGLE
        if ask.user is not None:
            self._dropped.drop("user")
        if ask.input_type is not None and self._form is not EmbeddingForm.COHERE:
            self._dropped.drop("input_type")
        if not decoded_request(_NAMES, text).keys() <= _KNOWN:
            self._dropped.drop("unknown")
        most = self._form.value[1]
        groups = [texts[at : at + most] for at in range(0, len(texts), most)]
        self._calls = [[] for _ in groups]
        self._counts = [None for _ in groups]
        return [self._written(group, ask) for group in groups]

    def _texts(self, ask: _Ask) -> list[JsonText]:
        raw = bytes(ask.input).strip()
        if not is_given(ask.input):
            raise BadRequestError("expected the texts to embed", "input")
        items = [raw] if raw[:1] == b'"' else [bytes(each) for each in decoded_request(_TEXTS, raw, "input")]
        if not items or any(item[:1] != b'"' for item in items):
            message = "this model takes texts: a string, or a list of strings; lists of tokens are OpenAI's own"
            message += " (LangChain sends them unless it is told check_embedding_ctx_length=False)"
            raise BadRequestError(message, "input")
        if any(len(item) <= 2 for item in items):
            raise BadRequestError("a text is empty", "input")
        if len(items) > _MOST_TEXTS:
            message = f"expected at most {_MOST_TEXTS} texts, not {len(items)}; send the others by themselves"
            raise BadRequestError(message, "input")
        return items

    def _written(self, texts: list[JsonText], ask: _Ask) -> bytes:
        size, first = ask.dimensions, texts[0]
        match self._form:
            case EmbeddingForm.PREDICT:
                instances = b",".join(b'{"content":%b}' % text for text in texts)
                more = b"" if size is None else b',"outputDimensionality":%d' % size
                return b'{"instances":[%b],"parameters":{"autoTruncate":false%b}}' % (instances, more)
            case EmbeddingForm.CONTENT:
                more = b"" if size is None else b',"outputDimensionality":%d' % size
                return b'{"content":{"parts":[{"text":%b}]}%b}' % (first, more)
            case EmbeddingForm.TITAN:
                more = b"" if size is None else b',"dimensions":%d' % size
                return b'{"inputText":%b%b}' % (first, more)
            case EmbeddingForm.NOVA:
                more = b"" if size is None else b'"embeddingDimension":%d,' % size
                text = b'{"embeddingPurpose":"GENERIC_INDEX",%b"text":{"truncationMode":"NONE","value":%b}}'
                return b'{"taskType":"SINGLE_EMBEDDING","singleEmbeddingParams":%b}' % (text % (more, first))
            case EmbeddingForm.COHERE:
                kind = quoted(ask.input_type or "search_document")
                more = b"" if size is None else b',"output_dimension":%d' % size
                asked = b'{"texts":[%b],"input_type":%b,"embedding_types":["float"],"truncate":"NONE"%b}'
                return asked % (b",".join(texts), kind, more)

    # -- the reply ----------------------------------------------------------------------------------

    def take(self, number: int, headers: Headers, body: bytes) -> None:
        """Read the reply of one call. Raises BrokenReplyError."""
        vectors, n_tokens = self._read(body)
        if n_tokens is None or n_tokens < 0:
            n_tokens = _reported_tokens(headers)
        most = self._form.value[1]
        n_texts = min(most, self._n_texts - number * most)
        if len(vectors) != n_texts:
            raise BrokenReplyError(f"it has {len(vectors)} vectors for {n_texts} texts")
        self._calls[number] = [self._vector(bytes(vector)) for vector in vectors]
        self._counts[number] = n_tokens

    def usage_so_far(self) -> TokenUsage | None:
        """Return what those calls took that were answered; None: none was."""
        reported = [count for count, vectors in zip(self._counts, self._calls, strict=True) if vectors]
        if not reported:
            return None
        known = [count for count in reported if count is not None]
        return TokenUsage(sum(known), 0) if len(known) == len(reported) else TokenUsage()

    @property
    def n_held(self) -> int:
        """Return the bytes of the vectors that take() has read."""
        return sum(len(vector) for vectors in self._calls for vector in vectors)

    def note_head(self, headers: Headers) -> None:
        """Keep the head of the reply, which may tell the number of tokens."""
        self._headers = headers

    def answer(self, body: bytes) -> bytes:
        """Put the reply into the client's dialect; of several calls what take() has read. Raises BrokenReplyError."""
        if len(self._calls) == 1:
            self.take(0, self._headers, body)
        counts = [count for count in self._counts if count is not None]
        usage = b""
        if len(counts) == len(self._calls):  # a sum that lacks some would pass for all of them
            n_tokens = self._tokens = sum(counts)
            usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (n_tokens, n_tokens)
        written = [
            b'{"object":"embedding","index":%d,"embedding":%b}' % (n, vector)
            for n, vector in enumerate(itertools.chain.from_iterable(self._calls))
        ]
        text = b'{"object":"list","data":[%b],"model":%b%b}' % (b",".join(written), quoted(self._name), usage)
        return text if self._google is None else self._google.answer(text)

    def _read(self, body: bytes) -> tuple[list[msgspec.Raw], int | None]:
        match self._form:
            case EmbeddingForm.PREDICT:
                found = [each.embeddings for each in decoded_reply(_PREDICTIONS, body).predictions]
                counts = [each.statistics.token_count for each in found]
                known = [n for n in counts if n is not None]
                return [each.values for each in found], sum(known) if len(known) == len(counts) else None
            case EmbeddingForm.CONTENT:
                embedded = decoded_reply(_EMBEDDED, body)
                return [embedded.embedding.values], embedded.usage.prompt_tokens
            case EmbeddingForm.TITAN:
                titan = decoded_reply(_TITAN, body)
                return [titan.embedding], titan.n_tokens
            case EmbeddingForm.NOVA:
                return [each.embedding for each in decoded_reply(_NOVA, body).embeddings], None
            case EmbeddingForm.COHERE:
                raw = bytes(decoded_reply(_COHERE, body).embeddings)
                if raw[:1] == b"[":
                    return decoded_reply(_TEXTS, raw), None
                return decoded_reply(_FLOATS, raw).values, None

    def _vector(self, raw: bytes) -> bytes:
        """Return a vector as the client asked for it."""
        numbers = decoded_reply(_NUMBERS, raw)
        if not numbers:
            raise BrokenReplyError("a vector has no numbers")
        if self._is_shortened:
            length = math.hypot(*numbers)
            if length and abs(length - 1) > _UNIT_WITHIN:
                numbers = [number / length for number in numbers]
                raw = msgspec.json.encode(numbers)
        if not self._is_base64:
            return raw
        try:
            packed = struct.pack(f"<{len(numbers)}f", *numbers)
        except OverflowError:
            raise BrokenReplyError("a number of a vector is too large") from None
        return b'"%b"' % base64.b64encode(packed)

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""
        named: Mapping[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return self._model.error(status, body, named)

    def error(self, error: ApiError) -> bytes:
        """Write an error in the client's dialect."""
        return self._client.error(error)


def _reported_tokens(headers: Headers) -> int | None:
    """Return the number of tokens that some replies have in a header."""
    for name, value in headers:
        if name == _COUNT and value.isdigit() and len(value) <= _MOST_DIGITS:
            return int(value)
    return None
