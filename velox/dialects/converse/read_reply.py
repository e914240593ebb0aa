"""Reads whole answers and errors of Bedrock's Converse.

Knows: the blocks of an answer. Does not know: how a request is written (write_request.py) or a stream read
(read_stream.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    Request,
    Signature,
    Text,
    Thinking,
    ToolUse,
    Written,
    settled,
)
from velox.dialects.converse.read_stream import ConverseStreamReader
from velox.dialects.converse.wire import ANSWER, Content, Reasoning
from velox.dialects.converse.words import api_error, broken_stop, lost, message_of, stop_of, text_of, usage_of
from velox.dialects.converse.write_request import ANTHROPIC, BEDROCK, ConverseRequestWriter, is_claude
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text.surrogates import reply_keeping_surrogates
from velox.dialects.json_text.text import EMPTY, joined, quoted
from velox.dialects.tools.arguments import read_arguments
from velox.dialects.tools.hosted import taken_search, without_pictures
from velox.dialects.tools.tool_fit import fit_tools

__all__ = ["ConverseModel"]

_ERROR_TYPE: Final = "x-amzn-errortype"
_OPENAIS: Final = "openai."  # in the id of a model, or of its profile


class ConverseModel:
    """The model side of one attempt."""

    __slots__ = ("_dropped", "_facts", "_provider", "_stops", "_unwrapped")

    def __init__(self, facts: ModelFacts, dropped: DroppedFields) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = ANTHROPIC if is_claude(facts) else BEDROCK
        # Known once the request is written.
        self._unwrapped: str | None = None
        self._stops: list[str] = []

    def __repr__(self) -> str:
        return f"<ConverseModel of {self._provider}>"

    def write(self, request: Request, model: str) -> Written:
        """Write the request. model: stands in the path. Raises BadRequestError."""
        without_pictures(request, self._dropped)
        keys = fit_tools(request, self._facts.schemas_refuse)
        if request.web_search is not None:
            taken_search(request, None, self._dropped)
        writer = ConverseRequestWriter(request, self._facts, self._dropped, is_openais=_OPENAIS in model)
        body = writer.write()
        self._unwrapped = writer.unwrapped
        self._stops = request.stop
        return Written(body, writer.names.originals, writer.ids.originals, keys)

    def answer(self, body: bytes) -> Answer:
        """Read a plain answer. Raises BrokenReplyError, and ReplyError where the model wrote what can't be read."""
        found = reply_keeping_surrogates(ANSWER, body)
        if found.output.message is None:
            raise BrokenReplyError("the upstream's reply has no message")
        error = broken_stop(found.stop_reason)
        if error is not None:
            raise ReplyError(error)
        blocks: list[AnswerBlock] = []
        for content in found.output.message.content:
            block = self._block(content)
            if block is not None:
                blocks.append(block)
        stop = settled(
            stop_of(found.stop_reason, found.additional_model_response_fields, self._stops),
            has_calls=any(isinstance(block, ToolUse) for block in blocks),
        )
        names = (lost(content) for content in found.output.message.content)
        dropped = tuple(dict.fromkeys(name for name in names if name is not None))
        tier = found.service_tier.type if found.service_tier is not None else None
        return Answer("", "", blocks, stop, usage_of(found.usage, tier), tier, dropped)

    def stream(self) -> ConverseStreamReader:
        """Return what reads a streamed answer."""
        return ConverseStreamReader(self._provider, self._unwrapped, self._stops)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """Read an error's body. Never raises. headers: the error's type is there."""
        message, name = message_of(body, f"the upstream answered {status}")
        return api_error((headers or {}).get(_ERROR_TYPE) or name, status, message)

    def _block(self, content: Content) -> AnswerBlock | None:
        text = text_of(content.text)
        if text is not None:
            return Text(text)
        tool = content.tool_use
        if tool is not None:
            arguments = read_arguments(bytes(tool.input))
            if tool.type == "server_tool_use":
                return None  # the service has run it
            if tool.name == self._unwrapped:
                return Text(quoted(arguments.decode("utf-8", "replace")))
            return ToolUse(tool.tool_use_id, tool.name, arguments)
        if content.reasoning_content is not None:
            return self._thinking(content.reasoning_content)
        cited = content.citations_content
        if cited is not None and cited.content:
            texts = [text_of(part.text) for part in cited.content]
            return Text(joined([text for text in texts if text is not None], b""))
        return None

    def _thinking(self, reasoning: Reasoning) -> AnswerBlock | None:
        if reasoning.redacted_content is not None:
            return Thinking(EMPTY, Signature(self._provider, reasoning.redacted_content), is_redacted=True)
        said = reasoning.reasoning_text
        if said is None:
            return None
        signature = Signature(self._provider, said.signature) if said.signature else None
        return Thinking(text_of(said.text) or EMPTY, signature)
