"""How the supervisor compares the keys that it accepts, and that workers are forked with, with the active ones.

Knows: when, and how many at a time: 100,000 keys take a few minutes, 1,000 a second. Does not know: which keys are
active (credentials.py), or what is done about a difference (keys/corrections.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from velox.gateway.auth import Authenticator, caller_of
from velox.runtime.keys.corrections import COMPARE_S
from velox.runtime.keys.frames import CHECKSUM
from velox.shm.change_log import ChangeLog
from velox.types import KeyEntry

__all__ = ["KeyComparison"]

_PART: Final = 250  # some 2 ms


class KeyComparison:
    """Of one supervisor. auth: what it accepts. log: in which workers find its checksum."""

    def __init__(self, auth: Authenticator, log: ChangeLog) -> None:
        self._auth: Final = auth
        self._log: Final = log
        self._due_s = 0.0
        self._left: Iterator[bytes] = iter(())  # digests that are still to be looked at

    def __repr__(self) -> str:
        return f"<KeyComparison due={self._due_s:.0f}>"

    def is_due(self, now_s: float) -> bool:
        """True when look() begins anew."""
        return now_s >= self._due_s

    def look(self, active: Mapping[bytes, KeyEntry], now_s: float) -> list[bytes]:
        """Return digests that are accepted otherwise than they should be. now_s: monotonic."""
        wrong: list[bytes] = []
        if self.is_due(now_s):
            self._due_s = now_s + COMPARE_S
            wrong += self._auth.beyond(active)
            if not wrong and self._auth.requires_keys:
                self._log.publish(CHECKSUM, self._auth.checksum)
            self._left = iter(list(active))
        for digest in islice(self._left, _PART):
            key = active.get(digest)
            if key is not None and self._auth.caller(digest) != caller_of(key):
                wrong.append(digest)
        return wrong
