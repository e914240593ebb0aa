"""Puts the parts of one worker's gateway together: a part of the composition root (worker.py).

Knows: which setting goes to which part, and what a worker's share of it is. Does not know: what any of them does.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable

from velox.gateway.auth import Authenticator
from velox.gateway.endpoints import Routes
from velox.gateway.exchange import Exchange
from velox.gateway.lease_wait import LeaseWait
from velox.gateway.limiter import Limiter, QuotaTable
from velox.gateway.model_sources import ModelSources, fetch_list
from velox.gateway.models import ModelsPage
from velox.gateway.parts import GatewayLimits, Parts
from velox.gateway.recorder import Recorder
from velox.gateway.tunnels import Tunnels
from velox.net.tunnel import TunnelLimits
from velox.observe.access_log import AccessLog
from velox.observe.metrics import WorkerMetrics
from velox.policy.estimate import Estimator
from velox.policy.fair_queue import FairQueue
from velox.policy.retry import RetryRules
from velox.policy.retry_budget import RetryBudget
from velox.protocol.body import BodyReader
from velox.runtime.shares import share
from velox.settings import Settings
from velox.types import KeyEntry

__all__ = ["gateway_parts"]


def gateway_parts(
    settings: Settings,
    slot: int,
    loop: asyncio.AbstractEventLoop,
    *,
    keys: Iterable[KeyEntry],
    quotas: QuotaTable,
    leases: LeaseWait | None,
    max_tunnels: int,
    metrics: WorkerMetrics,
    log: AccessLog,
    logger: logging.Logger,
) -> Parts:
    """Return the parts. max_tunnels: as many as there are descriptors for."""
    recorder = Recorder(metrics, log, logger, secrets.token_hex(4))
    return Parts(
        routes=Routes(settings.paths),
        auth=Authenticator(tuple(keys)),
        reader=BodyReader(),
        queue=_queue(settings, slot),
        limiter=Limiter(settings.limit_rules, quotas, settings.rate_limit_max_wait_s, metrics.count_limit),
        retry_rules=RetryRules(settings.retries, settings.retry_statuses, settings.retry_max_wait_s),
        retry_budget=RetryBudget(settings.retry_budget_percent, settings.retry_budget_per_s / settings.workers),
        recorder=recorder,
        limits=_limits(settings, slot),
        estimator=Estimator(settings.bytes_per_token, settings.default_max_tokens),
        tunnels=_tunnels(settings, slot, max_tunnels),
        leases=leases,
        models=_models(settings, recorder, logger, loop),
    )


def _queue(settings: Settings, slot: int) -> FairQueue[Exchange]:
    return FairQueue(
        share(settings.queue_depth, settings.workers, slot),
        share(settings.queue_bytes, settings.workers, slot),
        settings.queue_batch,
        round(settings.queue_timeout_s * 1e9),
        settings.queue_floor_percent / 100,
    )


def _limits(settings: Settings, slot: int) -> GatewayLimits:
    return GatewayLimits(
        max_inflight=share(settings.max_inflight, settings.workers, slot),
        queue_timeout_s=settings.queue_timeout_s,
        stream_timeout_s=settings.stream_timeout_s,
        sse_keepalive_s=settings.sse_keepalive_s,
    )


def _models(
    settings: Settings, recorder: Recorder, logger: logging.Logger, loop: asyncio.AbstractEventLoop
) -> ModelsPage:
    def on_problem(upstream: str, problem: str | None) -> None:
        if problem is None:
            logger.info("the upstream %s tells its models again", upstream)
        else:
            logger.warning("the upstream %s does not tell its models: %s", upstream, problem)

    sources = ModelSources(loop, fetch_list, on_problem=on_problem, on_bug=recorder.crashed)
    return ModelsPage(sources, settings.paths)


def _tunnels(settings: Settings, slot: int, most: int) -> Tunnels:
    return Tunnels(
        # Each has a connection to the upstream of its own, beside the pools'.
        min(share(settings.max_tunnels, settings.workers, slot), most),
        TunnelLimits(
            idle_s=settings.tunnel_idle_timeout_s,
            total_s=settings.tunnel_timeout_s,
            client_write_s=settings.write_stall_timeout_s,
            upstream_write_s=settings.upstream_write_timeout_s,
        ),
    )
