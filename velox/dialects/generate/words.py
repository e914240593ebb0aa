"""What Google's words mean, both ways: why an answer stopped, what it used, its parts, and errors.

Whole answers and the chunks of a stream share them.

Knows: Google's words, and the canonical model's. Does not know: the order of a stream, or requests.
Source: REST reference of v1beta (Candidate, FinishReason, BlockedReason, UsageMetadata), google.rpc.Code,
google.rpc.Status, google.rpc.error_details.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import lost_media
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    AnswerBlock,
    ApiError,
    ErrorKind,
    Image,
    JsonText,
    Media,
    MediaKind,
    Modalities,
    Refusal,
    Signature,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
    settled,
)
from velox.dialects.canonical.signatures import NOBODY, tagged_base64
from velox.dialects.generate.wire import (
    Blob,
    Candidate,
    Feedback,
    GenerateReply,
    ModalityCount,
    ReplyPart,
    Status,
    UsageMetadata,
    is_absent,
)
from velox.dialects.json_text.decoding import decode
from velox.dialects.json_text.surrogates import masked, unmasked, without_halves
from velox.dialects.json_text.text import quoted, raw_text

__all__ = [
    "EMPTY_PART",
    "GOOGLE",
    "api_error",
    "blocked",
    "call_part",
    "ending",
    "error_body",
    "first",
    "lost",
    "part",
    "picture",
    "picture_part",
    "read_reply",
    "signed",
    "status_error",
    "stop",
    "text_part",
    "tier",
    "usage",
    "usage_metadata",
    "whole_usage",
]

# Whose signatures are read and written here.
GOOGLE: Final = "google"

_REPLY: Final = msgspec.json.Decoder(GenerateReply)
_ERROR: Final = msgspec.json.Decoder(GenerateReply | list[GenerateReply])
_BLOB: Final = msgspec.json.Decoder(Blob)
_STATUS: Final = msgspec.json.Decoder(Status)
_DETAILS: Final = msgspec.json.Decoder(list[ModalityCount])

_TRAFFIC: Final = {"ON_DEMAND_PRIORITY": "priority", "ON_DEMAND_FLEX": "flex"}
_STOPS: Final = {
    "STOP": StopReason.END,
    "MAX_TOKENS": StopReason.LENGTH,
    # What one request may give is given. Only a token of Google's continues the answer, which no other dialect has.
    "CONTINUATION": StopReason.LENGTH,
    "SAFETY": StopReason.FILTER,
    "RECITATION": StopReason.FILTER,
    "LANGUAGE": StopReason.FILTER,
    "BLOCKLIST": StopReason.FILTER,
    "PROHIBITED_CONTENT": StopReason.FILTER,
    "SPII": StopReason.FILTER,
    "IMAGE_SAFETY": StopReason.FILTER,
    "IMAGE_PROHIBITED_CONTENT": StopReason.FILTER,
    "IMAGE_RECITATION": StopReason.FILTER,
    "IMAGE_OTHER": StopReason.FILTER,
    "MODEL_ARMOR": StopReason.FILTER,
    "ESCALATION": StopReason.FILTER,
    "PUP_LIMITED_DISABLED": StopReason.FILTER,
}
# The model said nothing that is of use: an error, not an end.
_BROKEN: Final = frozenset(
    {
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
        "TOO_MANY_TOOL_CALLS",
        "UNEXPECTED_TOOL_CALL",
    }
)
_KINDS: Final = {
    "INVALID_ARGUMENT": ErrorKind.INVALID,
    "FAILED_PRECONDITION": ErrorKind.INVALID,
    "OUT_OF_RANGE": ErrorKind.INVALID,
    "UNAUTHENTICATED": ErrorKind.AUTHENTICATION,
    "PERMISSION_DENIED": ErrorKind.PERMISSION,
    "NOT_FOUND": ErrorKind.NOT_FOUND,
    "ABORTED": ErrorKind.CONFLICT,
    "ALREADY_EXISTS": ErrorKind.CONFLICT,
    "RESOURCE_EXHAUSTED": ErrorKind.RATE_LIMIT,
    "UNAVAILABLE": ErrorKind.UNAVAILABLE,
    "DEADLINE_EXCEEDED": ErrorKind.TIMEOUT,
}
_KINDS_BY_STATUS: Final = {kind.value: kind for kind in ErrorKind}
_BAD_KEY: Final = "API_KEY_INVALID"  # comes with a status of 400
# Beside pictures of megabytes, which hold no quote.
_MIME_TYPE: Final = re.compile(rb'"mimeType"\s*:\s*"([a-z]{1,20})/')
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_MOST_MESSAGE: Final = 4096
_BAD_GATEWAY: Final = 502


def read_reply(body: bytes) -> GenerateReply:
    """Read an answer or a chunk. Raises BrokenReplyError."""
    try:
        if not body.isascii():
            body.decode()  # texts stay as they are: nobody else looks
        return decode(_REPLY, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        half = masked(body)
        if half is None:
            raise _no_reply() from exc
    try:
        return unmasked(decode(_REPLY, half))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _no_reply() from exc


def _no_reply() -> BrokenReplyError:
    return BrokenReplyError("the upstream's answer is no JSON of generateContent")


def first(reply: GenerateReply) -> Candidate | None:
    """Return the first of the answers: nobody asks for others."""
    for candidate in reply.candidates or ():
        if not candidate.index:
            return candidate
    return None


def picture(part: ReplyPart) -> Image | None:
    """Return the picture of a part that has one as data."""
    if is_absent(part.inline_data):
        return None
    try:
        found = _BLOB.decode(part.inline_data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_picture = found.mime_type.startswith("image/") and bool(found.data)
    return Image(Media(MediaKind.DATA, found.data, found.mime_type)) if is_picture else None


def lost(part: ReplyPart) -> str | None:
    """Return what of a part without a text or a picture the canonical model has no place for (Lost); None: nothing."""
    if not (
        part.inline_data
        or part.file_data
        or part.executable_code
        or part.code_execution_result
        or part.tool_call
        or part.tool_response
    ):
        return None  # most parts
    for media in (part.inline_data, part.file_data):
        if not is_absent(media):
            found = _MIME_TYPE.search(media)
            return lost_media("" if found is None else found[1].decode())
    own = (part.executable_code, part.code_execution_result, part.tool_call, part.tool_response)
    return None if all(map(is_absent, own)) else "answer.tools.hosted"


def stop(candidate: Candidate, has_tools: bool) -> Stop | ApiError | None:
    """Return why a candidate stopped; None: it has not; an error: what it said is of no use.

    has_tools: a function was called so far: the model's STOP does not say it.
    """
    reason = candidate.finish_reason
    if reason is None or reason == "FINISH_REASON_UNSPECIFIED":
        return None
    if reason in _BROKEN:
        message = _plain(candidate.finish_message) or "the model's answer can't be used"
        return ApiError(ErrorKind.API, _BAD_GATEWAY, f"{message} ({reason})", code=reason.lower())
    found = _STOPS.get(reason)
    if found is None:
        return settled(Stop(StopReason.END, unknown=reason), has_calls=has_tools)
    explanation = raw_text(candidate.finish_message) if found is StopReason.FILTER else None
    return settled(Stop(found, explanation=explanation), has_calls=has_tools)


def blocked(feedback: Feedback | None) -> Stop | None:
    """Return the stop of a prompt that was blocked; None: it was not."""
    if feedback is None or feedback.block_reason in (None, "BLOCKED_REASON_UNSPECIFIED"):
        return None
    return Stop(StopReason.FILTER, explanation=raw_text(feedback.block_reason_message))


def usage(metadata: UsageMetadata) -> Usage:
    """Return the tokens. Thoughts are counted beside the candidates, and what tools put into the prompt beside it."""
    prompt, tools = metadata.prompt_token_count, metadata.tool_use_prompt_token_count
    output, thoughts = metadata.candidates_token_count, metadata.thoughts_token_count
    return Usage(
        prompt if tools is None else (prompt or 0) + tools,
        output if thoughts is None else (output or 0) + thoughts,
        metadata.cached_content_token_count,
        reasoning=thoughts,
        modalities=_modalities(metadata),
        tier=tier(metadata),
    )


def whole_usage(metadata: UsageMetadata) -> Usage:
    """Return the tokens of a plain answer. One that was filtered has no count of its own: the total tells."""
    found, total = usage(metadata), metadata.total_token_count
    if found.output is not None or found.input is None or total is None:
        return found
    return msgspec.structs.replace(found, output=max(0, total - found.input))


def _modalities(metadata: UsageMetadata) -> Modalities | None:
    if not (metadata.prompt_tokens_details or metadata.candidates_tokens_details):
        return None
    prompt, cache, answer = (
        _counts(metadata.prompt_tokens_details),
        _counts(metadata.cache_tokens_details),
        _counts(metadata.candidates_tokens_details),
    )
    if not (prompt or answer):
        return None
    cached = (cache.get("AUDIO", 0), cache.get("IMAGE", 0)) if cache else (None, None)
    sound = (prompt.get("AUDIO"), cached[0], answer.get("AUDIO"))
    return Modalities(*sound, prompt.get("IMAGE"), answer.get("IMAGE"), cached[1])


def _counts(details: Raw) -> dict[str, int]:
    """Return the tokens by modality; none: it is all text, as in most events of a stream, or can't be read."""
    text = bytes(details)
    if not text or (b'"AUDIO"' not in text and b'"IMAGE"' not in text):
        return {}
    try:
        return {each.modality: each.token_count for each in _DETAILS.decode(text)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def tier(metadata: UsageMetadata | None) -> str | None:
    """Return the tier that a request was served in, as OpenAI calls it."""
    if metadata is None:
        return None
    found = metadata.service_tier.lower() if metadata.service_tier else _TRAFFIC.get(metadata.traffic_type or "")
    return "default" if found == "standard" else found


def status_error(raw: Raw | bytes) -> ApiError:
    """Read the error of a body or a chunk, which came with a status of 200."""
    try:
        status = _STATUS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ApiError(ErrorKind.API, _BAD_GATEWAY, "the upstream sent an error that can't be read")
    return _api_error(status, status.code or 0)


def api_error(http_status: int, body: bytes) -> ApiError:
    """Read the body of an error, which may be anything."""
    try:
        found = _ERROR.decode(body)
        reply = found[0] if isinstance(found, list) else found
        if is_absent(reply.error):
            raise ValueError
        return _api_error(_STATUS.decode(reply.error), http_status)
    except (msgspec.DecodeError, ValueError, IndexError, RecursionError):
        text = body[:_MOST_MESSAGE].decode("utf-8", "replace").strip()
        return ApiError(_kind(http_status), http_status, text or f"the upstream answered {http_status} without a body")


def _api_error(status: Status, http_status: int) -> ApiError:
    kind = _KINDS.get(status.status or "")
    if kind is None:
        kind = _kind(status.code or http_status)
    retry_after_s = None
    for detail in status.details or ():
        if detail.reason == _BAD_KEY:
            kind = ErrorKind.AUTHENTICATION
        delay = _DELAY.fullmatch(detail.retry_delay) if detail.retry_delay else None
        if delay is not None:
            retry_after_s = float(delay[1])
    return ApiError(
        kind,
        http_status if 400 <= http_status <= 599 else kind.value,
        (status.message or status.status or "the upstream sent an error without a message")[:_MOST_MESSAGE],
        code=status.status.lower() if status.status else None,
        retry_after_s=retry_after_s,
    )


def _kind(http_status: int) -> ErrorKind:
    kind = _KINDS_BY_STATUS.get(http_status)
    if kind is not None:
        return kind
    return ErrorKind.INVALID if 400 <= http_status <= 499 else ErrorKind.API


def _plain(raw: Raw) -> str:
    if is_absent(raw):
        return ""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return found[:_MOST_MESSAGE] if isinstance(found, str) else ""


# -- as clients read it ------------------------------------------------------------------------------

# A content without parts makes google-genai leave the whole turn out of its history.
EMPTY_PART: Final = b'{"text":""}'

_FINISHES: Final = {
    StopReason.LENGTH: b"MAX_TOKENS",
    StopReason.CONTEXT: b"MAX_TOKENS",
    StopReason.FILTER: b"SAFETY",
}
_STATUSES: Final = {
    ErrorKind.INVALID: "INVALID_ARGUMENT",
    ErrorKind.AUTHENTICATION: "UNAUTHENTICATED",
    ErrorKind.BILLING: "FAILED_PRECONDITION",
    ErrorKind.PERMISSION: "PERMISSION_DENIED",
    ErrorKind.NOT_FOUND: "NOT_FOUND",
    ErrorKind.CONFLICT: "ABORTED",
    ErrorKind.TOO_LARGE: "INVALID_ARGUMENT",
    ErrorKind.RATE_LIMIT: "RESOURCE_EXHAUSTED",
    ErrorKind.API: "INTERNAL",
    ErrorKind.UNAVAILABLE: "UNAVAILABLE",
    ErrorKind.TIMEOUT: "DEADLINE_EXCEEDED",
    ErrorKind.OVERLOADED: "UNAVAILABLE",
}
_UNSIGNED: Final = Signature(NOBODY, "")
_OVERLOADED: Final = 529  # Anthropic's own
_TYPE: Final = b'"@type":"type.googleapis.com/google.rpc.'


def text_part(text: JsonText, *, is_thought: bool = False, signature: bytes = b"") -> bytes:
    """Write a text or a thought."""
    if b"\\u" in text:
        text = without_halves(text)
    return b'{"text":' + text + (b',"thought":true' if is_thought else b"") + signature + b"}"


def call_part(
    call_id: str, name: str, arguments: bytes, signature: Signature | None, *, is_first: bool = False
) -> bytes:
    """Write a call. arguments: an object. is_first: in its answer: Gemini wants a signature of that one, if it gets the
    history. A mark says that there is none (as_sent/foreign_history.py).
    """
    if signature is None and is_first:
        signature = _UNSIGNED
    return b'{"functionCall":{"id":%b,"name":%b,"args":%b}%b}' % (
        quoted(call_id),
        without_halves(quoted(name)),
        without_halves(arguments),
        signed(signature),
    )


def signed(signature: Signature | None, *, is_redacted: bool = False) -> bytes:
    """Write the field of a signature; one that is not Google's has its provider with it."""
    if signature is None:
        return b""
    if signature.provider == GOOGLE:
        return b',"thoughtSignature":' + quoted(signature.value)
    return b',"thoughtSignature":' + quoted(tagged_base64(signature, is_redacted=is_redacted))


def part(block: AnswerBlock, call_id: str, *, is_first: bool = False) -> bytes | None:
    """Write a block of an answer; None: it has no counterpart. call_id: for a call without an id. is_first: among
    calls.
    """
    if isinstance(block, Text):
        return text_part(block.text, signature=signed(block.signature))
    if isinstance(block, Thinking):
        return text_part(block.text, is_thought=True, signature=signed(block.signature, is_redacted=block.is_redacted))
    if isinstance(block, ToolUse):
        return call_part(block.id or call_id, block.name, block.arguments, block.signature, is_first=is_first)
    if isinstance(block, Refusal):
        return text_part(block.text)
    if isinstance(block, Image):
        return picture_part(block)
    return None


def picture_part(image: Image) -> bytes:
    """Write a picture, which is data."""
    source = image.source
    return b'{"inlineData":{"mimeType":%b,"data":%b}}' % (quoted(source.type or "image/png"), quoted(source.value))


def ending(stop: Stop, refusal: JsonText | None = None) -> bytes:
    """Write why an answer ended. refusal: the model's own words for why it does not answer."""
    explanation = stop.explanation or refusal
    reason = b"SAFETY" if refusal is not None else _FINISHES.get(stop.reason, b"STOP")
    message = (
        b',"finishMessage":' + without_halves(explanation) if explanation is not None and reason == b"SAFETY" else b""
    )
    return b'"finishReason":"' + reason + b'"' + message


def usage_metadata(usage: Usage) -> bytes:
    """Write the counts: thoughts stand beside the other tokens of the answer."""
    prompt, output, thoughts = usage.input or 0, usage.output or 0, usage.reasoning or 0
    fields = [b'"promptTokenCount":%d' % prompt, b'"candidatesTokenCount":%d' % max(output - thoughts, 0)]
    if usage.cached:
        fields.append(b'"cachedContentTokenCount":%d' % usage.cached)
    if thoughts:
        fields.append(b'"thoughtsTokenCount":%d' % thoughts)
    fields.append(b'"totalTokenCount":%d' % (prompt + output))
    return b"{" + b",".join(fields) + b"}"


def error_body(error: ApiError) -> bytes:
    """Write an error."""
    message = quoted(error.message)
    details = []
    if error.param:
        details.append(
            b'{%bBadRequest","fieldViolations":[{"field":%b,"description":%b}]}' % (_TYPE, quoted(error.param), message)
        )
    if error.retry_after_s is not None:
        details.append(b'{%bRetryInfo","retryDelay":"%bs"}' % (_TYPE, f"{error.retry_after_s:g}".encode()))
    more = b',"details":[' + b",".join(details) + b"]" if details else b""
    code = ErrorKind.UNAVAILABLE.value if error.status == _OVERLOADED else error.status
    status = _STATUSES[error.kind].encode()
    return b'{"error":{"code":%d,"message":%b,"status":"%b"%b}}' % (code, message, status, more)
