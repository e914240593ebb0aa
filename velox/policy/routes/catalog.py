"""Which models a caller may name, and which upstream would be asked for each: what `GET /v1/models` lists.

Knows: the routes that the caller can take, what upstreams serve by the settings, and what their own lists say.
Does not know: when they were asked, or what a list looks like.

A name is known from a route that names it, from the settings of an upstream, or from the upstream's own list; the
latter two only where a route's pattern lets the client's name through unchanged. It is listed if the first route that
is for it leads to an upstream that has the model: what the settings name, it has; else its own list decides, if there
is one. A route for some paths only leaves the other paths to those after it: it is enough that there is one path by
which the model can be had.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from velox.policy.patterns import covers, is_exact, matches
from velox.policy.routes.entries import Match, RouteEntry, Target, UpstreamEntry, asked_model
from velox.policy.routes.index import RouteIndex, indexing
from velox.policy.routes.match import usable

__all__ = ["ModelCatalog", "Offer"]

_NAMES_PER_STEP: Final = 64  # about 0.5 ms of work
_ROUTES_PER_STEP: Final = 128


class Offer(NamedTuple):
    """Who is asked for a model: an upstream by its name, and what the model is called there.

    is_told: the settings or its own list say that it has the model; else it may have it.
    """

    upstream: str
    model: str
    is_told: bool = True


class ModelCatalog:
    """What one caller can reach, after prepare(). routes: those that it can take, in order (RouteTable.reachable).

    upstreams: all, by name. below: the pattern of the paths in question.
    """

    __slots__ = ("_below", "_index", "_routes", "_upstreams", "upstreams")

    def __init__(self, routes: Sequence[RouteEntry], upstreams: Mapping[str, UpstreamEntry], below: str) -> None:
        self._routes: Final = tuple(routes)
        self._upstreams: Final = upstreams
        self._below: Final = below
        self._index: RouteIndex | None = None  # until it is prepared
        found = (target.upstream for route in self._routes for target in _targets(route))
        # The names of those that the routes lead to.
        self.upstreams: Final = tuple(name for name in dict.fromkeys(found) if name in upstreams)

    def __repr__(self) -> str:
        return f"<ModelCatalog {len(self._routes)} routes to {len(self.upstreams)} upstreams>"

    def prepare(self) -> Generator[None, None, None]:
        """Make ready for questions; yields between steps of the work."""
        self._index = yield from indexing([Match(models=route.match.models) for route in self._routes])

    def offers(
        self, listed: Mapping[str, Collection[str]], allowed: Sequence[str]
    ) -> Generator[None, None, dict[str, Offer]]:
        """Return the models that can be had, by name, in order of their names; yields between steps of the work.

        listed: upstream -> the models of its own list; one without a list is missing. allowed: patterns of what
        the caller is limited to; none: nothing.
        """
        names: set[str] = set()
        for n, route in enumerate(self._routes):
            names.update(self._names(route, listed))
            if n % _ROUTES_PER_STEP == 0:
                yield
        found: dict[str, Offer] = {}
        for n, name in enumerate(sorted(names)):
            offer = self.offer(name, listed, allowed)
            if offer is not None:
                found[name] = offer
            if n % _NAMES_PER_STEP == 0:
                yield
        return found

    def offer(self, name: str, listed: Mapping[str, Collection[str]], allowed: Sequence[str]) -> Offer | None:
        """Return who is asked for one model; None if it can't be had. It need not be on any list."""
        if allowed and not any(matches(pattern, name) for pattern in allowed):
            return None
        for offers in self._offers_by_route(name, listed):
            # One without a list may have any model.
            likely = [each for each in offers if each.is_told or each.upstream not in listed]
            if likely:
                # Best the one that says itself that it has it: it has more to say of it.
                return next((each for each in likely if each.model in listed.get(each.upstream, ())), likely[0])
        return None

    def untold(self, name: str, listed: Mapping[str, Collection[str]], allowed: Sequence[str]) -> tuple[Offer, ...]:
        """Return who could have a model though nothing says so, in order: providers don't list all that they serve."""
        if allowed and not any(matches(pattern, name) for pattern in allowed):
            return ()
        found = [each for offers in self._offers_by_route(name, listed) for each in offers if not each.is_told]
        return tuple(dict.fromkeys(found))

    def _offers_by_route(self, name: str, listed: Mapping[str, Collection[str]]) -> Iterator[list[Offer]]:
        """Yield who would be asked for a model, by each route that a request for it may take."""
        taken: list[str] = []  # the paths of routes that are for it, and have it not
        for route in self._routes_for(name):
            paths = route.match.paths or (self._below,)
            if all(any(covers(other, path) for other in taken) for path in paths):
                continue
            targets = usable(_targets(route), self._upstreams, name)
            yield [
                Offer(each.upstream, asked_model(each.naming, name) or name, self._has(route, each, name, listed))
                for each in targets
            ]
            taken += paths
            if any(covers(path, self._below) for path in paths):
                break

    def _has(self, route: RouteEntry, target: Target, name: str, listed: Mapping[str, Collection[str]]) -> bool:
        """Tell whether the settings or its own list say that a target has a model."""
        if target.model is not None or name in route.match.models:
            return True
        asked = asked_model(target.naming, name)
        return asked in self._upstreams[target.upstream].models or asked in listed.get(target.upstream, ())

    def _routes_for(self, name: str) -> Iterator[RouteEntry]:
        assert self._index is not None, "it was prepared"
        for n in self._index.find((name,), (), (), (), ()):
            route = self._routes[n]
            if not route.match.models or any(matches(pattern, name) for pattern in route.match.models):
                yield route

    def _names(self, route: RouteEntry, listed: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Yield the names that a route is for, as far as they are known."""
        patterns = route.match.models or ("*",)
        yield from (pattern for pattern in patterns if is_exact(pattern))
        open_ended = [pattern for pattern in patterns if not is_exact(pattern)]
        if not open_ended:
            return
        for target in _targets(route):
            upstream = self._upstreams.get(target.upstream)
            if upstream is None or target.model is not None:
                continue  # asked for one model, whatever the client calls it: any name would do
            known = (*filter(is_exact, upstream.models), *filter(upstream.has_model, listed.get(target.upstream, ())))
            named = (each for name in known for each in dict.fromkeys((target.strip + name, name)))
            yield from (name for name in named if any(matches(pattern, name) for pattern in open_ended))


def _targets(route: RouteEntry) -> tuple[Target, ...]:
    """Return the targets that answer clients; a canary serves the same models as they do."""
    return (*route.to, *route.fallback)
