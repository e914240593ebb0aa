"""Whose the objects are that callers make in a shared account: files, responses, batches, threads, ...

Knows: where a request names an object, and where a reply tells the id of a new one. Does not know: models (access.py),
or which fields of a body hold ids (protocol/named_objects.py).

What was made through a key belongs to its caller. Another caller gets 404, as for an object that is not there; lists
show a caller its own objects only. An object that the table does not know (it is older than the gateway's start, or
its row gave way) is in no list. Who knows its id can use it, unless such objects are refused (VELOX_UNKNOWN_OBJECTS).
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.filters import ReplyFilter
from velox.gateway.steps import finished
from velox.heads import ReplyHead, RequestHead
from velox.net.upstream.interface import UpstreamFailure
from velox.policy.api_table import ApiCall
from velox.protocol.body import LARGE_BYTES
from velox.protocol.body_skim import skim
from velox.protocol.named_models import DoubtError
from velox.protocol.named_objects import (
    ESCAPE,
    NamedId,
    form_ids,
    is_json,
    looking_for_mentions,
    mentions_objects,
    named_ids,
    query_ids,
)
from velox.protocol.top_fields import TopFields
from velox.protocol.websocket import head_bytes, payload_bytes
from velox.shm.object_table import UNKNOWN, ObjectTable

__all__ = ["IdWatch", "OwnedCall", "Recording", "owned_call"]

_READS: Final = frozenset({b"GET", b"HEAD"})
# Over a WebSocket objects are made and named here only.
_SOCKET: Final = "responses"
# What is made here is stored only if the request asks for that.
_CHAT: Final = "chat/completions"
# Of these a body has one that names an object at an endpoint without objects of its own.
_MARKS: Final = (b'"file', b'"cntr', b'"container', ESCAPE)
_WIDE: Final = b"\0"  # at the start of JSON that is not in UTF-8 (named_objects.py)
_IDS_PER_STEP: Final = 50
_MOST_BYTES: Final = 16 * 1024 * 1024
# Where a reply tells the ids of what was made: one object, the events of a stream, the messages of a WebSocket. What
# stands deeper may repeat the request, as metadata and tools do.
_OF_OBJECT: Final = ("id", "output_file_id", "error_file_id", "thread_id")
_OF_EVENT: Final = ("id", "response.id")
# What is made of another object, by a POST below it: a video of a video, and of the parts of an upload its file.
_MADE_OF: Final = {"videos": _OF_OBJECT, "uploads": (*_OF_OBJECT, "file.id")}
_OF_RESPONSE: Final = "response.id"
_TYPE: Final = "type"
# Replies that are kept: they tell no other id.
_OF_REPLIES: Final = ("resp_", "chatcmpl-")
_DATA: Final = b"data:"
_LINE_END: Final = re.compile(rb"[\r\n]+")
_MAKING: Final = frozenset(
    {"response.created", "response.queued", "response.in_progress", "response.completed", "response.done"}
)
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0x0
_CONTROL: Final = 0x8
_RESERVED: Final = 0x70
_MASKED: Final = 0x80


class OwnedCall:
    """One kind of request of one caller, by its number in the table.

    watches: such requests make no object, unless they say so, and most name none: may_concern() is asked before, if
    the first of `named` is not 0.
    """

    __slots__ = ("_allowed", "_call", "_makes", "_owner", "_table", "named", "watches")

    def __init__(
        self,
        call: ApiCall | None,
        owner: int,
        table: ObjectTable,
        *,
        makes: bool,
        refuses_unknown: bool = False,
    ) -> None:
        """call: None for a path that names no object. makes: it is a POST."""
        self._call: Final = call
        self._makes: Final = makes
        self._owner: Final = owner
        # The owners whose objects it may name.
        self._allowed: Final = (owner,) if refuses_unknown else (owner, UNKNOWN)
        self._table: Final = table
        is_chat = call is not None and call.collection == _CHAT and not call.object_id and makes
        # While nobody has made what a body could name, only an unknown object can be refused.
        self.named: Final[Sequence[int] | memoryview[int]] = (1,) if refuses_unknown else table.named
        self.watches: Final = call is None or not call.collection or is_chat

    def may_concern(self, body: bytes | bytearray | None) -> bool:
        """Say whether a body may name an object of somebody. None: one that is large, and is looked at by check()."""
        return body is None or any(mark in body for mark in _MARKS) or _WIDE in body[:4]

    def check(self, head: RequestHead, body: bytes | bytearray) -> Generator[None, None, None]:
        """Raise VeloxError(404) if the path or the body names an object of another caller; yields between slices."""
        call = self._call
        if call is not None and call.object_id:
            self._check(call.object_id)
            for word in call.words:
                self._check_known(word)
        media = (head.header(b"content-type") or b"").lower()
        if not body:
            return
        if media.startswith(b"multipart/"):
            yield from self._check_form(form_ids(body))
            if not is_json(body):
                return
        if media.startswith(b"application/x-www-form-urlencoded"):
            yield from self._check_form(query_ids(body))
        if len(body) >= LARGE_BYTES:
            body = (yield from skim(body, _passes)).data
        if not (yield from looking_for_mentions(body)):
            return
        try:
            ids = yield from named_ids(body)
        except DoubtError as exc:
            if media and b"json" not in media and (call is None or not call.collection):
                return  # not JSON, and no endpoint that is known to take it
            raise _unread(exc) from None
        yield from self._check_all(ids)

    def _check_form(self, found: Generator[None, None, list[str]]) -> Generator[None, None, None]:
        try:
            ids = yield from found
        except DoubtError as exc:
            raise _unread(exc) from None
        yield from self._check_all([NamedId(each, None) for each in ids])

    def check_message(self, message: bytes) -> None:
        """As check(), of one message of a WebSocket."""
        if not mentions_objects(message):
            return
        try:
            ids = finished(named_ids(message))
        except DoubtError as exc:
            raise _unread(exc) from None
        finished(self._check_all(ids))

    def watch(self) -> IdWatch:
        """Return what reads the upstream's side of a WebSocket."""
        return IdWatch(self._table, self._owner)

    def _check_all(self, ids: Sequence[NamedId]) -> Generator[None, None, None]:
        for n, found in enumerate(ids, 1):
            if found.name is None:
                self._check_known(found.text)
            else:
                self._check(found.text, found.name)
            if not n % _IDS_PER_STEP:
                yield

    def filters(self, head: RequestHead, *, stores: bool) -> tuple[ReplyFilter, ...]:
        """Return what reads the reply. stores: the body asks for that."""
        call = self._call
        if call is None or not call.collection:
            return ()
        if call.object_id:
            fields: tuple[str, ...] = _OF_OBJECT if call.collection == "batches" else ()
            if self._makes:
                fields = _MADE_OF.get(call.collection, fields)
            return (Recording(self._table, self._owner, fields=fields),) if fields else ()
        if head.method in _READS:
            return (ListFilter(self._table, self._owner),)
        is_made = self._makes and (call.collection != _CHAT or stores)
        return (Recording(self._table, self._owner),) if is_made else ()

    def _check(self, object_id: str, param: str | None = None) -> None:
        if self._table.owner_of(object_id) not in self._allowed:
            raise _unknown(param)

    def _check_known(self, text: str) -> None:
        """Check a text that may be something else than an id."""
        if self._table.owner_of(text) not in (self._owner, UNKNOWN):
            raise _unknown(None)


