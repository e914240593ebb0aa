"""How many tokens a reply says it took, read without parsing the reply; and its removal from a stream.

Knows: the object `"usage": {...}` as OpenAI (chat, completions, embeddings, Responses), vLLM and Anthropic write it,
and the events that are there only for it. Does not know: who asked (body_edit.py says how), limits, HTTP, what else
events mean.

The key can't be mistaken for text that a model wrote: inside a JSON string its quotes are escaped. So the bytes are
searched for it, at the speed of memmem, and only the object itself, some 300 bytes once in a reply, is parsed. The last
one counts, field by field: Anthropic reports the prompt at the beginning of a stream and the answer at its end.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import orjson

from velox.protocol.body_edit import STRING

__all__ = ["DataLines", "Usage", "UsageScanner", "UsageStrip"]

_KEY: Final = b'"usage"'
_KEY_BYTES: Final = len(_KEY)
_NULL: Final = b'"usage":null'
_LF: Final = ord("\n")
_BACKSLASH: Final = ord("\\")
_BRACE: Final = ord("{")
_BLANKS: Final = b" \t\r\n"
# The longest known has 600 bytes. What is longer is not read, so that no more than this is ever kept.
_OBJECT_BYTES: Final = 4096
# More tokens than this are nobody's answer: a model reads some millions.
_MOST_TOKENS: Final = 1_000_000_000

_DATA: Final = b"data:"
_NEXT_DATA: Final = b"\ndata:"

_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_FLAT: Final = rb'\{(?:[^{}"]++|%b)*+\}' % STRING
# Objects in an object: the details. None has more of them inside.
_OBJECT: Final = re.compile(rb'\{(?:[^{}"]++|%b|%b)*+\}' % (STRING, _FLAT), re.DOTALL)

# As much of one event is held back; a stream with a longer one passes unchanged from there on.
_HELD_BYTES: Final = 64 * 1024
_USUAL: Final = b"data: {"
_NEWLINE: Final = b"\n"
_CR: Final = b"\r"
_SPACES: Final = b" \t"
_COMMA: Final = ord(",")

_EVENT_END: Final = re.compile(rb"\n\r?\n")
_BLANK_LINES: Final = re.compile(rb"(?:\r?\n)+")
# Ends a line too, but nobody's: such a stream is not understood here.
_LONE_CR: Final = re.compile(rb"\r[^\n]")
_HAS_OBJECT: Final = re.compile(rb'"usage"[ \t]*:[ \t]*\{')
_NULL_MEMBER: Final = re.compile(rb'(?<!\\)"usage"[ \t]*:[ \t]*null')
# Only texts follow and the last brace, so that it is the object's own member. OpenAI pads its events there.
_LAST_NULL: Final = re.compile(rb'"usage":null(?=(?:,"[a-z_]+":"[^"\\{}\[\]]*+")*+\}\n\n\Z)')
# What decides how deep in an object one stands. A string that does not end reaches to the end.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]')
_OPENING: Final = (b"{", b"[")
_NESTED: Final = re.compile(rb"[{\[\]]|\}.*\}", re.DOTALL)


class Usage(NamedTuple):
    """Tokens that a request took. None: nothing is known of them. is_exact: as the upstream counted the whole reply."""

    input: int | None
    output: int | None
    is_exact: bool


class UsageScanner:
    """Reads one reply, that is not compressed. However it is cut, it reads the same. It keeps at most 4 KiB.

    input, output: tokens by the usage that was there last; None: none was.
    """

    __slots__ = ("_kept", "input", "output")

    def __init__(self) -> None:
        # The end of what came, where a usage may have begun, and the byte before that. None after a line's end.
        self._kept = b""
        self.input: int | None = None
        self.output: int | None = None

    def __repr__(self) -> str:
        return f"<UsageScanner input={self.input} output={self.output} kept={len(self._kept)}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the reply, at least one."""
        if not self._kept:
            at = data.find(_KEY)
            # The usual chunk ends with an event, and has no usage yet.
            if data[-1] == _LF and (at < 0 or (data.startswith(_NULL, at) and data.find(_KEY, at + 1) < 0)):
                return
            self._search(data, at)
        else:
            data = self._kept + data
            self._search(data, data.find(_KEY, 1))

    def _search(self, text: bytes, at: int) -> None:
        """Read every usage in `text`. at: where the first key is, or -1."""
        begin = 0
        while at >= 0:
            begin = self._read(text, at)
            if begin < 0:
                self._keep(text, at)
                return
            at = text.find(_KEY, begin)
        # Where a key may have begun that is cut; and whether a quote that comes next stands after a backslash.
        begin = max(begin, len(text) - _KEY_BYTES + 1)
        if text.find(b'"', begin) >= 0 or text[-1] == _BACKSLASH:
            self._keep(text, begin)
        else:
            self._kept = b""

    def _keep(self, text: bytes, at: int) -> None:
        self._kept = text[at - 1 :] if at else b"\n" + text

    def _read(self, text: bytes, at: int) -> int:
        """Read the usage whose key is at `at`. Return where to go on; -1: the rest of it is not here yet."""
        after_key, limit = at + _KEY_BYTES, at + _OBJECT_BYTES
        if at and text[at - 1] == _BACKSLASH:
            return after_key  # the end of a string that has a quote in it
        colon = _COLON.match(text, after_key, limit)
        if colon is None:
            is_cut = not text[after_key:limit].strip(_BLANKS)
        elif colon.end() == len(text):
            is_cut = True
        elif text[colon.end()] == _BRACE:
            found = _OBJECT.match(text, colon.end(), limit)
            if found is not None:
                self._take(found.group())
                return found.end()
            is_cut = True
        else:
            is_cut = False
        return -1 if is_cut and len(text) < limit else after_key

    def _take(self, text: bytes) -> None:
        """Take over what one usage says."""
        try:
            usage = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        given = _count(usage, "prompt_tokens")
        if given is None:
            given = _count(usage, "input_tokens")
            if given is not None:  # Anthropic counts what it had in its cache beside the rest
                given += _count(usage, "cache_creation_input_tokens") or 0
                given += _count(usage, "cache_read_input_tokens") or 0
        made = _count(usage, "completion_tokens")
        if made is None:
            made = _count(usage, "output_tokens")
        total = _count(usage, "total_tokens")
        if given is not None and total is not None and total >= given:
            # Some count reasoning in the total only; embeddings have nothing but prompt and total.
            made = max(made or 0, total - given)
        # No prompt has no tokens: some say 0 at the end of a stream whose beginning knew better.
        if given or self.input is None:
            self.input = given if given is not None else self.input
        if made is not None:
            self.output = made


