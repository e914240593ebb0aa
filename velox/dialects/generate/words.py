"""What an answer says, whole or a chunk of a stream: why it stopped, what it used, and Google's errors.

Knows: Google's words for these, and the form's. Does not know: streams, or requests.
Source: REST reference of v1beta (FinishReason, BlockedReason), google.rpc.Code, google.rpc.error_details.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import lost_media
from velox.dialects.canonical.endings import settled
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    ApiError,
    ErrorKind,
    Image,
    Media,
    MediaKind,
    Modalities,
    Stop,
    StopReason,
    Usage,
)
from velox.dialects.generate.wire import (
    Blob,
    Candidate,
    Feedback,
    ModalityCount,
    Reply,
    ReplyPart,
    Status,
    UsageMetadata,
    is_absent,
)
from velox.dialects.json_text.surrogates import masked, unmasked
from velox.dialects.json_text.text import raw_text

__all__ = [
    "GOOGLE",
    "api_error",
    "blocked",
    "first",
    "lost",
    "picture",
    "read_reply",
    "status_error",
    "stop",
    "tier",
    "usage",
    "whole_usage",
]

# Whose signatures are read and written here.
GOOGLE: Final = "google"

_REPLY: Final = msgspec.json.Decoder(Reply)
_ERROR: Final = msgspec.json.Decoder(Reply | list[Reply])
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


def read_reply(body: bytes) -> Reply:
    """Read an answer or a chunk. Raises BrokenReplyError."""
    try:
        if not body.isascii():
            body.decode()  # texts stay as they are: nobody else looks
        return _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        half = masked(body)
        if half is None:
            raise _no_reply() from exc
    try:
        return unmasked(_REPLY.decode(half))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _no_reply() from exc


def _no_reply() -> BrokenReplyError:
    return BrokenReplyError("the upstream's answer is no JSON of generateContent")


def first(reply: Reply) -> Candidate | None:
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
    """Return what of a part without a text or a picture the form has no place for (form.Lost); None: nothing."""
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
    if b'"AUDIO"' not in text and b'"IMAGE"' not in text:
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
