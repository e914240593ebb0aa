"""Whose the objects are that callers make in a shared account: files, responses, batches, threads, ...

Knows: where a request names an object, where a reply tells the id of a new one, and that it is kept where that came
from (places.py). Does not know: models (access.py),
or which fields of a body hold ids (protocol/named_objects.py).

What was made through a key belongs to its caller. Another caller gets 404, as for an object that is not there; lists
show a caller its own objects only. An object that the table does not know (it is older than the gateway's start, or
its row gave way) is in no list. Who knows its id can use it, unless such objects are refused (VELOX_UNKNOWN_OBJECTS).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple
from urllib.parse import parse_qs, parse_qsl

import orjson

from velox.errors import Reason, VeloxError
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead, RequestHead
from velox.net.upstream.interface import UpstreamFailure
from velox.policy.api.objects import ObjectKind, without_verb
from velox.policy.api.table import ApiCall, Group, is_word
from velox.protocol.json.body import LARGE_BYTES
from velox.protocol.json.outline import Outline
from velox.protocol.json.skim import skim
from velox.protocol.json.value_end import QUOTE
from velox.protocol.list_pages import FIRST_ID, LAST_ID
from velox.protocol.named_models import DoubtError
from velox.protocol.named_objects import (
    ESCAPE,
    NamedId,
    form_ids,
    google_names,
    is_id_field,
    is_json,
    looking_for_mentions,
    mentions_objects,
    named_ids,
    query_ids,
)
from velox.protocol.reply_body import BodyReader, CodingError, label_of, plain_reply
from velox.protocol.slices import finished
from velox.protocol.websocket.handshake import head_bytes, payload_bytes
from velox.shm.object_table import UNKNOWN, ObjectTable

__all__ = ["IdWatch", "ListFilter", "NamedObjects", "OwnedCall", "Recording", "owned_call"]

_READS: Final = frozenset({b"GET", b"HEAD"})
# What is made there follows a model, whose route says where it goes.
_OF_MODELS: Final = frozenset({Group.INFERENCE, Group.ORGANIZATION})
# Over a WebSocket objects are made and named in messages here only.
_SOCKET: Final = "responses"
# What is made here is stored only if the request asks for that.
_CHAT: Final = "chat/completions"
# Of these a body has one that names an object at an endpoint without objects of its own.
_MARKS: Final = (
    *(
        b'"file',
        b'"cntr',
        b'"container',
        b'"skill',
        b"ached",
        b"iles/",
        b"iles\\/",
        b"iles%",
        b"ILES",
        b"tores/",
        b"generativelanguage",
    ),
    *(b'"user_profile', b"tunedModels", ESCAPE),
)
_WIDE: Final = b"\0"  # at the start of JSON that is not in UTF-8 (named_objects.py)
_IDS_PER_STEP: Final = 50
_MOST_BYTES: Final = 16 * 1024 * 1024
# Where the events of a stream, or the messages of a WebSocket, tell the ids of what was made; of a reply that is one
# object the table of kinds says it. What stands deeper may repeat the request, as metadata and tools do.
_OF_EVENT: Final = ("id", "response.id", "interaction.id", "conversation_id")
_OF_FILE: Final = ("id",)
_SOUGHT_BYTES: Final = 256 * 1024  # of a slice
_LONGEST_MARK: Final = 32
_LONGEST_ID: Final = 4096  # as it is written; the longest ids carry other ids in them
# What a request says for which a model may make a container, and where the answer tells its id: OpenAI's
# `code_interpreter` and `shell` (openai 3.54, types/responses), Anthropic's code execution (anthropic 1.9, types/beta).
_WITH_CONTAINER: Final = (b"code_interpreter", b"code_execution", b"container_auto", b'"container"')
_CONTAINERS: Final = ("output[].container_id", "output[].environment.container_id", "container.id")
_ITEM_CONTAINERS: Final = ("item.container_id", "item.environment.container_id")
_EVENT_CONTAINERS: Final = (*_ITEM_CONTAINERS, "message.container.id", "delta.container.id")
_MESSAGES: Final = ("messages",)
_OF_RESPONSE: Final = "response.id"
_TYPE: Final = "type"
# Replies that are kept: they tell no other id.
_OF_REPLIES: Final = ("resp_", "chatcmpl-")
_CREATED: Final = 201
_UPLOAD_URL: Final = b"x-goog-upload-url"
_UPLOADS: Final = b"/upload/"
_DATA: Final = b"data:"
_LINE_END: Final = re.compile(rb"[\r\n]+")
_ITEMS: Final = frozenset({"response.output_item.added", "response.output_item.done"})
_MAKING: Final = frozenset(
    {"response.created", "response.queued", "response.in_progress", "response.completed", "response.done"}
)
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0x0
_CONTROL: Final = 0x8
_RESERVED: Final = 0x70
_MASKED: Final = 0x80


def nowhere() -> int:
    """Return the place of a reply about which nobody asks that."""
    return UNKNOWN


class NamedObjects(NamedTuple):
    """What a body names. doubt: why that can't be told for certain; None: it can."""

    ids: Sequence[NamedId]
    doubt: DoubtError | None = None