def _count(usage: dict[str, object], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


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


class UsageStrip:
    """Removes from an event stream what an upstream says only because Velox asked for the usage.

    That is the event with the usage (`"choices":[]` and an object `usage`), and the `"usage":null` of the other events.
    Everything else passes byte for byte, in order, and so does a stream of an upstream that ignores the option. However
    the stream is cut, the same bytes come out. Events are passed on whole: a reply that is cut has none of its last,
    half event.
    """

    __slots__ = ("_held", "_is_off")

    def __init__(self) -> None:
        self._held = b""  # an event that is not whole yet
        self._is_off = False

    def __repr__(self) -> str:
        return f"<UsageStrip {'off' if self._is_off else 'on'} held={len(self._held)}>"

    @property
    def holds(self) -> bool:
        """True when part of an event is held back: what was passed on then ends with a whole one."""
        return bool(self._held)

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take the next bytes; return what may go on. end: of the stream; what is left then was no event, and goes on.

        Of a stream that is cut nothing is left to send: the half event that is held was never the client's.
        """
        if self._is_off:
            return data
        if not self._held and data.endswith(b"\n\n") and len(data) <= _HELD_BYTES and _CR not in data:
            at = data.find(_KEY)
            if at < 0:
                return data
            # The usual chunk is one event, of one line.
            if data.startswith(_USUAL) and data.find(_NEWLINE) == len(data) - 2 and data[at - 1] == _COMMA:
                last = _LAST_NULL.match(data, at)
                if last is not None:
                    return data[: at - 1] + data[last.end() :]
        out = self._edit_all(data)
        if end:
            out += self._held
            self._held = b""
        return out

    def _edit_all(self, data: bytes) -> bytes:
        """Change the events that are whole now."""
        text = self._held + data
        begin, looked_at = 0, max(0, len(self._held) - 2)
        out: list[bytes] = []
        while True:
            blank = _BLANK_LINES.match(text, begin)
            if blank is not None:  # they end no event, and belong to none
                out.append(blank.group())
                begin = blank.end()
                looked_at = max(looked_at, begin)
            found = _EVENT_END.search(text, looked_at)
            end = len(text) if found is None else found.end()
            if end - begin > _HELD_BYTES or _LONE_CR.search(text, looked_at, end):
                self._is_off = True
                out.append(text[begin:])
                begin = len(text)
                break
            if found is None:
                break
            out.append(_edit(text[begin:end]))
            begin = looked_at = end
        self._held = text[begin:]
        return b"".join(out)


def _edit(event: bytes) -> bytes:
    """Return an event as the client shall have it; nothing of one that is only there for the usage."""
    if _KEY not in event:
        return event
    begin = 0 if event.startswith(_DATA) else event.find(_NEXT_DATA) + 1
    if not event.startswith(_DATA, begin) or event.find(_NEXT_DATA, begin) >= 0:
        return event  # no data, or JSON in several lines, which nobody sends
    begin += len(_DATA)
    end = event.index(_NEWLINE, begin)
    if event[end - 1 : end] == _CR:
        end -= 1
    payload = event[begin:end]
    if not payload.lstrip(_SPACES).startswith(b"{"):
        return event
    if _HAS_OBJECT.search(payload) is not None and _is_only_usage(payload):
        return b""
    return event[:begin] + _without_null(payload) + event[end:]


def _is_only_usage(payload: bytes) -> bool:
    try:
        chunk = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def _without_null(payload: bytes) -> bytes:
    """Leave out each `"usage":null` of the object itself, with its comma."""
    for found in reversed(list(_NULL_MEMBER.finditer(payload))):
        before, after = payload[: found.start()], payload[found.end() :]
        if not _is_member(before, after):
            continue
        head, tail = before.rstrip(_SPACES), after.lstrip(_SPACES)
        if head.endswith(b","):
            payload = head[:-1] + after
        elif tail.startswith(b","):
            payload = before + tail[1:].lstrip(_SPACES)
        else:
            payload = before + after
    return payload


def _is_member(before: bytes, after: bytes) -> bool:
    """True when what stands between these is a member of the outermost object, and of none inside."""
    after = after.rstrip(_SPACES)
    if after.endswith(b"}") and _NESTED.search(after) is None:
        return True  # the one brace that follows is the last
    depth = 0
    for token in _TOKEN.findall(before):
        if token in _OPENING:
            depth += 1
        elif not token.startswith(b'"'):
            depth -= 1
    return depth == 1
