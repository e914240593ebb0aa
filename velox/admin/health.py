"""Whether the gateway lives and whether it should get traffic.

Knows: the rules, over plain values. Does not know: where the values are kept, or HTTP.

Alive: at least one worker serves or is about to; if none is, a restart of the whole may help. Ready: at
least one worker serves, has reached its upstream (unless that is not required) and shows a heartbeat, and
nothing asked the gateway to leave. One worker is enough: the others' requests go on, and a crash loop in
one slot must not take the rest out of service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from velox.shm.problems import CredentialProblem
from velox.shm.status import WorkerState

__all__ = ["STUCK_AFTER_S", "Readiness", "WorkerHealth", "readiness"]

STUCK_AFTER_S: Final = 10.0  # the supervisor replaces a worker whose loop stood still for longer


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What is known of one worker. heartbeat_age_s: seconds since its last sign of life."""

    state: WorkerState
    upstream_ready: bool
    heartbeat_age_s: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """alive: for /healthz. ready: for /readyz. reasons: what is wrong, also while others make up for it."""

    alive: bool
    ready: bool
    reasons: tuple[str, ...]


def readiness(
    workers: Sequence[WorkerHealth],
    *,
    draining: bool,
    requires_upstream: bool = True,
    configuration_is_bad: bool = False,
    credentials: Sequence[CredentialProblem] = (),
) -> Readiness:
    """Judge the gateway. draining: it was asked to stop. requires_upstream: a worker without upstream is not ready.

    configuration_is_bad: what was last read of it can't be used. The gateway serves with the one before.
    credentials: what is wrong with those of upstreams. Others may do without them.
    """
    problems = [_problem(worker) or _upstream_problem(worker) for worker in workers]
    reasons = ["the gateway is draining"] if draining else []
    reasons += ["the configuration can't be used, the one before it holds"] if configuration_is_bad else []
    reasons += [f"worker {slot} {problem}" for slot, problem in enumerate(problems) if problem]
    reasons += [
        f"the credentials of the upstream {each.upstream} can't be renewed: {each.text}" for each in credentials
    ]
    fit = (not _problem(worker) and not (requires_upstream and _upstream_problem(worker)) for worker in workers)
    return Readiness(
        alive=any(worker.state is not WorkerState.STOPPED for worker in workers),
        ready=not draining and any(fit),
        reasons=tuple(reasons),
    )


def _problem(worker: WorkerHealth) -> str | None:
    """Return why a worker can't take traffic, or None."""
    match worker.state:
        case WorkerState.STARTING:
            return "is starting"
        case WorkerState.DRAINING:
            return "is draining"
        case WorkerState.STOPPED:
            return "is not running"
        case WorkerState.READY:
            if worker.heartbeat_age_s > STUCK_AFTER_S:
                return "shows no sign of life"
            return None


def _upstream_problem(worker: WorkerHealth) -> str | None:
    """Return what is wrong with a worker's way to its upstream, or None."""
    return None if worker.upstream_ready else "has no connection to its upstream"
