"""LiteLLM's paths as a table of their own: queries and errors are read and written as its clients do.

Knows: that it ignores parameters it does not know, and the shape of its errors. Does not know: what a call does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from velox.admin.api.call import ApiError, json_reply
from velox.admin.api.routes import Route, RouteTable
from velox.admin.message import AdminRequest, Reply

__all__ = ["LitellmTable"]

_ROOTS: Final = frozenset(
    {
        *("key", "team", "user", "spend", "global", "model", "models", "budget", "customer", "end_user"),
        # Nothing is served at these. Clients read why in LiteLLM's shape.
        *("organization", "tag", "credentials", "guardrails", "model_group", "project", "cache", "config", "provider"),
    }
)
_VERSIONS: Final = ("/v1/", "/v2/")
# Codes that clients look for.
_OWN_TYPES: Final = frozenset({"team_member_already_in_team"})
_MOST_QUERY: Final = 4096
_TYPES: Final = {
    401: "auth_error",
    403: "auth_error",
    404: "not_found_error",
    501: "not_implemented_error",
    503: "internal_server_error",
}


class LitellmTable(RouteTable):
    """The routes."""

    _media = "application/json"  # some of its clients do not say it

    def __init__(self, routes: Sequence[Route]) -> None:
        super().__init__(routes)
        self._paths: Final = frozenset(route.path for route in routes)

    def takes(self, path: str) -> bool:
        """Tell whether a path is one of these."""
        if path in self._paths:
            return True
        has_version = path.startswith(_VERSIONS)
        root, _, rest = path[3 if has_version else 0 :].removeprefix("/").partition("/")
        # Clients change some of them at the root itself: POST /credentials.
        return root in _ROOTS and (bool(rest) or not has_version)

    def query(self, request: AdminRequest, route: Route) -> dict[str, str]:
        """Return the parameters of a request; the last one of a name counts. Raises ApiError."""
        try:
            if len(request.query) > _MOST_QUERY:
                raise ValueError
            return dict(parse_qsl(request.query, errors="strict"))
        except ValueError:
            raise ApiError(400, "invalid", "the query can't be read: expected name=value, with & between") from None

    def error_reply(self, error: ApiError) -> Reply:
        """Return the reply of a call that is refused."""
        told = {
            "message": error.message,
            "type": error.code if error.code in _OWN_TYPES else _TYPES.get(error.status, "bad_request_error"),
            "param": error.field or "None",
            "code": str(error.status),
        }
        return json_reply(error.status, {"error": told}, error.headers)
