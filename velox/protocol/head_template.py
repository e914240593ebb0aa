"""The fields of heads of one shape as they are written again and again, with places for the values that are new.

Knows: which bytes stay. Does not know: which fields are chosen, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.heads import ExtraFields, Headers, ShapeField
from velox.protocol.heads.memory import picker
from velox.protocol.http1.write import check_unsplit, field_lines
from velox.protocol.http2.engine import Mark, Markable, guarded

__all__ = ["HeadTemplate", "TemplateBeside"]

# As numbers, as in http1_write.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0


class HeadTemplate:
    """Fields chosen from a shape, and others beside them.

    chosen: with None as the value of those that are volatile; these in their order, all or none of a name. shape: all
    fields of the shape, which tell where the values of a head belong.
    """

    __slots__ = ("_fields", "_mark", "_marked", "_parts", "_pick", "_places")

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
        self._mark: Mark | None = None
        self._marked: Markable = self._fields  # with that mark on secrets
        # The lines: what stays, with the values that are new in between. Not made until fields are asked for.
        self._parts: list[bytes] = []
        found = [n for _, n, _ in places]
        # Takes the values that pass; None: all of them, in their order.
        self._pick: Final = None if found == list(range(len(volatile))) else picker(found)

    def __repr__(self) -> str:
        return f"<HeadTemplate of {len(self._fields)} fields, {len(self._places)} of them volatile>"

    def headers(self, values: Sequence[bytes], mark: Mark | None = None) -> Markable:
        """Return the fields of one head. Nobody changes them. Raises ValueError as field_lines() does.

        mark: is put on secrets, and on the values of this head: in a table of HPACK they would push out what stays.
        """
        if not self._parts:
            self._parts = self._make_parts()  # which looks at the values that stay
        if mark is not self._mark:
            self._mark = mark
            self._marked = self._fields if mark is None else guarded(self._fields, mark)
        if not self._places:
            return self._marked
        fields = self._marked.copy()
        check_unsplit(b"".join(values if self._pick is None else self._pick(values)))
        for at, n, name in self._places:
            field = (name, values[n])
            fields[at] = field if mark is None else mark(field)
        return fields

    def lines(self, values: Sequence[bytes]) -> bytes:
        """Return the fields of one head as lines, each with its CRLF. Raises ValueError as field_lines() does."""
        if not self._parts:
            self._parts = self._make_parts()
        passed = values if self._pick is None else self._pick(values)
        joined = b"".join(passed)
        if _LF in joined or _CR in joined or _NUL in joined:  # that the reader has looked at them is not relied on
            check_unsplit(joined)
        parts = self._parts.copy()
        parts[1::2] = passed
        return b"".join(parts)

    def _make_parts(self) -> list[bytes]:
        """Return the lines, cut where values belong. Raises ValueError if anything else in them would split them."""
        parts = [b""]
        volatile = {at for at, _, _ in self._places}
        for at, field in enumerate(self._fields):
            line = field_lines([field])
            if at in volatile:
                parts[-1] += line[:-2]  # without the end of the line, as its value is still empty
                parts += [b"", b"\r\n"]
            else:
                parts[-1] += line
        return parts


class TemplateBeside:
    """A template's fields, and others of one head behind them."""

    __slots__ = ("_extras", "_template")

    def __init__(self, template: HeadTemplate, extras: ExtraFields) -> None:
        self._template: Final = template
        self._extras: Final = extras

    def __repr__(self) -> str:
        return f"<TemplateBeside {self._template!r} and {self._extras!r}>"

    def headers(self, values: Sequence[bytes], mark: Mark | None = None) -> Markable:
        """As HeadTemplate.headers()."""
        extras = self._extras.headers
        field_lines(extras)  # looks at them
        more = extras if mark is None else [mark(field) for field in extras]
        return [*self._template.headers(values, mark), *more]

    def lines(self, values: Sequence[bytes]) -> bytes:
        """As HeadTemplate.lines()."""
        lines, n_lines = self._extras.lines, len(self._extras.names)
        # As with values: that the reader has looked at them is not relied on.
        if lines.count(b"\n") != n_lines or lines.count(b"\r") != n_lines or _NUL in lines:
            raise ValueError("an extra field of this head holds CR, LF or NUL")
        return self._template.lines(values) + lines
