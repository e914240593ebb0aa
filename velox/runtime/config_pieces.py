"""The settings that change while the gateway runs, on their way from one process to another: in pieces.

Knows: that 10,000 routes are too many to be taken in at once by a loop that others wait for. Does not know: who sends
them, or where they are kept on the way.

They hold the keys of upstreams: they go through memory only, and never come from outside.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Final

from velox.runtime.steps import finished
from velox.settings import Settings
from velox.settings.live import LIVE

__all__ = ["ConfigPieces", "assembled", "assembling", "packed", "pieces", "unpacked"]

# Lists that may be long, and how many of their entries are one piece: about half a millisecond's work.
_PER_PIECE: Final = {"upstreams": 4, "routes": 50}


@dataclass(frozen=True, slots=True)
class ConfigPieces:
    """head: all fields but the long ones, as one. lists: of those each field and each piece, in order."""

    head: bytes
    lists: tuple[tuple[str, bytes], ...]

    @property
    def n_bytes(self) -> int:
        """How much they are."""
        return len(self.head) + sum(len(piece) for _, piece in self.lists)


def pieces(settings: Settings) -> ConfigPieces:
    """Take the live settings apart."""
    head = {name: getattr(settings, name) for name in LIVE if name not in _PER_PIECE}
    lists = []
    for name, n in _PER_PIECE.items():
        entries = getattr(settings, name)
        lists += [(name, packed(entries[first : first + n])) for first in range(0, len(entries), n)]
    return ConfigPieces(packed(head), tuple(lists))


def assembling(parts: ConfigPieces, running: Settings) -> Generator[None, None, Settings]:
    """Put them together, with the other settings as they run; yield after each piece."""
    head: dict[str, object] = unpacked(parts.head)
    lists: dict[str, list[object]] = {name: [] for name in _PER_PIECE}
    for name, piece in parts.lists:
        lists[name] += unpacked(piece)
        yield
    # The type checker can't know that each name has a value of its field's type; pieces() took them from there.
    return replace(running, **head, **{name: tuple(entries) for name, entries in lists.items()})  # type: ignore[arg-type]


def assembled(parts: ConfigPieces, running: Settings) -> Settings:
    """Put them together at once: for a process that nobody waits for."""
    return finished(assembling(parts, running))


def packed(value: object) -> bytes:
    """Return a value as the processes of one gateway hand it to each other."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpacked(text: bytes) -> Any:
    """Return the value that a process of this gateway has packed."""
    return pickle.loads(text)  # noqa: S301 - it was never outside of the gateway's own memory
