"""What a provider keeps goes back to where it was made: the upstream and the key, whatever the balance is."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import Composed, Stand, composed, settings_with, upstream_of
from tests.sockets.gateway.core_attempts import run, status_of, whole
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedStream, ScriptedUpstream, request_head
from velox.gateway.access.access import Access
from velox.gateway.access.places import Place, Places
from velox.gateway.auth import Authenticator
from velox.heads import ReplyHead
from velox.net.upstream.interface import ReplySink, UpstreamRequest
from velox.policy.routes.entries import ANYTHING, RouteEntry, Target
from velox.policy.routes.sessions import lifetime_s
from velox.shm.object_table import ObjectMemory, ObjectTable
from velox.types import ANYONE, Caller, KeyEntry

JSON: Final = (b"content-type", b"application/json")
SSE: Final = (b"content-type", b"text/event-stream")
_BEARER: Final = re.compile(rb"(?:authorization: Bearer|x-api-key:) (\S+)", re.IGNORECASE)
# How the ids of each collection begin.
BEGINNINGS: Final = {
    "files": "file",
    "batches": "batch",
    "responses": "resp",
    "conversations": "conv",
    "vector_stores": "vs",
    "containers": "cntr",
    "fine_tuning/jobs": "ftjob",
    "uploads": "upload",
    "evals": "eval",
    "videos": "video",
    "messages/batches": "msgbatch",
}
_IDS: Final = re.compile(rf'"((?:{"|".join(BEGINNINGS.values())})[-_]\d+)"'.encode())


@dataclass
class World:
    """All organisations, each of one upstream's key: what it keeps, and what it was asked for that it has not."""

    kept: dict[str, set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class Provider(ScriptedUpstream):
    """An API that keeps objects: each key is of an organisation of its own, which sees its own alone."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__([])
        self.name: Final = name
        self.world: Final = world

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        if request.method == b"HEAD":
            return super().open(request, sink)
        stream = ScriptedStream(self, sink)
        lines = bytes(request.fields.lines(request.values))
        found = _BEARER.search(lines)
        organisation = f"{self.name}/{found.group(1).decode() if found else ''}"
        step = self.answer(organisation, request)
        asyncio.get_running_loop().call_soon(stream.play, step)
        return stream

    def answer(self, organisation: str, request: UpstreamRequest) -> tuple[ReplyHead, bytes, bool]:
        world, path = self.world, request.target.decode().partition("?")[0].removeprefix("/v1/")
        kept = world.kept.setdefault(organisation, set())
        world.asked[organisation] += 1
        body = bytes(request.body or b"")
        collection = next((each for each in sorted(BEGINNINGS, key=len, reverse=True) if path.startswith(each)), "")
        rest = path.removeprefix(collection).strip("/")
        named = {each.decode() for each in _IDS.findall(body)} | ({rest.split("/")[0]} if rest else set())
        if not named <= kept:
            world.wrong.append(f"{request.method.decode()} {path} at {organisation}")
            return whole(404, b'{"error":{"message":"No such object","code":"not_found"}}', JSON)[0]  # type: ignore[return-value]
        if request.method == b"GET" and not rest:
            data = [{"id": each} for each in sorted(kept) if each.startswith(BEGINNINGS[collection])]
            return whole(200, orjson.dumps({"object": "list", "data": data}), JSON)[0]  # type: ignore[return-value]
        made: dict[str, Any] = {"object": "x", "status": "completed", "output": []}
        if request.method == b"POST" and not rest:
            made["id"] = f"{BEGINNINGS[collection]}_{next(world.numbers)}"
            kept.add(made["id"])
        if b'"stream":true' in body:
            event = b"event: response.created\ndata: %b\n\n" % orjson.dumps(
                {"type": "response.created", "response": made}
            )
            return ReplyHead.of(200, [SSE], None), event + b"data: [DONE]\n\n", True
        return whole(200, orjson.dumps(made), JSON)[0]  # type: ignore[return-value]


class Gateway:
    """A gateway over two upstreams of one API with two keys each, all of other organisations."""

    def __init__(self, made: Composed, caller: Caller) -> None:
        self._gateway: Final = made.gateway
        self._caller: Final = caller

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        client, data = FakeClient(), None if body is None else orjson.dumps(body)
        head = request_head(method.encode(), path.encode())
        self._gateway.submit(client, head, data, self._caller)
        async with asyncio.timeout(PATIENCE_S):
            await client.finished.wait()
        text = client.written.partition(b"\r\n\r\n")[2]
        at = text.find(b"{")
        found = re.search(rb"\{.*\}", text[at:]) if at >= 0 else None
        return status_of(client), orjson.loads(found.group()) if found else {}


def played(test: Any, *, provider: str = "openai", n_names: int = 0, balance: str = "round_robin") -> World:
    """Run a test. n_names: of client keys; 0: the gateway asks for none."""
    world = World()

    async def main() -> None:
        entries = tuple(replace(upstream_of(name, n_keys=2), provider=provider) for name in "ab")
        route = RouteEntry("*", ANYTHING, tuple(map(Target, "ab")), balance=balance)
        settings = settings_with(upstreams=entries, routes=(route,))
        auth = Authenticator([KeyEntry(b"%d" % n * 32, name=f"name-{n}") for n in range(n_names)])
        access = Access(ObjectTable(ObjectMemory(8192, 1, 1), 0), auth)
        stands = {name: Stand(Provider(name, world).dial) for name in "ab"}
        with composed(settings, stands, access=access, auth=auth) as made:
            callers = [Caller(f"name-{n}", id=b"%08d" % n) for n in range(n_names)] or [ANYONE]
            await test([Gateway(made, each) for each in callers], random.Random(7))

    run(main)
    return world


async def follow_ups(gateways: list[Gateway], dice: random.Random) -> int:
    """Make one of each kind, and ask for it again and again; return how many requests named an object."""
    n = 0
    for turn in range(72):  # so many that each of four keys surely comes up more than a few times
        gateway = gateways[turn % len(gateways)]

        async def made(path: str, body: dict[str, Any], gateway: Gateway = gateway) -> str:
            status, told = await gateway.ask("POST", path, body)
            assert status == 200, (path, told)
            found: str = (told.get("response") or told)["id"]
            return found

        file = await made("/v1/files", {"purpose": "batch"})
        batch = await made("/v1/batches", {"input_file_id": file, "endpoint": "/v1/responses"})
        first = await made("/v1/responses", {"model": "gpt-5", "input": "a", "stream": bool(turn % 2)})
        second = await made("/v1/responses", {"model": "gpt-5", "input": "b", "previous_response_id": first})
        conversation = await made("/v1/conversations", {"metadata": {}})
        await made("/v1/responses", {"model": "gpt-5", "input": "b", "conversation": {"id": conversation}})
        store = await made("/v1/vector_stores", {"file_ids": [file]})
        container = await made("/v1/containers", {"name": "x"})
        job = await made("/v1/fine_tuning/jobs", {"model": "gpt-5", "training_file": file})
        tool = {"type": "file_search", "vector_store_ids": [store]}
        await made("/v1/responses", {"model": "gpt-5", "input": "c", "tools": [tool]})
        again = [
            ("GET", f"/v1/files/{file}", None),
            ("GET", f"/v1/files/{file}/content", None),
            ("GET", f"/v1/batches/{batch}", None),
            ("POST", f"/v1/batches/{batch}/cancel", {}),
            ("GET", f"/v1/responses/{first}", None),
            ("POST", f"/v1/responses/{second}/cancel", {}),
            ("GET", f"/v1/responses/{second}/input_items", None),
            ("GET", f"/v1/conversations/{conversation}/items", None),
            ("POST", f"/v1/vector_stores/{store}/files", {"file_id": file}),
            ("GET", f"/v1/vector_stores/{store}/files/{file}", None),
            ("POST", f"/v1/vector_stores/{store}/search", {"query": "q"}),
            ("GET", f"/v1/containers/{container}/files", None),
            ("POST", f"/v1/containers/{container}/files", {"file_id": file}),
            ("GET", f"/v1/fine_tuning/jobs/{job}", None),
            ("POST", f"/v1/fine_tuning/jobs/{job}/cancel", {}),
            ("DELETE", f"/v1/files/{file}", None),
        ]
        dice.shuffle(again)
        for method, path, body in again:
            status, told = await gateway.ask(method, path, body)
            assert status == 200, (method, path, told)
        n += 5 + len(again)
    return n


@pytest.mark.parametrize("n_names", [0, 1, 2], ids=["no keys", "one name", "two names"])
@pytest.mark.parametrize("balance", ["round_robin", "least_inflight"])
def test_none_of_a_thousand_follow_ups_goes_astray(n_names: int, balance: str) -> None:
    """W2: two keys of two organisations at two upstreams of one API; each object is there for who goes back to it."""
    found: list[int] = []

    async def test(gateways: list[Gateway], dice: random.Random) -> None:
        found.append(await follow_ups(gateways, dice))

    world = played(test, n_names=n_names, balance=balance)

    assert found[0] >= 1000 and world.wrong == []
    assert len(world.asked) == 4 and min(world.asked.values()) > 20, "all keys of both are used"


def test_what_belongs_together_is_kept_together() -> None:
    """W2: files and stores follow no model, so each caller has one place for them, and its lists are whole."""

    async def test(gateways: list[Gateway], dice: random.Random) -> None:
        for gateway in gateways:
            files = [(await gateway.ask("POST", "/v1/files", {}))[1]["id"] for _ in range(6)]
            assert (await gateway.ask("POST", "/v1/vector_stores", {"file_ids": files}))[0] == 200
            listed = (await gateway.ask("GET", "/v1/files"))[1]["data"]
            assert {each["id"] for each in listed} == set(files)

    assert played(test, n_names=6).wrong == []


def test_request_that_names_things_of_two_places_is_refused_here() -> None:
    """W2: nobody could answer it; the text says why."""

    async def test(gateways: list[Gateway], dice: random.Random) -> None:
        (gateway,) = gateways
        answers = [
            (await gateway.ask("POST", "/v1/responses", {"model": "gpt-5", "input": "a"}))[1]["id"] for _ in range(8)
        ]
        named = {"metadata": {"seen": answers}}
        status, told = await gateway.ask("POST", "/v1/conversations", named)
        assert status == 400 and "different upstreams" in told["error"]["message"]

    assert played(test).wrong == []


# -- sessions --------------------------------------------------------------------------------------


class Turns:
    """A gateway over two upstreams with two keys each, and where the turns of sessions went."""

    def __init__(self, made: Composed, world: World, clock: ObjectTable) -> None:
        self.made: Final = made
        self._world: Final = world
        self.table: Final = clock

    async def turn(self, session: str, *, header: bool = True) -> str:
        """Send a turn; return the organisation that was asked."""
        before = self._world.asked.copy()
        client = FakeClient()
        more = [(b"x-claude-code-session-id", session.encode())] if header and session else []
        body: dict[str, Any] = {"model": "gpt-5", "input": "a"}
        if session and not header:
            body["prompt_cache_key"] = session
        head = request_head(path=b"/v1/responses", more=more)
        self.made.gateway.submit(client, head, orjson.dumps(body), ANYONE)
        async with asyncio.timeout(PATIENCE_S):
            await client.finished.wait()
        assert status_of(client) == 200
        ((asked, n),) = (self._world.asked - before).items()
        assert n == 1
        return asked


def with_sessions(test: Any) -> None:
    world = World()

    async def main() -> None:
        entries = tuple(replace(upstream_of(name, n_keys=2), provider="openai") for name in "ab")
        route = RouteEntry("*", ANYTHING, tuple(map(Target, "ab")), balance="session")
        table = ObjectTable(ObjectMemory(8192, 1, 1), 0)
        stands = {name: Stand(Provider(name, world).dial) for name in "ab"}
        settings = settings_with(upstreams=entries, routes=(route,))
        with composed(settings, stands, access=Access(table, Authenticator([]))) as made:
            await test(Turns(made, world, table))

    run(main)


def test_each_session_stays_at_its_upstream_and_key() -> None:
    """K6: the prompt of each turn is in the cache there; sessions together use all keys of all upstreams."""

    async def test(turns: Turns) -> None:
        seen = Counter[str]()
        for n in range(24):
            places = {await turns.turn(f"session-{n}", header=bool(n % 2)) for _ in range(5)}
            assert len(places) == 1
            seen.update(places)
        assert len(seen) == 4, seen
        assert len({await turns.turn("") for _ in range(100)}) == 4, "what names no session goes anywhere"

    with_sessions(test)


def test_session_that_had_to_move_stays_where_it_went_as_long_as_its_prompt_is_kept() -> None:
    """K6: back at the first one all of it would be paid for again; later it may go back."""

    async def test(turns: Turns) -> None:
        home, places, name = await turns.turn("moved"), Places(turns.table), "\0moved"
        members = turns.made.gateway.routing.members
        other = next(each for each in members if each.name != home[0])
        now_ns = time.time_ns()

        places.keep_session(name, places.number(other, 1), now_ns)

        assert {await turns.turn("moved") for _ in range(4)} == {f"{other.name}/sk-of-the-gateway-1"}
        for age_s, kept in ((0.0, Place(other.name, 1)), (3500.0, Place(other.name, 1)), (3700.0, None)):
            assert places.session(name, now_ns + int(age_s * 1e9), lifetime_s_of, members) == kept

    def lifetime_s_of(provider: str) -> float:
        return lifetime_s(provider, None)

    with_sessions(test)
