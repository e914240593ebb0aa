"""The models that upstreams list themselves: fetched on demand, and cached.

    told()         what each of some upstreams has said; waits only for those that were never asked
    told_one()     what they say of one model that no list has
    fetch_list()   one upstream's `GET /v1/models`, by whichever of its members answers
    fetch_model()  its `GET /v1/models/NAME`

Knows: how old an answer may be, how many are kept, that an upstream is asked one question at a time. Does not know: who
may use which model (policy/model_catalog.py), or what a list looks like (protocol/model_list.py).

An answer counts for a minute. An older one counts too, but then the upstream is asked again meanwhile; and so it is
while it does not answer, for ten minutes. One that fails is left out, and nobody waits for it a second time.
An answer about one model counts for a minute, a "no" too: providers serve models that they don't list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from velox.errors import VeloxError
from velox.gateway.aside import Answer, ask
from velox.gateway.member import Member
from velox.gateway.steps import in_steps
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.routes import UpstreamEntry
from velox.protocol.model_list import is_model_object, reading_models

__all__ = ["FetchError", "ModelSources", "Told", "fetch_list", "fetch_model"]

_FRESH_S: Final = 60.0
_STALE_S: Final = 600.0  # as long as a failing upstream is taken at its word
_AGAIN_S: Final = 10.0  # after a failure
_WAIT_S: Final = 5.0  # for those that were never asked, all together
_TRY_S: Final = 2.5  # for one member, so that another one can be asked in time
_LIST_BYTES: Final = 2 * 1024 * 1024  # the longest known has 1 MB
# Of all answers: beyond, only the names are kept, and not what upstreams say of them.
_KEPT_BYTES: Final = 32 * 1024 * 1024
# Where the API begins, as clients ask for it: "/v1" and few others. Of these the one used last the longest ago goes.
_MOST_PREFIXES: Final = 8
# Of single models: what upstreams have said, and the questions at a time. Clients make names up.
_KEPT_MODELS: Final = 512
_MOST_QUESTIONS: Final = 32
_MODEL_BYTES: Final = 16 * 1024
_LIST: Final = "/models"
_NO_MODELS: Final = b'{"object":"list","data":[]}'


class FetchError(Exception):
    """An upstream gave no list. The message says why, and repeats nothing that it sent."""


class Told(NamedTuple):
    """What one upstream has said. serial: a number that no other answer has. models: their objects by name, in JSON."""

    serial: int
    models: Mapping[str, bytes]


# Returns the body of a list; raises FetchError.
Fetch: TypeAlias = Callable[[Sequence[Member], str], Awaitable[bytes]]
# Returns the object of a model, b"" where there is none; raises FetchError. Asked with the path.
FetchModel: TypeAlias = Callable[[Sequence[Member], str], Awaitable[bytes]]
# Told of an upstream that does not say what it serves, and why; None: it does again. Once each time.
OnProblem: TypeAlias = Callable[[str, str | None], None]


class _Said(NamedTuple):
    """What one upstream says of one model. answer: its object; b"": it has none."""

    until_s: float
    answer: bytes


class _Source:
    """One upstream, below one prefix."""

    __slots__ = ("asked_s", "digest", "entry", "failed", "members", "n_bytes", "task", "told", "told_s")

    def __init__(self, entry: UpstreamEntry, members: Sequence[Member]) -> None:
        self.entry: Final = entry
        self.members: Final = tuple(members)
        self.task: asyncio.Task[None] | None = None  # the question under way
        self.asked_s: float | None = None  # when the last answer or failure came; None: none yet
        self.failed = False
        self.told: Told | None = None
        self.told_s = 0.0
        self.digest = 0
        self.n_bytes = 0

    def is_due(self, now_s: float) -> bool:
        """Say whether it is to be asked now."""
        if self.task is not None:
            return False
        return self.asked_s is None or now_s - self.asked_s >= (_AGAIN_S if self.failed else _FRESH_S)


class ModelSources:
    """The answers of one worker. fetch, fetch_model: query an upstream. on_problem, on_bug: called with what failed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetch: Fetch,
        *,
        fetch_model: FetchModel,
        on_problem: OnProblem,
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._loop: Final = loop
        self._fetch: Final = fetch
        self._fetch_model: Final = fetch_model
        self._said: Final[Memo[tuple[str, str], _Said]] = Memo(_KEPT_MODELS)  # by upstream and path
        self._questions: Final[dict[tuple[str, str], asyncio.Task[None]]] = {}
        self._on_problem: Final = on_problem
        self._on_bug: Final = on_bug
        self._members: dict[str, list[Member]] = {}
        self._by_prefix: Final[dict[str, dict[str, _Source]]] = {}  # the one that was used last is the last
        self._n_told = 0

    def __repr__(self) -> str:
        sources = [source for sources in self._by_prefix.values() for source in sources.values()]
        n_asking = sum(source.task is not None for source in sources) + len(self._questions)
        return f"<ModelSources {len(sources)} kept, {n_asking} asked>"

    def replace(self, members: Iterable[Member]) -> None:
        """Ask these from now on. What upstreams have said whose settings are the same, counts on."""
        self._members = {}
        for member in members:
            self._members.setdefault(member.name, []).append(member)
        self._said.clear()
        for question in self._questions.values():
            question.cancel()
        for sources in self._by_prefix.values():
            for name, source in tuple(sources.items()):
                if tuple(self._members.get(name, ())) != source.members:
                    self._drop(sources.pop(name))

    def close(self) -> None:
        """Ask no more, and forget all."""
        self.replace(())

    async def told(self, names: Iterable[str], prefix: str) -> dict[str, Told]:
        """Return what these upstreams have said, by name; one that has said nothing is not there.

        prefix: of the path, before "/models".
        """
        now_s = self._loop.time()
        sources = self._sources(names, prefix)
        new: list[asyncio.Task[None]] = []
        for source in sources:
            if source.is_due(now_s):
                source.task = self._loop.create_task(self._ask(source, prefix), name="models")
            if source.task is not None and source.asked_s is None:
                new.append(source.task)
        if new:
            await asyncio.wait(new, timeout=_WAIT_S)  # which cancels none: others wait for them, too
        now_s = self._loop.time()
        return {
            source.entry.name: source.told
            for source in sources
            if source.told is not None and now_s - source.told_s < _STALE_S
        }

    async def told_one(self, names: Iterable[str], path: str) -> dict[str, bytes]:
        """Return what these upstreams say of one model, by name: its object, b"" for none. Who says nothing is missing.

        path: which asks for it.
        """
        keys = [(name, path) for name in names if name in self._members]
        asked: list[asyncio.Task[None]] = []
        for key in keys:
            said = self._said.get(key) or self._said.find(key)
            if said is not None and self._loop.time() < said.until_s:
                continue
            question = self._questions.get(key)
            if question is None and len(self._questions) < _MOST_QUESTIONS:
                question = self._questions[key] = self._loop.create_task(self._ask_one(key), name="model")
                question.add_done_callback(partial(self._asked_one, key))
            if question is not None:
                asked.append(question)
        if asked:
            await asyncio.wait(asked, timeout=_WAIT_S)
        found = {key[0]: self._said.get(key) for key in keys}
        now_s = self._loop.time()
        return {name: said.answer for name, said in found.items() if said is not None and now_s < said.until_s}

    async def _ask_one(self, key: tuple[str, str]) -> None:
        name, path = key
        try:
            answer = await self._fetch_model(tuple(self._members[name]), path)
            self._said.put(key, _Said(self._loop.time() + _FRESH_S, answer))
        except (FetchError, VeloxError):
            pass  # the next one who wants to know asks again
        except Exception as exc:
            self._on_bug(exc)

    def _asked_one(self, key: tuple[str, str], _: asyncio.Task[None]) -> None:
        del self._questions[key]  # also of a question that was cancelled before it began

    def _sources(self, names: Iterable[str], prefix: str) -> list[_Source]:
        by_name = self._by_prefix.pop(prefix, {})
        self._by_prefix[prefix] = by_name
        if len(self._by_prefix) > _MOST_PREFIXES:
            oldest = next(iter(self._by_prefix))
            for source in self._by_prefix.pop(oldest).values():
                self._drop(source)
        found = []
        for name in names:
            members = self._members.get(name)
            if members is not None and name not in by_name:
                by_name[name] = _Source(members[0].entry, members)
            if name in by_name:
                found.append(by_name[name])
        return found

    def _drop(self, source: _Source) -> None:
        if source.task is not None:
            source.task.cancel()

    async def _ask(self, source: _Source, prefix: str) -> None:
        problem: str | None = None
        try:
            await self._take(source, await self._fetch(source.members, prefix))
        except (FetchError, VeloxError) as exc:
            problem = str(exc) if isinstance(exc, FetchError) else exc.message
        except ValueError:
            problem = "its answer is no list of models"
        except Exception as exc:
            self._on_bug(exc)
            problem = "a bug"
        finally:
            source.task = None
        source.asked_s = self._loop.time()
        if (problem is not None) is not source.failed:
            source.failed = problem is not None
            self._on_problem(source.entry.name, problem)

    async def _take(self, source: _Source, body: bytes) -> None:
        """Remember an answer. Raises ValueError if it is none."""
        digest = hash(body)
        if source.told is None or source.digest != digest:
            lanes = source.members[0].lanes
            start = "" if lanes is None else lanes.model_start
            models = await in_steps(reading_models(body, source.entry.name, start))
            source.n_bytes = 0
            kept = sum(each.n_bytes for sources in self._by_prefix.values() for each in sources.values())
            if kept + len(body) > _KEPT_BYTES:
                models = dict.fromkeys(models, b"")
            else:
                source.n_bytes = len(body)
            self._n_told += 1
            source.told, source.digest = Told(self._n_told, models), digest
        source.told_s = self._loop.time()


