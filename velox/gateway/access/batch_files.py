"""Which files a key that is limited to some models may run as a batch: those whose lines were read for it.

A batch names a file, and the file's lines name the models. They are read when the file is uploaded (access.py); that
they were, for a key with just these models, is remembered in the table of objects. What it has forgotten must be
uploaded again.

Knows: where a batch names its file. Does not know: lines, or which models are allowed.
"""

from __future__ import annotations

from typing import Final

from velox.gateway.access.ownership import Recording
from velox.protocol.named_models import DoubtError, JsonScan, folded
from velox.shm.object_table import ObjectTable
from velox.types import Caller

__all__ = ["BatchFiles"]

_INPUT: Final = "input_file_id"
_ENDPOINT: Final = "endpoint"
_FIELDS: Final = {folded(name): name for name in (_INPUT, _ENDPOINT)}


class BatchFiles:
    """Of one caller and its models."""

    __slots__ = ("_mark", "_owner", "_scan", "_table")

    def __init__(self, caller: Caller, table: ObjectTable, scan: JsonScan) -> None:
        self._owner: Final = table.number(caller.name)
        # No id has a line's end in it.
        self._mark: Final = "\n".join(("batch lines read for", *caller.terms.models, ""))
        self._table: Final = table
        self._scan: Final = scan

    def recording(self) -> Recording:
        """Return what reads the id of a file whose lines may be run."""
        return Recording(self._table, self._owner, mark=self._mark)

    def endpoint_of(self, body: bytes | bytearray) -> str | None:
        """Return the endpoint that a batch asks, if its file may be run; None: it may not. Raises DoubtError."""
        found = self._scan.fields(body, _FIELDS.__contains__)
        if any(_FIELDS[folded(name)] != name for name, _ in found):
            raise DoubtError("the body names its file in another spelling")
        fields = dict(found)
        file_id, endpoint = fields.get(_INPUT), fields.get(_ENDPOINT)
        if not isinstance(file_id, str) or not isinstance(endpoint, str):
            return None
        return endpoint if self._table.owner_of(self._mark + file_id) == self._owner else None
