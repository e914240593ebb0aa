"""An index of routes: it finds the few that can match a request without looking at the others.

Knows: the conditions of routes. Does not know: whether a candidate really matches: the caller checks that.

Each route is filed under the one of its conditions that the fewest others have: its models or paths, or how their
patterns begin or end, its keys, one of its headers, its tags. A route without conditions, or with patterns that have a
`*` at both ends only, is a candidate for every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from velox.policy.patterns import is_exact
from velox.policy.routes.entries import Match

__all__ = ["RouteIndex", "indexing"]

_Named: TypeAlias = Literal["model", "path"]
_How: TypeAlias = Literal["is", "begins", "ends"]
# What a route can stand under, and the text of it: ("model", "is", "gpt-4o"), ("header", "is", "x-tenant\0acme").
_Place: TypeAlias = tuple[Literal["model", "path", "key", "header", "tag", "any"], _How, str]
_ANY: Final[_Place] = ("any", "is", "")
_PER_STEP: Final = 100


class RouteIndex:
    """The places of routes, each by its number; lower numbers go first.

    matches: of all routes that will be added, to tell what few of them ask for.
    """

    __slots__ = ("_at", "_counts", "_lengths")

    def __init__(self, matches: Iterable[Match]) -> None:
        self._at: Final[dict[_Place, list[int]]] = {}
        # How long the beginnings and ends are that routes stand under: only those are looked up.
        self._lengths: Final[dict[tuple[_Named, _How], list[int]]] = {}
        self._counts: Final = Counter[_Place]()
        self.count(matches)

    def __len__(self) -> int:
        return len({n for at in self._at.values() for n in at})

    def count(self, matches: Iterable[Match]) -> None:
        """Know of these, too: before any route is added."""
        self._counts.update(place for match in matches for choice in _choices(match) for place in choice)

    def add(self, n: int, match: Match) -> None:
        """Put a route in; `n` is higher than any before."""
        choices = [choice for choice in _choices(match) if choice]
        # The fewest others: by the fullest place that the route would stand in.
        best = min(choices, key=lambda places: max(self._counts[place] for place in places), default=[_ANY])
        for place in best:
            self._at.setdefault(place, []).append(n)
            what, how, text = place
            if what in ("model", "path") and how != "is":
                lengths = self._lengths.setdefault((what, how), [])
                if len(text) not in lengths:
                    lengths.append(len(text))
                    lengths.sort()

    def find(
        self,
        models: Iterable[str],
        paths: Iterable[str],
        headers: Iterable[tuple[str, str]],
        keys: Iterable[str],
        tags: Iterable[str],
    ) -> list[int]:
        """Return the numbers of the routes that can match, in order: those that require no other model, path, ..."""
        found = list(self._at.get(_ANY, ()))
        for place in self._asked(models, paths, headers, keys, tags):
            at = self._at.get(place)
            if at is not None:
                found += at
        # What has two tags may have found a route twice.
        return sorted(set(found)) if len(found) > 1 else found

    def _asked(
        self,
        models: Iterable[str],
        paths: Iterable[str],
        headers: Iterable[tuple[str, str]],
        keys: Iterable[str],
        tags: Iterable[str],
    ) -> Iterator[_Place]:
        for model in models:
            yield from self._around("model", model)
        for path in paths:
            yield from self._around("path", path)
        for name, value in headers:
            yield "header", "is", f"{name}\0{value}"
        for key in keys:
            yield "key", "is", key
        for tag in tags:
            yield "tag", "is", tag

    def _around(self, what: _Named, text: str) -> Iterator[_Place]:
        yield what, "is", text
        for length in self._lengths.get((what, "begins"), ()):
            if length > len(text):
                break
            yield what, "begins", text[:length]
        for length in self._lengths.get((what, "ends"), ()):
            if length > len(text):
                break
            yield what, "ends", text[-length:]


def indexing(matches: Sequence[Match]) -> Generator[None, None, RouteIndex]:
    """Make the index of all these, in steps of a millisecond or so: for a loop that others wait for."""
    index = RouteIndex(())
    starts = range(0, len(matches), _PER_STEP)
    for first in starts:
        index.count(matches[first : first + _PER_STEP])
        yield
    for first in starts:
        for n, match in enumerate(matches[first : first + _PER_STEP], first):
            index.add(n, match)
        yield
    return index


def _choices(match: Match) -> list[list[_Place]]:
    """Return the ways to place a route; in each it stands in every place. An empty one is none."""
    headers: list[list[_Place]] = [
        [("header", "is", f"{name}\0{value}")] for name, value in match.headers if is_exact(value)
    ]
    return [
        *_ways("model", match.models),
        *_ways("path", match.paths),
        [("key", "is", key) for key in match.keys],
        [("tag", "is", tag) for tag in match.tags],
        *headers,
    ]


def _ways(what: _Named, patterns: Sequence[str]) -> Iterator[list[_Place]]:
    """Yield how patterns can be placed: by their beginnings, and by their ends if all of them have one."""
    parts = [(pattern, pattern.partition("*")[0], pattern.rpartition("*")[2]) for pattern in patterns]
    if all(begin for _, begin, _ in parts):
        yield [(what, "is", text) if is_exact(text) else (what, "begins", begin) for text, begin, _ in parts]
    if all(end for _, _, end in parts) and not all(map(is_exact, patterns)):
        yield [(what, "is", text) if is_exact(text) else (what, "ends", end) for text, _, end in parts]
