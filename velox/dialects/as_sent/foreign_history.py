"""What Velox wrote into a client's history for one provider, taken out where the next request goes to another.

    Messages, Responses   reasoning whose signature is tagged (signatures.py), or that nobody signed: left out; of
                          Responses, a summary that was made here becomes a message. And searches of the web that
                          another provider made, with what they are cited for
    Gemini                a tagged signature: left out with its thought; of a call, replaced where the model checks it
    Chat                  a signature in the id of a call; reasoning in fields that the provider does not know

For bodies in the provider's own API, which go up as the client sent them: a conversation goes on at another provider
when the client changes the model, or by a fallback, and a provider answers 400 to signatures that are not its own. All
but these places stays as it is, byte for byte; a body without them is not even decoded.

`without_encrypted_reasoning` leaves out all of it, whoever made it: for a provider that has refused a request for
it; and RefusedReasoning what it has refused before. Keys of two organisations, or two resources of Azure, can't read
each other's; nor can servers of the same API
(BerriAI/litellm#27702, higress-group/higress#3197).

Knows: where each API has its history. Does not know: how a request is translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from velox.dialects.canonical.signatures import TAG, TAG_BASE64, is_tagged
from velox.dialects.chat.reasoning import THOUGHT, id_without_thought, is_ours
from velox.dialects.facts.model_facts import ALWAYS_THINKING, ModelFacts
from velox.dialects.facts.provider_traits import USUAL, ProviderTraits
from velox.dialects.generate.write_request import CHECKING, UNCHECKED
from velox.dialects.messages.sources import OWN_SEARCH, SEALED
from velox.dialects.messages.words import RESULTS
from velox.dialects.responses.compaction import COMPACTED_TYPES, summary_message
from velox.dialects.responses.sources import OWN_SEARCH as OWN_SEARCH_ITEM
from velox.dialects.responses.sources import SEARCH_CALL
from velox.memo import Memo
from velox.types import ApiKind

__all__ = ["RefusedReasoning", "has_encrypted_reasoning", "without_encrypted_reasoning", "without_foreign"]

_Fields: TypeAlias = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TAG: Final = TAG.encode()
_TAG_BASE64: Final = TAG_BASE64.encode()
_THOUGHT: Final = THOUGHT.encode()
_TEXT, _DETAILS = b'"reasoning_content"', b'"reasoning_details"'
_SIGNATURES: Final = ("thoughtSignature", "thought_signature")
_CALLS: Final = ("functionCall", "function_call")
_DISABLED: Final = msgspec.Raw(b'{"type":"disabled"}')
# How Messages' clients send the signature of reasoning back that has none.
_UNSIGNED: Final = (b'"signature":""', b'"signature": ""')
# Facts.thinking of models that check signatures (Claude).
_SIGNING: Final = frozenset({"adaptive", "budget", *ALWAYS_THINKING})
# How the ids of items begin that are made here: OpenAI's own have digits of hexadecimal numbers only.
_OWN_ITEM: Final = "rs_vx"
_OWN_ITEM_BYTES: Final = _OWN_ITEM.encode()
# How Codex sends reasoning back that nobody signed: without an id, too.
_NOT_ENCRYPTED: Final = (b'"encrypted_content":null', b'"encrypted_content": null')
_NO_FACTS: Final = ModelFacts()
# Of one upstream: a long conversation has hundreds.
_MOST_REFUSED: Final = 8192
_SIGNATURE_OF: Final[Mapping[str, str]] = {"thinking": "signature", "redacted_thinking": "data"}
_ENCRYPTED: Final = b'"encrypted_content"'
_OWN_SEARCH: Final = OWN_SEARCH.encode()
_SEARCH_BLOCKS: Final = ("server_tool_use", RESULTS)
_UNCHECKED: Final = msgspec.json.decode(UNCHECKED)


class _Place(NamedTuple):
    """Where a request goes. refuses: whether it takes a signature back; None: it takes all but those of others."""

    facts: ModelFacts
    traits: ProviderTraits
    refuses: Callable[[str], bool] | None = None


def without_foreign(
    body: bytes | bytearray, client_api: ApiKind, facts: ModelFacts, traits: ProviderTraits
) -> bytes | bytearray:
    """Return a body in the provider's own API without what only another provider can use.

    facts, traits: of the model and the provider that get it. What can't be read goes up as it is.
    """
    return _changed(body, client_api, _Place(facts, traits), _MARKS.get(client_api, ()))


def has_encrypted_reasoning(body: bytes | bytearray, client_api: ApiKind) -> bool:
    """Return True if a client's body may have reasoning that only its maker can read."""
    return any(body.find(mark) >= 0 for mark in _ENCRYPTED_MARKS.get(client_api, ()))


