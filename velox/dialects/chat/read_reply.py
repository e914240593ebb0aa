"""Reads whole answers and errors in Chat Completions, as OpenAI's models and every compatible server give them.

Knows: the answer's JSON. Does not know: HTTP, streams (read_stream.py), how a request is written (write_request.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    Refusal,
    Request,
    Signature,
    StreamReader,
    Text,
    Thinking,
    ToolUse,
    Written,
)
from velox.dialects.chat import wire
from velox.dialects.chat.read_stream import ChatStreamReader
from velox.dialects.chat.sources import citations_of
from velox.dialects.chat.words import (
    EXTRA_CONTENT,
    lost,
    read_content,
    read_reasoning,
    read_usage,
    signed,
    stop_of,
)
from velox.dialects.chat.write_request import ChatRequestWriter
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text.decoding import decoded_reply, is_given, reply_text
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, raw_text
from velox.dialects.openai_errors import api_error, read_error
from velox.dialects.tools.arguments import read_arguments

__all__ = ["ChatModel"]

_COMPLETION: Final = msgspec.json.Decoder(wire.Completion)
_FILTERED: Final = "content_filter"
_NO_CHOICE: Final = wire.Choice()
_NO_MESSAGE: Final = wire.ReplyMessage()


class ChatModel:
    """One attempt at a model; see ModelSide. provider: the name of its row, whose signatures only it takes back."""

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, provider: str = "openai") -> None:
        self._provider: Final = provider
        self._writer: Final = ChatRequestWriter(facts, dropped, provider)

    def __repr__(self) -> str:
        return f"<ChatModel {self._provider}>"

    def write(self, request: Request, model: str) -> Written:
        """See ModelSide."""
        return self._writer.write(request, model)

    def answer(self, body: bytes) -> Answer:
        """See ModelSide."""
        return keeping_surrogates(self._answer, reply_text(body))

    def _answer(self, body: bytes) -> Answer:
        given = decoded_reply(_COMPLETION, body)
        if is_given(given.error):
            raise ReplyError(api_error(given.error))
        choice = next((each for each in given.choices or () if not each.index), _NO_CHOICE)
        if is_given(choice.error):
            raise ReplyError(api_error(choice.error))
        message = choice.message
        if message is None:
            if choice.finish_reason != _FILTERED:
                raise BrokenReplyError("the upstream's answer has no message")
            message = _NO_MESSAGE  # Azure's, where its filter took all of it
        blocks = self._blocks(message)
        has_calls = ToolUse in map(type, blocks)
        stop = stop_of(choice.finish_reason or "stop", choice.stop_reason, has_calls=has_calls)
        if isinstance(stop, ApiError):
            raise ReplyError(stop)
        return Answer(
            str(given.id or ""),
            given.model or "",
            blocks,
            stop,
            read_usage(given.usage, given.service_tier),
            given.service_tier,
            tuple(dict.fromkeys(lost(message))),
        )

    def _blocks(self, message: wire.ReplyMessage) -> list[AnswerBlock]:
        text, thought = read_content(message.content)
        blocks: list[AnswerBlock] = []
        if message.reasoning_details:
            blocks += read_reasoning(message.reasoning_details, self._provider)
        elif message.reasoning_content or message.reasoning or thought != EMPTY:
            for reasoning in (raw_text(message.reasoning_content), raw_text(message.reasoning), thought):
                if reasoning is not None and reasoning != EMPTY:
                    blocks.append(Thinking(reasoning))
                    break
        if text != EMPTY:
            blocks.append(Text(text, cited=citations_of(message.annotations) if message.annotations else ()))
        refusal = raw_text(message.refusal)
        if refusal is not None and refusal != EMPTY:
            blocks.append(Refusal(refusal))
        for call in message.tool_calls or ():
            if call.function is not None:
                blocks.append(
                    ToolUse(
                        call.id or "",
                        call.function.name,
                        read_arguments(bytes(call.function.arguments)),
                        self._google(call.extra_content),
                    )
                )
        old = message.function_call
        if old is not None and not message.tool_calls:
            blocks.append(ToolUse("", old.name, read_arguments(bytes(old.arguments))))
        return blocks

    def _google(self, extra: wire.ExtraContent | None) -> Signature | None:
        if extra is None or extra.google is None or not extra.google.thought_signature:
            return None
        return signed(self._provider, EXTRA_CONTENT, extra.google.thought_signature)

    def stream(self) -> StreamReader:
        """See ModelSide."""
        return ChatStreamReader(self._provider, self._writer.tools)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """See ModelSide."""
        return read_error(status, body)
