"""The API's calls about what runs: the requests, to end one, and the configuration that the workers use.

Knows: who may ask, and how the workers' answers are told. Does not know: how workers are asked (profiling/workers.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import orjson

from velox.admin.api import schemas
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import ADMINS, Route
from velox.admin.running.pages import Ask, running_requests

__all__ = ["RequestPages"]

# As Recorder.next_id() makes them.
_ID: Final = re.compile("vx-[0-9a-f]{1,16}-[0-9a-f]{1,16}")


class RequestPages:
    """The calls. logger: the operations log."""

    def __init__(self, ask: Ask, logger: logging.Logger) -> None:
        self._ask: Final = ask
        self._logger: Final = logger

    def __repr__(self) -> str:
        return "<RequestPages>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        running = "The requests that run or are queued, the oldest first, at most 1,000 of each worker."
        yield Route("GET", "/api/v1/requests", "listRequests", running, self._list, schemas.ref("Running"))
        end = "End a request: its client gets the error ended_by_admin, a stream an error event."
        one, ended = "/api/v1/requests/{id}", schemas.ref("Ended")
        yield Route("DELETE", one, "endRequest", end, self._end, ended, ADMINS, errors=(404,))
        used = "Each setting with its value and where it is from, secrets hidden; upstreams, routes, limits, budgets."
        shown = schemas.ref("Configuration")
        yield Route("GET", "/api/v1/configuration", "showConfiguration", used, self._configuration, shown)

    async def _list(self, _call: ApiCall) -> Answer:
        shown: dict[str, Any] = msgspec.to_builtins(await running_requests(self._ask))
        return Answer(200, {"data": shown["rows"], "total": shown["total"], "missing": shown["missing"]})

    async def _end(self, call: ApiCall) -> Answer:
        ident = call.ids[0]
        if _ID.fullmatch(ident) is None:
            raise ApiError(404, "not_found", "there is no such request; its id is x-velox-request-id of its answer")
        if not any(await self._ask("end", ident)):
            raise ApiError(404, "not_found", "no request of this id is running: it may have ended by itself")
        self._logger.info("request %(id)s was ended by %(who)s", {"id": ident, "who": call.asker.name})
        return Answer(200, {"id": ident, "ended": True})

    async def _configuration(self, _call: ApiCall) -> Answer:
        for answer in await self._ask("configuration", ""):
            if answer:
                shown: dict[str, Any] = orjson.loads(answer)
                return Answer(200, shown)
        message = "no worker has told its configuration in time"
        raise ApiError(503, "busy", message, headers=(("Retry-After", "1"),))
