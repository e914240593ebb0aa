"""The messages of a request, written as the items of Responses.

Knows: items and their parts, calls and their results. Does not know: the fields beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Document,
    Image,
    JsonText,
    Media,
    MediaKind,
    Message,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from velox.dialects.canonical.names import FittedNames
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.picture_detail import taken_detail
from velox.dialects.json_text.text import EMPTY, NEWLINES, is_blank, joined, quoted
from velox.dialects.media.documents import document_text, told_text
from velox.dialects.media.file_types import is_text
from velox.dialects.responses.words import THOUGHT
from velox.dialects.tools.open_calls import OpenCalls

__all__ = ["ItemWriter"]

_MARK: Final = "prompt_cache_breakpoint"
_FILES_FOLLOW: Final = b'"The files of this result are in the next message."'
_LIFETIMES: Final = {"1h": "12h"}  # the form's -> OpenAI's; its default is 30 minutes
_PLAIN: Final = b'{"type":"message","role":"%b","content":%b}'
_ROLES: Final = {Role.SYSTEM: b"system", Role.USER: b"user", Role.ASSISTANT: b"assistant"}


class ItemWriter:
    """Writes the items of one request."""

    def __init__(
        self, facts: ModelFacts, dropped: DroppedFields, provider: str, names: FittedNames, ids: FittedNames
    ) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._names: Final = names
        self._ids: Final = ids
        self._has_marks: Final = facts.cache_marks and _MARK in dict(facts.renamed)
        self._unanswered: Final = OpenCalls[str]()  # ids of calls that the client gave none
        self._n_without_id = 0

    def write(self, messages: Sequence[Message]) -> tuple[JsonText | None, bytes]:
        """Return the instructions, and the items."""
        instructions: JsonText | None = None
        written: list[bytes] = []
        for n, message in enumerate(messages):
            blocks = message.blocks
            if message.name is not None:
                self._dropped.drop("name", f"messages[{n}].name")
            only = blocks[0] if len(blocks) == 1 else None
            if type(only) is not Text or message.role is Role.ASSISTANT or (only.cache is not None and self._has_marks):
                self._message(message, f"messages[{n}]", written)
                continue
            if only.cache is not None:
                self._dropped.drop("cache")
            if n == 0 and message.role is Role.SYSTEM and len(messages) > 1:
                instructions = only.text
            else:
                written.append(_PLAIN % (_ROLES[message.role], only.text))
        return instructions, b",".join(written)

    def _message(self, message: Message, path: str, written: list[bytes]) -> None:
        """Write a message: the parts between calls, results and reasoning are one item each time."""
        role = message.role
        parts: list[Block] = []
        moved: list[Block] = []
        blocks = message.blocks
        if blocks and isinstance(blocks[-1], Thinking):
            blocks = self._without_last_thoughts(blocks)
        for k, block in enumerate(blocks):
            match block:
                case ToolUse():
                    self._said(role, parts, path, written)
                    written.append(self._call(block))
                case ToolResult():
                    self._said(role, parts, path, written)
                    written.append(self._result(block, f"{path}.content[{k}]", moved))
                case Thinking():
                    self._said(role, parts, path, written)
                    self._think(block, written)
                case _:
                    parts.append(block)
        self._said(role, [*moved, *parts], path, written)

    def _without_last_thoughts(self, blocks: list[Block]) -> list[Block]:
        """Leave reasoning out that led to nothing: OpenAI refuses it."""
        end = len(blocks)
        while end and isinstance(blocks[end - 1], Thinking):
            end -= 1
        self._dropped.drop("reasoning_signature")
        return blocks[:end]

    def _said(self, role: Role, blocks: list[Block], path: str, written: list[bytes]) -> None:
        """Write the parts that are waiting."""
        if not blocks:
            return
        if role is Role.ASSISTANT:
            if any(isinstance(block, Text) and block.signature is not None for block in blocks):
                self._dropped.drop("reasoning_signature")
            blocks[:] = [block for block in blocks if not isinstance(block, Text) or block.text != EMPTY]
        if not blocks:
            return
        only = blocks[0]
        if len(blocks) == 1 and isinstance(only, Text) and (only.cache is None or not self._has_marks):
            self._marks(only.cache)
            content = only.text
        elif not self._facts.text_parts and all(isinstance(block, Text | Refusal) for block in blocks):
            content = self._joined(blocks, b"" if role is Role.ASSISTANT else NEWLINES)
        else:
            parts = [self._part(block, role, f"{path}.content[{k}]") for k, block in enumerate(blocks)]
            content = b"[" + b",".join(parts) + b"]"
        written.append(_PLAIN % (_ROLES[role], content))
        blocks.clear()

    def _joined(self, blocks: Sequence[Block], between: bytes) -> JsonText:
        texts = [block for block in blocks if isinstance(block, Text | Refusal)]
        for block in texts:
            if isinstance(block, Text):
                self._marks(block.cache)
        return joined([block.text for block in texts], between)

    def _part(self, block: Block, role: Role, path: str) -> bytes:
        match block:
            case Text() if role is Role.ASSISTANT:
                if block.cache is not None:
                    self._dropped.drop("cache")
                return b'{"type":"output_text","text":%b}' % block.text
            case Text():
                return b'{"type":"input_text","text":%b%b}' % (block.text, self._marks(block.cache))
            case Refusal():
                return b'{"type":"refusal","refusal":%b}' % block.text
            case Image():
                taken = taken_detail(block.detail, self._facts, self._dropped, path)
                detail = b"" if taken is None else b',"detail":' + quoted(taken)
                form = b'{"type":"input_image","image_url":%b%b%b}'
                return form % (quoted(_image_url(block.source, path)), detail, self._marks(block.cache))
            case Document():
                return self._document(block, path)
            case Audio():
                raise BadRequestError("the model of this route takes no audio", path)
        raise BadRequestError("this part can't be in a message", path)

    def _document(self, document: Document, path: str) -> bytes:
        if document.citations:
            self._dropped.drop("citations", path)
        context = document.context
        before = b"" if context is None or is_blank(context) else b'{"type":"input_text","text":%b},' % context
        source, mark = document.source, self._marks(document.cache)
        match source.kind:
            case MediaKind.TEXT:
                return b'{"type":"input_text","text":%b%b}' % (document_text(document), mark)
            case _ if "file" in self._facts.refused:
                if is_text(source.type) and (said := told_text(document)) is not None:
                    return b'{"type":"input_text","text":%b%b}' % (said, mark)
                raise BadRequestError("the model of this route takes no files; send their text", path)
            case MediaKind.URL if source.value.startswith(("http:", "https:")):
                return b'%b{"type":"input_file","file_url":%b%b}' % (before, quoted(source.value), mark)
            case MediaKind.DATA:
                kind = source.type or "application/pdf"
                name = document.name or "file." + kind.rpartition("/")[2]
                data = f"data:{kind};base64,{source.value}"
                form = b'%b{"type":"input_file","filename":%b,"file_data":%b%b}'
                return form % (before, quoted(name), quoted(data), mark)
        raise BadRequestError("the model of this route takes files as base64 data or http(s) URLs", path)

    def _marks(self, mark: CacheMark | None) -> bytes:
        if mark is None:
            return b""
        if not self._has_marks:
            self._dropped.drop("cache")
            return b""
        ttl = b',"ttl":' + quoted(_LIFETIMES[mark.ttl]) if mark.ttl in _LIFETIMES else b""
        return b',"prompt_cache_breakpoint":{"mode":"explicit"%b}' % ttl

    # -- reasoning, calls and results -------------------------------------------------------------------

    def _think(self, block: Thinking, written: list[bytes]) -> None:
        signature = block.signature
        is_own = signature is not None and signature.provider == self._provider and ":" not in signature.value
        if signature is None or not is_own or block.is_redacted:
            self._dropped.drop("reasoning_signature")  # a value with a colon is of the provider's Chat Completions
            return
        # Without its id: with it and `store: false` OpenAI wants the very item that followed, "provided without its
        # required following item" (openai/openai-node#1567, vercel/ai#12687). Codex keeps none, either.
        summary = b"" if block.text == EMPTY else b'{"type":"summary_text","text":%b}' % block.text
        form = b'{"type":"reasoning","summary":[%b],"encrypted_content":%b}'
        written.append(form % (summary, quoted(signature.value)))

    def _call(self, call: ToolUse) -> bytes:
        signature, thought = call.signature, b""
        if signature is not None and signature.provider == self._provider and signature.value.startswith(THOUGHT):
            thought = b',"thought_signature":' + quoted(signature.value.removeprefix(THOUGHT))
        elif signature is not None:
            self._dropped.drop("reasoning_signature")
        if call.cache is not None:
            self._dropped.drop("cache")
        return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % (
            quoted(self._call_id(call)),
            quoted(self._names.fit(call.name)),
            quoted(call.arguments.decode("utf-8", "surrogatepass")),
            thought,
        )

    def _result(self, result: ToolResult, path: str, moved: list[Block]) -> bytes:
        """Write the result of a tool. moved: files that go into the next message, where results are texts."""
        if result.is_error:
            self._dropped.drop("is_error")
        if result.cache is not None:
            self._dropped.drop("cache")
        parts = result.parts
        only = parts[0] if len(parts) == 1 else None
        if not parts:
            output = EMPTY
        elif isinstance(only, Text) and (only.cache is None or not self._has_marks):
            self._marks(only.cache)
            output = only.text
        elif not self._facts.text_parts:
            moved += [part for part in parts if not isinstance(part, Text)]
            texts = [part for part in parts if isinstance(part, Text)]
            output = self._joined(texts, b"\\n") if texts else _FILES_FOLLOW
        else:
            written = [self._part(part, Role.USER, f"{path}[{k}]") for k, part in enumerate(parts)]
            output = b"[" + b",".join(written) + b"]"
        call_id = quoted(self._result_id(result))
        return b'{"type":"function_call_output","call_id":%b,"output":%b}' % (call_id, output)

    def _call_id(self, call: ToolUse) -> str:
        if call.id:
            return self._ids.fit(call.id)
        made = f"call_{self._n_without_id}"
        self._n_without_id += 1
        self._unanswered.add("", call.name, made)
        return made

    def _result_id(self, result: ToolResult) -> str:
        """Return the id of the call that this is the result of; without one, the first of that name."""
        if result.id:
            return self._ids.fit(result.id)
        found = self._unanswered.take_named(result.name) or self._unanswered.take_named(None)
        return found or f"call_{self._names.fit(result.name or 'x')}"


def _image_url(source: Media, path: str) -> str:
    if source.kind is MediaKind.DATA:
        return f"data:{source.type or 'image/png'};base64,{source.value}"
    if source.kind is MediaKind.URL and source.value.startswith(("http:", "https:")):
        return source.value
    raise BadRequestError("the model of this route takes pictures as base64 data or http(s) URLs", path)
