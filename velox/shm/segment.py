"""The one piece of memory that the supervisor and all workers share, and where everything in it lies.

Knows: the layout. Does not know: what a number means (status.py and velox.observe.metrics do).

Everything is an 8-byte cell. Aligned 8-byte loads and stores are not torn on x86-64 and arm64, so a cell with
one writer is a plain memoryview item. Cells with several writers are in a memory of their own (quota_table.py).
No lock anywhere: a process may be killed between any two instructions.

    gateway    4 lines       written by the supervisor
    status     2 lines each  one block a process
    metrics    slab each     one block a process, and one for processes that are no workers

A slot may have several blocks, for as many processes at a time: block `slot`, and every `workers` blocks further. A
worker that is replaced ends what it has begun in one, while its successor serves in the other; no cell of a block ever
has two writers.

The memory is a memfd: it is in no file system, inherited by fork, and gone with its last process.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Final

from atomicshm import AtomicView

__all__ = [
    "CELL_BYTES",
    "GATEWAY_CELLS",
    "LINE_CELLS",
    "STATUS_CELLS",
    "Segment",
    "SharedMemoryError",
    "atomic_view",
    "mapped",
    "shared_descriptor",
    "shared_memory",
    "whole_lines",
]

CELL_BYTES: Final = 8
LINE_CELLS: Final = 8  # 64-byte cache lines

GATEWAY_CELLS: Final = 4 * LINE_CELLS
STATUS_CELLS: Final = 2 * LINE_CELLS


_HINTS: Final = {
    errno.ENOMEM: "raise the limit of address space (ulimit -v)",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), which counts for it, too",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class SharedMemoryError(OSError):
    """Shared memory can't be had. The message says how much, why, and what to do."""


def shared_memory(name: str, n_bytes: int) -> mmap.mmap:
    """Return zeroed memory that children inherit: a memfd, in no file system. Untouched pages take no memory.

    Raises SharedMemoryError.
    """
    fd = shared_descriptor(name, n_bytes)
    try:
        return mapped(fd, name, n_bytes)  # keeps a descriptor of its own
    finally:
        os.close(fd)


def shared_descriptor(name: str, n_bytes: int) -> int:
    """Return a memfd of zeros: shared memory that can be handed to any process. Raises SharedMemoryError."""
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, n_bytes)
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        raise _failure(exc, name, n_bytes) from exc
    return fd


def mapped(fd: int, name: str, n_bytes: int) -> mmap.mmap:
    """Map a memfd. Raises SharedMemoryError."""
    try:
        return mmap.mmap(fd, n_bytes)
    except OSError as exc:
        raise _failure(exc, name, n_bytes) from exc


def _failure(exc: OSError, name: str, n_bytes: int) -> SharedMemoryError:
    hint = _HINTS.get(exc.errno or 0)
    more = "" if hint is None else f"; {hint}"
    return SharedMemoryError(
        f"{n_bytes / (1 << 20):.1f} MiB of shared memory ({name}) can't be had: {exc.strerror}{more}"
    )


def whole_lines(n_cells: int) -> int:
    """Return the cells of as many whole cache lines as hold `n_cells`."""
    return -(-n_cells // LINE_CELLS) * LINE_CELLS


def atomic_view(cells: memoryview[int]) -> tuple[AtomicView, int]:
    """Return an atomic view of the memory that `cells` are a part of, and where in it they begin, in bytes.

    Not a view of the memoryview: when the garbage collector takes that apart while something has a buffer of it, the
    process dies (CPython 3.11).
    """
    whole = AtomicView(cells.obj)
    with AtomicView(cells) as part:
        return whole, part.address - whole.address


class Segment:
    """The shared memory of one gateway. Made by the supervisor before it forks; children inherit it.

    workers: number of worker slots. metric_cells: size of one worker's metrics slab. spares: blocks that each slot has
    beside its first. A new segment holds zeros.
    """

    __slots__ = ("_cells", "_slab_cells", "_slabs_first", "blocks", "workers")

    def __init__(self, workers: int, metric_cells: int, *, spares: int = 0) -> None:
        self.workers: Final = workers
        self.blocks: Final = workers * (1 + spares)
        self._slab_cells = whole_lines(metric_cells)
        self._slabs_first = GATEWAY_CELLS + self.blocks * STATUS_CELLS
        size = (self._slabs_first + (self.blocks + 1) * self._slab_cells) * CELL_BYTES
        self._cells: memoryview[int] = memoryview(shared_memory("velox", size)).cast("Q")

    def gateway(self) -> memoryview[int]:
        """Return the cells that the supervisor writes."""
        return self._cells[:GATEWAY_CELLS]

    def status(self, block: int) -> memoryview[int]:
        """Return the status cells of a block (0 <= block < blocks)."""
        return self._block(GATEWAY_CELLS, STATUS_CELLS, block)

    def metrics(self, block: int) -> memoryview[int]:
        """Return the metrics slab of a block (0 <= block < blocks)."""
        return self._block(self._slabs_first, self._slab_cells, block)

    def other_metrics(self) -> memoryview[int]:
        """Return the metrics slab of processes that are no workers: the lease manager writes it.

        Lines dropped from the operations log are counted there by every process, with an atomic add.
        """
        start = self._slabs_first + self.blocks * self._slab_cells
        return self._cells[start : start + self._slab_cells]

    def blocks_of(self, worker: int) -> range:
        """Return the blocks of a worker slot (0 <= worker < workers)."""
        return range(worker, self.blocks, self.workers)

    def _block(self, first: int, cells: int, block: int) -> memoryview[int]:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        start = first + block * cells
        return self._cells[start : start + cells]
