"""A large reply, or a large event of a stream, that is put into another API: those of others go on meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_large_translations import CHAT, FIELDS, PLAIN, waits
from tests.untrusting import NO_TRUST

MIB = 1 << 20
TEXT = b'{"candidates":[{"content":{"role":"model","parts":[%b]},"finishReason":"STOP"}],"usageMetadata":%b}'
USAGE = b'{"promptTokenCount":3,"candidatesTokenCount":7,"totalTokenCount":10}'
LARGE = {
    "letters": TEXT % (b'{"text":"%b"}' % (b"a" * (50 * MIB)), USAGE),
    "blanks": TEXT % (b'{"text":"%b"}' % (b" " * (10 * MIB)), USAGE),
    "halves": TEXT % (b'{"text":"%b"}' % ((b"a" * 1000 + rb"\ud83d") * 9_000), USAGE),
    "parts": TEXT % (b",".join([b'{"text":"a"}'] * 60_000), USAGE),
}

STILL_MS = 600.0  # in one step of the loop, the parts as one event held a worker for twice as long
# All but an event of letters: it would be over its bound.
MORE = [(name, stream) for name in LARGE for stream in (False, True) if (name, stream) != ("letters", True)]


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """One worker with two Gemini upstreams, the first of which answers with what a model's name says."""
    with (
        RecordingUpstream(script=answer_much) as gemini,
        RecordingUpstream(script=answer_little) as other,
        RecordingUpstream(script=answer_chat) as chat,
    ):
        key = {"provider": "gemini", "key": "env:GEMINI_KEY"}
        config = {
            "upstreams": [
                {"name": "much", "origin": gemini.upstream.url, **key},
                {"name": "little", "origin": other.upstream.url, **key},
                {"name": "openai", "provider": "openai", "origin": chat.upstream.url, "key": "env:OTHER_KEY"},
            ],
            "routes": [
                {"name": "gpt", "match": {"models": ["gpt-*"]}, "to": "openai"},
                {"name": "rest", "to": "much", "fallback": "little"},
            ],
        }
        with routed(config, GEMINI_KEY="gk-0123456789", OTHER_KEY="sk-other-0123") as running:
            yield running


async def answer_much(call: Call) -> None:
    name = call.target.rpartition("/")[2].partition(":")[0]
    if name == "too-many":
        await call.reply(200, JSON, TEXT % (b",".join([b'{"text":"a"}'] * 300_000), USAGE))
        return
    large = LARGE[name]
    if ":streamGenerateContent" not in call.target:
        await call.reply(200, JSON, large)
        return
    await call.head(200, SSE)
    await call.data(b"data: %b\n\n" % (TEXT % (b'{"text":"begin"}', USAGE)).replace(b',"finishReason":"STOP"', b""))
    await call.data(b"data: %b\n\n" % large)
    await call.end()


async def answer_little(call: Call) -> None:
    await call.reply(200, JSON, PLAIN.reply)


async def answer_chat(call: Call) -> None:
    await call.reply(200, JSON, CHAT.reply)


def ask(velox: VeloxProcess, model: str, *, stream: bool = False) -> httpx.Response:
    asked = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    return httpx.post(
        f"{velox.base_url}/v1/chat/completions", content=json.dumps(asked), headers=FIELDS, timeout=60, verify=NO_TRUST
    )


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("parts", True),
        *(pytest.param(name, stream, marks=pytest.mark.more) for name, stream in MORE),
    ],
)
def test_others_have_their_turns(velox: VeloxProcess, name: str, stream: bool) -> None:
    """X7: it is translated in a thread, and goes to the client in pieces: no small request waits for all of it."""
    found, answers = waits(velox, lambda: ask(velox, name, stream=stream))

    assert answers[0].status_code == 200, answers[0].text[:500]
    text = answers[0].content
    assert b'"finish_reason":"stop"' in text.replace(b": ", b":")[-2000:]
    assert len(found) > 3 and found[-1] < STILL_MS
    print(f"{name}: {len(found)} small requests meanwhile, the longest took {found[-1]:.0f} ms", end="; ")
    print(f"{len(text):,} bytes")


def test_reply_of_too_many_values_is_another_upstream_s(velox: VeloxProcess) -> None:
    """X7: nothing has gone to the client: the next one of the route is asked."""
    answer = ask(velox, "too-many")

    assert answer.status_code == 200
    assert answer.headers["x-velox-upstream"] == "little"
    assert answer.headers["x-velox-tried"] == "much=upstream_protocol"
