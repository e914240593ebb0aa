"""The table of an API: which method and path is which call, what it takes, and who may make it.

Knows: how a path is found, and how a query and a body are read. Does not know: what a call does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

import orjson

from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.message import AdminRequest, Reply
from velox.admin.roles import Role

__all__ = ["ADMINS", "MANAGERS", "OWNERS", "READERS", "Field", "Found", "OtherTable", "Route", "RouteTable", "Schema"]

Schema: TypeAlias = Mapping[str, Any]  # of JSON Schema
# In a thread, unless it is a coroutine's: that is awaited in the loop.
Handler: TypeAlias = Callable[[ApiCall], Answer | Coroutine[Any, Any, Answer]]

ADMINS: Final = frozenset({Role.ADMIN})
READERS: Final = frozenset({Role.ADMIN, Role.VIEWER, Role.OPEN})
OWNERS: Final = READERS | {Role.OWN}
MANAGERS: Final = ADMINS | {Role.OWN}  # of the latter, keys that manage their team's

_MOST_QUERY: Final = 4096
_PLACE: Final = re.compile(r"\{([a-z_]+)\}")


class Field(NamedTuple):
    """A parameter of a query."""

    name: str
    schema: Schema
    about: str


@dataclass(frozen=True, slots=True)
class Route:
    """One call. name: of the operation. path: with `{id}` for what differs. about: one sentence.

    query: its parameters. body: the schema of the object that it takes; None: it takes none. needs_body: a call without
    one is refused. answer: the schema of what
    it answers with `status`. roles: who may make it. errors: statuses of refusals besides those that every call has.
    """

    method: str
    path: str
    name: str
    about: str
    handle: Handler
    answer: Schema
    roles: frozenset[Role] = READERS
    query: tuple[Field, ...] = ()
    body: Schema | None = None
    needs_body: bool = False
    status: int = 200
    errors: tuple[int, ...] = ()

    @property
    def places(self) -> list[str]:
        """Return the names of the parts of the path that differ."""
        return _PLACE.findall(self.path)


class Found(NamedTuple):
    """A route, and the parts of the path that differ."""

    route: Route
    ids: tuple[str, ...]


class RouteTable:
    """The routes of one API."""

    # What a body without a Content-Type is taken for.
    _media = ""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes: Final = tuple(routes)
        self._by_path: Final[dict[str, dict[str, Route]]] = {}
        for route in routes:
            self._by_path.setdefault(route.path, {})[route.method] = route
        self._patterns: Final = [
            (re.compile(_PLACE.sub("([^/]+)", path)).fullmatch, methods) for path, methods in self._by_path.items()
        ]

    def __repr__(self) -> str:
        return f"<RouteTable of {len(self.routes)} routes>"

    def find(self, request: AdminRequest) -> Found:
        """Return the route of a request. Raises ApiError: 404, 405."""
        for matches, methods in self._patterns:
            match = matches(request.path)
            if match is None:
                continue
            route = methods.get("GET" if request.method == "HEAD" else request.method)
            if route is None:
                allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
                message = f"expected {' or '.join(allowed)} here"
                raise ApiError(405, "method_not_allowed", message, headers=(("Allow", ", ".join(allowed)),))
            return Found(route, tuple(map(unquote, match.groups())))
        raise ApiError(404, "not_found", "there is no such path; /api/v1/openapi.json lists what there is")

    def query(self, request: AdminRequest, route: Route) -> dict[str, str]:
        """Return the parameters of a request. Raises ApiError."""
        try:
            if len(request.query) > _MOST_QUERY:
                raise ValueError
            pairs = parse_qsl(
                request.query, keep_blank_values=True, strict_parsing=bool(request.query), errors="strict"
            )
        except ValueError:
            raise ApiError(400, "invalid", "the query can't be read: expected name=value, with & between") from None
        known = [each.name for each in route.query]
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                expected = f"there are {', '.join(known)}" if known else "there are none"
                raise ApiError(400, "invalid", f"no such parameter of the query; {expected}", name[:64])
            if name in found:
                raise ApiError(400, "invalid", f"{name}: expected once", name)
            values = next(each.schema.get("enum") for each in route.query if each.name == name)
            if values is not None and value not in values:
                raise ApiError(400, "invalid", f"{name}: expected {', '.join(values)}", name)
            found[name] = value
        return found

    def body(self, request: AdminRequest, route: Route) -> dict[str, Any]:
        """Return the object that a request brings. Raises ApiError."""
        if not request.body:
            if route.needs_body:
                raise ApiError(400, "invalid", "expected a body, an object of JSON")
            return {}
        if route.body is None:
            raise ApiError(400, "invalid", "this call takes no body")
        media = request.headers.get("content-type", self._media).partition(";")[0].strip().lower()
        if media != "application/json":
            raise ApiError(415, "invalid", "expected a body with Content-Type: application/json")
        try:
            found = orjson.loads(request.body)
            repeated = _repeated_field(request.body)
        except (orjson.JSONDecodeError, RecursionError):
            raise ApiError(400, "invalid", "the body is no JSON") from None
        if repeated is not None:
            raise ApiError(400, "invalid", "a field is given twice", repeated[:64])
        if not isinstance(found, dict):
            raise ApiError(400, "invalid", "the body must be an object of JSON")
        return found


class OtherTable(Protocol):
    """Routes of another API, served beside this one."""

    def takes(self, path: str) -> bool:
        """Tell whether a path is one of its own."""

    def find(self, request: AdminRequest) -> Found:
        """Return the route of a request. Raises ApiError."""

    def query(self, request: AdminRequest, route: Route) -> dict[str, str]:
        """Return the parameters of a request. Raises ApiError."""

    def body(self, request: AdminRequest, route: Route) -> dict[str, Any]:
        """Return the object that a request brings. Raises ApiError."""

    def error_reply(self, error: ApiError) -> Reply:
        """Return the reply of a call that is refused."""


def _repeated_field(body: bytes) -> str | None:
    """Return a name that an object of a body has twice, of which readers take one or the other; None: none has."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        names = set()
        for name, _ in pairs:
            if name in names:
                repeated.append(name)
            names.add(name)

    json.loads(body.decode(), object_pairs_hook=look, parse_int=str, parse_float=str)
    return repeated[0] if repeated else None