async def fetch_list(members: Sequence[Member], prefix: str) -> bytes:
    """Ask one upstream for its list. Raises FetchError."""
    path = _path(members, f"{prefix}{_LIST}")
    if not path:
        return _NO_MODELS
    answer = await _fetch(members, path, _LIST_BYTES, frozenset({200}))
    return answer.body


async def fetch_model(members: Sequence[Member], path: str) -> bytes:
    """Ask one upstream for one model; b"": it has none. Raises FetchError."""
    path = _path(members, path)
    if not path:
        return b""
    answer = await _fetch(members, path, _MODEL_BYTES, frozenset({200, 400, 404}))
    if answer.status != 200:
        return b""
    if not is_model_object(answer.body):
        raise FetchError("its answer is no model")
    return answer.body


def _path(members: Sequence[Member], path: str) -> str:
    """Return where the upstream's provider has a list, or one of its models; "" where it has none."""
    lanes = members[0].lanes
    if lanes is None:
        return path
    _, _, name = path.partition(_LIST)
    return lanes.model_list and lanes.model_list + name


async def _fetch(members: Sequence[Member], path: str, most_bytes: int, statuses: Collection[int]) -> Answer:
    """Ask one upstream: its members in turn, those that are well first, up to one of these statuses."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _WAIT_S
    problem = "there was no time"
    for member in sorted(members, key=lambda each: each.health.state(loop.time())):
        left_s = min(_TRY_S, until_s - loop.time())
        if left_s <= 0.0:
            break
        try:
            question = _question(member, path, loop.time())
            answer = await ask(member, question, loop, timeout_s=left_s, max_bytes=most_bytes)
        except VeloxError as error:
            problem = error.message
            continue
        if answer.status in statuses:
            return answer
        problem = f"it answered {answer.status}"
    raise FetchError(problem)


def _question(member: Member, path: str, now_s: float) -> UpstreamRequest:
    """Return the GET, with what each request to this upstream carries; with a key that may be used, if there is one."""
    keys = member.health.keys
    key = None if keys is None else keys.pick(now_s, 0.0)
    warmup = member.forwarders[key or 0].warmup(path)
    headers = [
        *(field for field in warmup.headers if field[0] not in dict(member.entry.headers)),
        *member.entry.headers,
        (b"accept-encoding", b"identity"),
    ]
    return UpstreamRequest.of(b"GET", warmup.target, headers, None)
