"""What is done about a key that one part of the gateway was wrong about: it is counted, and named in the log.

Knows: how that reads. Does not know: how it is found (follower.py, credentials.py, ledger/ledger_process.py).

Changes of keys pass from the database to files, to the supervisor, to workers. Each of these is compared with the one
before it, every COMPARE_S seconds. There is nothing to find unless Velox has a fault, somebody has changed the database
or the files by hand, or a database was restored: so each is an error that a person should look at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from velox.gateway.auth import Authenticator
from velox.observe.metrics import WorkerMetrics
from velox.outcomes import KeyHolder
from velox.types import Caller, KeyEntry, KeyUpdate

__all__ = ["CHANGED", "COMPARE_S", "LEFT", "MISSING", "KeyCorrections", "named"]

COMPARE_S: Final = 15.0

LEFT: Final = "was accepted, but is revoked"
MISSING: Final = "was refused, but is active"
CHANGED: Final = "had other rights than it has"

_MOST_LOGGED: Final = 10
_ID_BYTES: Final = 8


def named(key: KeyEntry | Caller) -> str:
    """Return how the log calls a key: its name, and the id that its calls are recorded with."""
    if isinstance(key, Caller):
        return f"{key.name} ({key.id.hex()})"
    return f"{key.caller_name} ({(key.id or key.digest[:_ID_BYTES]).hex()})"


class KeyCorrections:
    """Those of one holder."""

    def __init__(self, holder: KeyHolder, metrics: WorkerMetrics, logger: logging.Logger) -> None:
        self._holder: Final = holder
        self._metrics: Final = metrics
        self._logger: Final = logger

    def __repr__(self) -> str:
        return f"<KeyCorrections {self._holder.name}>"

    def report(self, update: KeyUpdate, auth: Authenticator) -> None:
        """Count and log an update that corrects what is accepted. auth: as it still is."""
        found: dict[str, list[str]] = {}
        for digest, key in update.items():
            known = auth.caller(digest)
            about = key or known
            if about is not None:
                what = LEFT if key is None else MISSING if known is None else CHANGED
                found.setdefault(what, []).append(named(about))
        for what, names in found.items():
            self.tell(names, what)

    def tell(self, keys: Iterable[str], what: str) -> None:
        """Count and log keys, by their names. what: LEFT, MISSING or CHANGED."""
        told = list(keys)
        self._metrics.count_key_corrections(self._holder, len(told))
        holder = self._holder.name.lower()
        for name in told[:_MOST_LOGGED]:
            self._logger.error(
                "key %(key)s %(difference)s: corrected (held by: %(holder)s)",
                {"key": name, "difference": what, "holder": holder},
            )
        if len(told) > _MOST_LOGGED:
            self._logger.error(
                "%(keys)d more keys that %(difference)s: corrected (held by: %(holder)s)",
                {"keys": len(told) - _MOST_LOGGED, "difference": what, "holder": holder},
            )
