"""What the words of Responses mean, both ways: items, usage, why an answer stopped, errors, and the object around all.

Whole answers and the last events of a stream share them. The signature of a call or of a text (Google signs those) has
no field in this dialect. It stands in an item of reasoning of its own, without a text, tagged with the id of the call;
the reader of requests puts it back.

Knows: words and fields. Does not know: the order of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ClientCall,
    ErrorKind,
    Image,
    JsonText,
    JsonValue,
    Media,
    MediaKind,
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
from velox.dialects.canonical.signatures import tagged
from velox.dialects.json_text.decoding import bill_in, decoded_request, is_given, object_in
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, joined, quoted, raw_text
from velox.dialects.openai_errors import api_error
from velox.dialects.responses import wire
from velox.dialects.responses.sources import SEARCH_CALL, citations_of, n_annotations, search_of
from velox.dialects.responses.tools import ToolKind, ToolOrigin
from velox.dialects.tools.arguments import custom_arguments, custom_input, read_arguments, written_arguments
from velox.protocol.usage.token_usage import TokenUsage
from velox.protocol.usage.tokens import openai_searches, with_tools
from velox.types import AnswerKeeper

__all__ = [
    "COMPLETED",
    "IN_PROGRESS",
    "PICTURE_PREFIX",
    "THOUGHT",
    "ResponseObject",
    "answer_id",
    "answer_of",
    "blocks_of",
    "call_item",
    "call_prefix",
    "ended_status",
    "error_value",
    "lost",
    "message_item",
    "picture_item",
    "reasoning_item",
    "reasoning_of",
    "refusal_part",
    "sealed",
    "signature_of",
    "stop_of",
    "text_part",
    "usage_json",
    "usage_of",
]

# How the value of a call's signature begins, which is not one of reasoning. Perplexity passes Google's on.
THOUGHT: Final = "thought_signature:"

_USAGE: Final = msgspec.json.Decoder(wire.ResponsesUsage)
_STOPS: Final = {
    "max_output_tokens": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "content_filter": StopReason.FILTER,
}
_FAILED: Final = ("failed", "cancelled")
_WHOLE: Final = ("completed", "complete", "incomplete", None)  # as other servers call it, or leave it out
_KEPT: Final = ("reasoning", "function_call", "custom_tool_call")
_LOST_PARTS: Final = {"output_audio": "answer.audio", "output_image": "answer.image"}
_NO_USAGE: Final = Usage()


def _calls(reply: wire.ResponsesReply) -> Iterator[dict[str, object]]:
    """Yield the items of an answer as far as they say whether they are searches."""
    for item in reply.output or ():
        if item.type == SEARCH_CALL:
            yield {"type": item.type, "action": object_in(item.action)}


def usage_of(reply: wire.ResponsesReply) -> Usage:
    """Read the usage, with what stands beside it of tier and tools; what can't be read is left out."""
    raw = reply.usage
    if not is_given(raw):
        return _NO_USAGE
    try:
        given = _USAGE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_USAGE
    inputs, outputs = given.input_tokens_details, given.output_tokens_details
    written = None
    if inputs is not None:
        written = inputs.cache_write_tokens
        written = inputs.cache_creation_input_tokens if written is None else written
    ran = with_tools(TokenUsage(), object_in(reply.tool_usage))
    return Usage(
        given.input_tokens,
        given.output_tokens,
        None if inputs is None else inputs.cached_tokens,
        written,
        None,
        None if outputs is None else outputs.reasoning_tokens,
        tier=reply.service_tier,
        bill=bill_in(raw),
        web_searches=ran.web_searches or openai_searches(_calls(reply)) or None,
        has_others=ran.has_others,
    )


def stop_of(reply: wire.ResponsesReply, *, has_calls: bool) -> Stop:
    """Return why the model stopped. Raises ReplyError: it failed; BrokenReplyError: it has not stopped."""
    if is_given(reply.error) or reply.status in _FAILED:
        raise ReplyError(api_error(reply.error if is_given(reply.error) else b'{"message":"the answer failed"}'))
    if reply.status not in _WHOLE:
        raise BrokenReplyError(f"the upstream's answer is not whole: its status is {reply.status}")
    if reply.status == "incomplete":
        word = (reply.incomplete_details.reason if reply.incomplete_details is not None else None) or "incomplete"
        reason = _STOPS.get(word)
        # It is cut, whatever the reason, also where none is told: never whole.
        return Stop(StopReason.LENGTH, unknown=word[:64]) if reason is None else Stop(reason)
    return settled(Stop(StopReason.END), has_calls=has_calls)


