"""What the supervisor writes for its workers into the log of changes, as frames.

    GONE    digests that are accepted no longer
    COME    entries that are accepted from now on
    MARK    what Authenticator.mark is after all frames before it: workers compare theirs
    ALL     entries, of all that are accepted; followed by
    END     all were told. For workers that asked for them

Knows: how frames are written and read. Does not know: who is accepted (credentials.py), or what a worker does with a
frame (keys/follower.py).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Final

from velox.shm.change_log import ChangeLog
from velox.types import KeyEntry, KeyUpdate

__all__ = ["ALL", "COME", "END", "GONE", "MARK", "entries_in", "gone_in", "tell_all", "tell_update"]

GONE, COME, MARK, ALL, END = range(5)

_DIGEST_BYTES: Final = 32
_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
# Of a frame, which a worker takes over in one step: some 2 ms.
_CHUNK: Final = 100


def tell_update(log: ChangeLog, update: KeyUpdate) -> None:
    """Write what keys are from now on. Each digest is in one of the two kinds, so that their order does not matter."""
    gone = [digest for digest, key in update.items() if key is None]
    for at in range(0, len(gone), _CHUNK):
        log.publish(GONE, b"".join(gone[at : at + _CHUNK]))
    _publish(log, COME, [key for key in update.values() if key is not None])


def tell_all(log: ChangeLog, keys: Sequence[KeyEntry]) -> None:
    """Write all keys that are accepted."""
    _publish(log, ALL, keys)
    log.publish(END, b"")


def _publish(log: ChangeLog, kind: int, keys: Sequence[KeyEntry]) -> None:
    for at in range(0, len(keys), _CHUNK):
        log.publish(kind, pickle.dumps(keys[at : at + _CHUNK], _PROTOCOL))


def gone_in(said: bytes) -> list[bytes]:
    """Return the digests of a frame."""
    return [said[at : at + _DIGEST_BYTES] for at in range(0, len(said), _DIGEST_BYTES)]


def entries_in(said: bytes) -> Iterable[KeyEntry]:
    """Return the entries of a frame."""
    entries: Iterable[KeyEntry] = pickle.loads(said)  # noqa: S301 - it was never outside of the gateway's own memory
    return entries
