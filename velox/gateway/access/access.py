"""What a caller's key may ask for: its endpoints, and for a key with `models` everything that could run a model.

Knows: which requests a key may send, by the table of the API (policy/api/table.py), and where each names a model
(protocol/named_models.py). Does not know: who called (auth.py), or who owns an object (ownership.py).

A key that is limited to some models may use the endpoints that the table knows. At each of them every place is read at
which some server could find a model; what names another model, or could be read in two ways, is refused. A guard is
made once for all requests that are alike (plan.py); a request without one is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from velox.errors import Reason, VeloxError
from velox.gateway.access.batch_files import BatchFiles
from velox.gateway.access.ownership import IdWatch, NamedObjects, OwnedCall, nowhere, owned_call
from velox.gateway.access.places import Places, SharedObjects
from velox.gateway.auth import Authenticator
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.translation.dropped_headers import OVERRIDING
from velox.heads import RequestHead
from velox.memo import Memo
from velox.policy.api.table import (
    ALL_ENDPOINTS,
    ApiCall,
    Group,
    ModelPlace,
    call_of,
    is_endpoint_anyhow,
    is_organizations,
    may_name_objects,
    plain_words,
)
from velox.policy.patterns import matches
from velox.policy.retries.deadline import LITELLM_TERMS
from velox.protocol.forms import FormPart
from velox.protocol.named_models import (
    DoubtError,
    JsonScan,
    folded,
    form_fields,
    form_models,
    form_text,
    line_models,
    lines_of,
    message_models,
    parseable,
    query_models,
    response_models,
)
from velox.protocol.websocket.messages import MOST_BYTES, MessageGate
from velox.shm.object_table import UNKNOWN, ObjectTable
from velox.types import BodyFields, Caller

__all__ = ["Access", "Guard", "check_model"]

_PRESET: Final = "@preset/"
_DEFAULT: Final = (ALL_ENDPOINTS,)
_OF_LIMITED: Final = (Group.INFERENCE.value,)
_READS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
# By these some server takes another model, path or method than those that were looked at.
_CHOOSING: Final = ("model", "deployment", "engine")
_CHOOSING_STARTS: Final = (
    *(b"x-amzn-sagemaker-", b"x-amzn-bedrock-"),  # an inference component, a variant
    *(b"x-portkey-", b"x-litellm-", b"helicone-", b"cf-aig-"),  # other gateways' routes
)
# Paths that are remembered, twice at most. A longer one is looked up again.
_KEPT_PLACES: Final = 256
_KEPT_PATH_BYTES: Final = 256
_LINE_BYTES: Final = 64 * 1024  # of a file's lines between two turns of the loop
_EACH_LINE: Final = 512  # what a line costs as well, in bytes: the shortest one takes some microseconds
_BATCH: Final = "batch"
_COLLECTION: Final = "models/"
_TUNES: Final = frozenset({"fine-tune", "fine-tune-results"})
_NOT_READ: Final = (
    "this key is limited to some models, and runs only files that it uploaded for a batch, whose lines were read then;"
    " upload the file again with this key"
)
_FILES: Final = frozenset({"assistants", "vision", "user_data", "evals"})
_NO_FIELDS: Final = BodyFields()
# What is posted to these collections is for a model to work on.
_RUNNING: Final = (("chat", "completions"), ("responses",))
# What stands there was put there by callers, or by a model.
_CONTENTS: Final = ("content", "results")
_DOWNLOAD: Final = ":download"
# A WebSocket names its models elsewhere than in a body.
_WITHOUT_BODY: Final = (ModelPlace.NONE, ModelPlace.QUERY, ModelPlace.MESSAGES)


class _Place(NamedTuple):
    """What the table of the API says of a method and a path. call: None for a path that is not written plainly.

    is_known: the table has it, or it ends as an endpoint at which nothing is kept.
    """

    call: ApiCall | None
    is_known: bool
    is_organizations: bool
    names_objects: bool  # asked only where the path is not written plainly


class Access:
    """Of one worker."""

    def __init__(
        self,
        table: ObjectTable | None = None,
        auth: Authenticator | None = None,
        *,
        refuses_unknown: bool = False,
        share: Callable[[], SharedObjects] | None = None,
    ) -> None:
        """table: of the objects that callers have made; None: nobody asks whose they are. auth: who calls.

        refuses_unknown: of objects that are not in the table. share: of other gateways' objects, once they are needed;
        None: there are none.
        """
        self.share: Final = share
        self._refuses_unknown: Final = refuses_unknown
        self.tracks_objects = False  # objects may be kept at more than one place
        self.places: Final = None if table is None else Places(table)
        self._scan: Final = JsonScan()
        self._places: Final[Memo[tuple[bytes, bytes, bool], _Place]] = Memo(_KEPT_PLACES)
        self._table: Final = table
        self._auth: Final = auth

    def __repr__(self) -> str:
        return "<Access>"

    def guard(self, head: RequestHead, caller: Caller) -> Guard | None:
        """Return what requests with this head must still show; None: nothing. Raises VeloxError(FORBIDDEN)."""
        place = self._place(head)
        is_shared = self._auth is not None and self._auth.has_several
        guard = self._of_models(head, caller, place, is_shared=is_shared)
        table = self._table
        if table is None:
            return guard
        if not is_shared:
            owned = self._placed(table, head, place)
            if owned is None:
                return guard
            if guard is None:
                return Guard(caller, None, self._scan, owned)
            return Guard(caller, guard.call, self._scan, owned, guard.files)
        sees_all = Group.ORGANIZATION.value in caller.terms.endpoints
        if place.names_objects and not sees_all:
            message = "the path of an object must be written plainly: no percent-encoding, known words in lower case"
            raise VeloxError(Reason.FORBIDDEN, message)
        owner = table.number(caller.name)
        owned = owned_call(
            head,
            place.call,
            owner,
            table,
            refuses_unknown=self._refuses_unknown,
            asks_others=self.share is not None,
            sees_all=sees_all,
        )
        if owned is None:
            return guard
        if guard is None:
            return Guard(caller, None, self._scan, owned)
        return Guard(caller, guard.call, self._scan, owned, self._batch_files(caller, guard.call))

    def keeper(self, head: RequestHead, caller: Caller) -> Guard | None:
        """Return what looks where objects are kept, for a gateway that asks for no keys; None: nobody asks that."""
        table = self._table
        owned = None if table is None else self._placed(table, head, self._place(head))
        return None if owned is None else Guard(caller, None, self._scan, owned)

    def _placed(self, table: ObjectTable, head: RequestHead, place: _Place) -> OwnedCall | None:
        """Return what looks where objects are kept that are nobody's own; None: there is one place for all."""
        if not self.tracks_objects:
            return None
        return owned_call(head, place.call, UNKNOWN, table, asks_others=self.share is not None, sees_all=True)

    async def learn(self, names: Sequence[str]) -> None:
        """Ask what other gateways know of objects, and note it here. names: of those that are not known."""
        assert self.share is not None and self.places is not None, "else nothing is asked for"
        await self.places.learn(names, self.share())

    def addresses(self, head: RequestHead) -> tuple[bool, bool]:
        """Say whether a reply may hold addresses of the upstream's, and whether they may stand in its JSON, too."""
        call = None if head.offer is not None else self._place(head).call
        if call is None or call.kind is None:
            return False, False
        if head.method == b"POST" and not call.object_id and call.kind.path in _RUNNING:
            return False, False
        last = call.words[-1]
        return True, last not in _CONTENTS and not last.endswith(_DOWNLOAD)

    def _batch_files(self, caller: Caller, call: ApiCall | None) -> BatchFiles | None:
        is_batch = call is not None and call.place in (ModelPlace.FILE, ModelPlace.BATCH)
        return BatchFiles(caller, self._table, self._scan) if is_batch and self._table is not None else None

    def _place(self, head: RequestHead) -> _Place:
        method, path, is_websocket = key = head.method, head.path, head.offer is not None
        place = self._places.get(key) or self._places.find(key)
        if place is not None:
            return place
        call = call_of(method, path, is_websocket=is_websocket)
        is_known = is_endpoint_anyhow(path) if call is None else call.group is not None
        names_objects = call is None and may_name_objects(method, path)
        place = _Place(call, is_known, is_organizations(method, path), names_objects)
        return self._places.put(key, place) if len(path) <= _KEPT_PATH_BYTES else place

    def _of_models(self, head: RequestHead, caller: Caller, place: _Place, *, is_shared: bool) -> Guard | None:
        call = place.call
        is_named = _check_endpoint(head, caller, place, is_shared=is_shared)
        if not caller.terms.models:
            return None
        if call is None or (call.group is None and call.place is ModelPlace.UNKNOWN and is_named):
            where = ModelPlace.BODY if head.method == b"POST" and head.offer is None else ModelPlace.UNKNOWN
            where = ModelPlace.NONE if head.method in _READS and head.offer is None else where
            call = ApiCall(None, where, call and call.path_model, (), "", "")
        guard = Guard(caller, call, self._scan, files=self._batch_files(caller, call))
        guard.check_head(head)
        return guard


