"""Patterns: names in which each `*` stands for any text.

Knows: which names a pattern matches, and whether two patterns overlap. Does not know: what they name.
"""

from __future__ import annotations

__all__ = ["covers", "is_exact", "matches", "overlap"]


def matches(pattern: str, name: str) -> bool:
    """Tell whether a name is `pattern`, in which each `*` stands for any text.

    In time of length times length at worst, whatever a client sends: each part is looked for once, from the left.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *inner, last = rest
    if not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in inner:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end


def is_exact(pattern: str) -> bool:
    """True for a pattern that only one name matches."""
    return "*" not in pattern


def covers(wide: str, narrow: str) -> bool:
    """True when all that `narrow` matches is matched by `wide`.

    A `*` of `narrow` is then a text like any other: a part of `wide` that holds none can't be found across it.
    """
    return matches(wide, narrow)


def overlap(one: str, other: str) -> bool:
    """True when some name is matched by both.

    Where both have a `*`, what stands between their first and last ones can follow each other in one name: only their
    beginnings and their ends can keep them apart.
    """
    if is_exact(one):
        return matches(other, one)
    if is_exact(other):
        return matches(one, other)
    begins = one.partition("*")[0], other.partition("*")[0]
    ends = one.rpartition("*")[2], other.rpartition("*")[2]
    same_begin = begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])
    return same_begin and (ends[0].endswith(ends[1]) or ends[1].endswith(ends[0]))
