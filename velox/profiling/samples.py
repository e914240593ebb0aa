"""What a profile is made of: frames, stacks and what they cost.

Knows: the shapes that sampler, encoders and the channel share, and how samples travel as bytes. Does not
know: how a sample is taken, shown or sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import orjson

__all__ = [
    "CPU",
    "HEAP",
    "Cost",
    "Frame",
    "Measure",
    "Profile",
    "Samples",
    "Stack",
    "merge",
    "pack",
    "short_file",
    "unpack",
]


class Frame(NamedTuple):
    """One call on a stack: the function, its file from its package's root on, and lines from 1 (0: none).

    function: "" where only the line is known, as for memory.
    """

    function: str
    file: str
    def_line: int
    line: int

    @property
    def dotted(self) -> str:
        """The function's name with its module's: `velox.net.client.ingress.Ingress.data_received`."""
        if not self.function:
            return f"{self.file}:{self.line}"
        if not self.file.endswith(".py"):
            return self.function
        module = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"{module}.{self.function}"


class Cost(NamedTuple):
    """How often a stack was seen, and the CPU time that passed up to those sightings, in nanoseconds.

    Of memory: how many blocks a stack has allocated that are still in use, and how many bytes they have.
    """

    n: int
    amount: int


# The outermost caller first, the function that ran last.
Stack: TypeAlias = tuple[Frame, ...]
Samples: TypeAlias = dict[Stack, Cost]


class Measure(NamedTuple):
    """What the two numbers of a Cost are, as pprof calls their types and units."""

    number: tuple[str, str]
    amount: tuple[str, str]


CPU: Final = Measure(("samples", "count"), ("cpu", "nanoseconds"))
# As Go's runtime calls them.
HEAP: Final = Measure(("inuse_objects", "count"), ("inuse_space", "bytes"))


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile over all workers that answered.

    workers: the samples of each, by its name. missing: the names of those that did not answer.
    unseen: what it can't show, for people; empty: nothing.
    started_ns: wall clock (Unix time); duration_ns: how long each worker was watched. hz: samples a second; 0: none.
    """

    workers: dict[str, Samples]
    missing: tuple[str, ...]
    started_ns: int
    duration_ns: int
    hz: int
    unseen: str = ""
    measure: Measure = CPU

    @property
    def amount(self) -> int:
        """CPU time of all workers together, or bytes."""
        return sum(cost.amount for samples in self.workers.values() for cost in samples.values())

    @property
    def n_samples(self) -> int:
        """Samples of all workers together."""
        return sum(cost.n for samples in self.workers.values() for cost in samples.values())


def merge(items: Iterable[tuple[Stack, Cost]]) -> Samples:
    """Add up the costs of equal stacks."""
    merged: Samples = {}
    for stack, cost in items:
        seen = merged.get(stack)
        merged[stack] = cost if seen is None else Cost(seen.n + cost.n, seen.amount + cost.amount)
    return merged


def short_file(path: str, roots: Iterable[str]) -> str:
    """Return `path` below the longest of `roots` that holds it, else its last part.

    roots: `sys.path`, so that "/usr/lib/python3.11/asyncio/events.py" becomes "asyncio/events.py". A made-up
    name such as "<frozen runpy>" stays as it is.
    """
    if path.startswith("<"):
        return path
    below = [path.removeprefix(root.rstrip("/") + "/") for root in roots if root]
    best = min(below, key=len, default=path)
    return best if len(best) < len(path) else path.rpartition("/")[2]


def pack(samples: Samples) -> bytes:
    """Return the samples as JSON: a table of frames, and stacks as indexes into it."""
    index: dict[Frame, int] = {}
    stacks = [
        [[index.setdefault(frame, len(index)) for frame in stack], cost.n, cost.amount]
        for stack, cost in samples.items()
    ]
    return orjson.dumps({"frames": [list(frame) for frame in index], "stacks": stacks})


def unpack(packed: bytes | bytearray) -> Samples:
    """Return what `pack` was given. Raises ValueError for anything that `pack` can't have made."""
    try:
        table = orjson.loads(packed)
        frames = [Frame(str(name), str(file), int(start), int(line)) for name, file, start, line in table["frames"]]
        return merge(
            (tuple(frames[i] for i in stack), Cost(int(count), int(amount))) for stack, count, amount in table["stacks"]
        )
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise ValueError("not a packed profile") from exc
