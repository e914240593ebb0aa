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

from velox.dialects.claude_envelope import (
    ClaudeOnBedrock,
    ClaudeOnVertex,
    bedrock_betas,
    bedrock_body,
    vertex_body,
)
from velox.dialects.counting import ESTIMATED, Counting
from velox.dialects.embeddings import GoogleEmbeddings
from velox.dialects.facts import ModelFacts
from velox.dialects.form import Call, ClientSide, ModelSide
from velox.dialects.losses import BadRequestError, Losses
from velox.dialects.text import quoted
from velox.errors import Reason, VeloxError
from velox.gateway.crossing import Dialogue, Invoked, Plain
from velox.gateway.filters import ReplyFilter
from velox.gateway.forward import Forwarder
from velox.gateway.translation import Crossing, TranslatedReply
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.routes import HeaderRules
from velox.protocol.body_edit import with_model
from velox.protocol.token_usage import TokenUsage
from velox.providers.provider import Envelope, Provider
from velox.providers.target import TargetCall, TargetError, target_call
from velox.types import BodyFields, Headers, ReplyHead, RequestHead, Surface

__all__ = ["COUNTS", "AnsweredHereError", "Asked", "LaneAttempt", "Lanes", "Sides"]

_KEPT_CALLS: Final = 512
_KEPT_BYTES: Final = 256  # of what a client may choose freely in a call
# The API whose requests each counts.
_COUNTED_BY: Final = {
    Surface.COUNT_MESSAGES: Surface.MESSAGES,
    Surface.COUNT_RESPONSES: Surface.RESPONSES,
    Surface.COUNT_GENERATE: Surface.GENERATE,
}
COUNTS: Final = frozenset(_COUNTED_BY)
_JSON: Final = (b"content-type", b"application/json")
_IN_PATH: Final = frozenset({Envelope.CLAUDE_VERTEX, Envelope.CLAUDE_BEDROCK})


class AnsweredHereError(Exception):
    """No upstream is asked: this is the answer, of status 200."""

    def __init__(self, headers: Headers, body: bytes) -> None:
        super().__init__("answered here")
        self.headers: Final = headers
        self.body: Final = body


class Sides(NamedTuple):
    """The dialects: what reads clients' requests, and what writes for models, by their APIs."""

    clients: Mapping[Surface, Callable[[Call, Losses], ClientSide]]
    models: Mapping[Surface, Callable[[ModelFacts, Losses, str], ModelSide]]


