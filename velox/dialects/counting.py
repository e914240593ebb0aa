"""Counting the tokens of a request, across dialects: the client's request in its own, the upstream's in another one.

    Messages   /v1/messages/count_tokens      a request without what tunes the answer   {"input_tokens": 12}
    Responses  /v1/responses/input_tokens     the same                                  {"input_tokens": 12, ...}
    Generate   :countTokens                   contents, or a whole generateContentRequest   {"totalTokens": 12}
    Converse   /count-tokens                  {"input": {"converse": ...}}              {"inputTokens": 12}

Chat Completions has none: the number is an estimate, and the reply is marked so (ESTIMATED).

A request to count is read by its dialect's own reader, and written by the upstream's own writer as a request to
generate; here it becomes one to count.

Knows: what each of the four takes, and the number in its reply. Does not know: paths, HTTP.
"""

from __future__ import annotations

import base64
from types import MappingProxyType
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import (
    ApiError,
    Audio,
    Block,
    ClientSide,
    Document,
    ErrorKind,
    Image,
    Media,
    MediaKind,
    ModelSide,
    Refusal,
    Request,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
)
from velox.dialects.json_text.decoding import decoded_reply, decoded_request
from velox.dialects.json_text.text import quoted
from velox.heads import Header, Headers
from velox.protocol.error_meaning import is_too_long
from velox.types import ApiKind

__all__ = [
    "ESTIMATED",
    "Counting",
    "cannot_count",
    "count_request",
    "estimated_tokens",
    "generate_request",
    "invoke_count_request",
    "named_count_request",
    "tokens_of",
    "written_tokens",
]

# The header of a reply whose number nobody counted.
ESTIMATED: Final[Header] = (b"x-velox-estimated", b"input_tokens")

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What is sent of a request to generate: each API refuses other fields.
_COUNTED: Final = MappingProxyType(
    {
        ApiKind.COUNT_MESSAGES: (
            "anthropic_version",
            "cache_control",
            "messages",
            "model",
            "output_config",
            "system",
            "thinking",
            "tool_choice",
            "tools",
        ),
        ApiKind.COUNT_RESPONSES: (
            "input",
            "instructions",
            "model",
            "parallel_tool_calls",
            "reasoning",
            "text",
            "tool_choice",
            "tools",
            "truncation",
        ),
        ApiKind.COUNT_GENERATE: ("contents", "systemInstruction", "tools", "generationConfig"),
        ApiKind.COUNT_CONVERSE: ("messages", "system", "toolConfig", "additionalModelRequestFields"),
    }
)
_GENERATE_REQUEST: Final = "generateContentRequest"
# Bedrock checks the body as one to generate with. The number does not count.
_MAX_TOKENS: Final = b"4096"

# Of an estimate: about what English in JSON has, what Anthropic and OpenAI take a picture of usual size for, and what
# stands in a PDF. All are arbitrary; a real number needs the model's own tokenizer.
_BYTES_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 4
_TOKENS_PER_IMAGE: Final = 1500
_DATA_BYTES_PER_TOKEN: Final = 16


# -- requests ---------------------------------------------------------------------------------------


def generate_request(api: ApiKind, body: bytes | bytearray) -> bytes:
    """Return a client's request to count as one to generate, as its dialect's reader takes it.

    Raises BadRequestError.
    """
    if api is not ApiKind.COUNT_GENERATE:
        return bytes(body)
    fields = decoded_request(_FIELDS, bytes(body))
    return bytes(fields.get(_GENERATE_REQUEST, body))


def named_count_request(body: bytes | bytearray, model: str, *, is_flat: bool) -> bytes:
    """Return a countTokens of Gemini's for the model that its path names: a whole request in it names one itself.

    is_flat: there is no whole request in it there; its fields stand at the top. Raises BadRequestError.
    """
    fields = decoded_request(_FIELDS, bytes(body))
    if _GENERATE_REQUEST not in fields:
        return bytes(body)
    whole = decoded_request(_FIELDS, fields[_GENERATE_REQUEST], _GENERATE_REQUEST)
    if is_flat:
        names = _COUNTED[ApiKind.COUNT_GENERATE]
        return _object({name: value for name, value in whole.items() if name in names})
    named = {**whole, "model": msgspec.Raw(quoted(f"models/{model.removeprefix('models/')}"))}
    return _object({**fields, _GENERATE_REQUEST: msgspec.Raw(_object(named))})


def count_request(api: ApiKind, body: bytes, model: str = "") -> bytes:
    """Return a request to generate as one to count. model: for AI Studio's whole request; "": Vertex, or another API.

    api: the upstream's. Raises BadRequestError for a body that can't be read.
    """
    fields = decoded_request(_FIELDS, body)
    if api is ApiKind.COUNT_GENERATE and model:
        # Only so the instructions and tools are counted there.
        whole = {"model": msgspec.Raw(quoted(f"models/{model}")), **fields}
        return b'{"generateContentRequest":%b}' % _object(whole)
    names = _COUNTED[api]
    text = _object({name: value for name, value in fields.items() if name in names})
    return b'{"input":{"converse":%b}}' % text if api is ApiKind.COUNT_CONVERSE else text


def invoke_count_request(body: bytes) -> bytes:
    """Return a body for Bedrock's invoke (claude_wrapper.bedrock_body) as a request to count it."""
    if "max_tokens" not in decoded_request(_FIELDS, body):
        body = b'{"max_tokens":%b,%b' % (_MAX_TOKENS, body[body.index(b"{") + 1 :])
    return b'{"input":{"invokeModel":{"body":"%b"}}}' % base64.b64encode(body)


