"""Records that outlive the process that wrote them: one ring in a file, with one writer at a time and one reader.

Knows: how records lie in the file, which of them are whole, and which calls were open when a writer died. Does not
know: what a record means (ledger/record.py).

    header     one page: cells of 8 bytes, each with one writer
    open       a record for each call that is under way, written before it is sent and given back at its end
    ring       records in the order of their sequence numbers; number n lies at n % n_records

The file is mapped with MAP_SHARED: what a process has written is there when it is killed at the next instruction. A
record ends in a CRC-32 that begins with its sequence number, so a record that is torn, older, or not there yet is never
taken for a whole one, whichever order a processor stores its bytes in.

After a power failure the kernel may have written some pages and not others: what is damaged is counted and left out.
The header's page may be older than the records, and than what the reader's store has of them; so may a file be that
came out of a backup. start() finds the whole records that the header does not count, and notes where the writers before
it had come to. A reader compares that with its store before it reads. A file that is older gets another name: numbers
that the store has seen come again, for other records.

The disk space is taken when the file is made: a page that can't be had later would kill the writer with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["BODY_BYTES", "N_TOTALS", "RECORD_BYTES", "RecordRing", "RingError"]

RECORD_BYTES: Final = 128
BODY_BYTES: Final = 124  # and a CRC-32
_OPEN_RECORDS: Final = 4096
_NAMES_OF_CALL: Final = 64  # records: more than a call and all of its names may take
_RECORDS_OF_CALL: Final = 2  # at most, once its names are there
_PAGE: Final = 4096
_RECORDS_OF_PAGE: Final = _PAGE // RECORD_BYTES
_RING_AT: Final = _PAGE + _OPEN_RECORDS * RECORD_BYTES
_MAGIC: Final = int.from_bytes(b"VELOXRG1", "little")
_RECORD: Final = struct.Struct(f"<{BODY_BYTES}sI")
_MASK: Final = 0xFFFF_FFFF
_MOST_TOTAL: Final = (1 << 63) - 1
# The CRC of an open record begins with this: it can't be taken for one of the ring.
_OPEN: Final = 0x4F50_454E

_WRITTEN: Final = re.compile(rb"[^\0]")

# Cells of the header.
_IS_RING: Final = 0
_N_RECORDS: Final = 1
_HEAD: Final = 2  # the next number; the writer's
_TAIL: Final = 3  # the first one that the reader still needs; the reader's
_N_DROPPED: Final = 4  # records that found no room; the writer's
_N_UNPROTECTED: Final = 5  # calls that found no room among the open ones; the writer's
_N_NAMES: Final = 6  # numbers that names have got; the writer's
_IDENTITY: Final = 7  # a random number: no other ring has it
_TOTALS: Final = 8  # sums over what was dropped, as its writer counts them
N_TOTALS: Final = 8
# 1 + the head as the writers before the last start had left it; 0: a reader has compared that with its store. The
# supervisor's, then the reader's.
_LEFT: Final = _TOTALS + N_TOTALS
_LOST: Final = _LEFT + 1  # records that can't be read, of which the store has nothing either; the reader's
_FOUND: Final = _LEFT + 2  # records that were found though the header was lost; 0: it was not, or that was told


def _crc_entry(byte: int) -> int:
    """Return the CRC-32 of one byte, as its tables have it."""
    for _ in range(8):
        byte = byte >> 1 ^ (0xEDB8_8320 if byte & 1 else 0)
    return byte


_CRC: Final = tuple(map(_crc_entry, range(256)))
# Where an entry is that begins with a byte: there is one for each.
_CRC_BY_TOP: Final = tuple(sorted(range(256), key=lambda entry: _CRC[entry] >> 24))


class RingError(Exception):
    """A file is no ring, or can't be made one. The message says which and why."""


