"""Errors of servers with OpenAI's API that name them in their own way."""

from __future__ import annotations

import json

import pytest

from velox.dialects.canonical.model import ErrorKind
from velox.dialects.openai_errors import api_error, error_json, read_error

# As llama.cpp writes it: the status as `code`, the name as `type`.
TOO_LONG = {
    "code": 400,
    "message": "request (4052 tokens) exceeds ...",
    "type": "exceed_context_size_error",
    "n_ctx": 1024,
}


@pytest.mark.parametrize("names", [TOO_LONG, {"message": "m", "code": "exceed_context_size_error"}])
def test_context_overflow_has_the_code_that_agents_look_for(names: dict[str, object]) -> None:
    error = read_error(400, json.dumps({"error": names}).encode())

    assert (error.kind, error.code) == (ErrorKind.INVALID, "context_length_exceeded")
    assert json.loads(error_json(error))["error"]["code"] == "context_length_exceeded"


def test_context_overflow_in_a_stream() -> None:
    error = api_error(json.dumps({"message": "m", "type": "exceed_context_size_error"}).encode())

    assert (error.status, error.code) == (400, "context_length_exceeded")


def test_other_names_stay() -> None:
    assert read_error(400, b'{"error":{"message":"m","code":"tool_use_failed"}}').code == "tool_use_failed"
    assert read_error(500, b'{"error":{"code":500,"message":"m","type":"server_error"}}').code is None
