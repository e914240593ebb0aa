"""How many tokens a reply says it took.

    BodyUsage     a JSON reply: the top-level `usage` of the document
    StreamUsage   an event stream: the `usage` of the last event that has one, and how many events there were
    ArrayUsage    a stream of Gemini's that is a JSON array

Knows: the object `"usage": {...}` as OpenAI (chat, completions, embeddings, Responses), vLLM and Anthropic write it,
Google's `"usageMetadata"`, and at which place of a document it stands, with the service tier and the model beside it.
Does not know: who asked (json/edit.py), limits, HTTP, what else events mean.

A reply may hold other objects of that name: a tool's schema that is echoed, a part of the answer. And what a client
sends comes back in it: its metadata, its name for the user. So the place decides, never a text that looks right, and a
parser says what stands there: of equal names the last one counts, and escapes in a name are read.

    1. A body of up to 128 KiB is kept, and parsed at its end; one over 2 KiB by simdjson, which makes no objects of
       what is not asked for. Both take less time than to search the bytes for a name.
    2. A longer one is read as it comes, for its outline (json/outline.py), which is parsed at the end.
    3. Of a stream only events that have the name are parsed. One over 64 KiB is read for its outline, too.

What is null, missing, or too long to read is not known, and the estimate stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import orjson
import simdjson
from msgspec.structs import replace

from velox.protocol.json.outline import Outline
from velox.protocol.sse_events import SseEvents
from velox.protocol.usage.token_usage import TokenUsage, Units
from velox.protocol.usage.tokens import (
    answer_of_total,
    billed_units,
    count_of,
    google_searches,
    openai_searches,
    sound_ms,
    token_usage,
    told_units,
    with_all_of_prompt,
    with_compactions,
    with_tools,
)

__all__ = ["GOOGLE_KEY", "UNITS_KEY", "ArrayUsage", "BodyUsage", "StreamUsage", "Usage"]

_KEY: Final = b'"usage"'
GOOGLE_KEY: Final = b'"usageMetadata"'
# Of replies that may be paid by other units than tokens: a usage may stand in them as well.
UNITS_KEY: Final = b'"usage_info"'
_NULL: Final = b'"usage":null'
# What stands in a reply that has searched the web: an item of OpenAI's, Google's queries.
_SEARCHED: Final = dict.fromkeys((_KEY, UNITS_KEY), b'"web_search_call"') | {GOOGLE_KEY: b'"webSearchQueries"'}
_TIER: Final = "service_tier"
# What counts beside either usage: the tier, and what the model that answered is called.
# What OpenAI tells of tools beside the usage of a response, and a transcription with its words of its length.
_TOOLS: Final = "tool_usage"
_LENGTH: Final = "duration"
# Where units in place of tokens stand (token_usage.told_units()).
_UNITS: Final = ("usage_info", "meta", "object", "seconds", "size")
_NAMES: Final = {
    _KEY: ("usage", _TIER, "model", _TOOLS, _LENGTH),
    GOOGLE_KEY: ("usageMetadata", _TIER, "modelVersion"),
    UNITS_KEY: ("usage", _TIER, "model", _TOOLS, _LENGTH, *_UNITS),
}
# Where a usage may stand in an event, beside its top level: the member that holds it, by how the event's type begins.
_RESPONSE: Final = "response"
_HOLDERS: Final = (("response.", _RESPONSE), ("message_start", "message"))
_HOLDER_NAMES: Final = tuple(name for _, name in _HOLDERS)
_TYPE: Final = "type"
_CHOICES: Final = "choices"
# Of an answer that only begins.
_BEGUN: Final = "message"
_ANSWER: Final = "output_tokens"
_READ: Final = "cache_read_input_tokens"
_WRITTEN: Final = "cache_creation_input_tokens"
# A longer body is read as it comes.
_BODY_BYTES: Final = 128 * 1024
# Up to this size objects of all that stands in it take less time than to ask for each member.
_SMALL_BYTES: Final = 2 * 1024
# An event as well.
_EVENT_BYTES: Final = 64 * 1024
# So much of a stream's begin is kept, for a tier or model that stands in no event with a usage.
_BEGIN_BYTES: Final = 4 * 1024

_DATA: Final = b"data:"
_NEXT_DATA: Final = b"\ndata:"
_CR: Final = b"\r"
_LF_END: Final = b"\n\n"
_CRLF: Final = b"\r\n"
_CRLF_END: Final = b"\r\n\r\n"
# How a letter of a name may be escaped: of ASCII from "A" on.
_ESCAPE: Final = b"\\u00"
_LETTER: Final = re.compile(rb"\\u00[4-7]")


class Usage:
    """Tokens that a request took. None: nothing is known of them. is_exact: as the upstream counted the whole reply."""

    __slots__ = ("input", "is_exact", "output")

    def __init__(self, n_input: int | None, n_output: int | None, is_exact: bool) -> None:
        self.input: Final = n_input
        self.output: Final = n_output
        self.is_exact: Final = is_exact

    def __repr__(self) -> str:
        return f"<Usage {self.input} {self.output} is_exact={self.is_exact}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Usage):
            return False
        return self.input == other.input and self.output == other.output and self.is_exact is other.is_exact

    def __hash__(self) -> int:
        return hash((self.input, self.output, self.is_exact))


class _Counts:
    """The tokens of one reply, as far as they were told. A later usage replaces an earlier one, field by field.

    Field by field, because Anthropic reports the prompt at the beginning of a stream and the answer at its end.
    """

    __slots__ = ("_first", "_kinds", "_last", "_model", "_tier", "_tools", "_units", "input", "output")

    def __init__(self) -> None:
        self._units: Units | None = None
        self._kinds: TokenUsage | None = None  # of the last usage, with the tier and the model that are known
        self.input: int | None = None
        self.output: int | None = None
        self._first: dict[str, object] | None = None
        self._last: dict[str, object] | None = None
        self._tier: object = None
        self._model: object = None
        self._tools: object = None

    @property
    def lacks_names(self) -> bool:
        """True where there is a usage, and no tier or no model."""
        return self._first is not None and (self._tier is None or self._model is None)

    def add_names(self, tier: object, model: object) -> None:
        """Take over what nothing was told of."""
        if self._tier is None:
            self._tier = tier
        if self._model is None:
            self._model = model
        self._kinds = None

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, by the first usage and the last one: each counts all so far."""
        if self._first is None or self._last is None:
            if self._units is None:
                return TokenUsage()
            self._first = self._last = {}
        last = self._kinds
        if last is None:
            last = token_usage(self._last, self._tier, self._model)
        if self._units is not None:
            last = replace(last, units=self._units)
        if self._tools is not None:
            last = with_tools(last, self._tools)
        if "seconds" in self._last or "prompt_audio_seconds" in self._last:
            length = sound_ms(self._last)
            last = last if length is None else replace(last, units=Units(length))
        if self._first is not self._last:
            last = last.over(token_usage(self._first))
        if last.input == self.input and last.output == self.output:
            return last  # nearly always; a copy takes longer
        return replace(last, input=self.input, output=self.output)

    def take_units(self, members: dict[str, object]) -> None:
        """Take over units in place of tokens, with the tier and the model that stand beside them."""
        self._units, tier = told_units(members)
        if self._units is not None:
            self.add_names(tier or members.get(_TIER), members.get("model"))

    def take(self, usage: dict[str, object], tier: object = None, model: object = None, tools: object = None) -> None:
        """Take over what one usage says. tier, model, tools: what stands beside it."""
        if "iterations" in usage:
            usage = with_compactions(usage)
        elif "total_tokens" in usage:
            usage = with_all_of_prompt(usage)
        self._last = usage
        if tier is not None:
            self._tier = tier
        if model is not None:
            self._model = model
        if tools is not None:
            self._tools = tools
        self._kinds = None
        if self._first is None:
            self._first = usage
            if "total_tokens" not in usage or not (_READ in usage or _WRITTEN in usage):
                # The only usage of most replies: its kinds have the prompt and the answer.
                self._kinds = found = token_usage(usage, self._tier, self._model)
                self.input, self.output = found.input, found.output
                return
        if "promptTokenCount" in usage or "candidatesTokenCount" in usage or "thoughtsTokenCount" in usage:
            self._take_google(usage)
            return
        given = count_of(usage, "prompt_tokens")
        if given is None:
            given = count_of(usage, "input_tokens")
            if given is not None:  # Anthropic counts what it had in its cache beside the rest
                # Some repeat the prompt at the end of a stream, and its cache not.
                told = usage if self._first is usage or not given else {**self._first, **_told(usage)}
                given += count_of(told, _WRITTEN) or 0
                given += count_of(told, _READ) or 0
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


