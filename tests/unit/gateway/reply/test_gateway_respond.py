"""Velox's own answers."""

from __future__ import annotations

import json

import pytest

from velox.errors import Reason, VeloxError, error_type
from velox.gateway.reply.headers import duration_text
from velox.gateway.reply.respond import error_body, error_reply
from velox.types import Dialect


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_one_code_in_body_and_header(reason: Reason) -> None:
    """The reason stands in x-velox-reason and error.code; the type goes with the status."""
    headers, body = error_reply(VeloxError(reason, "what was wrong"), b"vx-1")

    error, fields = json.loads(body)["error"], dict(headers)
    assert fields[b"x-velox-reason"].decode() == error["code"] == reason.code
    assert error["type"] == error_type(reason.fact.status)
    assert error["message"] == "what was wrong"
    assert fields[b"x-request-id"] == fields[b"x-velox-request-id"] == b"vx-1"
    assert fields[b"content-type"] == b"application/json"


def test_should_retry_is_said_where_it_is_known() -> None:
    """True where no work was done, false where it may have been, silent where the SDK decides."""
    values = {}
    for reason in (Reason.QUEUE_FULL, Reason.UPSTREAM_TTFB_TIMEOUT, Reason.RATE_LIMITED):
        headers, _ = error_reply(VeloxError(reason, "x"), b"i")
        values[reason] = dict(headers).get(b"x-should-retry")

    assert values == {
        Reason.QUEUE_FULL: b"true",
        Reason.UPSTREAM_TTFB_TIMEOUT: b"false",
        Reason.RATE_LIMITED: None,
    }


@pytest.mark.parametrize(
    ("seconds", "header", "ms"),
    [(0.0001, b"1", b"1"), (0.25, b"1", b"250"), (1.0, b"1", b"1000"), (1.2341, b"2", b"1235")],
)
def test_retry_after_is_never_too_early(seconds: float, header: bytes, ms: bytes) -> None:
    """Retry-After is whole seconds, retry-after-ms whole milliseconds, both rounded up."""
    error = VeloxError(Reason.RATE_LIMITED, "x", retry_after_s=seconds)

    fields = dict(error_reply(error, b"i")[0])

    assert (fields[b"retry-after"], fields[b"retry-after-ms"]) == (header, ms)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, b"0ms"),
        (1, b"1ms"),
        (120_000_000, b"120ms"),
        (1_000_000_000, b"1s"),
        (3_500_000_000, b"3.5s"),
        (360_000_000_000, b"6m0s"),
        (61_000_000_000, b"1m1s"),
    ],
)
def test_duration_is_written_as_openai_writes_it(ns: int, text: bytes) -> None:
    """x-ratelimit-reset-requests: 120ms, 3.5s, 6m0s."""
    assert duration_text(ns) == text


def test_clients_of_gemini_learn_which_field_is_wrong_and_when_to_come_back() -> None:
    """Their shape has no such fields: Google's own servers say both in details, and Gemini CLI reads the wait there."""
    wrong = VeloxError(Reason.BAD_REQUEST, "no", param="generationConfig.candidateCount")
    busy = VeloxError(Reason.RATE_LIMITED, "later", retry_after_s=2.5)

    said = [json.loads(error_body(error, Dialect.GOOGLE))["error"]["details"] for error in (wrong, busy)]

    rpc = "type.googleapis.com/google.rpc."
    violation = {"field": "generationConfig.candidateCount", "description": "no"}
    assert said[0][1:] == [{"@type": f"{rpc}BadRequest", "fieldViolations": [violation]}]
    assert said[1][1:] == [{"@type": f"{rpc}RetryInfo", "retryDelay": "2.500s"}]
    assert [details[0]["reason"] for details in said] == ["BAD_REQUEST", "RATE_LIMITED"]
