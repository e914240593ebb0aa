"""What one worker can hold, from settings and the kernel's limits: for the worker, the supervisor and `velox check`.

Knows: that all three must count alike. Does not know: how it is counted (policy/, runtime/memory_bound.py).
"""

from __future__ import annotations

from velox.policy.descriptors import DescriptorPlan, plan_descriptors
from velox.runtime.memory_bound import MemoryBound, memory_bound
from velox.runtime.shares import share
from velox.settings import Settings

__all__ = ["descriptors_of", "memory_of"]


def descriptors_of(settings: Settings, slot: int, limit: int) -> DescriptorPlan:
    """Return the connections that worker `slot` may have, with `limit` open files."""
    # HTTP/1.1 needs a connection for each exchange, and each member keeps some warm.
    warm = sum(len(entry.origins) * entry.connections for entry in settings.upstreams)
    upstream = share(settings.max_inflight, settings.workers, slot) + warm
    return plan_descriptors(limit, share(settings.max_connections, settings.workers, slot), upstream)


def memory_of(settings: Settings, limit: int) -> MemoryBound:
    """Return the bound for the worker with the largest shares, the first one."""
    plan = descriptors_of(settings, 0, limit)
    inflight = share(settings.max_inflight, settings.workers, 0)
    queued = share(settings.queue_depth, settings.workers, 0)
    return memory_bound(settings, plan.clients, plan.upstream, inflight, queued)
