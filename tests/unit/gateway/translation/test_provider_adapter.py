"""Paths that are none of a provider's APIs: where they go up, and where nothing is for them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.unit.dialects.test_claude_wrapper import bedrock_framed
from tests.unit.dialects.test_reported_tokens import sse
from velox.dialects.facts.model_facts import ModelFacts
from velox.errors import Reason, VeloxError
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.limits.metering import Meter, Usage
from velox.gateway.reply.filters import FilterChain
from velox.gateway.translation.adapter import DialectTable, ProviderAdapter
from velox.gateway.translation.client_request import ClientRequest
from velox.gateway.translation.forward import Forwarder
from velox.gateway.translation.prepared import Prepared
from velox.heads import ReplyHead, RequestHead
from velox.net.upstream.interface import UpstreamRequest
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import NO_RULES, HeaderRules, Timeouts
from velox.protocol.usage.token_usage import TokenUsage
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.providers.target import TargetCall
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind, BodyFields


def adapter(provider: str) -> ProviderAdapter:
    row = PROVIDERS[provider]
    return ProviderAdapter(DialectTable({}, {}), row, {}, lambda model: facts_of(row, model))


def test_rules_of_models_are_gone_through_once_for_each_name() -> None:
    """They are many, and stand beside a translation of a few microseconds."""
    asked_for = []

    def facts(model: str) -> ModelFacts:
        asked_for.append(model)
        return ModelFacts()

    found = ProviderAdapter(dialect_table(), PROVIDERS["openai"], {}, facts)
    for model in ("m", "m", "n", "m"):
        request = client_request_of(
            ApiKind.COUNT_MESSAGES, RequestHead.of(b"POST", b"/v1/messages/count_tokens"), model
        )
        assert b"input_tokens" in found.estimate(request).body

    assert asked_for == ["m", "n"]


def forwarder_of(row: str, *added: tuple[bytes, bytes]) -> Forwarder:
    """Return the one of an upstream that has these headers of its own."""
    return Forwarder(PROVIDERS[row], base_path="", root_path="/", key="k", client_keys_are_ours=True, added=added)


def prepared(
    adapter: ProviderAdapter, call: TargetCall, request: ClientRequest, row: str, *added: tuple[bytes, bytes]
) -> Prepared:
    """Return what goes to an upstream of this provider."""
    made = adapter.prepare(call, request._replace(forwarder=forwarder_of(row, *added)))
    assert isinstance(made, Prepared)
    return made


@pytest.mark.parametrize(
    ("given", "rules", "added", "sent"),
    [
        ("context-1m-2025-08-07,oauth-2025-04-20", NO_RULES, (), b"context-1m-2025-08-07"),
        ("oauth-2025-04-20", NO_RULES, (), None),
        ("oauth-2025-04-20", HeaderRules(remove=(b"x-a",)), (), None),
        ("", NO_RULES, (), None),
        ("oauth-2025-04-20", HeaderRules(set=((b"anthropic-beta", b"own"),)), (), b"own"),
        ("oauth-2025-04-20", NO_RULES, ((b"anthropic-beta", b"own"),), b"own"),
        (None, NO_RULES, (), None),
    ],
)
def test_betas_that_vertex_refuses_do_not_go_there(
    given: str | None, rules: HeaderRules, added: tuple[tuple[bytes, bytes], ...], sent: bytes | None
) -> None:
    """It answers 400 to those; what the operator sets is sent as it is."""
    found = request_of("vertex", given, rules, *added)

    assert [value for name, value in found.headers if name == b"anthropic-beta"] == ([] if sent is None else [sent])


def test_betas_go_to_anthropic_as_they_came() -> None:
    found = request_of("anthropic", "oauth-2025-04-20, new", NO_RULES)

    assert (b"anthropic-beta", b"oauth-2025-04-20, new") in found.headers


@pytest.mark.parametrize(
    ("row", "passes"), [("anthropic", True), ("vertex", False), ("foundry", False), ("bedrock-mantle", False)]
)
def test_scope_of_a_cache_mark_is_for_anthropics_own_api(row: str, passes: bool) -> None:
    """Others answer 400: "cache_control.ephemeral.scope: Extra inputs are not permitted"."""
    mark = b'{"type":"ephemeral","scope":"global"}'
    body = b'{"model":"claude-x","system":[{"type":"text","text":"a","cache_control":%b}]}' % mark
    sent = request_of(row, None, NO_RULES, body=body).body

    assert sent is not None and (b"scope" in sent, b"ephemeral" in sent) == (passes, True)


BILLING = b'{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"}'


@pytest.mark.parametrize(
    ("row", "passes"),
    [("anthropic", True), ("vertex", False), ("foundry", False), ("deepseek", False), ("zai", False)],
)
def test_note_of_claude_code_for_anthropic_goes_there_alone(row: str, passes: bool) -> None:
    """It is another one in each request, and stands before all else: no cache would find the prompt again."""
    body = b'{"model":"claude-x","system":[%b,{"type":"text","text":"You"}],"messages":[]}' % BILLING
    sent = request_of(row, None, NO_RULES, body=body).body

    assert sent is not None and (b"x-anthropic-billing-header" in sent, b'"You"' in sent) == (passes, True)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[' + b'{"role":"user","content":"a"},' * 100_000 + b'{"role":"user","content":"a"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"stop":[' + b'"a",' * 1_000_000 + b'"b"]}',
    ],
    ids=["messages", "texts"],
)
@pytest.mark.parametrize("client_api", [ApiKind.CHAT, ApiKind.COUNT_MESSAGES])
def test_request_of_too_many_values_is_not_translated(client_api: ApiKind, body: bytes) -> None:
    """To read and write 64 MiB of them would hold up the others for twenty seconds, and take gigabytes."""
    model = "gpt-4o" if client_api is ApiKind.COUNT_MESSAGES else "claude-x"
    row = PROVIDERS["openai" if client_api is ApiKind.COUNT_MESSAGES else "anthropic"]
    found = ProviderAdapter(dialect_table(), row, {}, lambda model: facts_of(row, model))
    call = found.target_call(client_api, model, stream=False, query=b"")
    assert call is not None and call.api is not client_api
    request = client_request_of(client_api, RequestHead.of(b"POST", b"/v1/x"), model)._replace(body=body)

    with pytest.raises(VeloxError, match="200,000") as caught:
        prepared(found, call, request, "anthropic")

    assert caught.value.reason is Reason.BAD_REQUEST


def request_of(
    row: str,
    betas: str | None,
    rules: HeaderRules,
    *added: tuple[bytes, bytes],
    body: bytes = b'{"model":"claude-x","messages":[{"role":"user","content":"hi"}]}',
) -> UpstreamRequest:
    """Return what is sent for a client of Messages with such betas."""
    headers = [(b"x-a", b"1")] if betas is None else [(b"x-a", b"1"), (b"anthropic-beta", betas.encode())]
    parameters = {"project": "p", "location": "eu"}
    found = ProviderAdapter(dialect_table(), PROVIDERS[row], parameters, lambda model: facts_of(PROVIDERS[row], model))
    call = found.target_call(ApiKind.MESSAGES, "claude-x", stream=False, query=b"")
    assert call is not None
    request = client_request_of(ApiKind.MESSAGES, RequestHead.of(b"POST", b"/v1/messages", headers), "claude-x", rules)
    request = request._replace(body=body)
    return prepared(found, call, request, row, *added).request


SONAR = {"model": "perplexity/sonar"}


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("perplexity/sonar", SONAR),
        ("anthropic/claude-x", {"model": "anthropic/claude-x"}),
        ("sonar", {**SONAR, "preset": "fast"}),
        ("sonar-pro", {**SONAR, "preset": "low"}),
        ("sonar-reasoning-pro", {**SONAR, "preset": "low"}),
        ("sonar-deep-research", {**SONAR, "preset": "medium"}),
        ("preset/low", {"preset": "low"}),
        ('preset/a"*', {"preset": 'a"*'}),
    ],
)
@pytest.mark.parametrize("client_api", [ApiKind.CHAT, ApiKind.RESPONSES])
def test_presets_of_perplexity_are_named_as_models(client_api: ApiKind, model: str, named: dict[str, str]) -> None:
    """By these names its models were asked until their API ended: it answers 400 to them now."""
    field = "messages" if client_api is ApiKind.CHAT else "input"
    body = json.dumps({"stream": True, "model": "m", field: [{"role": "user", "content": "hi"}]}).encode()

    sent = json.loads(perplexity_body(client_api, model, body))

    assert {name: sent[name] for name in ("model", "preset") if name in sent} == named
    assert sent["input"][0]["content"] == "hi"


def test_preset_of_the_clients_own_stays() -> None:
    """What it says itself counts, and no field is there twice."""
    body = b'{"preset": "high", "model": "%b", "input": "hi"}'

    assert perplexity_body(ApiKind.RESPONSES, "sonar", body % b"sonar") == (
        b'{"preset": "high", "model":"perplexity/sonar", "input": "hi"}'
    )
    assert perplexity_body(ApiKind.RESPONSES, "preset/low", body % b"preset/low") == body % b"preset/low"
    assert perplexity_body(ApiKind.RESPONSES, "openai/gpt-6", body % b"openai/gpt-6") == body % b"openai/gpt-6"


def perplexity_body(client_api: ApiKind, model: str, body: bytes) -> bytes:
    """Return what is sent for a client's body."""
    row = PROVIDERS["perplexity"]
    found = ProviderAdapter(dialect_table(), row, {}, lambda name: facts_of(row, name))
    call = found.target_call(client_api, model, stream=False, query=b"")
    assert call is not None
    request = client_request_of(client_api, RequestHead.of(b"POST", b"/v1/responses"), model)._replace(
        fields=BodyFields(model="m"), body=body
    )
    sent = prepared(found, call, request, "perplexity").request.body
    assert sent is not None
    return bytes(sent)