class _Told:
    """What one document tells: its usage, and the tier, the model and the tools that stand beside it."""

    __slots__ = ("model", "tier", "tools", "usage")

    def __init__(
        self, usage: dict[str, object] | None = None, tier: object = None, model: object = None, tools: object = None
    ) -> None:
        self.usage: Final = usage
        self.tier: Final = tier
        self.model: Final = model
        self.tools: Final = tools


_NOTHING: Final = _Told()


class BodyUsage:
    """Reads one JSON body that is not compressed. However it is cut, it reads the same. It keeps at most 128 KiB.

    key: what the usage is called, as a JSON string.
    """

    __slots__ = ("_body", "_counts", "_key", "_outline")

    def __init__(self, key: bytes = _KEY) -> None:
        self._key: Final = key
        self._body: bytes | bytearray = b""
        self._outline: Outline | None = None  # of a longer one
        self._counts: _Counts | None = None

    def __repr__(self) -> str:
        kept = len(self._body) if self._outline is None else self._outline.n_kept
        return f"<BodyUsage kept={kept}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the reply."""
        if self._outline is not None:
            self._outline.feed(data)
        elif not self._body and len(data) <= _BODY_BYTES:
            self._body = data  # the usual body is one piece
        elif len(self._body) + len(data) <= _BODY_BYTES:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += data
        else:
            self._outline = _outline(self._key)
            self._outline.feed(bytes(self._body))
            self._outline.feed(data)
            self._body = b""

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
            outline = self._outline
            members = _members(self._body, self._key) if outline is None else _outlined(outline)
            told = _beside(members, self._key)
            if told.usage is not None:
                counts.take(told.usage, told.tier, told.model, told.tools)
            if self._key == UNITS_KEY:
                counts.take_units(members)
        return self._counts


