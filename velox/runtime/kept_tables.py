"""The tables in shared memory that an upgrade goes on with: limits, budgets, kept answers, those of the cache.

Where the version before had the same one, it is the same memory. Where only the number of workers is another, what was
counted so far is copied: from then on each version counts for itself, until the one before has ended.

Knows: what makes two tables the same. Does not know: how memory is handed over (processes/memories.py).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

from velox.runtime.buckets import table_size
from velox.runtime.ledger.budget_backfill import budget_rows
from velox.runtime.processes.memories import Memories
from velox.settings import Settings
from velox.shm.answer_ring import ANSWER_LAYOUT, AnswerMemory
from velox.shm.budget_table import BUDGET_LAYOUT, BudgetMemory
from velox.shm.join_index import JoinMemory
from velox.shm.quota_table import QUOTA_LAYOUT, QuotaMemory, TableSize

__all__ = ["answer_table", "budget_table", "cache_table", "join_memory", "quota_table"]

_QUOTAS: Final = "velox-quotas"
_BUDGETS: Final = "velox-budgets"
_ANSWERS: Final = "velox-answers"
_CACHE: Final = "velox-cache"
_CHANGES: Final = "velox-answer-changes"


def quota_table(settings: Settings, blocks: int, memories: Memories) -> QuotaMemory:
    """Return the table of limits."""
    size, way = table_size(settings), _way(settings)
    before = memories.before(_QUOTAS, QUOTA_LAYOUT)
    # A table grows by itself: the configuration may need another size than the one before did.
    if before is not None and settings.limit_buckets is None:
        size = TableSize(*before.shape[:4])
    place = memories.place(_QUOTAS, QUOTA_LAYOUT, (*size, way, blocks), key=b"" if before is None else before.key)
    memory = QuotaMemory(size, blocks, make=place.make, key=place.key)
    if before is not None and not place.is_kept and before.shape[:5] == (*size, way):
        memory.take(QuotaMemory(size, before.shape[5], make=_make_of(memories, _QUOTAS), key=before.key))
        memories.keep(_QUOTAS)
    return memory


def budget_table(settings: Settings, blocks: int, memories: Memories) -> tuple[BudgetMemory | None, bool]:
    """Return the table of budgets; None: nothing is recorded, so nothing is counted. And whether it counts on."""
    if settings.ledger is None:
        return None, False
    rows, way = budget_rows(settings), _way(settings)
    before = memories.before(_BUDGETS, BUDGET_LAYOUT)
    if before is not None and before.shape[0] >= rows:
        rows = before.shape[0]
    place = memories.place(_BUDGETS, BUDGET_LAYOUT, (rows, way, blocks), key=b"" if before is None else before.key)
    memory = BudgetMemory(rows, blocks, make=place.make, key=place.key)
    if before is not None and not place.is_kept and before.shape[:2] == (rows, way):
        memory.take(BudgetMemory(rows, before.shape[2], make=_make_of(memories, _BUDGETS), key=before.key))
        memories.keep(_BUDGETS)
        return memory, True
    return memory, place.is_kept


def answer_table(settings: Settings, blocks: int, memories: Memories) -> AnswerMemory | None:
    """Return what answers are kept in; None: none are."""
    if not settings.kept_bytes:
        return None
    shape = settings.kept_bytes, settings.kept_answers, settings.workers, blocks
    place = memories.place(_ANSWERS, ANSWER_LAYOUT, shape)
    changes = memories.descriptor(_CHANGES)
    return AnswerMemory(*shape, make=place.make, key=place.key, changes=changes)


def cache_table(settings: Settings, blocks: int, memories: Memories) -> AnswerMemory | None:
    """Return what the response cache keeps answers in; None: there is no room for any."""
    if not settings.cache_bytes:
        return None
    shape = settings.cache_bytes, settings.cache_answers, settings.workers, blocks
    place = memories.place(_CACHE, ANSWER_LAYOUT, shape)
    # Nothing in it is changed, so no descriptor for locks is needed: that of the other answers does.
    changes = memories.descriptor(_CHANGES)
    return AnswerMemory(*shape, make=place.make, key=place.key, changes=changes, name=_CACHE)


def join_memory(settings: Settings, blocks: int) -> JoinMemory | None:
    """Return where workers find each other's joined calls; None: there are none, or one worker. It is not kept."""
    return JoinMemory(blocks) if settings.join_bytes and settings.workers > 1 else None


def _way(settings: Settings) -> int:
    """Return how a gateway counts: with Redis there is more in a row, which only a lease manager gives back."""
    return int(settings.redis_url is not None)


def _make_of(memories: Memories, name: str) -> Callable[[str, int], mmap.mmap]:
    return lambda _name, n_bytes: memories.map_before(name, n_bytes)
