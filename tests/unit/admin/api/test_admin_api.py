"""The API of keys, teams, users and usage: what is answered, to whom, and that its description is true."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.admin_requests import parse_request
from tests.unit.admin.api.schema_check import problems
from tests.unit.ledger.made import NOON_S, made_call
from velox.accounts.active import caller_id, caller_id_of
from velox.accounts.fields import FIELDS
from velox.accounts.model import KINDS
from velox.accounts.service import Accounts, AccountsError
from velox.accounts.sqlite import SqliteAccounts
from velox.admin.api.accounts import AccountPages
from velox.admin.api.call import ApiError, Asker
from velox.admin.api.routes import Route
from velox.admin.api.schemas import given
from velox.admin.api.service import Api
from velox.admin.api.usage import UsagePages
from velox.admin.message import RefusalError
from velox.admin.roles import Role
from velox.ledger.record import recorded_key, row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, StoreError
from velox.observe.oplog import operations_logger

NOON = datetime.datetime.fromtimestamp(NOON_S, datetime.UTC)
Json = dict[str, Any]


class Door:
    """An API on databases of its own, asked as the listener asks it. All answers are held against the description."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_private = True
        self.accounts = Accounts(SqliteAccounts(folder), lambda: float(NOON_S))
        self.is_away = False
        self.log = io.StringIO()
        pages = AccountPages(self._accounts).routes()
        usage = UsagePages(lambda: SqliteStore(folder, days=30, is_reader=True), lambda: NOON, self._key_of).routes()
        self.routes: list[Route] = [*pages, *usage]
        self.api = Api(self.routes, self._asker_of, "1.2.3", operations_logger(self.log))
        self.document = self("GET", "/api/v1/openapi.json")

    def _accounts(self) -> Accounts:
        if self.is_away:
            raise StoreError("/secret/folder: it is gone")
        return self.accounts

    def _key_of(self, asked: str) -> str:
        try:
            return caller_id_of(self.accounts.get("key", asked).id).hex()
        except AccountsError:
            return asked

    def _asker_of(self, secret: str) -> Asker | None:
        key = self._accounts().key_in_force(secret)
        if key is None:
            return None
        return Asker(
            Role.OWN, key.id, key.id, recorded_key(caller_id(key), key.name or key.id), key.team, key.role != ""
        )

    def __call__(self, method: str, target: str, body: object = None, **more: Any) -> Json:
        status, answer = self.raw(method, target, None if body is None else json.dumps(body).encode(), **more)
        assert status < 300, (status, answer)
        return answer

    def refused(self, method: str, target: str, body: object = None, **more: Any) -> tuple[int, str, str | None]:
        """Return the status, code and field of a refusal."""
        status, answer = self.raw(method, target, None if body is None else json.dumps(body).encode(), **more)
        assert status >= 400, (status, answer)
        return status, answer["error"]["code"], answer["error"]["field"]

    def raw(
        self, method: str, target: str, body: bytes | None = None, *, role: Role | None = Role.ADMIN, key: str = ""
    ) -> tuple[int, Json]:
        fields = [f"Authorization: Bearer {key}"] if key else []
        fields += ["Content-Type: application/json"] if body else []
        head = "\r\n".join((f"{method} {target} HTTP/1.1", "Host: localhost", *fields, "", "")).encode()
        try:
            request = parse_request(head, takes_any=self.api.takes)
            request = replace(request, body=body or b"", is_private=self.is_private)
            self.api.admit(request, None if key else role)
            reply = asyncio.run(self.api.reply(request, None if key else role))
        except RefusalError as refusal:
            reply = refusal.reply
        answer = json.loads(reply.body or b"")
        self._check(request.method, request.path, reply.status, answer)
        return reply.status, answer

    def _check(self, method: str, path: str, status: int, answer: Json) -> None:
        if path.endswith("openapi.json"):
            return
        document: Json = self.document
        try:
            route = self.api._table.find(
                parse_request(f"{method} {path} HTTP/1.0\r\n\r\n".encode(), takes_any=self.api.takes)
            ).route
        except ApiError:
            assert not problems(answer, document["components"]["schemas"]["Error"], document)
            return
        told = document["paths"][route.path][route.method.lower()]["responses"]
        assert str(status) in told or status in (415,), (status, answer)
        schema = told.get(str(status), told["400"])["content"]["application/json"]["schema"]
        assert problems(answer, schema, document) == []


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """One without accounts, and with an empty store of records."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    SqliteStore(folder, days=30).close()
    yield Door(folder)


def record(folder: Path, *calls: Mapping[str, Any]) -> None:
    store = SqliteStore(folder, days=30)
    made = [row_of(n, made_call(n, **call)) for n, call in enumerate(calls, 1)]
    store.add(Batch("0.ring", len(made) + 1, made, {}, NOON_S))
    store.close()


def test_key_is_made_changed_rotated_and_taken_away(door: Door) -> None:
    """Its secret is shown twice: when it is made, and when it is rotated."""
    team = door("POST", "/api/v1/teams", {"id": "web", "models": ["gpt-4o*"]})
    made = door(
        "POST",
        "/api/v1/keys",
        {"name": "shop", "team": team["id"], "rpm": 60, "budgets": [{"usd": 5, "window": "day"}]},
    )
    assert made["key"].startswith("sk-") and made["budgets"][0]["usd"] == "5"
    at = f"/api/v1/keys/{made['id']}"

    shown = door("GET", at)
    assert "key" not in shown and shown["hint"].endswith(made["key"][-4:])
    assert door("PATCH", at, {"rpm": None, "tags": ["eu"]})["tags"] == ["eu"]
    assert door("POST", f"{at}/block")["blocked"] and not door("POST", f"{at}/unblock")["blocked"]
    rotated = door("POST", f"{at}/rotate", {"grace_s": 60})
    assert rotated["key"] != made["key"]
    assert door.accounts.key_in_force(made["key"]) and door.accounts.key_in_force(rotated["key"])
    assert door("DELETE", at) == {"id": made["id"], "deleted": True}
    assert door.refused("GET", at) == (404, "not_found", None)

    changes = door("GET", f"/api/v1/changes?kind=key&id={made['id']}")["data"]
    assert [each["action"] for each in changes] == ["delete", "rotate", "unblock", "block", "update", "create"]
    assert {each["actor"] for each in changes} == {"admin"}
    assert made["key"] not in json.dumps(changes) and rotated["key"] not in json.dumps(changes)


def test_lists_come_in_pages_that_miss_nothing(door: Door) -> None:
    """Of any size, in the order of ids; by team and name."""
    for n in range(25):
        door("POST", "/api/v1/users", {"id": f"u{n:02}", "name": f"n{n % 2}"})
    found, cursor = [], ""
    while True:
        page = door("GET", f"/api/v1/users?limit=7&cursor={cursor}")
        found += [each["id"] for each in page["data"]]
        if page["cursor"] is None:
            break
        cursor = page["cursor"]
    assert found == [f"u{n:02}" for n in range(25)]
    assert len(door("GET", "/api/v1/users?name=n1")["data"]) == 12


@pytest.mark.parametrize(
    ("method", "target", "body", "wanted"),
    [
        ("POST", "/api/v1/keys", {"name": "a", "budgett": []}, (400, "invalid", "budgett")),
        ("POST", "/api/v1/keys", {"name": "a", "rpm": "60"}, (400, "invalid", "rpm")),
        ("POST", "/api/v1/keys", {"name": "a", "rpm": True}, (400, "invalid", "rpm")),
        ("POST", "/api/v1/keys", {"name": "a", "tpm": -1}, (400, "invalid", "tpm")),
        ("POST", "/api/v1/keys", {"name": "a", "tpm": 1e300}, (400, "invalid", "tpm")),
        ("POST", "/api/v1/keys", {"team": "nobody"}, (400, "invalid", "team")),
        (
            "POST",
            "/api/v1/keys",
            {"name": "a", "budgets": [{"usd": 5, "windw": "day"}]},
            (400, "invalid", "budgets.windw"),
        ),
        ("POST", "/api/v1/keys", {"name": "a", "key": "short"}, (400, "invalid", "key")),
        ("POST", "/api/v1/keys", {"id": "a/b"}, (400, "invalid", "id")),
        ("POST", "/api/v1/keys", [], (400, "invalid", None)),
        ("POST", "/api/v1/teams", {"name": "a\0b"}, (400, "invalid", "name")),
        ("POST", "/api/v1/users", {"email": "x"}, (400, "invalid", "email")),
        ("PATCH", "/api/v1/keys/nobody", {"rpm": 1}, (404, "not_found", None)),
        ("DELETE", "/api/v1/teams/nobody", None, (404, "not_found", None)),
        ("POST", "/api/v1/keys/nobody/rotate", {"grace": 1}, (400, "invalid", "grace")),
        ("POST", "/api/v1/keys/nobody/block", {"x": 1}, (400, "invalid", None)),
        ("POST", "/api/v1/keys", {}, (400, "invalid", "name")),
        ("POST", "/api/v1/keys", {"rpm": 60, "name": None, "team": ""}, (400, "invalid", "name")),
        ("POST", "/api/v1/keys", None, (400, "invalid", None)),
        ("POST", "/api/v1/teams", None, (400, "invalid", None)),
        ("PATCH", "/api/v1/keys/nobody", None, (400, "invalid", None)),
        ("GET", "/api/v1/keys?limit=0", None, (400, "invalid", "limit")),
        ("GET", "/api/v1/keys?limit=1001", None, (400, "invalid", "limit")),
        ("GET", "/api/v1/keys?limit=1&limit=2", None, (400, "invalid", "limit")),
        ("GET", "/api/v1/keys?lmit=1", None, (400, "invalid", "lmit")),
        ("GET", "/api/v1/keys?%FF", None, (400, "invalid", None)),
        ("GET", "/api/v1/changes?cursor=x", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/changes?kind=null", None, (400, "invalid", "kind")),
        ("POST", "/api/v1/keys", {"name": "a", "rpm": 60.5}, (400, "invalid", "rpm")),
        ("GET", "/api/v1/usage?by=colour", None, (400, "invalid", "by")),
        ("GET", "/api/v1/usage?since=yesterday", None, (400, "invalid", "since")),
        ("GET", "/api/v1/calls?since=0001-01-01", None, (400, "invalid", "since")),
        ("GET", "/api/v1/usage?by=key&since=2026-11-01T12:30", None, (400, "invalid", "since")),
        ("GET", "/api/v1/calls?until=9999-12-31T23:59:59-14:00", None, (400, "invalid", "until")),
        ("GET", "/api/v1/calls?cursor=1", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/calls?cursor=1.2.3", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/usage?cursor=x", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/usage?cursor=W10", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/usage?cursor=WyJ4Il0", None, (400, "invalid", "cursor")),
        ("GET", "/api/v1/usage?by=key&cursor=WzFd", None, (400, "invalid", "cursor")),
        ("PUT", "/api/v1/keys", {}, (405, "method_not_allowed", None)),
        ("GET", "/api/v1/nothing", None, (404, "not_found", None)),
        ("GET", "/api/v1/keys/a%2Fb", None, (404, "not_found", None)),
    ],
)
def test_what_is_mistyped_is_told_by_its_name(
    door: Door, method: str, target: str, body: object, wanted: tuple[int, str, str | None]
) -> None:
    """And nothing is made, or changed."""
    before = door.accounts.number()
    assert door.refused(method, target, body) == wanted
    assert door.accounts.number() == before


def test_whole_number_may_be_written_with_a_point(door: Door) -> None:
    """JSON has one kind of numbers: 60.0 is 60, in rates and in budgets."""
    budget = {"tokens": 1000.0, "window": 3600.0, "soft": [50.0]}
    made = door("POST", "/api/v1/keys", {"name": "a", "rpm": 60.0, "budgets": [budget]})
    assert (made["rpm"], made["budgets"][0]["tokens"], made["budgets"][0]["soft"]) == (60, 1000, [50])


@pytest.mark.parametrize(
    "body", [b"{", b'{"a"', b"\xff", b"[" * 100_000, b'{"rpm": 1e99999}', b'{"rpm": NaN}', b"null", b'"x"']
)
def test_body_that_is_no_object_is_refused(door: Door, body: bytes) -> None:
    """Whatever it is."""
    status, answer = door.raw("POST", "/api/v1/keys", body)
    assert (status, answer["error"]["code"]) == (400, "invalid")
    assert door.accounts.number() == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"id": "a", "id": "b"}', "id"),
        (b'{"id": "a", "\\u0069d": "a"}', "id"),
        (b'{"id": "a", "budgets": [{"usd": 1, "window": "day", "usd": 2}]}', "usd"),
        (b'{"id": "a", "metadata": {"x": {"y": 1, "y": 1}}}', "y"),
        (b'{"id": "a", "' + b"n" * 100 + b'": 1, "' + b"n" * 100 + b'": 1}', "n" * 64),
    ],
)
def test_field_that_is_given_twice_is_refused_by_its_name(door: Door, body: bytes, field: str) -> None:
    """As in requests of clients: one reader takes the first, another the last."""
    status, answer = door.raw("POST", "/api/v1/keys", body)
    assert (status, answer["error"]["code"], answer["error"]["field"]) == (400, "invalid", field)
    assert door.accounts.number() == 0


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_body_that_is_not_said_to_be_json_is_refused(door: Door, media: str) -> None:
    """A page of a browser may send these without asking; so may a program that forgot to say it."""
    head = f"POST /api/v1/keys HTTP/1.1\r\nHost: localhost\r\n{f'Content-Type: {media}' if media else 'X: y'}\r\n\r\n"
    request = replace(parse_request(head.encode(), takes_any=door.api.takes), body=b'{"name": "a"}')
    reply = asyncio.run(door.api.reply(request, Role.ADMIN))
    assert reply.status == 415 and b"Content-Type: application/json" in (reply.body or b"")
    assert door.accounts.number() == 0


def test_new_key_is_shown_to_nobody_else(door: Door) -> None:
    """Over plain HTTP of another machine a key is made only of a digest."""
    door.is_private = False
    assert door.refused("POST", "/api/v1/keys", {"name": "a"}) == (403, "not_private", None)
    made = door("POST", "/api/v1/keys", {"name": "a", "digest": "ab" * 32})
    assert made["key"] is None
    assert door.refused("POST", f"/api/v1/keys/{made['id']}/rotate") == (403, "not_private", None)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPEN])
def test_who_may_only_read_changes_nothing(door: Door, role: Role) -> None:
    """Every route."""
    door("POST", "/api/v1/keys", {"id": "k"})
    number = door.accounts.number()
    for route in door.routes:
        target = route.path.replace("{id}", "k" if "/keys" in route.path else "none")
        if route.method == "GET":
            assert door.raw(route.method, target, role=role)[0] in (200, 404)
        else:
            assert door.refused(route.method, target, role=role)[:2] == (403, "forbidden")
    assert door.accounts.number() == number


def test_client_sees_what_is_its_teams(door: Door) -> None:
    """Its keys, its usage; nothing of another's, and no other team has its own of the same name."""
    for team in ("red", "blue"):
        door("POST", "/api/v1/teams", {"id": team})
    mine = door("POST", "/api/v1/keys", {"id": "mine", "team": "red"})
    door("POST", "/api/v1/keys", {"id": "sister", "team": "red"})
    door("POST", "/api/v1/keys", {"id": "other", "team": "blue"})
    lone = door("POST", "/api/v1/keys", {"id": "lone", "name": "same"})
    twin = door("POST", "/api/v1/keys", {"id": "twin", "name": "same"})
    texts = {
        each["id"]: recorded_key(caller_id(door.accounts.key_in_force(each["key"])), each["name"] or each["id"])  # type: ignore[arg-type]
        for each in (mine, lone, twin)
    }
    record(
        door.folder,
        {"team": "red", "key": texts["mine"]},
        {"team": "blue", "key": "x other"},
        {"team": "", "key": texts["lone"]},
        {"team": "", "key": texts["twin"]},
    )

    def ids(target: str, key: Json) -> list[str]:
        return [each["id"] for each in door("GET", target, key=key["key"])["data"]]

    assert ids("/api/v1/keys", mine) == ["mine", "sister"] and ids("/api/v1/keys?team=blue", mine) == ["mine", "sister"]
    assert ids("/api/v1/teams", mine) == ["red"] and ids("/api/v1/users", mine) == []
    assert ids("/api/v1/keys", lone) == ["lone"] and ids("/api/v1/teams", lone) == []
    door("POST", "/api/v1/users", {"id": "red"})
    door("POST", "/api/v1/teams", {"id": "mine"})
    for target in ("/api/v1/keys/other", "/api/v1/teams/blue", "/api/v1/users/red", "/api/v1/teams/mine"):
        assert door.refused("GET", target, key=mine["key"]) == (404, "not_found", None)
    assert door("GET", "/api/v1/keys/sister", key=mine["key"])["id"] == "sister"
    for target in ("/api/v1/usage", "/api/v1/usage?team=blue", "/api/v1/usage?by=team"):
        rows = door("GET", f"{target}{'&' if '?' in target else '?'}since=2026-11-23", key=mine["key"])["data"]
        assert sum(row["calls"] for row in rows) == ("blue" not in target)
    assert len(door("GET", "/api/v1/calls?since=2026-11-23", key=lone["key"])["data"]) == 1
    assert door.refused("GET", "/api/v1/changes", key=mine["key"])[:2] == (403, "forbidden")
    assert door.refused("POST", "/api/v1/keys", {}, key=mine["key"])[:2] == (403, "forbidden")
    assert door.refused("POST", "/api/v1/teams", {}, key=mine["key"])[:2] == (401, "unauthorized")
    door("POST", "/api/v1/keys/mine/block")
    assert door.refused("GET", "/api/v1/keys", key=mine["key"])[:2] == (401, "unauthorized")
    assert door.refused("GET", "/api/v1/keys", key="sk-nobody")[:2] == (401, "unauthorized")


