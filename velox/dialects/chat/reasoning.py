"""Reasoning in messages of Chat Completions, which has no field for it: other vendors' fields, read and written.

    reasoning_content      its text (DeepSeek, vLLM, Z.ai); `reasoning` at Groq, Cerebras, Ollama, OpenRouter
    reasoning_details      OpenRouter's: texts and signatures, each with a format, which says whose it is
    thinking_blocks        LiteLLM's: Anthropic's blocks
    call_x__thought__SIG   a signature of Google's in the id of a tool's call, which clients send back unread

An answer to a client has the text once, in `reasoning_content`. Its `reasoning_details` have the signatures alone: an
entry's `length` says how many characters of the text are its own; two texts are two newlines apart.

Knows: these forms. Does not know: where a message stands, or to which upstream it goes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from velox.dialects.canonical.model import JsonText, Signature, Thinking
from velox.dialects.chat.wire import ReasoningDetail, ThinkingBlock
from velox.dialects.json_text.text import EMPTY, decoded, quoted, raw_text

__all__ = [
    "BETWEEN",
    "THOUGHT",
    "id_with_thought",
    "id_without_thought",
    "is_ours",
    "read_blocks",
    "read_details",
    "signature_detail",
    "thinking_detail",
]

# Between the texts of two blocks of reasoning.
BETWEEN: Final = "\n\n"
# In the id of a call, before a signature.
THOUGHT: Final = "__thought__"
_FORMATS: Final = {
    "anthropic": "anthropic-claude-v1",
    "google": "google-gemini-v1",
    "openai": "openai-responses-v1",
}
_PROVIDERS: Final = {name: provider for provider, name in _FORMATS.items()}
_OURS: Final = "velox-"


def _format(provider: str) -> str:
    return _FORMATS.get(provider) or _OURS + provider


def _provider(name: str | None) -> str:
    return _PROVIDERS.get(name or "") or (name or "unknown").removeprefix(_OURS)


def is_ours(name: str) -> bool:
    """True for the format of an entry that is written here, for a provider that has another API."""
    return name in _PROVIDERS or name.startswith(_OURS)


# -- written for clients --------------------------------------------------------------------------


def thinking_detail(signature: Signature, index: int, *, n_characters: int | None) -> bytes:
    """Write an entry for a block of reasoning. n_characters: of its text; None: it is redacted."""
    entry: dict[str, object] = {"type": "reasoning.encrypted", "data": signature.value}
    if n_characters is not None:
        entry = {"type": "reasoning.text", "signature": signature.value, "length": n_characters}
    return _entry(entry, signature, index, signature.item_id)


def signature_detail(signature: Signature, index: int, call_id: str | None) -> bytes:
    """Write an entry for the signature of a call or, without an id, of a text."""
    return _entry({"type": "reasoning.encrypted", "data": signature.value}, signature, index, call_id)


def _entry(entry: dict[str, object], signature: Signature, index: int, own_id: str | None) -> bytes:
    entry |= {"format": _format(signature.provider), "index": index}
    if own_id is not None:
        entry["id"] = own_id
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:  # half a character
        return json.dumps(entry).encode("ascii")


def id_with_thought(call_id: str, signature: Signature | None) -> str:
    """Return the id of a call as a client gets it: with a signature of Google's in it."""
    if signature is None or signature.provider != "google":
        return call_id
    return f"{call_id}{THOUGHT}{signature.value}"


# -- read of clients' messages ----------------------------------------------------------------------


def id_without_thought(call_id: str) -> tuple[str, Signature | None]:
    """Take a signature out of the id of a call."""
    plain, mark, value = call_id.partition(THOUGHT)
    return (plain, Signature("google", value)) if mark and value else (call_id, None)


def read_details(
    details: Sequence[ReasoningDetail], text: JsonText | None, calls: set[str]
) -> tuple[list[Thinking], dict[str, Signature]]:
    """Read reasoning: the blocks, and the signatures of calls by their ids; "" is the text's.

    text: of all of it, where the message has that in a field of its own. calls: the ids there are.
    """
    blocks: list[Thinking] = []
    signatures: dict[str, Signature] = {}
    without_text: list[tuple[Thinking, int | None]] = []
    for each in details:
        own_text = raw_text(each.text) or raw_text(each.summary)
        value = each.signature if each.signature is not None else each.data
        provider = _provider(each.format)
        signature = None if value is None else Signature(provider, value, each.id)
        if each.type == "reasoning.encrypted" and signature is not None:
            key = id_without_thought(each.id or "")[0]
            if key in calls or (provider == "google" and not key):
                signatures[key if key in calls else ""] = Signature(provider, signature.value)
            elif blocks and blocks[-1].signature is None and each.index is not None:
                blocks[-1].signature = signature  # of the summary before it
            else:
                blocks.append(Thinking(EMPTY, signature, is_redacted=True))
        elif own_text is not None:
            blocks.append(Thinking(own_text, signature))
        elif signature is not None:
            blocks.append(Thinking(EMPTY, signature))
            without_text.append((blocks[-1], each.length))
    if text is not None:
        _share_out(text, without_text, blocks)
    return blocks, signatures


def _share_out(text: JsonText, without_text: Sequence[tuple[Thinking, int | None]], blocks: list[Thinking]) -> None:
    """Give the blocks their parts of the text.

    A block whose text is shorter than was told loses its signature, which the provider would refuse with that text:
    helpers of SDKs that put a stream together keep only the last piece of fields they don't know.
    """
    if not without_text:
        if not any(block.text != EMPTY for block in blocks):
            blocks.insert(0, Thinking(text))
        return
    whole = decoded(text)
    (first, length), *others = without_text
    if not others and length in (None, len(whole)):
        first.text = text
        return
    at = 0
    for block, length in without_text:
        end = len(whole) if length is None else at + length
        block.text = quoted(whole[at:end])
        if end > len(whole):
            block.signature = None
        at = end + len(BETWEEN) if length else end
    if whole[at:]:
        blocks.append(Thinking(quoted(whole[at:])))


def read_blocks(blocks: Sequence[ThinkingBlock]) -> list[Thinking]:
    """Read LiteLLM's blocks."""
    found = []
    for each in blocks:
        if each.data is not None:
            found.append(Thinking(EMPTY, Signature("anthropic", each.data), is_redacted=True))
        else:
            signature = Signature("anthropic", each.signature) if each.signature else None
            found.append(Thinking(raw_text(each.thinking) or EMPTY, signature))
    return found
