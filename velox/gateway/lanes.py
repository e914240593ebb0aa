"""How requests go up to one member: as they came, by another path or in another envelope, or in another dialect.

    Lanes.call()     the API of the member's models that a request is sent to, and its target; None: as it came
    Lanes.request()  what is sent for such a call; and the attempt's `translation`, which brings its reply back

A member of an upstream without a provider has no lanes: all its requests go up as they came.

Knows: which dialects there are, and which of them reads a client or writes for a model. Does not know: how one is
written (dialects/), or where a provider has its APIs (providers/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol

from velox.dialects.facts import ModelFacts
from velox.dialects.form import Call, ClientSide, ModelSide
from velox.dialects.losses import BadRequestError, Losses
from velox.errors import Reason, VeloxError
from velox.gateway.crossing import Dialogue
from velox.gateway.filters import ReplyFilter
from velox.gateway.forward import Forwarder
from velox.gateway.translation import TranslatedReply
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.routes import HeaderRules
from velox.protocol.body_edit import with_model
from velox.providers.provider import Envelope, Provider
from velox.providers.target import TargetCall, TargetError, target_call
from velox.types import BodyFields, ReplyHead, RequestHead, Surface

__all__ = ["Asked", "LaneAttempt", "Lanes", "Sides"]

_KEPT_CALLS: Final = 512
_KEPT_BYTES: Final = 256  # of what a client may choose freely in a call
_IN_PATH: Final = frozenset({Envelope.AZURE_DATED, Envelope.CLAUDE_VERTEX, Envelope.CLAUDE_BEDROCK})


class Sides(NamedTuple):
    """The dialects: what reads clients' requests, and what writes for models, by their APIs."""

    clients: Mapping[Surface, Callable[[Call, Losses], ClientSide]]
    models: Mapping[Surface, Callable[[ModelFacts, Losses, str], ModelSide]]


class LaneAttempt(Protocol):
    """What is asked of the attempt that a call is made for. translation: is set where its reply is to be changed."""

    translation: ReplyFilter | None

    @property
    def forwarder(self) -> Forwarder: ...

    def refuses(self, head: ReplyHead) -> bool:
        """Say whether a reply is not for the client, because there is another attempt."""


class Asked(NamedTuple):
    """One request, as far as its lane depends on it.

    model: the one to ask for; None: none is named. rules: of its route, for the fields that go up. id, now_s: as in
    form.Call. strict: a field that would be dropped is refused. has_limits: Velox tells its own limits with the reply.
    to_be_read: Velox reads the reply, which must not be compressed then. on_bug, on_tokens: as in TranslatedReply.
    on_translated: called with the client's API, the upstream's, and how many fields were left out.
    """

    surface: Surface
    head: RequestHead
    fields: BodyFields
    body: bytes | bytearray | None
    model: str | None
    rules: HeaderRules
    id: str
    now_s: int
    strict: bool
    has_limits: bool
    to_be_read: bool
    on_bug: Callable[[Exception], None]
    on_tokens: Callable[[int | None, int | None], None] | None
    on_translated: Callable[[Surface, Surface, int], None]


class Lanes:
    """Of one upstream.

    row, parameters, apis: as in target_call(). facts: what is known of a model there.
    """

    def __init__(
        self,
        sides: Sides,
        row: Provider,
        parameters: Mapping[str, str],
        facts: Callable[[str], ModelFacts],
        apis: Collection[Surface] = (),
    ) -> None:
        self._sides: Final = sides
        self._row: Final = row
        self._parameters: Final = parameters
        self._facts: Final = facts
        self._apis: Final = apis
        self._known: Final[Memo[tuple[Surface, str, bool, bytes], tuple[TargetCall | None]]] = Memo(_KEPT_CALLS)

    def __repr__(self) -> str:
        return f"<Lanes {self._row.name}>"

    def call(self, surface: Surface, model: str | None, *, stream: bool, query: bytes) -> TargetCall | None:
        """Return where a request goes; None: as it came. Raises VeloxError for a model that no path can name."""
        if model is None:
            return None
        key = (surface, model, stream, query)
        found = self._known.get(key) or self._known.find(key)
        if found is None:
            try:
                place = (self._row, self._parameters, surface, model)
                found = (target_call(*place, stream=stream, apis=self._apis, query=query),)
            except TargetError as exc:
                raise VeloxError(Reason.BAD_REQUEST, str(exc), param="model") from exc
            if len(model) + len(query) <= _KEPT_BYTES:
                self._known.put(key, found)
        return found[0]

    def request(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Return what is sent. Raises VeloxError for what the client may not send in this way."""
        if call.api is not asked.surface:
            return self._crossing(call, attempt, asked)
        body, model = asked.body, asked.model
        is_renamed = model is not None and asked.fields.model != model and call.envelope not in _IN_PATH
        if is_renamed and body and asked.surface is not Surface.GENERATE:
            body = with_model(body, model or "")
        return attempt.forwarder.build(
            asked.head, asked.fields, body, to_be_read=asked.to_be_read, rules=asked.rules, target=call.target
        )

    def _crossing(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Put a request into another dialect."""
        client, model = self._sides.clients.get(asked.surface), self._sides.models.get(call.api)
        if client is None or model is None or asked.model is None:
            message = f"requests of this path can't be put into the API of this model's provider ({self._row.title})"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)
        losses = Losses(strict=asked.strict)
        stream = asked.fields.stream
        told = Call(asked.id, asked.now_s, asked.fields.model or "", stream)
        crossing = Dialogue(client(told, losses), model(self._facts(asked.model), losses, self._row.name), losses)
        try:
            body = crossing.request(asked.body or b"", asked.model)
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        asked.on_translated(asked.surface, call.api, len(losses.dropped))
        attempt.translation = TranslatedReply(
            crossing,
            attempt.refuses,
            asked.on_bug,
            is_stream=stream,
            has_limits=asked.has_limits,
            on_tokens=asked.on_tokens,
        )
        return attempt.forwarder.build_call(asked.head, call.target, call.headers, body, asked.rules)
