"""Guarantees that no other test shows: how a reply ends that was cut, and that no redirect is followed."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.e2e.conftest import Wall
from tests.e2e.recording import JSON, SSE, Call, Script
from tests.e2e.upstreams import chat_chunk
from tests.untrusting import NO_TRUST


async def cut_between(call: Call) -> None:
    """Two events, then the end."""
    await call.head(200, SSE)
    await call.data(chat_chunk("one ") + chat_chunk("two "))
    await call.step()
    call.cut()


async def cut_inside(call: Call) -> None:
    """An event and a half, then the end."""
    await call.head(200, SSE)
    await call.data(chat_chunk("one ") + b'data: {"half')
    await call.step()
    call.cut()


async def cut_json(call: Call) -> None:
    """Half of what was announced."""
    await call.head(200, [*JSON, ("content-length", "100")])
    await call.data(b'{"half')
    await call.step()
    call.cut()


async def redirect(call: Call) -> None:
    """Somewhere else."""
    await call.reply(307, [("location", "http://127.0.0.1:9/elsewhere")])


def test_stream_that_was_cut_raises_in_the_sdk(wall: Wall) -> None:
    """What came before is there; then the SDK raises its own error, with the reason."""
    words = []
    ask = wall.sdk.chat.completions.create
    with wall.upstream.playing(cut_between) as upstream, ask(model="m", messages=[], stream=True) as stream:
        upstream.step()
        with pytest.raises(openai.APIError) as raised:
            for chunk in stream:
                words.append(chunk.choices[0].delta.content)

    assert words == ["one ", "two "]
    assert raised.value.code == "upstream_truncated"


@pytest.mark.parametrize("script", [cut_between, cut_inside])
def test_stream_that_was_cut_never_looks_whole(wall: Wall, script: Script) -> None:
    """The last event is the error, by itself; no [DONE], and the framing is unfinished."""
    got = b""
    url = f"{wall.velox.base_url}/v1/chat/completions"
    request = {"model": "m", "messages": [], "stream": True}
    with (
        wall.upstream.playing(script) as upstream,
        httpx.Client(verify=NO_TRUST, trust_env=False) as client,
        client.stream("POST", url, json=request) as reply,
    ):
        upstream.step()
        pieces = reply.iter_raw()
        with pytest.raises(httpx.RemoteProtocolError):
            while True:
                got += next(pieces)

    *_, last, rest = got.split(b"\n\n")
    assert rest == b"" and last.startswith(b'data: {"error":') and b'"upstream_truncated"' in last
    assert b"[DONE]" not in got


def test_plain_reply_that_was_cut_is_an_error_for_the_client(wall: Wall) -> None:
    """A JSON reply with bytes missing is never taken for a whole one."""
    with wall.upstream.playing(cut_json) as upstream:
        upstream.step()
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            wall.sdk.chat.completions.create(model="m", messages=[])


def test_redirect_is_refused_and_not_followed(wall: Wall) -> None:
    """The upstream can't send a request, and the key in it, somewhere else."""
    with wall.upstream.playing(redirect), pytest.raises(openai.APIStatusError) as raised:
        wall.sdk.chat.completions.create(model="m", messages=[])

    assert raised.value.status_code == 502
    assert raised.value.response.headers["x-velox-reason"] == "upstream_redirect"
    assert "location" not in raised.value.response.headers
