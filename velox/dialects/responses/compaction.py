"""Compaction: a long conversation becomes a summary that the same model writes, in an item that goes on in its place.

    compaction_trigger        the last item of an input: the answer is one item `compaction`, and nothing else
    POST /responses/compact   the same, as a body of its own: what the user said last, and the item

OpenAI seals its summary, and only OpenAI can read it. Here it is a text that any model reads: it is marked as ours, and
becomes a message of the user when it comes back, at whatever provider.

Knows: what a model is asked for, and the item. Does not know: requests, or any model.
Source: openai 3.54 (types/responses/compacted_response); openai/codex, core/src/compact_remote_v2.rs: it takes exactly
one item of type `compaction`, and has no other way when the request fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    AnswerBlock,
    ApiError,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    JsonText,
    Kind,
    Open,
    Start,
    Text,
    Used,
)
from velox.dialects.canonical.signatures import TAG
from velox.dialects.json_text.text import EMPTY, joined, quoted
from velox.dialects.responses.write_stream import ResponsesStreamWriter

__all__ = [
    "COMPACTED_TYPES",
    "PREFIX",
    "PROMPT",
    "TRIGGER",
    "CompactionWriter",
    "compaction_item",
    "summary_message",
    "summary_of",
]

TRIGGER: Final = "compaction_trigger"
COMPACTED_TYPES: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})
PREFIX: Final = "cmp_"
_SEAL: Final = f"{TAG}summary.."
_SEAL_BYTES: Final = _SEAL.encode()
_SERVER_ERROR: Final = 500
_NO_SUMMARY: Final = "the model wrote no summary of the conversation"
PROMPT: Final = quoted(
    "Write a summary of this conversation for another model, which goes on with the work and sees nothing but your "
    "summary. Say what the user wants, in their own words where these matter; what was done and found, with the names "
    "of files, functions, commands and values; what was decided, and why; what is left to do, and the next step. "
    "Answer with the summary alone, and call no tool."
)
_NOTE: Final = quoted("This is a summary of the conversation before this point. Go on from here.")


def compaction_item(text: JsonText) -> bytes:
    """Write the fields of an item after its id, and the brace that ends it."""
    return b'"type":"compaction","encrypted_content":"%b%b}' % (_SEAL_BYTES, text[1:])


def summary_message(encrypted: str | None) -> JsonText | None:
    """Return what the user says in place of a compacted conversation; None: another one's, which can't be read."""
    if encrypted is None or not encrypted.startswith(_SEAL):
        return None
    return joined([_NOTE, quoted(encrypted[len(_SEAL) :])])


def summary_of(blocks: Sequence[AnswerBlock]) -> JsonText:
    """Return the summary in an answer. Raises BrokenReplyError: it has none."""
    texts = [block.text for block in blocks if isinstance(block, Text) and block.text != EMPTY]
    if not texts:
        raise BrokenReplyError(_NO_SUMMARY)
    return joined(texts)


class CompactionWriter:
    """Writes a stream whose answer is one item of type `compaction`; see ResponsesStreamWriter."""

    def __init__(self, events: ResponsesStreamWriter) -> None:
        self._events: Final = events
        self._open: Final[set[int]] = set()  # blocks of text
        self._texts: Final[list[JsonText]] = []

    def __repr__(self) -> str:
        return f"<CompactionWriter {self._events!r}>"

    def write(self, event: Event) -> list[bytes]:
        """Return the events that the client gets."""
        match event:
            case Delta():
                if event.n in self._open:
                    self._texts.append(event.text)
                    self._events.keep(len(event.text))
                return []
            case Open():
                if event.kind is Kind.TEXT:
                    self._open.add(event.n)
                return self._events.write(Start("", ""))
            case Finish():
                return self._finish(event)
            case Start() | Used() | End() | Failed():
                return self._events.write(event)
            case _:
                return []

    def _finish(self, event: Finish) -> list[bytes]:
        text = joined(self._texts, b"") if self._texts else EMPTY
        if text == EMPTY:
            return self._events.write(Failed(ApiError(ErrorKind.API, _SERVER_ERROR, _NO_SUMMARY)))
        item = self._events.whole(PREFIX, compaction_item(text))
        return [*item, *self._events.write(event)]
