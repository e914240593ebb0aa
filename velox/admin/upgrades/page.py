"""POST /upgrade: asks the supervisor to start the next version of the gateway, and waits for what comes of it.

Knows: how the supervisor is asked and answers, as for a reload (../reload.py). Does not know: how a version is
started, or what it takes over (runtime/upgrade.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.supervisor_answers import BEAT_S, LOOK_S, SupervisorAnswers
from velox.shm.segment import Segment
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import GatewayStatus

__all__ = ["ANSWER_BYTES", "UpgradeAnswer", "UpgradeAnswers", "UpgradePage"]

# Of the longest answer, in the memory that the supervisor publishes it in.
ANSWER_BYTES: Final = 2**20
# Beyond the time that the next version has to get ready.
_GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class UpgradeAnswer:
    """What came of it. upto: of those that asked. version, pid: of what serves now.

    problems: why nothing has changed. lost: shared memories whose contents the new version could not go on with.
    """

    upto: int
    version: str = ""
    pid: int = 0
    problems: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


# The supervisor's last one. Made before the admin process is forked.
UpgradeAnswers: TypeAlias = SharedSnapshot[UpgradeAnswer]


class UpgradePage:
    """Serves /upgrade. timeout_s: that the next version has to get ready. wake: the supervisor."""

    def __init__(self, segment: Segment, answers: UpgradeAnswers, timeout_s: float, wake: Callable[[], None]) -> None:
        self._status: Final = GatewayStatus(segment)
        self._answers: Final = SupervisorAnswers(answers.read_new)
        self._timeout_s: Final = timeout_s + _GRACE_S
        self._wake: Final = wake
        self._is_asking = False

    def __repr__(self) -> str:
        return f"<UpgradePage {'asking' if self._is_asking else 'idle'}>"

    async def reply(self, request: AdminRequest) -> Reply:
        """Ask, and wait. Raises RefusalError: 405 for a method that only reads, 409 while there is an upgrade, 504.

        200: the next version serves. 422: there is none, and nothing has changed.
        """
        if request.query:
            raise RefusalError(400, "expected no query")
        if request.method != "POST":
            raise RefusalError(405, "only POST is served here", (("Allow", "POST"),))
        if self._is_asking:
            raise RefusalError(409, "an upgrade is under way already")
        self._is_asking = True
        try:
            answer = await self._ask()
            if not answer.problems:
                await self._left()
        finally:
            self._is_asking = False
        body = {
            "result": "bad" if answer.problems else "ok",
            "version": answer.version,
            "pid": answer.pid,
            "problems": answer.problems,
            "not_kept": answer.lost,
        }
        text = orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
        return Reply(422 if answer.problems else 200, text, "application/json")

    async def _ask(self) -> UpgradeAnswer:
        wanted = self._status.upgrades_asked + 1
        self._status.upgrades_asked = wanted
        self._wake()
        return await self._answers.wait(wanted, self._timeout_s)

    async def _left(self) -> None:
        """Wait until this process accepts no more (../server.py): who is answered then reaches the next version."""
        was_handed_over = False
        while not was_handed_over:
            was_handed_over = self._status.is_handed_over
            await asyncio.sleep(BEAT_S + LOOK_S)  # the listener is looked after in between