def _check_endpoint(head: RequestHead, caller: Caller, place: _Place, *, is_shared: bool) -> bool:
    """Raise VeloxError if the endpoint is not one of the key's; return True if the key names its path.

    is_shared: callers of several names have keys: whose the objects are of a path that is not known, nobody can say.
    """
    endpoints = caller.terms.endpoints or (_OF_LIMITED if caller.terms.models else _DEFAULT)
    patterns = [each for each in endpoints if each.startswith("/")]
    if patterns and plain_words(head.path) is not None:
        path = head.path.decode("ascii")
        named = [pattern for pattern in patterns if matches(pattern, path)]
        if place.is_organizations:  # `/v1/*` names none of it
            named = [each for each in named if is_organizations(head.method, each.replace("*", "").encode("ascii"))]
        if named:
            return True
    groups = [each for each in endpoints if not each.startswith("/")]
    if place.is_organizations and Group.ORGANIZATION.value not in groups:
        message = "this key may not use the organization's endpoints, or delete a shared model (endpoints)"
        raise VeloxError(Reason.FORBIDDEN, message)
    if ALL_ENDPOINTS in groups and not caller.terms.models:
        if is_shared and not place.is_known and Group.ORGANIZATION.value not in groups:
            message = (
                "this gateway does not know this path, and could not keep its objects from other callers; name the path"
                ' in the `endpoints` of the key, as in ["all", "/v1/things*"], to allow it'
            )
            raise VeloxError(Reason.FORBIDDEN, message)
        return False
    call = place.call
    if call is None:
        message = (
            "this key is limited, and this path is not written plainly: no percent-encoding, known words in lower case"
        )
        raise VeloxError(Reason.FORBIDDEN, message)
    if call.group is None or (call.group.value not in groups and ALL_ENDPOINTS not in groups):
        message = "this key may not use this endpoint (endpoints)"
        raise VeloxError(Reason.FORBIDDEN, message)
    return False


