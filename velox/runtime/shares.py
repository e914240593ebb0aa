"""Dividing what holds for the gateway among its workers."""

from __future__ import annotations

__all__ = ["share"]


def share(total: int, n_workers: int, slot: int) -> int:
    """Return the part of `total` that worker `slot` gets; the parts add up to it, and differ by at most one."""
    return total // n_workers + (1 if slot < total % n_workers else 0)
