"""What a client of Gemini's API lets its answer be at most: of a body that is not read otherwise.

Knows: two names, as JSON and as Google's libraries spell them. Does not know: what the rest of a body says.

Inside a JSON string quotes are escaped, so what is found is a member's name: of the settings of the answer, or of
arguments that a model has made, which then count as well, for the largest number does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import simdjson

from velox.protocol.json.skim import skim
from velox.protocol.json.value_count import MOST_VALUES, has_over_in_steps
from velox.protocol.named_models import folded
from velox.types import BodyFields

__all__ = ["with_google_limits"]

_LONGEST: Final = (b'"maxOutputTokens"', b'"max_output_tokens"')
_ANSWERS: Final = (b'"candidateCount"', b'"candidate_count"')
_ESCAPE: Final = b"\\u"
# Google reads 1e5 as a whole number, too (ProtoJSON), with and without quotes.
_NUMBER: Final = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*"?([0-9]{1,12}(?:\.[0-9]{1,12})?(?:[eE]\+?[0-9]{1,2})?)')
# A longer body is parsed; of one that can't be, begin and end are searched, as others wait meanwhile.
_WHOLE_BYTES: Final = 128 * 1024
_END_BYTES: Final = 64 * 1024
# Who names it more often is up to something.
_MOST_NAMES: Final = 64
_MOST: Final = 10**12
# The same by their folded names, inside of the settings.
_CONFIG: Final = "generationconfig"
_TOKENS: Final = "maxoutputtokens"
_COUNT: Final = "candidatecount"
_BY_NAME: Final[Mapping[str, tuple[bytes, bytes]]] = MappingProxyType({_TOKENS: _LONGEST, _COUNT: _ANSWERS})
_LARGE_BYTES: Final = 1024 * 1024  # as in body.py
# Of one object; each takes a microsecond in which no other request moves. Those of clients have ten.
_MOST_FIELDS: Final = 1000
_MOST_PARSED_BYTES: Final = 2 * 1024 * 1024  # as in body.py
_LONGEST_NAME: Final = 64


def with_google_limits(fields: BodyFields, body: bytes | bytearray) -> Generator[None, None, BodyFields]:
    """Return the fields of a request with the length of its answer, and the number of answers, that its body names.

    Yields between slices of the work of a large body. A body that is searched must not hide what is looked for: one
    with escapes, and a long one, are parsed. What a parser refuses, and may hide it, is taken for the longest; so is
    what has too many values to be parsed at once.
    """
    if len(body) <= _WHOLE_BYTES and _ESCAPE not in body:
        longest, answers = _largest((body,), _LONGEST), _largest((body,), _ANSWERS)
    else:
        data = body
        if len(body) >= _LARGE_BYTES:
            data = (yield from skim(body, _passes)).data
        is_crowded = len(data) > _MOST_PARSED_BYTES or (
            len(data) >= _LARGE_BYTES and (yield from has_over_in_steps(data, MOST_VALUES))
        )
        found = {_TOKENS: _MOST, _COUNT: _MOST} if is_crowded else _parsed(data)
        if found is None:
            is_hidden = yield from _has_escape(body)
            found = {name: _MOST if is_hidden else _largest(_ends(body), names) for name, names in _BY_NAME.items()}
        longest, answers = found.get(_TOKENS), found.get(_COUNT)
    if longest is None and answers is None:
        return fields
    return msgspec.structs.replace(fields, max_tokens=longest, n=fields.n if answers is None else answers)


def _has_escape(body: bytes | bytearray) -> Generator[None, None, bool]:
    """Look in slices: a search for two bytes takes up to a millisecond for a megabyte."""
    for at in range(0, len(body), _LARGE_BYTES):
        if body.find(_ESCAPE, at, at + _LARGE_BYTES + 1) >= 0:
            return True
        yield
    return False


def _ends(body: bytes | bytearray) -> tuple[bytes | bytearray, ...]:
    return (body,) if len(body) <= _WHOLE_BYTES else (body[:_END_BYTES], body[-_END_BYTES:])


def _passes(_data: bytes, _offset: int) -> None:
    """Check nothing: what a text says is not looked at."""


def _parsed(data: bytes | bytearray) -> dict[str, int | None] | None:
    """Return the number of each name in the settings of the answer; None: it is no strict JSON.

    Of one that is there twice, or among too many others, the largest there may be: servers take the last one, and the
    parser gives the first.
    """
    try:
        document = simdjson.Parser().parse(data)
        if type(document) is not simdjson.Object:
            return {}
        names, is_clear = _named(document, (_CONFIG,))
        config = document[names[0]] if names else None
        if type(config) is not simdjson.Object:
            return {} if is_clear else {_TOKENS: _MOST, _COUNT: _MOST}
        inner, is_clear_inside = _named(config, _BY_NAME)
        if not (is_clear and is_clear_inside):
            return {_TOKENS: _MOST, _COUNT: _MOST}
        return {folded(name): _count(config[name]) for name in inner}
    except (ValueError, RuntimeError, KeyError):
        return None


def _named(document: Iterable[str], wanted: Collection[str]) -> tuple[list[str], bool]:
    """Return the fields of these folded names, and whether each is there once among not too many."""
    found: list[str] = []
    for n, name in enumerate(document):
        if n > _MOST_FIELDS:
            return found, False
        if len(name) <= _LONGEST_NAME and folded(name) in wanted:
            found.append(name)
    return found, len({folded(name) for name in found}) == len(found)


def _count(value: object) -> int | None:
    """Return a whole number as Google reads it (ProtoJSON), with and without quotes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return max(0, min(math.ceil(float(value)), _MOST))
    except (ValueError, OverflowError):
        return _MOST if isinstance(value, float) else None


def _largest(parts: tuple[bytes | bytearray, ...], names: tuple[bytes, bytes]) -> int | None:
    """Return the largest number that a member of such a name has; None: there is none."""
    largest: int | None = None
    n_left = _MOST_NAMES
    for part in parts:
        for name in names:
            at = part.find(name)  # a regular expression takes ten times as long to find it
            while at >= 0:
                n_left -= 1
                if n_left < 0:
                    return _MOST
                found = _NUMBER.match(part, at + len(name))
                if found is not None:
                    largest = max(min(int(float(found[1])), _MOST), largest or 0)
                at = part.find(name, at + len(name))
    return largest
