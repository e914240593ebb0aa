"""The calls of one worker that others may join, and the room that they have together.

    find_equal()     of a request that is sent at the same time
    find_retry()     of a client's retry
    find_named()     of a request with the same Idempotency-Key
    begin()          a call that others may join from now on
    keep()           one that is whole, for a retry

The bound is exact: what all calls hold together, each with its CALL_BYTES, and what those of one partition do. Answers
that are only kept give way to calls that run: first those of the same partition, then the oldest.

Knows: keys, bytes, order. Does not know: what makes requests equal (policy/cache), or a clock.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from velox.errors import Reason, VeloxError
from velox.policy.join.joined_call import CALL_BYTES, JoinedCall, Room

__all__ = ["JoinBounds", "JoinTable", "join_key", "mismatch"]

_HALF: Final = 16


def join_key(request: bytes, body: bytes) -> bytes:
    """Return what stands for a request here, 32 bytes. request, body: digests of all of it, and of its body alone.

    An Idempotency-Key is misused by another body. Fields that a client's proxy adds are no misuse.
    """
    return request[:_HALF] + body[:_HALF]


class JoinBounds:
    """Bytes: of one call, of all, and of those of one partition."""

    __slots__ = ("all_bytes", "call_bytes", "partition_bytes")

    def __init__(self, call_bytes: int, all_bytes: int) -> None:
        self.call_bytes: Final = call_bytes
        self.all_bytes: Final = all_bytes
        self.partition_bytes: Final = all_bytes // 2


class JoinTable:
    """The calls of one worker."""

    __slots__ = ("_bounds", "_calls", "_kept", "_named", "_names", "_taken", "n_taken")

    def __init__(self, bounds: JoinBounds) -> None:
        self._bounds: Final = bounds
        self._calls: Final[dict[bytes, list[JoinedCall]]] = {}  # by what stands for their requests
        self._named: Final[dict[bytes, JoinedCall]] = {}  # by what stands for their Idempotency-Key
        self._names: Final[set[JoinedCall]] = set()  # the same calls
        self._kept: Final[dict[JoinedCall, str]] = {}  # whole ones, with their partitions, the oldest first
        self._taken: Final[dict[str, int]] = {}  # bytes of each partition
        self.n_taken = 0

    def __repr__(self) -> str:
        return f"<JoinTable {sum(map(len, self._calls.values()))} calls, {self.n_taken} bytes>"

    def find_equal(self, key: bytes) -> JoinedCall | None:
        """Return a call that runs for an equal request."""
        return next((each for each in self._calls.get(key, ()) if each.runs), None)

    def find_retry(self, key: bytes) -> JoinedCall | None:
        """Return the call that a retry without an Idempotency-Key is of: one whose client has left; else one that runs.

        A connection that is lost is not always seen, so the first client of the latter may be gone, too.
        """
        found = [each for each in self._calls.get(key, ()) if each.may_retry and each not in self._names]
        if not found:
            return None
        left = [each for each in found if not each.has_leader]
        if left:
            return min(left, key=_n_joined)
        return next((each for each in found if each.runs), None)

    def find_named(self, name: bytes, key: bytes) -> JoinedCall | None:
        """Return the call of the same Idempotency-Key and request. Raises VeloxError where that had another body."""
        found = self._named.get(name)
        if found is None or found.key == key:
            return found
        if found.key[_HALF:] != key[_HALF:]:
            raise mismatch()
        return None

    def has_name(self, name: bytes) -> bool:
        """Return True while a call has this Idempotency-Key."""
        return name in self._named

    def begin(self, partition: str, key: bytes, name: bytes | None, *, may_retry: bool) -> JoinedCall | None:
        """Return a call that others may join; None: there is no room for it. name: see find_named()."""
        if not self._take(partition, CALL_BYTES):
            return None
        room = Room(partial(self._take, partition), partial(self._give, partition))
        call = JoinedCall(key, self._bounds.call_bytes, room, may_retry=may_retry)
        call.on_closed = partial(self._forget, call, partition, name)
        self._calls.setdefault(key, []).append(call)
        if name is not None:
            self._named[name] = call
            self._names.add(call)
        return call

    def keep(self, call: JoinedCall, partition: str) -> None:
        """Keep one that is whole, until it is closed or its room is needed."""
        if call.is_open:
            self._kept[call] = partition

    def _take(self, partition: str, n_bytes: int) -> bool:
        bounds = self._bounds
        while self._taken.get(partition, 0) + n_bytes > bounds.partition_bytes:
            oldest = next((call for call, of in self._kept.items() if of == partition), None)
            if oldest is None:
                return False
            oldest.close()
        while self.n_taken + n_bytes > bounds.all_bytes:
            oldest = next(iter(self._kept), None)
            if oldest is None:
                return False
            oldest.close()
        self._taken[partition] = self._taken.get(partition, 0) + n_bytes
        self.n_taken += n_bytes
        return True

    def _give(self, partition: str, n_bytes: int) -> None:
        self.n_taken -= n_bytes
        left = self._taken[partition] - n_bytes
        if left:
            self._taken[partition] = left
        else:
            del self._taken[partition]

    def _forget(self, call: JoinedCall, partition: str, name: bytes | None) -> None:
        self._kept.pop(call, None)
        self._names.discard(call)
        calls = self._calls[call.key]
        calls.remove(call)
        if not calls:
            del self._calls[call.key]
        if name is not None and self._named.get(name) is call:
            del self._named[name]
        self._give(partition, CALL_BYTES)


def mismatch() -> VeloxError:
    """Return the error of a request with the Idempotency-Key of another one."""
    message = (
        "this Idempotency-Key was used a short time ago for another request, which runs or whose answer is still kept:"
        " send each request with a key of its own, and the same one only with an equal request"
    )
    return VeloxError(Reason.IDEMPOTENCY_MISMATCH, message, param="idempotency-key")


def _n_joined(call: JoinedCall) -> int:
    return call.n_joined