def test_usage_of_a_key_is_found_by_each_of_its_names(door: Door) -> None:
    """By its id and by what records have, whatever it was named then; by its name alone, with others of that name."""
    made = door("POST", "/api/v1/keys", {"id": "k1", "name": "shop"})
    id_ = caller_id_of("k1").hex()
    teamless: Json = {"team": ""}
    record(
        door.folder,
        {**teamless, "key": f"{id_} shop"},
        {**teamless, "key": f"{id_} before"},
        {**teamless, "key": f"{'0' * 16} shop"},
        {**teamless, "key": ""},
    )

    def counts(key: str) -> tuple[int, int]:
        rows = door("GET", f"/api/v1/usage?key={key}&by=")["data"]
        return sum(row["calls"] for row in rows), len(door("GET", f"/api/v1/calls?key={key}")["data"])

    assert counts("k1") == counts(id_) == counts(f"{id_}%20shop") == counts(f"{id_}%20other") == (2, 2)
    assert counts("shop") == (2, 2) and counts("before") == (1, 1) and counts("") == (1, 1)
    assert counts("nobody") == counts("'") == counts("sho_") == counts(id_[:15]) == (0, 0)
    door("PATCH", "/api/v1/keys/k1", {"name": "store"})
    assert sum(row["calls"] for row in door("GET", "/api/v1/usage", key=made["key"])["data"]) == 2


