"""The fields of heads of one shape as they are written again and again, with places for the values that are new.

Knows: which bytes stay. Does not know: which fields are chosen, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.protocol.http1_write import field_lines
from velox.types import Headers, ShapeField

__all__ = ["HeadTemplate"]


class HeadTemplate:
    """Fields chosen from a shape, and others beside them.

    chosen: with None as the value of those that are volatile. shape: all fields of the shape, which tell where the
    values of a head belong. Raises ValueError as field_lines() does.
    """

    __slots__ = ("_fields", "_lines", "_n_lines", "_places", "_texts")

    def __init__(self, chosen: Sequence[ShapeField], shape: Sequence[ShapeField]) -> None:
        volatile = [name for name, value in shape if value is None]
        fields: Headers = []
        texts: list[bytes] = [b""]
        # Of each value that passes: where it is among the values, the fields and the texts, and its name.
        places: list[tuple[int, int, int, bytes]] = []
        for name, value in chosen:
            if value is None:
                texts[-1] += name + b": "
                places.append((volatile.index(name), len(fields), len(texts), name))
                texts += [b"", b"\r\n"]
            else:
                texts[-1] += field_lines([(name, value)])
            fields.append((name, value or b""))
        self._fields: Final = fields
        self._texts: Final = texts
        self._places: Final = tuple(places)
        self._n_lines: Final = len(fields)
        self._lines: Final = b"".join(texts)

    def __repr__(self) -> str:
        return f"<HeadTemplate of {self._n_lines} fields, {len(self._places)} of them volatile>"

    def headers(self, values: Sequence[bytes]) -> Headers:
        """Return the fields of one head. Nobody changes them."""
        if not self._places:
            return self._fields
        fields = self._fields.copy()
        for of_values, of_fields, _, name in self._places:
            fields[of_fields] = (name, values[of_values])
        return fields

    def lines(self, values: Sequence[bytes]) -> bytes:
        """Return the fields of one head as lines, each with its CRLF. Raises ValueError as field_lines() does."""
        if not self._places:
            return self._lines
        texts = self._texts.copy()
        for of_values, _, of_texts, _ in self._places:
            texts[of_texts] = values[of_values]
        lines = b"".join(texts)
        # As field_lines() does: that the reader has looked at the values is not relied on.
        if lines.count(b"\n") != self._n_lines or lines.count(b"\r") != self._n_lines or b"\0" in lines:
            raise ValueError("a field of this head holds CR, LF or NUL")
        return lines
