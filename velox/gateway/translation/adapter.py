"""A provider adapter prepares requests for the provider of one upstream: as they came, by another path, in another
wrapper, or in another dialect.

    ProviderAdapter.target_call()  which API of the provider is asked, and where; None: the request goes up as it came
    ProviderAdapter.prepare()      returns the request to send, and what translates its reply (Prepared)

A member of an upstream without a provider has none: all its requests go up as they came.

Knows: which dialects there are, and which of them reads a client or writes for a model. Does not know: how one is
written (dialects/), or where a provider has its APIs (providers/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from velox.dialects.as_sent.claude_fields import fitted, names_of
from velox.dialects.as_sent.claude_wrapper import (
    ClaudeOnBedrock,
    ClaudeOnVertex,
    bedrock_body,
    vertex_body,
    without_billing,
    without_scopes,
)
from velox.dialects.as_sent.foreign_history import (
    RefusedReasoning,
    has_encrypted_reasoning,
    without_encrypted_reasoning,
    without_foreign,
)
from velox.dialects.as_sent.known_values import with_known_values
from velox.dialects.as_sent.tool_schemas import with_fitted_schemas
from velox.dialects.as_sent.types_taken import takes_types
from velox.dialects.cache_marks import MarkingModel, adds_marks
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ApiError, ClientCall, ClientSide, ModelSide
from velox.dialects.counting import ESTIMATED, Counting, cannot_count, invoke_count_request, named_count_request
from velox.dialects.embeddings.gemini_clients import GoogleEmbeddings, with_embedding_model
from velox.dialects.embeddings.other_models import EmbeddingForm, ModelEmbeddings
from velox.dialects.facts.model_facts import REFUSED, ModelFacts
from velox.dialects.json_text.text import quoted
from velox.dialects.responses.background import runs_in_background
from velox.errors import Reason, VeloxError
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.translation.batch_split import BatchSplit
from velox.gateway.translation.client_request import COUNTED_BY, ClientRequest, refusal
from velox.gateway.translation.prepared import BackgroundAnswer, LocalAnswer, Prepared
from velox.gateway.translation.translated_reply import (
    ReplyTranslator,
    SubstituteReply,
    TranslatedHeads,
    TranslatedReply,
)
from velox.gateway.translation.translators import GenerationTranslator, InvokeTranslator, NonStreamingTranslator
from velox.heads import Headers
from velox.memo import Memo
from velox.net.upstream.interface import UpstreamRequest
from velox.policy.api.rows import is_management
from velox.policy.routes.entries import HeaderRules
from velox.protocol.json.edit import Field, instead_of_model, naming_model, with_model
from velox.protocol.json.value_count import MOST_VALUES, has_over
from velox.providers.provider import Provider, WireWrapper
from velox.providers.rows import takes_path
from velox.providers.target import TargetCall, TargetError, target_call
from velox.types import ApiKind, Endpoint

__all__ = ["DialectTable", "ProviderAdapter"]

_KEPT_CALLS: Final = 512
_KEPT_BYTES: Final = 256  # of what a client may choose freely in a call
# Of a request that is put into another dialect, at one go: half a second at most. Those of agents have some thousands.
_COUNTED_AT: Final = {**COUNTED_BY, ApiKind.COUNT_CONVERSE: ApiKind.CONVERSE}  # an upstream's
# How long a model's provider is not asked to count, that has said that it can't.
_UNCOUNTED_S: Final = 600
_JSON: Final = (b"content-type", b"application/json")
_EMBEDS_OF_GOOGLE: Final = frozenset({ApiKind.EMBED_CONTENT, ApiKind.EMBED_CONTENTS})
_EMBEDS: Final = _EMBEDS_OF_GOOGLE | {ApiKind.EMBEDDINGS}
_FORMS: Final = {
    WireWrapper.PREDICT: EmbeddingForm.PREDICT,
    WireWrapper.CONTENT: EmbeddingForm.CONTENT,
    WireWrapper.TITAN: EmbeddingForm.TITAN,
    WireWrapper.NOVA: EmbeddingForm.NOVA,
    WireWrapper.COHERE: EmbeddingForm.COHERE,
}
# The API whose errors each has.
_ERRORS_OF: Final = {
    EmbeddingForm.PREDICT: ApiKind.GENERATE,
    EmbeddingForm.CONTENT: ApiKind.GENERATE,
    EmbeddingForm.TITAN: ApiKind.CONVERSE,
    EmbeddingForm.NOVA: ApiKind.CONVERSE,
    EmbeddingForm.COHERE: ApiKind.CONVERSE,
}
_OF_GOOGLE: Final = _EMBEDS_OF_GOOGLE | {ApiKind.GENERATE, ApiKind.COUNT_GENERATE}
_EVENTS: Final = frozenset({b"alt=sse", b"$alt=sse", b"%24alt=sse"})  # in a query
_OF_CLAUDE: Final = frozenset({ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES})
_BETA: Final = b"anthropic-beta"
_TOOLS: Final = b'"tools"'
_MISTRALS: Final = b"mistral-client-"  # how the names begin that its SDKs for Python and TypeScript send
_SCOPES: Final = "cache_control.scope"  # among the facts' `refused`, or `beta_fields`
_IN_PATH: Final = frozenset({WireWrapper.CLAUDE_VERTEX, WireWrapper.CLAUDE_BEDROCK})
# What puts Claude's Messages into a wire wrapper, and its replies out of it.
_WRAPPED: Final[Mapping[WireWrapper, Callable[[ModelSide], ModelSide]]] = {
    WireWrapper.CLAUDE_VERTEX: ClaudeOnVertex,
    WireWrapper.CLAUDE_BEDROCK: ClaudeOnBedrock,
}


class DialectTable(NamedTuple):
    """The classes of all dialects by API: those that read clients' requests, and those that write for models."""

    clients: Mapping[ApiKind, Callable[[ClientCall, DroppedFields], ClientSide]]
    models: Mapping[ApiKind, Callable[[ModelFacts, DroppedFields, str], ModelSide]]


