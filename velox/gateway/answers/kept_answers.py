"""The answers that are kept (answers.py): found, put into requests, told and forgotten.

An answer belongs to the name of the key that it was made with: for others there is none. All workers of a gateway have
the same ones (shm/answer_ring.py), and all gateways that have the same store beside it.

Knows: whose an answer is, and where it is found. Does not know: what stands in one (dialects/responses/kept.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ApiError, ErrorKind
from velox.dialects.json_text.text import quoted
from velox.dialects.responses.background import is_background, with_status
from velox.dialects.responses.conversations import (
    conversation_items,
    items_page,
    more_items,
    new_conversation,
    with_metadata,
    without_item,
)
from velox.dialects.responses.kept import (
    KeptAnswer,
    Unfolding,
    answer_in,
    input_items,
    input_page,
    is_answer,
    refers,
    response_ids,
    wants_kept,
)
from velox.errors import Reason, VeloxError
from velox.gateway.answers.background import begin
from velox.gateway.answers.values import AnswerPlace, AnswersDownError, Changed, ExpandedRequest
from velox.gateway.cpu_work import LARGE_BYTES, TranslationThread
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.gateway.translation.client_request import refusal
from velox.heads import ReplyHead, RequestHead
from velox.net.application import Application
from velox.net.client.body_budget import BodyBudget
from velox.protocol.sse_events import SseEvents
from velox.shm.answer_ring import AnswerRing
from velox.types import AnswerKeeper, Caller

__all__ = ["Keeper", "KeptAnswers", "ReadAnswer", "SharedAnswers"]

_OK: Final = 200
_CONVERSATION: Final = "conv_"
_MOST_NODES: Final = 4096
_ABANDONED: Final = ApiError(ErrorKind.API, 500, "the gateway that made this answer has stopped; ask for it again")

_READS: Final = frozenset({b"GET", b"HEAD"})
_T = TypeVar("_T")
# Makes of a conversation the nodes that are new, and last what it is then.
Change = Callable[[KeptAnswer], list[KeptAnswer]]


class SharedAnswers(Protocol):
    """A store that several gateways have in common. What waits for it raises AnswersDownError."""

    @property
    def name(self) -> str:
        """Return what messages call it."""

    async def get(self, owner: str, object_id: str) -> bytes | None:
        """Return a text that is kept; None: there is none; b"": it was forgotten, whoever else has it."""

    def put(self, owner: str, ids: tuple[str, ...], text: bytes) -> None:
        """Keep a text; returns at once."""

    async def change(self, owner: str, object_id: str, change: Callable[[bytes], Changed]) -> bool:
        """Keep what change() makes of a text; return False if there is none.

        change: called again if somebody else changed the text meanwhile.
        """

    async def forget(self, owner: str, ids: tuple[str, ...]) -> None:
        """Let nobody find a text any more."""

    def begin(self, owner: str, object_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin some work on a text; returns at once. Who asks here for the text waits until it is done."""


