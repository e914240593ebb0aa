"""The models that upstreams list themselves: fetched on demand, and cached.

    told()         what each of some upstreams has said; waits a moment for those whose last word is old
    first_lists()   the same, but waits until one of them has said something
    fetch_one()     what they say of one model that no list has
    fetch_list()   one upstream's `GET /v1/models`, by whichever of its members answers
    fetch_model()  its `GET /v1/models/NAME`

Knows: how old an answer may be, how many are kept, that an upstream is asked one question at a time. Does not know: who
may use which model (policy/routes/catalog.py), or what a list looks like (protocol/model_list.py).

An answer counts for a minute. An older one counts too, but then the upstream is asked again meanwhile; if it is older
than ten minutes, who asks waits for the new one. It counts until the upstream has failed to answer and ten minutes have
passed: a gateway that nobody asked for a while has an old list, not none. Nobody waits for an upstream that has just
failed. An answer about one model counts for a minute, a "no" too: providers serve models that they don't list.
A provider that has no list is not asked, and neither says "no" of a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from velox.errors import VeloxError
from velox.gateway.cpu_work import in_steps
from velox.gateway.internal_request import Answer, ask
from velox.gateway.upstreams.member import Member
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.routes.entries import UpstreamEntry
from velox.protocol.model_list import is_model_object, reading_models

__all__ = ["FetchError", "ModelSources", "ReportedModels", "fetch_list", "fetch_model"]

_FRESH_S: Final = 60.0
_STALE_S: Final = 600.0  # as long as a failing upstream is taken at its word
_AGAIN_S: Final = 10.0  # after a failure
_FAILED_S: Final = 60.0  # as long as a failure says that it is of no use to wait
# For those whose word is old or missing, all together; the list is completed with the answers that come later. Claude
# Code waits 3 s for a list.
_WAIT_S: Final = 1.0
_FIRST_S: Final = 1.5  # and for a first answer, if nobody has said anything yet
_ONE_S: Final = 5.0  # for an answer about one model, or of one upstream
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


class FetchError(Exception):
    """An upstream gave no list. The message says why, and repeats nothing that it sent."""


class ReportedModels(NamedTuple):
    """What one upstream has said. serial: a number that no other answer has. models: their objects by name, in JSON."""

    serial: int
    models: Mapping[str, bytes]


# Returns the body of a list; raises FetchError.
Fetch: TypeAlias = Callable[[Sequence[Member], str], Awaitable[bytes]]
# Returns the object of a model, b"" where there is none; raises FetchError. Asked with the path.
FetchModel: TypeAlias = Callable[[Sequence[Member], str], Awaitable[bytes]]
# Called about an upstream that does not say what it serves, and why; None: it does again. Once each time.
OnProblem: TypeAlias = Callable[[str, str | None], None]


class _FetchedModel(NamedTuple):
    """What one upstream says of one model. answer: its object; b"": it has none."""

    until_s: float
    answer: bytes


class _Source:
    """One upstream, below one prefix."""

    __slots__ = ("asked_s", "began_s", "digest", "entry", "failed", "members", "n_bytes", "task", "told", "told_s")

    def __init__(self, entry: UpstreamEntry, members: Sequence[Member]) -> None:
        self.entry: Final = entry
        self.members: Final = tuple(members)
        self.task: asyncio.Task[None] | None = None  # the question under way
        self.began_s = 0.0  # that one
        self.asked_s: float | None = None  # when the last answer or failure came; None: none yet
        self.failed = False
        self.told: ReportedModels | None = None
        self.told_s = 0.0
        self.digest = 0
        self.n_bytes = 0

    def is_due(self, now_s: float) -> bool:
        """Say whether it is to be asked now."""
        if self.task is not None:
            return False
        return self.asked_s is None or now_s - self.asked_s >= (_AGAIN_S if self.failed else _FRESH_S)

    def is_awaited(self, now_s: float, patience_s: float) -> bool:
        """Say whether it was asked not longer ago than this, and what it has said is too old or nothing."""
        if self.task is None or now_s - self.began_s >= patience_s:
            return False
        if self.told is not None and now_s - self.told_s < _STALE_S:
            return False
        return self.asked_s is None or not self.failed or now_s - self.asked_s >= _FAILED_S

    def counts(self, now_s: float) -> bool:
        """Say whether what it has said is to be told."""
        return self.told is not None and (not self.failed or now_s - self.told_s < _STALE_S)


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
        self._said: Final[Memo[tuple[str, str], _FetchedModel]] = Memo(_KEPT_MODELS)  # by upstream and path
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

    async def model_lists(self, names: Iterable[str], prefix: str) -> dict[str, ReportedModels]:
        """Return what these upstreams have said, by name; one that has said nothing is not there.

        prefix: of the path, before "/models".
        """
        sources = self._sources(names, prefix)
        awaited = self._begin(sources, prefix, _WAIT_S)
        if awaited:
            await asyncio.wait(awaited, timeout=_WAIT_S)  # which cancels none: others wait for them, too
        return self._counting(sources)

    async def first_lists(self, names: Iterable[str], prefix: str) -> dict[str, ReportedModels]:
        """Return what model_lists() does, for one to whom that is an empty list: as soon as one has told of a model."""
        sources = self._sources(names, prefix)
        until_s = self._loop.time() + _FIRST_S
        awaited: Collection[asyncio.Task[None]] = self._begin(sources, prefix, _WAIT_S + _FIRST_S)
        while awaited and (left_s := until_s - self._loop.time()) > 0.0:
            if any(each.models for each in self._counting(sources).values()):
                break
            _, awaited = await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return self._counting(sources)

    def _begin(self, sources: Iterable[_Source], prefix: str, patience_s: float) -> list[asyncio.Task[None]]:
        """Ask those whose time has come; return the questions that it is worth to wait for.

        patience_s: since one began.
        """
        now_s = self._loop.time()
        awaited: list[asyncio.Task[None]] = []
        for source in sources:
            if source.is_due(now_s):
                source.task = self._loop.create_task(self._ask(source, prefix), name="models")
                source.began_s = now_s
            if source.task is not None and source.is_awaited(now_s, patience_s):
                awaited.append(source.task)
        return awaited

    def _counting(self, sources: Iterable[_Source]) -> dict[str, ReportedModels]:
        now_s = self._loop.time()
        return {each.entry.name: each.told for each in sources if each.told is not None and each.counts(now_s)}

    async def fetch_one(self, paths: Mapping[str, str]) -> dict[str, bytes]:
        """Return what upstreams say of one model, by name: its object, b"" for none. Who says nothing is missing.

        paths: by name of the upstream, what asks it for the model.
        """
        keys = [(name, path) for name, path in paths.items() if _has_list(self._members.get(name, ()))]
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
            await asyncio.wait(asked, timeout=_ONE_S)
        found = {key[0]: self._said.get(key) for key in keys}
        now_s = self._loop.time()
        return {name: said.answer for name, said in found.items() if said is not None and now_s < said.until_s}

    async def _ask_one(self, key: tuple[str, str]) -> None:
        name, path = key
        try:
            answer = await self._fetch_model(tuple(self._members[name]), path)
            self._said.put(key, _FetchedModel(self._loop.time() + _FRESH_S, answer))
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
            if members is not None and name not in by_name and _has_list(members):
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
            adapter = source.members[0].adapter
            start = "" if adapter is None else adapter.model_start
            models = await in_steps(reading_models(body, source.entry.name, start))
            source.n_bytes = 0
            kept = sum(each.n_bytes for sources in self._by_prefix.values() for each in sources.values())
            if kept + len(body) > _KEPT_BYTES:
                models = dict.fromkeys(models, b"")
            else:
                source.n_bytes = len(body)
            self._n_told += 1
            source.told, source.digest = ReportedModels(self._n_told, models), digest
        source.told_s = self._loop.time()


async def fetch_list(members: Sequence[Member], prefix: str) -> bytes:
    """Ask one upstream for its list. Raises FetchError."""
    answer = await _fetch(members, _path(members, f"{prefix}{_LIST}"), _LIST_BYTES, frozenset({200}))
    return answer.body


async def fetch_model(members: Sequence[Member], path: str) -> bytes:
    """Ask one upstream for one model; b"": it has none. Raises FetchError."""
    answer = await _fetch(members, _path(members, path), _MODEL_BYTES, frozenset({200, 400, 404}))
    if answer.status != 200:
        return b""
    if not is_model_object(answer.body):
        raise FetchError("its answer is no model")
    return answer.body


def _has_list(members: Sequence[Member]) -> bool:
    """Say whether the upstream's provider lists its models: there may be no such upstream, too."""
    return bool(members) and (members[0].adapter is None or bool(members[0].adapter.model_list))


def _path(members: Sequence[Member], path: str) -> str:
    """Return where the upstream's provider, which has a list, has that, or one of its models."""
    adapter = members[0].adapter
    return path if adapter is None else adapter.model_list + path.partition(_LIST)[2]


async def _fetch(members: Sequence[Member], path: str, most_bytes: int, statuses: Collection[int]) -> Answer:
    """Ask one upstream: its members in turn, those that are well first, up to one of these statuses."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _ONE_S
    problem = "there was no time"
    for member in sorted(members, key=lambda each: each.health.state(loop.time())):
        left_s = min(_TRY_S, until_s - loop.time())
        if left_s <= 0.0:
            break
        try:
            question = _question(member, path, loop.time())
            answer = await ask(member.pool, question, loop, timeout_s=left_s, max_bytes=most_bytes)
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
