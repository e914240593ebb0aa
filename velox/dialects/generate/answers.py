"""Writes what Gemini's clients read: parts, candidates, counts and errors, for whole answers and for chunks.

Knows: Google's words for the form's. Does not know: requests, or in which order a stream tells.
Source: REST reference of v1beta (Candidate, UsageMetadata), google.rpc.Status.
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.model import (
    AnswerBlock,
    ApiError,
    ErrorKind,
    JsonText,
    Refusal,
    Signature,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
)
from velox.dialects.canonical.signatures import NOBODY, tagged_base64
from velox.dialects.generate.words import GOOGLE
from velox.dialects.json_text.surrogates import without_halves
from velox.dialects.json_text.text import quoted

__all__ = ["EMPTY_PART", "call_part", "ending", "error_body", "part", "signed", "text_part", "usage_metadata"]

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
    return None


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
