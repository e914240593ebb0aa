"""Fuzz of the admin API: calls made up from a seed, with what each of them must come to.

    python -m tests.unit.admin.api.api_fuzz [SEED] [CALLS]     more of it than a test makes

Calls come as bytes of a head and a body, by all roles, and go as far as files of SQLite: only sockets are left out.
Of each one:

    it is answered below 500, with JSON that the API's own description says it answers, and in reasonable length
    a refusal has changed nothing; whatever is done is told to the audit, once
    who may not do it has not done it, and sees nothing of others
    a secret is in no answer but the one of the call that made it
    what is shown of an account can be given back, and changes nothing
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import random
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from tests.admin_requests import UnreadError, parse_request, written
from tests.unit.accounts.entries import entries_in_force
from tests.unit.admin.api.schema_check import problems
from tests.unit.ledger.made import NOON_S, made_call
from velox.accounts.model import KINDS, Kind
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.admin.api.accounts import AccountPages
from velox.admin.api.budgets import BudgetPages
from velox.admin.api.call import Asker
from velox.admin.api.routes import Route
from velox.admin.api.service import Api
from velox.admin.api.usage import UsagePages
from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import RefusalError
from velox.admin.roles import Role
from velox.ledger.record import row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import DIMENSIONS, Batch
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule, BudgetScope
from velox.shm.budget_table import BudgetMemory, BudgetTable

__all__ = ["Fuzzer", "House", "Told"]

ADMIN: Final = "admin-token"
VIEWER: Final = "viewer-token"
MOST_ERROR_BYTES: Final = 2048
# Of a key, except in the hint for people.
_SECRET: Final = re.compile(rb"sk-(?!\.\.\.)[A-Za-z0-9_-]{6}")
_OPEN: Final = "http://localhost"
_STAYS: Final = frozenset({"id", "hint", "blocked", "created", "updated", "key", "set_by_admin"})
_OF_OTHERS: Final = frozenset({"team", "user", "models", "endpoints"})

# What breaks programs: other types, borders of numbers, texts that mean something to some reader of them.
_TEXTS: Final = (
    "", " ", "a", "ada", "red", "*", "gpt-*", "gpt-4o", "é", "名", "\U0001f30d", "\x00", "a\x00b", "\n", "\r\nX: 1",
    "\x7f", "\u202e", "\ufeff", "'", '"', "'; DROP TABLE account; --", "' OR '1'='1", "%", "_", "a'/*", "$(id)", "`id`",
    "{{7*7}}",
    "=1+1", "../../etc/passwd", "/etc/passwd", "%2e%2e%2f", "\\", "null", "true", "0", "-1", "1e9", "NaN", "Infinity",
    "\u0661", "1_000", "0x10", "9" * 40, "a" * 128, "a" * 129, "x" * 5000, "ada@example.com", "@", "chat", "/v1/*",
    "all", "sha256:" + "0" * 64, "f" * 64, "20 usd/month", "Europe/Berlin", "Europe", "../zone", "z" * 64, "day",
    "week", "30d", "24h", "0s", "999999999w", "9999-12-31", "0001-01-01", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2027-01-31", "2027-01-31T12:00:00Z", "2026-02-30", "1969-12-31", "high", "HIGH", "refuse", "key", "team",
    "day,key",
    "key,key", "minute,hour", ",", "0.000000001", "1000000000", "1e-400", "50%",
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, -1, 2, 60, 100, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 0.5, 1e-9,
    1e9, 1e308, 1e-308, 10_000_000, 60_000_000, 100_000_001,
)  # fmt: skip
_GOOD: Final[Mapping[str, Sequence[object]]] = {
    "name": ("ada", "batch-1", None),
    "email": ("ada@example.com", None, ""),
    "expires": ("2029-01-31", "2029-01-31T12:00:00+02:00", None, "2020-01-01"),
    "models": ([], ["gpt-*"], ["gpt-4o", "*"], None),
    "endpoints": ([], ["chat"], ["/v1/files*"], None),
    "tags": ([], ["batch", "eu"], None),
    "rpm": (1, 60, None, 60_000_000),
    "burst": (1, None),
    "tpm": (1, 100_000_000, None),
    "tpm_burst": (5, None),
    "concurrency": (1, None),
    "priority": ("high", "low", None),
    "budgets": (
        [], None, [{"usd": 20, "window": "month", "zone": "Europe/Berlin", "soft": [50, 100]}],
        [{"tokens": "2M", "window": "24h", "strict": True}], [{"usd": "0.5", "window": "total", "unpriced": "allow"}],
        [{"usd": 1, "window": 3600, "starts": "2026-01-01", "soft": 80, "strict": "yes"}],
    ),
    "metadata": ({}, {"a": 1, "b": [None, True, 1.5, {"c": "d"}]}, None),
}  # fmt: skip
_BODIES: Final = (
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b'{"name": "\xff"}', b'{"name": "\\ud800"}', b"[" * 5000,
    b'{"metadata":' * 300 + b"1" + b"}" * 300, b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"rpm": 1e400}', b'{"rpm": NaN}',
    b'{"rpm": ' + b"9" * 5000 + b"}", b'{"name": "a", "name": "b"}', b"\x00", b"\xef\xbb\xbf{}",
    b'{"' + b"n" * 50_000 + b'": 1}',
    b'{"budgets": [{"' + b"n" * 50_000 + b'": 1}]}', b'{"name": "' + b"x" * 100_000 + b'"}', b"{} {}", b"a=1",
)  # fmt: skip
_MEDIA: Final = ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "text/plain", "", "a/b/c;;")


class Told(NamedTuple):
    """What was answered.

    body: as JSON; None: there was none, or it is none of the API's. was_read: the API was asked.
    """

    status: int
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    was_read: bool = True


class House:
    """An API on files of its own, with some records. made: changes a route before it is served."""

    def __init__(self, folder: Path, made: Callable[[Route], Route] = lambda route: route) -> None:
        self.now_s = float(NOON_S)
        self.store: Final = SqliteAccounts(folder)
        self.accounts: Final = Accounts(self.store, lambda: self.now_s, random.Random(1).randbytes)
        self.n_calls: Final = _record(folder)
        pages = AccountPages(lambda: self.accounts)
        noon = datetime.datetime.fromtimestamp(NOON_S, datetime.UTC)
        usage = UsagePages(lambda: SqliteStore(folder, days=30, is_reader=True), lambda: noon, lambda key: key)
        budgets = BudgetPages(_counted(), lambda: self.now_s)
        self.routes: Final = [made(route) for route in (*pages.routes(), *usage.routes(), *budgets.routes())]
        self.api: Final = Api(self.routes, self._asker_of, "1.0", logging.Logger("test"))
        self._app: Final = AdminApp(
            metrics=lambda: b"",
            ready=lambda: Readiness(alive=True, ready=True, reasons=()),
            profiles=None,
            token=ADMIN,
            viewer_token=VIEWER,
            api=self.api,
        )

    def _asker_of(self, secret: str) -> Asker | None:
        key = self.accounts.key_in_force(secret)
        return None if key is None else Asker(Role.OWN, key.id, key.id, key.name or key.id, key.team)

    async def ask(
        self,
        method: str,
        target: str,
        *,
        token: str = ADMIN,
        body: bytes | object = b"",
        media: str = "application/json",
        is_private: bool = True,
    ) -> Told:
        """Make a call, from its head's bytes to its answer's. What a bug raises is raised."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()  # also what is deep
        fields = ["Host: localhost", f"Content-Length: {len(content)}", f"Content-Type: {media}"]
        head = "\r\n".join((f"{method} {target} HTTP/1.1", *fields, f"Authorization: Bearer {token}", "", ""))
        try:
            request = parse_request(head.encode("latin-1"), takes_any=self._app.is_api)
            request = replace(request, body=content, is_private=is_private)
            self._app.admit(request)
            reply = await self._app.reply(request)
        except UnreadError as unread:
            return Told(unread.reply.status, {}, unread.reply.body or b"", None, was_read=False)
        except RefusalError as refusal:
            reply = refusal.reply
        raw = written(reply)
        assert raw.count(b"\r\n\r\n", 0, len(raw) - len(reply.body or b"")) == 1, "no line of a head is the caller's"
        is_json = reply.content_type == "application/json"
        found = reply.body or b""
        return Told(reply.status, dict(reply.headers), found, orjson.loads(found) if is_json else None)