class OwnedCall:
    """One kind of request of one caller, by its number in the table.

    watches: such requests make no object, unless they say so, and most name none: may_concern() is asked before, if
    the first of `named` is not 0. runs_tools: a model may make a container for such a request.
    """

    __slots__ = (
        *("_allowed", "_asks_others", "_call", "_makes", "_marks", "_owner", "_refuses_unknown", "_sees_all", "_table"),
        *("named", "runs_tools", "watches"),
    )

    def __init__(
        self,
        call: ApiCall | None,
        owner: int,
        table: ObjectTable,
        *,
        makes: bool,
        refuses_unknown: bool = False,
        asks_others: bool = False,
        sees_all: bool = False,
    ) -> None:
        """call: None for a path that names no object. makes: it is a POST. asks_others: other gateways may know objects
        that the table does not. sees_all: others' objects are its, too.
        """
        self._sees_all: Final = sees_all
        self._asks_others: Final = asks_others
        self._call: Final = call
        self._makes: Final = makes
        self._owner: Final = owner
        self._refuses_unknown: Final = refuses_unknown
        # The owners whose objects it may name.
        self._allowed: Final = (owner,) if refuses_unknown else (owner, UNKNOWN)
        self._table: Final = table
        is_chat = call is not None and call.collection == _CHAT and not call.object_id and makes
        # While nobody has made what a body could name, only an unknown object can be refused, or another gateway's.
        self.named: Final[Sequence[int] | memoryview[int]] = (1,) if refuses_unknown or asks_others else table.named
        self.watches: Final = call is None or not call.collection or is_chat
        is_asked = call is not None and (call.words == _MESSAGES or (call.collection == _SOCKET and not call.object_id))
        self.runs_tools: Final = makes and is_asked
        self._marks: Final = _WITH_CONTAINER if self.runs_tools else ()

    def may_concern(self, body: bytes | bytearray | None) -> bool:
        """Say whether a body may name an object of somebody. None: one that is large, and is looked at by check()."""
        return body is None or any(mark in body for mark in _MARKS) or _WIDE in body[:4]

    def makes_more(self, body: bytes | bytearray | None) -> bool:
        """Say whether the reply may tell of a container. None: a body that is large."""
        return bool(self._marks) and (body is None or any(mark in body for mark in self._marks))

    def making_more(self, body: bytes | bytearray) -> Generator[None, None, bool]:
        """Do what makes_more() does; yields between slices of the work."""
        for at in range(0, len(body) if self._marks else 0, _SOUGHT_BYTES):
            end = at + _SOUGHT_BYTES + _LONGEST_MARK
            if any(body.find(mark, at, end) >= 0 for mark in self._marks):
                return True
            if end < len(body):
                yield
        return False

    def check(
        self, head: RequestHead, body: bytes | bytearray, named: NamedObjects | None = None
    ) -> Generator[None, None, None]:
        """Raise VeloxError(404) if the path or the body names an object of another caller; yields between slices.

        named: what the body names, if it has been read; None: that is read here.
        """
        if self._sees_all:
            return
        self._check_path()
        for name, value in parse_qsl(head.query.decode("latin-1"), keep_blank_values=True):
            if is_id_field(name):
                self._check_known(value)
        if named is None:
            named = yield from self.named_in(head, body)
        yield from self._check_all(named.ids)
        if named.doubt is not None:
            raise _unread(named.doubt)

    def named_in(self, head: RequestHead, body: bytes | bytearray) -> Generator[None, None, NamedObjects]:
        """Return what a body names; yields between slices of the work."""
        media = (head.header(b"content-type") or b"").lower()
        ids: list[NamedId] = []
        if not body or self._is_content(head, media):
            return NamedObjects(ids)
        try:
            is_multipart = media.startswith(b"multipart/")
            if is_multipart or media.startswith(b"application/x-www-form-urlencoded"):
                texts = yield from (form_ids(body) if is_multipart else query_ids(body))
                ids += [NamedId(each, None) for each in texts]
                if not is_json(body):
                    return NamedObjects(ids)
        except DoubtError as exc:
            return NamedObjects(ids, exc)
        if len(body) >= LARGE_BYTES:
            body = (yield from skim(body, _passes)).data
        try:
            if (yield from looking_for_mentions(body)):
                ids += yield from named_ids(body)
        except DoubtError as exc:
            if not media or b"json" in media or (self._call is not None and self._call.collection):
                return NamedObjects(ids, exc)  # else it is not JSON, at no endpoint that is known to take it
        return NamedObjects(ids)

    def _is_content(self, head: RequestHead, media: bytes) -> bool:
        """Say whether a body is what a file is made of, as Google's API takes it: it may have any type, and be JSON."""
        if not head.path.startswith(_UPLOADS):
            return False
        return b"upload" in (head.header(b"x-goog-upload-command") or b"") or b"json" not in media

    def _check_path(self) -> None:
        """Raise VeloxError if the path names an object of another caller, or one below it."""
        call = self._call
        if call is None or call.kind is None or not call.object_id:
            return
        kind, object_id = call.kind, call.object_id
        owners = {self._table.owner_of(object_id), self._table.owner_of(f"{kind.path[-1]}/{object_id}".lower())}
        if owners == {UNKNOWN}:
            if self._refuses_unknown and not kind.is_shared(object_id):
                raise _unknown(None)
        elif not owners <= {self._owner, UNKNOWN}:
            raise _unknown(None)
        for text in _named_below(call):
            self._check_known(text)

    def check_message(self, message: bytes, *, has_asked: bool) -> Sequence[str]:
        """As check(), of one message of a WebSocket; return what others must be asked first; nothing: it may pass.

        has_asked: others were asked for what the message names.
        """
        if self._sees_all or not mentions_objects(message):
            return ()
        try:
            ids = finished(named_ids(message))
        except DoubtError as exc:
            raise _unread(exc) from None
        if self._asks_others and not has_asked:
            unknown = [each.text for each in ids if self._table.find(each.text) is None]
            if unknown:
                return unknown
        finished(self._check_all(ids))
        return ()

    def watch(self, place: int) -> IdWatch:
        """Return what reads the upstream's side of a WebSocket. place: where the upstream keeps what it makes."""
        return IdWatch(self._table, self._owner, place)

    def _check_all(self, ids: Sequence[NamedId]) -> Generator[None, None, None]:
        for n, found in enumerate(ids, 1):
            if found.name is None:
                self._check_known(found.text)
            else:
                self._check(found.text, found.name)
            if not n % _IDS_PER_STEP:
                yield

    def places(self, head: RequestHead, named: NamedObjects) -> Generator[None, None, set[int]]:
        """Return where the objects are kept that the path, the query or the body names; yields between slices.

        What can't be read names none: check() has refused it where somebody's objects are to be kept from others.
        """
        found: set[int] = set()
        for n, text in enumerate(self._texts(head, named), 1):
            found.add(self._table.place_of(text))
            if not n % _IDS_PER_STEP:
                yield
        return found - {UNKNOWN}

    def unknown(self, head: RequestHead, named: NamedObjects) -> Generator[None, None, list[str]]:
        """Return what may be objects of which nothing is known here; yields between slices of the work."""
        found: list[str] = []
        for n, text in enumerate(self._texts(head, named), 1):
            if self._table.find(text) is None:
                found.append(text)
            if not n % _IDS_PER_STEP:
                yield
        return found

    def _texts(self, head: RequestHead, named: NamedObjects) -> set[str]:
        """Return what may be objects in the path, the query and the body: whatever check() looks up."""
        found = {each.text for each in named.ids}
        call = self._call
        if call is not None and call.kind is not None and call.object_id:
            found.add(call.object_id)
            found.update(text for text in _named_below(call) if not is_word(text))
        pairs = parse_qsl(head.query.decode("latin-1"), keep_blank_values=True)
        found.update(value for name, value in pairs if is_id_field(name))
        return found

    @property
    def keeps(self) -> bool:
        """True for requests about what is kept whatever model is asked: files, batches, stores, and lists of them."""
        call = self._call
        return call is not None and call.kind is not None and call.kind.group not in _OF_MODELS

    def filters(
        self, head: RequestHead, *, makes_more: bool, stores: bool, place: Callable[[], int] = nowhere
    ) -> tuple[ReplyFilter, ...]:
        """Return what reads the reply. makes_more: as that says. stores: the body asks for that. place: as for
        recording().
        """
        call = self._call
        if call is None or head.offer is not None:
            return ()
        kind = call.kind
        if kind is None:
            return (ContainerWatch(self._table, self._owner, (), place),) if makes_more else ()
        if call.object_id:
            fields = (*kind.made_of, *kind.told) if self._makes else kind.told
            return (recording(self._table, self._owner, fields, place),) if fields else ()
        if head.method in _READS:
            return () if self._sees_all else (ListFilter(self._table, self._owner, kind),)
        if makes_more:
            return (ContainerWatch(self._table, self._owner, kind.made, place),)
        is_made = self._makes and (call.collection != _CHAT or stores)
        return (recording(self._table, self._owner, kind.made, place),) if is_made else ()

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
    asks_others: bool = False,
    sees_all: bool = False,
) -> OwnedCall | None:
    """Return what looks at requests of this kind; None: they make and name no objects.

    refuses_unknown: an object whose owner the table does not know is nobody's. asks_others: as for OwnedCall.

    sees_all: of a key of the organization: what it makes for all callers (agents, environments, vaults) is nobody's.
    """
    if sees_all and (call is None or call.kind is None or call.group is Group.ORGANIZATION):
        return None
    has_objects = call is not None and call.kind is not None
    if head.offer is not None:
        has_objects = call is not None and (call.words == (_SOCKET,) or bool(call.object_id) or bool(head.query))
    if not has_objects and not head.has_body:
        return None
    return OwnedCall(
        call,
        owner,
        table,
        makes=head.method == b"POST",
        refuses_unknown=refuses_unknown,
        asks_others=asks_others,
        sees_all=sees_all,
    )


