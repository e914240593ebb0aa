"""What a worker asks its members by itself, and what the log says of it: a part of the composition root (worker.py).

Knows: how an operator is told what was found. Does not know: what is asked, or when (gateway/upkeep.py).
"""

from __future__ import annotations

import asyncio
import logging

from velox.gateway.member import Member
from velox.gateway.upkeep import MemberUpkeep, load_every_s
from velox.observe.oplog import crash_text

__all__ = ["member_upkeep"]


def member_upkeep(n_workers: int, logger: logging.Logger, loop: asyncio.AbstractEventLoop) -> MemberUpkeep:
    """Return the upkeep of one of so many workers."""

    def on_health(member: Member, is_up: bool) -> None:
        if is_up:
            logger.info("the upstream %s (%s) answers its probes again", member.name, member.address)
        else:
            logger.warning("the upstream %s (%s) fails its probes and gets no requests", member.name, member.address)

    def on_load(member: Member, problem: str | None) -> None:
        if problem is None:
            logger.info("the upstream %s (%s) tells its load again", member.name, member.address)
        else:
            logger.warning("the upstream %s (%s) does not tell its load: %s", member.name, member.address, problem)

    return MemberUpkeep(
        loop,
        load_every_s=load_every_s(n_workers),
        on_health=on_health,
        on_load=on_load,
        on_bug=lambda exc: logger.error("%s", crash_text(exc)),
    )