class KeptAnswers:
    """Of one worker. kept_s: how long an answer is kept that nobody asks for. most_bytes: of a request.

    What is large is read and written in a thread: it would hold the loop.
    """

    def __init__(self, ring: AnswerRing, kept_s: float, most_bytes: int, shared: SharedAnswers | None = None) -> None:
        self._ring: Final = ring
        self._kept_s: Final = kept_s
        self._most_bytes: Final = most_bytes
        self._shared: Final = shared
        self._cpu_thread: Final = TranslationThread()

    def __repr__(self) -> str:
        return f"<KeptAnswers {self._ring!r}>"

    # -- requests -----------------------------------------------------------------------------------

    async def expand(self, body: bytes | bytearray, caller: Caller) -> ExpandedRequest | None:
        """Return a request with what it refers to; None: it refers to nothing that is kept. Raises VeloxError."""
        n_bytes = len(body)
        if not await self._doing(n_bytes, partial(refers, body)):
            return None
        try:
            unfolding = await self._doing(n_bytes, partial(Unfolding, body, self._most_bytes))
            while missing := await self._doing(n_bytes, unfolding.missing):
                for each in missing:
                    kept = await self.found(each, caller)
                    n_bytes += 0 if kept is None else len(kept.input) + len(kept.response)
                    unfolding.know(each, kept)
            made = await self._doing(n_bytes, unfolding.body)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None  # whoever reads it says what is wrong
        if made is None:
            return None
        conversation = None if unfolding.conversation is None else unfolding.conversation.id
        return ExpandedRequest(made, unfolding.previous, unfolding.own, conversation)

    def keeper(self, caller: Caller, expanded: ExpandedRequest | None) -> Keeper:
        """Return who keeps the answer of a request."""
        if expanded is None:
            return Keeper(self.keep, caller.name)
        keep = self.keep if expanded.conversation is None else partial(self._keep_in, expanded.conversation)
        return Keeper(keep, caller.name, expanded.previous, expanded.own, expanded.conversation)

    async def readers(
        self, keeper: AnswerKeeper, body: bytes | bytearray, *, may_pass: bool
    ) -> tuple[ReplyFilter, ...]:
        """Return what a keeper needs among the filters of the reply, in their order.

        may_pass: the answer may pass as it came, from a provider that does not keep it, and is then to be read.
        """
        reads = may_pass and await self._doing(len(body), partial(wants_kept, body))
        reading = (ReadAnswer(keeper, body, self._ring.most_bytes),) if reads else ()
        if not reads and len(body) <= LARGE_BYTES:
            return reading
        assert isinstance(keeper, Keeper), "keeper() made it"
        keeper.later = KeptLater()
        return (*reading, keeper.later)

    def in_background(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        bodies: BodyBudget,
        head: RequestHead,
        body: bytes | bytearray,
        caller: Caller,
        answer_id: str,
        keeper: AnswerKeeper,
    ) -> bytes:
        """Begin an answer in the background; return what its client is told. Raises VeloxError."""
        own = keeper.own_input(body)
        keep_end = keeper.keep_answer if isinstance(keeper, Keeper) else self.keep
        return begin(
            application,
            loop,
            self.keep,
            self.found,
            bodies,
            head,
            body,
            caller,
            answer_id,
            previous=keeper.previous if keeper.conversation is None else None,
            conversation=keeper.conversation,
            own_input=own,
            keep_end=keep_end,
        )

    def keep(self, answer: KeptAnswer, ids: tuple[str, ...] = ()) -> None:
        """Keep an answer; what is too long is not kept. ids: its own, and those of its items, if they are known."""
        ids = ids or response_ids(answer.response)
        text = answer.encoded()
        self._ring.put(answer.owner, ids, text)
        if self._shared is not None:
            self._shared.put(answer.owner, ids, text)

    # -- what is asked of an answer -----------------------------------------------------------------

    def _keep_in(self, conversation_id: str, answer: KeptAnswer, ids: tuple[str, ...] = ()) -> None:
        """Keep an answer as the last one of a conversation: also where another one came in between."""
        owner = answer.owner

        def append(conversation: KeptAnswer) -> list[KeptAnswer]:
            node = msgspec.structs.replace(answer, previous=conversation.previous)
            return [node, msgspec.structs.replace(conversation, previous=node.id)]

        if self._shared is None:
            if self._change_here(owner, conversation_id, append) is None:
                self.keep(answer, ids)
            return

        async def keep() -> None:
            try:
                if await self._change(owner, conversation_id, append) is None:
                    self.keep(answer, ids)
            except AnswersDownError:
                if self._change_here(owner, conversation_id, append) is None:
                    self.keep(answer, ids)

        self._shared.begin(owner, conversation_id, keep)

    async def _changed(self, conversation: KeptAnswer, change: Change) -> KeptAnswer | None:
        """Return a conversation with a change; None: it is not there any more. Raises VeloxError."""
        try:
            return await self._change(conversation.owner, conversation.id, change)
        except AnswersDownError:
            raise self._unavailable("this conversation can't be changed now") from None

    async def _change(self, owner: str, conversation_id: str, change: Change) -> KeptAnswer | None:
        """Change a conversation for all gateways, then here. Raises AnswersDownError."""
        if self._shared is None:
            return self._change_here(owner, conversation_id, change)
        made: list[KeptAnswer] = []

        def changed(text: bytes) -> Changed:
            conversation = _decoded(text, owner)
            made[:] = [] if conversation is None else change(conversation)
            return Changed([(response_ids(each.response), each.encoded()) for each in made])

        if not await self._shared.change(owner, conversation_id, changed) or not made:
            return self._change_here(owner, conversation_id, change)  # it was too long for the others
        for each in made:
            self._ring.put(owner, response_ids(each.response), each.encoded())
        return made[-1]

    def _change_here(self, owner: str, conversation_id: str, change: Change) -> KeptAnswer | None:
        """Change a conversation for the workers of this gateway; None: it is not there."""
        while True:
            found = self._ring.get(owner, conversation_id, self._kept_s)
            conversation = None if found is None else _decoded(found.text, owner)
            if found is None or conversation is None:
                return None
            *nodes, changed = change(conversation)
            for each in nodes:
                self._ring.put(owner, response_ids(each.response), each.encoded())
            if self._ring.swap(owner, conversation_id, found, changed.encoded()):
                return changed

    async def serve(
        self,
        place: AnswerPlace,
        head: RequestHead,
        body: bytes | bytearray,
        caller: Caller,
        makes: Callable[[], str] | None,
    ) -> bytes | None:
        """Return what is told of an answer or conversation; None: it is not kept here. Raises VeloxError."""
        try:
            if not place.answer_id:
                return None if makes is None else self._made(caller, makes(), body)
            if place.answer_id.startswith(_CONVERSATION):
                return await self._of_conversation(place, head, body, caller, makes)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        kept = await self.found(place.answer_id, caller)
        if kept is None or kept.id != place.answer_id:
            return None
        return await self._told(kept, place.rest, head)

    async def _told(self, kept: KeptAnswer, rest: str, head: RequestHead) -> bytes:
        query = dict(parse_qsl(head.query.decode("latin-1")))
        if not rest and head.method in _READS:
            if query.get("stream") == "true":
                message = "an answer is kept here as a whole; ask for it without stream"
                raise VeloxError(Reason.BAD_REQUEST, message, param="stream")
            return (
                kept.response
                if time.time() <= (kept.until_s or math.inf)
                else with_status(kept.response, "failed", _ABANDONED)
            )
        if not rest and head.method == b"DELETE":
            ids = response_ids(kept.response)
            if self._shared is not None:
                await self._forget_shared(self._shared, kept.owner, ids)
            for each in ids:
                self._ring.forget(kept.owner, each)
            return b'{"id":%b,"object":"response","deleted":true}' % quoted(kept.id)
        if rest == "input_items" and head.method in _READS:
            try:
                return input_page(kept, query)
            except BadRequestError as exc:
                raise refusal(exc) from exc
        if rest == "cancel" and head.method == b"POST":
            if kept.until_s:
                kept = msgspec.structs.replace(kept, response=with_status(kept.response, "cancelled"), until_s=0)
                self.keep(kept)
            elif not is_background(kept.response):
                message = "this answer is whole; only one that is made in the background can be cancelled"
                raise VeloxError(Reason.BAD_REQUEST, message)
            return kept.response
        raise VeloxError(Reason.UNKNOWN_ROUTE, "there is nothing at this path for an answer that is kept here")

    async def _forget_shared(self, shared: SharedAnswers, owner: str, ids: tuple[str, ...]) -> None:
        try:
            await shared.forget(owner, ids)
        except AnswersDownError:
            raise self._unavailable("it can't be deleted now, and other gateways may have it") from None

    def _unavailable(self, what: str) -> VeloxError:
        name = "" if self._shared is None else self._shared.name
        message = f"{what}: {name} is down; try again"
        return VeloxError(Reason.ANSWERS_UNAVAILABLE, message, retry_after_s=1.0)

    # -- conversations ------------------------------------------------------------------------------

    def _made(self, caller: Caller, name: str, body: bytes | bytearray) -> bytes:
        found = new_conversation(caller.name, name, int(time.time()), body)
        for each in found:
            self.keep(each)
        return found[-1].response

    async def _of_conversation(
        self,
        place: AnswerPlace,
        head: RequestHead,
        body: bytes | bytearray,
        caller: Caller,
        makes: Callable[[], str] | None,
    ) -> bytes | None:
        """Return what is told of one; None: it is not kept here. Raises BadRequestError, VeloxError."""
        kept = await self.found(place.answer_id, caller)
        if kept is None:
            return None
        rest, _, item_id = place.rest.partition("/")
        is_read, query = head.method in _READS, dict(parse_qsl(head.query.decode("latin-1")))
        if not rest and (is_read or head.method == b"POST"):
            if not is_read:
                kept = await self._changed(kept, lambda found: [with_metadata(found, body)])
            return None if kept is None else kept.response
        if not rest and head.method == b"DELETE":
            if self._shared is not None:
                await self._forget_shared(self._shared, kept.owner, (kept.id,))
            self._ring.forget(kept.owner, kept.id)
            return b'{"id":%b,"object":"conversation.deleted","deleted":true}' % quoted(kept.id)
        if rest == "items" and not item_id and head.method == b"POST" and makes is not None:
            name, told = makes(), [b""]

            def append(found: KeptAnswer) -> list[KeptAnswer]:
                nodes, told[0] = more_items(found, name, body)
                return nodes

            return None if await self._changed(kept, append) is None else told[0]
        if rest != "items" or not (is_read or (item_id and head.method == b"DELETE")):
            raise VeloxError(Reason.UNKNOWN_ROUTE, "there is nothing at this path for a conversation that is kept here")
        items = conversation_items(kept, await self._chain(kept, caller))
        if not item_id:
            return items_page(items, query)
        item = next((text for each, text in items if each == item_id), None)
        if item is None:
            raise VeloxError(Reason.UNKNOWN_OBJECT, "there is no such item in this conversation")
        if is_read:
            return item
        kept = await self._changed(kept, lambda found: [without_item(found, item_id)])
        return None if kept is None else kept.response

    async def _chain(self, conversation: KeptAnswer, caller: Caller) -> list[KeptAnswer]:
        """Return the nodes of a conversation, the first one first; what is forgotten of it is left out."""
        nodes: list[KeptAnswer] = []
        wanted = conversation.previous
        while wanted is not None and len(nodes) < _MOST_NODES:
            node = await self.found(wanted, caller)
            if node is None:
                break
            nodes.append(node)
            wanted = node.previous
        return nodes[::-1]

    # -- inside -------------------------------------------------------------------------------------

    async def found(self, object_id: str, caller: Caller) -> KeptAnswer | None:
        """Return the answer with this id, or with an item that has it. Who is asked for stays longer."""
        owner = caller.name
        is_down = False
        if self._shared is not None:
            try:
                text = await self._shared.get(owner, object_id)
            except AnswersDownError:
                is_down = True
            else:
                if text and object_id.startswith(_CONVERSATION):
                    self._ring.put(owner, (object_id,), text)  # another gateway may have gone on with it
                if text is not None:
                    return (await self._doing(len(text), partial(_decoded, text, owner))) if text else None
        kept = await self._doing(self._ring.length(owner, object_id), partial(self._found_here, owner, object_id))
        if kept is None and is_down:
            raise self._unavailable("answers of other gateways can't be read now; send the whole conversation")
        return kept

    def _found_here(self, owner: str, object_id: str) -> KeptAnswer | None:
        found = self._ring.get(owner, object_id, self._kept_s)
        kept = None if found is None else _decoded(found.text, owner)
        if found is not None and kept is not None and (found.is_old or found.age_s > self._kept_s / 2):
            self._ring.put(owner, response_ids(kept.response), found.text)
        return kept

    async def _doing(self, n_bytes: int, work: Callable[[], _T]) -> _T:
        """Return what some work returns: in the thread if it is about so many bytes. Raises what it raises."""
        return work() if n_bytes <= LARGE_BYTES else await self._cpu_thread.run(work)


