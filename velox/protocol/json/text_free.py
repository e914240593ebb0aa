"""Makes a large JSON body of many short strings small before it is parsed: values that are texts are left out.

Knows: how a JSON string is written (RFC 8259 §7), and that one before a colon is a field's name. Does not know: objects
and arrays (the parser of what remains checks those), or what a field means.

skim() leaves out what is long, and gives up where that is little. To do it for each string of a message's size takes
some microseconds for each, in steps; to parse them takes a third of that, at one go: 200 ms for 60 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

from velox.protocol.json.skim import Check, check_slices

__all__ = ["text_free"]

_SLICE_BYTES: Final = 64 * 1024
_QUOTE_BYTES: Final = 1024 * 1024  # that are looked through for a quote at once
_STRINGS: Final = 128  # between two yields
# A string, and the colon behind it; or so many blanks that there may be one.
_STRING: Final = re.compile(rb'"((?:[^"\\]++|\\.)*+)"([ \t\r\n]*+(?::|\Z))?', re.DOTALL)
_CONTENT: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_COLON: Final = re.compile(rb"[ \t\r\n]*+(?::|\Z)")


def text_free(
    body: bytes | bytearray, check: Check, most_bytes: int, limit_bytes: int
) -> Generator[None, None, bytearray | None]:
    """Return a body without the contents of values that are strings of over `most_bytes`.

    None: over `limit_bytes` would remain.

    check: is given what was left out, with `","` between two of them. Raises what it raises. Yields between slices of
    the work.
    """
    out, taken = bytearray(), list[bytes | bytearray]()
    at = copied = n_strings = n_taken = 0
    while True:
        opening = body.find(b'"', at, at + _QUOTE_BYTES)
        if opening < 0:
            at += _QUOTE_BYTES
            if at >= len(body):
                break
            yield
            continue
        found = _STRING.match(body, opening, opening + _SLICE_BYTES)
        if found is None:
            content = opening + 1
            closing = yield from _content_end(body, content)
            if closing < 0:
                break  # the parser will say so
            at = closing + 1
            if not _COLON.match(body, at, at + _SLICE_BYTES):
                yield from check_slices(body, content, closing, check)
                out += body[copied:content]
                copied = closing
            continue
        at = found.end()
        n_strings += 1
        if found.end(1) - found.start(1) > most_bytes and found[2] is None:
            out += body[copied : found.start(1)]
            copied = found.end(1)
            taken.append(found[1])
            n_taken += len(found[1])
        if n_taken >= _SLICE_BYTES or n_strings >= _STRINGS:
            if taken:
                check(b'","'.join(taken), opening)
                taken.clear()
            n_strings = n_taken = 0
            if len(out) + at - copied > limit_bytes:
                return None
            yield
    if taken:
        check(b'","'.join(taken), at)
    if len(out) + len(body) - copied > limit_bytes:
        return None
    return out + body[copied:]


def _content_end(body: bytes | bytearray, at: int) -> Generator[None, None, int]:
    """Return where a string has its closing quote whose content goes on here; -1: nowhere."""
    while (found := _CONTENT.match(body, at, at + _SLICE_BYTES)) is not None and found.end() > at:
        at = found.end()
        if body[at : at + 1] == b'"':
            return at
        yield
    return -1