def without_encrypted_reasoning(body: bytes | bytearray, client_api: ApiKind) -> bytes | bytearray:
    """Return a client's body without any reasoning that only its maker can read; the same if it has none.

    A compacted conversation stays: without it nothing would be left of what was said.
    """
    return _changed(body, client_api, _Place(_NO_FACTS, USUAL, _refuses_all), _ENCRYPTED_MARKS.get(client_api, ()))


def _refuses_all(_signature: str) -> bool:
    return True


class RefusedReasoning:
    """Reasoning that an upstream has refused in one turn of a conversation: later turns, which repeat it, go without.

    Who made a signature is not told by itself, and the provider alone says too little: keys of two organisations, or
    two resources of Azure, don't read each other's. So what was refused is remembered by its value, and a conversation
    that goes on elsewhere costs one refused request, and not one a turn; what the new place adds is sent back to it.
    Rejected: to mark each signature on its way out. Replies that pass as sent would have to be written anew.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Final[Memo[int, bool]] = Memo(_MOST_REFUSED)

    def __repr__(self) -> str:
        return f"<RefusedReasoning {len(self._known)} signatures>"

    def add(self, body: bytes | bytearray, client_api: ApiKind) -> None:
        """Note all signatures of a client's body: its upstream has refused it because of them."""
        _changed(body, client_api, _Place(_NO_FACTS, USUAL, self._note), _ENCRYPTED_MARKS.get(client_api, ()))

    def left_out(self, body: bytes | bytearray, client_api: ApiKind) -> bytes | bytearray:
        """Return a client's body without those that are known; the same if it has none."""
        if not len(self._known):
            return body  # nearly always: nothing was ever refused
        return _changed(body, client_api, _Place(_NO_FACTS, USUAL, self._knows), _ENCRYPTED_MARKS.get(client_api, ()))

    def _note(self, signature: str) -> bool:
        if signature:
            self._known.put(hash(signature), True)
        return False

    def _knows(self, signature: str) -> bool:
        key = hash(signature)
        return bool(signature) and bool(self._known.get(key) or self._known.find(key))


def _changed(
    body: bytes | bytearray, client_api: ApiKind, place: _Place, marks: tuple[bytes, ...]
) -> bytes | bytearray:
    if not any(body.find(mark) >= 0 for mark in marks):
        return body
    try:
        fields = _FIELDS.decode(body)
        return msgspec.json.encode(fields) if _CHANGES[client_api](fields, place) else body
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body


def _changed_items(fields: _Fields, name: str, change: Callable[[msgspec.Raw], msgspec.Raw | None]) -> bool:
    """Change the items of a list; None: one is left out. Return whether there was anything to change."""
    items = _items(fields.get(name))
    made = [change(item) for item in items]
    if all(new is old for new, old in zip(made, items, strict=True)):
        return False
    fields[name] = _raw([each for each in made if each is not None])
    return True


