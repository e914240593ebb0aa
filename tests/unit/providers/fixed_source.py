"""A source of credentials that stay as they are."""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar

__all__ = ["FixedSource"]

T = TypeVar("T")


class FixedSource(Generic[T]):
    """Of one value."""

    __slots__ = ("_value", "problem", "version")

    def __init__(self, value: T) -> None:
        self._value: Final = value
        self.version = 1
        self.problem: str | None = None

    def __repr__(self) -> str:
        return "<FixedSource>"

    def current(self, now_s: float) -> T:
        return self._value

    def renewed(self, version: int) -> asyncio.Future[None] | None:
        return None

    def coming(self, now_s: float) -> asyncio.Future[None] | None:
        return None

    async def run(self) -> None:
        return