class ArrayUsage:
    """Reads a stream of Gemini's that comes as a JSON array, of items of any length: each tells of all so far.

    Of an array that is none nothing is told.
    """

    __slots__ = ("_counts", "_outline")

    def __init__(self) -> None:
        self._counts = _Counts()
        self._outline: Final = Outline(*_names(GOOGLE_KEY), in_array=True)

    def __repr__(self) -> str:
        return f"<ArrayUsage input={self._counts.input} output={self._counts.output} kept={self._outline.n_kept}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the reply."""
        outline = self._outline
        outline.feed(data)
        for text in outline.take():
            told = _beside(_parsed(text), GOOGLE_KEY)
            if told.usage is not None:
                self._counts.take(told.usage, told.tier, told.model)
        if outline.is_broken:
            self._counts = _Counts()

    def tokens(self) -> tuple[int | None, int | None]:
        """Return those of the prompt and of the answer, after the last byte."""
        return self._counts.input, self._counts.output

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, at the same time as tokens()."""
        return self._counts.kinds()


def _names(key: bytes) -> tuple[str, ...]:
    """Return the members that count, at the top of a document and in one that may hold an event's usage."""
    return _NAMES[key]


def _outline(key: bytes, *, is_event: bool = False) -> Outline:
    names = _names(key)
    if not is_event:
        return Outline(*names)
    return Outline(*names, _TYPE, *(f"{holder}.{name}" for holder in _HOLDER_NAMES for name in names))


def _members(text: bytes | bytearray, key: bytes, *, is_event: bool = False) -> dict[str, object]:
    """Return what counts of a whole document, by name; nothing of what is no JSON object.

    Of an event there are its type, too, the objects that may hold its usage, and its last choice.
    """
    names, has_searches = _names(key), text.find(_SEARCHED[key]) >= 0
    if len(text) <= _SMALL_BYTES:
        try:
            whole = orjson.loads(text)
        except ValueError:
            pass  # what it refuses may still be read, as behind a byte order mark
        else:
            if type(whole) is not dict:
                return {}
            if not (is_event or has_searches or key == GOOGLE_KEY):
                return whole  # no copy: of all that is in it nothing but these names is asked for
            members = _event_of(whole, names) if is_event else _some(whole, names)
            return _searched(members, whole, key) if has_searches else members
    try:
        found = simdjson.Parser().parse(text)
        # Compared by type: isinstance with it asks an abstract base class, and takes longer than the parse.
        if type(found) is not simdjson.Object:
            return {}
        members = _plain(found, (*names, _TYPE, *_HOLDER_NAMES, _CHOICES), names) if is_event else _plain(found, names)
        return _searched(members, found.as_dict(), key) if has_searches else members
    # ValueError: equal names, not strict JSON, or not UTF-8. RuntimeError: too deep, or a number of over 64 bits.
    except (ValueError, RuntimeError):
        outline = _outline(key, is_event=is_event)
        outline.feed(bytes(text))
        members = _outlined(outline)
    return _searched(members, _loosely(text), key) if has_searches else members


