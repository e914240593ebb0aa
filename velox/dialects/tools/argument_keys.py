"""Names of properties in the arguments of a call, in a text of JSON that comes in pieces.

    ArgumentKeys(names).feed(piece)    the piece, with other names for the properties of the outermost object
    with_keys(arguments, names)        the same for arguments that are whole

All else stays as it is, byte for byte: numbers, space, what is inside of the values. A name waits for its end; what is
no JSON passes.

Knows: RFC 8259 §4, §7. Does not know: which names a target takes (tool_fit.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from velox.dialects.canonical.model import JsonValue

__all__ = ["ArgumentKeys", "with_keys"]

_IN_STRING: Final = re.compile(r'["\\]')
_OUTSIDE: Final = re.compile(r'["{}\[\],]')
# Of a name that is waited for: each character of one that is known may be an escape of six, or of twelve.
_LONGEST_KEY: Final = 16 * 1024


class ArgumentKeys:
    """Renames the properties of one call. names: as they come -> as they go on."""

    __slots__ = ("_depth", "_held", "_is_escaped", "_is_key_next", "_is_object", "_is_string", "_n_held", "_names")

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names: Final = names
        self._depth = 0
        self._is_object = False  # the outermost value is one
        self._is_key_next = False
        self._is_string = False
        self._is_escaped = False  # the next character is part of an escape
        self._held: list[str] | None = None  # of a name, after its first quote
        self._n_held = 0

    def __repr__(self) -> str:
        return f"<ArgumentKeys {len(self._names)} names>"

    def feed(self, text: str) -> str:
        """Take a piece; return what is known of it."""
        out: list[str] = []
        at = 0
        while at < len(text):
            at = self._in_string(text, at, out) if self._is_string else self._outside(text, at, out)
        return "".join(out)

    def end(self) -> str:
        """Nothing more comes: return what was held."""
        if self._held is None:
            return ""
        rest, self._held = '"' + "".join(self._held), None
        return rest

    def _in_string(self, text: str, at: int, out: list[str]) -> int:
        """Read on in a string; return where it went on to."""
        to = out if self._held is None else self._held
        if self._is_escaped:
            self._is_escaped = False
            to.append(text[at])
            return at + 1
        found = _IN_STRING.search(text, at)
        end = len(text) if found is None else found.start()
        to.append(text[at:end])
        self._n_held += end - at
        if found is None:
            pass
        elif found[0] == "\\":
            to.append("\\")
            self._is_escaped = True
        else:
            self._is_string = False
            if self._held is None:
                out.append('"')
            else:
                key, self._held = '"' + "".join(self._held) + '"', None
                out.append(self._renamed(key))
        if self._held is not None and self._n_held > _LONGEST_KEY:
            out.append(self.end())  # no name that is known
        return end + (found is not None)

    def _outside(self, text: str, at: int, out: list[str]) -> int:
        found = _OUTSIDE.search(text, at)
        if found is None:
            out.append(text[at:])
            return len(text)
        end = found.end()
        sign = found[0]
        if sign == '"':
            self._is_string = True
            if self._is_key_next and self._depth == 1:
                self._held, self._n_held, self._is_key_next = [], 0, False
                end -= 1
            out.append(text[at:end])
            return found.end()
        out.append(text[at:end])
        if sign in "{[":
            self._depth += 1
            if self._depth == 1:
                self._is_object = self._is_key_next = sign == "{"
        elif sign in "}]":
            self._depth -= 1
        elif self._depth == 1:
            self._is_key_next = self._is_object
        return end

    def _renamed(self, key: str) -> str:
        try:
            name = self._names.get(json.loads(key))
        except ValueError:
            return key
        return key if name is None else json.dumps(name, ensure_ascii=False)


def with_keys(arguments: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """Return the arguments of a call with other names for their properties."""
    keys = ArgumentKeys(names)
    text = arguments.decode("utf-8", "surrogatepass")
    return (keys.feed(text) + keys.end()).encode("utf-8", "surrogatepass")