class RecordRing:
    """One ring, as its writer and as its reader.

    path: its file, which is made if it is not there. n_records: of a new one; one that is there keeps its own.
    """

    __slots__ = ("_cells", "_free", "_head", "_memory", "_path", "n_records")

    def __init__(self, path: Path, n_records: int) -> None:
        memory = _mapped(path, n_records)
        self._path: Final = path
        self._memory: Final = memory
        self._cells: Final = memoryview(memory)[:_PAGE].cast("Q")
        self.n_records: Final = self._cells[_N_RECORDS]
        self._head = self._cells[_HEAD]
        self._free: list[int] = []  # places of open calls that nobody has

    def __repr__(self) -> str:
        return f"<RecordRing {self.name} {self.tail}..{self.head}>"

    @property
    def name(self) -> str:
        """The name of the file, and what makes it another one than any before it."""
        return self.name_with(self._cells[_IDENTITY])

    def name_with(self, identity: int) -> str:
        """Return the name that it would have with another identity."""
        return f"{self._path.stem}-{identity:016x}"

    # -- the supervisor, before any other process uses it ----------------------------------------

    def start(self) -> None:
        """Count all whole records that are there, and note for the reader where they end.

        Pages are written as a whole: one that was written after its last record was put has its first one, too.
        """
        cells, n = self._cells, self.n_records
        number = head = cells[_HEAD]
        end = cells[_TAIL] + n
        while number < end:
            if self._record(number) is not None:
                number = head = number + 1
            else:
                at = number % n
                number += min(_RECORDS_OF_PAGE - at % _RECORDS_OF_PAGE, n - at)
        self._memory.madvise(mmap.MADV_DONTNEED)  # a page of each look: none of them is needed again
        self._head = cells[_HEAD] = head
        if not cells[_LEFT]:  # else no reader has had a store since the last start
            cells[_LEFT] = head + 1

    # -- the writer -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Become its writer; the one before must be dead, and recover() have put what it had open among the records."""
        cells, head = self._cells, self._cells[_HEAD]
        if self._record(head) is not None:  # it was killed between the record and its count
            head += 1
        self._head = cells[_HEAD] = head
        # Without room recover() leaves calls open: their places are not taken until it has put them.
        first_bytes = self._memory[_PAGE:_RING_AT:RECORD_BYTES]
        self._free = [place for place, byte in enumerate(first_bytes) if not byte]

    def next_name(self) -> int:
        """Return a number for a name that no name of this ring has had."""
        self._cells[_N_NAMES] += 1
        return self._cells[_N_NAMES]

    def put(self, body: bytes) -> bool:
        """Write one record of BODY_BYTES, whose first byte is not 0. False: it is dropped, for there is no room."""
        head = self._head
        if head - self._cells[_TAIL] >= self.n_records:
            self._cells[_N_DROPPED] += 1
            return False
        at = _RING_AT + head % self.n_records * RECORD_BYTES
        _RECORD.pack_into(self._memory, at, body, zlib.crc32(body, head & _MASK))
        self._head = self._cells[_HEAD] = head + 1
        return True

    def add_dropped(self, totals: Sequence[int]) -> None:
        """Add what a dropped record would have told to the sums that are kept of them: at most N_TOTALS."""
        for at, n in enumerate(totals, _TOTALS):
            self._cells[at] = min(max(self._cells[at] + n, 0), _MOST_TOTAL)

    @property
    def is_full(self) -> bool:
        """True while the next record would be dropped."""
        return self._head - self._cells[_TAIL] >= self.n_records

    @property
    def has_room(self) -> bool:
        """True while all calls that are open could be recorded, and one more with its names."""
        n_open = _OPEN_RECORDS - len(self._free)
        return self._head + _RECORDS_OF_CALL * n_open + _NAMES_OF_CALL - self._cells[_TAIL] < self.n_records

    def open(self, body: bytes) -> int:
        """Keep what is to be recorded of a call if this process dies now. Return its place; -1: there is none."""
        if not self._free:
            self._cells[_N_UNPROTECTED] += 1
            return -1
        place = self._free.pop()
        at = _PAGE + place * RECORD_BYTES
        _RECORD.pack_into(self._memory, at, body, zlib.crc32(body, _OPEN))
        return place

    def close(self, place: int) -> None:
        """Forget an open call: it was recorded, or is nothing to record. place: as open() gave it."""
        if place >= 0:
            self._memory[_PAGE + place * RECORD_BYTES] = 0
            self._free.append(place)

    def recover(self) -> int:
        """Put what a dead writer had open among the records; return how many.

        A writer that died between a record and its close() has both. So has this one, if it is killed here. The reader
        takes the first of two with the same id. Without room they stay open.
        """
        self.begin()
        memory, n = self._memory, 0
        for place in range(_OPEN_RECORDS):
            at = _PAGE + place * RECORD_BYTES
            body = memory[at : at + BODY_BYTES]
            if body[0] and zlib.crc32(body, _OPEN).to_bytes(4, "little") == memory[at + BODY_BYTES : at + RECORD_BYTES]:
                if self.is_full:
                    return n
                self.put(body)
                n += 1
            if body[0]:
                self.close(place)
        return n

    # -- the reader -----------------------------------------------------------------------------

    def open_bodies(self) -> list[bytes]:
        """Return the records of calls that are open now. One that is just being written may be read in part."""
        memory = self._memory
        first_bytes = memory[_PAGE:_RING_AT:RECORD_BYTES]
        starts = [_PAGE + place * RECORD_BYTES for place, byte in enumerate(first_bytes) if byte]
        return [memory[at : at + BODY_BYTES] for at in starts]

    @property
    def head(self) -> int:
        """The number that the next record gets."""
        return self._cells[_HEAD]

    @property
    def tail(self) -> int:
        """The number of the first record that is kept for the reader."""
        return self._cells[_TAIL]

    @property
    def left(self) -> int | None:
        """The number after the last record of the writers before the last start; None: that was compared()."""
        return self._cells[_LEFT] - 1 if self._cells[_LEFT] else None

    def compared(self) -> None:
        """Note that the store knows no record that the writers before the last start have not left. Raises RingError.

        On the disk, too: after a power failure the head of this moment must not be compared with a later store.
        """
        self._cells[_LEFT] = 0
        try:
            self._memory.flush(0, _PAGE)
        except OSError as exc:
            raise RingError(f"{self._path}: {exc.strerror}") from exc

    def rename(self, identity: int) -> None:
        """Have another name from now on, which the store knows already. Raises RingError."""
        self._cells[_IDENTITY] = identity
        self.compared()

    @property
    def oldest(self) -> int:
        """The number of the oldest record whose place no newer one has, kept for the reader or not."""
        return max(self._cells[_HEAD] - self.n_records, 0)

    @property
    def n_lost(self) -> int:
        """Records that were damaged, or written over before the store had them."""
        return self._cells[_LOST]

    def add_lost(self, n: int) -> None:
        """Count records that the reader can't have."""
        self._cells[_LOST] += n

    def take_found(self) -> int:
        """Return how many records were found after the header was lost; 0: it was not, or that was asked before."""
        n, self._cells[_FOUND] = self._cells[_FOUND], 0
        return n

    @property
    def n_dropped(self) -> int:
        """Records that found no room."""
        return self._cells[_N_DROPPED]

    @property
    def dropped(self) -> tuple[int, ...]:
        """The sums over what was dropped."""
        return tuple(self._cells[_TOTALS : _TOTALS + N_TOTALS])

    @property
    def n_unprotected(self) -> int:
        """Calls that would be lost if their process were killed, because too many were open."""
        return self._cells[_N_UNPROTECTED]

    def read(self, number: int, most: int) -> list[bytes | None]:
        """Return the records from `number` on, at most so many. None: it is damaged, or not there yet."""
        found: list[bytes | None] = []
        end, n = min(self.head, number + most), self.n_records
        while number < end:
            at = number % n
            n_here = min(end - number, n - at)
            begin = _RING_AT + at * RECORD_BYTES
            for body, crc in _RECORD.iter_unpack(self._memory[begin : begin + n_here * RECORD_BYTES]):
                found.append(body if body[0] and zlib.crc32(body, number & _MASK) == crc else None)
                number += 1
        return found

    def free(self, number: int) -> None:
        """Give the room of all records before `number` back to the writer: they are safe. What was given stays so."""
        self._cells[_TAIL] = max(number, self._cells[_TAIL])

    def _record(self, number: int) -> bytes | None:
        return _whole(self._memory, number, self.n_records)


