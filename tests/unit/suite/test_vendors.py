"""The strict fakes refuse what the vendors refuse, in the vendors' words, and answer the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vendors import anthropic, bedrock, vertex
from tests.vendors.vendor import Reply, Vendor, VendorRequest

ASKED: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
EAGER = {"tools": [{**TOOL, "eager_input_streaming": True}]}
DEFERRED = {"tools": [{**TOOL, "defer_loading": True}]}


def asked(vendor: Vendor, body: dict[str, Any], *betas: str) -> VendorRequest:
    """Return a request in the vendor's wire wrapper."""
    whole = {**ASKED, **body}
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    if betas and vendor.row != "bedrock":
        headers["anthropic-beta"] = ",".join(betas)
    if vendor.row == "anthropic":
        path, whole = "/v1/messages", {"model": "claude-opus-4-8", **whole}
    elif vendor.row == "bedrock":
        path = "/model/anthropic.claude-opus-4-8/invoke"
        whole["anthropic_version"] = "bedrock-2023-05-31"
        if betas:
            whole["anthropic_beta"] = list(betas)
    else:
        path = "/v1/projects/p/locations/global/publishers/anthropic/models/claude-opus-4-8:rawPredict"
        whole["anthropic_version"] = "vertex-2023-10-16"
    return VendorRequest("POST", path, json.dumps(whole).encode(), headers)


@pytest.mark.parametrize("vendor", [anthropic.VENDOR, bedrock.VENDOR, vertex.VENDOR], ids=lambda vendor: vendor.row)
def test_usual_request_is_answered(vendor: Vendor) -> None:
    request = asked(vendor, {"tools": [TOOL], "system": "Be brief"})

    assert vendor.refuse(request) is None
    reply = vendor.answer(request)
    assert reply.status == 200 and json.loads(reply.body)["content"] == [{"type": "text", "text": "Hello!"}]


@pytest.mark.parametrize(
    ("vendor", "body", "betas", "said"),
    [
        (bedrock.VENDOR, EAGER, (), "tools.0.custom.eager_input_streaming: Extra inputs are not permitted"),
        (vertex.VENDOR, EAGER, (), "tools.0.custom.eager_input_streaming: Extra inputs are not permitted"),
        (bedrock.VENDOR, DEFERRED, (), "tools.0.custom.defer_loading: Extra inputs are not permitted"),
        (vertex.VENDOR, {"cache_control": {"type": "ephemeral"}}, (), "cache_control: Extra inputs are not permitted"),
        (vertex.VENDOR, {"speed": "fast"}, (), "speed: Extra inputs are not permitted"),
        (bedrock.VENDOR, {}, ("oauth-2025-04-20",), "invalid beta flag"),
        (vertex.VENDOR, {}, ("oauth-2025-04-20",), "Unexpected value(s) `oauth-2025-04-20`"),
        (anthropic.VENDOR, {}, ("nothing-2026-01-01",), "Unexpected value(s) `nothing-2026-01-01`"),
        (anthropic.VENDOR, {"thread": {"type": "create"}}, (), "thread: Extra inputs are not permitted"),
        (
            bedrock.VENDOR,
            {"messages": [{"role": "system", "content": "note"}]},
            (),
            "messages.0: role 'system' is not supported on this model",
        ),
        (
            anthropic.VENDOR,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}] * 5}]},
            (),
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
    ],
)
def test_refusals_are_the_vendors(vendor: Vendor, body: dict[str, Any], betas: tuple[str, ...], said: str) -> None:
    refused = vendor.refuse(asked(vendor, body, *betas))

    assert refused is not None and refused.status == 400
    assert said in message_of(refused)


@pytest.mark.parametrize(
    ("vendor", "body", "betas"),
    [
        (anthropic.VENDOR, EAGER, ()),
        (anthropic.VENDOR, {"thread": {"type": "create"}}, ("message-threads-2026-08-12",)),
        (bedrock.VENDOR, {"tools": [TOOL]}, ("fine-grained-tool-streaming-2025-05-14",)),
        (bedrock.VENDOR, DEFERRED, ("tool-search-tool-2025-10-19",)),
        (vertex.VENDOR, DEFERRED, ("tool-search-tool-2025-10-19",)),
    ],
)
def test_what_a_vendor_has_is_taken(vendor: Vendor, body: dict[str, Any], betas: tuple[str, ...]) -> None:
    assert vendor.refuse(asked(vendor, body, *betas)) is None


def message_of(reply: Reply) -> str:
    """Return what a refusal says, in either shape."""
    said = json.loads(reply.body)
    return str(said["message"] if "message" in said else said["error"]["message"])
