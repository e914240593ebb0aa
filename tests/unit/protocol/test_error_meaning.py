"""Which 404s of providers say that they don't have the model."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from velox.protocol.error_meaning import lacks_field, names_no_model, plain_body, refuses_reasoning

MISSING = [
    {"error": {"message": "The model `m` does not exist or you do not have access to it.", "code": "model_not_found"}},
    {"error": {"message": "no words that are known", "type": "invalid_request_error", "code": "model_not_found"}},
    {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}},
    {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-x"}},
    {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404},
    {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "param": None, "code": 404}},
    {"error": {"message": 'model "m" not found, try pulling it first', "type": "not_found_error", "code": None}},
    {"error": "model 'm' not found"},
    [{"error": {"code": 404, "message": "models/m is not found for API version v1main", "status": "NOT_FOUND"}}],
    {"error": {"message": "Model not found, inaccessible, and/or not deployed", "code": "NOT_FOUND"}},
    {"error": {"message": "no upstream here serves this model", "code": "unknown_model"}},
]
OTHERS = [
    {"error": {"message": "No such File object: file-abc", "param": "id", "code": None}},
    {"error": {"message": "Response with id 'resp_1' not found.", "code": None}},
    {"error": {"message": "The model is overloaded", "code": None}},
    {"detail": "Not Found"},
    {"error": {"message": ["model not found"], "code": ["model_not_found"]}},
    {"error": None},
    {"error": []},
    [],
    "model not found",
    404,
    None,
]


@pytest.mark.parametrize("document", MISSING, ids=str)
def test_missing_model_is_known_in_each_form(document: object) -> None:
    """As providers and servers send it."""
    assert names_no_model(json.dumps(document).encode())


@pytest.mark.parametrize("document", OTHERS, ids=str)
def test_other_errors_are_none(document: object) -> None:
    """Something else is missing, or the body has another form."""
    assert not names_no_model(json.dumps(document).encode())


@pytest.mark.parametrize("body", [b"", b"model not found", b"{", b"\xff", b"<html>404 model not found</html>"])
def test_what_is_no_json_says_nothing(body: bytes) -> None:
    """A proxy's page, or a body that was cut."""
    assert not names_no_model(body)


@pytest.mark.slow
def test_compressed_body_is_read() -> None:
    """As SDKs ask for it; a coding that is not known leaves nothing to read. A wrong label is none."""
    body = b'{"error":{"code":"model_not_found"}}'
    assert plain_body([(b"content-encoding", b"gzip")], gzip.compress(body)) == body
    assert plain_body([(b"content-encoding", b"Deflate")], zlib.compress(body)) == body
    assert plain_body([(b"content-encoding", b"identity")], body) == body
    assert plain_body([], body) == body
    assert plain_body([(b"content-encoding", b"br")], b"\x8b\x0f\x80" + body) == b""
    assert plain_body([(b"content-encoding", b"gzip")], gzip.compress(body)[:1] + body) == b""
    assert plain_body([(b"content-encoding", b"gzip")], body) == body
    assert plain_body([], gzip.compress(body)) == body
    bomb = zlib.compress(b"x" * 50_000_000)
    assert len(plain_body([(b"content-encoding", b"deflate")], bomb)) <= 64 * 1024


REASONING = [
    "The encrypted content gAAA...DQ== could not be verified.",
    "The encrypted content for item rs_0a could not be verified. Reason: Encrypted content could not be decrypted.",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.3.content.0: Invalid `data` in `redacted_thinking` block",
    "Corrupted thought signature.",
    "Invalid thought signature.",
    "Unable to submit request because Thought signature is not valid.. Learn more: https://cloud.google.com/",
]
LACKING = [
    "tools.0.custom.eager_input_streaming: Extra inputs are not permitted",
    "Failed to deserialize the JSON body into the target type: tools[0].type: unknown variant `custom`",
    "Unrecognized request argument supplied: verbosity",
    "Unsupported parameter: 'reasoning_effort'",
    "Unknown parameter: 'input[1].namespace'.",
    'Invalid JSON payload received. Unknown name "store": Cannot find field.',
    "input tool type 'custom' is not supported",
]


@pytest.mark.parametrize(
    ("text", "is_reasoning"), [*((each, True) for each in REASONING), *((each, False) for each in LACKING)]
)
def test_what_a_server_lacks_is_told_from_reasoning_that_it_did_not_make(text: str, is_reasoning: bool) -> None:
    """C1, C28, C29: in the words of each vendor."""
    body = json.dumps({"error": {"message": text}}).encode()
    assert (refuses_reasoning(body), lacks_field(body)) == (is_reasoning, not is_reasoning)


@pytest.mark.parametrize("text", ["messages: at least one message is required", "max_tokens must be positive", ""])
def test_errors_about_the_request_itself_are_neither(text: str) -> None:
    body = json.dumps({"error": {"message": text}}).encode()
    assert not refuses_reasoning(body) and not lacks_field(body)
    assert not refuses_reasoning(b"x") and lacks_field(b'{"detail":[{"msg":"Extra inputs are not permitted"}]}')