def _loosely(text: bytes | bytearray) -> dict[str, object]:
    """Return an object that only the standard library reads: with numbers of any length, or half a surrogate."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _searched(members: dict[str, object], whole: Mapping[str, object], key: bytes) -> dict[str, object]:
    """Return members with the searches of their document: beside its usage, or in the response that an event has."""
    n = (_google_searches if key == GOOGLE_KEY else _openai_searches)(whole)
    held = members.get(_RESPONSE)
    if isinstance(held, dict):
        members[_RESPONSE] = _with_searches(held, n)
        return members
    return _with_searches(members, n)


def _some(found: dict[str, object], names: tuple[str, ...]) -> dict[str, object]:
    """Return the members of these names."""
    return {name: found[name] for name in names if name in found}


def _event_of(found: dict[str, object], names: tuple[str, ...]) -> dict[str, object]:
    """Return these members of an event, its type, and in the same way the objects that may hold its usage."""
    members = _some(found, names)
    if _TYPE in found:
        members[_TYPE] = found[_TYPE]
    for name in _HOLDER_NAMES:
        if name in found:
            held = found[name]
            members[name] = _some(held, names) if isinstance(held, dict) else held
    choices = found.get(_CHOICES)
    if isinstance(choices, list) and choices and isinstance(choices[-1], dict):
        members[_CHOICES] = _some(choices[-1], names)  # Moonshot puts the usage of a stream there
    return members


def _with_searches(members: dict[str, object], n: int) -> dict[str, object]:
    """Return members with so many searches, as OpenAI's `tool_usage` tells them, unless they tell their own."""
    if n and not isinstance(members.get(_TOOLS), dict):
        members[_TOOLS] = {"web_search": {"num_requests": n}}
    return members


def _openai_searches(reply: Mapping[str, object]) -> int:
    """Return how many items of a response, or of the one in an event, are searches."""
    held = reply.get(_RESPONSE)
    items = (held if isinstance(held, dict) else reply).get("output")
    return openai_searches(items) if isinstance(items, list) else 0


def _google_searches(reply: Mapping[str, object]) -> int:
    """Return how many searches a reply of Google's was grounded on."""
    candidates, model = reply.get("candidates"), reply.get("modelVersion")
    queries: list[object] = []
    for each in candidates if isinstance(candidates, list) else ():
        grounding = each.get("groundingMetadata") if isinstance(each, dict) else None
        asked = grounding.get("webSearchQueries") if isinstance(grounding, dict) else None
        queries += asked if isinstance(asked, list) else ()
    return google_searches(queries, model if isinstance(model, str) else "")


def _plain(found: simdjson.Object, names: tuple[str, ...], inside: tuple[str, ...] = ()) -> dict[str, object]:
    """Return these members of an object; of those that may hold a usage the members named `inside`.

    Raises ValueError if one is there twice: simdjson returns the first, and everybody else the last.
    """
    keys = list(found.keys())
    members: dict[str, object] = {}
    for name in names:
        if name not in keys:
            continue
        if keys.count(name) > 1:
            raise ValueError(name)
        value = found[name]
        if name == _CHOICES:
            # Moonshot puts the usage of a stream into the last choice.
            value = value[len(value) - 1] if type(value) is simdjson.Array and len(value) else None
        if type(value) is not simdjson.Object:
            members[name] = value
        elif name in _HOLDER_NAMES or name == _CHOICES:
            members[name] = _plain(value, inside)
        else:
            members[name] = value.as_dict()
    return members


def _outlined(outline: Outline) -> dict[str, object]:
    """Return what counts, of a document that was read as it came."""
    text = outline.text()
    return {} if text is None else _parsed(text)


def _parsed(text: bytes) -> dict[str, object]:
    """Return the members of an outline."""
    try:
        members: dict[str, object] = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            members = json.loads(text)  # takes half a surrogate, numbers of any size, and NaN
        except (ValueError, RecursionError):
            return {}
    return members


def _beside(members: dict[str, object], key: bytes) -> _Told:
    """Return the usage of an object, and what stands beside it."""
    name, tier, model = _NAMES[key][:3]
    usage = members.get(name)
    if not isinstance(usage, dict):
        # A transcription with its words tells its length, also where it has no usage.
        usage = {"type": _LENGTH, "seconds": members[_LENGTH]} if _LENGTH in members and name not in members else None
        billed = billed_units(members) if key == UNITS_KEY else {}
        if "input_tokens" in billed:  # of Cohere's models that are paid by tokens
            usage = {"output_tokens": 0, **billed}
    return _Told(usage, members.get(tier), members.get(model), members.get(_TOOLS))


