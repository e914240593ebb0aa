"""`GET /v1/models`: who is asked, how long an answer counts, and which requests are answered here at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pytest

from tests.sockets.gateway.composed import member_of
from tests.unit.virtual_time import run
from velox.errors import Reason, VeloxError
from velox.gateway.cluster.models import ModelsPage
from velox.gateway.cluster.routing import Routing
from velox.gateway.upstreams.member import Member
from velox.gateway.upstreams.model_sources import FetchError, ModelSources
from velox.heads import Header, RequestHead
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.policy.routes.match import RouteTable
from velox.settings import load
from velox.types import Caller, KeyTerms

UPSTREAMS: Final = """
upstreams:
  - {name: one, origin: http://127.0.0.1:1}
  - {name: two, origin: [http://127.0.0.1:2, http://127.0.0.1:3], models: [fixed]}
api_keys: [{name: a, key: 1234567890123456}, {name: b, key: 2234567890123456}]
"""
A: Final = Caller("a")


@dataclass
class Upstreams:
    """What upstreams answer, and how often they were asked. answers: models by name, or what is raised."""

    answers: dict[str, Any]
    takes_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    n_at_once: int = 0
    models: dict[str, Any] = field(default_factory=dict)  # by "UPSTREAM PATH"; others: there is none
    asked_models: list[str] = field(default_factory=list)

    async def fetch_model(self, members: Sequence[Member], path: str) -> bytes:
        question = f"{members[0].name} {path}"
        self.asked_models.append(question)
        self.n_at_once += 1
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.n_at_once -= 1
        answer: bytes | Exception = self.models.get(question, b"")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(self, members: Sequence[Member], prefix: str) -> bytes:
        name = members[0].name
        self.asked.append(f"{prefix} {name}")
        self.n_at_once += 1
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.n_at_once -= 1
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else a_list(*answer)

    def n_asked(self) -> int:
        """Return how many questions came since this was asked last."""
        n = len(self.asked)
        self.asked.clear()
        return n


def a_list(*names: str) -> bytes:
    return orjson.dumps({"object": "list", "data": [{"id": name, "object": "model", "from": "it"} for name in names]})


def routing_of(file: Path, text: str = UPSTREAMS, known: Sequence[Member] = ()) -> Routing:
    """Return the routing of a configuration. known: members of another one; those of equal settings stay."""
    file.write_text(text)
    settings = load({"VELOX_CONFIG": str(file), "BEDROCK": "k" * 16}, cores=2)
    members: list[Any] = []
    for entry in settings.upstreams:
        old = [member for member in known if member.entry == entry]
        members += old or [member_of(entry) for _ in entry.origins]
    return Routing(RouteTable(settings.routes), members, lambda entry: pytest.fail("no request goes up"))


def head(path: bytes = b"/v1/models", *headers: Header, method: bytes = b"GET") -> RequestHead:
    return RequestHead.of(method, path, headers)


class Desk:
    """A page and its upstreams."""

    def __init__(self, file: Path, upstreams: Upstreams, prefixes: Sequence[str] = ("*",)) -> None:
        self.file: Final = file
        self.upstreams: Final = upstreams
        self.routing = routing_of(file)
        self.problems: Final[list[tuple[str, str | None]]] = []
        self.bugs: Final[list[Exception]] = []
        self.sources: Final = ModelSources(
            asyncio.get_running_loop(),
            upstreams.fetch,
            fetch_model=upstreams.fetch_model,
            on_problem=lambda name, problem: self.problems.append((name, problem)),
            on_bug=self.bugs.append,
        )
        self.page: Final = ModelsPage(self.sources, prefixes)
        self.turns = TurnBudget(asyncio.get_running_loop())

    async def names(self, path: bytes = b"/v1/models", caller: Caller = A, *headers: Header) -> str:
        """Return the names that a caller gets."""
        request = head(path, *headers)
        assert self.page.serves(request, caller, self.routing)
        status, fields, body = await self.page.answer(request, caller, self.routing, self.turns)
        assert (status, fields) == (200, [(b"content-type", b"application/json")])
        listed = orjson.loads(body)
        assert listed["object"] == "list"
        return " ".join(model["id"] for model in listed["data"])

    async def one(self, name: str, caller: Caller = A) -> Any:
        _, _, body = await self.page.answer(head(b"/v1/models/" + name.encode()), caller, self.routing, self.turns)
        return orjson.loads(body)

    def reload(self, text: str) -> None:
        members: Any = self.routing.members
        self.routing = routing_of(self.file, text, members)


Story: TypeAlias = Callable[[Desk], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    def play(story: Story, answers: dict[str, Any] | None = None, *, takes_s: float = 0.0, **more: Any) -> None:
        async def main() -> None:
            given = {"one": ["b", "a"], "two": ["fixed", "other"]} if answers is None else answers
            desk = Desk(tmp_path / "velox.yaml", Upstreams(given, takes_s), **more)
            await story(desk)
            desk.page.close()
            await asyncio.sleep(0)
            assert not desk.upstreams.n_at_once, "somebody is still asked"
            assert not desk.bugs

        run(main())

    return play


Play: TypeAlias = Callable[..., None]


def test_models_of_all_upstreams_are_one_list(play: Play) -> None:
    """Sorted, each once, with what its upstream says of it. A second look asks nobody."""

    async def story(desk: Desk) -> None:
        assert await desk.names() == "a b fixed"
        assert desk.upstreams.asked == ["/v1 one", "/v1 two"]
        assert await desk.one("a") == {"id": "a", "object": "model", "from": "it", "created": 0, "owned_by": "one"}
        assert await desk.names() == "a b fixed"
        assert desk.upstreams.n_asked() == 2

    play(story)


@pytest.mark.parametrize("name", ["", "a", "unknown"])
def test_thousand_who_ask_at_once_are_answered_in_several_turns(play: Play, name: str) -> None:
    """X9: all wait for one word of an upstream. They were answered in one turn, which took 200 ms."""
    now_s, n_asking, n_turns, ended = [0.0], 300, [0], Counter[int]()

    def later() -> float:
        now_s[0] += TURN_S / 8
        return now_s[0]

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        desk.turns = TurnBudget(loop, later)

        def count() -> None:
            n_turns[0] += 1
            if ended.total() < n_asking:
                loop.call_soon(count)

        async def ask() -> None:
            try:
                assert await (desk.one(name) if name else desk.names())
            except VeloxError as error:
                assert (name, error.reason) == ("unknown", Reason.UNKNOWN_MODEL)
            ended[n_turns[0]] += 1

        count()
        await asyncio.gather(*(ask() for _ in range(n_asking)))
        assert ended.total() == n_asking and max(ended.values()) <= 2 * 8
        assert len(desk.upstreams.asked) <= 4

    play(story)


def test_answer_counts_for_a_minute_and_then_while_the_next_one_comes(play: Play) -> None:
    """Nobody waits for an upstream that has answered before."""

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        await desk.names()
        await asyncio.sleep(59.0)
        await desk.names()
        assert desk.upstreams.n_asked() == 2

        desk.upstreams.answers["one"] = ["new"]
        await asyncio.sleep(2.0)
        before_s = loop.time()
        assert await desk.names() == "a b fixed"
        assert await desk.names() == "a b fixed"
        assert loop.time() == before_s
        await asyncio.sleep(2.0)
        assert await desk.names() == "fixed new"
        assert desk.upstreams.n_asked() == 2

    play(story, takes_s=0.5)


def test_one_question_at_a_time(play: Play) -> None:
    """However many want to know, also the first ones, who wait for the same answer."""

    async def story(desk: Desk) -> None:
        found = await asyncio.gather(*(desk.names() for _ in range(20)))
        assert set(found) == {"a b fixed"}
        assert desk.upstreams.n_asked() == 2

    play(story, takes_s=0.5)


FAILURES: dict[str, tuple[Any, str]] = {
    "status": (FetchError("it answered 401"), "it answered 401"),
    "network": (VeloxError(Reason.UPSTREAM_CONNECT, "no connection"), "no connection"),
    "no list": (b"<html>", "its answer is no list of models"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_upstream_that_fails_leaves_out_only_its_own(play: Play, kind: str) -> None:
    """What the settings say of it stays. It is told once, and once that it is over."""
    failure, message = FAILURES[kind]

    async def story(desk: Desk) -> None:
        assert await desk.names() == "a b fixed"
        desk.upstreams.answers["one"] = failure
        await asyncio.sleep(61.0)
        # It is taken at its word for a while.
        for _ in range(40):
            assert await desk.names() == "a b fixed"
            await asyncio.sleep(11.0)
        assert desk.problems == [("one", message)]
        await asyncio.sleep(200.0)
        assert await desk.names() == "fixed"

        desk.upstreams.answers["one"] = ["c"]
        await asyncio.sleep(11.0)
        await desk.names()
        await asyncio.sleep(1.0)
        assert await desk.names() == "c fixed"
        assert desk.problems == [("one", message), ("one", None)]

    play(story)


def test_upstream_that_never_answered_is_waited_for_once(play: Play) -> None:
    """And is asked again only after a while, by somebody who does not wait."""

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        assert await desk.names() == "fixed"
        for _ in range(3):
            before_s = loop.time()
            assert await desk.names() == "fixed"
            assert loop.time() == before_s
        assert desk.upstreams.n_asked() == 2
        await asyncio.sleep(9.0)
        await desk.names()
        await asyncio.sleep(1.0)
        assert desk.upstreams.n_asked() == 0
        await desk.names()
        await asyncio.sleep(1.0)
        assert desk.upstreams.asked == ["/v1 one"]

    play(story, {"one": FetchError("no"), "two": ["fixed"]}, takes_s=0.5)


def test_first_list_comes_within_a_second(play: Play) -> None:
    """C56: what is known by then is the list, and what comes later completes it. Claude Code waits three seconds."""

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        assert await desk.names() == "fixed"
        assert loop.time() - before_s == 1.0
        await asyncio.sleep(8.1)
        assert await desk.names() == "a b fixed"

    play(story, takes_s=9.0)


def test_empty_list_waits_for_the_first_answer(play: Play) -> None:
    """C56: longer than for others, as nothing is of no use to anybody; one answer is enough, and 2.5 s are the end."""

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        desk.reload("upstreams: [{name: none, origin: http://127.0.0.1:1}, {name: one, origin: http://127.0.0.1:1}]")
        before_s = loop.time()
        assert await desk.names() == "a b"
        assert loop.time() - before_s == 2.0
        desk.reload("upstreams: [{name: late, origin: http://127.0.0.1:1}]")
        desk.upstreams.takes_s = 9.0
        before_s = loop.time()
        assert await desk.names() == ""
        assert loop.time() - before_s == 2.5

    play(story, {"one": ["a", "b"], "none": [], "late": ["c"]}, takes_s=2.0)


def test_list_is_not_empty_after_a_quiet_time(play: Play) -> None:
    """RC6: nobody asked for longer than an answer counts: who asks next waits for the new one."""

    async def story(desk: Desk) -> None:
        assert await desk.names() == "a b fixed"
        await asyncio.sleep(607.0)
        desk.upstreams.answers["one"] = ["new"]
        assert await desk.names() == "fixed new"

    play(story, takes_s=0.5)


def test_old_list_counts_until_the_upstream_has_failed(play: Play) -> None:
    """RC6: a slow upstream's old list is better than none; a dead one's is no list."""

    async def story(desk: Desk) -> None:
        loop = asyncio.get_running_loop()
        assert await desk.names() == "a b fixed"
        await asyncio.sleep(86_400.0)
        desk.upstreams.takes_s = 9.0
        desk.upstreams.answers["one"] = FetchError("no")
        before_s = loop.time()
        assert await desk.names() == "a b fixed"
        assert loop.time() - before_s == 1.0
        await asyncio.sleep(9.0)
        assert await desk.names() == "fixed"

    play(story, takes_s=0.5)


def test_failure_of_long_ago_is_no_reason_not_to_wait(play: Play) -> None:
    """RC6: it failed once, then nobody asked for a while: it may be well again."""

    async def story(desk: Desk) -> None:
        desk.upstreams.answers["one"] = FetchError("no")
        assert await desk.names() == "fixed"
        desk.upstreams.answers["one"] = ["a"]
        await asyncio.sleep(700.0)
        assert await desk.names() == "a fixed"

    play(story, takes_s=0.5)


def test_who_leaves_takes_the_question_from_nobody(play: Play) -> None:
    """A client that goes, or is out of time, ends its own wait only."""

    async def story(desk: Desk) -> None:
        first, second = asyncio.ensure_future(desk.names()), asyncio.ensure_future(desk.names())
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == "a b fixed"
        assert first.cancelled() and desk.upstreams.n_asked() == 2

    play(story, takes_s=0.5)


def test_end_leaves_no_question_open(play: Play) -> None:
    """A reload that takes an upstream away ends its question, and so does the end of the worker."""

    async def story(desk: Desk) -> None:
        assert await desk.names() == "fixed"
        assert desk.upstreams.n_at_once == 2
        desk.reload(UPSTREAMS.replace("name: one", "name: three"))
        assert await desk.names() == "fixed"
        assert desk.upstreams.n_at_once == 2  # two and three

    play(story, {"one": [], "two": [], "three": []}, takes_s=60.0)


def test_bug_is_told_and_leaves_the_others(play: Play) -> None:
    async def story(desk: Desk) -> None:
        assert await desk.names() == "fixed"
        assert isinstance(desk.bugs.pop(), RuntimeError)

    play(story, {"one": RuntimeError("a bug"), "two": ["fixed"]})


def test_reload_keeps_what_upstreams_said_whose_settings_are_the_same(play: Play) -> None:
    """One that is gone is gone; one that is new is asked; routes count at once."""

    async def story(desk: Desk) -> None:
        assert await desk.names() == "a b fixed"
        desk.upstreams.n_asked()
        desk.reload(UPSTREAMS.replace("models: [fixed]", "models: [other]"))
        assert await desk.names() == "a b other"
        assert desk.upstreams.asked == ["/v1 two"]
        desk.upstreams.n_asked()
        desk.reload(UPSTREAMS + "routes: [{name: x, match: {models: [alias]}, to: one, model: a}]")
        assert (await desk.names(), (await desk.one("alias"))["from"]) == ("alias", "it")
        assert desk.upstreams.n_asked() == 0

    play(story)


def test_caller_gets_its_own_page(play: Play) -> None:
    """By key, by what the key is limited to, and by the headers that routes look at."""
    routes = """
routes:
  - {name: of-a, match: {keys: [a], models: [mine]}, to: one, model: a}
  - {name: tenant, match: {headers: {x-tenant: acme}, models: [acme]}, to: one, model: b}
  - {name: rest, to: [one, two]}
"""

    async def story(desk: Desk) -> None:
        desk.reload(UPSTREAMS + routes)
        for _ in range(2):
            assert await desk.names() == "a b fixed mine"
            assert await desk.names(b"/v1/models", Caller("b")) == "a b fixed"
            assert await desk.names(b"/v1/models", Caller("b", KeyTerms(models=("a", "f*")))) == "a fixed"
            assert await desk.names(b"/v1/models", Caller("b"), (b"x-tenant", b"acme")) == "a acme b fixed"
            assert await desk.names(b"/v1/models", Caller("b"), (b"x-other", b"acme")) == "a b fixed"

    play(story)


def test_one_model_is_asked_for(play: Play) -> None:
    """With slashes in its name, however they are written; one that can't be had is 404."""

    async def story(desk: Desk) -> None:
        assert (await desk.one("meta-llama/Llama-3"))["id"] == "meta-llama/Llama-3"
        assert (await desk.one("meta-llama%2FLlama-3"))["id"] == "meta-llama/Llama-3"
        assert (await desk.one("fixed"))["from"] == "it"
        for name, caller in (("c", A), ("meta-llama", A), ("%ff", A), ("fixed", Caller("a", KeyTerms(models=("a",))))):
            with pytest.raises(VeloxError) as refused:
                await desk.one(name, caller)
            assert (refused.value.reason, refused.value.status, refused.value.param) == (
                *(Reason.UNKNOWN_MODEL, 404),
                "model",
            )

    play(story, {"one": ["meta-llama/Llama-3"], "two": ["fixed"]})


def test_model_is_asked_for_by_the_name_that_it_has_there(play: Play) -> None:
    """RC10a: a route strips what the client's name begins with, from this question as from a request."""
    routes = "routes: [{name: local, match: {models: ['vllm/*']}, to: [{upstream: one, strip: vllm/}]}]"

    async def story(desk: Desk) -> None:
        desk.upstreams.models = {"one /v1/models/qwen/qwen3": b'{"id":"qwen/qwen3","max_model_len":8}'}
        desk.reload(UPSTREAMS + routes)
        found = await desk.one("vllm%2Fqwen%2Fqwen3")
        assert (found["id"], found["max_model_len"]) == ("vllm/qwen/qwen3", 8)
        assert desk.upstreams.asked_models == ["one /v1/models/qwen/qwen3"]

    play(story)


def test_provider_without_a_list_may_have_any_model(play: Play) -> None:
    """RC10a: a model that a request gets an answer from is there, also where nobody can be asked."""
    text = """
upstreams:
  - {name: bedrock, provider: bedrock, region: us-east-1, keys: [env:BEDROCK]}
  - {name: one, origin: http://127.0.0.1:1}
routes: [{name: aws, match: {models: ["bedrock/*"]}, to: [{upstream: bedrock, strip: bedrock/}]}, {name: rest, to: one}]
"""

    async def story(desk: Desk) -> None:
        desk.reload(text)
        assert (await desk.one("bedrock/amazon.nova-pro-v1:0"))["owned_by"] == "bedrock"
        assert desk.upstreams.asked == ["/v1 one"] and not desk.upstreams.asked_models
        with pytest.raises(VeloxError):
            await desk.one("amazon.nova-pro-v1:0")
        assert await desk.names() == "a b"

    play(story)


def test_model_on_no_list_is_asked_for_where_it_could_be(play: Play) -> None:
    """Known lists first; then the upstreams that the routes lead to and the settings allow, in order; then 404."""

    async def story(desk: Desk) -> None:
        upstreams = desk.upstreams
        upstreams.models = {
            "one /v1/models/ft%3Aa": b'{"id":"ft:a","object":"model","parent":"a"}',
            "one /v1/models/both": b'{"id":"both","from":1}',
            "three /v1/models/both": b'{"id":"both","from":3}',
            "three /v1/models/third": b'{"id":"third"}',
        }
        desk.reload(
            UPSTREAMS.replace("api_keys", "  - {name: three, origin: http://127.0.0.1:4, models: [b*, t*]}\napi_keys")
        )
        found = await desk.one("ft%3Aa")
        assert found == {"id": "ft:a", "object": "model", "parent": "a", "created": 0, "owned_by": "one"}
        assert upstreams.asked_models == ["one /v1/models/ft%3Aa"]  # two and three have others, by the settings
        assert (await desk.one("third"))["owned_by"] == "three"
        assert (await desk.one("both"))["from"] == 1
        assert (await desk.one("a"))["from"] == "it"
        upstreams.asked_models.clear()

        for _ in range(3):
            assert await desk.one("ft%3Aa") == found
            with pytest.raises(VeloxError) as refused:
                await desk.one("nowhere")
            assert refused.value.reason is Reason.UNKNOWN_MODEL
            with pytest.raises(VeloxError):
                await desk.one("both", Caller("a", KeyTerms(models=("a",))))  # a key that may not use it
            with pytest.raises(VeloxError):
                await desk.one("a/%2e%2e/%2e%2e/files/file-1")  # no model's name, but another path
        assert upstreams.asked_models == ["one /v1/models/nowhere"]

        await asyncio.sleep(61.0)
        upstreams.models["one /v1/models/nowhere"] = b'{"id":"nowhere"}'
        assert (await desk.one("nowhere"))["id"] == "nowhere"

    play(story, {"one": ["a"], "two": ["fixed"], "three": ["x"]})


def test_model_of_an_upstream_that_tells_nothing(play: Play) -> None:
    """One that has no list may have any model: what it says of one counts; if it says nothing, it may have it."""

    async def story(desk: Desk) -> None:
        upstreams = desk.upstreams
        upstreams.models = {
            "one /v1/models/there": b'{"id":"there","size":7}',
            "one /v1/models/silent": FetchError("it answered 500"),
        }
        assert (await desk.one("there"))["size"] == 7
        assert await desk.one("silent") == {"id": "silent", "object": "model", "created": 0, "owned_by": "one"}
        with pytest.raises(VeloxError) as refused:
            await desk.one("not-there")
        assert refused.value.reason is Reason.UNKNOWN_MODEL

    play(story, {"one": FetchError("no"), "two": ["fixed"]})


@pytest.mark.slow
def test_names_that_clients_make_up_are_few_questions(play: Play) -> None:
    """One question for the same name at a time, few altogether, and none is left over after a reload."""

    async def story(desk: Desk) -> None:
        async def ask(name: str) -> None:
            with pytest.raises(VeloxError):
                await desk.one(name)

        await desk.names()
        await asyncio.gather(*(ask("same") for _ in range(20)), *(ask(f"n{n}") for n in range(100)))
        assert len(desk.upstreams.asked_models) == 32
        for n in range(2000):
            await ask(f"m{n}")
        assert len(desk.sources._said) <= 1024, "clients make names up"
        late = [asyncio.ensure_future(ask(f"late{n}")) for n in range(3)]
        await asyncio.sleep(0.1)
        desk.reload(UPSTREAMS.replace("name: one", "name: three"))
        await desk.names()
        await asyncio.gather(*late)
        assert repr(desk.sources).endswith("0 asked>")

    play(story, {"one": ["a"], "two": ["fixed"], "three": ["x"]}, takes_s=0.5)


@pytest.mark.parametrize(
    ("request_head", "is_served"),
    [
        (head(), True),
        (head(method=b"HEAD"), True),
        (head(b"/v1/models/"), True),
        (head(b"/v1/models/a/b"), True),
        (head(b"/openai/v1/models"), True),
        (head(b"/models"), True),
        (head(method=b"DELETE"), False),
        (head(b"/v1/models/a:generate", method=b"POST"), False),
        (head(b"/v1/chat/completions"), False),
        (head(b"/v1/mymodels"), False),
        (head(b"/v1/models2"), False),
        (head(b"/v1/../models"), False),
        (head(b"/v1/%0d%0a/models"), False),
        (head(b"/a/b/c/d/e/f/g/h/i/models"), False),
        (head(b"/own/models"), False),
    ],
    ids=lambda value: f"{value.method} {value.path}" if isinstance(value, RequestHead) else "",
)
def test_requests_that_are_answered_here(play: Play, request_head: RequestHead, is_served: bool) -> None:
    """All others go up, also where a route is for this very path."""

    async def story(desk: Desk) -> None:
        desk.reload(
            UPSTREAMS
            + "routes: [{name: own, match: {paths: [/own/models*]}, to: one}, "
            + "{name: api, match: {paths: [/v1/*]}, to: one}, {name: rest, to: [one, two]}]"
        )
        assert desk.page.serves(request_head, A, desk.routing) is is_served

    play(story)


def test_prefixes_of_the_settings_are_where_models_are(play: Play) -> None:
    """VELOX_PATHS says where the API begins; there upstreams are asked."""

    async def story(desk: Desk) -> None:
        assert await desk.names(b"/api/v1/models") == "a b fixed"
        assert desk.upstreams.asked == ["/api/v1 one", "/api/v1 two"]
        for path in (b"/api/models", b"/v1/models", b"/api/v1/x/models"):
            assert not desk.page.serves(head(path), A, desk.routing)

    play(story, prefixes=("/api/v1", "/other/"))


def test_prefixes_that_a_client_makes_up_do_not_fill_the_memory(play: Play) -> None:
    """Some are kept, the one that was used last the longest ago goes."""

    async def story(desk: Desk) -> None:
        for n in range(20):
            await desk.names(b"/%d/models" % n)
            await desk.names()
        assert desk.upstreams.n_asked() == 42  # /v1 once
        assert repr(desk.sources) == "<ModelSources 16 kept, 0 asked>"

    play(story)


def test_gateway_of_the_variables_answers_nothing_here() -> None:
    """Its one upstream says what there is, as it ever did."""

    async def main() -> None:
        members: Any = [member_of(load({}, cores=2).upstreams[0])]
        sources = ModelSources(
            asyncio.get_running_loop(),
            Upstreams({}).fetch,
            fetch_model=Upstreams({}).fetch_model,
            on_problem=lambda *_: None,
            on_bug=lambda _: None,
        )
        routing = Routing(RouteTable(load({}, cores=2).routes), members, lambda entry: pytest.fail("none"))
        assert not ModelsPage(sources, ("*",)).serves(head(), A, routing)

    run(main())


@pytest.mark.slow
def test_lists_without_end_are_kept_by_name_only(play: Play) -> None:
    """Their objects would fill the memory."""
    # Nine of these are more than is kept.
    long = orjson.dumps({"data": [{"id": f"m{n}", "text": "x" * 1000} for n in range(3900)]})
    many = UPSTREAMS.split("api_keys")[0] + "".join(
        f"  - {{name: u{n}, origin: http://127.0.0.1:9}}\n" for n in range(9)
    )

    async def story(desk: Desk) -> None:
        desk.reload(many)
        desk.sources.replace(desk.routing.members)
        told = await desk.sources.model_lists([f"u{n}" for n in range(9)], "/v1")
        assert [len(each.models) for each in told.values()] == [3900] * 9
        assert [bool(each.models["m7"]) for each in told.values()] == [True] * 8 + [False]

    play(story, {f"u{n}": long for n in range(9)})
