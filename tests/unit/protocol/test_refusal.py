"""What providers' errors say of a request that another model could answer."""

from __future__ import annotations

import json

import pytest

from velox.outcomes import Refusal
from velox.protocol.error_meaning import REFUSING, refusal_of

LONG, FILTERED = Refusal.CONTEXT_LENGTH, Refusal.CONTENT_FILTER


def error(message: str = "no", **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **more}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (400, error(code="context_length_exceeded"), LONG),
        (413, error(code="context_length_exceeded"), LONG),
        (400, error(code="content_policy_violation"), FILTERED),
        (400, error(code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}), FILTERED),
        (400, error(innererror={"code": "ResponsibleAIPolicyViolation"}), FILTERED),
        (400, error(code="moderation_blocked"), FILTERED),
        # vLLM, before and after 0.10
        (400, error("This model's maximum context length is 8192 tokens. However, you requested 9000", code=400), LONG),
        (
            400,
            b'{"object":"error","message":"This model\'s maximum context length is 8192 tokens.","code":400}',
            LONG,
        ),
        # SGLang, Anthropic, Gemini, Mistral, Bedrock, llama.cpp
        (400, error("The decoder prompt (length 9000) is longer than the maximum model length of 8192."), LONG),
        (400, error("This model's maximum prompt length is 8192 but the request contains 9000 tokens."), LONG),
        (400, error("too many tokens: total number of tokens in the prompt cannot exceed 8192"), LONG),
        (400, error("The input (9000 tokens) is longer than the model's context length (8192 tokens)."), LONG),
        (400, b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2 > 1"}}', LONG),
        (
            400,
            b'[{"error":{"code":400,"message":"The input token count (2) exceeds the maximum number of tokens'
            b' allowed (1).","status":"INVALID_ARGUMENT"}}]',
            LONG,
        ),
        (400, error("Prompt contains 9 tokens, too large for model with 8 maximum context length"), LONG),
        (400, error("Input is too long for requested model."), LONG),
        (400, error("the request exceeds the available context size", type="exceed_context_size_error"), LONG),
        (422, b'{"detail":"prompt is too long"}', LONG),
        (400, b'{"error":"prompt is too long"}', LONG),
        # What is none of these, or can't be read.
        (400, error("max_tokens is too large", code="invalid_value"), None),
        (400, error(code=None), None),
        (400, error(code=["context_length_exceeded"]), None),
        (500, error(code="context_length_exceeded"), None),
        (404, error(code="context_length_exceeded"), None),
        *((400, body, None) for body in (b"", b"no", b"[]", b"[1]", b"1", b"null", b'{"error":1}', b'{"error":null}')),
    ],
)
def test_refusal_is_found_as_each_provider_writes_it(status: int, body: bytes, wanted: Refusal | None) -> None:
    """S12, S13."""
    assert (refusal_of(body) if status in REFUSING else None) is wanted
