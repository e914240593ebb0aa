"""Promises of README that no other test shows: how a reply ends that was cut, and that no redirect is followed."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.e2e.conftest import Wall
from tests.e2e.recording import JSON, SSE, Call
from tests.e2e.upstreams import chat_chunk


async def cut_stream(call: Call) -> None:
    """Two events and a half, then the end."""
    await call.head(200, SSE)
    await call.data(chat_chunk("one ") + chat_chunk("two ") + b'data: {"half')
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


def test_stream_that_was_cut_raises_in_the_sdk_and_never_looks_whole(wall: Wall) -> None:
    """What came is there, then one error event; no [DONE], and the framing is unfinished."""
    with wall.upstream.playing(cut_stream) as upstream:
        words = []
        with wall.sdk.chat.completions.create(model="m", messages=[], stream=True) as stream:
            upstream.step()
            with pytest.raises(openai.APIError) as raised:
                words += [chunk.choices[0].delta.content for chunk in stream]

        request = {"model": "m", "messages": [], "stream": True}
        got = b""
        url = f"{wall.velox.base_url}/v1/chat/completions"
        with httpx.Client(trust_env=False) as client, client.stream("POST", url, json=request) as reply:
            upstream.step()
            pieces = reply.iter_raw()
            with pytest.raises(httpx.RemoteProtocolError):
                while True:
                    got += next(pieces)

    assert raised.value.code == "upstream_truncated"
    assert got.endswith(b"\n\n") and b"upstream_truncated" in got.rsplit(b"\n\ndata: ", 1)[-1]
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