def reasoning_of(item: wire.OutputItem) -> JsonText:
    """Return the text of reasoning: its summary, or all of it where a server shows that."""
    for parts in (item.summary, item.content):
        texts = [text for part in parts or () if (text := raw_text(part.text)) is not None]
        if texts:
            return joined(texts)
    return EMPTY


def signature_of(item: wire.OutputItem, provider: str) -> Signature | None:
    """Return the signature of reasoning, which is bound to the item's id; or of a call."""
    if item.thought_signature:
        return Signature(provider, THOUGHT + item.thought_signature)
    return Signature(provider, item.encrypted_content, item.id) if item.encrypted_content else None


def blocks_of(output: Sequence[wire.OutputItem], provider: str) -> list[AnswerBlock]:
    """Read the items of an answer. Of tools that the upstream runs itself, its search of the web is one."""
    blocks: list[AnswerBlock] = []
    for item in output:
        match item.type:
            case "message":
                for part in item.content or ():
                    if part.type == "output_text":
                        blocks.append(Text(raw_text(part.text) or EMPTY, cited=citations_of(part.annotations)))
                    elif part.type == "refusal":
                        blocks.append(Refusal(raw_text(part.refusal) or EMPTY))
            case "reasoning":
                text, signature = reasoning_of(item), signature_of(item, provider)
                if text != EMPTY or signature is not None:
                    blocks.append(Thinking(text, signature))
            case "function_call":
                arguments = read_arguments(bytes(item.arguments))
                blocks.append(ToolUse(item.call_id or "", item.name or "", arguments, signature_of(item, provider)))
            case "image_generation_call" if item.result:
                blocks.append(Image(Media(MediaKind.DATA, item.result, f"image/{item.output_format or 'png'}")))
            case "web_search_call":
                search = search_of(item.action)
                if search is not None:
                    blocks.append(search)
            case "custom_tool_call":
                arguments = custom_arguments(raw_text(item.input) or EMPTY)
                blocks.append(ToolUse(item.call_id or "", item.name or "", arguments))
    return blocks


def picture_item(item_id: bytes, image: Image | None) -> bytes:
    """Write the item of a picture, which is data. item_id: as JSON. image: None: it is being made."""
    if image is None:
        return b'{"id":%b,"type":"image_generation_call","status":"in_progress","result":null}' % item_id
    form = b'{"id":%b,"type":"image_generation_call","status":"completed","result":%b,"output_format":%b}'
    kind = (image.source.type or "image/png").removeprefix("image/")
    return form % (item_id, quoted(image.source.value), quoted(kind))


def lost(item: wire.OutputItem) -> list[str]:
    """Return what of an item the canonical model has no place for (Lost)."""
    if item.type == "image_generation_call":
        return [] if item.result else ["answer.image"]
    if item.type == SEARCH_CALL:
        return [] if search_of(item.action) is not None else ["answer.tools.hosted"]
    if item.type != "message":
        return [] if item.type in _KEPT else ["answer.tools.hosted"]
    parts = item.content or ()
    found = [name for part in parts if (name := _LOST_PARTS.get(part.type or "")) is not None]
    if any(n_annotations(part.annotations) > len(citations_of(part.annotations)) for part in parts):
        found.append("answer.citations")
    return found


def answer_of(reply: wire.ResponsesReply, provider: str) -> Answer:
    """Read a whole answer. Raises ReplyError, BrokenReplyError."""
    blocks = blocks_of(reply.output or (), provider)
    has_calls = any(isinstance(block, ToolUse) for block in blocks)
    stop = stop_of(reply, has_calls=has_calls)
    if reply.output is None:
        raise BrokenReplyError("the upstream's answer has no output")
    names = tuple(dict.fromkeys(name for item in reply.output for name in lost(item)))
    tier = reply.service_tier
    return Answer(reply.id or "", reply.model or "", blocks, stop, usage_of(reply), tier, names)