def test_case_20_usage_and_calls_come_in_pages(door: Door) -> None:
    """Each call once, though many begin in one microsecond."""
    times = [NOON_S + n // 7 for n in range(40)]
    record(door.folder, *({"started_s": time_s, "model": f"m{n % 3}"} for n, time_s in enumerate(times)))
    found, target = [], "/api/v1/calls?since=2026-11-23&limit=3"
    cursor: str | None = ""
    while cursor is not None:
        page = door("GET", target + (f"&cursor={cursor}" if cursor else ""))
        found += [each["id"] for each in page["data"]]
        cursor = page["cursor"]
    assert len(found) == len(set(found)) == 40
    rows: list[dict[str, Any]] = []
    cursor = ""
    while cursor is not None:
        more = f"&cursor={cursor}" if cursor else ""
        page = door("GET", f"/api/v1/usage?since=2026-11-23&by=model,minute&limit=2{more}")
        rows += page["data"]
        cursor = page["cursor"]
    assert len(rows) == len({(row["model"], row["minute"]) for row in rows})
    assert sum(row["calls"] for row in rows) == 40 and {row["model"] for row in rows} == {"m0", "m1", "m2"}
    assert sum(float(row["cost_usd"]) for row in rows) == pytest.approx(40 * 1.5e-6)


def test_database_that_is_away_is_told_of(door: Door) -> None:
    """503; its place is in the operations log alone."""
    door.is_away = True
    status, answer = door.raw("GET", "/api/v1/keys")
    assert (status, answer["error"]["code"]) == (503, "database") and "/secret" not in str(answer)
    line = json.loads(door.log.getvalue())
    assert line["message"] == "admin API: the database can't be used: /secret/folder: it is gone"


def test_description_names_each_field_and_no_other(door: Door) -> None:
    """What is given to a key is what the service knows."""
    for kind in KINDS:
        described = set(given(kind, is_new=True)["properties"]) - {"id", "key", "digest"}
        assert described == set(FIELDS[kind])
    operations = {
        (method.upper(), path): each
        for path, methods in door.document["paths"].items()
        for method, each in methods.items()
    }
    assert set(operations) == {(route.method, route.path) for route in door.routes}
    names = [each["operationId"] for each in operations.values()]
    assert len(names) == len(set(names)) == 25
    for each in operations.values():
        assert each["summary"].endswith(".") and all(parameter["schema"] for parameter in each["parameters"])


@pytest.mark.slow
def test_noise_never_breaks_it(door: Door) -> None:
    """Random targets and bodies, some of them SQL: a refusal or an answer as described, and the tables stay."""
    rng = random.Random(20)
    texts = ["'; DROP TABLE account; --", "%", "\0", "\ud800", "a" * 5000, "../..", "é", "{}", "-1", "1e9", "null", ""]
    values: list[Any] = [*texts, None, True, -1, 2**70, 1.5, [], [[]], {}, {"a": {"b": []}}, ["x"] * 2000]
    names = [*FIELDS["key"], *FIELDS["user"], "id", "key", "digest", "grace_s", *texts]
    parameters = ["limit", "cursor", "name", "by", "since", "until", "key", "x"]
    given_texts = ["1", "%27", "%00", "day", "-", "9" * 30, "tag,key", "%F0%9F%98%80", "0001-01-01", "9999-12-31"]
    door("POST", "/api/v1/keys", {"id": "kept"})
    for _ in range(600):
        route = rng.choice(door.routes)
        id_ = rng.choice(["kept", "none", "%27--", "%C3%A9", "a" * 300])
        query = "&".join(f"{rng.choice(parameters)}={rng.choice(given_texts)}" for _ in range(rng.randrange(3)))
        target = route.path.replace("{id}", id_) + (f"?{query}" if query else "")
        body = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(4))}
        if route.method == "DELETE" or route.path.endswith("/block"):
            continue
        status, _ = door.raw(route.method, target, json.dumps(body).encode() if route.method != "GET" else None)
        assert status < 500, target
    assert door("GET", "/api/v1/keys/kept")["id"] == "kept"
