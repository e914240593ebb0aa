"""Bodies of requests in one spelling: two have the same only if every upstream must take them for the same request.

Equal:    white space between tokens; escapes of the same text; the order of the fields of the body itself, which every
          API reads by their names.
Unequal:  everything else: spellings of a number (1, 1.0, 1e0), the order inside of other objects (a schema is a part
          of the prompt in its own order), false, null and what is left out.
Neither:  a name that stands twice in an object, since parsers differ about which one counts; text that is no JSON
          (RFC 8259) or no UTF-8; lone surrogates; integers of over 64 bits, and -0; a body that is no object, or of
          thousands of objects and fractions. Such a body has no canonical form.

Knows: JSON. Does not know: what a field means (requests.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

import orjson

__all__ = ["CanonicalBody", "NotCanonicalError", "Number", "read_canonical"]

# With these in place of what they say: a file that an upstream keeps, or a page that it fetches, may change meanwhile.
_REFERENCES: Final = frozenset(
    {
        *("file_id", "file_ids", "file_uri", "fileUri", "file_url", "vector_store_ids"),
        *("image_url", "url", "uri", "gcs_uri", "gcsUri"),
    }
)
# Items of a conversation that the upstream keeps: they have only its id.
_KEPT_ITEM: Final = "item_reference"
_INLINE: Final = "data:"
# What Python calls back for takes a microsecond or two each, and a worker does nothing else meanwhile.
MOST_OBJECTS: Final = 1000
_MOST_FRACTIONS: Final = 200
# Some readers take it for 0, some for a fraction.
_MINUS_ZERO: Final = re.compile(rb"-0[\s,}\]]")


class NotCanonicalError(ValueError):
    """The body has no canonical form: what it is equal to is not sure."""


class Number(str):
    """A number with a fraction or an exponent, as it is spelled."""

    __slots__ = ()


class CanonicalBody:
    """A body that was read. fields: in the order of the body; fractions are Number.

    refers: something in it stands for what is kept or fetched elsewhere, and may change.
    """

    __slots__ = ("fields", "refers")

    def __init__(self, fields: Mapping[str, object], *, refers: bool) -> None:
        self.fields: Final = fields
        self.refers: Final = refers

    def text(self, without: frozenset[str]) -> bytes:
        """Return its canonical form, without some of its fields. Raises NotCanonicalError."""
        kept = {name: self.fields[name] for name in sorted(self.fields) if name not in without}
        try:
            return orjson.dumps(kept, _spelled, orjson.OPT_PASSTHROUGH_SUBCLASS)
        except TypeError as exc:  # a lone surrogate, or hundreds of levels
            raise NotCanonicalError(str(exc)) from exc


class _Values:
    """Looks at objects and fractions while they are read."""

    __slots__ = ("_most_objects", "_n_fractions", "_n_objects", "refers")

    def __init__(self, most_objects: int) -> None:
        self.refers = False
        self._most_objects: Final = most_objects
        self._n_objects = 0
        self._n_fractions = 0

    def fraction(self, text: str) -> Number:
        self._n_fractions += 1
        if self._n_fractions > _MOST_FRACTIONS:
            raise NotCanonicalError(f"the body has over {_MOST_FRACTIONS} fractions")
        return Number(text)

    def object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        self._n_objects += 1
        if self._n_objects > self._most_objects:
            raise NotCanonicalError(f"the body has over {self._most_objects} objects")
        found = dict(pairs)
        if len(found) != len(pairs):
            raise NotCanonicalError("a name stands twice in an object")
        if not self.refers:
            self.refers = _is_reference(found)
        return found


def read_canonical(body: bytes | bytearray, most_objects: int = MOST_OBJECTS) -> CanonicalBody:
    """Read a body. Raises NotCanonicalError. Takes some 10 microseconds a kilobyte: bound its length before."""
    values = _Values(most_objects)
    if _MINUS_ZERO.search(body) is not None:  # in a text, too: then it is kept from the cache in vain
        raise NotCanonicalError("-0 is not the same everywhere")
    try:
        found = json.loads(
            str(body, "utf-8"),
            object_pairs_hook=values.object,
            parse_float=values.fraction,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError) as exc:
        raise NotCanonicalError(str(exc)) from exc
    if not isinstance(found, dict):
        raise NotCanonicalError("the body is no object")
    return CanonicalBody(found, refers=values.refers)


def _spelled(number: Number) -> orjson.Fragment:
    return orjson.Fragment(str(number))  # of exactly this type


def _refuse(constant: str) -> NoReturn:
    raise NotCanonicalError(f"{constant} is no JSON")


def _is_reference(found: dict[str, object]) -> bool:
    """Say whether an object stands for something elsewhere. That a model spoke before is told by an id, too."""
    if not _REFERENCES.isdisjoint(found) and any(_refers(found[name]) for name in _REFERENCES & found.keys()):
        return True
    spoken = found.get("audio")
    return found.get("type") == _KEPT_ITEM or (isinstance(spoken, dict) and "id" in spoken)


def _refers(value: object) -> bool:
    """Say whether a value stands for something elsewhere: a text that is no data, or a list of texts.

    In a schema, under the same name, is an object.
    """
    if isinstance(value, str):
        return not value.startswith(_INLINE)
    return isinstance(value, list) and any(isinstance(each, str) for each in value)
