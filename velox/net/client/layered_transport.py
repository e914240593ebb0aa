"""A transport that stands on another one: what it only passes on.

Knows: the transport below, and that two may want it not to be read from. Does not know: what is done to the bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["LayeredTransport"]


class LayeredTransport(asyncio.Transport):
    """The base of a layer; it sets `_raw` when it is connected."""

    def __init__(self) -> None:
        super().__init__()
        self._raw: asyncio.Transport | None = None
        self._paused_above = False  # by the connection, pause_reading()
        self._paused_here = False  # by the layer itself

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._paused_above = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._paused_above = False
        self._update_reading()

    def is_reading(self) -> bool:
        return not (self._paused_above or self._paused_here)

    def _pause_here(self, paused: bool) -> None:
        """Read no further for the layer's own reasons, or no longer for these."""
        if paused is not self._paused_here:
            self._paused_here = paused
            self._update_reading()

    def _update_reading(self) -> None:
        if self._raw is None or self._raw.is_closing():
            return
        if self.is_reading():
            self._raw.resume_reading()
        else:
            self._raw.pause_reading()

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        assert self._raw is not None, "asked from connection_made() on"
        return self._raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._raw is None else self._raw.get_extra_info(name, default)
