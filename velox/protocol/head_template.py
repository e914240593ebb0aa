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

    chosen: with None as the value of those that are volatile; these in their order, all or none of a name. shape: all
    fields of the shape, which tell where the values of a head belong.
    """

    __slots__ = ("_fields", "_places", "_texts")

    def __init__(self, chosen: Sequence[ShapeField], shape: Sequence[ShapeField]) -> None:
        volatile = [name for name, value in shape if value is None]
        n_found = 0
        # Of each value that passes: where it is among the fields and the values.
        places: list[tuple[int, int, bytes]] = []
        for at, (name, value) in enumerate(chosen):
            if value is None:
                n_found = volatile.index(name, n_found) + 1
                places.append((at, n_found - 1, name))
        self._places: Final = tuple(places)
        self._fields: Final[Headers] = [(name, value or b"") for name, value in chosen]
        # The lines, cut where a value belongs; not made until they are asked for.
        self._texts: list[bytes] | None = None

    def __repr__(self) -> str:
        return f"<HeadTemplate of {len(self._fields)} fields, {len(self._places)} of them volatile>"

    def headers(self, values: Sequence[bytes]) -> Headers:
        """Return the fields of one head. Nobody changes them."""
        if not self._places:
            return self._fields
        fields = self._fields.copy()
        for at, n, name in self._places:
            fields[at] = (name, values[n])
        return fields

    def lines(self, values: Sequence[bytes]) -> bytes:
        """Return the fields of one head as lines, each with its CRLF. Raises ValueError as field_lines() does."""
        texts = self._texts or self._cut()
        if not self._places:
            return texts[0]
        texts = texts.copy()
        for n, (_, of_values, _) in enumerate(self._places):
            texts[2 * n + 1] = values[of_values]
        lines = b"".join(texts)
        # As field_lines() does: that the reader has looked at the values is not relied on.
        n_lines = len(self._fields)
        if lines.count(b"\n") != n_lines or lines.count(b"\r") != n_lines or b"\0" in lines:
            raise ValueError("a field of this head holds CR, LF or NUL")
        return lines

    def _cut(self) -> list[bytes]:
        volatile = {at for at, _, _ in self._places}
        texts = [b""]
        for at, field in enumerate(self._fields):
            if at in volatile:
                texts[-1] += field[0] + b": "
                texts += [b"", b"\r\n"]
            else:
                texts[-1] += field_lines([field])
        self._texts = texts
        return texts