def client_request_of(
    client_api: ApiKind, head: RequestHead, model: str, rules: HeaderRules = NO_RULES
) -> ClientRequest:
    return ClientRequest(
        client_api=client_api,
        forwarder=forwarder_of("openai"),
        pool=cast(Pool, None),  # asked for by several calls alone
        timeouts=cast(Timeouts, None),
        most_at_once=0,
        secret=None,
        head=head,
        fields=BodyFields(model=model),
        body=b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
        model=model,
        rules=rules,
        id="1",
        now_s=0,
        strict=False,
        has_limits=False,
        to_be_read=False,
        on_bug=lambda _: None,
        on_tokens=None,
        on_translated=lambda *_: None,
        on_lost=lambda *_: None,
        thread=TranslationThread(),
    )


SEARCHED: dict[str, Any] = {
    "input_tokens": 10,
    "output_tokens": 20,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "server_tool_use": {"web_search_requests": 3},
    "service_tier": "standard",
}
COMPACTED: dict[str, Any] = {
    **SEARCHED,
    "iterations": [
        {"type": "compaction", "input_tokens": 1000, "output_tokens": 500},
        {"type": "message", "input_tokens": 10, "output_tokens": 20},
    ],
}
ADVISED: dict[str, Any] = {**SEARCHED, "iterations": [{"type": "advisor_message", "model": "m", "input_tokens": 5}]}
TOLD = TokenUsage(10, 20, 0, 0, web_searches=3, tier="standard", model="claude-x")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "kinds"),
    [
        (SEARCHED, TOLD),
        (COMPACTED, replace(TOLD, input=1010, output=520)),
        (ADVISED, replace(TOLD, has_others=True)),
    ],
)
def test_claude_on_bedrock_is_counted_by_all_that_it_says(
    usage: dict[str, Any], kinds: TokenUsage, is_stream: bool
) -> None:
    """Its searches, compactions and advisors cost money, as they do at Anthropic's own API."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "usage": usage}
    if is_stream:
        start = {**message, "usage": {"input_tokens": 10, "output_tokens": 1, "service_tier": "standard"}}
        body = bedrock_framed(
            sse(
                {"type": "message_start", "message": start},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
                {"type": "message_stop"},
            )
        )
        form = b"application/vnd.amazon.eventstream"
    else:
        body, form = json.dumps({**message, "stop_reason": "end_turn"}).encode(), b"application/json"
    found = ProviderAdapter(
        dialect_table(), PROVIDERS["bedrock"], {"region": "r"}, lambda model: facts_of(PROVIDERS["bedrock"], model)
    )
    call = found.target_call(ApiKind.MESSAGES, "anthropic.claude-x", stream=is_stream, query=b"")
    assert call is not None
    meter = Meter(is_stream=is_stream)
    request = client_request_of(ApiKind.MESSAGES, RequestHead.of(b"POST", b"/v1/messages"), "anthropic.claude-x")
    request = request._replace(fields=BodyFields("anthropic.claude-x", stream=is_stream), on_tokens=meter.note)
    sent = prepared(found, call, request, "bedrock")
    assert sent.translation is not None

    chain = FilterChain((sent.translation(), meter), is_sse=False, is_plain=True)
    chain.begin(ReplyHead.of(200, [(b"content-type", form)], None))
    chain.feed(body, True)

    assert meter.kinds() == kinds
    assert meter.usage(is_whole=True) == Usage(kinds.input, kinds.output, True)


def test_other_paths_go_below_the_providers_own_beginning() -> None:
    """Azure has all of OpenAI's API below /openai; a path that the row gives already has it."""
    azure = Forwarder(PROVIDERS["azure"], base_path="/gw", root_path="/v1/chat", key="k", client_keys_are_ours=False)
    head = RequestHead.of(b"GET", b"/v1/files?limit=2")

    assert azure.build(head, BodyFields(), None).target == b"/gw/openai/v1/files?limit=2"
    assert azure.build(head, BodyFields(), None, target=b"/openai/v1/x").target == b"/gw/openai/v1/x"


def test_path_that_a_provider_has_nothing_at_is_refused_here() -> None:
    """Bedrock would answer with an error of its own, or with a signature that it does not take."""
    adapter("anthropic").check_passes()
    adapter("azure").check_passes()
    for name in ("bedrock", "vertex", "bedrock-mantle"):
        with pytest.raises(VeloxError) as raised:
            adapter(name).check_passes()
        assert raised.value.reason is Reason.UNKNOWN_ROUTE


def test_list_of_models_is_where_the_provider_has_it() -> None:
    """Nowhere at those that list what no caller may use as it is."""
    found = {name: adapter(name).model_list for name in ("openai", "gemini", "bedrock", "azure", "zai", "perplexity")}

    assert found == {
        "openai": "/v1/models",
        "gemini": "/v1beta/openai/models",
        "bedrock": "",
        "azure": "",
        "zai": "/paas/v4/models",
        "perplexity": "/v1/models",
    }