# -- as clients read it ------------------------------------------------------------------------------

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SHELL_FIELDS: Final = {
    "commands": msgspec.Raw(b"[]"),
    "timeout_ms": msgspec.Raw(b"null"),
    "max_output_length": msgspec.Raw(b"null"),
}
_PATCH_FIELDS: Final = {
    "type": msgspec.Raw(b'"update_file"'),
    "path": msgspec.Raw(b'""'),
    "diff": msgspec.Raw(b'""'),
}
_ASKED: Final = msgspec.json.Decoder(wire.AskedTools)
IN_PROGRESS: Final = b"in_progress"
COMPLETED: Final = b"completed"
_NOT_KEPT: Final = b'"previous_response_id":null,"store":false,"metadata":{}'
PICTURE_PREFIX: Final = "ig_"  # of the id of an item
_NULL: Final = b"null"
_TAIL: Final = b',%b,"service_tier":%b}'
_USUAL_TAIL: Final = _TAIL % (_NOT_KEPT, _NULL)
_INCOMPLETE: Final = {
    StopReason.LENGTH: b'{"reason":"max_output_tokens"}',
    StopReason.CONTEXT: b'{"reason":"max_output_tokens"}',
    StopReason.FILTER: b'{"reason":"content_filter"}',
}
_ERROR_CODES: Final = {
    ErrorKind.INVALID: "invalid_prompt",
    ErrorKind.TOO_LARGE: "invalid_prompt",
    ErrorKind.RATE_LIMIT: "rate_limit_exceeded",
}
# Codes that clients of this dialect look for.
_KNOWN_CODES: Final = frozenset(
    {"context_length_exceeded", "insufficient_quota", "rate_limit_exceeded", "server_error"}
)
_PREFIXES: Final = {
    ToolKind.FUNCTION: "fc_",
    ToolKind.CUSTOM: "ctc_",
    ToolKind.LOCAL_SHELL: "lsh_",
    ToolKind.SHELL: "sh_",
    ToolKind.APPLY_PATCH: "apc_",
    ToolKind.TOOL_SEARCH: "tsc_",
}


def answer_id(theirs: str, call: ClientCall) -> str:
    """Return the id of an answer: the upstream's where it is one of this dialect."""
    return theirs if theirs.startswith("resp_") else f"resp_{call.id}"


def call_prefix(origin: ToolOrigin) -> str:
    """Return how the id of an item of a call begins."""
    return _PREFIXES[origin.kind]


# -- items ----------------------------------------------------------------------------------------------


def text_part(text: JsonText, annotations: Iterable[bytes] = ()) -> bytes:
    """Write a part of a message."""
    return b'{"type":"output_text","annotations":[%b],"logprobs":[],"text":%b}' % (b",".join(annotations), text)


def refusal_part(text: JsonText) -> bytes:
    """Write a refusal, as a part of a message."""
    return b'{"type":"refusal","refusal":%b}' % text


def message_item(item_id: bytes, status: bytes, part: bytes) -> bytes:
    """Write a message. item_id: JSON. part: b"" for none yet."""
    form = b'{"id":%b,"type":"message","status":"%b","role":"assistant","content":[%b]}'
    return form % (item_id, status, part)


def reasoning_item(item_id: bytes, text: JsonText, encrypted: str | None) -> bytes:
    """Write reasoning. encrypted: its signature, see sealed()."""
    summary = b"" if text == EMPTY else b'{"type":"summary_text","text":%b}' % text
    sealed_field = b"" if encrypted is None else b',"encrypted_content":%b' % quoted(encrypted)
    return b'{"id":%b,"type":"reasoning","summary":[%b]%b}' % (item_id, summary, sealed_field)


def sealed(signature: Signature, item_id: str, *, is_redacted: bool = False) -> str:
    """Return a signature as `encrypted_content`: OpenAI's own as it is, where the item has the id it is bound to."""
    if signature.provider == "openai" and signature.item_id == item_id and not is_redacted:
        return signature.value
    return tagged(signature, is_redacted=is_redacted)