def _named_below(call: ApiCall) -> Iterator[str]:
    """Yield what a path may name: an object, or one that it is put into, or taken out of."""
    yield from map(without_verb, call.words)
    yield from google_names("/".join(call.words))


def _unknown(param: str | None) -> VeloxError:
    message = "there is no such object, or it was made by another caller"
    return VeloxError(Reason.UNKNOWN_OBJECT, message, param=param)


def _unread(exc: DoubtError) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"{exc}, so the objects that it names can't be read")


def _passes(_data: bytes, _offset: int) -> None:
    """Check nothing: who reads the body checks it."""


def recording(table: ObjectTable, owner: int, fields: tuple[str, ...], place: Callable[[], int]) -> ReplyFilter:
    """Return what reads the ids of new objects in a reply. fields: where it tells them, as in ObjectKind.

    place: returns where the reply comes from.
    """
    is_deep = any("[]" in field for field in fields)
    return (
        DeepRecording(table, owner, fields, place) if is_deep else Recording(table, owner, fields=fields, place=place)
    )


def noted(table: ObjectTable, owner: int, place: int, field: str, text: str) -> None:
    """Note who made what a field of a reply names. Google's names stand in `name` and in addresses."""
    names = google_names(text) if "/" in text else ()
    if names:
        table.remember(names[0], owner, place)
    elif field.endswith(("id", "[]")):
        table.remember(text, owner, place)


