"""Fuzz: an event stream whose usage is counted, and taken out again where the client did not ask for it.

Input: the bytes of a stream. Whatever they are, and however they are cut: the same tokens are read, the same events are
counted, the same bytes go on. A reader that follows the standard finds the same events in them, but for the one with
the usage and the members `usage` that are null; and after a cut, none that is only half there.
"""

from __future__ import annotations

import json
import re

from tests.fuzz.event_stream import events_of
from tests.fuzz.wires import Pieces, cuttings
from velox.protocol.reply_body import BOM
from velox.protocol.usage.reader import StreamUsage
from velox.protocol.usage.strip import UsageStrip

__all__ = ["run"]

_NULL = re.compile(rb'"usage"[ \t]*:[ \t]*null')


class _Object(list[tuple[str, object]]):
    """A JSON object with every member, of equal names too."""


def run(data: bytes) -> None:
    """Read and change a stream. Raises AssertionError, or what a bug raises."""
    if not data:
        return
    whole = _pass([data])
    for pieces in cuttings(data):
        assert _pass(pieces) == whole, "another result when the bytes are cut"
    (tokens, n_lines), out, held = whole
    assert all(count is None or 0 <= count <= 3_000_000_000 for count in tokens), "counts that are none"
    if b"\r" not in data.replace(b"\r\n", b"\n"):
        assert n_lines == sum(line.startswith(b"data:") for line in _lines(data.removeprefix(BOM))), (
            "another number of events"
        )
    if b'"usage"' not in data:
        assert tokens == (None, None) or b"\\u00" in data, "tokens from nowhere"
        assert out + held == data, "changed without a reason"
    after = events_of(out + held)
    for event in events_of(data):
        if after and _is_the_same(event, after[0]):
            del after[0]
        else:
            assert _is_only_usage(event), "an event is missing, or was changed"
    assert not after, "an event too many"
    if held:
        assert events_of(out + b"\n\n") == events_of(out), "half an event went out"


def _pass(pieces: Pieces) -> tuple[tuple[tuple[int | None, int | None], int], bytes, bytes]:
    """Return what was read, the bytes that went out before the end, and those that went with it."""
    reader, strip = StreamUsage(), UsageStrip()
    out = b""
    for piece in pieces:
        reader.feed(piece)
        out += strip.feed(piece, False)
    was_held = strip.holds
    rest = strip.feed(b"", True)
    assert bool(rest) == was_held, "holds nothing, and something comes at the end"
    return (reader.tokens(), reader.n_events), out, rest


def _lines(data: bytes) -> list[bytes]:
    return data.replace(b"\r\n", b"\n").split(b"\n")


def _is_the_same(event: bytes, sent: bytes) -> bool:
    """True when nothing is missing but members `usage` of the object itself that are null."""
    if event == sent:
        return True
    members, left = _members(event), _members(sent)
    if members is None or left is None:
        # No JSON: what looks like such a member is gone all the same.
        return _bare(event) == _bare(sent)
    return [member for member in members if member != ("usage", "null")] == left


def _bare(event: bytes) -> bytes:
    before = b""
    while event != before:  # what is left may look like one again, also once spaces and commas are gone
        before = event
        event = _NULL.sub(b"", event).translate(None, b", \t")
    return event


def _is_only_usage(event: bytes) -> bool:
    members = dict(_members(event) or ())
    return members.get("choices") == "[]" and members.get("usage", "").startswith("{")


def _members(event: bytes) -> list[tuple[str, str]] | None:
    """Return the members of an object, in order, also of equal names; their values are texts again. None: no object."""
    try:
        found = json.loads(event.decode("utf-8", "surrogateescape"), object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return None
    return [(name, _text(value)) for name, value in found] if isinstance(found, _Object) else None


def _text(value: object) -> str:
    if isinstance(value, _Object):
        return "{" + ",".join(f"{name!r}:{_text(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
