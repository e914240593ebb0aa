"""The items of a long YAML list, if they are written plainly: found without a YAML parser.

Knows: which ways of writing have one meaning that can be seen line by line. Does not know: what a field means. A list
that is written in any other way is not read here: then a YAML parser must, which takes a hundred times as long.

Plain is a list at the first column, whose items are

    - sha256:9f86d0...
    - {name: team-a, key: sha256:9f86d0..., models: [gpt-4o*, "o1"], rpm: 600}
    - name: team-a
      key: sha256:9f86d0...
      models:
        - gpt-4o*

with comments and blank lines between them and at the ends of lines: no anchors, no text over several lines, no escapes
in quotes, no tabs.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["PlainItem", "field_pattern", "plain_items", "scalar_of"]

# A repeated group stands in an atomic one, and is not possessive itself: of such a group CPython before 3.11.5 keeps
# what it began to match (gh-106052).
_TEXT: Final = (
    rb"""(?:(?:[A-Za-z0-9_./]|-(?=[A-Za-z0-9]))(?>(?:[A-Za-z0-9_./*@+=~-]|:(?=[^\s,\]\}]))*)|"[^"\\\n]*+"|'[^'\n]*+')"""
)
_LIST: Final = rb"\[ *+(?>(?:%b *+(?>(?:, *+%b *+)*))?)(?:, *+)?+\]" % (_TEXT, _TEXT)
_FIELD: Final = rb"[a-z_]++: ++(?:%b|%b)" % (_LIST, _TEXT)
_FLOW: Final = rb"\{ *+%b *+(?>(?:, *+%b *+)*)(?:, *+)?+\}" % (_FIELD, _FIELD)
_REST: Final = rb"(?: ++(?:#[^\n]*+)?+)?+(?:\n|\Z)"
_LATER: Final = rb"  (?:%b%b|[a-z_]++:%b(?>(?: {2,6}- %b%b)+))" % (_FIELD, _REST, _REST, _TEXT, _REST)
_ITEM: Final = re.compile(rb"- (?:(?:%b|%b)%b|%b%b(?>(?:%b)*))" % (_FLOW, _TEXT, _REST, _FIELD, _REST, _LATER))
_BETWEEN: Final = re.compile(rb"(?>(?: *+(?:#[^\n]*+)?+\n)*)(?>(?: *+(?:#[^\n]*+)?+\Z)?)")
# A text that YAML takes for nothing.
_NULLS: Final = frozenset({b"null", b"Null", b"NULL"})
_QUOTES: Final = b"\"'"


class PlainItem(NamedTuple):
    """One item. text: with its dash and line ends. line: where it begins, from 1 on."""

    text: bytes
    line: int


def plain_items(content: bytes) -> list[PlainItem] | None:
    """Return the items of a list; None if one of them is not written plainly, or there are none."""
    content = content.replace(b"\r\n", b"\n")
    items: list[PlainItem] = []
    at, line = 0, 1
    end = len(content)
    while True:
        between = _BETWEEN.match(content, at)
        assert between is not None, "it matches nothing, too"
        line += content.count(b"\n", at, between.end())
        at = between.end()
        if at == end:
            return items or None
        item = _ITEM.match(content, at)
        if item is None:
            return None
        items.append(PlainItem(item.group(), line))
        line += content.count(b"\n", at, item.end())
        at = item.end()


def field_pattern(*names: str) -> re.Pattern[bytes]:
    """Return what finds some fields of a plain item without comments. Groups: the field's name, and its text."""
    return re.compile(rb"(?<![a-z_])(%b): ++(%b)" % ("|".join(names).encode(), _TEXT))


def scalar_of(text: bytes) -> str | None:
    """Return what a text of a plain item says; None if that is nothing, or not ASCII."""
    if text[:1] in _QUOTES:
        text = text[1:-1]
    elif text in _NULLS:
        return None
    return text.decode() if text.isascii() else None