def _may_use(caller: Caller, model: str) -> bool:
    """Say whether a caller's key may use a model.

    A name with a preset in it (`cheap@preset/dear`, at OpenRouter) runs what the preset says: only a pattern that has
    one itself allows it.
    """
    patterns = caller.terms.models
    if not patterns:
        return True
    if _PRESET in model.lower():
        patterns = tuple(pattern for pattern in patterns if _PRESET in pattern.lower())
    return any(matches(pattern, model) for pattern in patterns)


def check_model(caller: Caller, head: RequestHead, model: str | None) -> None:
    """Raise VeloxError if a caller may not send a request with this head and a body that names this model."""
    if not caller.id:
        return  # no key is asked for
    guard = Access().guard(head, caller)
    if guard is None:
        return
    if model is None and guard.needs_model:
        raise _unread()
    if model is not None and not _may_use(caller, model):
        raise _other_model()


class Guard:
    """Looks at requests of one kind. call: what they ask, of a caller whose key is limited to some models; None: it is
    not. owned: looks whose objects they name; None: they name none. files: which of them may be run as a batch; None:
    none.
    """

    __slots__ = ("_caller", "_files", "_named", "_owned", "_scan", "_watched", "call")

    def __init__(
        self,
        caller: Caller,
        call: ApiCall | None,
        scan: JsonScan,
        owned: OwnedCall | None = None,
        files: BatchFiles | None = None,
    ) -> None:
        self._caller: Final = caller
        self._files: Final = files
        self.call: Final = call
        self._owned: Final = owned
        self._watched: Final = owned if call is None and owned is not None and owned.watches else None
        self._named: Final = owned.named if owned is not None else ()
        self._scan: Final = scan

    def __repr__(self) -> str:
        return f"<Guard {self._caller.name} {self.call and self.call.place.name}>"

    @property
    def files(self) -> BatchFiles | None:
        """Which files may be run as a batch."""
        return self._files

    @property
    def owned(self) -> OwnedCall | None:
        """What looks which objects are named."""
        return self._owned

    @property
    def needs_model(self) -> bool:
        """True when the body must name a model, because the path does not."""
        call = self.call
        return call is not None and call.place not in _WITHOUT_BODY and call.path_model is None

    def check_head(self, head: RequestHead) -> None:
        """Look at all places of a head that can name a model. Raises VeloxError(FORBIDDEN)."""
        call = self.call
        assert call is not None, "of a key that is limited"
        for name, _ in head.headers:
            if (
                name in OVERRIDING
                or (name.startswith(_CHOOSING_STARTS) and name not in LITELLM_TERMS)
                or any(word in name.decode("latin-1") for word in _CHOOSING)
            ):
                raise _doubtful("a header by which some servers choose the model or the path is not allowed", "headers")
        if call.place is ModelPlace.UNKNOWN:
            raise _unread()
        models = [] if call.path_model is None else [call.path_model]
        try:
            models += query_models(head.query)
        except DoubtError as exc:
            raise _doubtful(str(exc), "model") from None
        self._allow(models)
        if call.place is ModelPlace.QUERY and not models:
            message = "this key is limited to some models, and this request names none (model=...)"
            raise VeloxError(Reason.FORBIDDEN, message, param="model")

    def concerns(self, body: bytes | bytearray | None, fields: BodyFields) -> bool:
        """Say whether steps() has anything to do for a request with this body. fields: of it, if they were read."""
        watched = self._watched
        if watched is None or fields.stores:
            return True
        return (self._named[0] != 0 and watched.may_concern(body)) or (watched.runs_tools and watched.makes_more(body))

    def steps(
        self,
        head: RequestHead,
        body: bytes | bytearray,
        fields: BodyFields = _NO_FIELDS,
        place: Callable[[], int] = nowhere,
        named: NamedObjects | None = None,
    ) -> Generator[None, None, Sequence[ReplyFilter]]:
        """Look at a body; yields between slices of the work. Raises VeloxError. Return the filters of the reply.

        place: returns where the reply comes from that they read. named: as for OwnedCall.check().
        """
        filters: Sequence[ReplyFilter] = ()
        if self.call is not None:
            try:
                filters = yield from self._look(self.call, head, body)
            except DoubtError as exc:
                raise _doubtful(str(exc), "model") from None
        owned = self._owned
        if owned is None:
            return filters
        yield from owned.check(head, body, named)
        makes_more = yield from owned.making_more(body)
        return (*filters, *owned.filters(head, makes_more=makes_more, stores=fields.stores, place=place))

    def gate(self, most_bytes: int = MOST_BYTES) -> MessageGate:
        """Return what looks at the messages of a client's WebSocket. most_bytes: of one."""
        return MessageGate(self._check_message, min(most_bytes, MOST_BYTES))

    def watch(self, place: int) -> IdWatch | None:
        """Return what reads the ids in what the upstream sends over a WebSocket; None: nobody asks for them.

        place: where the upstream keeps them.
        """
        return None if self._owned is None else self._owned.watch(place)

    # -- inside -------------------------------------------------------------------------------------

    def _look(
        self, call: ApiCall, head: RequestHead, body: bytes | bytearray
    ) -> Generator[None, None, Sequence[ReplyFilter]]:
        """Look for models; return what reads the reply."""
        place = call.place
        if head.method in _READS or (place is ModelPlace.NONE and not body):
            return ()
        types = [value for name, value in head.headers if name == b"content-type"]
        if len(types) > 1:
            raise DoubtError("the request has two Content-Types")
        media = types[0] if types else b"application/json"
        kind = media.partition(b";")[0].strip().lower()
        if kind == b"multipart/form-data":
            if place not in (ModelPlace.BODY_OR_FORM, ModelPlace.FILE):
                raise _unread()
            may_run = yield from self._look_at_form(call, media, body)
            return (self._files.recording(),) if may_run and self._files is not None else ()
        if kind == b"application/json" and place is not ModelPlace.FILE:
            self._look_at_json(call, (yield from parseable(body)))
            return ()
        raise _unread()

    def _look_at_json(self, call: ApiCall, body: bytes | bytearray) -> None:
        models = self._scan.models(body)
        # Where the path names a model, a body of Google's calls it `models/NAME`.
        is_named = call.path_model is not None
        self._allow([model.removeprefix(_COLLECTION) for model in models] if is_named else models)
        if call.place is ModelPlace.BATCH:
            endpoint = None if self._files is None else self._files.endpoint_of(body)
            if endpoint is None:
                raise VeloxError(Reason.FORBIDDEN, _NOT_READ, param="input_file_id")
            self._allow_line(endpoint)
            return
        if not models and call.place is not ModelPlace.NONE and call.path_model is None:
            raise _unread()

    def _look_at_form(self, call: ApiCall, media: bytes, body: bytes | bytearray) -> Generator[None, None, bool]:
        """Look at a form; return True for a file that may be run as a batch."""
        parts = yield from form_fields(media, body)
        models = form_models(parts, body)
        self._allow(models)
        if call.place is ModelPlace.FILE:
            return (yield from self._look_at_file(parts, body))
        if not models and call.path_model is None:
            raise _unread()
        return False

    def _look_at_file(self, parts: Sequence[FormPart], body: bytes | bytearray) -> Generator[None, None, bool]:
        """Look at each line of a file that is about to be run or learnt from; return True if it may be run."""
        purpose = form_text(parts, body, "purpose")
        if purpose in _FILES:
            return False
        if purpose != _BATCH and purpose not in _TUNES:
            raise DoubtError("the file's purpose is not one that is known")
        n_bytes = 0
        for part in parts:
            if not part.is_file:
                continue
            for line in lines_of(body, part):
                if line is None:
                    yield
                    continue
                path, models = line_models(line, is_batch=purpose == _BATCH)
                self._allow(models)
                if path:
                    self._allow_line(path)
                n_bytes += len(line) + _EACH_LINE
                if n_bytes >= _LINE_BYTES:
                    n_bytes = 0
                    yield
        # Of a form with two, or with one that is written as a text, another one may be kept than was read.
        return purpose == _BATCH and [part.is_file for part in parts if folded(part.name) == "file"] == [True]

    def _allow_line(self, path: str) -> None:
        call = call_of(b"POST", path.encode("utf-8", "replace"))
        if call is None or call.place is not ModelPlace.BODY or call.group is not Group.INFERENCE:
            raise DoubtError("a line of the file asks for an endpoint that this key may not use")
        self._allow([] if call.path_model is None else [call.path_model])

    def _check_message(self, message: bytes, has_asked: bool) -> Sequence[str]:
        if self.call is not None:
            models = response_models if self.call.place is ModelPlace.MESSAGES else message_models
            try:
                self._allow(models(message))
            except DoubtError as exc:
                raise _doubtful(str(exc), "model") from None
        return () if self._owned is None else self._owned.check_message(message, has_asked=has_asked)

    def _allow(self, models: Sequence[str]) -> None:
        for model in models:
            if not _may_use(self._caller, model):
                raise _other_model()


def _other_model() -> VeloxError:
    return VeloxError(Reason.FORBIDDEN, "this key may not use this model", param="model")


def _unread() -> VeloxError:
    message = "this key is limited to some models, and no model can be read from this request"
    return VeloxError(Reason.FORBIDDEN, message)


def _doubtful(what: str, param: str) -> VeloxError:
    message = f"this key is limited to some models, and the model could be read in two ways: {what}"
    return VeloxError(Reason.FORBIDDEN, message, param=param)