class Keeper:
    """Keeps the answer of one request; see AnswerKeeper. It knows nothing of the exchange, which would be a cycle."""

    __slots__ = ("_input", "_keep", "_owner", "conversation", "later", "previous", "reads_reply")

    def __init__(
        self,
        keep: Callable[[KeptAnswer, tuple[str, ...]], None],
        owner: str,
        previous: str | None = None,
        own_input: bytes | None = None,
        conversation: str | None = None,
    ) -> None:
        """own_input: what the client has sent, where that is not the body that is read."""
        self._keep: Final = keep
        self._owner: Final = owner
        self._input: Final = own_input
        self.previous: Final = previous
        self.conversation: Final = conversation
        self.reads_reply = False
        self.later: KeptLater | None = None  # who keeps an answer that is large

    def keep_answer(self, answer: KeptAnswer) -> None:
        """Keep an answer that is whole."""
        self._keep(answer, response_ids(answer.response))

    def own_input(self, body: bytes | bytearray) -> bytes:
        """See AnswerKeeper."""
        return input_items(body) if self._input is None else self._input

    def keep(self, body: bytes | bytearray, response: bytes) -> None:
        """See AnswerKeeper."""
        if self.later is None or len(body) + len(response) <= LARGE_BYTES:
            self._keep_now(body, response)
        else:
            self.later.give(partial(self._keep_now, body, response), at_once=self.reads_reply)

    def _keep_now(self, body: bytes | bytearray, response: bytes) -> None:
        if self.reads_reply and len(response) > LARGE_BYTES and not is_answer(response):
            return
        try:
            given = self.own_input(body)
            ids = response_ids(response)
        except msgspec.DecodeError:
            return
        self._keep(KeptAnswer(ids[0], self._owner, self.previous, given, response), ids)


