"""When a worker collects garbage: what is in reference cycles, and freed by nothing else.

    is_due()       asked four times a second
    collected()    what came of it

No request leaves such a cycle, and a collection looks at all objects that there are: it takes 0.3 ms in a worker at
rest, some 20 ms with 1,000 streams. So it is not made for every so many objects, as Python would, but when memory has
grown, when the worker has too much of it, and now and then while nothing runs.

Knows: memory, looks, how long the last one took. Does not know: the collector.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GarbageWatch"]

_LOOKS_PER_S: Final = 4
# Over what there was least of since the last one. A worker with 1,000 streams has some 40 MiB more than one at rest.
_GROWN_BYTES: Final = 64 * 1024 * 1024
_APART_S: Final = 5.0
_IDLE_APART_S: Final = 60.0
# So many times what the last one took: 2 % of the time at most, and 0.1 % of that of a worker at rest.
_APART_TIMES: Final = 50.0
_IDLE_APART_TIMES: Final = 1000.0


class GarbageWatch:
    """Of one worker."""

    __slots__ = ("_least_bytes", "_next", "_next_idle")

    def __init__(self) -> None:
        self._least_bytes = 0  # since the last one; 0: not known yet
        self._next = 0  # look
        self._next_idle = 0

    def __repr__(self) -> str:
        return f"<GarbageWatch least={self._least_bytes} next={self._next}>"

    def is_due(self, resident_bytes: int, n_look: int, *, is_idle: bool, is_over: bool) -> bool:
        """Say whether to collect now. is_idle: nothing runs. is_over: else requests are refused."""
        self._least_bytes = min(self._least_bytes or resident_bytes, resident_bytes)
        if n_look < self._next:
            return False
        if is_over or resident_bytes >= self._least_bytes + _GROWN_BYTES:
            return True
        return is_idle and n_look >= self._next_idle

    def collected(self, resident_bytes: int, n_look: int, took_s: float) -> None:
        """Note one. resident_bytes: afterwards."""
        self._least_bytes = resident_bytes
        self._next = n_look + round(_LOOKS_PER_S * max(_APART_S, took_s * _APART_TIMES))
        self._next_idle = n_look + round(_LOOKS_PER_S * max(_IDLE_APART_S, took_s * _IDLE_APART_TIMES))
