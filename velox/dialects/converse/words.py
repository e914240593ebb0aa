"""What Converse's words mean in the canonical model: stop reasons, usage, errors. Plain answers and streams share them.

Knows: the enums and exceptions of Bedrock's runtime. Does not know: where they stood.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import ApiError, ErrorKind, JsonText, Stop, StopReason, Usage
from velox.dialects.converse.wire import ERROR, MORE_FIELDS, BlockBegin, Content, ConverseUsage

__all__ = ["api_error", "broken_stop", "lost", "message_of", "stop_of", "text_of", "usage_of"]

_STOPS: Final = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.STOP_STRING,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.CONTEXT,
    "tool_use": StopReason.TOOLS,
    "content_filtered": StopReason.FILTER,
    "guardrail_intervened": StopReason.FILTER,
}
# The model wrote what the service could not read: no answer.
_BROKEN: Final = frozenset({"malformed_model_output", "malformed_tool_use"})

_BAD_GATEWAY: Final = 502
# Kind, and the status to tell, by the exception's name without "Exception", in lower case.
_ERRORS: Final = {
    "validation": (ErrorKind.INVALID, 400),
    "accessdenied": (ErrorKind.PERMISSION, 403),
    "unrecognizedclient": (ErrorKind.AUTHENTICATION, 403),
    "expiredtoken": (ErrorKind.AUTHENTICATION, 403),
    "invalidsignature": (ErrorKind.AUTHENTICATION, 403),
    "incompletesignature": (ErrorKind.AUTHENTICATION, 403),
    "missingauthenticationtoken": (ErrorKind.AUTHENTICATION, 403),
    "resourcenotfound": (ErrorKind.NOT_FOUND, 404),
    "modeltimeout": (ErrorKind.TIMEOUT, 408),
    "conflict": (ErrorKind.CONFLICT, 409),
    "throttling": (ErrorKind.RATE_LIMIT, 429),
    "modelnotready": (ErrorKind.RATE_LIMIT, 429),
    "servicequotaexceeded": (ErrorKind.RATE_LIMIT, 429),  # it comes with 400
    "modelerror": (ErrorKind.API, _BAD_GATEWAY),  # 424
    "modelstreamerror": (ErrorKind.API, _BAD_GATEWAY),  # 424
    "internalserver": (ErrorKind.API, 500),
    "serviceunavailable": (ErrorKind.UNAVAILABLE, 503),
}
_KINDS: Final = {
    401: ErrorKind.AUTHENTICATION,
    402: ErrorKind.BILLING,
    403: ErrorKind.PERMISSION,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.CONFLICT,
    413: ErrorKind.TOO_LARGE,
    424: ErrorKind.API,
    429: ErrorKind.RATE_LIMIT,
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.TIMEOUT,
}
_MOST_TEXT: Final = 4096  # bytes of a body that is none of the service's


def text_of(raw: msgspec.Raw) -> JsonText | None:
    """Return a field that is a text; None: it is absent. Raises BrokenReplyError."""
    text = bytes(raw)
    if text[:1] == b'"':
        return text
    if text in (b"", b"null"):
        return None
    raise BrokenReplyError("a text of the upstream's reply is no string")


def lost(block: Content | BlockBegin) -> str | None:
    """Return what of a block the canonical model has no place for (Lost); None: nothing."""
    tool = block.tool_use
    if tool is not None:
        return "answer.tools.hosted" if tool.type == "server_tool_use" else None
    if block.image:
        return "answer.image"
    if block.tool_result:
        return "answer.tools.hosted"
    if isinstance(block, BlockBegin):
        return None
    if block.citations_content is not None:
        return "answer.citations"
    media = (("audio", block.audio), ("video", block.video), ("file", block.document), ("file", block.search_result))
    return next((f"answer.{name}" for name, raw in media if raw), None)


def stop_of(reason: str, more: msgspec.Raw, stops: list[str]) -> Stop:
    """Return why the model stopped. more: additionalModelResponseFields. stops: those of the request."""
    known = _STOPS.get(reason)
    if known is None:
        return Stop(StopReason.END, unknown=reason)
    if known is not StopReason.STOP_STRING:
        return Stop(known)
    sequence = stops[0] if len(stops) == 1 else None
    if more:
        try:
            sequence = MORE_FIELDS.decode(more).stop_sequence or sequence
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a model has whatever fields it likes
    return Stop(known, sequence)


def broken_stop(reason: str) -> ApiError | None:
    """Return the error that a stop reason is; None: it is none."""
    if reason not in _BROKEN:
        return None
    return ApiError(ErrorKind.API, _BAD_GATEWAY, f"the model's output could not be read ({reason})", reason)


def usage_of(usage: ConverseUsage | None, tier: str | None) -> Usage:
    """Return the tokens as the canonical model has them, where input has those of the cache, too.

    tier: what stands beside them.

    AWS counts the cache beside inputTokens and in totalTokens
    (https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html); some models' counts have it inside: then
    the total is that of input and output alone.
    """
    if usage is None:
        return Usage()
    given, details = usage.input_tokens, usage.cache_details
    beside = (usage.cache_read_input_tokens or 0) + (usage.cache_write_input_tokens or 0)
    if given is not None and not (beside <= given and usage.total_tokens == given + (usage.output_tokens or 0)):
        given += beside
    return Usage(
        input=given,
        output=usage.output_tokens,
        cached=usage.cache_read_input_tokens,
        cache_written=usage.cache_write_input_tokens,
        cache_written_1h=None if details is None else sum(each.input_tokens for each in details if each.ttl == "1h"),
        tier=tier,
    )


def api_error(name: str, status: int, message: str) -> ApiError:
    """Return an error. name: of the exception, however it is written; "" for none. status: as it came."""
    word = name.rpartition("#")[2].partition(":")[0].lower().removesuffix("exception")
    kind, status = _ERRORS.get(word) or (_kind_of(status), status)
    return ApiError(kind, status, message)


def _kind_of(status: int) -> ErrorKind:
    return _KINDS.get(status) or (ErrorKind.INVALID if 400 <= status < 500 else ErrorKind.API)


def message_of(body: bytes, fallback: str) -> tuple[str, str]:
    """Return the message of an error's body, whatever it is, and the name of its type, "" for none."""
    try:
        found = ERROR.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[:_MOST_TEXT].decode("utf-8", "replace").strip()
        return text or fallback, ""
    return found.message or found.capital or fallback, found.type or ""
