"""K1: what a client of Messages sends to any service of Claude goes up as the service takes it, or is refused here.

Each service is played by a fake that is as strict as it is (tests/vendors/), and knows nothing of our tables.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.translation.claude_features import ASKED, BETAS, EXAMPLES, TOOL, example
from tests.unit.gateway.translation.test_provider_adapter import client_request_of, prepared
from tests.vendors import bedrock, foundry, mantle, messages_servers, vertex
from tests.vendors.claude import BETAS as KNOWN
from tests.vendors.vendor import Reply, Vendor, VendorRequest, as_request
from velox.errors import Reason, VeloxError
from velox.gateway.translation.adapter import ProviderAdapter
from velox.gateway.translation.prepared import Prepared
from velox.heads import RequestHead
from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind, BodyFields

CLOUDS = (bedrock.VENDOR, mantle.VENDOR, vertex.VENDOR, foundry.VENDOR)
VENDORS = {each.row: each for each in (*CLOUDS, *messages_servers.VENDORS)}
PARAMETERS = {"project": "p", "location": "eu", "region": "eu-west-1", "resource": "r"}
MODEL = "anthropic.claude-opus-4-8"


def went_up(
    row: str, body: dict[str, Any], betas: list[str], client_api: ApiKind = ApiKind.MESSAGES
) -> tuple[VendorRequest, Prepared]:
    """Return what the service gets of a request, and how that was prepared. Raises VeloxError."""
    adapter = ProviderAdapter(
        dialect_table(), PROVIDERS[row], PARAMETERS, lambda model: facts_of(PROVIDERS[row], model)
    )
    stream = bool(body.get("stream"))
    call = adapter.target_call(client_api, MODEL, stream=stream, query=b"")
    assert call is not None
    headers = [(b"anthropic-version", b"2023-06-01")]
    if betas:
        headers.append((b"anthropic-beta", ",".join(betas).encode()))
    head = RequestHead.of(b"POST", b"/v1/messages", headers)
    request = client_request_of(client_api, head, MODEL)._replace(
        fields=BodyFields(MODEL, stream=stream), body=json.dumps({**body, "model": MODEL}).encode()
    )
    made = prepared(adapter, call, request, row)
    sent = made.request
    fields = [(name.decode(), value.decode()) for name, value in sent.headers]
    return as_request("POST", sent.target.decode(), fields, bytes(sent.body or b"")), made


def refusal(vendor: Vendor, body: dict[str, Any], betas: list[str]) -> Reply | None:
    """Return what the service refuses; None: it answers, or Velox has refused the request with its field."""
    try:
        return vendor.refuse(went_up(vendor.row, body, betas)[0])
    except VeloxError as exc:
        assert exc.reason is Reason.BAD_REQUEST and exc.param
        return None


@pytest.mark.parametrize("row", VENDORS)
@pytest.mark.parametrize("path", sorted(EXAMPLES))
@pytest.mark.parametrize("has_betas", [True, False])
def test_each_field_is_taken_with_its_beta_or_comes_off_with_it(row: str, path: str, has_betas: bool) -> None:
    """C6, C7, C8, N1: for every beta, field and cloud of the table."""
    body, betas = example({path})

    assert refusal(VENDORS[row], body, betas if has_betas else []) is None


@pytest.mark.parametrize("row", VENDORS)
@pytest.mark.parametrize("beta", sorted(KNOWN))
def test_each_beta_is_taken_or_comes_off(row: str, beta: str) -> None:
    """C8, N8: whatever a client names; one that only the service has is the operator's to add."""
    assert refusal(VENDORS[row], ASKED, [beta]) is None


@given(
    st.sampled_from(sorted(VENDORS)),
    st.sets(st.sampled_from(sorted(EXAMPLES)), max_size=8),
    st.sets(st.sampled_from(sorted(KNOWN)), max_size=8),
    st.booleans(),
)
def test_any_of_them_together_are_taken(row: str, paths: set[str], more: set[str], is_marked: bool) -> None:
    """As agents send them: many at once."""
    body, betas = example(paths)
    if is_marked:
        body["cache_control"] = {"type": "ephemeral", "scope": "global"}
    refused = refusal(VENDORS[row], body, [*betas, *more])

    assert refused is None, refused.body


@pytest.mark.parametrize("row", ["bedrock", "vertex", "bedrock-mantle"])
def test_counts_are_fitted_as_requests_are(row: str) -> None:
    """C7: `count_tokens` has the same body."""
    body, betas = example({"messages.system", "speed", "tools.defer_loading"})
    del body["max_tokens"]
    request, _ = went_up(row, body, betas, ApiKind.COUNT_MESSAGES)

    assert VENDORS[row].refuse(request) is None


