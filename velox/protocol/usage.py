"""How many tokens a reply says it took.

    BodyUsage     a JSON reply: the top-level `usage` of the document
    StreamUsage   an event stream: the `usage` of the last event that has one
    DataLines     the events of a stream, where it says nothing

Knows: the object `"usage": {...}` as OpenAI (chat, completions, embeddings, Responses), vLLM and Anthropic write it,
Google's `"usageMetadata"`, and at which place of a document it stands. Does not know: who asked (body_edit.py), limits,
HTTP, what else events mean.

A reply may hold other objects of that name: a tool's schema that is echoed, a part of the answer. So the place decides,
and not the first text that looks right. Three facts make this cheap:

    1. Inside a JSON string quotes are escaped, so `"usage"` without a backslash before it is a whole string. The bytes
       are searched for it at the speed of memmem; a reply without it is not read any further.
    2. In a JSON body only what follows the first such string is read, for its strings and brackets. How deep a member
       stands is known at the end: a member is top-level if one bracket more is closed after it than opened, and it is
       the last of the body.
    3. An event of a stream with it is short, and is parsed. Of one over 64 KiB strings and brackets are read as they
       come, and nothing of it is kept.

What is null, missing, or too long to read is not known, and the estimate stands.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple

import orjson

from velox.protocol.body_edit import STRING
from velox.protocol.token_usage import TokenUsage, answer_of_total, count_of, token_usage, with_compactions

__all__ = ["GOOGLE_KEY", "BodyUsage", "DataLines", "StreamUsage", "TokenUsage", "Usage"]

_KEY: Final = b'"usage"'
GOOGLE_KEY: Final = b'"usageMetadata"'
_NULL: Final = b'"usage":null'
_TIER: Final = b'"service_tier"'
# What the model that answered is called, beside either usage.
_MODELS: Final = {_KEY: b'"model"', GOOGLE_KEY: b'"modelVersion"'}
_MODEL_BEGIN: Final = b'"model":"'
_LONGEST_TEXT: Final = 200
_TIER_ALONE: Final = (_TIER,)
_LF: Final = ord("\n")
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_BRACE: Final = ord("{")
_OPENING: Final = frozenset(b"{[")
_BLANKS: Final = b" \t\r\n"
# Most have at most 600 bytes, Anthropic's with `iterations` 250 more for each. What is longer is not read, so that no
# more than this is ever kept.
_OBJECT_BYTES: Final = 16 * 1024
# Where the model does not stand at the begin, it and the tier are looked for so far before the usage, and behind it.
_BEFORE_BYTES: Final = 4 * 1024
# A longer event is read as it comes.
_EVENT_BYTES: Final = 64 * 1024
# No string that counts here is longer, with its quotes; as a value with its colon, too.
_SHORT: Final = 256

_DATA: Final = b"data:"
_NEXT_DATA: Final = b"\ndata:"
_EVENT_ENDS: Final = (b"\n\n", b"\n\r\n")
_EVENT_END: Final = re.compile(rb"\n\r?\n")
_EVENT_END_BYTES: Final = 3
_DATA_LINE: Final = re.compile(rb"^data:[ ]?([^\r\n]*)", re.MULTILINE)

_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
# The value of a tier or model; and one of them among plain members.
_TEXT: Final = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*"([^"\\]{1,%d})"' % _LONGEST_TEXT)
_BEHIND: Final = {name: re.compile(name + _TEXT.pattern) for name in (_TIER, *_MODELS.values())}


def _object(levels: int) -> bytes:
    """Return what matches an object with no more than these levels of objects, itself among them."""
    inner = rb"|" + _object(levels - 1) if levels > 1 else b""
    return rb'\{(?:[^{}"]++|%b%b)*+\}' % (STRING, inner)


# The deepest known has three levels: Anthropic's details of its cache are in `iterations`, OpenAI's of a cached sound
# in those of the prompt.
_OBJECT: Final = re.compile(_object(4), re.DOTALL)
# The usual begin of a body: only plain members and whole objects stand before its model.
_FIRST_MODEL: Final = re.compile(
    rb'[ \t\r\n]*\{(?:[ \t\r\n]*"(?!model")[^"\\]*+"[ \t\r\n]*:[ \t\r\n]*(?:%b|[\w.+-]++|%b)[ \t\r\n]*,)*+'
    rb'[ \t\r\n]*"model"%b' % (STRING, _OBJECT.pattern, _TEXT.pattern),
    re.DOTALL,
)
# That of embeddings, whose model stands behind all else: only plain members follow it, and then the usage.
_LAST_MODEL: Final = re.compile(
    rb'"model"%b(?:[ \t\r\n]*,[ \t\r\n]*"(?!usage")[^"\\]*+"[ \t\r\n]*:[ \t\r\n]*(?:"[^"\\]*+"|[\w.+-]++))*+'
    rb'[ \t\r\n]*,[ \t\r\n]*(?="usage")' % _TEXT.pattern
)
# The usual end of a body: after the usage only plain members, then the root's brace.
_USUAL_END: Final = re.compile(
    rb'[ \t\r\n]*:[ \t\r\n]*(%b)(?:[ \t\r\n]*,[ \t\r\n]*"[^"\\]*+"[ \t\r\n]*:[ \t\r\n]*(?:"[^"\\]*+"|[\w.+-]++))*+'
    rb"[ \t\r\n]*\}[ \t\r\n]*\Z" % _OBJECT.pattern,
    re.DOTALL,
)
# What decides how deep in a document one stands. Group 1: a bracket or a string. Group 2: the end of a string, empty
# where it is not there yet. What stands before it is skipped by match(): search() takes three times as long.
_TOKEN: Final = re.compile(rb'[^"{}\[\]]*+("(?:[^"\\]++|\\.)*+("?)|[{}\[\]])', re.DOTALL)
_REST_OF_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


class Usage(NamedTuple):
    """Tokens that a request took. None: nothing is known of them. is_exact: as the upstream counted the whole reply."""

    input: int | None
    output: int | None
    is_exact: bool


class _Counts:
    """The tokens of one reply, as far as they were told. A later usage replaces an earlier one, field by field.

    Field by field, because Anthropic reports the prompt at the beginning of a stream and the answer at its end.
    """

    __slots__ = ("_first", "_last", "_model", "_tier", "input", "output")

    def __init__(self) -> None:
        self.input: int | None = None
        self.output: int | None = None
        self._first: dict[str, object] | None = None
        self._last: dict[str, object] | None = None
        self._tier: object = None
        self._model: object = None

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, by the first usage and the last one: each counts all so far."""
        if self._first is None or self._last is None:
            return TokenUsage()
        last = token_usage(self._last, self._tier, self._model)
        if self._first is not self._last:
            last = last.over(token_usage(self._first))
        if last.input == self.input and last.output == self.output:
            return last  # nearly always; a copy takes longer
        return last._replace(input=self.input, output=self.output)

    def take(self, usage: dict[str, object], tier: object = None, model: object = None) -> None:
        """Take over what one usage says. tier, model: what stands beside it."""
        if "iterations" in usage:
            usage = with_compactions(usage)
        self._last = usage
        if self._first is None:
            self._first = usage
        if tier is not None:
            self._tier = tier
        if model is not None:
            self._model = model
        if "promptTokenCount" in usage or "candidatesTokenCount" in usage or "thoughtsTokenCount" in usage:
            self._take_google(usage)
            return
        given = count_of(usage, "prompt_tokens")
        if given is None:
            given = count_of(usage, "input_tokens")
            if given is not None:  # Anthropic counts what it had in its cache beside the rest
                # Some repeat the prompt at the end of a stream, and its cache not.
                told = usage if self._first is usage or not given else {**self._first, **_told(usage)}
                given += count_of(told, "cache_creation_input_tokens") or 0
                given += count_of(told, "cache_read_input_tokens") or 0
        made = count_of(usage, "completion_tokens")
        if made is None:
            made = count_of(usage, "output_tokens")
        total = count_of(usage, "total_tokens")
        if given is None and made is None:
            given = total  # embeddings that have no other count, as Voyage's
        if given is not None and total is not None and total >= given:
            # Some count reasoning in the total only; embeddings have nothing but prompt and total.
            made = max(made or 0, total - given)
        # No prompt has no tokens: some say 0 at the end of a stream whose beginning knew better.
        if given or self.input is None:
            self.input = given if given is not None else self.input
        if made is not None:
            self.output = made

    def _take_google(self, usage: dict[str, object]) -> None:
        """Take over Google's names. Each is a total so far; reasoning is counted beside the answer."""
        prompt = count_of(usage, "promptTokenCount")
        if prompt is not None:
            self.input = prompt + (count_of(usage, "toolUsePromptTokenCount") or 0)
        parts = [count_of(usage, name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        if any(part is not None for part in parts):
            self.output = sum(part or 0 for part in parts)
        elif (made := answer_of_total(usage)) is not None:
            if made or usage is self._first:
                self.output = max(made, self.output or 0)
            elif not self.output:
                self.output = None  # a stream goes on: its last event counts the answer, those before only the prompt


def _told(usage: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in usage.items() if value is not None}


class _Levels(ABC):
    """Reads JSON as it comes, for its strings and brackets. However it is cut, it reads the same.

    It keeps at most _OBJECT_BYTES: of the member whose value is not whole yet.
    """

    __slots__ = ("_at_end", "_in_string", "depth", "kept")

    def __init__(self) -> None:
        self._at_end = False
        self._in_string = False
        self.depth = 0
        self.kept = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        text, at = self.kept + data, 0
        self.kept = b""
        if self._in_string:
            rest = _REST_OF_STRING.match(text)
            assert rest is not None, "it matches nothing, too"
            if not rest[1]:
                self.kept = text[rest.end() :]  # a backslash that stands at the end
                return
            self._in_string, at = False, rest.end()
        while (token := _TOKEN.match(text, at)) is not None:
            start, at = token.span(1)
            first = text[start]
            if first != _QUOTE:
                self._bracket(is_opening=first in _OPENING)
                continue
            if not token[2]:
                self._in_string = len(text) - start > _SHORT
                self.kept = text[at:] if self._in_string else text[start:]
                return
            at = self._string(text, start, at)
            if at < 0:
                self.kept = text[start:]
                return

    def finish(self) -> None:
        """Read what waited for more: nothing comes any more."""
        self._at_end = True
        self.feed(b"")

    @abstractmethod
    def _bracket(self, *, is_opening: bool) -> None:
        """Note a bracket."""

    @abstractmethod
    def _string(self, text: bytes, start: int, end: int) -> int:
        """Note a whole string. Return where to go on; -1: what follows it is not here yet."""

    @abstractmethod
    def _found(self, usage: dict[str, object] | None) -> None:
        """Note a member `usage` of the object that was asked for. None: null, no object, or it can't be read."""

    def _value(self, text: bytes, start: int, end: int) -> int:
        """Read the value of a member `usage`. As _string()."""
        can_wait = self._may_wait(text, start)
        colon = _COLON.match(text, end)
        if colon is None:
            return -1 if can_wait and not text[end:].strip(_BLANKS) else end
        if colon.end() == len(text):
            return -1 if can_wait else end
        if text[colon.end()] != _BRACE:
            self._found(None)
            return colon.end()
        found = _OBJECT.match(text, colon.end(), start + _OBJECT_BYTES)
        if found is None:
            if can_wait:
                return -1
            self._found(None)
            return colon.end()
        self._found(_loaded(found.group()))
        return found.end()

    def _may_wait(self, text: bytes, start: int) -> bool:
        """True if what stands from `start` on is short enough to be kept until more has come."""
        return len(text) - start < _OBJECT_BYTES and not self._at_end


def _loaded(text: bytes | bytearray) -> dict[str, Any] | None:
    try:
        loaded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return loaded if isinstance(loaded, dict) else None


class _FromWithin(_Levels):
    """Reads a document from a string inside it on, to its end. last: its top-level usage, if this was all of it.

    beside: the texts of these names that stand beside it.

    Levels count from where it began. The root's level is the lowest one: what stands above the lowest level so far is
    not top-level, and what stands on it is, if nothing but one closing bracket follows.
    """

    __slots__ = ("_beside", "_key", "_lowest", "_names", "_usage", "beside", "last")

    def __init__(self, key: bytes, names: tuple[bytes, ...] = ()) -> None:
        super().__init__()
        self._key: Final = key
        self._names: Final = names
        self._lowest = 0
        self._usage: dict[str, object] | None = None  # the last one of the lowest level
        self._beside: dict[bytes, str | None] = {}  # as well
        self.last: dict[str, object] | None = None
        self.beside: dict[bytes, str | None] = {}

    def _bracket(self, *, is_opening: bool) -> None:
        self._forget()
        if is_opening:
            self.depth += 1
            return
        self.depth -= 1
        if self.depth < self._lowest:
            self._lowest = self.depth
            self.last, self._usage = self._usage, None
            self.beside, self._beside = self._beside, {}

    def _forget(self) -> None:
        self.last = None
        if self.beside:
            self.beside = {}

    def _string(self, text: bytes, start: int, end: int) -> int:
        self._forget()
        if self.depth != self._lowest:
            return end
        key = self._key
        if end - start == len(key) and text.startswith(key, start):
            return self._value(text, start, end)
        for name in self._names:
            if end - start == len(name) and text.startswith(name, start):
                found = _text_at(text, end)
                if found is None and len(text) - end < _SHORT and not self._at_end:
                    return -1
                self._beside[name] = found
        return end

    def _found(self, usage: dict[str, object] | None) -> None:
        self._usage = usage


def _text_at(text: bytes, at: int) -> str | None:
    """Return the text whose name ends at `at`; None: it is null, or cut."""
    found = _TEXT.match(text, at)
    return None if found is None else _text(found)


def _text(found: re.Match[bytes]) -> str:
    return found[1].decode("utf-8", "replace")


def _first_model(text: bytes) -> str | None:
    """Find the model near the begin of a body; None: it is not there, or what stands before it is not plain."""
    begin = text.find(_MODEL_BEGIN)
    if begin > 0:
        at = begin + len(_MODEL_BEGIN)
        head = text[: max(0, text.find(b'"', at))]
        if head.count(b"{") == 1 and b"[" not in head and b"\\" not in head and at < len(head) <= at + _LONGEST_TEXT:
            return head[at:].decode("utf-8", "replace")  # no other object has begun: it is the root's
    found = _FIRST_MODEL.match(text)
    return None if found is None else _text(found)


class BodyUsage:
    """Reads one JSON body that is not compressed. However it is cut, it reads the same. It keeps at most 16 KiB.

    key: what the usage is called, as a JSON string. is_priced: the service tier and the model are looked for, too.
    """

    __slots__ = ("_counts", "_is_priced", "_key", "_levels", "_model", "_names", "_tail")

    def __init__(self, key: bytes = _KEY, *, is_priced: bool = False) -> None:
        self._key: Final = key
        self._is_priced: Final = is_priced
        self._model: str | None = None  # where it is known from the begin
        self._names: tuple[bytes, ...] = ()  # what else is looked for
        self._counts: _Counts | None = None
        # From the first key on, while that is short; before it, the last bytes, in which a key may have begun.
        self._tail = b""
        self._levels: _FromWithin | None = None

    def __repr__(self) -> str:
        kept = self._tail if self._levels is None else self._levels.kept
        return f"<BodyUsage kept={len(kept)}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the reply."""
        if self._levels is not None:
            self._levels.feed(data)
            return
        text, key = self._tail + data if self._tail else data, self._key
        at = _first_key(text, key)
        if self._is_priced:
            names = self._names or self._begin(text)
            if at > 0:
                found = [_first_key(text, name, max(0, at - _BEFORE_BYTES), at) for name in names]
                at = min((each for each in found if each >= 0), default=at)
        if at < 0:
            # A key that is cut, and the byte before it: a whole one in it was looked at already, so none begins there.
            tail = text[-len(key) - (_BEFORE_BYTES if self._is_priced else 0) :]
            self._tail = tail[1:] if tail.startswith(key) else tail
        elif len(text) - at <= _OBJECT_BYTES:
            self._tail = text[at:]
        else:
            self._tail, self._levels = b"", _FromWithin(key, self._names)
            self._levels.feed(text[at:])

    def _begin(self, text: bytes) -> tuple[bytes, ...]:
        """Look for the model where it usually is; return what else is to be looked for."""
        self._model = _first_model(text) if self._key == _KEY else None
        self._names = _TIER_ALONE if self._model is not None else (_TIER, _MODELS[self._key])
        return self._names

    def tokens(self) -> tuple[int | None, int | None]:
        """Return those of the prompt and of the answer, after the last byte of a body that came to its end."""
        counts = self._counted()
        return counts.input, counts.output

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, at the same time as tokens(), before or after it."""
        return self._counted().kinds()

    def _counted(self) -> _Counts:
        if self._counts is None:
            self._counts = counts = _Counts()
            usage, tier, model = self._usage()
            if usage is not None:
                counts.take(usage, tier, model)
        return self._counts

    def _usage(self) -> tuple[dict[str, object] | None, str | None, str | None]:
        """Return the usage, and the tier and the model beside it."""
        levels, key, tail = self._levels, self._key, self._tail
        if levels is None:
            before = None
            if tail.startswith(key):
                usual = _USUAL_END.match(tail, len(key))
            elif not self._is_priced or not tail.startswith(self._names):
                return None, None, None
            else:
                before = _LAST_MODEL.match(tail)
                usual = None if before is None else _USUAL_END.match(tail, before.end() + len(key))
            if usual is not None and tail.find(key, usual.end(1)) < 0:
                if not self._is_priced:
                    return _loaded(usual[1]), None, None
                model = self._model if before is None else _text(before)
                if model is None:
                    model = self._behind(_MODELS[key], usual.end(1))
                return _loaded(usual[1]), self._behind(_TIER, usual.end(1)), model
            levels = _FromWithin(key, self._names)
            levels.feed(tail)
        levels.finish()
        beside = levels.beside
        return levels.last, beside.get(_TIER), self._model or beside.get(_MODELS[key])

    def _behind(self, name: bytes, at: int) -> str | None:
        """Return a text among the plain members that follow."""
        found = _BEHIND[name].search(self._tail, at)
        return None if found is None else _text(found)


def _first_key(text: bytes, key: bytes, begin: int = 0, end: int = sys.maxsize) -> int:
    """Return where the first whole string that is the key begins, or -1."""
    at = text.find(key, begin, end)
    while at > 0 and text[at - 1] == _BACKSLASH:  # the end of a string that has a quote in it
        at = text.find(key, at + 1, end)
    return at


# Where a usage may stand in an event, beside its top level: the member that holds it, by how the event's type begins.
_HOLDERS: Final = ((b"response.", b"response"), (b"message_start", b"message"))
_HOLDER_NAMES: Final = frozenset(name for _, name in _HOLDERS)


# Of an answer that only begins.
_BEGUN: Final = b"message"
_ANSWER: Final = "output_tokens"


def _held_usage(usage: dict[str, object] | None, holder: bytes | None) -> dict[str, object] | None:
    """Return what the member that may hold an event's usage says. Anthropic's beginning has a first token or none of
    the answer: where the end does not come, that is not how long it was."""
    if usage is None or holder != _BEGUN or _ANSWER not in usage:
        return usage
    return {name: value for name, value in usage.items() if name != _ANSWER}


def _holder(kind: bytes) -> bytes | None:
    """Return the member that may hold the usage of an event of this type."""
    return next((name for start, name in _HOLDERS if kind.startswith(start)), None)


class _Event(_Levels):
    """Reads one event from its beginning on: for one that is too long to be kept. usage: once it was whole."""

    __slots__ = (
        *("_beside", "_held", "_holder", "_is_top_level", "_kind", "_model_key", "_name", "_own", "_word"),
        *("model", "tier", "usage"),
    )

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._word: Final = key[1:-1]
        self._model_key: Final = _MODELS[key]
        self.usage: dict[str, object] | None = None
        self.tier: str | None = None
        self.model: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._name = self._kind = self._holder = b""
        self._own: dict[str, object] | None = None
        self._held: dict[str, object] | None = None
        self._is_top_level = False  # it has a member `usage`
        # Tier and model: the event's, and the holder's.
        self._beside: tuple[dict[bytes, str | None], dict[bytes, str | None]] = ({}, {})

    def _bracket(self, *, is_opening: bool) -> None:
        self.depth += 1 if is_opening else -1
        if is_opening and self.depth == 1:
            self._begin()
        elif is_opening and self.depth == 2 and self._name in _HOLDER_NAMES:
            self._holder, self._held = self._name, None
        elif not self.depth:
            is_held = not self._is_top_level and self._holder == _holder(self._kind)
            self.usage = _held_usage(self._held, self._holder) if is_held else self._own
            beside = self._beside[is_held]
            self.tier, self.model = beside.get(_TIER), beside.get(self._model_key)

    def _string(self, text: bytes, start: int, end: int) -> int:
        if end - start > _SHORT or self.depth not in (1, 2):
            return end
        word = text[start + 1 : end - 1]
        name = text[start:end]
        if name in (_TIER, self._model_key) and (self.depth == 1 or self._name in _HOLDER_NAMES):
            found = _text_at(text, end)
            if found is None and len(text) - end < _SHORT and not self._at_end:
                return -1
            self._beside[self.depth - 1][name] = found
            if found is not None:
                return end
        if self.depth == 2:
            return self._value(text, start, end) if word == self._word and self._name in _HOLDER_NAMES else end
        if word == self._word:
            return self._value(text, start, end)
        colon = _COLON.match(text, end)
        if colon is None and self._may_wait(text, start) and not text[end:].strip(_BLANKS):
            return -1
        if colon is not None:
            self._name = word
        elif self._name == b"type":
            self._kind = word
        return end

    def _found(self, usage: dict[str, object] | None) -> None:
        if self.depth == 1:
            self._own, self._is_top_level = usage, True
            self._name = self._word
        else:
            self._held = usage


class StreamUsage:
    """Reads one event stream that is not compressed. However it is cut, it reads the same.

    It keeps the open event, 64 KiB of it at most. Events end with a blank line; lines end with LF or CRLF. key: as for
    BodyUsage.
    """

    __slots__ = ("_counts", "_event", "_key", "_long")

    def __init__(self, key: bytes = _KEY) -> None:
        self._key: Final = key
        self._counts: Final = _Counts()
        self._event: Final = bytearray()  # the open event; of a long one its last bytes
        self._long: _Event | None = None

    def __repr__(self) -> str:
        kept = len(self._event) + (0 if self._long is None else len(self._long.kept))
        return f"<StreamUsage input={self._counts.input} output={self._counts.output} kept={kept}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, at least one."""
        if not self._event and data.endswith(_EVENT_ENDS):
            at = data.find(self._key)
            # The usual chunk is whole events, and has no usage yet.
            if at < 0 or (data.startswith(_NULL, at) and data.find(self._key, at + 1) < 0):
                return
        event = self._event
        begin, look = 0, max(0, len(event) - _EVENT_END_BYTES + 1)
        event += data
        while (end := _EVENT_END.search(event, look)) is not None:
            self._ended(bytes(event[begin : end.end()]))
            begin = look = end.end()
        del event[:begin]
        if self._long is not None or len(event) > _EVENT_BYTES:
            self._go_on(event)

    def tokens(self) -> tuple[int | None, int | None]:
        """Return those of the prompt and of the answer, after the last byte: by the events that are whole."""
        if self._event:  # the last one may have no blank line after it
            self._ended(bytes(self._event))
            self._event.clear()
        return self._counts.input, self._counts.output

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, at the same time as tokens(), before or after it."""
        self.tokens()
        return self._counts.kinds()

    def _ended(self, event: bytes) -> None:
        if self._long is None:
            usage, tier, model = _of_event(event, self._key)
        else:
            self._long.feed(event)
            self._long.finish()
            usage, tier, model = self._long.usage, self._long.tier, self._long.model
            self._long = None
        if usage is not None:
            self._counts.take(usage, tier, model)

    def _go_on(self, event: bytearray) -> None:
        """Read what came of a long event. Its last bytes stay: its end may have begun in them."""
        if self._long is None:
            self._long = _Event(self._key)
        n = len(event) - _EVENT_END_BYTES + 1
        if n > 0:
            self._long.feed(bytes(event[:n]))
            del event[:n]


def _of_event(event: bytes, key: bytes) -> tuple[dict[str, object] | None, object, object]:
    """Return the usage of one whole event, and the tier and the model that stand beside it."""
    n_keys = event.count(key)
    if not n_keys or n_keys == event.count(_NULL):
        return None, None, None
    data = b"\n".join(_DATA_LINE.findall(event))
    loaded = _loaded(data)
    if loaded is None:  # half a surrogate, or too deep for the parser
        reader = _Event(key)
        reader.feed(data)
        reader.finish()
        return reader.usage, reader.tier, reader.model
    name, model_name = key[1:-1].decode("ascii"), _MODELS[key][1:-1].decode("ascii")
    usage, tier, model = loaded.get(name), loaded.get("service_tier"), loaded.get(model_name)
    if name not in loaded:
        kind = loaded.get("type")
        holder = _holder(kind.encode("utf-8", "surrogatepass")) if isinstance(kind, str) else None
        inside = loaded.get(holder.decode()) if holder is not None else _last(loaded.get("choices"))
        usage = inside.get(name) if isinstance(inside, dict) else None
        if holder is not None and isinstance(inside, dict):
            usage = _held_usage(usage if isinstance(usage, dict) else None, holder)
            tier, model = inside.get("service_tier"), inside.get(model_name)
    return usage if isinstance(usage, dict) else None, tier, model


def _last(choices: object) -> object:
    """Return the last choice: Moonshot puts the usage of a stream into it."""
    return choices[-1] if isinstance(choices, list) and choices else None


class DataLines:
    """Counts the lines of an event stream that carry data: one an event, which is about one a token.

    However the stream is cut, the count is the same. Lines end with LF or CRLF.
    """

    __slots__ = ("_line", "n")

    def __init__(self) -> None:
        self._line: bytes | None = b""  # of the open line, while it may become one with data; None: it is known
        self.n = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, at least one."""
        line = self._line
        if line == b"" and data.startswith(_DATA) and data.find(b"\n") == len(data) - 2 and data[-1] == _LF:
            self.n += 1  # the usual chunk: one event, of one line
            return
        if line is not None:
            data = line + data
            if data.startswith(_DATA):
                self.n += 1
        self.n += data.count(_NEXT_DATA)
        if data[-1] == _LF:
            self._line = b""
        else:
            at = data.rfind(b"\n") + 1
            is_known = (not at and line is None) or not _DATA.startswith(data[at:]) or len(data) - at == len(_DATA)
            self._line = None if is_known else data[at:]
