"""Which route a request takes: the first one that is for its model, path, headers, key and tags.

Knows: the routes, and how a request is held against what they ask for. Does not know: where a request came from, or
which upstream of a route is chosen. Nothing is kept from one request to the next: what can be, the caller keeps by
what the routes look at (`RouteTable.header_names`).

Of 10,000 routes that ask for different models, keys, headers or tags, a few are looked at (routes/index.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from velox.heads import Headers
from velox.policy.patterns import covers, matches, overlap
from velox.policy.routes.entries import Match, RouteEntry, Target, UpstreamEntry, asked_model
from velox.policy.routes.index import RouteIndex

__all__ = ["TAG_HEADERS", "Explanation", "Passed", "RouteTable", "shadowed", "tag_headers", "usable"]

# A client's tags, commas between them, by either name, on any number of lines; and by the name that clients of LiteLLM
# use, for gateways that read that, too.
TAG_HEADERS: Final = frozenset({b"x-velox-tag", b"x-velox-tags"})
_LITELLMS: Final = b"x-litellm-tags"

# Pairs of routes that are compared: about two seconds' work. 10,000 usual routes need a few per route.
_MOST_PAIRS: Final = 500_000

_Field: TypeAlias = Literal["models", "paths", "headers", "keys", "tags"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What of a request routes look at. model: None if it names none. key: the caller's name, "" without keys."""

    model: str | None
    path: str
    headers: Mapping[str, str]
    key: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """A route that a request did not take, and the first thing of it that was not met.

    wanted, was: what the route asks for, and what the request has of it, as text.
    """

    route: RouteEntry
    field: _Field
    wanted: str
    was: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which route a request takes, and why none before it. route: None if it takes none.

    targets, fallbacks: what can be chosen first, and what follows in order; each has the model.
    unusable: those of the route that have not.
    """

    route: RouteEntry | None
    passed: tuple[Passed, ...]
    targets: tuple[Target, ...] = ()
    fallbacks: tuple[Target, ...] = ()
    unusable: tuple[Target, ...] = ()


class RouteTable:
    """The routes of one gateway. index: of all of them, where it was made already. is_litellms: it reads their tags."""

    __slots__ = (
        "_index",
        "_routes",
        "_tag_headers",
        "_wanted",
        "asks_key",
        "asks_path",
        "has_cache",
        "has_joins",
        "header_names",
        "only",
        "renames",
    )

    def __init__(
        self, routes: Sequence[RouteEntry], index: RouteIndex | None = None, *, is_litellms: bool = False
    ) -> None:
        self._routes: Final = tuple(routes)
        # No other route is ever taken: that of the gateway of one upstream.
        self.only: Final = routes[0] if routes and not routes[0].match else None
        if index is None:
            index = RouteIndex(route.match for route in routes)
            for n, route in enumerate(routes):
                index.add(n, route.match)
        self._index: Final = index
        self._wanted: Final = {name.encode("ascii"): name for route in routes for name, _ in route.match.headers}
        has_tags = any(route.match.tags for route in routes)
        self._tag_headers: Final = tag_headers(is_litellms=is_litellms) if has_tags else frozenset()
        # Whether the model of a request may be called otherwise where it goes.
        self.renames: Final = any(target.naming is not None for route in routes for target in route.to)
        self.has_cache: Final = any(route.cache is not None for route in routes)
        self.has_joins: Final = any(route.join is not None for route in routes)
        # Whether a choice depends on the path, and on the caller's name.
        self.asks_path: Final = self.only is None and any(route.match.paths for route in routes)
        self.asks_key: Final = self.only is None and any(route.match.keys for route in routes)
        # What else but the model it depends on; in lower case.
        self.header_names: Final = frozenset(self._wanted) | self._tag_headers

    def __len__(self) -> int:
        return len(self._routes)

    def __repr__(self) -> str:
        return f"<RouteTable {len(self._routes)} routes>"

    @property
    def routes(self) -> Sequence[RouteEntry]:
        """Return all of them, in their order."""
        return self._routes

    def match(self, model: str | None, path: bytes, headers: Headers, key: str = "") -> RouteEntry | None:
        """Return the first route that is for a request, None if none is.

        model: as the client named it, None if it named none: then no route with `models` is for it. path: without
        query. headers: all of the request's. key: the caller's name, "" where no key is asked for.
        """
        if self.only is not None:
            return self.only
        asked = self._asked(model, path, headers, key)
        for n in self._candidates(asked):
            if _unmet(self._routes[n].match, asked) is None:
                return self._routes[n]
        return None

    def explain(
        self,
        model: str | None,
        path: bytes,
        headers: Headers,
        key: str = "",
        *,
        upstreams: Iterable[UpstreamEntry] = (),
    ) -> Explanation:
        """Say which route that is, why none before it, and which of its upstreams have the model. Looks at all."""
        asked = self._asked(model, path, headers, key)
        by_name = {upstream.name: upstream for upstream in upstreams}
        passed: list[Passed] = []
        for route in self._routes:
            field = _unmet(route.match, asked)
            if field is not None:
                passed.append(_passed(route, field, asked))
                continue
            everything = (*route.to, *route.fallback)
            found = usable(everything, by_name, model)
            return Explanation(
                route,
                tuple(passed),
                tuple(target for target in route.to if target in found),
                tuple(target for target in route.fallback if target in found),
                tuple(target for target in everything if target not in found),
            )
        return Explanation(None, tuple(passed))

    def reachable(self, below: str, headers: Headers, key: str = "") -> tuple[RouteEntry, ...]:
        """Return the routes that a client can take, in order: whatever its model, by a path that matches `below`.

        headers, key: as for match(). Looks at all.
        """
        asked = self._asked(None, b"", headers, key)
        return tuple(
            route
            for route in self._routes
            if _unmet_by_client(route.match, asked) is None
            and (not route.match.paths or any(overlap(pattern, below) for pattern in route.match.paths))
        )

    def n_candidates(self, model: str | None, path: bytes, headers: Headers, key: str = "") -> int:
        """Return how many routes are looked at for such a request, at most."""
        return len(self._candidates(self._asked(model, path, headers, key)))

    def _candidates(self, asked: _Asked) -> list[int]:
        models = () if asked.model is None else (asked.model,)
        return self._index.find(models, (asked.path,), asked.headers.items(), (asked.key,), asked.tags)

    def _asked(self, model: str | None, path: bytes, headers: Headers, key: str) -> _Asked:
        found: dict[str, str] = {}
        tags: tuple[str, ...] = ()
        if self.header_names:
            for name, value in headers:
                if name in self._tag_headers:
                    tags += tuple(tag.strip() for tag in value.decode("latin-1").split(","))
                elif (wanted := self._wanted.get(name)) is not None:
                    text = value.decode("latin-1")
                    # RFC 9110 §5.3: a field that comes twice has both values. A second one can't be slipped in so.
                    found[wanted] = f"{found[wanted]}, {text}" if wanted in found else text
        return _Asked(model, path.decode("latin-1"), found, key, tags)


def tag_headers(*, is_litellms: bool) -> frozenset[bytes]:
    """Return the names of the headers that have a request's tags. is_litellms: LiteLLM's are read."""
    return TAG_HEADERS | {_LITELLMS} if is_litellms else TAG_HEADERS


def usable(targets: Iterable[Target], upstreams: Mapping[str, UpstreamEntry], model: str | None) -> tuple[Target, ...]:
    """Return the targets whose upstreams have the model that they are asked for, in order.

    model: as the client named it; a target may name another one. None: it named none, and every upstream will do.
    An upstream that is not there has nothing.
    """
    found = []
    for target in targets:
        upstream = upstreams.get(target.upstream)
        asked = asked_model(target.naming, model)
        if upstream is not None and (asked is None or upstream.has_model(asked)):
            found.append(target)
    return tuple(found)


def shadowed(routes: Sequence[RouteEntry]) -> Iterator[tuple[RouteEntry, RouteEntry]]:
    """Yield each route that no request reaches, with the earlier one that takes all its requests.

    Where very many pairs would have to be compared, some of such routes are not found.
    """
    n_left = _MOST_PAIRS
    index = RouteIndex(route.match for route in routes)
    for n, route in enumerate(routes):
        match = route.match
        found = index.find(match.models[:1], match.paths[:1], match.headers, match.keys[:1], match.tags[:1])
        n_left -= len(found)
        if n_left < 0:
            return
        before = next((routes[each] for each in found if _takes_all(routes[each].match, match)), None)
        if before is not None:
            yield route, before
        else:
            index.add(n, match)


def _takes_all(wide: Match, narrow: Match) -> bool:
    """True when each request that `narrow` is for is one that `wide` is for.

    May be False though it is so: two patterns of `wide` together may cover one of `narrow` that neither covers alone.
    """
    given = dict(narrow.headers)
    return (
        _covers_all(wide.models, narrow.models)
        and _covers_all(wide.paths, narrow.paths)
        and (not wide.keys or (bool(narrow.keys) and set(narrow.keys) <= set(wide.keys)))
        and (not wide.tags or (bool(narrow.tags) and set(narrow.tags) <= set(wide.tags)))
        and all(name in given and covers(value, given[name]) for name, value in wide.headers)
    )


def _covers_all(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    if not wide:
        return True
    return bool(narrow) and all(any(covers(each, pattern) for each in wide) for pattern in narrow)


def _unmet(match: Match, asked: _Asked) -> _Field | None:
    """Return the first field of `match` that a request does not meet, None if it meets all."""
    if match.models and (asked.model is None or not any(matches(each, asked.model) for each in match.models)):
        return "models"
    if match.paths and not any(matches(each, asked.path) for each in match.paths):
        return "paths"
    return _unmet_by_client(match, asked)


def _unmet_by_client(match: Match, asked: _Asked) -> _Field | None:
    """Check the conditions about the caller only."""
    for name, pattern in match.headers:
        value = asked.headers.get(name)
        if value is None or not matches(pattern, value):
            return "headers"
    if match.keys and asked.key not in match.keys:
        return "keys"
    if match.tags and not any(tag in match.tags for tag in asked.tags):
        return "tags"
    return None


def _passed(route: RouteEntry, field: _Field, asked: _Asked) -> Passed:
    match, names = route.match, {name for name, _ in route.match.headers}
    wanted, was = {
        "models": (match.models, () if asked.model is None else (asked.model,)),
        "paths": (match.paths, (asked.path,)),
        "headers": (_lines(match.headers), _lines(each for each in asked.headers.items() if each[0] in names)),
        "keys": (match.keys, (asked.key,) if asked.key else ()),
        "tags": (match.tags, asked.tags),
    }[field]
    return Passed(route, field, ", ".join(wanted), ", ".join(was) or "none")


def _lines(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{name}: {value}" for name, value in headers)
