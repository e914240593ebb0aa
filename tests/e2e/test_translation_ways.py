"""A translation with what else a request may have: a client of HTTP/2, hedging, a token limit, a mirror."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import MESSAGES, routed
from tests.e2e.test_claude import PLAIN, STREAM
from tests.e2e.test_translation import replays
from tests.untrusting import NO_TRUST


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway that asks Claude twice, copies each request, and counts tokens."""
    claude = {"provider": "anthropic", "origin": upstream.upstream.url, "key": "env:CLAUDE_KEY"}
    config = {
        "upstreams": [{"name": name, **claude} for name in ("one", "two", "copy")],
        "routes": [
            {
                "name": "all",
                "to": ["one", "two"],
                "hedge": {"after": "1ms", "at_most": "100%"},
                "mirror": {"to": "copy", "percent": "100%"},
            }
        ],
    }
    more = {"VELOX_LISTEN_HTTP2": "on", "VELOX_RATE_LIMIT_TPM": "1000000"}
    with routed(config, CLAUDE_KEY="sk-ant-0123456789", **more) as running:
        upstream.forget()
        yield running


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("http2", [False, True])
def test_answer_is_whole_and_counted(
    velox: VeloxProcess, upstream: RecordingUpstream, is_stream: bool, http2: bool
) -> None:
    """Each attempt and the copy are asked in their API; the client gets one answer; the usage is the upstream's."""
    body = {"model": "claude-x", "messages": MESSAGES, "stream": is_stream}
    name = 'velox_tokens_total{kind="output"}'
    before = velox.metrics()[name]
    with (
        upstream.playing(replays(PLAIN, STREAM)),
        httpx.Client(verify=NO_TRUST, http2=http2, http1=not http2, trust_env=False) as client,
    ):
        replies = [client.post(f"{velox.base_url}/v1/chat/completions", json=body) for _ in range(4)]
        velox.wait_metric(name, lambda n: n > before)

    for reply in replies:
        assert (reply.status_code, reply.http_version) == (200, "HTTP/2" if http2 else "HTTP/1.1")
        end = b"data: [DONE]\n\n" if is_stream else b"}"
        assert reply.content.endswith(end) and b'"chat.completion' in reply.content
        assert b'"usage":{' not in reply.content or not is_stream  # nobody asked for it
    assert {call.target for call in upstream.calls} <= {"/v1/messages"}


def test_copy_of_a_large_request_is_asked_in_its_api(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """It is put into that in the worker's thread, as the request itself is."""
    text = "word" * 80_000
    body = {"model": "claude-x", "messages": [{"role": "user", "content": text}]}
    name = 'velox_mirrored_requests_total{outcome="answered"}'
    before = velox.metrics()[name]
    with upstream.playing(replays(PLAIN, STREAM)):
        reply = httpx.post(f"{velox.base_url}/v1/chat/completions", json=body, verify=NO_TRUST, trust_env=False)
        velox.wait_metric(name, lambda n: n == before + 1)

    assert reply.status_code == 200
    asked = [call for call in upstream.calls if text.encode() in call.body]
    assert len(asked) >= 2 and {call.target for call in asked} == {"/v1/messages"}
