"""Whose the objects are that callers make in a shared account: files, responses, batches, threads, ...

Knows: where a request names an object, and where a reply tells the id of a new one. Does not know: models (access.py).

What was made through a key belongs to its caller. Another caller gets 404, as for an object that is not there; lists
show a caller its own objects only. An object that the table does not know (it is older than the gateway's start, or
its row gave way) is in no list. Who knows its id can use it, unless such objects are refused (VELOX_UNKNOWN_OBJECTS).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.filters import ReplyFilter
from velox.net.upstream.interface import UpstreamFailure
from velox.policy.api_table import ApiCall
from velox.protocol.named_models import DoubtError, JsonScan, folded
from velox.shm.object_table import UNKNOWN, ObjectTable
from velox.types import ReplyHead, RequestHead

__all__ = ["OwnedCall", "owned_call"]

_READS: Final = frozenset({b"GET", b"HEAD"})
# Names of fields (folded) whose values are ids of objects.
_IDS: Final = frozenset(
    {"previousresponseid", "conversation", "inputfileid", "trainingfile", "validationfile", "assistantid", "threadid"}
)
# Not recorded: a completion is stored only if it asks for that, and its reply is not worth a look.
_UNSEEN: Final = "chat/completions"
_MOST_BYTES: Final = 16 * 1024 * 1024
_SOUGHT_BYTES: Final = 256 * 1024
_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]+)"')
_MORE_IDS: Final = ("output_file_id", "error_file_id", "thread_id")


class OwnedCall:
    """One kind of request of one caller, by its number in the table."""

    __slots__ = ("_allowed", "_call", "_owner", "_scan", "_table")

    def __init__(
        self, call: ApiCall, owner: int, table: ObjectTable, scan: JsonScan, *, refuses_unknown: bool = False
    ) -> None:
        self._call: Final = call
        self._owner: Final = owner
        # The owners whose objects it may name.
        self._allowed: Final = (owner,) if refuses_unknown else (owner, UNKNOWN)
        self._table: Final = table
        self._scan: Final = scan

    def check(self, head: RequestHead, body: bytes | bytearray) -> None:
        """Raise VeloxError(404) if the path or the body names an object of another caller."""
        if self._call.object_id:
            self._check(self._call.object_id)
        media = (head.header(b"content-type") or b"").lower()
        if head.method == b"POST" and body and not media.startswith(b"multipart/"):
            try:
                fields = self._scan.fields(body, _IDS.__contains__)
            except DoubtError as exc:
                raise VeloxError(Reason.BAD_REQUEST, f"{exc}, so the objects that it names can't be read") from None
            for name, value in fields:
                for object_id in _ids_in(value):
                    self._check(object_id, name)

    def filters(self, head: RequestHead) -> tuple[ReplyFilter, ...]:
        """Return what reads the reply."""
        call = self._call
        if call.object_id:
            return (Recording(self._table, self._owner),) if call.collection == "batches" else ()
        if head.method in _READS:
            return (ListFilter(self._table, self._owner),)
        return (Recording(self._table, self._owner),) if head.method == b"POST" and call.collection != _UNSEEN else ()

    def _check(self, object_id: str, param: str | None = None) -> None:
        if self._table.owner_of(object_id) not in self._allowed:
            message = "there is no such object, or it was made by another caller"
            raise VeloxError(Reason.UNKNOWN_OBJECT, message, param=param)


def owned_call(
    head: RequestHead,
    call: ApiCall | None,
    owner: int,
    table: ObjectTable,
    scan: JsonScan,
    *,
    refuses_unknown: bool = False,
) -> OwnedCall | None:
    """Return what looks at requests of this kind; None: they make and name no objects.

    refuses_unknown: an object whose owner the table does not know is nobody's.
    """
    if call is None or not call.collection or head.offer is not None:
        return None
    if call.collection == _UNSEEN and not call.object_id and head.method == b"POST":
        return None
    return OwnedCall(call, owner, table, scan, refuses_unknown=refuses_unknown)


def _ids_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (inner for name, inner in value if folded(name) == "id" and isinstance(inner, str))


class Recording(ReplyFilter):
    """Reads the id of a new object, and passes the reply on as it came."""

    __slots__ = ("_owner", "_seen", "_table")

    def __init__(self, table: ObjectTable, owner: int) -> None:
        super().__init__()
        self._table: Final = table
        self._owner: Final = owner
        self._seen = bytearray()

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Read replies that tell of success."""
        self._seen.clear()
        self.reads_body = is_plain and head.status < 300
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Look for the id before the client can know it."""
        self._seen += data
        found = _RESPONSE_ID.search(self._seen)
        if found is not None:
            self._table.remember(found[1].decode("ascii"), self._owner)
            self.reads_body = False
        elif end:
            self._read_whole()
        elif len(self._seen) > _SOUGHT_BYTES:
            self.reads_body = False
        return data

    def _read_whole(self) -> None:
        try:
            document = json.loads(self._seen)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict):
            for name in ("id", *_MORE_IDS):
                if isinstance(document.get(name), str):
                    self._table.remember(document[name], self._owner)


class ListFilter(ReplyFilter):
    """Leaves in a list what belongs to the caller."""

    __slots__ = ("_head", "_is_legible", "_owner", "_seen", "_table")

    def __init__(self, table: ObjectTable, owner: int) -> None:
        super().__init__()
        self._table: Final = table
        self._owner: Final = owner
        self._seen = bytearray()
        self._head: ReplyHead | None = None
        self._is_legible = True

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back: the length will be another one."""
        self._seen.clear()
        self.reads_body = head.status < 300
        if not self.reads_body:
            return head
        self._head = head
        self._is_legible = is_plain and not is_sse
        return None

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return the list at its end."""
        self._seen += data
        if not self._is_legible:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's list can't be read")
        if len(self._seen) > _MOST_BYTES:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's list is too long to be read")
        if not end:
            return b""
        assert self._head is not None, "feed() follows begin()"
        body = self._filtered() if self._seen else b""
        self.released = ReplyHead.of(
            self._head.status, self._head.headers, len(body) if body else self._head.content_length
        )
        return body

    def _filtered(self) -> bytes:
        try:
            page = json.loads(self._seen)
            items = page["data"]
            page["data"] = [each for each in items if self._table.owner_of(str(each["id"])) == self._owner]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's list can't be read") from None
        return json.dumps(page).encode()
