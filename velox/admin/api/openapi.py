"""The description of the API, as OpenAPI 3.1 has it, made from the table of its routes.

Knows: how a route is described. Does not know: which routes there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from velox.admin.api.routes import MANAGERS, READERS, Field, Route, Schema
from velox.admin.api.schemas import COMPONENTS, ref
from velox.admin.roles import Role
from velox.policy.spellings import OWNER

__all__ = ["describe"]

_ID: Final[Schema] = {"type": "string", "pattern": f"^{OWNER.pattern}$"}
_UNREAD: Final = 400
_REASONS: Final = {
    400: "a parameter, a field or the body can't be taken; nothing was done",
    401: "no token, or one that is none",
    403: "the token may not do or give that, or a secret would be shown in the clear",
    404: "there is none of this id",
    409: "one of this id or key is there already, or others belong to it",
    503: "the database can't be used now",
}


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Velox", "version": version, "description": "Keys, teams, users, and what calls cost."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(COMPONENTS),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "the admin token, or a client's key"}
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    errors = sorted({400, 401, 403, 503, *route.errors})
    body: dict[str, Any] = {}
    if route.body is not None:
        body = {"requestBody": {"required": route.needs_body, "content": _content(route.body)}}
    return {
        "operationId": route.name,
        "summary": route.about,
        "description": f"For {_who(route)}.",
        "parameters": [*map(_in_path, route.places), *map(_in_query, route.query)],
        **body,
        "responses": {
            str(route.status): {"description": "done", "content": _content(route.answer)},
            **{str(status): _refusal(status) for status in errors},
        },
    }


def _who(route: Route) -> str:
    if route.roles == MANAGERS:
        return "admins, and for keys with the role team_admin, in their team"
    if Role.OWN in route.roles:
        return "admins and viewers, and for clients with a key, who see what is their own"
    return "admins and viewers" if route.roles == READERS else "admins"


def _content(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _refusal(status: int) -> dict[str, Any]:
    content = _content(ref("Error"))
    if status == _UNREAD:  # by the listener, which knows no API: a path with an empty segment, say
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": _REASONS[status], "content": content}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _ID}


def _in_query(field: Field) -> dict[str, Any]:
    return {"name": field.name, "in": "query", "schema": field.schema, "description": field.about}