class ReadAnswer(ReplyFilter):
    """Reads an answer in Responses as it passes: a whole body, or the last event of a stream. It changes nothing."""

    __slots__ = ("_body", "_events", "_keeper", "_most_bytes", "_n_bytes", "_pieces")
    order: ClassVar[int] = FilterOrder.KEPT_ANSWER

    def __init__(self, keeper: AnswerKeeper, body: bytes | bytearray, most_bytes: int) -> None:
        """body: the request. most_bytes: of an answer that is kept."""
        super().__init__()
        self._keeper: Final = keeper
        self._body: Final = body
        self._most_bytes: Final = most_bytes
        self._events: SseEvents | None = None
        self._pieces: list[bytes] = []
        self._n_bytes = 0

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Read an answer that nobody else reads."""
        self.reads_body = self._keeper.reads_reply and is_plain and head.status == _OK
        self._events = SseEvents(self._most_bytes) if is_sse else None
        self._pieces, self._n_bytes = [], 0
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Keep the answer before the client has all of it."""
        try:
            if self._events is None:
                self._take(data, end=end)
            else:
                found = self._events.feed(data)
                for _, event in found:
                    self._look(event)
        except BrokenReplyError:
            self._leave()
        return data

    def _take(self, data: bytes, *, end: bool) -> None:
        self._pieces.append(data)
        self._n_bytes += len(data)
        if self._n_bytes > self._most_bytes:
            self._leave()
        elif end:
            answer = b"".join(self._pieces)
            self._leave()
            if len(answer) > LARGE_BYTES or is_answer(answer):  # of a large one its keeper looks
                self._keeper.keep(self._body, answer)

    def _look(self, event: bytes) -> None:
        answer = answer_in(event)
        if answer is not None:
            self._leave()
            self._keeper.keep(self._body, answer)

    def _leave(self) -> None:
        self.reads_body = False
        self._pieces = []