def _whole(memory: mmap.mmap, number: int, n_records: int) -> bytes | None:
    """Return a record of the ring; None: at its place is another one, or none."""
    at = _RING_AT + number % n_records * RECORD_BYTES
    body = memory[at : at + BODY_BYTES]
    crc = memory[at + BODY_BYTES : at + RECORD_BYTES]
    is_whole = body[0] and zlib.crc32(body, number & _MASK).to_bytes(4, "little") == crc
    return body if is_whole else None


def _mapped(path: Path, n_records: int) -> mmap.mmap:
    """Map the file of a ring, which is made if it is not there. Raises RingError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise RingError(f"{path}: {exc.strerror}") from exc
    is_new = False
    try:
        size = os.fstat(fd).st_size
        is_new = not size
        if is_new:
            size = _RING_AT + n_records * RECORD_BYTES
            os.posix_fallocate(fd, 0, size)
        memory = mmap.mmap(fd, size)
    except (OSError, ValueError) as exc:
        if is_new:
            path.unlink(missing_ok=True)  # the next start would find half of it
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise RingError(f"{path}: {why}; {size} bytes are needed") from exc
    finally:
        os.close(fd)
    if size < _RING_AT:
        raise RingError(f"{path}: it is no ring of records; move it away")
    cells = memoryview(memory)[:_PAGE].cast("Q")
    n_found = 0
    if not cells[_IS_RING] and not is_new and _WRITTEN.search(memory) is not None:
        # After a power failure its first page may be missing: as a new ring it would have none of its records.
        n_found = _refind(cells, memory, (size - _RING_AT) // RECORD_BYTES)
        if not n_found:
            raise RingError(f"{path}: its head is lost, and no record can be found again; move it away")
    if not cells[_IS_RING] and (n_found or size == _RING_AT + n_records * RECORD_BYTES):
        cells[_N_RECORDS] = (size - _RING_AT) // RECORD_BYTES
        cells[_IDENTITY] = secrets.randbits(64)
        cells[_IS_RING] = _MAGIC
    if cells[_IS_RING] != _MAGIC or not cells[_N_RECORDS] or size != _RING_AT + cells[_N_RECORDS] * RECORD_BYTES:
        raise RingError(f"{path}: it is no ring of records, or one of another version; move it away")
    return memory


def _refind(cells: memoryview, memory: mmap.mmap, n_records: int) -> int:
    """Find the records of a ring whose header is lost, and note where they begin and end; return how many there are.

    A power failure may leave the header's page as it was made: zeros. Each record has its number in its CRC.
    """
    number = next((found for at in range(n_records) if (found := _number_at(memory, at, n_records)) is not None), None)
    if number is None:
        return 0
    whole = [each for each in range(max(number - n_records, 0), number + n_records) if _whole(memory, each, n_records)]
    cells[_HEAD], cells[_TAIL], cells[_LEFT], cells[_FOUND] = whole[-1] + 1, whole[0], 0, len(whole)
    return len(whole)


def _number_at(memory: mmap.mmap, at: int, n_records: int) -> int | None:
    """Return the number of the record at a place; None: there is none. A CRC is undone byte by byte to its begin."""
    begin = _RING_AT + at * RECORD_BYTES
    body = memory[begin : begin + BODY_BYTES]
    if not body[0]:
        return None
    crc = int.from_bytes(memory[begin + BODY_BYTES : begin + RECORD_BYTES], "little") ^ _MASK
    for byte in reversed(body):
        entry = _CRC_BY_TOP[crc >> 24]
        crc = ((crc ^ _CRC[entry]) << 8) | (entry ^ byte)
    number = crc ^ _MASK
    # Of a damaged record it is any number: one that would stand elsewhere, or alone.
    is_there = number % n_records == at and _whole(memory, number, n_records) is not None
    beside = (number + 1, number - 1) if number else (number + 1,)
    return number if is_there and any(_whole(memory, each, n_records) for each in beside) else None