def owned_call(
    head: RequestHead,
    call: ApiCall | None,
    owner: int,
    table: ObjectTable,
    *,
    refuses_unknown: bool = False,
) -> OwnedCall | None:
    """Return what looks at requests of this kind; None: they make and name no objects.

    refuses_unknown: an object whose owner the table does not know is nobody's.
    """
    has_objects = call is not None and bool(call.collection)
    if head.offer is not None:
        has_objects = call is not None and call.words == (_SOCKET,)
    if not has_objects and not head.has_body:
        return None
    return OwnedCall(call, owner, table, makes=head.method == b"POST", refuses_unknown=refuses_unknown)


def _unknown(param: str | None) -> VeloxError:
    message = "there is no such object, or it was made by another caller"
    return VeloxError(Reason.UNKNOWN_OBJECT, message, param=param)


def _unread(exc: DoubtError) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"{exc}, so the objects that it names can't be read")


def _passes(_data: bytes, _offset: int) -> None:
    """Check nothing: who reads the body checks it."""


class Recording(ReplyFilter):
    """Reads the id of a new object, and passes the reply on as it came.

    mark: what its id is remembered with. fields: where a reply that is one object tells it.
    """

    __slots__ = ("_fields", "_is_sse", "_mark", "_of_object", "_owner", "_table")

    def __init__(self, table: ObjectTable, owner: int, mark: str = "", fields: tuple[str, ...] = _OF_OBJECT) -> None:
        super().__init__()
        self._of_object: Final = fields
        self._mark: Final = mark
        self._table: Final = table
        self._owner: Final = owner
        self._fields = TopFields()
        self._is_sse = False

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Read replies that tell of success."""
        self._fields = TopFields(*_OF_EVENT, lead=_DATA) if is_sse else TopFields(*self._of_object)
        self._is_sse = is_sse
        self.reads_body = is_plain and head.status < 300
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Look for the id before the client can know it."""
        if not self._is_sse:
            for _, found in self._fields.feed(data):
                if self._remember(found) and found.startswith(_OF_REPLIES):
                    self.reads_body = False
            return data
        for n, line in enumerate(_LINE_END.split(data)):
            if n:
                self._fields.clear()  # no JSON of an event goes over a line's end
            for _, found in self._fields.feed(line):
                if self._remember(found):
                    self.reads_body = False
                    return data
        return data

    def _remember(self, found: str) -> bool:
        if not found:  # as in a first event that tells only of content filters
            return False
        self._table.remember(self._mark + found, self._owner)
        return True