class ProviderAdapter:
    """Prepares the requests of clients for the provider of one upstream.

    row, parameters, apis: as in target_call(). facts: what is known of a model there.
    """

    def __init__(
        self,
        dialects: DialectTable,
        row: Provider,
        parameters: Mapping[str, str],
        facts: Callable[[str], ModelFacts],
        apis: Collection[ApiKind] = (),
    ) -> None:
        self._dialects: Final = dialects
        self._row: Final = row
        self._parameters: Final = parameters
        self._facts: Final = facts
        self._apis: Final = apis
        self._heads: Final = TranslatedHeads()
        self._refused: Final = RefusedReasoning()
        self._models: Final[Memo[str, ModelFacts]] = Memo(_KEPT_CALLS)
        self._uncounted: Final[Memo[str, int]] = Memo(_KEPT_CALLS)  # until when, by model
        self._known: Final[Memo[tuple[ApiKind, str, bool, bytes], tuple[TargetCall | None]]] = Memo(_KEPT_CALLS)

    def __repr__(self) -> str:
        return f"<ProviderAdapter {self._row.name}>"

    @property
    def model_list(self) -> str:
        """Return the path of the provider's list of models, below the base path of the origin; "" for none."""
        return self._row.model_list

    @property
    def model_start(self) -> str:
        """Return what names of models may begin with in that list that is no part of them."""
        return self._row.model_start

    @property
    def takes_sockets(self) -> bool:
        """True where the provider itself takes the WebSocket of Responses."""
        return self._row.sockets

    def has_encrypted_reasoning(self, body: bytes | bytearray, client_api: ApiKind) -> bool:
        """Return True if a client's body may have reasoning that only its maker can read."""
        return has_encrypted_reasoning(body, client_api)

    def without_encrypted_reasoning(self, body: bytes | bytearray, client_api: ApiKind) -> bytes | bytearray:
        """Return a client's body without it."""
        return without_encrypted_reasoning(body, client_api)

    def note_refused(self, body: bytes | bytearray, client_api: ApiKind) -> None:
        """Note that the upstream has refused a client's body because of it: later ones go without what it has."""
        self._refused.add(body, client_api)

    @property
    def has_conversations(self) -> bool:
        """True where the provider has conversation objects, or may have."""
        return self._row.traits.conversations

    def check_passes(self, endpoint: Endpoint = Endpoint.OTHER, path: bytes = b"", *, of_google: bool = False) -> None:
        """Raise VeloxError if the provider has nothing at paths of other APIs. of_google: of objects of Google's."""
        row = self._row
        if takes_path(row, endpoint, path) and (row.has_googles or not of_google):
            return
        message = f"the provider of this upstream ({row.title}) has no API for this path, or for such a model"
        if row.passes and is_management(path):
            message = "this is a path of LiteLLM's management, which the admin listener serves (VELOX_ADMIN_LISTEN)"
        raise VeloxError(Reason.UNKNOWN_ROUTE, message)

    def target_call(self, client_api: ApiKind, model: str | None, *, stream: bool, query: bytes) -> TargetCall | None:
        """Return where a request goes; None: as it came. Raises VeloxError for a model that no path can name."""
        if model is None:
            if client_api is not ApiKind.COUNT_RESPONSES:
                return None
            # What it counts may be of a conversation that has its model; others than OpenAI's API can't know it.
            call = target_call(self._row, self._parameters, client_api, "", apis=self._apis, query=query)
            return call if call is not None and call.api is client_api else None
        key = (client_api, model, stream, query)
        found = self._known.get(key) or self._known.find(key)
        if found is None:
            try:
                place = (self._row, self._parameters, client_api, model)
                known_as = self._facts_of(model).family
                found = (target_call(*place, stream=stream, apis=self._apis, query=query, known_as=known_as),)
            except TargetError as exc:
                raise VeloxError(Reason.BAD_REQUEST, str(exc), param="model") from exc
            if len(model) + len(query) <= _KEPT_BYTES:
                self._known.put(key, found)
        return found[0]

    def prepare(self, call: TargetCall, request: ClientRequest) -> Prepared | LocalAnswer:
        """Return what is sent. Raises VeloxError for what the client may not send in this way."""
        left_out: tuple[str, ...] = ()
        traits = self._row.traits
        # What the target refuses, whatever the dialect of the request.
        if request.body and (own := self._refused.left_out(request.body, request.client_api)) is not request.body:
            request = request._replace(body=own)
        if request.client_api in _OF_CLAUDE and request.body and self._refuses_scopes(request.model or ""):
            request = request._replace(body=without_scopes(request.body))
        if request.client_api in _OF_CLAUDE and request.body and not traits.billing_blocks:
            request = request._replace(body=without_billing(request.body))
        # In another dialect: translated.
        if call.api is not request.client_api:
            return BackgroundAnswer() if self._runs_in_background(request) else self._translated(call, request)
        if request.client_api is ApiKind.RESPONSES and (fitted := self._fitted(request)) is not None:
            return BackgroundAnswer() if self._runs_in_background(request) else self._translated(fitted, request)
        if not traits.whole_calls and _reads_whole_calls(request):
            return self._translated(call, request)
        if request.keeper is not None:
            request.keeper.reads_reply = not self.keeps_answers(request.model or "")
            if request.keeper.reads_reply and self._runs_in_background(request):
                return BackgroundAnswer()
        # In its own dialect: as sent, but for what this provider or model refuses, and the names of the model.
        if request.body and request.model is not None:
            facts = self._facts_of(request.model)
            own = without_foreign(request.body, request.client_api, facts, traits)
            own = with_known_values(own, request.client_api, facts, traits)
            own = with_fitted_schemas(own, request.client_api, facts, traits)
            if own is not request.body:
                request = request._replace(body=own)
        if call.wrapper is WireWrapper.CLAUDE_BEDROCK:
            return self._invoke(call, request)
        model, rules = request.model, request.rules
        is_another = model is not None and (request.fields.model != model or request.fields.is_model_in_path)
        if (
            request.client_api in _OF_CLAUDE
            and request.body
            and (is_another or request.client_api not in traits.defines)
        ):
            request, rules, left_out = self._for_service(request)
        body = request.body
        is_renamed = is_another and call.wrapper not in _IN_PATH
        if body and request.client_api in _OF_GOOGLE:
            body = self._for_google(body, request, is_renamed=is_renamed)
        elif is_renamed and body:
            body = naming_model(body, model or "") if request.fields.is_model_in_path else with_model(body, model or "")
        if body and call.fields:
            fields = [(name, value) for name, value in call.fields if name == "model" or Field(name).find(body) < 0]
            body = instead_of_model(body, fields) if fields else body
        if body and call.wrapper is WireWrapper.CLAUDE_VERTEX:
            body = vertex_body(body)
        elif body and call.wrapper is WireWrapper.CLAUDE_VERTEX_COUNT:
            body = _vertex_count(body, model or "")
        up = request.forwarder.build(
            request.head,
            request.fields,
            body,
            to_be_read=request.to_be_read,
            rules=rules,
            target=call.target,
        )
        return Prepared(up, left_out=left_out)

    def _runs_in_background(self, request: ClientRequest) -> bool:
        """Say whether an answer is wanted in the background, which its provider would not do. Raises VeloxError."""
        if request.keeper is None or not request.body:
            return False
        try:
            return runs_in_background(request.body)
        except BadRequestError as exc:
            raise refusal(exc) from exc

    def keeps_answers(self, model: str) -> bool:
        """Say whether a model's own Responses API keeps answers, where it has one."""
        return self._facts_of(model).keeps_answers

    def _fitted(self, request: ClientRequest) -> TargetCall | None:
        """Return where a request in Responses goes that has types which the provider's own Responses does not take.

        None: it takes them all.
        """
        model = request.model or ""
        if not request.body or takes_types(request.body, self._facts_of(model)):
            return None
        place = (self._row, self._parameters, ApiKind.RESPONSES, model)
        return target_call(
            *place,
            stream=request.fields.stream,
            apis=self._apis,
            is_translated=True,
            known_as=self._facts_of(model).family,
        )

    def _refuses_scopes(self, model: str) -> bool:
        facts = self._facts_of(model)
        return _SCOPES in facts.refused or (_SCOPES, REFUSED) in facts.beta_fields

    def _for_service(self, request: ClientRequest) -> tuple[ClientRequest, HeaderRules, tuple[str, ...]]:
        """Return a request of Messages as its service takes it, the rules for its headers, and what was left out.

        What a route or an upstream sets as betas is sent as it says.
        """
        facts, rules = self._facts_of(request.model or ""), request.rules
        given, dropped = self._betas_of(request), DroppedFields(strict=request.strict)
        is_renamed = request.model != request.fields.model
        try:
            body, betas = fitted(request.body or b"", given, facts, dropped, is_renamed=is_renamed)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        request = request._replace(body=body)
        uncounted = self._row.traits.uncounted_betas
        if request.client_api is ApiKind.COUNT_MESSAGES and uncounted:
            betas = tuple(beta for beta in betas if beta not in uncounted)
        is_same = betas == given and (bool(given) or request.head.header(_BETA) is None)
        if is_same or _BETA in rules.names or request.forwarder.sets(_BETA):
            return request, rules, dropped.names
        if not betas:
            return request, HeaderRules(rules.set, (*rules.remove, _BETA)), dropped.names
        named = (_BETA, ",".join(betas).encode("latin-1"))
        return request, HeaderRules((*rules.set, named), rules.remove), dropped.names

    def _betas_of(self, request: ClientRequest) -> tuple[str, ...]:
        return names_of(value.decode("latin-1") for name, value in request.head.headers if name == _BETA)

    def _for_google(self, body: bytes | bytearray, request: ClientRequest, *, is_renamed: bool) -> bytes | bytearray:
        """Return a body of Gemini's own, whose path names the model, with the names of it inside changed as well."""
        is_flat, model = self._row.traits.count_is_flat, request.model or ""
        try:
            if request.client_api is ApiKind.COUNT_GENERATE and (is_renamed or is_flat):
                return named_count_request(body, model, is_flat=is_flat)
            if request.client_api in _EMBEDS_OF_GOOGLE and is_renamed:
                return with_embedding_model(body, model)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        return body

    def _invoke(self, call: TargetCall, request: ClientRequest) -> Prepared:
        """Ask Claude on Bedrock for a client of Messages."""
        dropped = DroppedFields(strict=request.strict)
        try:
            body = self._invoked(request, dropped)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        client, model = self._both(request, ApiKind.MESSAGES, ApiKind.MESSAGES, dropped)
        brings_back = _translation(
            InvokeTranslator(client, model, dropped.names), request._replace(on_tokens=None), self._heads
        )
        return Prepared(_built(call, request, body), brings_back)

    def _invoked(self, request: ClientRequest, dropped: DroppedFields) -> bytes:
        """Return the body of a client of Messages as Bedrock's invoke wants it. Raises BadRequestError."""
        facts = self._facts_of(request.model or "")
        is_renamed = request.model != request.fields.model
        return bedrock_body(
            *fitted(request.body or b"", self._betas_of(request), facts, dropped, is_renamed=is_renamed)
        )

    def _both(
        self, request: ClientRequest, client_api: ApiKind, model_api: ApiKind, dropped: DroppedFields
    ) -> tuple[ClientSide, ModelSide]:
        """Return what reads the client, and what writes for the model. Raises VeloxError: there are none."""
        client, model = self._dialects.clients.get(client_api), self._dialects.models.get(model_api)
        if client is None or model is None or request.model is None:
            message = f"requests of this path can't be put into the API of this model's provider ({self._row.title})"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)
        of_client = ClientCall(
            request.id,
            request.now_s,
            request.fields.model or "",
            request.fields.stream,
            _wants_array(request),
            request.keeper,
            _reads_whole_calls(request),
        )
        return client(of_client, dropped), model(self._facts_of(request.model), dropped, self._row.name)

    def _facts_of(self, model: str) -> ModelFacts:
        """Return what is known of a model, for which all rules are gone through: kept, as a client repeats names."""
        found = self._models.get(model) or self._models.find(model)
        if found is None:
            found = self._facts(model)
            if len(model) <= _KEPT_BYTES:
                self._models.put(model, found)
        return found

    def estimate(self, request: ClientRequest) -> LocalAnswer:
        """Return the estimate for a request to count that no API of the upstream can count. Raises VeloxError."""
        _check_size(request)
        dropped = DroppedFields()
        client, model = self._both(request, COUNTED_BY[request.client_api], ApiKind.CHAT, dropped)
        try:
            body = Counting(client, request.client_api, model, ApiKind.CHAT, dropped).estimate(request.body or b"")
        except BadRequestError as exc:
            raise refusal(exc) from exc
        return LocalAnswer([_JSON], body, [ESTIMATED])

    def _count(self, call: TargetCall, request: ClientRequest) -> Prepared | LocalAnswer:
        """Have the tokens of a request counted by another API than its client's."""
        model_name = request.model or ""
        until_s = self._uncounted.get(model_name) or self._uncounted.find(model_name)
        if until_s is not None and request.now_s < until_s:
            return self.estimate(request)
        dropped = DroppedFields(strict=request.strict)
        client, model = self._both(request, COUNTED_BY[request.client_api], _COUNTED_AT[call.api], dropped)
        is_flat = self._row.traits.count_is_flat
        counting = Counting(client, request.client_api, model, call.api, dropped, is_flat=is_flat)
        try:
            if call.wrapper is WireWrapper.CLAUDE_BEDROCK and request.client_api is ApiKind.COUNT_MESSAGES:
                body = invoke_count_request(self._invoked(request, dropped))
            else:
                body = counting.request(request.body or b"", model_name)
            if call.wrapper is WireWrapper.CLAUDE_VERTEX_COUNT:
                body = _vertex_count(body, model_name)
        except BadRequestError as exc:
            raise refusal(exc) from exc
        request.on_translated(request.client_api, call.api, len(dropped.names))
        instead = partial(self._estimate_instead, counting, request) if call.api is ApiKind.COUNT_CONVERSE else None
        brings_back = _translation(
            NonStreamingTranslator(counting), request._replace(on_tokens=None), self._heads, instead=instead
        )
        return Prepared(_built(call, request, body), brings_back)

    def _estimate_instead(self, counting: Counting, request: ClientRequest, error: ApiError) -> SubstituteReply | None:
        """Return an estimate in place of an error which says that a model's provider can't count, or may not here."""
        if not cannot_count(error):
            return None
        try:
            body = counting.estimate(request.body or b"")
        except BadRequestError:
            return None  # the provider's own error tells more
        if len(request.model or "") <= _KEPT_BYTES:
            self._uncounted.put(request.model or "", request.now_s + _UNCOUNTED_S)
        return SubstituteReply(body, (ESTIMATED,))

    def _embed(self, call: TargetCall, request: ClientRequest) -> Prepared:
        """Have texts embedded by another API than their client's."""
        dropped = DroppedFields(strict=request.strict)
        is_google = request.client_api in _EMBEDS_OF_GOOGLE
        form = _FORMS.get(call.wrapper)
        errors = ApiKind.CHAT if form is None else _ERRORS_OF[form]
        pair = self._both(request, ApiKind.GENERATE if is_google else ApiKind.CHAT, errors, dropped)
        google = GoogleEmbeddings(*pair, dropped) if is_google else None
        made = google if form is None else ModelEmbeddings(*pair, dropped, form, google)
        assert made is not None, "OpenAI's requests to OpenAI's API need no translation"
        build = partial(_built, call, request)
        asked_body, model = request.body or b"", request.model or ""
        try:
            if isinstance(made, ModelEmbeddings):
                bodies, on_head = made.requests(asked_body, model), made.note_head
            else:
                bodies, on_head = [made.request(asked_body, model)], None
        except BadRequestError as exc:
            raise refusal(exc) from exc
        request.on_translated(request.client_api, call.api, len(dropped.names))
        brings_back = _translation(NonStreamingTranslator(made), request, self._heads, on_head)
        first = build(bodies[0])
        if not isinstance(made, ModelEmbeddings) or len(bodies) == 1:
            return Prepared(first, brings_back)
        first.dispatch = BatchSplit(
            bodies,
            build,
            made.take,
            request.pool,
            request.timeouts,
            request.most_at_once,
            request.on_bug,
            request.thread,
        ).open
        return Prepared(first, brings_back, usage_so_far=made.usage_so_far)

    def _translated(self, call: TargetCall, request: ClientRequest) -> Prepared | LocalAnswer:
        """Put a request into another dialect."""
        _check_size(request)
        if request.client_api in COUNTED_BY:
            return self._count(call, request)
        if request.client_api in _EMBEDS:
            return self._embed(call, request)
        dropped = DroppedFields(strict=request.strict, on_lost=partial(request.on_lost, request.client_api, call.api))
        client, model = self._both(request, request.client_api, call.api, dropped)
        if request.client_api is not ApiKind.MESSAGES and adds_marks(self._facts_of(request.model or "")):
            model = MarkingModel(model, self._facts_of(request.model or ""))
        if (wrapped := _WRAPPED.get(call.wrapper)) is not None:
            model = wrapped(model)
        translator = GenerationTranslator(client, model, dropped)
        try:
            body = translator.request(request.body or b"", request.model or "")
        except BadRequestError as exc:
            raise refusal(exc) from exc
        if call.fields:
            body = bytes(instead_of_model(body, call.fields))
        request.on_translated(request.client_api, call.api, len(dropped.names))
        return Prepared(_built(call, request, body), _translation(translator, request, self._heads))