class KeptLater(ReplyFilter):
    """Holds the end of a reply back until its answer, which is large, was kept beside the loop.

    Who asks for the answer once the end has come finds it, through whatever worker.
    """

    __slots__ = ("_held", "_is_at_once", "_keep")
    order: ClassVar[int] = FilterOrder.KEPT_ANSWER

    def __init__(self) -> None:
        super().__init__()
        self.reads_body = False
        self._keep: Callable[[], None] | None = None
        self._is_at_once = False
        self._held: deque[bytes] = deque()

    def give(self, keep: Callable[[], None], *, at_once: bool) -> None:
        """Have an answer kept, with what is fed next. at_once: no other filter is behind; else with the end."""
        self._keep, self._is_at_once = keep, at_once
        self.reads_body = True

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Pass the head on; the body does not matter until there is an answer."""
        self.reads_body = False
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Hold what came with the answer, and behind it."""
        if self._keep is None:
            return data
        self._held.append(data)
        self.is_behind = self.has_work = end or self._is_at_once
        return b""

    def work(self) -> None:
        """Keep the answer."""
        keep, self._keep = self._keep, None
        if keep is not None:
            keep()

    def go_on(self) -> bytes:
        """Return what was held."""
        self.has_work = False
        data = self._held.popleft()
        self.is_behind = bool(self._held)
        self.reads_body = self.is_behind
        return data

    def close(self) -> None:
        """Nothing more comes; what was not kept by now had no end that its client has got."""
        self._keep = None
        self._held.clear()


def _decoded(text: bytes | bytearray, owner: str) -> KeptAnswer | None:
    """Read what was kept; None: it is another owner's, whose number is the same."""
    try:
        kept = KeptAnswer.decoded(text)
    except msgspec.DecodeError:
        return None
    return kept if kept.owner == owner else None
