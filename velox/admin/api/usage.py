"""What calls of models took and cost, at /api/v1: sums, and single calls.

Knows: the parameters, and what each role may see. Does not know: how records are kept (velox.ledger). All handlers
block: they wait for the database.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from velox.admin.api import schemas
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import OWNERS, Field, Route
from velox.admin.roles import Role
from velox.ledger.query_parameters import FOREVER_S, check_kept, check_together, parse_dimensions, parse_time
from velox.ledger.record import MOST_INTEGER
from velox.ledger.report import call_rows, total_rows
from velox.ledger.store import DIMENSIONS, CallPlace, Dimension, Store, UsageQuery

__all__ = ["UsagePages"]

_PAGE: Final = 1000
_MOST_PAGE: Final = 10_000
_FILTERS: Final[tuple[Dimension, ...]] = ("key", "team", "user", "tag", "upstream", "model", "agent")
_TEXT: Final = {"type": "string"}
_TIME: Final = {
    "anyOf": [
        {"type": "string", "pattern": "^[0-9]{1,4}[hd]$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
    ]
}
_BY: Final = {"type": "string", "pattern": "^(?:(?:{0})(?:,(?:{0}))*)?$".format("|".join(DIMENSIONS))}
# Of a call: its start, process, number and attempt, each within 64 bits.
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,10})\.([0-9]{1,19})\.([0-9]{1,3})")


class UsagePages:
    """The calls. store: opens it; it is closed again. now: with its time zone.

    key_of: returns how records name a managed key, by its id; what is no id of one is returned as it is.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        now: Callable[[], datetime.datetime],
        key_of: Callable[[str], str],
    ) -> None:
        self._store: Final = store
        self._now: Final = now
        self._key_of: Final = key_of

    def __repr__(self) -> str:
        return "<UsagePages>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        times = (
            Field("since", _TIME, "a day, a time of RFC 3339, or a time ago such as 24h or 30d; 30d"),
            Field("until", _TIME, "the same; none: to now"),
            Field("key", _TEXT, "only calls of this key: its id, its name, or as `by=key` shows it"),
            *(Field(name, _TEXT, f"only calls of this {name}") for name in _FILTERS if name != "key"),
        )
        cursor = Field("cursor", _TEXT, "of the page before")
        limit = Field("limit", {"type": "integer", "minimum": 1, "maximum": _MOST_PAGE}, f"of a page; {_PAGE}")
        by = Field("by", _BY, f"with commas between: {', '.join(DIMENSIONS)}; day")
        page = schemas.listed(schemas.ref("Usage"))
        about = "Sums of calls, tokens and cost."
        yield Route("GET", "/api/v1/usage", "usage", about, self._sums, page, OWNERS, (*times, by, cursor, limit))
        page = schemas.listed(schemas.ref("Call"))
        about = "Single calls, in the order of their start."
        yield Route("GET", "/api/v1/calls", "listCalls", about, self._calls, page, OWNERS, (*times, cursor, limit))

    def _question(self, call: ApiCall, by: tuple[Dimension, ...]) -> UsageQuery:
        """Return what is asked for. Raises ApiError."""
        now = self._now()
        try:
            since_s = parse_time(call.query.get("since", "30d"), now)
        except ValueError as exc:
            raise ApiError(400, "invalid", f"since: {exc}", "since") from None
        try:
            until_s = parse_time(call.query["until"], now) if "until" in call.query else FOREVER_S
        except ValueError as exc:
            raise ApiError(400, "invalid", f"until: {exc}", "until") from None
        where = [(name, call.query[name]) for name in _FILTERS if name in call.query]
        where = [(name, self._key_of(value) if name == "key" else value) for name, value in where]
        asker = call.asker
        if asker.role is Role.OWN:
            # A key's name may be another team's key's name, too.
            where.append(("team", asker.team))
            if not asker.team:
                where.append(("key", asker.key_name))
        return UsageQuery(since_s, until_s, by, tuple(where))

    def _sums(self, call: ApiCall) -> Answer:
        try:
            by = parse_dimensions(call.query.get("by", "day"))
        except ValueError as exc:
            raise ApiError(400, "invalid", f"by: {exc}", "by") from None
        after = _groups_of(call.query["cursor"], len(by)) if "cursor" in call.query else ()
        most = call.number("limit", _PAGE, _MOST_PAGE)
        question = self._question(call, by)
        try:
            check_together(question)
        except ValueError as exc:
            raise ApiError(400, "invalid", f"by: {exc}", "by") from None
        try:
            check_kept(question, self._now())
        except ValueError as exc:
            raise ApiError(400, "invalid", f"since, until: {exc}", "since") from None
        with contextlib.closing(self._store()) as store:
            try:
                found = store.totals(question, after, most + 1)
            except ValueError:
                raise _bad_cursor() from None
        shown = found[:most]
        cursor = _cursor_of(shown[-1].group) if len(found) > most else None
        return Answer(200, {"data": list(total_rows(by, shown)), "cursor": cursor})

    def _calls(self, call: ApiCall) -> Answer:
        question, most = self._question(call, ()), call.number("limit", _PAGE, _MOST_PAGE)
        after = None
        if "cursor" in call.query:
            match = _CURSOR.fullmatch(call.query["cursor"])
            if match is None:
                raise _bad_cursor()
            after = CallPlace(*(min(int(each), MOST_INTEGER) for each in match.groups()))
        with contextlib.closing(self._store()) as store:
            found = list(islice(store.calls(question, after, most + 1), most + 1))
        shown = found[:most]
        cursor = None
        if len(found) > most:
            last = shown[-1]
            cursor = f"{last.started_us}.{last.process}.{last.number}.{last.attempt}"
        return Answer(200, {"data": list(call_rows(shown)), "cursor": cursor})


def _cursor_of(group: tuple[str, ...]) -> str:
    """Return the cursor of the page behind a group."""
    return base64.urlsafe_b64encode(json.dumps(group).encode()).decode().rstrip("=")


def _groups_of(cursor: str, n: int) -> tuple[str, ...]:
    """Return the group that _cursor_of() was given, of so many dimensions. Raises ApiError."""
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, RecursionError):
        raise _bad_cursor() from None
    if not isinstance(found, list) or len(found) != n or not all(isinstance(each, str) for each in found):
        raise _bad_cursor()
    return tuple(found)


def _bad_cursor() -> ApiError:
    return ApiError(400, "invalid", "cursor: expected what the page before has told", "cursor")
