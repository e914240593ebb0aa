"""Which 404s of providers say that they don't have the model."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from velox.protocol.error_meaning import names_no_model, plain_body

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
    """As SDKs ask for it; a coding that is not known leaves nothing to read."""
    body = b'{"error":{"code":"model_not_found"}}'
    assert plain_body([(b"content-encoding", b"gzip")], gzip.compress(body)) == body
    assert plain_body([(b"content-encoding", b"Deflate")], zlib.compress(body)) == body
    assert plain_body([(b"content-encoding", b"identity")], body) == body
    assert plain_body([], body) == body
    assert plain_body([(b"content-encoding", b"br")], body) == b""
    assert plain_body([(b"content-encoding", b"gzip")], body) == b""
    bomb = zlib.compress(b"x" * 50_000_000)
    assert len(plain_body([(b"content-encoding", b"deflate")], bomb)) <= 64 * 1024
