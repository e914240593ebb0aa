"""A worker's record of calls, and what is in it."""

from __future__ import annotations

from pathlib import Path

from velox.ledger.record import Call, NamePart, NameParts, Rest, read_body
from velox.ledger.writer import CallWriter
from velox.shm.record_ring import RecordRing

__all__ = ["CallRecords"]


class CallRecords:
    """A ring in a folder, with its writer."""

    def __init__(self, folder: Path) -> None:
        self.ring = RecordRing(folder / "0.ring", 100)
        self.ring.recover()
        self.writer = CallWriter(self.ring, 0xABCD)

    @property
    def calls(self) -> list[Call]:
        """What is recorded."""
        names, calls = NameParts(), []
        rest: Rest | None = None
        for body in self.ring.read(0, self.ring.head):
            assert body is not None
            record = read_body(body, names, rest)
            if isinstance(record, NamePart):
                names.add(record)
            elif isinstance(record, Call):
                calls.append(record)
            rest = record if isinstance(record, Rest) else None
        return calls
