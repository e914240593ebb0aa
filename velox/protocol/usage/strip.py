"""The removal from a stream of what an upstream says only because Velox asked for the usage.

Knows: the events that are there only for it, and `"usage":null` in the others. Does not know: what the usage says
(reader.py), or who asked (json/edit.py says how).
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from velox.protocol.json.value_count import brackets_open

__all__ = ["UsageStrip"]

_KEY: Final = b'"usage"'
_DATA: Final = b"data:"
_NEXT_DATA: Final = b"\ndata:"

# As much of one event is held back; a stream with a longer one passes unchanged from there on.
_HELD_BYTES: Final = 64 * 1024
_USUAL: Final = b"data: {"
_NEWLINE: Final = b"\n"
_CR: Final = b"\r"
_SPACES: Final = b" \t"
_COMMA: Final = ord(",")

_EVENT_END: Final = re.compile(rb"\n\r?\n")
_BLANK_LINES: Final = re.compile(rb"(?:\r?\n){1,64}")
# Ends a line too, but nobody's: such a stream is not understood here.
_LONE_CR: Final = re.compile(rb"\r[^\n]")
_HAS_OBJECT: Final = re.compile(rb'"usage"[ \t]*:[ \t]*\{')
_NULL_MEMBER: Final = re.compile(rb'(?<!\\)"usage"[ \t]*:[ \t]*null')
# Only texts follow and the last brace, so that it is the object's own member. OpenAI pads its events there.
_LAST_NULL: Final = re.compile(rb'"usage":null(?=(?:,"[a-z_]+":"[^"\\{}\[\]]*+")*\}\n\n\Z)')
_NESTED: Final = re.compile(rb"[{\[\]]|\}.*\}", re.DOTALL)


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
            while (blank := _BLANK_LINES.match(text, begin)) is not None:  # they end no event, and belong to none
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
    return sum(brackets_open(before, 0, len(before))) == 1
