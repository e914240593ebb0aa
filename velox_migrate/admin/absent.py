"""LiteLLM's paths of what Velox has not: end users, budgets by id, models by call, checks of models.

A change is answered with 501 and what to use instead, never as if it was made. Lists are empty, and nothing is found.

Knows: which paths these are. Does not know: what is served at others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import ADMINS, READERS, Route

__all__ = ["absent_routes"]

_CUSTOMERS: Final = "Velox keeps no end users: give each a key or a user (/key/generate, /user/new), or tag its calls"
_BUDGETS: Final = "Velox keeps no budgets by id: set max_budget and budget_duration on a key, a team or a user"
_MODELS: Final = (
    "models come from the routes of the file that VELOX_CONFIG names, and no call changes it: edit it, and reload"
)
_CHANGES: Final = (
    *((f"/{root}/{verb}", _CUSTOMERS) for root in ("customer", "end_user") for verb in ("new", "update", "delete")),
    *((f"/{root}/{verb}", _CUSTOMERS) for root in ("customer", "end_user") for verb in ("block", "unblock")),
    *((f"/budget/{verb}", _BUDGETS) for verb in ("new", "update", "delete")),
    *((f"/model/{verb}", _MODELS) for verb in ("new", "update", "delete")),
)


def absent_routes() -> Iterator[Route]:
    """Return all of them."""
    for path, why in _CHANGES:
        yield Route("POST", path, path, "", _refused(501, why), {}, ADMINS, body={})
    yield Route("PATCH", "/model/{id}/update", "", "", _refused(501, _MODELS), {}, ADMINS, body={})
    yield Route("POST", "/budget/info", "/budget/info", "", _none, {}, READERS, body={})
    yield Route("GET", "/budget/list", "/budget/list", "", _none, {}, READERS)
    for root in ("customer", "end_user"):
        info = f"/{root}/info"
        yield Route("GET", info, info, "", _refused(404, f"not found: {_CUSTOMERS}"), {}, READERS)
        yield Route("GET", f"/{root}/list", f"/{root}/list", "", _none, {}, READERS)


def _refused(status: int, why: str) -> Callable[[ApiCall], Answer]:
    def refuse(_call: ApiCall) -> Answer:
        raise ApiError(status, "not_found" if status == 404 else "not_implemented", why)

    return refuse


def _none(_call: ApiCall) -> Answer:
    return Answer(200, [])
