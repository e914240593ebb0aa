"""The version of before, as the supervisor sees it that takes its gateway over.

    take()      at the start: reads what is handed over; None: nothing is, this is no upgrade
    ready()     all workers serve: the version before may stop accepting
    look()      once a turn: what the version before says
    stop()      the gateway ends: so does what runs still of the version before

Knows: what was handed over, and which blocks of shared memory the workers of before still write. Does not know: how the
parts of a gateway go on with it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from velox.runtime.processes.handover import VARIABLE, HandoverError, HandoverSocket, Kind, Message, State
from velox.runtime.processes.memories import Memories

__all__ = ["Predecessor"]

_TAKE_S: Final = 10.0
_STDERR: Final = 2
# What the workers of a supervisor that has died get to end: the kernel kills them with it.
_DYING_S: Final = 1.0


class Predecessor:
    """See the top of this file. state: what was handed over. busy: blocks that workers of before still write.

    has_gone: it is the gateway no more, this one is. is_alone: its ledger and lease manager have ended. is_gone: all of
    it is.
    """

    def __init__(self, sock: HandoverSocket, state: State) -> None:
        self._sock: Final = sock
        self.state: Final = state
        self.busy: Final = set(state.busy)
        self.memories: Final = Memories(state.memories)
        self._sockets: Final = {
            name: [socket.socket(fileno=fd) for fd in found] for name, found in state.listeners.items()
        }
        self._taken: Final[list[str]] = []
        self._locks: Final = dict(state.locks)
        self._taken_locks: Final[list[str]] = []
        self.has_gone = False
        self.is_alone = False
        self.is_gone = False
        self._ended_s = 0.0

    def __repr__(self) -> str:
        return f"<Predecessor velox {self.state.version}, busy {sorted(self.busy)}>"

    @classmethod
    def take(cls, given: str, timeout_s: float = _TAKE_S) -> Self | None:
        """Read what is handed over; None: nothing is. given: the value of VARIABLE. Raises HandoverError."""
        if not given:
            return None
        try:
            number, stderr = map(int, given.split(":"))
            sock = socket.socket(fileno=number)
            # What went wrong until here went to who started this process. The log is where it was before.
            os.dup2(stderr, _STDERR)
            os.close(stderr)
        except (OSError, ValueError) as exc:
            raise HandoverError(f"{VARIABLE} is {given!r}: it is set by `velox upgrade`, and by nobody else") from exc
        sock.set_inheritable(False)
        channel = HandoverSocket(sock)
        try:
            return cls(channel, _state(channel, timeout_s))
        except HandoverError as exc:
            channel.send(Message(Kind.FAILED, {"why": str(exc)}))  # who asked for the upgrade sees no log
            raise

    # -- what was handed over ---------------------------------------------------------------------

    def sockets(self, address: str) -> Sequence[socket.socket]:
        """Return the listening sockets of an address, which are the caller's from now on; none: there are none."""
        found = self._sockets.pop(address, [])
        for sock in found:
            sock.setblocking(False)
        if found:
            self._taken.append(address)
        return found

    def lock(self, folder: str) -> int:
        """Return the lock of a folder of the ledger, which is the caller's from now on; -1: it is not handed over."""
        found = self._locks.pop(folder, -1)
        if found >= 0:
            self._taken_locks.append(folder)
        return found

    def has_lock(self, folder: str | None) -> bool:
        """Tell whether a folder is one of the version before."""
        return folder is not None and str(Path(folder)) in self.state.locks

    def free_first(self, blocks: Sequence[int]) -> list[int]:
        """Return blocks of a slot, those first that nobody writes."""
        return sorted(blocks, key=lambda block: block in self.busy)

    def settle(self) -> None:
        """Let go of what was handed over and not taken, which stays the other one's.

        Before the first fork: a child that had such a socket would keep its port bound, where nobody accepts any more.
        """
        for found in self._sockets.values():
            for sock in found:
                sock.close()
        for lock in self._locks.values():
            os.close(lock)
        self._sockets.clear()
        self._locks.clear()

    # -- what is said -------------------------------------------------------------------------------

    def ready(self, version: str, lost: Sequence[str], *, has_leases: bool) -> None:
        """Say that all workers serve.

        lost: memories whose contents this version can't go on with. has_leases: it speaks with Redis itself.
        """
        fields = {"version": version, "lost": list(lost), "leases": has_leases}
        self._sock.send(Message(Kind.READY, {**fields, "listeners": self._taken, "locks": self._taken_locks}))

    def failed(self, why: str) -> None:
        """Say why this gateway can't begin."""
        self._sock.send(Message(Kind.FAILED, {"why": why}))

    def stop(self) -> None:
        """Have what is left of it end."""
        self._sock.send(Message(Kind.STOP, {}))

    def look(self, now_s: float, freed: Callable[[int], None]) -> bool:
        """Take what it says; False: it gave up before this gateway began, which is to end.

        freed: called with each block that a supervisor which died has left; what it cleaned up itself is not told.
        """
        while (message := self._sock.receive()) is not None:
            if message.kind is Kind.GO:
                self.has_gone = True
            elif message.kind is Kind.ALONE:
                self.is_alone = True
            elif message.kind is Kind.FREED:
                self.busy.discard(message.fields["block"])
        if not self._sock.is_over or self.is_gone:
            return True
        if not self.has_gone:
            return False
        self.is_alone = True
        self._ended_s = self._ended_s or now_s
        if not self.busy or now_s - self._ended_s >= _DYING_S:
            for block in sorted(self.busy):
                freed(block)
            self.busy.clear()
            self.is_gone = True
            self._sock.close()
        return True


def _state(channel: HandoverSocket, timeout_s: float) -> State:
    until_s = time.monotonic() + timeout_s
    fields: Mapping[str, object] = {}
    descriptors: list[int] = []
    while not fields or len(descriptors) < int(str(fields["descriptors"])):
        message = channel.receive(max(0.001, until_s - time.monotonic()))
        if message is None:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            raise HandoverError("the running gateway has handed nothing over")
        if message.kind is Kind.STATE:
            fields = message.fields
        descriptors += message.descriptors
    return State.of(fields, descriptors)
