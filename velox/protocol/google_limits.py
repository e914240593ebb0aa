"""What a client of Gemini's API lets its answer be at most: of a body that is not read otherwise.

Knows: two names, as JSON and as Google's libraries spell them. Does not know: what the rest of a body says.

Inside a JSON string quotes are escaped, so what is found is a member's name: of the settings of the answer, or of
arguments that a model has made, which then count as well, for the largest number does.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from velox.types import BodyFields

__all__ = ["with_google_limits"]

_LONGEST: Final = (b'"maxOutputTokens"', b'"max_output_tokens"')
_ANSWERS: Final = (b'"candidateCount"', b'"candidate_count"')
# Google reads 1e5 as a whole number, too (ProtoJSON), with and without quotes.
_NUMBER: Final = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*"?([0-9]{1,12}(?:\.[0-9]{1,12})?(?:[eE]\+?[0-9]{1,2})?)')
# Of a longer body only its begin and its end are searched, as others wait meanwhile: what is long is in its middle.
_WHOLE_BYTES: Final = 128 * 1024
_END_BYTES: Final = 64 * 1024
# Who names it more often is up to something.
_MOST_NAMES: Final = 64
_MOST: Final = 10**12


def with_google_limits(fields: BodyFields, body: bytes | bytearray) -> BodyFields:
    """Return the fields of a request with the length of its answer, and the number of answers, that its body names."""
    parts = (body,) if len(body) <= _WHOLE_BYTES else (body[:_END_BYTES], body[-_END_BYTES:])
    longest, answers = _largest(parts, _LONGEST), _largest(parts, _ANSWERS)
    if longest is None and answers is None:
        return fields
    return msgspec.structs.replace(fields, max_tokens=longest, n=fields.n if answers is None else answers)


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
