"""Which requests go to a canary, and which are mirrored.

Knows: percentages, and how many mirrored requests are under way. Does not know: what a request is, chance, or where it
goes.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["CanarySplit", "MirrorGate"]

_ALL: Final = float(1 << 64)


class CanarySplit:
    """The part of one route's requests that goes to its canary.

    Who is told by a key (the caller, or what a route hashes on) always goes the same way, in all workers and replicas;
    when the percentage is raised, those that went there before still do. name: of the route: each has other callers.
    """

    __slots__ = ("_name", "_share")

    def __init__(self, name: str, percent: float) -> None:
        self._name: Final = hashlib.blake2b(name.encode(), digest_size=16).digest()
        self._share: Final = percent / 100.0

    def __repr__(self) -> str:
        return f"<CanarySplit {100.0 * self._share:g} %>"

    def takes(self, key: bytes | memoryview, random: float) -> bool:
        """Say whether a request goes to the canary. key: empty: by chance. random: in [0, 1)."""
        if not key:
            return random < self._share
        value = hashlib.blake2b(key, digest_size=8, key=self._name).digest()
        return int.from_bytes(value, "big") / _ALL < self._share


class MirrorGate:
    """The part of one route's requests of which a copy goes elsewhere, and how much of that may be under way.

    A mirror that is slow must not hold bodies without end: beyond the bounds a copy is not made, and counted.
    """

    __slots__ = ("_max_bytes", "_max_inflight", "_share", "n_bytes", "n_dropped", "n_inflight")

    def __init__(self, percent: float, max_inflight: int, max_bytes: int) -> None:
        self._share: Final = percent / 100.0
        self._max_inflight: Final = max_inflight
        self._max_bytes: Final = max_bytes
        self.n_inflight = 0
        self.n_bytes = 0
        self.n_dropped = 0

    def __repr__(self) -> str:
        return f"<MirrorGate {self.n_inflight} under way, {self.n_bytes} bytes, {self.n_dropped} dropped>"

    def begin(self, n_bytes: int, random: float) -> bool:
        """Say whether a copy is sent; then its end must be reported. n_bytes: of its body. random: in [0, 1)."""
        if random >= self._share:
            return False
        if self.n_inflight >= self._max_inflight or self.n_bytes + n_bytes > self._max_bytes:
            self.n_dropped += 1
            return False
        self.n_inflight += 1
        self.n_bytes += n_bytes
        return True

    def end(self, n_bytes: int) -> None:
        """A copy is over, however it ended."""
        assert self.n_inflight > 0, "each end has its begin()"
        self.n_inflight -= 1
        self.n_bytes -= n_bytes
