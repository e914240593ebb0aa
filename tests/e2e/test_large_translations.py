"""A large request that is put into another API: those of others go on meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import routed
from tests.recorded import recorded
from tests.untrusting import NO_TRUST

PLAIN = next(e for e in recorded("gemini", ":generateContent", stream=False) if "text" in e.reply.decode())
CHAT = next(e for e in recorded("openai", "/chat/completions", stream=False) if b'"tool_calls"' not in e.reply)
FIELDS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
SMALL = b'{"model":"gpt-4o","messages":[{"role":"user","content":"Hi"}]}'


def blocks(n: int) -> bytes:
    text = b'{"type":"text","text":"a"},' * n
    return b'{"model":"gemini-x","messages":[{"role":"user","content":[%b{"type":"text","text":"a"}]}]}' % text


def content(text: bytes, n_bytes: int) -> bytes:
    text *= n_bytes // len(text)
    return b'{"model":"gemini-x","messages":[{"role":"user","content":"%b"}]}' % text


def picture(text: bytes, n_bytes: int) -> bytes:
    url = b"data:image/png;base64," + text * (n_bytes // len(text))
    part = b'{"type":"image_url","image_url":{"url":"%b"}}' % url
    return b'{"model":"gemini-x","messages":[{"role":"user","content":[%b]}]}' % part


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """One worker with a Gemini upstream, and one with OpenAI's API."""
    with RecordingUpstream(script=answer_gemini) as gemini, RecordingUpstream(script=answer_chat) as other:
        config = {
            "upstreams": [
                {"name": "gemini", "provider": "gemini", "origin": gemini.upstream.url, "key": "env:GEMINI_KEY"},
                {"name": "openai", "provider": "openai", "origin": other.upstream.url, "key": "env:OTHER_KEY"},
            ],
            "routes": [
                {"name": "gpt", "match": {"models": ["gpt-*"]}, "to": "openai"},
                {"name": "rest", "to": "gemini"},
            ],
        }
        with routed(config, GEMINI_KEY="gk-0123456789", OTHER_KEY="sk-other-0123") as running:
            yield running


async def answer_gemini(call: Call) -> None:
    await call.reply(200, JSON, PLAIN.reply)


async def answer_chat(call: Call) -> None:
    await call.reply(200, JSON, CHAT.reply)


def post(velox: VeloxProcess, body: bytes) -> httpx.Response:
    url = f"{velox.base_url}/v1/chat/completions"
    return httpx.post(url, content=body, headers=FIELDS, timeout=60, verify=NO_TRUST)


def waits(velox: VeloxProcess, work: Callable[[], httpx.Response]) -> tuple[list[float], list[httpx.Response]]:
    """Do some work; return how long small requests took meanwhile, in ms, and its answer."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    found: list[float] = []
    with httpx.Client(headers=FIELDS, timeout=60, verify=NO_TRUST) as client:
        url = f"{velox.base_url}/v1/chat/completions"
        client.post(url, content=SMALL).raise_for_status()
        thread.start()
        while thread.is_alive():
            began = time.perf_counter()
            client.post(url, content=SMALL).raise_for_status()
            found.append((time.perf_counter() - began) * 1000)
    thread.join()
    return sorted(found), answers


@pytest.mark.parametrize(
    "body",
    [blocks(60_000), content(b" ", 10_000_000), content(rb"\n", 10_000_000), picture(b"%41", 10_000_000)],
    ids=["blocks", "blanks", "newlines", "escapes"],
)
def test_others_have_their_turns(velox: VeloxProcess, body: bytes) -> None:
    """It is made in a thread: no small request waits for as long as that takes."""
    found, answers = waits(velox, lambda: post(velox, body))

    assert answers[0].status_code == 200, answers[0].text
    assert json.loads(answers[0].content)["choices"]
    assert len(found) > 3
    print(f"{len(found)} small requests meanwhile, the longest took {found[-1]:.0f} ms")