def _record(folder: Path) -> int:
    """Record calls of two teams, some of them at the same moment. Return how many."""
    store = SqliteStore(folder, days=30)
    teams = ("red", "blue", "")
    calls = [
        made_call(n, started_s=NOON_S - n // 3 * 40_000, team=teams[n % 3], key=f"{n % 4:016x} key-{n % 4}")
        for n in range(30)
    ]
    store.add(Batch("ring", len(calls), [row_of(*each) for each in enumerate(calls)], {}, NOON_S))
    store.close()
    return len(calls)


def _deep(value: object, depth: int, pick: random.Random) -> object:
    for _ in range(depth):
        value = [value] if pick.random() < 0.5 else {"a": value}
    return value


def _counted() -> BudgetMemory:
    """Return the memory of a few budgets, some of them used."""
    memory = BudgetMemory(100, 1)
    table = BudgetTable(memory, 0)
    whose: Sequence[tuple[BudgetScope, str]] = (("gateway", ""), ("team", "red"), ("key", f"{0:016x}"), ("tag", "eu"))
    for scope, subject in whose:
        for fields in ({"usd": 5, "window": "month"}, {"tokens": 1000, "window": "30d"}):
            budget = table.budget(BudgetRule("budgets[0]", scope, parse_budget(fields)), subject, subject, NOON_S)
            assert budget.hold(100, NOON_S) is not None
    return memory


class Fuzzer:
    """Makes calls, one after the other; the same ones for the same seed."""

    def __init__(self, house: House, seed: int) -> None:
        self._house: Final = house
        self._random: Final = random.Random(seed)
        self._routes: Final = {(route.method, route.path): route for route in house.routes}
        self._description: Final[dict[str, Any]] = {}
        # Secrets of keys, by id: also of such that are gone.
        self._secrets: Final[dict[str, str]] = {}
        self._ids: Final[dict[Kind, list[str]]] = {kind: ["red"] for kind in KINDS}
        self._number = 0
        self.statuses: Final[dict[int, int]] = {}

    async def run(self, n: int) -> None:
        """Make so many calls. Raises AssertionError, or what a bug raises."""
        self._description.update((await self._house.ask("GET", "/api/v1/openapi.json")).body)
        for each in range(n):
            self._house.now_s += 1.0
            try:
                await self._call()
            except BaseException as exc:
                exc.add_note(f"call {each}")
                raise
        await self._check_all()

    # -- one call ---------------------------------------------------------------------------------

    async def _call(self) -> None:
        pick = self._random
        route = pick.choice(self._house.routes)
        method, target = route.method, self._target(route)
        if pick.random() < 0.05:
            method = pick.choice(("GET", "HEAD", "PUT", "OPTIONS", "DELETE", "POST", "PATCH"))
        meant = self._routes.get((method, route.path))
        owner = pick.choice(sorted(self._secrets)) if self._secrets and pick.random() < 0.1 else ""
        token = self._secrets[owner] if owner else pick.choices((ADMIN, VIEWER, "", "none"), (80, 5, 1, 1))[0]
        body = self._body(route) if route.body is not None or pick.random() < 0.05 else b""
        media = _MEDIA[0] if pick.random() < 0.97 else pick.choice(_MEDIA)
        is_private = pick.random() < 0.95
        before = self._house.accounts.number()
        told = await self._house.ask(method, target, token=token, body=body, media=media, is_private=is_private)
        shown = f"{method} {target[:300]!r} {body[:300]!r} -> {told.status} {told.raw[:300]!r}"
        try:
            n_changes = self._house.accounts.number() - before
            is_elsewhere = not target.startswith("/api/v1/")
            self._check(meant, told, token, n_changes, is_elsewhere=is_elsewhere)
            if owner and told.status < 300:
                self._check_own(told, owner)
            if told.status < 300 and meant is not None and token == ADMIN:
                await self._after(meant, body, told, is_private=is_private)
        except AssertionError as exc:
            exc.add_note(shown)
            raise
        self.statuses[told.status] = self.statuses.get(told.status, 0) + 1

    def _check(self, route: Route | None, told: Told, token: str, n_changes: int, *, is_elsewhere: bool) -> None:
        assert told.status < 500, "it is the gateway's fault"
        if told.body is None:
            assert is_elsewhere or not told.was_read, "the API answers in JSON"
            return
        if told.status >= 400:
            assert len(told.raw) <= MOST_ERROR_BYTES and told.body["error"]["message"]
            assert self._problems(told.body, {"$ref": "#/components/schemas/Error"}) == []
            assert n_changes == 0, "nothing is done of what is refused"
            assert (told.status == 401) == ("WWW-Authenticate" in told.headers)
            assert (told.status == 405) == ("Allow" in told.headers)
        elif route is not None:
            operation = self._description["paths"][route.path][route.method.lower()]
            schema = operation["responses"][str(told.status)]["content"]["application/json"]["schema"]
            assert self._problems(told.body, schema) == []
            assert n_changes == (0 if route.method == "GET" else 1)
        assert n_changes == 0 or token == ADMIN, "who may not change anything has"
        makes = route is not None and route.name in ("createKey", "rotateKey") and told.status < 300
        assert makes or not _SECRET.search(told.raw), "a secret is shown"

    def _check_own(self, told: Told, owner: str) -> None:
        """Check that who shows a client's key sees what is its own."""
        key = orjson.loads(self._house.store.get("key", owner) or b"null")
        for each in told.body.get("data", [told.body]):
            if "hint" in each:
                assert each["id"] == owner or (key["team"] and each["team"] == key["team"])
            elif "scope" in each:
                assert each["id"] == key["team"] and each["scope"] == "team"
            elif "created" in each:
                assert each["id"] == key["team"]
            elif "calls" in each and "team" in each:
                assert each["team"] == key["team"]

    async def _after(self, route: Route, body: bytes, told: Told, *, is_private: bool) -> None:
        """Check what follows from a call that an admin made, and remember what it has made."""
        if route.body is not None and body:
            wrong = self._problems(orjson.loads(body), route.body)
            assert not wrong, f"it is taken, and the description says it is not: {wrong}"
        if route.name in ("createKey", "rotateKey"):
            assert is_private or told.body["key"] is None or b'"key"' in body, "shown where others may read along"
            if told.body["key"]:
                self._secrets[told.body["id"]] = told.body["key"]
        if route.method == "DELETE":
            for ids in self._ids.values():
                ids[:] = [each for each in ids if each != told.body["id"]] or ["red"]
        kind = next((kind for kind in KINDS if route.name in (f"create{kind.title()}", f"update{kind.title()}")), None)
        if kind is None:
            return
        self._ids[kind].append(told.body["id"])
        path = f"/api/v1/{kind}s/{urllib.parse.quote(told.body['id'], safe='')}"
        shown = (await self._house.ask("GET", path)).body
        assert shown == {name: value for name, value in told.body.items() if name != "key"}
        given = {name: value for name, value in shown.items() if name not in _STAYS}
        again = await self._house.ask("PATCH", path, body=given)
        if again.status == 400:
            assert again.body["error"]["field"] in _OF_OTHERS, again.raw  # its team allows less by now
        else:
            assert {**again.body, "updated": shown["updated"]} == shown

    def _problems(self, value: object, schema: Mapping[str, Any]) -> list[str]:
        return problems(value, schema, self._description)

    # -- making up --------------------------------------------------------------------------------

    def _target(self, route: Route) -> str:
        pick = self._random
        kind = next((kind for kind in KINDS if route.path.startswith(f"/api/v1/{kind}s")), "key")
        id_ = pick.choice(self._ids[kind][-8:]) if pick.random() < 0.9 else pick.choice(_TEXTS)
        path = route.path.replace("{id}", urllib.parse.quote(id_[:1000], safe="") or "-")
        if pick.random() < 0.03:
            n = pick.randrange(len(path))
            path = path[:n] + pick.choice(("/", "%", "%ff", "%00", "\xe9", "//", "..", "%2f", ";", "{id}")) + path[n:]
        fields = [(field.name, self._parameter(field.name)) for field in route.query if pick.random() < 0.35]
        if pick.random() < 0.05:
            fields.append((pick.choice((*_TEXTS, "limit", "cursor"))[:500], pick.choice(_TEXTS)))
        query = urllib.parse.urlencode([(name, value[:1000]) for name, value in fields])
        if pick.random() < 0.03:
            query += pick.choice(("&", "&&", "=", "&x", "%", "%ff=%ff", "&limit=1", "?", "\xff", ";a=b", "a" * 5000))
        return f"{path}?{query}" if query else path

    def _parameter(self, name: str) -> str:
        pick = self._random
        good: Mapping[str, Sequence[str]] = {
            "limit": ("1", "2", "7", "100"),
            "cursor": ("1", "5", "0", "red", f"{NOON_S * 1_000_000}.1", f"{10**17 - 1}.{10**9 - 1}"),
            "since": ("30d", "24h", "9999d", "2026-11-01"),
            "until": ("2026-11-23T11:00", "0h"),
            "by": ("day", "key,team", "tag,hour", "minute", ",".join(DIMENSIONS[:6]), ""),
            "kind": KINDS,
            "scope": ("key", "team", "gateway"),
        }
        return pick.choice(good.get(name, ("red", "gpt-4o", "key-1"))) if pick.random() < 0.6 else pick.choice(_TEXTS)

    def _body(self, route: Route) -> bytes:
        pick = self._random
        if pick.random() < 0.08:
            return pick.choice(_BODIES)
        properties = list((route.body or {}).get("properties", {"name": None}))
        fields: dict[str, object] = {}
        for name in pick.sample(properties, min(len(properties), pick.choice((0, 1, 2, 3, 5)))):
            if name in ("key", "digest", "id") and pick.random() < 0.7:
                continue
            fields[name] = self._field(name) if pick.random() < 0.85 else self._value(4)
        if pick.random() < 0.04:
            fields[pick.choice((*_TEXTS, "blocked", "Name", "version", "__class__", "self"))] = self._value(2)
        return json.dumps(fields, ensure_ascii=pick.random() < 0.5).encode()

    def _field(self, name: str) -> object:
        pick = self._random
        self._number += 1
        if name in ("team", "user"):
            ids: Sequence[str | None] = [*self._ids["team" if name == "team" else "user"][-8:], None]
            return pick.choice(ids)
        if name == "id":
            return pick.choice((f"id-{self._number}", f"ada+{self._number}@example.com", "red"))
        if name == "key":
            return f"sk-fuzz-{self._number:016d}"
        if name == "digest":
            return f"{self._number:064x}"
        if name == "grace_s":
            return pick.choice((0, 60, 86_400))
        if name == "metadata" and pick.random() < 0.2:
            return {"a": _deep(1, pick.choice((120, 245, 250, 251, 252, 253)), pick)}
        return pick.choice(_GOOD.get(name, _TEXTS))

    def _value(self, depth: int) -> object:
        pick = self._random
        match pick.randrange(8 if depth else 5):
            case 0 | 1:
                return pick.choice(_TEXTS)
            case 2:
                return pick.choice(_NUMBERS)
            case 3:
                return pick.choice((True, False, None))
            case 4:
                return _deep(pick.choice(_TEXTS), pick.choice((0, 1, 20, 120, 240, 250)), pick)
            case 5:
                return [self._value(depth - 1) for _ in range(pick.choice((0, 1, 2, 20)))]
            case 6:
                return {pick.choice(_TEXTS): self._value(depth - 1) for _ in range(pick.choice((0, 1, 2, 20)))}
            case _:
                good = dict(pick.choice((*(_GOOD["budgets"][2] or ()), *(_GOOD["budgets"][3] or ()))))  # type: ignore[misc]
                good[pick.choice(tuple(good))] = self._value(depth - 1)
                return [good]

    # -- at the end -------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        """Check that everything is there still, and that pages of any size lead to the same."""
        number, documents, digests = self._house.store.everything()
        entries_in_force(documents, digests, self._house.now_s)
        changes = await self._pages("/api/v1/changes")
        assert [each["number"] for each in changes] == list(range(number, 0, -1))
        for kind in KINDS:
            found = await self._pages(f"/api/v1/{kind}s")
            assert len(found) == len(documents[kind]) and [each["id"] for each in found] == sorted(
                each["id"] for each in found
            )
        assert len(await self._pages("/api/v1/calls")) == self._house.n_calls
        assert len(await self._pages("/api/v1/budgets")) == 8
        sums = await self._pages("/api/v1/usage?by=key,day")
        assert sum(each["calls"] for each in sums) == self._house.n_calls

    async def _pages(self, target: str) -> list[Any]:
        """Return a whole list, by pages of some sizes: each time the same."""
        found: list[list[Any]] = []
        for size in (1000, 3):
            items: list[Any] = []
            more, cursor = "&" if "?" in target else "?", ""
            while True:
                told = await self._house.ask("GET", f"{target}{more}limit={size}{cursor}")
                assert told.status == 200 and len(told.body["data"]) <= size, told.raw[:300]
                items += told.body["data"]
                if told.body["cursor"] is None:
                    break
                cursor = f"&cursor={urllib.parse.quote(told.body['cursor'])}"
            found.append(items)
        assert found[0] == found[1]
        return found[0]


def main(seed: int, n: int) -> None:
    """Fuzz, and print what was answered how often."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(House(Path(folder) / "ledger"), seed)
        try:
            asyncio.run(fuzzer.run(n))
        finally:
            print(f"seed {seed}:", ", ".join(f"{status}: {n}" for status, n in sorted(fuzzer.statuses.items())))


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] + ["1", "2000"][len(sys.argv) - 1 :])))
