"""The size of the table of limits: what the configuration needs, and what is said when it is too small.

Knows: the settings, the keys, and the table's counts. Does not know: how a tag finds its row (shm/quota_table.py), or
who is limited to what.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from velox.policy.limits.limit_rules import Buckets, LimitRule, buckets_needed
from velox.settings import Settings
from velox.shm.quota_table import QuotaMemory, TableSize
from velox.types import KeyEntry

__all__ = ["BucketWatch", "bucket_lines", "table_size"]

# Half of a table should be free, and each kind of tags has one half of a table whose size is fixed.
_ROOM: Final = 4


def table_size(settings: Settings) -> TableSize:
    """Return the size of the table of limits: as the configuration needs it, or as VELOX_LIMIT_BUCKETS says."""
    if settings.limit_buckets is not None:
        return TableSize.fixed(settings.limit_buckets)
    return TableSize.for_need(*buckets_needed(settings.limit_rules, settings.api_keys))


def bucket_lines(settings: Settings) -> list[str]:
    """Return what `velox check` says of the table."""
    needed, size = buckets_needed(settings.limit_rules, settings.api_keys), table_size(settings)
    if settings.limit_buckets is None:
        have = f"{size.named + size.open:,} to begin with, {size.rows:,} at most (VELOX_LIMIT_BUCKETS: as needed)"
    else:
        have = f"VELOX_LIMIT_BUCKETS is {settings.limit_buckets:,}"
    lines = [f"buckets: {needed.named + needed.open_ended:,} needed by limits and keys; {have}"]
    problem = _too_small(settings, needed)
    return [*lines, f"buckets: {problem}"] if problem else lines


def _too_small(settings: Settings, needed: Buckets) -> str:
    least = _ROOM * max(needed)
    if settings.limit_buckets is None or settings.limit_buckets >= least:
        return ""
    return (
        f"VELOX_LIMIT_BUCKETS is {settings.limit_buckets:,}, too few for {needed.named + needed.open_ended:,} buckets: "
        f"limits without one hold in each worker only; leave it out, or set it to at least {least:,}"
    )


class BucketWatch:
    """Of one gateway, in its supervisor: says once what is wrong with the table."""

    def __init__(self, memory: QuotaMemory, settings: Settings, logger: logging.Logger) -> None:
        self._memory: Final = memory
        self._settings: Final = settings
        self._logger: Final = logger
        self._seen: tuple[Sequence[LimitRule], Sequence[KeyEntry]] | None = None
        self._said = ""
        self._has_overflowed = False
        self._is_over_share = False

    def __repr__(self) -> str:
        return f"<BucketWatch {self._memory!r}>"

    def look(self, rules: Sequence[LimitRule], keys: Sequence[KeyEntry]) -> None:
        """Look at the table, and at what it must hold if that is new. Some microseconds if not."""
        if self._settings.limit_buckets is not None and (self._seen is None or self._seen[1] is not keys):
            self._seen = (rules, keys)
            problem = _too_small(self._settings, buckets_needed(rules, keys))
            if problem and problem != self._said:
                self._logger.warning("%s", problem)
            self._said = problem
        if not self._has_overflowed and self._memory.overflowed():
            self._has_overflowed = True
            self._logger.error(
                "rate limits: no free bucket, of %(buckets)d (VELOX_LIMIT_BUCKETS): "
                "limits without one hold in each worker only (velox_limit_rows_overflow_total)",
                {"buckets": self._memory.statistics().rows},
            )
        if not self._is_over_share and self._memory.over_share():
            self._is_over_share = True
            self._logger.warning(
                "rate limits: a key names over %(models)d new models a minute, its other models share "
                "one bucket of each limit (velox_limit_rows_over_share_total)",
                {"models": self._memory.share},
            )