def _of_event(members: dict[str, object], key: bytes) -> _Told:
    """Return what an event tells, of itself or of the object that it holds."""
    kind = members.get(_TYPE)
    holder = next((name for start, name in _HOLDERS if isinstance(kind, str) and kind.startswith(start)), None)
    told = _beside(members, key)
    if _names(key)[0] in members:
        return told
    inside = members.get(_CHOICES if holder is None else holder)
    if not isinstance(inside, dict):
        return told
    held = _beside(inside, key)
    if holder is None:
        return _Told(held.usage, told.tier, told.model, told.tools)
    if holder != _BEGUN or held.usage is None:
        return held
    # Anthropic's beginning has a first token or none of the answer: where the end does not come, that is not how long
    # it was.
    usage = {name: value for name, value in held.usage.items() if name != _ANSWER}
    return _Told(usage, held.tier, held.model, held.tools)


class StreamUsage:
    """Reads one event stream that is not compressed. However it is cut, it reads the same.

    It keeps the open event, 64 KiB of it at most. key: as for BodyUsage.
    """

    __slots__ = ("_begin", "_counts", "_events", "_is_between", "_key", "_n_passed")

    def __init__(self, key: bytes = _KEY) -> None:
        key = self._key = _KEY if key == UNITS_KEY else key
        self._counts: Final = _Counts()
        self._begin = b""  # of the stream
        self._events: Final = SseEvents(_EVENT_BYTES, outline=lambda: _outline(key, is_event=True))
        self._is_between = False  # the next byte is the first of an event, of which none is open
        self._n_passed = 0  # lines with data that were not read, as they have no usage

    def __repr__(self) -> str:
        kept = len(self._begin) + self._events.n_held
        return f"<StreamUsage input={self._counts.input} output={self._counts.output} kept={kept}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream, at least one."""
        if len(self._begin) < _BEGIN_BYTES:
            self._begin += data[: _BEGIN_BYTES - len(self._begin)]
        # The usual chunk is whole events, and has no usage yet.
        if self._is_between and _is_whole(data) and not _may_tell(data, self._key):
            self._n_passed += data.count(_NEXT_DATA) + data.startswith(_DATA)
            return
        self._take(self._events.feed(data))
        self._is_between = self._events.is_between

    def count(self, data: bytes) -> None:
        """Take the next bytes of a stream whose usage somebody else has read: its events are counted, and not read."""
        if self._is_between and _is_whole(data):
            self._n_passed += data.count(_NEXT_DATA) + data.startswith(_DATA)
            return
        self._events.feed(data)
        self._is_between = self._events.is_between

    @property
    def n_events(self) -> int:
        """Return how many lines with data there were so far: one an event, which is about one a token."""
        return self._n_passed + self._events.n_data

    def tokens(self) -> tuple[int | None, int | None]:
        """Return those of the prompt and of the answer, after the last byte: by the events that are whole."""
        self._take(self._events.end())  # the last one may have no blank line after it
        return self._counts.input, self._counts.output

    def kinds(self) -> TokenUsage:
        """Return all kinds of tokens, at the same time as tokens(), before or after it."""
        self.tokens()
        if self._counts.lacks_names:
            # In the first events: those with the usage do not have both.
            for _, data in SseEvents().feed(self._begin):
                if data.startswith(b"{"):
                    told = _of_event(_members(data, self._key, is_event=True), self._key)
                    self._counts.add_names(told.tier, told.model)
            self._begin = b""
        return self._counts.kinds()

    def _take(self, events: list[tuple[bytes, bytes]]) -> None:
        for _, data in events:
            if _may_tell(data, self._key):
                told = _of_event(_members(data, self._key, is_event=True), self._key)
                if told.usage is not None:
                    self._counts.take(told.usage, told.tier, told.model, told.tools)


def _is_whole(data: bytes) -> bool:
    """Return True if data end with an event, and all lines with LF, or all with CRLF."""
    if data.endswith(_LF_END):
        return data.find(_CR) < 0
    return data.endswith(_CRLF_END) and data.count(_CR) == data.count(_CRLF)


def _may_tell(events: bytes, key: bytes) -> bool:
    """Return False where no usage is in these events, or only null: as in all but the last one of most streams."""
    at = events.find(key)
    if at >= 0 and not (events.startswith(_NULL, at) and events.count(key) == events.count(_NULL)):
        return True
    return events.find(_ESCAPE) >= 0 and _LETTER.search(events) is not None