def call_item(item_id: bytes, call_id: bytes, origin: ToolOrigin, arguments: JsonValue, status: bytes) -> bytes:
    """Write a call as the client has declared the tool. arguments: an object; b"": none yet."""
    namespace = b"" if origin.namespace is None else b',"namespace":' + quoted(origin.namespace)
    name = quoted(origin.name)
    match origin.kind:
        case ToolKind.FUNCTION:
            form = b'{"id":%b,"type":"function_call","status":"%b","arguments":%b,"call_id":%b,"name":%b%b}'
            return form % (item_id, status, written_arguments(arguments), call_id, name, namespace)
        case ToolKind.CUSTOM:
            form = b'{"id":%b,"type":"custom_tool_call","status":"%b","call_id":%b,"input":%b,"name":%b%b}'
            text = custom_input(arguments) if arguments else EMPTY
            return form % (item_id, status, call_id, text, name, namespace)
        case ToolKind.LOCAL_SHELL:
            form = b'{"id":%b,"type":"local_shell_call","status":"%b","call_id":%b,"action":%b}'
            return form % (item_id, status, call_id, _shell_action(arguments))
        case ToolKind.SHELL:
            form = b'{"id":%b,"type":"shell_call","status":"%b","call_id":%b,"action":%b}'
            return form % (item_id, status, call_id, _with_fields(arguments, _SHELL_FIELDS))
        case ToolKind.APPLY_PATCH:
            form = b'{"id":%b,"type":"apply_patch_call","status":"%b","call_id":%b,"operation":%b}'
            return form % (item_id, status, call_id, _with_fields(arguments, _PATCH_FIELDS))
        case ToolKind.TOOL_SEARCH:
            form = b'{"id":%b,"type":"tool_search_call","status":"%b","call_id":%b,"execution":"client","arguments":%b}'
            return form % (item_id, status, call_id, arguments or b"{}")


def _shell_action(arguments: JsonValue) -> bytes:
    """Return what a shell is to do: the model's arguments, and the fields that it was not asked for."""
    fields = arguments.strip()[1:].lstrip()
    if not fields or fields == b"}":
        return b'{"type":"exec","command":[],"env":{}}'
    return b'{"type":"exec","env":{},' + fields


def _with_fields(arguments: JsonValue, fields: Mapping[str, msgspec.Raw]) -> bytes:
    """Return a model's arguments with the fields that clients read, which it need not have written."""
    try:
        given = _FIELDS.decode(arguments or b"{}")
    except (msgspec.DecodeError, RecursionError):
        given = {}
    return msgspec.json.encode({**fields, **given})


def usage_json(usage: Usage) -> bytes:
    """Write the usage."""
    prompt, output = usage.input or 0, usage.output or 0
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        % (prompt, usage.cached or 0, usage.cache_written or 0, output, usage.reasoning or 0, prompt + output)
    )


def error_value(error: ApiError) -> bytes:
    """Write the error of an answer that failed."""
    code = error.code if error.code in _KNOWN_CODES else _ERROR_CODES.get(error.kind, "server_error")
    return b'{"code":%b,"message":%b}' % (quoted(code or ""), quoted(error.message))


# -- the answer ---------------------------------------------------------------------------------------


def ended_status(stop: Stop) -> bytes:
    """Return the status of an answer's last item: whole, or cut where the model had no room for more."""
    return b"incomplete" if stop.reason in (StopReason.LENGTH, StopReason.CONTEXT) else COMPLETED


class ResponseObject:
    """The answer around its items, with what the client asked for as OpenAI repeats it."""

    __slots__ = ("_body", "_head", "_keeper", "_tail", "id")

    def __init__(self, theirs: str, model: str, call: ClientCall, given: wire.RequestBody, body: bytes) -> None:
        self.id: Final = answer_id(theirs, call)
        form = b'{"id":%b,"object":"response","created_at":%d,"model":%b,"background":false,'
        self._head: Final = form % (quoted(self.id), call.now_s, quoted(model)) + _asked(given, body)
        keeper, tier = call.keeper, given.service_tier
        self._keeper: Final = None if given.store is False else keeper
        self._body: Final = body
        self._tail: Final = _USUAL_TAIL if keeper is None and tier is None else _tail(keeper, given)

    def __repr__(self) -> str:
        return f"<ResponseObject {self.id}>"

    def in_progress(self) -> bytes:
        """Write the answer as it begins."""
        return self._written(IN_PROGRESS, b"", _NULL, _NULL, _NULL)

    def stopped(self, stop: Stop, output: bytes, usage: Usage) -> bytes:
        """Write the whole answer, and have it kept. output: its items."""
        details = _INCOMPLETE.get(stop.reason, _NULL)
        status = COMPLETED if details is _NULL else b"incomplete"
        written = self._written(status, output, usage_json(usage), details, _NULL)
        if self._keeper is not None:
            self._keeper.keep(self._body, written)
        return written

    def failed(self, error: ApiError, output: bytes) -> bytes:
        """Write the answer as far as it came."""
        return self._written(b"failed", output, _NULL, _NULL, error_value(error))

    def _written(self, status: bytes, output: bytes, usage: bytes, details: bytes, error: bytes) -> bytes:
        form = b'%b,"status":"%b","error":%b,"incomplete_details":%b,"output":[%b],"usage":%b%b'
        return form % (self._head, status, error, details, output, usage, self._tail)