class Recording(ReplyFilter):
    """Reads the id of a new object, and passes the reply on as it came.

    mark: what its id is remembered with. fields: where a reply that is one object tells it; more: where events tell of
    more, which may come at any time. `name` counts only for what looks like a name of Google's: OpenAI's objects have
    names that their makers choose.
    """

    __slots__ = ("_body", "_fields", "_is_sse", "_mark", "_more", "_of_object", "_owner", "_place", "_table")
    order: ClassVar[int] = FilterOrder.OWNERSHIP

    def __init__(
        self,
        table: ObjectTable,
        owner: int,
        mark: str = "",
        fields: tuple[str, ...] = _OF_FILE,
        place: Callable[[], int] = nowhere,
        more: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._more: Final = more
        self._place: Final = place
        self._of_object: Final = fields
        self._mark: Final = mark
        self._table: Final = table
        self._owner: Final = owner
        self._fields = Outline()
        self._is_sse = False
        self._body: BodyReader | None = None  # of one that is compressed

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Read replies that tell of success: also where they say that the object stands, as for a call's answer."""
        if not is_plain:
            is_sse, _ = label_of(head.headers)
        self._body = None if is_plain else BodyReader(head.headers)
        self._fields = Outline(*_OF_EVENT, *self._more, lead=_DATA) if is_sse else Outline(*self._of_object)
        self._is_sse = is_sse
        self.reads_body = head.status < 300
        if self.reads_body and not self._mark:
            note_head(head, self._table, self._owner, self._place())
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Look for the id before the client can know it."""
        text = data
        if self._body is not None:
            try:
                text = self._body.feed(data, end)
            except CodingError:
                self.reads_body = False  # nobody will know whose it is
                return data
        if not self._is_sse:
            for field, found in _texts_in(self._fields.feed(text)):
                if self._remember(field, found) and found.startswith(_OF_REPLIES):
                    self.reads_body = False
            return data
        for n, line in enumerate(_LINE_END.split(text)):
            if n:
                self._fields.clear()  # no JSON of an event goes over a line's end
            for field, found in _texts_in(self._fields.feed(line)):
                if self._remember(field, found) and not self._more:
                    self.reads_body = False
                    return data
        return data

    def _remember(self, field: str, found: str) -> bool:
        if not found:  # as in a first event that tells only of content filters
            return False
        if self._mark:
            self._table.remember(self._mark + found, self._owner)
        else:
            noted(self._table, self._owner, self._place(), field, found)
        return True


def note_head(head: ReplyHead, table: ObjectTable, owner: int, place: int) -> None:
    """Note who made what the fields of a reply tell of: where the new object stands, or where its upload goes on."""
    for name, value in head.headers:
        address, _, query = value.decode("latin-1").partition("?")
        if name == b"location" and head.status == _CREATED:
            table.remember(address.rstrip("/").rpartition("/")[2], owner, place)
        elif name == _UPLOAD_URL:
            for upload_id in parse_qs(query).get("upload_id", ()):
                table.remember(upload_id, owner, place)


class IdWatch:
    """Reads the ids of new objects in what comes over a WebSocket, and passes it on as it came.

    However the frames are cut, the answers are the same. What a server may not send (RFC 6455 §5.1: masked, or with an
    extension that nobody asked for) is not read.
    """

    __slots__ = ("_fields", "_head", "_left", "_owner", "_place", "_reads_frame", "_reads_message", "_table")

    def __init__(self, table: ObjectTable, owner: int, place: int = UNKNOWN) -> None:
        self._table: Final = table
        self._owner: Final = owner
        self._place: Final = place
        self._fields: Final = Outline(_TYPE, _OF_RESPONSE, *_ITEM_CONTAINERS)
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
        for path, text in _texts_in(self._fields.feed(data)):
            if path != _TYPE:
                self._table.remember(text, self._owner, self._place)
            elif text in _MAKING or text in _ITEMS:
                continue
            self._reads_message = False
            return


class WholeReply(ReplyFilter):
    """Holds a JSON reply that tells of success back until it is whole, and passes on what changed() makes of it."""

    __slots__ = ("_head", "_is_legible", "_seen")
    order: ClassVar[int] = FilterOrder.OWNERSHIP
    what: ClassVar[str] = "reply"

    def __init__(self) -> None:
        super().__init__()
        self._seen = bytearray()
        self._head: ReplyHead | None = None
        self._is_legible = True

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back: the length may be another one."""
        self._seen.clear()
        self.reads_body = head.status < 300
        if not self.reads_body:
            return head
        self._head = head
        self._is_legible = not is_sse
        return None

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return the reply at its end."""
        self._seen += data
        if not self._is_legible:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's {self.what} can't be read")
        if len(self._seen) > _MOST_BYTES:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's {self.what} is too long to be read")
        if not end:
            return b""
        assert self._head is not None, "feed() follows begin()"
        try:
            headers, text = plain_reply(self._head.headers, bytes(self._seen))
        except CodingError:
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's {self.what} can't be read") from None
        body = self._read(text) if text else b""
        self.released = ReplyHead.of(self._head.status, headers, len(body) if body else self._head.content_length)
        return body

    def _read(self, text: bytes) -> bytes:
        try:
            page = json.loads(text)
        except (ValueError, RecursionError):
            page = None
        if isinstance(page, list):  # Mistral's lists of conversations are
            within: dict[str, object] = {"": page}
            return json.dumps(within[""]).encode() if self.changed(within) else text
        if not isinstance(page, dict):
            raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's {self.what} can't be read")
        return json.dumps(page).encode() if self.changed(page) else text

    def changed(self, page: dict[str, object]) -> bool:
        """Read or change an object; return True if it was changed. Raises UpstreamFailure."""
        return False


class DeepRecording(WholeReply):
    """Reads ids that stand in lists of a reply. fields: as in ObjectKind."""

    __slots__ = ("_fields", "_owner", "_place", "_table")

    def __init__(self, table: ObjectTable, owner: int, fields: tuple[str, ...], place: Callable[[], int]) -> None:
        super().__init__()
        self._place: Final = place
        self._table: Final = table
        self._owner: Final = owner
        self._fields: Final = fields

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Read the head, and hold it back."""
        if head.status < 300:
            note_head(head, self._table, self._owner, self._place())
        return super().begin(head, is_sse=is_sse, is_plain=is_plain)

    def changed(self, page: dict[str, object]) -> bool:
        """Note who owns what the reply names."""
        for field in self._fields:
            for text in texts_at(page, field.replace("[]", ".[]").split(".")):
                noted(self._table, self._owner, self._place(), field, text)
        return False


class ContainerWatch(ReplyFilter):
    """Reads the ids of containers that a model made, and of the answer itself: of a stream, or of one object.

    fields: where an answer tells its own id.
    """

    __slots__ = ("_events", "_reading", "_whole")
    order: ClassVar[int] = FilterOrder.OWNERSHIP

    def __init__(self, table: ObjectTable, owner: int, fields: tuple[str, ...], place: Callable[[], int]) -> None:
        super().__init__()
        self._events: Final = Recording(table, owner, fields=fields, place=place, more=_EVENT_CONTAINERS)
        self._whole: Final = DeepRecording(table, owner, (*fields, *_CONTAINERS), place)
        self._reading: ReplyFilter = self._events

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Take the head as whoever reads the body does."""
        is_events = is_sse if is_plain else label_of(head.headers)[0]
        self._reading = self._events if is_events else self._whole
        begun = self._reading.begin(head, is_sse=is_sse, is_plain=is_plain)
        self.reads_body = self._reading.reads_body
        return begun

    def feed(self, data: bytes, end: bool) -> bytes:
        """Look for ids before the client can know them."""
        data = self._reading.feed(data, end)
        self.released = self._reading.released
        return data


def _texts_in(found: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield those of the members of an object that are texts, and no longer than an id."""
    for path, value in found:
        if value[0] == QUOTE and len(value) <= _LONGEST_ID:
            with contextlib.suppress(orjson.JSONDecodeError):
                yield path, orjson.loads(value)


def texts_at(value: object, way: Sequence[str]) -> Iterator[str]:
    """Yield the texts to which a way through JSON leads; `[]` is each item of a list."""
    if not way:
        if isinstance(value, str) and value:
            yield value
    elif isinstance(value, list) and way[0] == "[]":
        for each in value:
            yield from texts_at(each, way[1:])
    elif isinstance(value, dict) and way[0] in value:
        yield from texts_at(value[way[0]], way[1:])


class ListFilter(WholeReply):
    """Leaves in a list what belongs to the caller: of each list at the top of the page, whatever its name is."""

    __slots__ = ("_filtered", "_kind", "_owner", "_table")
    what: ClassVar[str] = "list"

    def __init__(self, table: ObjectTable, owner: int, kind: ObjectKind) -> None:
        super().__init__()
        self._table: Final = table
        self._owner: Final = owner
        self._kind: Final = kind
        self._filtered: bytes | None = None

    def note_filtered(self, text: bytes) -> None:
        """Pass this page on as it is: it comes of leave_own()."""
        self._filtered = text

    def _read(self, text: bytes) -> bytes:
        return text if text == self._filtered else super()._read(text)

    def changed(self, page: dict[str, object]) -> bool:
        """Do as leave_own(), at once."""
        finished(self.leave_own(page))
        return True

    def leave_own(self, page: dict[str, object]) -> Generator[None, None, bool]:
        """Leave out what is another caller's, or nobody's; return True if something is left. Yields between slices.

        So are their ids where the page tells from which thing the list goes on: those of the caller's own lead on, too.
        Who knows the id of a thing whose owner is not known can use it.

        Raises UpstreamFailure: a page that may hold objects elsewhere.
        """
        own: list[str | None] = []  # their ids; of Google's things None
        hidden: set[str] = set()
        for field, items in page.items():
            if isinstance(items, list):
                page[field] = yield from self._own_of(items, own, hidden)
            elif isinstance(items, dict):
                raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's list can't be read")
        first, last = (own[0], own[-1]) if own else (None, None)
        for field, value in page.items():
            if isinstance(value, str) and (field in (FIRST_ID, LAST_ID) or value in hidden):
                page[field] = first if field == FIRST_ID else last
        return bool(own)

    def _own_of(
        self, items: list[object], own: list[str | None], hidden: set[str]
    ) -> Generator[None, None, list[object]]:
        """Return the caller's own of a list. own, hidden: get the ids of these, and of what is left out."""
        kept: list[object] = []
        for n, each in enumerate(items, 1):
            if isinstance(each, dict):
                object_id = self._id_of(each)
                name = each.get("name")
                names = google_names(name) if isinstance(name, str) else ()
                if self._is_own(object_id, names):
                    kept.append(each)
                    own.append(object_id)
                else:
                    if object_id is not None:
                        hidden.add(object_id)
                    if names and isinstance(name, str):  # else people chose it: `list` may be one
                        hidden.add(name)
            if not n % _IDS_PER_STEP:
                yield
        return kept

    def _id_of(self, item: dict[str, object]) -> str | None:
        ids = (item.get(field) for field in ("id", *self._kind.made) if field != "name")
        object_id = next((each for each in ids if each), None)
        return object_id if isinstance(object_id, str) else None

    def _is_own(self, object_id: str | None, names: Sequence[str]) -> bool:
        if object_id is not None:
            owner = self._table.owner_of(object_id)
            return owner == self._owner or (owner == UNKNOWN and self._kind.is_shared(object_id))
        return bool(names) and self._table.owner_of(names[0]) == self._owner