def _items(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    """Return the items of a list, [] for anything else."""
    return _LIST.decode(raw) if raw is not None and bytes(raw).startswith(b"[") else []


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    """Return a string, "" for anything else."""
    raw = fields.get(name)
    return msgspec.json.decode(raw, type=str) if raw is not None and bytes(raw).startswith(b'"') else ""


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


# -- Anthropic Messages -----------------------------------------------------------------------------


def _change_messages(fields: _Fields, place: _Place) -> bool:
    is_in_loop = False  # since the last thing that the user said, something was left out
    is_signing = place.refuses is not None or place.facts.thinking in _SIGNING
    marks = (
        _ENCRYPTED_MARKS[ApiKind.MESSAGES]
        if place.refuses is not None
        else (_TAG, _OWN_SEARCH, *_UNSIGNED)
        if is_signing
        else (_TAG, _OWN_SEARCH)
    )

    def changed(raw: msgspec.Raw) -> msgspec.Raw | None:
        nonlocal is_in_loop
        if all(bytes(raw).find(mark) < 0 for mark in marks):
            is_in_loop = is_in_loop and not _is_said_by_user(raw)
            return raw
        message = _FIELDS.decode(raw)
        if not _changed_items(message, "content", lambda block: _own_block(block, place, is_signing=is_signing)):
            return raw
        is_in_loop = True
        return _raw(message) if _items(message["content"]) else None

    is_changed = _changed_items(fields, "messages", changed)
    if is_in_loop and _type_of(fields.get("thinking")) == "enabled":
        # With a budget the API wants the reasoning back that stands before calls whose results it gets.
        fields["thinking"] = _DISABLED
        fields.pop("context_management", None)  # some of its edits are refused without
    return is_changed


def _own_block(raw: msgspec.Raw, place: _Place, *, is_signing: bool) -> msgspec.Raw | None:
    if place.refuses is not None:
        name = _SIGNATURE_OF.get(_type_of(raw))
        return None if name is not None and place.refuses(_text(_FIELDS.decode(raw), name)) else raw
    if bytes(raw).find(_OWN_SEARCH) >= 0 and _type_of(raw) in _SEARCH_BLOCKS:
        return None
    if bytes(raw).find(SEALED) >= 0 and _type_of(raw) == "text":
        block = _FIELDS.decode(raw)
        _changed_items(block, "citations", lambda each: None if bytes(each).find(SEALED) >= 0 else each)
        if not _items(block.get("citations")):
            block.pop("citations", None)
        return _raw(block)
    if bytes(raw).find(_TAG) < 0 and not (is_signing and _type_of(raw) == "thinking"):
        return raw
    block = _FIELDS.decode(raw)
    name = _SIGNATURE_OF.get(_text(block, "type"))
    if name is None:
        return raw
    signature = _text(block, name)
    return None if is_tagged(signature) or (is_signing and not signature) else raw


def _is_said_by_user(raw: msgspec.Raw) -> bool:
    message = _FIELDS.decode(raw)
    if _text(message, "role") != "user":
        return False
    blocks = _items(message.get("content"))
    return not blocks or any(_type_of(block) != "tool_result" for block in blocks)


def _type_of(raw: msgspec.Raw | None) -> str:
    return _text(_FIELDS.decode(raw), "type") if raw is not None and bytes(raw).startswith(b"{") else ""


# -- OpenAI Responses -------------------------------------------------------------------------------


def _change_responses(fields: _Fields, place: _Place) -> bool:
    return _changed_items(fields, "input", lambda item: _own_item(item, place))


def _own_item(raw: msgspec.Raw, place: _Place) -> msgspec.Raw | None:
    if place.refuses is not None:
        has_encrypted_reasoning = bytes(raw).find(_ENCRYPTED) >= 0 and _type_of(raw) == "reasoning"
        value = _text(_FIELDS.decode(raw), "encrypted_content") if has_encrypted_reasoning else ""
        return None if value and place.refuses(value) else raw
    if all(bytes(raw).find(mark) < 0 for mark in _MARKS[ApiKind.RESPONSES]):
        return raw
    item = _FIELDS.decode(raw)
    kind = _text(item, "type")
    if kind in COMPACTED_TYPES and (summary := summary_message(_text(item, "encrypted_content"))) is not None:
        return msgspec.Raw(b'{"type":"message","role":"user","content":%b}' % summary)
    if kind == SEARCH_CALL and _text(item, "id").startswith(OWN_SEARCH_ITEM):
        return None
    if kind != "reasoning":
        return raw
    value, item_id = _text(item, "encrypted_content"), _text(item, "id")
    if value:
        is_foreign = is_tagged(value)
    elif item_id:
        is_foreign = item_id.startswith(_OWN_ITEM)  # OpenAI looks for what it has kept under the id
    else:
        is_foreign = place.traits.openai_responses and not _items(item.get("content"))
    return None if is_foreign else raw


# -- Gemini -----------------------------------------------------------------------------------------


def _change_generate(fields: _Fields, place: _Place) -> bool:
    if "contents" not in fields and "generateContentRequest" in fields:  # to be counted
        inner = _FIELDS.decode(fields["generateContentRequest"])
        is_changed = _change_generate(inner, place)
        fields["generateContentRequest"] = _raw(inner)
        return is_changed

    marks = (_TAG_BASE64,) if place.refuses is None else _ENCRYPTED_MARKS[ApiKind.GENERATE]

    def changed(raw: msgspec.Raw) -> msgspec.Raw | None:
        if all(bytes(raw).find(mark) < 0 for mark in marks):
            return raw
        content = _FIELDS.decode(raw)
        if not _changed_items(content, "parts", lambda part: _own_part(part, place)):
            return raw
        return _raw(content) if _items(content["parts"]) else None

    return _changed_items(fields, "contents", changed)


def _own_part(raw: msgspec.Raw, place: _Place) -> msgspec.Raw | None:
    if place.refuses is None and bytes(raw).find(_TAG_BASE64) < 0:
        return raw
    part = _FIELDS.decode(raw)
    name = next((each for each in _SIGNATURES if _is_others(_text(part, each), place)), None)
    if name is None:
        return raw
    if bytes(part.get("thought", b"")) == b"true":
        return None
    del part[name]
    if (place.refuses is not None or place.facts.thinking in CHECKING) and any(each in part for each in _CALLS):
        part[name] = msgspec.Raw(UNCHECKED)
    return _raw(part) if part else None


def _is_others(signature: str, place: _Place) -> bool:
    if place.refuses is None:
        return is_tagged(signature)
    return signature not in ("", _UNCHECKED) and place.refuses(signature)


# -- OpenAI Chat Completions ------------------------------------------------------------------------


def _change_chat(fields: _Fields, place: _Place) -> bool:
    def changed(raw: msgspec.Raw) -> msgspec.Raw:
        if all(bytes(raw).find(mark) < 0 for mark in _MARKS[ApiKind.CHAT]):
            return raw
        message = _FIELDS.decode(raw)
        is_changed = _with_own_ids(message, place)
        if place.traits.foreign_chat != "reasoning":
            is_changed |= _with_own_reasoning(message, place)
        return _raw(message) if is_changed else raw

    return place.traits.foreign_chat != "anything" and _changed_items(fields, "messages", changed)


def _with_own_ids(message: _Fields, place: _Place) -> bool:
    is_answer = _with_own_id(message, "tool_call_id", place)
    return _changed_items(message, "tool_calls", lambda raw: _own_call(raw, place)) or is_answer


def _own_call(raw: msgspec.Raw, place: _Place) -> msgspec.Raw:
    call = _FIELDS.decode(raw)
    return _raw(call) if _with_own_id(call, "id", place) else raw


def _with_own_id(fields: _Fields, name: str, place: _Place) -> bool:
    plain, signature = id_without_thought(_text(fields, name))
    if signature is None or (place.refuses is not None and not place.refuses(signature.value)):
        return False
    fields[name] = _raw(plain)
    return True


def _with_own_reasoning(message: _Fields, place: _Place) -> bool:
    """Leave out the signatures of other providers, and give the text the name that it has here, if it has one."""
    is_changed = _changed_items(message, "reasoning_details", lambda raw: None if _drops(raw, place) else raw)
    if is_changed and not _items(message["reasoning_details"]):
        del message["reasoning_details"]
    own_name = place.facts.reasoning_field
    if place.refuses is None and own_name != "reasoning_content" and "reasoning_content" in message:
        text = message.pop("reasoning_content")
        if own_name == "reasoning":
            message.setdefault(own_name, text)
        is_changed = True
    return is_changed


def _drops(raw: msgspec.Raw, place: _Place) -> bool:
    if place.refuses is None:
        return _is_ours(raw)
    detail = _FIELDS.decode(raw)
    return place.refuses(_text(detail, "signature") or _text(detail, "data"))


def _is_ours(raw: msgspec.Raw) -> bool:
    return bytes(raw).startswith(b"{") and is_ours(_text(_FIELDS.decode(raw), "format"))


_CHANGES: Final[Mapping[ApiKind, Callable[[_Fields, _Place], bool]]] = {
    ApiKind.CHAT: _change_chat,
    ApiKind.GENERATE: _change_generate,
    ApiKind.COUNT_GENERATE: _change_generate,
    ApiKind.MESSAGES: _change_messages,
    ApiKind.COUNT_MESSAGES: _change_messages,
    ApiKind.RESPONSES: _change_responses,
    ApiKind.COUNT_RESPONSES: _change_responses,
    ApiKind.COMPACT: _change_responses,
}
_OF_RESPONSES: Final = (_TAG, _OWN_ITEM_BYTES, OWN_SEARCH_ITEM.encode(), *_NOT_ENCRYPTED)
_MARKS: Final[Mapping[ApiKind, tuple[bytes, ...]]] = {
    ApiKind.CHAT: (_THOUGHT, _TEXT, _DETAILS),
    **dict.fromkeys((ApiKind.GENERATE, ApiKind.COUNT_GENERATE), (_TAG_BASE64,)),
    **dict.fromkeys((ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES), (_TAG, _OWN_SEARCH, *_UNSIGNED)),
    **dict.fromkeys((ApiKind.RESPONSES, ApiKind.COUNT_RESPONSES, ApiKind.COMPACT), _OF_RESPONSES),
}
# What stands in a body that has any of it.
_ENCRYPTED_MARKS: Final[Mapping[ApiKind, tuple[bytes, ...]]] = {
    ApiKind.CHAT: (_THOUGHT, _DETAILS),
    **dict.fromkeys((ApiKind.GENERATE, ApiKind.COUNT_GENERATE), (b'"thoughtSignature"', b'"thought_signature"')),
    **dict.fromkeys((ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES), (b'"thinking"', b'"redacted_thinking"')),
    **dict.fromkeys((ApiKind.RESPONSES, ApiKind.COUNT_RESPONSES, ApiKind.COMPACT), (_ENCRYPTED,)),
}
