"""POST /reload: asks the supervisor to read the configuration again, and waits for what comes of it.

Knows: how the supervisor is asked and answers, and when all workers have followed. Does not know: what is read, or what
a reload changes (runtime/reload.py).

The admin process counts in shared memory how often it was asked, and wakes the supervisor. That one answers on a board:
whatever was asked before it began to read is answered with what it read. So an admin process that dies owes nobody
anything, and a crowd that asks at once costs one reading, or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson

from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.supervisor_answers import SupervisorAnswers
from velox.shm.segment import Segment
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import GatewayStatus, WorkerState, serving

__all__ = ["ANSWER_S", "READING_S", "ReloadAnswer", "ReloadAnswers", "ReloadPage"]

# The longest that a reading may take. 10,000 routes: 5 s, and 33 s beside processes that leave it little of two cores.
READING_S: Final = 120.0
# One that has just begun when it is asked, and then its own.
ANSWER_S: Final = 2 * READING_S + 5.0
# Workers look ten times a second; one that does not follow by then is short of time, or stuck.
_FOLLOW_S: Final = 5.0
_LOOK_S: Final = 0.05
_FORCE: Final = "force=true"
_MOST_WAITING: Final = 8
_ANSWER_BYTES: Final = 16 * 2**20
# Of a file with ten thousand mistakes, or changes, nobody reads more.
_MOST_LINES: Final = 1000


@dataclass(frozen=True, slots=True)
class ReloadAnswer:
    """What came of it. upto: of those that asked, counted from the start. configuration: the number of what holds now.

    changes: what is other in it than in the one before; of the one of the start none. age_s: for how long it holds: it
    may have been taken earlier, when its file had changed or another client had asked. restart: fields that differ and
    need a restart. problems: why what was read can't be used; then nothing has changed.
    """

    upto: int
    configuration: int
    changes: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    age_s: float = 0.0


class ReloadAnswers:
    """The supervisor's last answer. Made before the admin process is forked."""

    def __init__(self) -> None:
        self._snapshot: Final[SharedSnapshot[ReloadAnswer]] = SharedSnapshot(_ANSWER_BYTES)

    def __repr__(self) -> str:
        return f"<ReloadAnswers {self._snapshot!r}>"

    def publish(self, answer: ReloadAnswer) -> None:
        """Answer all requests up to `answer.upto`. For the supervisor."""
        shortened = replace(answer, changes=_shortened(answer.changes), problems=_shortened(answer.problems))
        self._snapshot.publish(shortened)

    def read_new(self) -> ReloadAnswer | None:
        """Return an answer that was not read yet. For the admin process."""
        return self._snapshot.read_new()


class ReloadPage:
    """Serves /reload. wake: the supervisor."""

    def __init__(self, segment: Segment, answers: ReloadAnswers, wake: Callable[[], None]) -> None:
        self._segment: Final = segment
        self._status: Final = GatewayStatus(segment)
        self._answers: Final = SupervisorAnswers(answers.read_new)
        self._wake: Final = wake
        self._n_waiting = 0

    def __repr__(self) -> str:
        return f"<ReloadPage waiting={self._n_waiting}>"

    async def reply(self, request: AdminRequest) -> Reply:
        """Ask, and wait. Raises RefusalError: 405 for a method that only reads, 429, 503 while the gateway leaves, 504.

        200: the configuration is good, and every worker that serves works with it; or `waits_for` names those that do
        not yet. 422: it can't be used.
        """
        if request.query not in ("", _FORCE):
            raise RefusalError(400, f"expected no query, or ?{_FORCE}")
        if request.method != "POST":
            raise RefusalError(405, "only POST is served here", (("Allow", "POST"),))
        if self._n_waiting >= _MOST_WAITING:
            raise RefusalError(429, "others wait for a reload already", (("Retry-After", "5"),))
        self._n_waiting += 1
        try:
            answer = await self._ask(is_forced=request.query == _FORCE)
            behind = await self._followed(answer.configuration)
        finally:
            self._n_waiting -= 1
        body = {
            "result": "bad" if answer.problems else "ok",
            "configuration": answer.configuration,
            "age_s": answer.age_s,
            "changes": answer.changes,
            "needs_restart": answer.restart,
            "problems": answer.problems,
            "waits_for": behind,
        }
        text = orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
        return Reply(422 if answer.problems else 200, text, "application/json")

    async def _ask(self, *, is_forced: bool) -> ReloadAnswer:
        wanted = self._status.reloads_asked + 1
        if is_forced:
            self._status.reloads_forced = wanted
        self._status.reloads_asked = wanted
        self._wake()
        return await self._answers.wait(wanted, ANSWER_S, self._refuse_draining)

    def _refuse_draining(self) -> None:
        if self._status.is_handed_over:
            raise RefusalError(503, "the gateway was just upgraded: ask again", (("Retry-After", "1"),))
        if self._status.draining:
            raise RefusalError(503, "the gateway is draining: it reads nothing any more")

    async def _followed(self, number: int) -> list[str]:
        """Wait until all workers that serve work with a configuration; return those that do not by then."""
        for _ in range(round(_FOLLOW_S / _LOOK_S)):
            behind = self._behind(number)
            if not behind:
                break
            await asyncio.sleep(_LOOK_S)
        return behind

    def _behind(self, number: int) -> list[str]:
        found = []
        for slot in range(self._segment.workers):
            worker = serving(self._segment, slot)
            # One that starts begins with it.
            if worker.state is WorkerState.READY and worker.configuration < number:
                found.append(f"worker {slot}")
        return found


def _shortened(lines: tuple[str, ...]) -> tuple[str, ...]:
    if len(lines) <= _MOST_LINES:
        return lines
    return (*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more")
