"""How many tokens a reply says it took, read without parsing the reply; and how to make a stream say it.

Knows: the object `"usage": {...}` as OpenAI (chat, completions, embeddings, Responses), vLLM and Anthropic write it,
and the field of a request that asks for it. Does not know: events (usage_strip.py), limits, HTTP.

The key can't be mistaken for text that a model wrote: inside a JSON string its quotes are escaped. So the bytes are
searched for it, at the speed of memmem, and only the object itself, some 300 bytes once in a reply, is parsed. The last
one counts, field by field: Anthropic tells of the prompt at the beginning of a stream and of the answer at its end.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import orjson

from velox.errors import VeloxError
from velox.protocol.json_field import STRING, Field
from velox.types import BodyFields

__all__ = ["DataLines", "Usage", "UsageScanner", "ask_for_usage"]

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

_ASKING: Final = b'"stream_options":{"include_usage":true}'
_OPTIONS: Final = Field("stream_options")
# Nothing or flat members, with no brace inside a string.
_FLAT_OPTIONS: Final = re.compile(rb"null|\{[^{}\[\]\\]{0,256}\}")
_CHANGED_BYTES: Final = 1024 * 1024  # a larger one would be searched and copied for too long

_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_FLAT: Final = rb'\{(?:[^{}"]++|%b)*+\}' % STRING
# Objects in an object: the details. None has more of them inside.
_OBJECT: Final = re.compile(rb'\{(?:[^{}"]++|%b|%b)*+\}' % (STRING, _FLAT), re.DOTALL)


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


def ask_for_usage(body: bytes | bytearray, peek: BodyFields) -> bytes | bytearray | None:
    """Return `body` with stream_options that ask for the usage; None: it asks already, or can't be changed safely.

    body: one that BodyReader has read, of a streamed chat or text completion; a bytearray is changed in place and
    returned. peek: what was read of it. Nothing but the options is written anew, and no key is there twice.
    """
    if not peek.stream or peek.include_usage:
        return None
    if peek.include_usage is not None:
        return _change_options(body)
    # The last brace is the document's, which has a member: `stream`. A large body, a bytearray, is not copied so.
    end = body.rindex(b"}")
    if isinstance(body, bytearray):
        body[end:] = b"," + _ASKING + b"}"
        return body
    return b"%b,%b}" % (body[:end], _ASKING)


def _change_options(body: bytes | bytearray) -> bytes | bytearray | None:
    """Put include_usage into the options that `body` has. None: it is not sure where they are, or what is in them."""
    if len(body) > _CHANGED_BYTES:
        return None
    try:
        begin = _OPTIONS.find(body)
    except VeloxError:
        return None  # somewhere
    assert begin >= 0, "there are options in what was read"
    found = _FLAT_OPTIONS.match(body, begin)
    if found is None:
        return None
    try:
        options = orjson.loads(found[0])
    except orjson.JSONDecodeError:
        return None
    end = found.end()
    changed = orjson.dumps({**(options or {}), "include_usage": True})
    if isinstance(body, bytearray):
        body[begin:end] = changed
        return body
    return body[:begin] + changed + body[end:]
