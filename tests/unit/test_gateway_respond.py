"""Velox's own answers."""

from __future__ import annotations

import json

import pytest

from velox.errors import Reason, VeloxError, error_type
from velox.gateway.rate_headers import duration_text
from velox.gateway.respond import error_reply


def parse(reply: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_one_code_in_body_and_header(reason: Reason) -> None:
    """The reason stands in x-velox-reason and error.code; the type goes with the status."""
    status, headers, body = parse(error_reply(VeloxError(reason, "what was wrong"), b"vx-1", close=False))

    error = json.loads(body)["error"]
    assert status == reason.fact.status
    assert headers["x-velox-reason"] == error["code"] == reason.code
    assert error["type"] == error_type(status)
    assert error["message"] == "what was wrong"
    assert headers["x-request-id"] == headers["x-velox-request-id"] == "vx-1"
    assert int(headers["content-length"]) == len(body)


def test_should_retry_is_said_where_it_is_known() -> None:
    """R-RETRY-4: true where no work was done, false where it may have been, silent where the SDK decides."""
    values = {}
    for reason in (Reason.QUEUE_FULL, Reason.UPSTREAM_TTFB_TIMEOUT, Reason.RATE_LIMITED):
        _, headers, _ = parse(error_reply(VeloxError(reason, "x"), b"i", close=False))
        values[reason] = headers.get("x-should-retry")

    assert values == {
        Reason.QUEUE_FULL: "true",
        Reason.UPSTREAM_TTFB_TIMEOUT: "false",
        Reason.RATE_LIMITED: None,
    }


@pytest.mark.parametrize(
    ("seconds", "header", "ms"),
    [(0.0001, "1", "1"), (0.25, "1", "250"), (1.0, "1", "1000"), (1.2341, "2", "1235")],
)
def test_retry_after_is_never_too_early(seconds: float, header: str, ms: str) -> None:
    """Retry-After is whole seconds, retry-after-ms whole milliseconds, both rounded up."""
    error = VeloxError(Reason.RATE_LIMITED, "x", retry_after_s=seconds)

    _, headers, _ = parse(error_reply(error, b"i", close=False))

    assert (headers["retry-after"], headers["retry-after-ms"]) == (header, ms)


def test_answer_to_head_has_no_body() -> None:
    """RFC 9110 §9.3.2: the length is announced, the body is not sent."""
    reply = error_reply(VeloxError(Reason.UNKNOWN_ROUTE, "x"), b"i", close=True, with_body=False)

    _, headers, body = parse(reply)
    assert body == b""
    assert int(headers["content-length"]) > 0
    assert headers["connection"] == "close"


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