class IdWatch:
    """Reads the ids of new objects in what comes over a WebSocket, and passes it on as it came.

    However the frames are cut, the answers are the same. What a server may not send (RFC 6455 §5.1: masked, or with an
    extension that nobody asked for) is not read.
    """

    __slots__ = ("_fields", "_head", "_left", "_owner", "_reads_frame", "_reads_message", "_table")

    def __init__(self, table: ObjectTable, owner: int) -> None:
        self._table: Final = table
        self._owner: Final = owner
        self._fields: Final = TopFields(_TYPE, _OF_RESPONSE)
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the open frame's payload that are still to come
        self._reads_message = False
        self._reads_frame = False

    def feed(self, data: bytes) -> bytes:
        """Look for ids before the client can know them."""
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            if not self._left:
                at = self._read_head(data, at)
                continue
            end = min(n_bytes, at + self._left)
            self._left -= end - at
            if self._reads_frame and self._reads_message:
                self._read(data[at:end])
            at = end
        return data

    def _read_head(self, data: bytes, at: int) -> int:
        """Take a frame's head, or what there is of it; return where it ends."""
        while len(self._head) < head_bytes(self._head):
            if at == len(data):
                return at
            self._head += data[at : at + 1]
            at += 1
        head, self._head = self._head, b""
        self._left = payload_bytes(head)
        opcode = head[0] & _OPCODE
        self._reads_frame = opcode < _CONTROL
        if self._reads_frame and opcode != _CONTINUATION:
            self._fields.clear()
            self._reads_message = not (head[0] & _RESERVED or head[1] & _MASKED)
        return at

    def _read(self, data: bytes) -> None:
        for path, text in self._fields.feed(data):
            if path == _OF_RESPONSE:
                self._table.remember(text, self._owner)
            elif text in _MAKING:
                continue
            self._reads_message = False
            return


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
