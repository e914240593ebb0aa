"""The frames of the change log, in which the supervisor tells its workers which client keys are accepted.

    REMOVED        digests of keys that are no longer accepted
    ADDED          entries of keys that are accepted from now on
    CHECKSUM       Authenticator.checksum after all frames before it: workers compare theirs
    SNAPSHOT       entries, of all keys that are accepted: for workers that asked for them
    SNAPSHOT_END   the snapshot is complete

Knows: how frames are written and read. Does not know: who is accepted (credentials.py), or what a worker does with a
frame (keys/follower.py).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Final

from velox.shm.change_log import ChangeLog
from velox.types import KeyEntry, KeyUpdate

__all__ = [
    "ADDED",
    "CHECKSUM",
    "REMOVED",
    "SNAPSHOT",
    "SNAPSHOT_END",
    "digests_in",
    "entries_in",
    "publish_all",
    "publish_update",
]

REMOVED, ADDED, CHECKSUM, SNAPSHOT, SNAPSHOT_END = range(5)

_DIGEST_BYTES: Final = 32
_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
# Of a frame, which a worker takes over in one step: some 2 ms.
_CHUNK: Final = 100


def publish_update(log: ChangeLog, update: KeyUpdate) -> None:
    """Publish changed keys. Each digest is in one of the two kinds of frames, so that their order does not matter."""
    removed = [digest for digest, key in update.items() if key is None]
    for at in range(0, len(removed), _CHUNK):
        log.publish(REMOVED, b"".join(removed[at : at + _CHUNK]))
    _publish(log, ADDED, [key for key in update.values() if key is not None])


def publish_all(log: ChangeLog, keys: Sequence[KeyEntry]) -> None:
    """Publish a snapshot of all accepted keys."""
    _publish(log, SNAPSHOT, keys)
    log.publish(SNAPSHOT_END, b"")


def _publish(log: ChangeLog, kind: int, keys: Sequence[KeyEntry]) -> None:
    for at in range(0, len(keys), _CHUNK):
        log.publish(kind, pickle.dumps(keys[at : at + _CHUNK], _PROTOCOL))


def digests_in(said: bytes) -> list[bytes]:
    """Return the digests of a frame."""
    return [said[at : at + _DIGEST_BYTES] for at in range(0, len(said), _DIGEST_BYTES)]


def entries_in(said: bytes) -> Iterable[KeyEntry]:
    """Return the entries of a frame."""
    entries: Iterable[KeyEntry] = pickle.loads(said)  # noqa: S301 - it was never outside of the gateway's own memory
    return entries