def _object(fields: dict[str, msgspec.Raw]) -> bytes:
    return b"{" + b",".join(quoted(name) + b":" + bytes(value) for name, value in fields.items()) + b"}"


# -- replies ----------------------------------------------------------------------------------------


class _Count(msgspec.Struct):
    """The number, by each API's name of it."""

    input_tokens: int | None = None
    total_tokens: int | None = msgspec.field(name="totalTokens", default=None)
    bedrock_tokens: int | None = msgspec.field(name="inputTokens", default=None)


_COUNT: Final = msgspec.json.Decoder(_Count)


def tokens_of(body: bytes) -> int:
    """Read the number of a reply, of any of the four. Raises BrokenReplyError."""
    found = decoded_reply(_COUNT, body)
    for tokens in (found.input_tokens, found.total_tokens, found.bedrock_tokens):
        if tokens is not None and tokens >= 0:
            return tokens
    raise BrokenReplyError("the upstream's reply has no number of tokens")


def written_tokens(api: ApiKind, tokens: int) -> bytes:
    """Write the number for a client. api: the client's."""
    if api is ApiKind.COUNT_RESPONSES:
        return b'{"object":"response.input_tokens","input_tokens":%d}' % tokens
    return (b'{"totalTokens":%d}' if api is ApiKind.COUNT_GENERATE else b'{"input_tokens":%d}') % tokens


def estimated_tokens(request: Request) -> int:
    """Return what a request may have, where no API counts it."""
    n_bytes = sum(_tool_bytes(tool) for tool in request.tools)
    for message in request.messages:
        n_bytes += sum(_bytes(block) for block in message.blocks)
    if request.format is not None and request.format.schema is not None:
        n_bytes += len(request.format.schema)
    return -(-n_bytes // _BYTES_PER_TOKEN) + _TOKENS_PER_MESSAGE * len(request.messages)


def _tool_bytes(tool: Tool) -> int:
    return len(tool.name) + len(tool.description or b"") + len(tool.parameters or b"")


def _bytes(block: Block) -> int:
    """Return how many bytes of text a block comes to."""
    match block:
        case Text(text) | Refusal(text):
            return len(text) - 2
        case Thinking():
            return 0  # the providers do not count it in a history
        case ToolUse():
            return len(block.name) + len(block.arguments)
        case ToolResult():
            return sum(_bytes(part) for part in block.parts)
        case Image():
            return _TOKENS_PER_IMAGE * _BYTES_PER_TOKEN
        case Audio(source) | Document(source):
            return _media_bytes(source)


def _media_bytes(source: Media) -> int:
    if source.kind is MediaKind.TEXT:
        return len(source.value)
    if source.kind is MediaKind.DATA:
        return len(source.value) * _BYTES_PER_TOKEN // _DATA_BYTES_PER_TOKEN
    return _TOKENS_PER_IMAGE * _BYTES_PER_TOKEN


def cannot_count(error: ApiError) -> bool:
    """Say whether Bedrock does not count for a model, not in this region, or not for these credentials.

    Of a request that it can't read, or that is too long, it says another thing.
    """
    if error.kind in (ErrorKind.PERMISSION, ErrorKind.NOT_FOUND):
        return True
    return error.kind is ErrorKind.INVALID and "model" in error.message.lower() and not is_too_long(error.message)


# -- translation ---------------------------------------------------------------------------------------


class Counting:
    """Translates one request to count, and its answer.

    client, client_api: the client's. model, model_api: the upstream's; ApiKind.CHAT has no way to count, and gets
    estimate(). is_flat: of COUNT_GENERATE: as in named_count_request().
    """

    __slots__ = ("_client", "_client_api", "_dropped", "_is_flat", "_model", "_model_api")

    def __init__(
        self,
        client: ClientSide,
        client_api: ApiKind,
        model: ModelSide,
        model_api: ApiKind,
        dropped: DroppedFields,
        *,
        is_flat: bool = False,
    ) -> None:
        self._client: Final = client
        self._client_api: Final = client_api
        self._model: Final = model
        self._model_api: Final = model_api
        self._dropped: Final = dropped
        self._is_flat: Final = is_flat

    def __repr__(self) -> str:
        return f"<Counting {self._client_api.name} {self._model_api.name}>"

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the fields of the request that were left out."""
        return self._dropped.names

    def request(self, body: bytes | bytearray, model: str) -> bytes:
        """Return the body to send. model: the one to count for. Raises BadRequestError."""
        request = self._read(body)
        try:
            written = self._model.write(request, model)
        except BadRequestError as exc:
            raise BadRequestError(exc.message, self._client.own_path(exc.param)) from exc
        return count_request(self._model_api, written.body, "" if self._is_flat else model)

    def estimate(self, body: bytes | bytearray) -> bytes:
        """Return a reply without asking anybody. Raises BadRequestError."""
        return written_tokens(self._client_api, estimated_tokens(self._read(body)))

    def _read(self, body: bytes | bytearray) -> Request:
        request = self._client.read(generate_request(self._client_api, body))
        request.stream = False
        if not request.messages:
            raise BadRequestError("there is nothing to count", "messages")
        return request

    def answer(self, body: bytes) -> bytes:
        """Put the reply into the client's dialect. Raises BrokenReplyError."""
        return written_tokens(self._client_api, tokens_of(body))

    def read_error(self, status: int, headers: Headers, body: bytes) -> ApiError:
        """Read an error's body."""
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return self._model.error(status, body, named)

    def error(self, error: ApiError) -> bytes:
        """Write an error in the client's dialect."""
        return self._client.error(error)
