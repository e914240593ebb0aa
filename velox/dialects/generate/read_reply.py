"""Reads whole answers and errors of Gemini.

Knows: the parts of an answer. Does not know: where requests go (providers/), streams (read_stream.py), clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ErrorKind,
    Request,
    Search,
    Signature,
    Text,
    Thinking,
    ToolUse,
    Written,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.partial_args import PartialArgs
from velox.dialects.generate.read_stream import GenerateStreamReader
from velox.dialects.generate.schema import SubsetSchemas
from velox.dialects.generate.sources import Grounding, has_sources
from velox.dialects.generate.wire import Candidate, ReplyCall, ReplyPart, UsageMetadata, is_absent
from velox.dialects.generate.words import (
    GOOGLE,
    api_error,
    blocked,
    first,
    lost,
    picture,
    read_reply,
    status_error,
    stop,
    whole_usage,
)
from velox.dialects.generate.write_request import GenerateRequestWriter
from velox.dialects.json_text.text import EMPTY, decoded, joined, raw_text
from velox.dialects.tools.tool_fit import fit_tools
from velox.protocol.slices import let_go
from velox.protocol.usage.tokens import google_searches

__all__ = ["GenerateModel"]

_NO_USAGE: Final = UsageMetadata()
_BAD_GATEWAY: Final = 502


class GenerateModel:
    """One attempt at a Gemini model. schemas: what remembers rewritten schemas, where the caller keeps one."""

    __slots__ = ("_dropped", "_facts", "_schemas", "_searches")

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, schemas: SubsetSchemas | None = None) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._schemas: Final = schemas
        self._searches = False

    def write(self, request: Request, model: str) -> Written:
        """Write the request; the model stands in the path. Raises BadRequestError."""
        schemas = self._schemas if self._schemas is not None else SubsetSchemas()
        keys = fit_tools(request, self._facts.schemas_refuse)
        self._searches = request.web_search is not None
        written = GenerateRequestWriter(self._facts, self._dropped, schemas).write(request)
        written.keys = keys
        return written

    def answer(self, body: bytes) -> Answer:
        """Read a plain answer. Raises BrokenReplyError, ReplyError."""
        reply = read_reply(body)
        if not is_absent(reply.error):
            raise ReplyError(status_error(reply.error))
        candidate = first(reply)
        parts = (candidate.content.parts if candidate is not None and candidate.content is not None else None) or ()
        blocks = _blocks(parts)
        names = [name for part in parts if (name := lost(part)) is not None and picture(part) is None]
        search = None
        if candidate is not None and has_sources(candidate):
            search = _add_sources(candidate, blocks, names)
        if isinstance(parts, list):
            let_go(parts)
        has_tools = ToolUse in map(type, blocks)
        found = stop(candidate, has_tools) if candidate is not None else blocked(reply.prompt_feedback)
        if isinstance(found, ApiError):
            raise ReplyError(found)
        if found is None:
            raise ReplyError(ApiError(ErrorKind.API, _BAD_GATEWAY, "the upstream's answer does not say why it ended"))
        metadata = reply.usage_metadata or _NO_USAGE
        used = whole_usage(metadata)
        if search is not None:
            n_searches = google_searches(search.queries, reply.model_version or "")
            used = msgspec.structs.replace(used, web_searches=n_searches)
        return Answer(
            reply.response_id or "",
            reply.model_version or "",
            blocks,
            found,
            used,
            used.tier,
            tuple(dict.fromkeys(names)),
        )

    def stream(self) -> GenerateStreamReader:
        """Return what reads a streamed answer."""
        return GenerateStreamReader(searches=self._searches)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """Read the body of an error, which may be anything."""
        return api_error(status, body)


def _add_sources(candidate: Candidate, blocks: list[AnswerBlock], names: list[str]) -> Search | None:
    """Add what an answer rests on to its texts, and the search before them, which is returned.

    names: of what is lost; what is lost of this is added.
    """
    grounding = Grounding()
    grounding.add(candidate)
    texts = [block for block in blocks if isinstance(block, Text)]
    for text, cited in zip(texts, grounding.citations([decoded(text.text) for text in texts]), strict=True):
        text.cited = tuple(cited)
    search = grounding.search
    if search is not None:
        at = next((n for n, block in enumerate(blocks) if isinstance(block, Text)), len(blocks))
        blocks.insert(at, search)
    if grounding.is_partial:
        names.append("answer.citations")
    return search


def _blocks(parts: Sequence[ReplyPart]) -> list[AnswerBlock]:
    """Read the parts. Google splits one text over several: those of a kind are one block, up to a signature, as in a
    stream (agno-agi/agno#3229).
    """
    blocks: list[AnswerBlock] = []
    for part in parts:
        block = _block(part)
        last = blocks[-1] if blocks else None
        if isinstance(block, Text | Thinking) and type(last) is type(block) and last.signature is None:
            last.text = joined([last.text, block.text], b"")
            last.signature = block.signature
        elif block is not None:
            blocks.append(block)
    return blocks


def _block(part: ReplyPart) -> AnswerBlock | None:
    signature = Signature(GOOGLE, part.thought_signature) if part.thought_signature else None
    call = part.function_call
    if call is not None:
        return ToolUse(call.id or "", call.name, _arguments(call), signature) if call.name else None
    text = raw_text(part.text)
    if text is None:
        return picture(part)  # or code that was run, or nothing
    if text == EMPTY and signature is None:
        return None
    return Thinking(text, signature) if part.thought else Text(text, signature=signature)


def _arguments(call: ReplyCall) -> bytes:
    if call.partial_args is None:
        return b"{}" if is_absent(call.args) else bytes(call.args)
    arguments = PartialArgs()
    for part in call.partial_args:
        arguments.add(part)
    return arguments.whole()