@pytest.mark.parametrize("row", ["vertex", "bedrock-mantle", "foundry"])
def test_what_was_left_out_of_a_request_as_sent_is_told(row: str) -> None:
    """N8: in x-velox-dropped, as of a translated one."""
    _, attempt = went_up(row, {**ASKED, "speed": "fast"}, ["fast-mode-2026-02-01"])

    assert attempt.left_out == ("speed", "anthropic-beta")


def test_claude_code_as_it_is_passes_each_cloud() -> None:
    """C6 to C8: its default betas, and all that it sends for current models."""
    betas = [
        *("claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"),
        *("prompt-caching-scope-2026-01-05", "mid-conversation-system-2026-04-07", "effort-2025-11-24"),
        "advanced-tool-use-2025-11-20",
    ]
    mark = {"type": "ephemeral", "scope": "global", "ttl": "1h"}
    body = {
        **ASKED,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1;"},
            {"type": "text", "text": "You are Claude Code", "cache_control": mark},
        ],
        "tools": [{**TOOL, "eager_input_streaming": True, "defer_loading": True, "cache_control": mark}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_1"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": mark}]},
            {"role": "system", "content": "<system-reminder>"},
        ],
    }
    for row, vendor in VENDORS.items():
        refused = vendor.refuse(went_up(row, body, betas)[0])
        assert refused is None, (row, refused)


@pytest.mark.parametrize("row", ["anthropic", "bedrock", "vertex"])
@pytest.mark.parametrize("named", ["claude-opus-4-8", "anthropic.claude-haiku-4-5"])
def test_thinking_of_a_model_that_the_client_did_not_name_is_its_own(row: str, named: str) -> None:
    """K1: a route gives Claude Code's newest model to an older one, which knows budgets alone."""
    model = "anthropic.claude-haiku-4-5"
    adapter = ProviderAdapter(dialect_table(), PROVIDERS[row], PARAMETERS, lambda name: facts_of(PROVIDERS[row], name))
    call = adapter.target_call(ApiKind.MESSAGES, model, stream=False, query=b"")
    assert call is not None
    body = {**ASKED, "model": named, "max_tokens": 8000, "thinking": {"type": "adaptive"}}
    request = client_request_of(ApiKind.MESSAGES, RequestHead.of(b"POST", b"/v1/messages"), model)._replace(
        fields=BodyFields(named), body=json.dumps(body).encode()
    )
    sent = prepared(adapter, call, request, row).request

    kind = json.loads(sent.body or b"")["thinking"]["type"]
    assert kind == ("adaptive" if named == model else "enabled")


def test_fields_without_which_there_is_nothing_to_test_are_in_the_table() -> None:
    """Each field of the table has an example, and each beta of an example is one that Anthropic knows."""
    assert set(EXAMPLES) == set(BETAS) | {"inference_geo", "tools.bash"}
    assert {beta for betas in BETAS.values() for beta in betas} <= KNOWN


ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123"


@pytest.mark.parametrize("client_api", [ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES])
def test_arn_with_a_family_is_asked_as_that_model(client_api: ApiKind) -> None:
    """C22: by invoke, with marks and thinking; counted by the model's own id, as AWS counts for no profile."""
    rule = ModelRule((ARN.lower(),), (("family", "anthropic.claude-sonnet-4-5-20250929-v1:0"),))
    row = PROVIDERS["bedrock"]
    adapter = ProviderAdapter(dialect_table(), row, PARAMETERS, lambda model: facts_of(row, model, [rule]))
    call = adapter.target_call(client_api, ARN, stream=False, query=b"")
    assert call is not None
    path = call.target.decode()
    if client_api is ApiKind.COUNT_MESSAGES:
        assert path == "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens"
        return
    assert path == f"/model/{quote(ARN, safe='')}/invoke"

    mark = {"type": "ephemeral"}
    body = {
        **ASKED,
        "system": [{"type": "text", "text": "You", "cache_control": mark}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    request = client_request_of(client_api, RequestHead.of(b"POST", b"/v1/messages"), ARN)._replace(
        body=json.dumps(body).encode()
    )
    sent = prepared(adapter, call, request, "bedrock").request
    assert json.loads(sent.body or b"") == {
        **{name: value for name, value in body.items() if name != "model"},
        "anthropic_version": "bedrock-2023-05-31",
    }