class LaneAttempt(Protocol):
    """What is asked of the attempt that a call is made for.

    translation: is set where its reply is to be changed. secret: the key that goes up; None: none.
    """

    translation: ReplyFilter | None

    @property
    def forwarder(self) -> Forwarder: ...

    @property
    def secret(self) -> bytes | None: ...

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
    on_tokens: Callable[[TokenUsage], None] | None
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
        self._models: Final[Memo[str, ModelFacts]] = Memo(_KEPT_CALLS)
        self._known: Final[Memo[tuple[Surface, str, bool, bytes], tuple[TargetCall | None]]] = Memo(_KEPT_CALLS)

    def __repr__(self) -> str:
        return f"<Lanes {self._row.name}>"

    @property
    def model_list(self) -> str:
        """Return the path of the provider's list of models, below the base path of the origin; "" for none."""
        return self._row.model_list

    def check_passes(self) -> None:
        """Raise VeloxError if the provider has nothing at paths of other APIs."""
        if not self._row.passes:
            message = f"the provider of this upstream ({self._row.title}) has no API for this path, or for such a model"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)

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
        if call.envelope is Envelope.CLAUDE_BEDROCK:
            return self._invoke(call, attempt, asked)
        body, model = asked.body, asked.model
        is_renamed = model is not None and asked.fields.model != model and call.envelope not in _IN_PATH
        if is_renamed and body and asked.surface is not Surface.GENERATE:
            body = with_model(body, model or "")
        if body and call.envelope is Envelope.CLAUDE_VERTEX:
            body = vertex_body(body)
        elif body and call.envelope is Envelope.CLAUDE_VERTEX_COUNT:
            body = b'{"model":%b,' % quoted(model or "") + vertex_body(body)[1:]
        return attempt.forwarder.build(
            asked.head, asked.fields, body, to_be_read=asked.to_be_read, rules=asked.rules, target=call.target
        )

    def _invoke(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Ask Claude on Bedrock for a client of Messages."""
        betas, unknown = bedrock_betas((asked.head.header(b"anthropic-beta") or b"").decode("latin-1"))
        losses = Losses(strict=asked.strict)
        try:
            if unknown:
                losses.drop("anthropic-beta")
            body = bedrock_body(asked.body or b"", betas)
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        client, model = self._both(asked, Surface.MESSAGES, Surface.MESSAGES, losses)
        self._translate(Invoked(client, model, losses.dropped), attempt, asked)
        return attempt.forwarder.build_call(asked.head, call.target, call.headers, body, asked.rules)

    def _both(
        self, asked: Asked, client_api: Surface, model_api: Surface, losses: Losses
    ) -> tuple[ClientSide, ModelSide]:
        """Return what reads the client, and what writes for the model. Raises VeloxError: there are none."""
        client, model = self._sides.clients.get(client_api), self._sides.models.get(model_api)
        if client is None or model is None or asked.model is None:
            message = f"requests of this path can't be put into the API of this model's provider ({self._row.title})"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)
        told = Call(asked.id, asked.now_s, asked.fields.model or "", asked.fields.stream)
        return client(told, losses), model(self._facts_of(asked.model), losses, self._row.name)

    def _facts_of(self, model: str) -> ModelFacts:
        """Return what is known of a model, for which all rules are gone through: kept, as a client repeats names."""
        found = self._models.get(model) or self._models.find(model)
        if found is None:
            found = self._facts(model)
            if len(model) <= _KEPT_BYTES:
                self._models.put(model, found)
        return found

    def _translate(self, crossing: Crossing, attempt: LaneAttempt, asked: Asked) -> None:
        """Have the reply brought back by a crossing."""
        attempt.translation = TranslatedReply(
            crossing,
            attempt.refuses,
            asked.on_bug,
            is_stream=asked.fields.stream,
            has_limits=asked.has_limits,
            knows_529=asked.surface in (Surface.MESSAGES, Surface.COUNT_MESSAGES),
            on_tokens=asked.on_tokens,
            secret=attempt.secret,
        )

    def estimate(self, asked: Asked) -> AnsweredHereError:
        """Return the estimate for a request to count that no API of the upstream can count. Raises VeloxError."""
        losses = Losses()
        client, model = self._both(asked, _COUNTED_BY[asked.surface], Surface.CHAT, losses)
        try:
            body = Counting(client, asked.surface, model, Surface.CHAT, losses).estimate(asked.body or b"")
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        return AnsweredHereError([_JSON, ESTIMATED], body)

    def _count(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Have the tokens of a request counted by another API than its client's."""
        losses = Losses(strict=asked.strict)
        client, model = self._both(asked, _COUNTED_BY[asked.surface], _COUNTED_BY[call.api], losses)
        is_vertex = self._row.name == "vertex"
        counting = Counting(client, asked.surface, model, call.api, losses, is_vertex=is_vertex)
        try:
            body = counting.request(asked.body or b"", asked.model or "")
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        asked.on_translated(asked.surface, call.api, len(losses.dropped))
        self._translate(Plain(counting), attempt, asked._replace(on_tokens=None))
        return attempt.forwarder.build_call(asked.head, call.target, call.headers, body, asked.rules)

    def _embed(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Have texts of a client of Gemini embedded by OpenAI's API."""
        losses = Losses(strict=asked.strict)
        embeddings = GoogleEmbeddings(*self._both(asked, Surface.GENERATE, Surface.CHAT, losses), losses)
        try:
            body = embeddings.request(asked.body or b"", asked.model or "")
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        asked.on_translated(asked.surface, call.api, len(losses.dropped))
        self._translate(Plain(embeddings), attempt, asked._replace(on_tokens=None))
        return attempt.forwarder.build_call(asked.head, call.target, call.headers, body, asked.rules)

    def _crossing(self, call: TargetCall, attempt: LaneAttempt, asked: Asked) -> UpstreamRequest:
        """Put a request into another dialect."""
        if asked.surface in _COUNTED_BY:
            return self._count(call, attempt, asked)
        if asked.surface is Surface.EMBED_CONTENTS and call.api is Surface.EMBEDDINGS:
            return self._embed(call, attempt, asked)
        losses = Losses(strict=asked.strict)
        client, model = self._both(asked, asked.surface, call.api, losses)
        if call.envelope is Envelope.CLAUDE_VERTEX:
            model = ClaudeOnVertex(model)
        elif call.envelope is Envelope.CLAUDE_BEDROCK:
            model = ClaudeOnBedrock(model)
        crossing = Dialogue(client, model, losses)
        try:
            body = crossing.request(asked.body or b"", asked.model or "")
        except BadRequestError as exc:
            raise VeloxError(Reason.BAD_REQUEST, exc.message, param=exc.param or None) from exc
        asked.on_translated(asked.surface, call.api, len(losses.dropped))
        self._translate(crossing, attempt, asked)
        return attempt.forwarder.build_call(asked.head, call.target, call.headers, body, asked.rules)
