"""What the supervisors of two versions say to each other while one takes a gateway over from the other.

    the one that runs          the next one, which it has started
    State, descriptors    ->   binds nothing that it is given, starts its workers
                          <-   READY, with what it has taken; or FAILED, with why, and it ends
    GO                    ->   the next one is the gateway from here on; the other one's workers accept no more
    ALONE                 ->   those that there may be one of (ledger, lease manager) have ended: it starts its own
    FREED, a block        ->   a worker of before has left, what it had is cleaned up
                          <-   STOP: the gateway ends, and with it all that runs still
    (end of the socket)   ->   the one before is gone

Either one may die at any moment: the other then sees the end of the socket, which all children of a side keep open.

Knows: the messages and their form, which both versions must understand. Does not know: what a side does with them
(upgrade.py, predecessor.py).
"""

from __future__ import annotations

import enum
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from velox.runtime.processes.memories import HandedMemory

__all__ = ["PROTOCOL", "VARIABLE", "HandoverError", "HandoverSocket", "Kind", "Message", "State"]

# Raised when a message changes its meaning: the next version refuses another one than its own.
PROTOCOL: Final = 1
# In the environment of the next one: descriptors of the socket, and of standard error.
VARIABLE: Final = "VELOX_HANDOVER"
_MOST_BYTES: Final = 128 * 1024
# The kernel passes 253 with a message (SCM_MAX_FD).
_MOST_DESCRIPTORS: Final = 200


class HandoverError(Exception):
    """Nothing can be taken over. The message says why."""


class Kind(enum.StrEnum):
    """What a message is."""

    STATE = "state"
    DESCRIPTORS = "descriptors"
    READY = "ready"
    FAILED = "failed"
    GO = "go"
    ALONE = "alone"
    FREED = "freed"
    STOP = "stop"


class Message(NamedTuple):
    """One message. descriptors: the receiver's own."""

    kind: Kind
    fields: Mapping[str, Any]
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What is handed over.

    version: of the one that runs. workers, blocks: its slots, and its blocks of shared memory. busy: the blocks that
    its processes write. listeners: sockets by address, clients' and the admin listener's. memories: those that can be
    gone on with. locks: of the ledger's folders, by path. anchor: the page of the first process (anchor.py), or -1.
    """

    version: str
    workers: int
    blocks: int
    busy: tuple[int, ...]
    listeners: Mapping[str, tuple[int, ...]]
    memories: tuple[HandedMemory, ...]
    locks: Mapping[str, int]
    anchor: int = -1

    def messages(self) -> Iterator[Message]:
        """Yield the messages that say all of it."""
        groups = {
            "listeners": [(name, len(found)) for name, found in self.listeners.items()],
            "memories": [(each.name, each.layout, each.shape, each.key.hex()) for each in self.memories],
            "locks": list(self.locks),
            "anchor": self.anchor >= 0,
        }
        descriptors = [fd for found in self.listeners.values() for fd in found]
        descriptors += [each.descriptor for each in self.memories]
        descriptors += self.locks.values()
        descriptors += [self.anchor] if self.anchor >= 0 else []
        fields = {
            "protocol": PROTOCOL,
            "version": self.version,
            "workers": self.workers,
            "blocks": self.blocks,
            "busy": self.busy,
            "descriptors": len(descriptors),
            **groups,
        }
        yield Message(Kind.STATE, fields)
        for first in range(0, len(descriptors), _MOST_DESCRIPTORS):
            yield Message(Kind.DESCRIPTORS, {}, tuple(descriptors[first : first + _MOST_DESCRIPTORS]))

    @classmethod
    def of(cls, fields: Mapping[str, Any], descriptors: Sequence[int]) -> State:
        """Return what messages() has said. Raises HandoverError for another version's form."""
        if fields.get("protocol") != PROTOCOL:
            raise HandoverError(
                f"the running gateway (velox {fields.get('version')}) hands over by form {fields.get('protocol')}, "
                f"this one takes form {PROTOCOL}: stop the gateway and start it again"
            )
        rest = iter(descriptors)
        try:
            listeners = {name: tuple(next(rest) for _ in range(n)) for name, n in fields["listeners"]}
            memories = tuple(
                HandedMemory(name, layout, tuple(shape), bytes.fromhex(key), next(rest))
                for name, layout, shape, key in fields["memories"]
            )
            locks = {path: next(rest) for path in fields["locks"]}
            anchor = next(rest) if fields["anchor"] else -1
        except (LookupError, TypeError, ValueError, RuntimeError) as exc:
            raise HandoverError(f"what the running gateway hands over can't be read: {exc!r}") from exc
        return cls(
            fields["version"],
            fields["workers"],
            fields["blocks"],
            tuple(fields["busy"]),
            listeners,
            memories,
            locks,
            anchor,
        )


class HandoverSocket:
    """One side's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Final = sock
        self.is_over = False

    def __repr__(self) -> str:
        return f"<HandoverSocket {self._sock.fileno()}{' over' if self.is_over else ''}>"

    def fileno(self) -> int:
        """Return its descriptor, to wait for."""
        return self._sock.fileno()

    def send(self, message: Message) -> bool:
        """Send without waiting; False: the other side is gone, or takes nothing."""
        if self.is_over:
            return False
        text = json.dumps({"kind": message.kind, **message.fields}).encode()
        try:
            socket.send_fds(self._sock, [text], list(message.descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float = 0.0) -> Message | None:
        """Return the next message; None: there is none within that time, or none will come (`is_over`)."""
        if self.is_over:
            return None
        self._sock.settimeout(timeout_s)
        try:
            text, descriptors, _, _ = socket.recv_fds(self._sock, _MOST_BYTES, _MOST_DESCRIPTORS)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:
            text, descriptors = b"", []
        if not text:
            self.is_over = True
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        fields = json.loads(text)
        return Message(Kind(fields.pop("kind")), fields, tuple(descriptors))

    def close(self) -> None:
        """Say no more."""
        self.is_over = True
        self._sock.close()
