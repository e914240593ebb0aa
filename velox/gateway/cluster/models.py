"""`GET /v1/models`, and `GET /v1/models/{id}`: what the caller may use, of all upstreams together.

    serves()   whether a request is one of these, and not for an upstream
    answer()   what is sent back

Knows: how such a request is recognised, what was made for whom, and how long that counts. Does not know: which
models there are for a caller (policy/routes/catalog.py), or what upstreams say of them (model_sources.py).

Where there are no `upstreams` in the settings these requests go up unchanged, and so they do where a route names their
path. A page is made once for all who see the same routes, and again when an upstream has said something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.routing import Routing
from velox.gateway.cpu_work import in_turn, in_turns
from velox.gateway.upstreams.model_sources import ModelSources, ReportedModels
from velox.heads import Header, Headers, RequestHead
from velox.memo import Memo
from velox.net.turn_budget import TurnBudget
from velox.policy.routes.catalog import ModelCatalog, Offer
from velox.policy.routes.entries import UpstreamEntry
from velox.protocol.model_list import (
    UNKNOWN_DETAILS,
    ModelDetails,
    described,
    list_of,
    model_object,
    object_for,
    page_for,
)
from velox.types import Caller, Dialect

__all__ = ["Describe", "ModelsPage"]

_ASKING: Final = frozenset({b"GET", b"HEAD"})
# The prefix goes into the path of our own questions, so it may have nothing that ends or changes one.
_PLACE: Final = re.compile(rb"((?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){0,8}?)/models(?:/(.*))?", re.DOTALL)
_WORD: Final = b"/models"
_OPERATIONS: Final = re.compile(rb"/operations(/[^/]+)?$")
_ANYWHERE: Final = frozenset({b"*", b""})
_KEPT_VIEWS: Final = 256
# Of all pages: a client whose routes are its own has one of its own.
_KEPT_BYTES: Final = 16 * 1024 * 1024
_OBJECTS_PER_STEP: Final = 8  # each may be looked for among hundreds of the price table
# Where Gemini's clients ask, and where upstreams of all kinds are asked for that.
_UPSTREAM_PREFIXES: Final = {"/v1beta": "/v1", "/v1alpha": "/v1"}
_HEADERS: Final = ((b"content-type", b"application/json"),)
_DOTS: Final = frozenset({".", ".."})
_EMPTY_PAGE: Final = list_of(())


# In the query of Codex, which asks for its own kind of list.
_CODEX: Final = b"client_version="
# Returns what is known of a model, by its upstream and its name there.
Describe: TypeAlias = Callable[[UpstreamEntry, str], ModelDetails]


def _nothing_known(_entry: UpstreamEntry, _model: str) -> ModelDetails:
    return UNKNOWN_DETAILS


class _Asked(NamedTuple):
    """Who sees which routes. headers: those that routes look at. below: pattern of the paths that are meant."""

    key: str
    models: tuple[str, ...]
    below: str
    headers: tuple[Header, ...]


class _View:
    """What there is for those who ask the same. serials: of the answers that `page` was made from."""

    __slots__ = ("_making", "_steps", "catalog", "page", "serials")

    def __init__(self, catalog: ModelCatalog) -> None:
        self.catalog: Final = catalog
        self._steps: Generator[None, None, None] | None = catalog.prepare()  # that are left
        self.page: bytes | None = None
        self.serials: tuple[int, ...] = ()
        self._making: tuple[tuple[int, ...], Generator[None, None, bytes]] | None = None  # another page, and from what

    def prepare(self) -> Generator[None, None, None]:
        """Make the catalog ready. Many may ask for that at once: each takes the steps that are left, in turns."""
        while self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
            except Exception:
                self._steps = self.catalog.prepare()
                raise
            else:
                yield

    def making(
        self, serials: tuple[int, ...], make: Callable[[], Generator[None, None, bytes]]
    ) -> Generator[None, None, bytes]:
        """Return the page that is made from these answers. Many may ask for that at once, as for prepare()."""
        while self.page is None or self.serials != serials:
            if self._making is None or self._making[0] != serials:
                self._making = serials, make()
            try:
                next(self._making[1])
            except StopIteration as end:
                self.page, self.serials, self._making = end.value, serials, None
            except Exception:
                self._making = None
                raise
            else:
                yield
        return self.page


class ModelsPage:
    """The pages of one worker. prefixes: below which the API is; "*" or "/": anywhere."""

    def __init__(self, sources: ModelSources, prefixes: Sequence[str], describe: Describe = _nothing_known) -> None:
        """describe: returns what is known of a model at an upstream."""
        self._sources: Final = sources
        self._describe = describe
        known = frozenset(each.rstrip("/").encode() for each in prefixes)
        self._prefixes: Final = None if known & _ANYWHERE else known
        self._routing: Routing | None = None
        self._upstreams: dict[str, UpstreamEntry] = {}
        self._views: Final[Memo[_Asked, _View]] = Memo(_KEPT_VIEWS)
        self._n_bytes = 0  # of the pages

    def __repr__(self) -> str:
        return f"<ModelsPage {len(self._views)} views, {self._sources!r}>"

    def describe_by(self, describe: Describe) -> None:
        """Describe models with this from now on."""
        self._describe = describe
        self._forget()

    def close(self) -> None:
        """Ask no upstream any more."""
        self._sources.close()

    def serves(self, head: RequestHead, caller: Caller, routing: Routing) -> bool:
        """Say whether a request is answered here."""
        # Those that the variables make stand nowhere: what there is, is what the one upstream has.
        if head.method not in _ASKING or not routing.members[0].entry.where or self._place(head.path) is None:
            return False
        route = routing.table.match(None, head.path, head.headers, caller.name)
        return route is None or not any("/models" in pattern for pattern in route.match.paths)

    async def answer(
        self, head: RequestHead, caller: Caller, routing: Routing, turns: TurnBudget
    ) -> tuple[int, Headers, bytes]:
        """Return status, headers and body for one that serves() has said yes to. Raises VeloxError(UNKNOWN_MODEL).

        turns: in which it is made. A thousand may wait for the same word of an upstream.
        """
        place = self._place(head.path)
        assert place is not None, "serves() has looked"
        prefix, tail = place
        self._use(routing)
        view = self._view(_asked(head, caller, routing, f"{prefix}/*"), head, routing)
        await in_turns(view.prepare(), turns)
        dialect, asked = _dialect_of(head, prefix), _UPSTREAM_PREFIXES.get(prefix, prefix)
        told = await self._sources.model_lists(view.catalog.upstreams, asked)
        if tail is not None:
            # What can't be decoded is no model's name; it is then one that is not there.
            found = await self._one(view.catalog, unquote(tail), asked, caller, told, turns)
            return 200, list(_HEADERS), object_for(dialect, found)
        page = await self._page(view, caller, told, turns)
        if page == _EMPTY_PAGE:
            told = await self._sources.first_lists(view.catalog.upstreams, asked)
            page = await self._page(view, caller, told, turns)
        return 200, list(_HEADERS), page_for(dialect, page, is_codex=_CODEX in head.query)

    # -- inside -------------------------------------------------------------------------------------

    async def _one(
        self,
        catalog: ModelCatalog,
        name: str,
        prefix: str,
        caller: Caller,
        told: dict[str, ReportedModels],
        turns: TurnBudget,
    ) -> bytes:
        """Return one model: as a list has it, else of an upstream that could have it. Raises VeloxError(UNKNOWN_MODEL).

        prefix: of the paths by which upstreams are asked.
        """
        listed = _names(told)
        offer = await in_turn(partial(catalog.offer, name, listed, caller.terms.models), turns)
        if offer is not None and offer.is_told:
            return self._object(name, offer, told)
        # By the name that a request would have there: a route may strip or rename.
        untold: dict[str, str] = {}
        for each in catalog.untold(name, listed, caller.terms.models):
            if not _DOTS.intersection(each.model.split("/")):  # it would be another path
                untold.setdefault(each.upstream, f"{prefix}{_WORD.decode()}/{quote(each.model)}")
        answers = await self._sources.fetch_one(untold)
        return await in_turn(partial(self._found, name, offer, untold, answers, told), turns)

    def _found(
        self,
        name: str,
        offer: Offer | None,
        untold: Mapping[str, str],
        answers: Mapping[str, bytes],
        told: Mapping[str, ReportedModels],
    ) -> bytes:
        """Return one model by what upstreams have said of it. Raises VeloxError(UNKNOWN_MODEL).

        untold: who was asked, and by which path.
        """
        found = next((upstream for upstream in untold if answers.get(upstream)), None)
        if found is not None:
            asked = unquote(untold[found].partition(f"{_WORD.decode()}/")[2])
            return described(model_object(name, found, answers[found]), self._describe(self._upstreams[found], asked))
        # Whoever has no list, and did not say no either, may have it.
        if offer is None or offer.upstream in answers:
            message = "there is no such model here; GET /v1/models lists those that are served"
            raise VeloxError(Reason.UNKNOWN_MODEL, message, param="model")
        return self._object(name, offer, told)

    def _place(self, path: bytes) -> tuple[str, str | None] | None:
        """Return the prefix, and the requested model as the path spells it, None for all; None: another path."""
        found = _PLACE.fullmatch(path) if _WORD in path else None
        if found is None or (self._prefixes is not None and found[1] not in self._prefixes):
            return None
        works = _OPERATIONS.search(found[2] or b"")
        if works is not None and (works[1] or found[1].decode("ascii") in _UPSTREAM_PREFIXES):
            return None  # what a model of Google's works on: models/NAME/operations/ID
        return found[1].decode("ascii"), found[2].decode("latin-1") if found[2] else None

    def _use(self, routing: Routing) -> None:
        """Go over to the tables of another configuration, if these are others."""
        if routing is not self._routing:
            self._routing = routing
            self._upstreams = {member.name: member.entry for member in routing.members}
            self._sources.replace(routing.members)
            self._forget()

    def _forget(self) -> None:
        self._views.clear()
        self._n_bytes = 0

    def _view(self, asked: _Asked, head: RequestHead, routing: Routing) -> _View:
        view = self._views.get(asked)
        if view is None:
            routes = routing.table.reachable(asked.below, head.headers, asked.key)
            view = _View(ModelCatalog(routes, self._upstreams, asked.below))
            self._views.put(asked, view)
        return view

    async def _page(self, view: _View, caller: Caller, told: dict[str, ReportedModels], turns: TurnBudget) -> bytes:
        serials = tuple(each.serial for each in told.values())
        if view.page is not None and view.serials == serials:
            return view.page
        return await in_turns(view.making(serials, partial(self._making, view.catalog, caller, told)), turns)

    def _making(
        self, catalog: ModelCatalog, caller: Caller, told: dict[str, ReportedModels]
    ) -> Generator[None, None, bytes]:
        """Return a page. Of thousands of models and routes: the others have a turn of the loop in between."""
        offers = yield from catalog.offers(_names(told), caller.terms.models)
        page = list_of((yield from self._objects(offers, told)))
        if self._n_bytes + len(page) > _KEPT_BYTES:
            self._forget()
        self._n_bytes += len(page)
        return page

    def _objects(
        self, offers: Mapping[str, Offer], told: Mapping[str, ReportedModels]
    ) -> Generator[None, None, list[bytes]]:
        """Return the objects of models in order; yields between steps of the work."""
        objects: list[bytes] = []
        for n, (name, offer) in enumerate(offers.items()):
            if n % _OBJECTS_PER_STEP == _OBJECTS_PER_STEP - 1:
                yield
            objects.append(self._object(name, offer, told))
        return objects

    def _object(self, name: str, offer: Offer, told: Mapping[str, ReportedModels]) -> bytes:
        """Return the object of one model: the upstream's own, if there is one, with what the tables know."""
        has_told = told.get(offer.upstream)
        own = None if has_told is None else has_told.models.get(offer.model)
        found = own if own and offer.model == name else model_object(name, offer.upstream, own or None)
        return described(found, self._describe(self._upstreams[offer.upstream], offer.model))


def _asked(head: RequestHead, caller: Caller, routing: Routing, below: str) -> _Asked:
    wanted = routing.table.header_names
    headers = tuple(field for field in head.headers if field[0] in wanted) if wanted else ()
    return _Asked(caller.name, caller.terms.models, below, headers)


def _dialect_of(head: RequestHead, prefix: str) -> Dialect:
    """Return the dialect of a client that asks for models: the path is the same for OpenAI's and Anthropic's."""
    if prefix in _UPSTREAM_PREFIXES or head.header(b"x-goog-api-key") is not None:
        return Dialect.GOOGLE
    return Dialect.OPENAI if head.header(b"anthropic-version") is None else Dialect.ANTHROPIC


def _names(told: dict[str, ReportedModels]) -> dict[str, Collection[str]]:
    return {upstream: each.models.keys() for upstream, each in told.items()}
