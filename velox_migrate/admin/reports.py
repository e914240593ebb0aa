"""LiteLLM's paths of spend and models: `/spend/logs`, `/user/daily/activity`, `/global/spend/report`, `/model/info`.

Knows: the shapes of their answers. Does not know: how records are kept. All handlers block: they wait for the database.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from velox.accounts.service import Accounts
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import READERS, Route
from velox.ledger.record import Call, Flag
from velox.ledger.store import Dimension, Store, Sums, Total, UsageQuery
from velox.policy.budgets.budget import NANO_PER_USD
from velox.types import Endpoint
from velox_migrate.admin.spent import Names, find_key, label_of

__all__ = ["LitellmReports", "Model"]

_DAY_S: Final = 86_400
_MONTH_S: Final = 30 * _DAY_S
# As LiteLLM names them (litellm.types.utils.CallTypes); paths that are several calls there have none.
_CALL_TYPES: Final[Mapping[int, str]] = {
    Endpoint.CHAT: "acompletion",
    Endpoint.RESPONSES: "aresponses",
    Endpoint.COMPLETIONS: "atext_completion",
    Endpoint.EMBEDDINGS: "aembedding",
    Endpoint.MODERATIONS: "amoderation",
    Endpoint.RERANK: "arerank",
    Endpoint.IMAGES: "aimage_generation",
    Endpoint.MESSAGES: "anthropic_messages",
    Endpoint.REALTIME: "_arealtime",
    Endpoint.GENERATE: "agenerate_content",
}
_MOST_ROWS: Final = 20_000
_MOST_PAGE: Final = 1000
_LAST_S: Final = 253_370_764_800  # begin of the year 9999
_US: Final = 1_000_000
_NOTHING: Final = Sums()


class Model(NamedTuple):
    """A model as clients name it. target: what an upstream is asked for; "" as the client says. upstream: its name."""

    name: str
    upstream: str
    target: str


class LitellmReports:
    """The calls. accounts, store: as for the API. now: Unix time. models: those that routes name."""

    def __init__(
        self,
        accounts: Callable[[], Accounts],
        store: Callable[[], Store],
        now: Callable[[], float],
        models: Sequence[Model],
    ) -> None:
        self._accounts: Final = accounts
        self._store: Final = store
        self._now: Final = now
        self._models: Final = models

    def __repr__(self) -> str:
        return "<LitellmReports>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        for path, do in (
            ("/spend/logs", self._logs),
            ("/user/daily/activity", self._activity),
            ("/user/daily/activity/aggregated", self._activity_at_once),
            ("/global/spend/report", self._report),
            ("/global/spend/logs", self._spend_by_day),
            ("/spend/tags", self._spend_by_tag),
            ("/models", self._model_names),
            ("/v1/models", self._model_names),
            ("/model/info", self._model_info),
            ("/v1/model/info", self._model_info),
        ):
            yield Route("GET", path, path, "", do, {}, READERS)

    # -- questions --------------------------------------------------------------------------------

    def _question(self, call: ApiCall, by: tuple[Dimension, ...], since_s: int = 0) -> UsageQuery:
        """Return what is asked for: whole days, both the first and the last. Raises ApiError.

        since_s: from when on if the call does not say it.
        """
        since_s, until_s = self._day(call, "start_date", since_s), self._day(call, "end_date", int(self._now()))
        where: list[tuple[Dimension, str]] = []
        if call.query.get("api_key"):
            key = find_key(self._accounts(), call.query["api_key"])
            where.append(("key", call.query["api_key"] if key is None else label_of(key)))
        for name, dimension in (
            ("user_id", "user"),
            ("internal_user_id", "user"),
            ("team_id", "team"),
            ("model", "model"),
        ):
            if call.query.get(name):
                where.append(
                    ("user" if dimension == "user" else "team" if dimension == "team" else "model", call.query[name])
                )
        return UsageQuery(since_s // _DAY_S * _DAY_S, until_s // _DAY_S * _DAY_S + _DAY_S, by, tuple(where))

    def _day(self, call: ApiCall, name: str, default_s: int) -> int:
        text = call.query.get(name)
        if not text:
            return default_s
        try:
            found = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise ApiError(400, "invalid", f"{name}: expected a day such as 2026-11-23", name) from None
        found = found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
        return min(max(int(found.timestamp()), 0), _LAST_S)

    def _totals(self, question: UsageQuery) -> list[Total]:
        with contextlib.closing(self._store()) as store:
            return store.totals(question)

    # -- single calls -----------------------------------------------------------------------------

    def _logs(self, call: ApiCall) -> Answer:
        """Answer single calls; or sums by day, if days are given and nothing says otherwise."""
        if call.query.get("end_user"):
            raise ApiError(400, "invalid", "end_user: Velox keeps no end users", "end_user")
        has_days = bool(call.query.get("start_date") and call.query.get("end_date"))
        if has_days and call.query.get("summarize", "true").lower() != "false" and not call.query.get("request_id"):
            return Answer(200, self._by_day(call))
        question, wanted = self._question(call, ()), call.query.get("request_id")
        with contextlib.closing(self._store()) as store:
            calls = (each for each in store.calls(question) if wanted in (None, "", each.id, _request_id(each)))
            found = list(itertools.islice(calls, _MOST_ROWS + 1))
        if len(found) > _MOST_ROWS:
            message = (
                f"start_date: there are more than {_MOST_ROWS} calls: ask for fewer days, or page through /api/v1/calls"
            )
            raise ApiError(400, "invalid", message, "start_date")
        names = Names(self._accounts())
        return Answer(200, [_log(each, names) for each in found])

    def _by_day(self, call: ApiCall) -> list[dict[str, Any]]:
        names = Names(self._accounts())
        days: dict[str, dict[str, Any]] = {}
        for (day, key, user, model), sums in self._totals(self._question(call, ("day", "key", "user", "model"))):
            usd = sums.cost_nano / NANO_PER_USD
            found = days.setdefault(day, {"startTime": day, "spend": 0.0, "users": {}, "models": {}, "api_keys": {}})
            found["spend"] += usd
            for name, value in (("users", user), ("models", model), ("api_keys", names.token(key))):
                found[name][value] = found[name].get(value, 0.0) + usd
        return list(days.values())

    # -- sums -------------------------------------------------------------------------------------

    def _activity(self, call: ApiCall) -> Answer:
        return self._active(call, call.number("page", 1, 1_000_000), call.number("page_size", 50, _MOST_PAGE))

    def _activity_at_once(self, call: ApiCall) -> Answer:
        return self._active(call, 1, 1_000_000)

    def _active(self, call: ApiCall, page: int, size: int) -> Answer:
        """Answer days, the last first; so many of them are a page. The sums in `metadata` are over all pages."""
        totals = self._totals(self._question(call, ("day", "key", "team", "upstream", "model")))
        days: dict[str, list[Total]] = {}
        for each in totals:
            days.setdefault(each.group[0], []).append(each)
        names = Names(self._accounts())
        shown = sorted(days, reverse=True)[(page - 1) * size : page * size]
        n_pages = max(1, -(-len(days) // size))
        every = _sum(totals)
        metadata = {f"total_{name}": value for name, value in _metrics(every).items() if name != "total_tokens"}
        more = {
            "total_tokens": every.input + every.output,
            "page": page,
            "total_pages": n_pages,
            "has_more": page < n_pages,
        }
        results = [
            {"date": day, "metrics": _metrics(_sum(days[day])), "breakdown": _broken_down(days[day], names)}
            for day in shown
        ]
        return Answer(200, {"results": results, "metadata": {**metadata, **more}})

    def _report(self, call: ApiCall) -> Answer:
        """Answer days with the teams and models of each, or the models of one key."""
        if call.query.get("group_by") in ("customer", "end_user"):
            raise ApiError(400, "invalid", "group_by: expected team or api_key: Velox keeps no end users", "group_by")
        names = Names(self._accounts())
        if call.query.get("api_key") or call.query.get("internal_user_id") or call.query.get("group_by") == "api_key":
            return Answer(200, self._by_key(call, names))
        aliases = {each.id: each.name for each in self._teams()}
        days: dict[str, dict[str, dict[str, Any]]] = {}
        for (day, team, key, model), sums in self._totals(self._question(call, ("day", "team", "key", "model"))):
            name = aliases.get(team) or team or "Unassigned"
            found = days.setdefault(day, {}).setdefault(name, {"team_name": name, "total_spend": 0.0, "metadata": []})
            usd = sums.cost_nano / NANO_PER_USD
            found["total_spend"] += usd
            row = {"model": model, "spend": usd, "total_tokens": sums.input + sums.output, "api_key": names.token(key)}
            found["metadata"].append(row)
        answer = [
            {"group_by_day": f"{day}T00:00:00+00:00", "teams": list(teams.values())} for day, teams in days.items()
        ]
        return Answer(200, answer)

    def _spend_by_day(self, call: ApiCall) -> Answer:
        """Answer dollars by day, the first day first: of the last 30 days, if none are asked for."""
        since_s = max(int(self._now()) - _MONTH_S, 0)
        days = self._totals(self._question(call, ("day",), since_s))
        spent = {group[0]: sums.cost_nano / NANO_PER_USD for group, sums in days}
        return Answer(200, [{"date": day, "spend": spent[day]} for day in sorted(spent)])

    def _spend_by_tag(self, call: ApiCall) -> Answer:
        """Answer dollars and calls by tag, the dearest first. A call counts under each of its tags."""
        tags = [(group[0], sums) for group, sums in self._totals(self._question(call, ("tag",))) if group[0]]
        tags.sort(key=lambda each: (-each[1].cost_nano, each[0]))
        return Answer(
            200,
            [
                {"individual_request_tag": tag, "log_count": sums.n, "total_spend": sums.cost_nano / NANO_PER_USD}
                for tag, sums in tags
            ],
        )

    def _by_key(self, call: ApiCall, names: Names) -> list[dict[str, Any]]:
        # A key that was renamed has rows under each of its names.
        found: dict[str, dict[str, Sums]] = {}
        for (key, model), sums in self._totals(self._question(call, ("key", "model"))):
            models = found.setdefault(names.token(key), {})
            models[model] = models.get(model, _NOTHING).plus(sums)
        return [
            {
                "api_key": token,
                **_used(functools.reduce(Sums.plus, models.values(), _NOTHING)),
                "model_details": [{"model": model, **_used(sums)} for model, sums in models.items()],
            }
            for token, models in found.items()
        ]

    def _teams(self) -> Iterator[Any]:
        cursor = ""
        while True:
            page = self._accounts().page("team", cursor, 1000)
            yield from page.items
            cursor = page.cursor
            if not cursor:
                return

    def _model_names(self, _call: ApiCall) -> Answer:
        names = dict.fromkeys(each.name for each in self._models)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "openai"} for name in names]
        return Answer(200, {"data": data, "object": "list"})

    def _model_info(self, call: ApiCall) -> Answer:
        wanted = call.query.get("litellm_model_id")
        data: list[dict[str, Any]] = [
            {
                "model_name": each.name,
                "litellm_params": {"model": each.target or each.name},
                "model_info": {"id": f"{each.name}@{each.upstream}", "db_model": False, "upstream": each.upstream},
            }
            for each in self._models
        ]
        return Answer(200, {"data": [each for each in data if wanted in (None, "", each["model_info"]["id"])]})


def _request_id(call: Call) -> str:
    """Return what no other call has: a request may take several attempts."""
    return call.id if call.attempt == 1 else f"{call.id}-{call.attempt}"


def _log(call: Call, names: Names) -> dict[str, Any]:
    tokens = call.tokens
    first_us = call.started_us + (call.duration_us if call.first_byte_us is None else call.first_byte_us)
    return {
        "request_id": _request_id(call),
        "api_key": names.token(call.key),
        "call_type": _CALL_TYPES.get(call.endpoint, ""),
        # Of what clients send and get nothing is kept.
        "messages": None,
        "response": None,
        "spend": (call.cost_nano or 0) / NANO_PER_USD,
        "total_tokens": (tokens.input or 0) + (tokens.output or 0),
        "prompt_tokens": tokens.input or 0,
        "completion_tokens": tokens.output or 0,
        "startTime": _time(call.started_us),
        "endTime": _time(call.started_us + call.duration_us),
        "completionStartTime": _time(first_us),
        "model": call.upstream_model or call.model,
        "model_group": call.model,
        "custom_llm_provider": call.upstream,
        "user": call.user,
        "team_id": call.team or None,
        "end_user": "",
        "metadata": {"status": "success" if call.reason == "ok" else "failure", "reason": call.reason},
        "request_tags": list(call.tags),
        "cache_hit": "False",
        "status": "success" if call.reason == "ok" and not call.flags & Flag.LOST else "failure",
    }


def _time(time_us: int) -> str:
    return datetime.datetime.fromtimestamp(time_us / _US, datetime.UTC).isoformat(timespec="milliseconds")


def _sum(totals: Sequence[Total]) -> Sums:
    found = _NOTHING
    for each in totals:
        found = found.plus(each.sums)
    return found


def _used(sums: Sums) -> dict[str, Any]:
    return {
        "total_cost": sums.cost_nano / NANO_PER_USD,
        "total_input_tokens": sums.input,
        "total_output_tokens": sums.output,
    }


def _metrics(sums: Sums) -> dict[str, Any]:
    return {
        "spend": sums.cost_nano / NANO_PER_USD,
        "prompt_tokens": sums.input,
        "completion_tokens": sums.output,
        "cache_read_input_tokens": sums.cached,
        "cache_creation_input_tokens": sums.cache_written,
        "total_tokens": sums.input + sums.output,
        "successful_requests": sums.n - sums.n_errors,
        "failed_requests": sums.n_errors,
        "api_requests": sums.n,
    }


def _broken_down(totals: Sequence[Total], names: Names) -> Mapping[str, Any]:
    found: dict[str, dict[str, Any]] = {
        "models": {},
        "providers": {},
        "api_keys": {},
        "mcp_servers": {},
        "entities": {},
    }
    for at, name in ((4, "models"), (3, "providers"), (1, "api_keys")):
        sums: dict[str, Sums] = {}
        teams: dict[str, str] = {}
        for each in totals:
            value = names.token(each.group[1]) if at == 1 else each.group[at]
            sums[value] = sums.get(value, _NOTHING).plus(each.sums)
            teams[value] = each.group[2]
            if at == 1:
                found[name].setdefault(value, {"metadata": {"key_alias": each.group[1].partition(" ")[2] or None}})
        for value, every in sums.items():
            metadata = {
                **found[name].get(value, {}).get("metadata", {}),
                **({"team_id": teams[value] or None} if at == 1 else {}),
            }
            found[name][value] = {"metrics": _metrics(every), "metadata": metadata}
    return found
