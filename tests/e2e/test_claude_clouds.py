"""Claude at other places than Anthropic, with real SDKs, against fakes that are as strict as the vendors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.untrusting import NO_TRUST
from tests.vendors import anthropic as anthropics
from tests.vendors import bedrock, mantle
from tests.vendors.vendor import playing

MODEL = "anthropic.claude-opus-4-8"
URL = "https://example.com/a.png"


@pytest.fixture(scope="module")
def fakes() -> Iterator[dict[str, RecordingUpstream]]:
    """One server for each vendor, and one with OpenAI's API."""
    with contextlib.ExitStack() as running:
        vendors = {"aws": bedrock.VENDOR, "mantle": mantle.VENDOR, "claude": anthropics.VENDOR}
        found = {
            name: running.enter_context(RecordingUpstream(script=playing(vendor))) for name, vendor in vendors.items()
        }
        found["gpt"] = running.enter_context(RecordingUpstream())
        yield found


@pytest.fixture(scope="module")
def velox(fakes: dict[str, RecordingUpstream]) -> Iterator[VeloxProcess]:
    """A gateway with a route to each of them, and one that falls back from a cloud to Anthropic."""
    aws = {"region": "eu-west-1", "key": "env:AWS_KEY"}
    config = {
        "upstreams": [
            {"name": "aws", "provider": "bedrock", "origin": fakes["aws"].upstream.url, **aws},
            {"name": "mantle", "provider": "bedrock-mantle", "origin": fakes["mantle"].upstream.url, **aws},
            {
                "name": "claude",
                "provider": "anthropic",
                "origin": fakes["claude"].upstream.url,
                "key": "env:CLAUDE_KEY",
            },
            {"name": "gpt", "provider": "vllm", "origin": fakes["gpt"].upstream.url},
        ],
        "routes": [
            {
                "name": name,
                "match": {"models": [name]},
                "to": {"upstream": name, "model": MODEL if name != "gpt" else "gpt-4o"},
            }
            for name in ("aws", "mantle", "gpt")
        ]
        + [
            {
                "name": "both",
                "match": {"models": ["both"]},
                "to": {"upstream": "mantle", "model": MODEL},
                "fallback": [{"upstream": "claude", "model": "claude-opus-4-8"}],
            }
        ],
    }
    with routed(config, AWS_KEY="aws-key-0123456789", CLAUDE_KEY="sk-ant-0123456789") as running:
        yield running


@pytest.fixture
def client(velox: VeloxProcess) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK, pointed at the gateway."""
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=velox.base_url, api_key="k", max_retries=0, http_client=http) as made:
        yield made


@pytest.mark.parametrize("name", ["aws", "mantle", "gpt"])
def test_tool_runner_goes_on_without_a_thread(
    client: anthropic.Anthropic, fakes: dict[str, RecordingUpstream], name: str
) -> None:
    """RC5: it makes a thread by default, and reads in `error.details` that there are none: clouds and other models."""

    @anthropic.beta_tool
    def look(city: str) -> str:
        """Look at a city."""
        return city

    fakes[name].forget()
    runner = client.beta.messages.tool_runner(
        model=name, max_tokens=99, tools=[look], messages=[{"role": "user", "content": "Hi"}]
    )
    final = runner.until_done()

    assert final.content[0].type == "text" and final.content[0].text
    (call,) = fakes[name].calls
    assert "thread" not in json.loads(call.body)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_cloud_has_not_is_told_with_the_reply(
    velox: VeloxProcess, fakes: dict[str, RecordingUpstream], stream: bool
) -> None:
    """N8, C6 to C8: named alike where the body passes as sent, and where it is put into an wire wrapper."""
    body: dict[str, Any] = {
        "max_tokens": 9,
        "stream": stream,
        "speed": "fast",
        "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "look", "input_schema": {"type": "object"}, "eager_input_streaming": True}],
        "messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "note"}],
    }
    betas = {"anthropic-beta": "fast-mode-2026-02-01,mid-conversation-system-2026-04-07"}
    for name in ("aws", "mantle"):
        reply = velox.request("POST", "/v1/messages", json.dumps({"model": name, **body}).encode(), betas)

        assert (reply.status, reply.header("x-velox-dropped")) == (200, "speed,anthropic-beta"), reply.body
        assert b"Hello!" in reply.body


def test_url_that_a_cloud_does_not_read_goes_to_the_next_target(
    velox: VeloxProcess, fakes: dict[str, RecordingUpstream]
) -> None:
    """C46, W7: from Chat and from Messages; the cloud is not asked. Without another target: a 400 with the field."""
    image = {"type": "image", "source": {"type": "url", "url": URL}}
    asked = {"max_tokens": 9, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]}
    fakes["mantle"].forget()
    reply = velox.request("POST", "/v1/messages", json.dumps({"model": "both", **asked}).encode(), {})
    assert (reply.status, reply.header("x-velox-tried")) == (200, "mantle=bad_request"), reply.body

    raw = velox.openai().chat.completions.with_raw_response.create(
        model="both",
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}],
    )
    assert raw.headers["x-velox-tried"] == "mantle=bad_request"
    assert fakes["mantle"].calls == []

    alone = velox.request("POST", "/v1/messages", json.dumps({"model": "mantle", **asked}).encode(), {})
    assert alone.status == 400
    assert json.loads(alone.body)["error"]["param"] == "messages[0].content[0].source"