def _tail(keeper: AnswerKeeper | None, given: wire.RequestBody) -> bytes:
    """Write how the answer ends: what is kept of it, and its tier."""
    kept = _NOT_KEPT if keeper is None else _kept(keeper, given)
    return _TAIL % (kept, _NULL if given.service_tier is None else quoted(given.service_tier))


def _kept(keeper: AnswerKeeper, given: wire.RequestBody) -> bytes:
    """Write what is kept of an answer, and what it continues."""
    is_kept, previous, conversation = given.store is not False, keeper.previous, keeper.conversation
    return b'%b"previous_response_id":%b,"store":%b,"metadata":%b' % (
        b"" if conversation is None else b'"conversation":{"id":%b},' % quoted(conversation),
        _NULL if previous is None or conversation is not None else quoted(previous),
        _flag(is_kept),
        bytes(given.metadata) if is_kept and is_given(given.metadata) else b"{}",
    )


def _asked(given: wire.RequestBody, body: bytes) -> bytes:
    reasoning, text = given.reasoning, given.text
    effort = _NULL if reasoning is None or reasoning.effort is None else quoted(reasoning.effort)
    summary = _NULL if reasoning is None or reasoning.summary is None else quoted(reasoning.summary)
    wanted = None if text is None else text.format
    return (
        b'"instructions":%b,"max_output_tokens":%b,"parallel_tool_calls":%b,"reasoning":{"effort":%b,"summary":%b},'
        b'"temperature":%b,"text":{"format":%b},"tool_choice":%b,"tools":%b,"top_p":%b,"truncation":"disabled"'
        % (
            bytes(given.instructions) or _NULL,
            _number(given.max_output_tokens),
            b"false" if given.parallel_tool_calls is False else b"true",
            effort,
            summary,
            _number(given.temperature),
            b'{"type":"text"}' if wanted is None else _format(wanted),
            bytes(given.tool_choice) if is_given(given.tool_choice) else b'"auto"',
            _tools(given.tools, body),
            _number(given.top_p),
        )
    )


def _number(value: float | None) -> bytes:
    return _NULL if value is None else msgspec.json.encode(value)


def _flag(value: bool | None) -> bytes:
    return _NULL if value is None else b"true" if value else b"false"


def _format(wanted: wire.TextFormat) -> bytes:
    if wanted.type != "json_schema":
        return b'{"type":%b}' % quoted(wanted.type)
    return b'{"type":"json_schema","name":%b,"description":%b,"schema":%b,"strict":%b}' % (
        quoted(wanted.name or ""),
        bytes(wanted.description) or _NULL,
        bytes(wanted.schema) or b"{}",
        _flag(wanted.strict),
    )


def _tools(tools: list[wire.Tool] | None, body: bytes) -> bytes:
    """Repeat the tools; functions have all of their fields in an answer."""
    if not tools:
        return b"[]"
    written = []
    asked = keeping_surrogates(lambda text: decoded_request(_ASKED, text), body)
    for raw, tool in zip(asked.tools or (), tools, strict=True):
        if tool.type != "function" or (len(tool.description) and len(tool.parameters) and tool.strict is not None):
            written.append(bytes(raw))
            continue
        form = b'{"type":"function","name":%b,"description":%b,"parameters":%b,"strict":%b}'
        description, parameters = bytes(tool.description) or _NULL, bytes(tool.parameters) or _NULL
        written.append(form % (quoted(tool.name), description, parameters, _flag(tool.strict)))
    return b"[" + b",".join(written) + b"]"
