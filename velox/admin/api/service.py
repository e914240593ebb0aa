"""The API as a whole: who asks, which call it is, and its answer from a thread.

Knows: roles, and that what waits for a database does so in few threads, for probes and metrics must not wait. Does not
know: what a call does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from velox.accounts.service import AccountsError
from velox.admin.api.accounts import refused
from velox.admin.api.call import Answer, ApiCall, ApiError, Asker, error_reply, json_reply
from velox.admin.api.openapi import describe
from velox.admin.api.routes import OtherTable, Route, RouteTable
from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.roles import Role, bearer_of
from velox.ledger.store import StoreError

__all__ = ["API_PATH", "Api"]

API_PATH: Final = "/api/v1"
_KEYS: Final = f"{API_PATH}/keys"
_DESCRIPTION: Final = f"{API_PATH}/openapi.json"
_THREADS: Final = 2
_MOST_WAITING: Final = 32
_READS: Final = frozenset({"GET", "HEAD"})


class _Line:
    """Calls that wait for the same threads."""

    def __init__(self, name: str) -> None:
        self.threads: Final = ThreadPoolExecutor(_THREADS, name)
        self.n_waiting = 0


class Api:
    """The API of the admin listener.

    asker_of: returns who shows a key of a client; None: it is no active key. It may wait for the database.
    logger: the operations log. others: paths of another API that are served beside it; None: none are.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        asker_of: Callable[[str], Asker | None],
        version: str,
        logger: logging.Logger,
        others: OtherTable | None = None,
    ) -> None:
        self._table: Final = RouteTable(routes)
        self._others: Final = others
        self._logger: Final = logger
        self._asker_of: Final = asker_of
        self._description: Final = describe(routes, version)
        # Apart, so that whoever makes up tokens keeps no admin from blocking a key.
        self._trusted: Final = _Line("api")
        self._clients: Final = _Line("api of clients")

    def __repr__(self) -> str:
        return f"<Api {self._table!r}>"

    def takes(self, path: str) -> bool:
        """Tell whether a path is the API's."""
        return path == API_PATH or path.startswith(f"{API_PATH}/") or self._is_anothers(path)

    def _is_anothers(self, path: str) -> bool:
        return self._others is not None and self._others.takes(path)

    def _refusal(self, request: AdminRequest, error: ApiError) -> Reply:
        """Return the reply of a call that is refused, in the shape of its path."""
        if self._others is not None and self._others.takes(request.path):
            return self._others.error_reply(error)
        return error_reply(error)

    def admit(self, request: AdminRequest, role: Role | None) -> None:
        """Refuse what is refused whatever its body is. Raises RefusalError.

        role: of who asks; None: they show no token. A client's key may read, or manage keys, and is looked for later.
        """
        may_be_own = request.method in _READS or request.path == _KEYS or request.path.startswith(f"{_KEYS}/")
        if role is None and not (bearer_of(request) and may_be_own):
            raise RefusalError.of(self._refusal(request, _unknown()))

    async def reply(self, request: AdminRequest, role: Role | None) -> Reply:
        """Answer a request. role: as for admit()."""
        line = self._clients if role is None else self._trusted
        if line.n_waiting >= _MOST_WAITING:
            busy = ApiError(503, "busy", "too many calls of the API are waiting", headers=(("Retry-After", "1"),))
            return self._refusal(request, busy)
        line.n_waiting += 1
        try:
            done = await asyncio.get_running_loop().run_in_executor(line.threads, self._answer, request, role)
            return done if isinstance(done, Reply) else await self._finished(request, done)
        finally:
            line.n_waiting -= 1

    async def _finished(self, request: AdminRequest, pending: Coroutine[Any, Any, Answer]) -> Reply:
        try:
            answer = await pending
        except ApiError as error:
            return self._refusal(request, error)
        return json_reply(answer.status, answer.body)

    def _answer(self, request: AdminRequest, role: Role | None) -> Reply | Coroutine[Any, Any, Answer]:
        try:
            asker = self._asker_of(bearer_of(request)) if role is None else Asker(role, role.value)
            if asker is None:
                raise _unknown()
            if request.path == _DESCRIPTION and request.method in _READS:
                return json_reply(200, self._description)
            return self._call(request, asker)
        except ApiError as error:
            return self._refusal(request, error)
        except AccountsError as error:
            return self._refusal(request, refused(error))
        except StoreError as error:
            self._logger.warning("admin API: the database can't be used: %(error)s", {"error": error})
            return self._refusal(
                request, ApiError(503, "database", "the database can't be used now; the operations log says why")
            )

    def _call(self, request: AdminRequest, asker: Asker) -> Reply | Coroutine[Any, Any, Answer]:
        table: OtherTable | RouteTable = self._table
        if self._others is not None and self._others.takes(request.path):
            table = self._others
        route, ids = table.find(request)
        if asker.role not in route.roles:
            raise _forbidden(asker.role)
        query, body = table.query(request, route), table.body(request, route)
        answer = route.handle(ApiCall(asker, ids, query, body, request.is_private))
        return json_reply(answer.status, answer.body) if isinstance(answer, Answer) else answer


def _unknown() -> ApiError:
    message = "send the admin token, or a client's key: Authorization: Bearer TOKEN"
    return ApiError(401, "unauthorized", message, headers=(("WWW-Authenticate", "Bearer"),))


def _forbidden(role: Role) -> ApiError:
    if role is Role.OPEN:
        return ApiError(403, "forbidden", "nothing is changed without a token: set VELOX_ADMIN_TOKEN")
    return ApiError(403, "forbidden", "this token may not do that: the admin token is needed")