def _built(call: TargetCall, request: ClientRequest, body: bytes) -> UpstreamRequest:
    """Return a request that is written anew."""
    return request.forwarder.build_call(request.head, call.target, call.headers, body, request.rules)


def _translation(
    translator: ReplyTranslator,
    request: ClientRequest,
    heads: TranslatedHeads,
    on_head: Callable[[Headers], None] | None = None,
    instead: Callable[[ApiError], SubstituteReply | None] | None = None,
) -> Callable[[], ReplyFilter]:
    """Return what makes the filter that translates the reply. on_head, instead: as in TranslatedReply."""
    return partial(
        TranslatedReply,
        translator,
        request.on_bug,
        is_stream=request.fields.stream,
        has_limits=request.has_limits,
        knows_529=request.client_api in (ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES),
        on_tokens=request.on_tokens,
        secret=request.secret,
        heads=heads,
        on_head=on_head,
        instead=instead,
        is_array=_wants_array(request),
    )


def _check_size(request: ClientRequest) -> None:
    """Raise VeloxError for a request that would take too long to be read and written anew."""
    if request.body and has_over(request.body, MOST_VALUES):
        message = f"this request has over {MOST_VALUES:,} fields and values: too many to be put into another API"
        raise VeloxError(Reason.BAD_REQUEST, message)


def _vertex_count(body: bytes | bytearray, model: str) -> bytes:
    """Return a request to count as Vertex wants it, whose path does not name the model."""
    return b'{"model":%b,' % quoted(model) + vertex_body(body)[1:]


def _reads_whole_calls(request: ClientRequest) -> bool:
    """Say whether a client reads a streamed call of a tool in one piece only, as Mistral's SDK does."""
    if request.client_api is not ApiKind.CHAT or not request.fields.stream or not request.body:
        return False
    if request.body.find(_TOOLS) < 0:
        return False
    return (request.head.header(b"user-agent") or b"").startswith(_MISTRALS)


def _wants_array(request: ClientRequest) -> bool:
    """Say whether a client of Gemini gets its stream as a JSON array: it did not ask for events."""
    if request.client_api is not ApiKind.GENERATE or not request.fields.stream:
        return False
    return not _EVENTS.intersection(request.head.shape.query.split(b"&"))
